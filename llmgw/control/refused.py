"""Agents that were turned away for their token: an operator who waits for a node is told why it does not come.

Answers for: what is said by strangers is bounded, in number and in form. May not let anybody in, nor see a token.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from llmgw.control.story import Story
from llmgw.core.supervise.claims import NAME

#: An agent tries again within seconds: not heard for so long, it is gone.
HEARD_S = 60.0
#: Anybody may knock, under any name.
SHOWN = 20
#: Under which an agent says its node's name before it is let in.
HEADER = b"x-llmgw-node"


class _Knock(NamedTuple):
    why: str
    heard_s: float


class Refused:
    def __init__(self, story: Story, clock: Callable[[], float]) -> None:
        self._story = story
        self._clock = clock
        self._knocks: dict[str, _Knock] = {}

    def heard(self, node: str, came_from: str, *, sent: bool) -> None:
        """`sent`: it had a token, and that is none of ours."""
        name = node if NAME.fullmatch(node) else ""
        who = f"node {name}" if name else "an agent"
        fact, verb, line = "it sent no token", "llmgw token", "the line"
        if sent:
            fact = "its token is none of control's (any more)"
            verb, line = "llmgw token new", "another line"
        why = f"{who} at {came_from or 'an unknown address'} is refused: {fact}; "
        why += f"`{verb}` on control's box prints {line} to start its agent with"
        known = self._now()
        key = name or came_from
        if key not in known and len(known) >= SHOWN:
            return
        if key not in known or known[key].why != why:
            self._story.tell("node_refused", why, level="warning", node=name)
        known[key] = _Knock(why, self._clock())

    def let_in(self, node: str) -> None:
        self._knocks.pop(node, None)

    def said(self) -> tuple[str, ...]:
        return tuple(knock.why for knock in self._now().values())

    def _now(self) -> dict[str, _Knock]:
        after = self._clock() - HEARD_S
        self._knocks = {n: k for n, k in self._knocks.items() if k.heard_s >= after}
        return self._knocks
