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


def told(state: State, place: Place, why: str, ended: str = "") -> State:
    """The operator's word; "" ends it. Said again, the first one counts: it says since when."""
    others = {k: v for k, v in state.cordoned.items() if k != place}
    if not why:
        return _reworded(
            replace(state, cordoned=others), place, state.cordoned.get(place, ""), ended
        )
    return replace(state, cordoned=others | {place: state.cordoned.get(place, why)})


def _reworded(state: State, place: Place, was: str, ended: str) -> State:
    """A drain that has begun is not undone, and what is said of it stays true: the place is not drained any more."""
    if not was:
        return state
    where = (
        f"GPU {index(state.nodes.get(place[0]), place[1])} of {place[0]}" if place[1] else place[0]
    )
    why = f"it began to leave while {where} was drained ({was}{', ended ' if ended else ''}{ended})"
    said = {
        i: replace(state.draining[i], why=leaves(state, _shards(state, i)) or why)
        for i in {s.incarnation for s in leaving(state, place)}
    }
    return replace(state, draining=state.draining | said) if said else state


def leaving(state: State, place: Place) -> tuple[Shard, ...]:
    """What is there and has begun to leave it, for good."""
    node = state.nodes.get(place[0])
    there = left(node, place[1]) if node else ()
    begun = {i for i, d in state.draining.items() if d.reason == REASON}
    return tuple(s for s in there if s.incarnation in begun)


def _shards(state: State, incarnation: str) -> list[Shard]:
    """Of all nodes: a group leaves as a whole."""
    return [s for n in state.nodes.values() for s in n.shards if s.incarnation == incarnation]


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
