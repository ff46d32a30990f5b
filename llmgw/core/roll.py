"""Replacing replicas whose profile changed: surge by one where there is room, else stop first (A66).

One step a pass, found from the facts: a surge is a start; once the new one is ready, `surplus` names the old one to
drain. Never two at a time of one model, and no further when the new one does not come up.
May not stop anything itself, nor for a new one that would find no room.
"""

from __future__ import annotations

from msgspec.structs import replace

from llmgw.core.capacity import Held, holdings
from llmgw.core.place import NoRoom, Placement, place
from llmgw.core.types.catalog import Model, Profile
from llmgw.core.types.plan import Replica, RollReplica, Spot, Wait
from llmgw.core.types.state import Node, Shard, State

#: After "roll: " in the `why` of a wait that only an operator ends.
HALTED = "halted"


def step(
    state: State, held: dict[str, Held], model: Model, replicas: list[Replica]
) -> RollReplica | Wait | None:
    """The next replica of the model to roll; None: nothing drifted, or the model is not whole.

    `replicas` are the kept ones, those on their way out left out.
    """
    old = _oldest_drift(model, replicas)
    if old is None or len(replicas) < model.scaling.min:
        return None
    profile = model.profile(old.profile)
    assert profile is not None
    drifted = frozenset(r.incarnation for r in replicas if r.drift)
    first = _first_of_all(state, model, profile)
    if first:
        return _wait(model, profile, first)
    answer = place(state, held, model, (profile,))
    if isinstance(answer, Placement):
        return _roll(old, answer.spots, f"a new one starts beside it: {answer.why}")
    if answer.soon:
        return replace(_wait(model, profile, answer.why), rolls=drifted)
    gone = _without(state, old)
    then = place(gone, holdings(gone), model, (profile,))
    if isinstance(then, NoRoom) and not then.soon:
        return _wait(model, profile, f"no room, not even once {old.replica} is stopped: {then.why}")
    return _roll(old, (), f"it is stopped first, no room beside it: {answer.why}")


def surplus(state: State, model: Model, replicas: list[Replica]) -> Replica | None:
    """The old one to drain now that its replacement is ready, where `max` alone would keep both.

    One at a time: with room for two and none asked for, the second would go while the first still ends.
    """
    if len(replicas) <= max(model.scaling.min, 1) or all(r.drift for r in replicas):
        return None
    old = _oldest_drift(model, replicas)
    return old if old is not None and not _on_its_way_out(state, model) else None


def _oldest_drift(model: Model, replicas: list[Replica]) -> Replica | None:
    if model.on_change != "roll" or not all(r.complete_and_ready for r in replicas):
        return None
    drifted = [r for r in replicas if r.drift]
    return min(drifted, key=lambda r: (r.in_flight, r.started_at, r.incarnation), default=None)


def _first_of_all(state: State, model: Model, profile: Profile) -> str:
    """What must be over before the next step: a replica on its way out, a new one that did not come up; or ""."""
    leaving = _on_its_way_out(state, model)
    if leaving:
        return f"{leaving} is still on its way out"
    for failure in reversed(state.failures.get(model.name, ())):
        if failure.fingerprint in profile.fingerprints.values():
            return (
                f"{HALTED}, the new {profile.name} did not come up ({failure.error}); "
                f"llmgw clear {model.name} lets it go on"
            )
    return ""


def _on_its_way_out(state: State, model: Model) -> str:
    """A replica of the model that is, and where, or ""."""
    for _, node in sorted(state.nodes.items()):
        for shard in node.shards:
            of = state.catalog.resolve(shard.report.model)
            if of is not None and of.name == model.name and _leaving(state, shard):
                return f"{shard.report.replica} on {shard.node}"
    return ""


def _leaving(state: State, shard: Shard) -> bool:
    report = shard.report
    return shard.holds and (
        shard.incarnation in state.draining
        or report.desired != "running"
        or report.state in ("draining", "stopping")
    )


def _without(state: State, old: Replica) -> State:
    """The picture once `old` has ended and its memory is back, to see whether stopping it first would help."""
    freed = {(s.node, uuid) for s in old.members for uuid in s.report.gpus}

    def without(name: str, node: Node) -> Node:
        gpus = node.report.gpus and tuple(
            replace(g, memory_used_bytes=0) if (name, g.uuid) in freed else g
            for g in node.report.gpus
        )
        shards = tuple(s for s in node.shards if s.incarnation != old.incarnation)
        return replace(node, report=replace(node.report, gpus=gpus), shards=shards)

    return replace(state, nodes={name: without(name, node) for name, node in state.nodes.items()})


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
