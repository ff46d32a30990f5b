"""Replicas that gateways leave alone because they fail (A68): told when that lasts, and when it is over.

Answers for: one event each, however often a gateway tries again in between. It may not decide: whether an engine is
given up is for `core.hung` and its own agent, and who gets a request is the gateway's.
"""

from __future__ import annotations

from llmgw.control.story import Story
from llmgw.core.types.state import State

#: Shorter than that is a restart in its place, or a load that began to answer too early.
OPEN_S = 30.0


class Shunned:
    def __init__(self, story: Story) -> None:
        self._story = story
        self._since_s: dict[str, float] = {}
        self._told: set[str] = set()

    def look(self, state: State, now: float) -> None:
        """Once a pass."""
        open_at = {r: name for name, g in sorted(state.gateways.items()) for r in g.demand.breaker}
        for replica in self._told - set(open_at):
            s = now - self._since_s[replica]
            why = f"gateways give requests to {replica} again, or it is gone, after {s:.0f} s"
            self._story.tell("breaker_closed", why, replica=replica)
        self._since_s = {r: self._since_s.get(r, now) for r in open_at}
        self._told &= set(open_at)
        for replica, name in open_at.items():
            open_s = now - self._since_s[replica]
            if open_s < OPEN_S or replica in self._told:
                continue
            self._told.add(replica)
            said = state.gateways[name].demand.breaker_why.get(replica)
            why = f"gateway {name[:8]} has left {replica} alone for {open_s:.0f} s" + (
                f": {said}" if said else ""
            )
            self._story.tell("breaker_open", why, level="warning", replica=replica)
