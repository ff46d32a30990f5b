"""What has to leave a drained node or GPU: replaced elsewhere first where that can be, else ended (`llmgw drain`).

A replica that `min` wants goes once another is ready, for which idle ones on demand make way; where none can be placed
it goes all the same, and `decide` says what the model waits for. A model on demand is simply drained: the next request
wakes it where it may be. Found anew from the facts at each pass (a new one coming up, a new one ready), so a restart of
control continues in the middle. May not touch what is on a silent node: it leaves when that is back.
"""

from __future__ import annotations

from typing import NamedTuple

from llmgw.core import cordon, evict, failed, idle
from llmgw.core.place import NoRoom
from llmgw.core.reconcile import nap
from llmgw.core.reconcile.ends import drained, stoppable
from llmgw.core.reconcile.scratch import Pass
from llmgw.core.types.catalog import Model
from llmgw.core.types.plan import NapReplica, Replica, Wait


class _Sought(NamedTuple):
    """`placed` by this pass, now or after other starts; `homeless`: so many can be placed nowhere, and `why`."""

    placed: int
    homeless: int
    why: str


def away(p: Pass, model: Model) -> bool:
    """One pass of the move; False where nothing of the model has to leave."""
    kept = p.staying(model) if p.state.cordoned else []
    why = {r.incarnation: cordon.leaves(p.state, r.members) for r in kept if not r.held}
    leaving = [r for r in kept if why.get(r.incarnation)]
    if not leaving:
        return False
    stay = [r for r in kept if not why.get(r.incarnation)]
    least = model.scaling.min
    # What is missing anyhow was seen to before: `min` wants it, whoever leaves.
    coming = _coming(p, model)
    lacking = min(least - len(stay), len(leaving))
    sought = _elsewhere(p, model, lacking, why[leaving[0].incarnation])
    up = sum(r.complete_and_ready for r in stay)
    nowhere = max(least - len(stay) - len(leaving) - coming, 0)
    leaving.sort(key=lambda r: (_serves(r), r.in_flight, r.started_at, r.incarnation))
    needed = max(least - up - sought.homeless - nowhere, 0)
    needed = min(needed, sum(map(_serves, leaving)))
    for r in leaving[: len(leaving) - needed]:
        said = f"{why[r.incarnation]}; {_how(r, least, up, sought)}"
        p.actions.append(drained(r, stoppable(r.members), cordon.REASON, said))
    if needed and not sought.placed and not coming:
        why_not = _behind(stay) if sought.homeless or not sought.why else sought.why
        _waits(p, model, leaving[-1], why_not)
    return True


def _coming(p: Pass, model: Model) -> int:
    """Of the model, what this pass already starts, wakes, or keeps a place for."""
    mine = [a for a in p.actions if a.model == model.name]
    kept = sum(isinstance(a, Wait) and bool(a.spots) for a in mine)
    return p.starts.of(model) + kept + sum(isinstance(a, NapReplica) for a in mine)


def _elsewhere(p: Pass, model: Model, lacking: int, because: str) -> _Sought:
    """Start what will take over, as many as lack."""
    reason = f"moves, {because}"
    for n in range(max(lacking, 0)):
        why = failed.gave_up(p.state, model) or failed.backing_off(p.state, model, p.now)
        if why:
            return _Sought(n, 0, f"its replacement failed ({why})")
        sleeper = nap.wakes(p, model, reason)
        if sleeper is not None:
            p.actions.append(sleeper)
            if isinstance(sleeper, Wait):
                return _Sought(lacking, 0, "")
            continue
        answer = p.place(model)
        if isinstance(answer, NoRoom) and answer.soon:
            p.starts.wait(model, answer, reason, lacking - n)
            return _Sought(lacking, 0, "")
        if isinstance(answer, NoRoom) and _cleared(p, model, f"{reason}; {answer.why}"):
            return _Sought(lacking, 0, "")
        if isinstance(answer, NoRoom):
            return _Sought(n, lacking - n, answer.why)
        p.starts.start(model, answer, reason)
    return _Sought(max(lacking, 0), 0, "")


def _cleared(p: Pass, model: Model, why: str) -> bool:
    """Whether idle on-demand replicas make way, as for any that `min` wants (A64); busy ones are not waited for.

    Just after a start of control nobody can tell who is idle, which is waited for.
    """
    leaving = p.leaving(announced=True)
    asks = evict.Asks(model, 0.0, why, frozenset(p.waking))
    way = evict.way(p.fleet, p.survey.replicas, asks, leaving, p.now)
    if way.hold is None:
        unsure = way.then is not None and bool(idle.unsure(p.state, p.now))
        if unsure:
            p.actions.append(Wait(model=model.name, profile=model.profiles[0].name, why=way.why))
        return unsure
    for r, said in way.go:
        if not nap.makes_room(p, model, r, said):
            p.actions.append(drained(r, stoppable(r.members), evict.REASON, said))
    p.counted(model, way.hold)
    p.actions.append(Wait(model=model.name, profile=way.hold.profile, why=way.why))
    return True


def _serves(r: Replica) -> bool:
    """It is up, or was: clients may be on it."""
    return any(s.was_live for s in r.members)


def _how(r: Replica, least: int, up: int, sought: _Sought) -> str:
    if not _serves(r):
        return f"it is {r.state}, nobody is on it yet"
    if not least:
        return "it is on demand, the next request wakes it where there is room"
    if sought.homeless:
        return f"nothing else fits: {sought.why}"
    return f"{up} other{' is' if up == 1 else 's are'} ready"


def _behind(stay: list[Replica]) -> str:
    """Of those that are to take over, what the first is that cannot yet."""
    r = next(r for r in stay if not r.complete_and_ready)
    return f"{r.replica} is {'not heard' if r.held else r.state}"


def _waits(p: Pass, model: Model, r: Replica, why: str) -> None:
    p.actions.append(
        Wait(
            model=model.name,
            profile=r.profile,
            why=f"{r.replica} stays until another is ready: {why}",
        )
    )
