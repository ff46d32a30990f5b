"""The picture once some replicas have ended and their memory is back, to see what would fit then.

A thought only: what really ends holds its resources until its agent has verified that they are free (A43).
"""

from __future__ import annotations

from collections.abc import Iterable

from msgspec.structs import replace

from llmgw.core.capacity import Held, given_back, resources_of
from llmgw.core.types.catalog import Catalog
from llmgw.core.types.messages import Gpu
from llmgw.core.types.plan import Replica
from llmgw.core.types.state import Node, Shard, State


def freed(
    state: State, held: dict[str, Held], replicas: Iterable[Replica]
) -> tuple[State, dict[str, Held]]:
    """State and holdings without the shards of these."""
    nodes, held = dict(state.nodes), dict(held)
    for r in replicas:
        for shard in r.members:
            name = shard.node
            nodes[name], held[name] = without(nodes[name], held[name], shard, state.catalog)
    return replace(state, nodes=nodes), held


def without(node: Node, held: Held, shard: Shard, catalog: Catalog) -> tuple[Node, Held]:
    """Node and holding without it; what was counted in during this pass stays counted."""
    if not shard.holds:
        return node, held
    need = resources_of(shard, catalog)
    others = tuple(s for s in node.shards if s is not shard)
    beyond = _beyond(node, shard)
    shared = {uuid for s in others if s.holds for uuid in s.report.gpus}
    back = need.host_memory_bytes
    gpus = node.report.gpus
    if gpus is not None:
        each = need.gpu_memory_bytes or 0
        gpus = tuple(
            _less(g, each + beyond.get(g.uuid, 0), back, alone=g.uuid not in shared)
            if g.uuid in shard.report.gpus
            else replace(g, memory_used_bytes=max(g.memory_used_bytes - back, 0))
            if g.unified
            else g
            for g in gpus
        )
    foreign = tuple(f for f in node.report.foreign if f.shard != shard.report.shard)
    report = replace(node.report, gpus=gpus, foreign=foreign)
    node = replace(node, report=report, shards=others)
    return node, given_back(held, shard, need, beyond)


def _beyond(node: Node, shard: Shard) -> dict[str, int]:
    """By GPU, what the shard holds beyond what it was given (F73)."""
    name = shard.report.shard
    return {f.gpu: f.memory_bytes for f in node.report.foreign if f.shard == name and f.gpu}


def _less(gpu: Gpu, its_bytes: int, host_bytes: int, *, alone: bool) -> Gpu:
    """Of a GPU it had to itself only strangers' use is left, and that is counted apart."""
    if alone and not gpu.unified:
        return replace(gpu, memory_used_bytes=0)
    its_bytes += host_bytes if gpu.unified else 0
    return replace(gpu, memory_used_bytes=max(gpu.memory_used_bytes - its_bytes, 0))
