"""What must always hold of control's picture, as sentences; used by the tests and the simulator.

A finding is a bug or a lie of an agent, never a normal state. May not repair anything.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator

from msgspec.structs import replace

from llmgw.core.capacity import Held, holdings, ports_of, resources_of
from llmgw.core.types.plan import VERDICTS, Judged, Plan, Wait
from llmgw.core.types.state import PLACED, Node, Shard, State


def violations(state: State, survey: Judged) -> list[str]:
    """Every broken invariant of the picture: [] when all is well."""
    return [*_one_bucket_each(state, survey), *_one_shard_a_rank(survey), *_nothing_twice(state)]


def plan_violations(state: State, plan: Plan) -> list[str]:
    """While settling nothing is started, stopped, drained or rolled (A46)."""
    if not state.settling:
        return []
    acted = (a for a in plan.actions if not isinstance(a, Wait))
    return [f"{type(a).__name__} of {a.model} while settling: {a.why}" for a in acted]


def _one_bucket_each(state: State, survey: Judged) -> Iterator[str]:
    shards = Counter((name, s.key) for name, node in state.nodes.items() for s in node.shards)
    verdicts = Counter((v.shard.node, v.shard.key) for v in survey.verdicts)
    for at in shards | verdicts:
        if shards[at] != verdicts[at]:
            node, (incarnation, rank) = at
            yield f"{incarnation}/{rank} on {node}: {shards[at]} shards, {verdicts[at]} verdicts"
    for v in survey.verdicts:
        if v.verdict not in VERDICTS:
            yield f"{v.shard.report.shard} on {v.shard.node}: {v.verdict} is no verdict"


def _one_shard_a_rank(survey: Judged) -> Iterator[str]:
    """A27: any number of repeats leaves the count at most what is wanted."""
    for r in survey.replicas:
        ranks = [s.rank for s in r.members]
        if len(set(ranks)) < len(ranks) or r.have > r.want:
            yield f"{r.replica} counts ranks {', '.join(map(str, ranks))}, {r.want} wanted"


def _nothing_twice(state: State) -> Iterator[str]:
    """What we placed ourselves never meets another holder: no port, whole GPU, byte, core or watt of a node twice.

    What agents report may clash (somebody's own start, a limit lowered since): that is a verdict, not a bug. A circuit
    may be overdrawn when a node joins it with its engines running. One that comes after others never meets those: they
    are counted without it, and it without them.
    """
    late = {(s.node, *s.key): s.after for n in state.nodes.values() for s in n.shards if s.after}
    yield from _given_twice(_without(state, late.keys()) if late else state)
    if late:
        ended = {(node, key) for (node, *_), after in late.items() for key in after}
        gone = {
            (name, *s.key)
            for name, n in state.nodes.items()
            for s in n.shards
            if (name, (s.report.shard, s.incarnation)) in ended
        }
        yield from _given_twice(_without(state, gone))


def _without(state: State, some: Collection[tuple[str, str, int]]) -> State:
    nodes = {
        name: replace(n, shards=tuple(s for s in n.shards if (name, *s.key) not in some))
        for name, n in state.nodes.items()
    }
    return replace(state, nodes=nodes)


def _given_twice(state: State) -> Iterator[str]:
    held = holdings(state)
    for name, node in state.nodes.items():
        for shard in node.shards:
            if shard.origin == PLACED and shard.holds:
                yield from _ports_twice(node, shard)
                yield from _gpus_twice(node, held[name], shard)
                yield from _node_overrun(state, node, held[name], shard)
                yield from _pool_overrun(state, node, held[name], shard)


def _ports_twice(node: Node, shard: Shard) -> Iterator[str]:
    taken = Counter(port for s in node.shards if s.holds for port in ports_of(s))
    for port in ports_of(shard):
        if taken[port] > 1:
            yield f"port {port} of {shard.node} is given out twice"


def _gpus_twice(node: Node, held: Held, shard: Shard) -> Iterator[str]:
    memory = {g.uuid: g.memory_bytes for g in node.report.gpus or ()}
    guessed = {s.report.shard for s in node.shards if s.report.resources is None}
    for uuid in shard.report.gpus:
        there = held.gpus[uuid]
        if guessed.intersection(there.by):
            continue  # charged by today's catalog (A21), which may have changed since: no proof of anything
        by = ", ".join(there.by)
        if there.whole and len(there.by) > 1:
            yield f"GPU {uuid} of {shard.node} is held whole and shared: {by}"
        if uuid in memory and there.reserved_bytes > memory[uuid]:
            given = f"{there.reserved_bytes} of {memory[uuid]} bytes"
            yield f"GPU {uuid} of {shard.node} is given out beyond its memory, {given}: {by}"


def _node_overrun(state: State, node: Node, held: Held, shard: Shard) -> Iterator[str]:
    need, capacity = resources_of(shard, state.catalog), node.report.capacity
    for what, wanted, used, total in (
        (
            "bytes of host memory",
            need.host_memory_bytes,
            held.host_memory_bytes,
            capacity.host_memory_bytes,
        ),
        ("CPU cores", need.cpu_cores, held.cpu_cores, capacity.cpu_cores),
        ("W", need.power_w, held.power_w, capacity.power_w),
    ):
        if wanted and total is not None and used > total:
            yield f"{shard.node} has {total} {what}, {used} are given out"


def _pool_overrun(state: State, node: Node, held: Held, shard: Shard) -> Iterator[str]:
    """Where host and GPU have one memory, no byte of it is given out twice either."""
    shared = {g.uuid: g.memory_bytes for g in node.report.gpus or () if g.unified}
    if not shared or any(s.report.resources is None for s in node.shards):
        return  # none charged by today's catalog (A21) proves anything
    need, total = resources_of(shard, state.catalog), node.report.capacity.host_memory_bytes
    mine = (need.gpu_memory_bytes or 0) * len(shared.keys() & {*shard.report.gpus})
    reserved = (g.reserved_bytes for uuid, g in held.gpus.items() if uuid in shared)
    given = held.host_memory_bytes + sum(reserved)
    most = max(shared.values()) if total is None else total
    if need.host_memory_bytes + mine and given > most:
        yield f"{shard.node} has {most} bytes shared by host and GPU, {given} are given out"
