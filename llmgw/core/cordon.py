"""What an operator drained: a node, or one GPU of it, on which nothing of ours may be until `undrain`.

An intent, not a fact of the fleet: kept over restarts, also for a node that does not answer. Says who has to leave;
how that goes is `reconcile.move`'s. May not look at what would be the better place.
"""

from __future__ import annotations

from collections.abc import Iterable

from msgspec.structs import replace

from llmgw.core.types.state import Node, Shard, State

#: Of the ends that follow. No `operator`: a gateway that is silent holds it up, for what leaves may serve (A65).
REASON = "cordon"
#: A node, and a GPU of it by UUID, or "" for the whole node.
Place = tuple[str, str]


def told(state: State, place: Place, why: str) -> State:
    """The operator's word; "" ends it. Said again, the first one counts: it says since when."""
    others = {k: v for k, v in state.cordoned.items() if k != place}
    if not why:
        return replace(state, cordoned=others)
    return replace(state, cordoned=others | {place: state.cordoned.get(place, why)})


def forgotten(state: State, node: str) -> State:
    """One that will not come back takes its word along."""
    return replace(state, cordoned={k: v for k, v in state.cordoned.items() if k[0] != node})


def leaves(state: State, shards: Iterable[Shard]) -> str:
    """Why what has these shards must go from where it is, or ""."""
    if not state.cordoned:
        return ""
    for shard in shards:
        said = state.cordoned.get((shard.node, ""))
        if said:
            return f"{shard.node} is drained {said}"
        for uuid in shard.report.gpus:
            said = state.cordoned.get((shard.node, uuid))
            if said:
                return f"GPU {index(state.nodes.get(shard.node), uuid)} of {shard.node} is drained {said}"
    return ""


def index(node: Node | None, uuid: str) -> str:
    """What people call the GPU; its UUID where the node does not tell."""
    gpus = (node.report.gpus if node else None) or ()
    return next((str(g.index) for g in gpus if g.uuid == uuid), uuid)


def left(node: Node, gpu: str = "") -> tuple[Shard, ...]:
    """What of ours is still there, verifiably ended or not: () means that it is free."""
    return tuple(s for s in node.shards if s.holds and (not gpu or gpu in s.report.gpus))
