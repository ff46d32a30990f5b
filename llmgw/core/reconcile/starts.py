"""The starts of one pass: each with its place, and what becomes of them where a later one would find no room (A62).

A start that has only been decided in this very pass may still go elsewhere, so the order in which models are asked
costs nobody a place. May not decide what is wanted, nor move what runs.
"""

from __future__ import annotations

from msgspec import Struct
from msgspec.structs import replace

from llmgw.core.place import Fleet, NoRoom, Placement, Planned, find, replanned, take
from llmgw.core.place.fit import waits
from llmgw.core.types.catalog import Model
from llmgw.core.types.plan import Action, StartReplica, Wait

#: So many replicas are given a place in one pass, and so many searches for places together are made: a pass must end in
#: time, and the next one follows at once.
BATCH, SEARCHES = 100, 8


class _Due(Struct):
    """`action`: what is listed of it in the plan, None where its model waits once for several."""

    planned: Planned
    reason: str
    action: StartReplica | Wait | None


class Starts:
    """`actions` is the pass's list; entries of ours may be replaced in it, and none is taken out."""

    def __init__(self, fleet: Fleet, actions: list[Action]) -> None:
        self._fleet = fleet
        self._actions = actions
        self._due: list[_Due] = []
        self._searches = SEARCHES

    def place(self, model: Model) -> Placement | NoRoom:
        """Where one more replica goes; those decided before make way for it where all find a place."""
        if len(self._due) >= BATCH:
            why = f"{BATCH} starts are decided in one pass, it is looked at in the next"
            return NoRoom(model.profiles[0].name, why, soon=True)
        answer = find(self._fleet, model)
        if isinstance(answer, Placement) or answer.soon or not self._searches:
            return answer
        self._searches -= bool(self._due)
        better = replanned(self._fleet, [d.planned for d in self._due], model)
        if better is None:
            return answer
        for due, planned in zip(self._due, better, strict=False):
            if planned is not due.planned:
                due.planned = planned
                self._told(due)
        mine = better[-1]
        mine.dropped(self._fleet)  # who asked counts it in
        if mine.starts:
            return mine.placement
        why = self._why(mine.placement)
        return NoRoom(mine.placement.profile, why, soon=True, then=mine.placement)

    def of(self, model: Model) -> int:
        """How many replicas of the model have a place by now."""
        return sum(d.planned.model is model for d in self._due)

    def start(self, model: Model, placement: Placement, reason: str) -> None:
        due = _Due(Planned(model, placement, starts=True), reason, None)
        due.action = _start(due)
        self._add(due)

    def follow(
        self, model: Model, placement: Placement, after: tuple[tuple[str, str], ...], reason: str
    ) -> None:
        """One that makes way for nobody: where it goes is where something is being stopped for it."""
        due = _Due(Planned(model, placement, starts=True), reason, None)
        due.planned.counted(self._fleet)
        self._actions.append(replace(_start(due), after=after))

    def wait(self, model: Model, answer: NoRoom, reason: str, count: int) -> None:
        """`count` replicas of it come once other starts are over; the room where they go is given to nobody else."""
        wait = Wait(model=model.name, profile=model.profiles[0].name, why=f"{reason}; {answer.why}")
        self._actions.append(wait)
        action: Wait | None = wait
        then = answer.then
        for _ in range(count):
            if then is None:
                return
            self._due.append(_Due(Planned(model, then, starts=False), reason, action))
            take(self._fleet, model, then, starts=False)
            action = None
            more = find(self._fleet, model)
            then = more if isinstance(more, Placement) else more.then

    def _add(self, due: _Due) -> None:
        assert due.action is not None
        self._due.append(due)
        due.planned.counted(self._fleet)
        self._actions.append(due.action)

    def _told(self, due: _Due) -> None:
        """It goes elsewhere now, or later."""
        old = due.action
        if old is None:
            return
        if due.planned.starts:
            due.action = _start(due)
        else:
            why = f"{due.reason}; {self._why(due.planned.placement)}"
            due.action = Wait(model=old.model, profile=due.planned.placement.profile, why=why)
        at = next(i for i, a in enumerate(self._actions) if a is old)
        self._actions[at] = due.action

    def _why(self, placement: Placement) -> str:
        fleet = self._fleet
        said = ((s.node, waits(fleet, fleet.nodes[s.node])) for s in placement.spots)
        return "; ".join(f"{node}: {wait}" for node, wait in said if wait)


def _start(due: _Due) -> StartReplica:
    placement = due.planned.placement
    return StartReplica(
        model=due.planned.model.name,
        profile=placement.profile,
        spots=placement.spots,
        why=f"{due.reason}; {placement.why}",
    )
