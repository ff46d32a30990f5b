"""Replacing replicas whose profile changed: surge by one where there is room, else stop first (A66).

One step a pass, found from the facts: a surge is a start; once the new one is ready, `surplus` names the old one to
drain. One at a time of a model until one by today's profile has proved itself, which is to be ready; then as many may
be away as `max_unavailable` says, where they are stopped first. No further when the new one does not come up.
May not stop anything itself, nor for a new one that would find no room.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from types import MappingProxyType

from msgspec.structs import replace

from llmgw.core.place import Fleet, NoRoom, Placement, find
from llmgw.core.types.catalog import Model, Profile
from llmgw.core.types.plan import Replica, RollReplica, Spot, Wait
from llmgw.core.types.state import Shard, State

#: After "roll: " in the `why` of a wait that only an operator ends.
HALTED = "halted"
#: Of so many a place is looked for in one pass: a pass must end in time, and few of many may start at once.
LOOKS = 500


def step(
    fleet: Fleet,
    model: Model,
    replicas: list[Replica],
    before: int = 0,
    ending: Mapping[str, str] = MappingProxyType({}),
) -> RollReplica | Wait | None:
    """The next replica of the model to roll; None: nothing drifted, or the model is not whole.

    `replicas` are the kept ones, those on their way out left out; `before`: how many of others are rolled or wait for
    other starts by what this pass says; `ending`: incarnations of the model that it ends, and where: their room is
    about to be free, and they are away like those on their way out. The fleet is left as it was.
    """
    state = fleet.state
    old = _oldest_drift(model, replicas)
    if old is None:
        return None
    going = fleet.once("leaving", lambda: _on_their_way_out(state)).get(model.name, {})
    # By incarnation: the ranks of a group are on several nodes, and each would name it otherwise.
    leaving = [*going.values(), *(said for inc, said in ending.items() if inc not in going)]
    away = _away(model, replicas, leaving)
    if away and not _may_go_on(model, replicas, away):
        return _behind(model, replicas, old, leaving)
    profile = model.profile(old.profile)
    assert profile is not None
    drifted = frozenset(r.incarnation for r in replicas if r.drift)
    halted = _halted(state, model, profile)
    if halted:
        return _wait(model, profile, halted)
    answer = find(fleet, model, (profile,)) if before < LOOKS else _many(profile)
    if away and (isinstance(answer, Placement) or answer.soon):
        return None  # beside the others one at a time: together they would be too many
    if isinstance(answer, Placement):
        return _roll(old, answer.spots, f"a new one starts beside it: {answer.why}")
    if answer.soon:
        return replace(_wait(model, profile, answer.why), rolls=drifted)
    mark = fleet.mark()
    fleet.free(old)
    then = find(fleet, model, (profile,))
    fleet.reset(mark)
    if isinstance(then, NoRoom) and not then.soon:
        return _wait(model, profile, f"no room, not even once {old.replica} is stopped: {then.why}")
    return _roll(old, (), f"it is stopped first, no room beside it: {answer.why}")


def _many(profile: Profile) -> NoRoom:
    why = f"{LOOKS} others come first in this pass, it is looked at once they are fewer"
    return NoRoom(profile.name, why, soon=True)


def surplus(
    state: State, model: Model, replicas: list[Replica], ending: Collection[str] = ()
) -> Replica | None:
    """The old one to drain now that its replacement is ready, where `max` alone would keep both.

    One at a time: with room for two and none asked for, the second would go while the first still ends.
    """
    if len(replicas) <= max(model.scaling.min, 1) or all(r.drift for r in replicas):
        return None
    if not all(r.complete_and_ready for r in replicas):
        return None
    old = None if ending else _oldest_drift(model, replicas)
    return old if old is not None and not _on_their_way_out(state).get(model.name) else None


def _oldest_drift(model: Model, replicas: list[Replica]) -> Replica | None:
    drifted = [r for r in replicas if r.drift and r.complete_and_ready]
    if model.on_change != "roll":
        return None
    return min(drifted, key=lambda r: (r.in_flight, r.started_at, r.incarnation), default=None)


def _away(model: Model, replicas: list[Replica], leaving: list[str]) -> int:
    """How many of the model serve nobody just now: on their way up, or out, or not there yet."""
    unready = sum(not r.complete_and_ready for r in replicas)
    lacking = max(model.scaling.min - len(replicas), 0)
    return unready + max(lacking, len(leaving))


def _may_go_on(model: Model, replicas: list[Replica], away: int) -> bool:
    """Another may go beside those that are away already: one by today's profile has shown that it comes up (A66)."""
    proved = any(r.complete_and_ready and not r.drift for r in replicas)
    return proved and away < model.max_unavailable


def _behind(model: Model, replicas: list[Replica], old: Replica, leaving: list[str]) -> Wait | None:
    """What the roll waits for, where nothing else says it."""
    whole = len(replicas) >= model.scaling.min and all(r.complete_and_ready for r in replicas)
    profile = model.profile(old.profile)
    assert profile is not None
    return (
        _wait(model, profile, f"{leaving[0]} is still on its way out")
        if leaving and whole
        else None
    )


def _halted(state: State, model: Model, profile: Profile) -> str:
    for failure in reversed(state.failures.get(model.name, ())):
        if failure.fingerprint in profile.fingerprints.values():
            return (
                f"{HALTED}, the new {profile.name} did not come up ({failure.error}); "
                f"llmgw clear {model.name} lets it go on"
            )
    return ""


def _on_their_way_out(state: State) -> dict[str, dict[str, str]]:
    """By model and incarnation, its replicas that are, and where."""
    found: dict[str, dict[str, str]] = {}
    for _, node in sorted(state.nodes.items()):
        for shard in node.shards:
            if _leaving(state, shard):
                of = state.catalog.resolve(shard.report.model)
                there = found.setdefault(of.name if of is not None else "", {})
                there.setdefault(shard.incarnation, f"{shard.report.replica} on {shard.node}")
    return found


def _leaving(state: State, shard: Shard) -> bool:
    report = shard.report
    return shard.holds and (
        shard.incarnation in state.draining
        or report.desired != "running"
        or report.state in ("draining", "stopping")
    )


def _roll(old: Replica, spots: tuple[Spot, ...], how: str) -> RollReplica:
    return RollReplica(
        replica=old.replica,
        incarnation=old.incarnation,
        model=old.model,
        profile=old.profile,
        shards=old.members,
        spots=spots,
        why=f"{old.drift}; {how}",
    )


def _wait(model: Model, profile: Profile, why: str) -> Wait:
    return Wait(model=model.name, profile=profile.name, why=f"roll: {why}")
