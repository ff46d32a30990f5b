"""Which replicas sleep, and whether one may be woken where it lies: its memory must be free again (A59, A62).

For other decisions: `asleep(replica)` says that it serves nobody and may be stopped at once, without a drain; what it
holds meanwhile is `capacity.resources_of`, the measured rest. May not order anything.
"""

from __future__ import annotations

from collections.abc import Iterator

from msgspec.structs import replace

from llmgw.core import cordon
from llmgw.core.capacity import (
    Held,
    gib,
    given_back,
    gpu_takes,
    pool_short,
    resources_awake,
    resources_of,
    taken,
    without_own,
)
from llmgw.core.types.catalog import Model
from llmgw.core.types.messages import Refusal, ShardReport
from llmgw.core.types.plan import Replica
from llmgw.core.types.sleep import Asleep
from llmgw.core.types.state import Draining, Shard, State, Turned

#: What a shard was before an order turned it into that.
_BEFORE = {"asleep": "ready", "loading": "asleep"}


def asleep(replica: Replica) -> bool:
    """It sleeps or falls asleep: nobody is served by it, nobody is sent there, and it may be stopped at once."""
    return replica.state == "asleep"


def sleeps(shard: Shard) -> bool:
    """By its agent's word it sleeps and its memory was measured."""
    there = shard.report.asleep
    return there is not None and there.verified


def words(shard: Shard) -> str:
    """How it sleeps, for people."""
    there = shard.report.asleep
    if there is None or not there.verified:
        return f"falling asleep on {shard.node}"
    freed = (
        "" if there.freed_bytes is None else f", {gib(there.freed_bytes)} GiB of GPU memory freed"
    )
    rest = "" if there.rest_bytes is None else f", {gib(there.rest_bytes)} GiB still used"
    return f"asleep on {shard.node}{freed}{rest}"


def stuck(state: State, model: Model, replica: Replica) -> str:
    """Why a sleeper is not to be woken at all, or ""."""
    if replica.drift and model.on_change == "roll":
        return replica.drift
    return cordon.leaves(state, replica.members)


def not_to_be_woken(state: State, held: dict[str, Held], replica: Replica) -> str:
    """Why a sleeper cannot wake where it lies just now, or "". Its node answers: of a silent one nothing sleeps."""
    shard = replica.members[0]
    node = state.nodes[shard.node]
    if held[shard.node].refused:
        return held[shard.node].refused
    need = resources_awake(shard, state.catalog)
    there = given_back(held[shard.node], shard, resources_of(shard, state.catalog), {})
    rest = resources_of(shard, state.catalog).gpu_memory_bytes
    gpus = without_own(node.report.gpus or (), shard.report.gpus, rest)
    by_uuid = {g.uuid: g for g in gpus}
    for uuid in shard.report.gpus:
        if uuid not in by_uuid:
            return f"GPU {uuid} is not seen on {shard.node}"
        no = gpu_takes(by_uuid[uuid], there.gpus[uuid], need.gpu_memory_bytes)
        if no:
            return no
    return pool_short(gpus, node.report.capacity, there, need, shard.report.gpus)


def awake_again(state: State, held: dict[str, Held], shard: Shard) -> Held:
    """What its node holds from the moment in which it is woken: all that it was given, as work in flight is held."""
    there = given_back(held[shard.node], shard, resources_of(shard, state.catalog), {})
    report = replace(shard.report, state="loading", asleep=None)
    return taken(there, replace(shard, report=report), resources_awake(shard, state.catalog))


def dozing(state: State, incarnation: str, why: str, now: float) -> State:
    """One is to sleep, and out of the routes from the next table on; `why` "": it stays awake after all."""
    others = {k: v for k, v in state.dozing.items() if k != incarnation}
    if why and incarnation not in state.draining:
        others[incarnation] = state.dozing.get(incarnation, Draining(now, "idle", why))
    return replace(state, dozing=others)


def turned(state: State, event: Turned) -> State:
    """It is asleep, or on its way up, from the moment that it is ordered; its agent's word comes after."""
    node = state.nodes[event.node]
    there = Asleep() if event.to == "asleep" else None
    shards = tuple(
        replace(s, report=replace(s.report, state=event.to, asleep=there), turned=event.to)
        if s.key == event.key
        else s
        for s in node.shards
    )
    incarnation, _ = event.key
    state = dozing(state, incarnation, "", 0.0)
    return replace(state, nodes=state.nodes | {event.node: replace(node, shards=shards)})


def late(shard: Shard, told: ShardReport) -> bool:
    """What its agent says is from before our order: believed, it would be routed, or its room given away.

    Until it says otherwise, refuses, or registers anew, which it does only once it has all orders (A42).
    """
    return told.state == _BEFORE.get(shard.turned)


def told(shard: Shard) -> ShardReport:
    """As its agent has told its state: both compare that, and what was only ordered it may not know yet."""
    before = _BEFORE.get(shard.turned)
    return replace(shard.report, state=before) if before else shard.report


def heeded(shards: tuple[Shard, ...], refused: tuple[Refusal, ...]) -> Iterator[Shard]:
    """The same, where a no of their agent takes our order back."""
    said_no = {(r.shard, r.incarnation) for r in refused}
    return (
        believed(s) if said_no and (s.report.shard, s.incarnation) in said_no else s for s in shards
    )


def believed(shard: Shard) -> Shard:
    """The same, to be believed whatever it says next."""
    return replace(shard, turned="") if shard.turned else shard
