"""A start that was ordered together with the stops that make its room: kept back as if it were still on its way.

Nothing is promised to it meanwhile, nothing journaled: once those have ended it is an order that came just then, with
session, fence, claims, ports and room looked at as ever. May not decide whether it starts.
"""

from __future__ import annotations

from llmgw.core.supervise.commands import target
from llmgw.core.types.messages import Command, SendReport, Start
from llmgw.core.types.node import AgentState, CommandReceived
from llmgw.core.types.record import STUCK, Key, Record


def follows(state: AgentState, command: Command) -> bool:
    """Whether one of those it was ordered with is still on its way out, as far as that is in anybody's hands."""
    after = command.after if isinstance(command, Start) else ()
    return any(record is not None and _leaves(record) for record in map(state.records.get, after))


def _leaves(record: Record) -> bool:
    """Not what does not end by itself: then the no to the start says what is in its way."""
    going = record.desired == "stopped" or record.ending in ("stopped", "failed")
    stuck = record.state == "unknown" or STUCK in (record.error or "")
    return going and not record.ended and not stuck


class Following:
    """Those of one agent process; they end with it, or with the session they came in."""

    def __init__(self) -> None:
        self._late: list[CommandReceived] = []

    @property
    def keys(self) -> frozenset[Key]:
        return frozenset(target(x.command) for x in self._late)

    def keeps(self, state: AgentState, event: CommandReceived) -> bool:
        """Whether it is kept back. Any newer order about the same shard takes its place."""
        command = event.command
        if not isinstance(command, SendReport):
            self._late = [x for x in self._late if target(x.command) != target(command)]
        if not follows(state, command):
            return False
        self._late.append(event)
        return True

    def due(self, state: AgentState) -> list[CommandReceived]:
        """Those that wait for nobody any more, each once, in their order."""
        due = [x for x in self._late if not follows(state, x.command)]
        if due:
            self._late = [x for x in self._late if x not in due]
        return due

    def lost(self, control: str) -> None:
        """Its session is over: what came in it is not obeyed any more."""
        self._late = [x for x in self._late if x.control != control]
