"""`--require-plan`: the plan that a restart was allowed to have, and whether it is the one that came out (A56).

Answers for: the very plan that the dry run computes, from what was remembered at the start and who has registered
since. It may not let anything happen: it says what the loop is to fold.
"""

from __future__ import annotations

from collections.abc import Mapping

from msgspec.structs import replace

from llmgw.control.picture import believed, shifted
from llmgw.control.story import Story
from llmgw.core.reconcile.decide import decide
from llmgw.core.reconcile.fresh import Memory, after_settling
from llmgw.core.types.catalog import Catalog
from llmgw.core.types.plan import Plan
from llmgw.core.types.state import Node, State, Withheld
from llmgw.wire.plan import plan_digest


def fresh(
    catalog: Catalog, memory: Memory, nodes: Mapping[str, Node], epoch: int, *, keep_unknown: bool
) -> tuple[Plan, State]:
    """What a control that starts now would do once these nodes have registered, and the state it judged."""
    reports = [
        replace(believed(n), epoch_seen=max(epoch, n.report.epoch_seen))
        for _, n in sorted(nodes.items())
        if n.connected
    ]
    state = after_settling(catalog, memory, reports, keep_unknown=keep_unknown)
    return decide(state, 0.0), state


class Gate:
    """`closed` until the plan is the required one, or an operator confirmed the one that was `found`."""

    def __init__(self, required: str, story: Story, *, keep_unknown: bool) -> None:
        self.required = required
        self.closed = bool(required)
        self.found = ""
        self.why = f"the plan {required} is required, settling is not over" if required else ""
        self._story = story
        self._keep_unknown = keep_unknown
        self._memory: Memory | None = None

    def begins(self, memory: Memory) -> bool:
        """At each acquisition of the lead: whether it is closed. What the first one remembered is what counts."""
        if self._memory is None:
            self._memory = memory
        return self.closed

    @property
    def waits(self) -> bool:
        """Closed, and nothing was found yet."""
        return self.closed and not self.found

    def judged(self, state: State, now: float) -> Withheld:
        """Once settling is over: open for the required plan, and for no other."""
        if self.look(state, now) == self.required:
            return self.opened()
        return self.told()

    def look(self, state: State, now: float) -> str:
        """The digest of the plan as of now, `found` from here on."""
        assert self._memory is not None
        memory = shifted(self._memory, now)
        plan, _ = fresh(
            state.catalog, memory, state.nodes, state.epoch, keep_unknown=self._keep_unknown
        )
        self.found = plan_digest(plan)
        self.why = (
            f"the plan is {self.found}, and {self.required} is required: nothing is started or "
            f"ended; llmgw confirm {self.found} lets it be carried out"
        )
        return self.found

    def opened(self) -> Withheld:
        self.closed, self.why = False, ""
        self._story.tell("released", f"the plan is {self.found}, it is carried out")
        return Withheld("")

    def told(self) -> Withheld:
        """The fact that it is closed, and a word to people."""
        self._story.tell("blocked", self.why, level="warning", digest=self.found)
        return Withheld(self.why)
