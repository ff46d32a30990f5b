"""Two claims on one thing, kept by one total order (A35-A38): one replica id, too many replicas, one port, one GPU.

Says who loses to whom and why; what happens to the loser (drained, once the kept one is routable) is `reconcile`'s.
"""

from __future__ import annotations

from collections.abc import Collection

from msgspec import Struct

from llmgw.core import cordon
from llmgw.core.adopt.group import since
from llmgw.core.capacity import gib, ports_of, resources_of
from llmgw.core.types.catalog import Catalog, Model
from llmgw.core.types.plan import Replica
from llmgw.core.types.state import PLACED, Node, Shard, State


class Lost(Struct, frozen=True):
    to: Replica
    reason: str
    why: str


def order(state: State, r: Replica) -> tuple[object, ...]:
    """The total order of A38; the lowest stays. After settling, the routed one comes first (A35)."""
    nodes = sorted(s.node for s in r.members)
    return (
        r.going,
        not _serves(state, r),
        not r.complete_and_ready,
        bool(r.drift),
        -r.in_flight,
        since(r.started_at),
        r.incarnation,
        nodes[0] if nodes else "",
    )


def _serves(state: State, r: Replica) -> bool:
    """Routed, and the picture is whole enough for that to count (A35)."""
    return not state.settling and r.incarnation in state.routed


def rivals(state: State, replicas: list[Replica], crowded: Collection[str]) -> dict[str, Lost]:
    """Claimed replicas that lose against another claim on the same thing: incarnation -> to whom, why.

    Only those that meet are ranked; most meet nobody. `crowded`: nodes with a port named twice, or a GPU overfull.
    """
    lost: dict[str, Lost] = {}
    claims = [r for r in replicas if r.claimed and r.members]
    for same in _met(claims):
        _copies(state, _ranked(state, same), lost)
    left = [r for r in claims if r.incarnation not in lost] if lost else claims
    by_model: dict[str, list[Replica]] = {}
    for r in left:
        by_model.setdefault(r.model, []).append(r)
    for name, same in by_model.items():
        model = state.catalog.models[name]
        if len(same) > model.scaling.max:
            _surplus(state, model, _ranked(state, same), lost)
    if crowded:
        _ports(_on(state, crowded, [r for r in left if r.incarnation not in lost]), lost)
    return lost


def _met(replicas: list[Replica]) -> list[list[Replica]]:
    """Those of one replica id, where there are several."""
    if len({r.replica for r in replicas}) == len(replicas):
        return []
    first: dict[str, Replica] = {}
    more: dict[str, list[Replica]] = {}
    for r in replicas:
        other = first.setdefault(r.replica, r)
        if other is not r:
            more.setdefault(r.replica, [other]).append(r)
    return list(more.values())


def _ranked(state: State, replicas: list[Replica]) -> list[Replica]:
    return sorted(replicas, key=lambda r: order(state, r))


def _on(state: State, crowded: Collection[str], replicas: list[Replica]) -> list[Replica]:
    """Those with a shard on one of these nodes, by rank."""
    return _ranked(state, [r for r in replicas if any(s.node in crowded for s in r.members)])


def _copies(state: State, ranked: list[Replica], lost: dict[str, Lost]) -> None:
    """Several of one replica id (A37). Of two models they are two replicas with one name, and not rivals."""
    kept: dict[str, Replica] = {}
    for r in ranked:
        first = kept.setdefault(r.model, r)
        if first is not r:
            why = f"{_words(first)} is kept as {r.replica}: {_because(state, first, r)}"
            lost[r.incarnation] = Lost(first, "duplicate_replica", why)


def _surplus(state: State, model: Model, ranked: list[Replica], lost: dict[str, Lost]) -> None:
    """More replicas than `max` (A38). The replacement in a roll is not too many, coming up or just ready (A66).

    The old one is routed and the new one is not yet: by A35 the new one would lose at the moment it is ready, and the
    roll begin anew for ever. `roll.surplus` says which one goes. One that has to leave a drained place does not count:
    it goes as soon as it can be spared (`reconcile.move`).
    """
    others: list[Replica] = []
    for r in ranked:
        if r.going or cordon.leaves(state, r.members):
            continue
        rolling = not r.drift and any(o.drift for o in others)
        if not others or len(others) < model.scaling.max + rolling:
            others.append(r)
            continue
        first = others[0]
        why = (
            f"{r.model} runs {len(others) + 1} times, max is {model.scaling.max}; "
            f"{_words(first)} is kept: {_because(state, first, r)}"
        )
        lost[r.incarnation] = Lost(first, "duplicate_replica", why)


def _ports(ranked: list[Replica], lost: dict[str, Lost]) -> None:
    """Two engines on one port of a node (SO_REUSEPORT, A45, F70): what goes to one may be answered by the other."""
    holders: dict[tuple[str, int], tuple[Replica, Shard]] = {}
    for r in ranked:
        for shard in r.members:
            for port in ports_of(shard):
                kept, holder = holders.setdefault((shard.node, port), (r, shard))
                if kept is not r:
                    why = f"port {port} of {shard.node} is held by {_side(holder)}; {_side(shard)} has it too"
                    lost[r.incarnation] = Lost(kept, "port_conflict", why)


def gpu_clashes(state: State, replicas: list[Replica], crowded: Collection[str]) -> dict[str, Lost]:
    """Engines that together have more of a GPU than there is (F73): named, both sides (A3), and left running.

    Both run, so the memory was enough for what they use; ending one is for a person to say.
    """
    clashes: dict[str, Lost] = {}
    if not crowded:
        return clashes
    memory = {
        (name, gpu.uuid): gpu.memory_bytes
        for name in crowded
        for gpu in state.nodes[name].report.gpus or ()
    }
    there: dict[tuple[str, str], list[tuple[Replica, Shard, int]]] = {}
    followed = {(name, key) for name in crowded for key in _followed(state.nodes[name])}
    for r in _on(state, crowded, [r for r in replicas if r.claimed]):
        for shard in r.members:
            if followed and (shard.node, (shard.report.shard, shard.incarnation)) in followed:
                continue
            need = resources_of(shard, state.catalog).gpu_memory_bytes or 0
            for uuid in shard.report.gpus:
                total = memory.get((shard.node, uuid), 0)
                holders = there.setdefault((shard.node, uuid), [])
                size = need or total
                taken = sum(n for _, _, n in holders)
                if holders and total and taken + size > total:
                    kept, holder, _ = holders[0]
                    why = (
                        f"GPU {uuid} of {shard.node} has {gib(total)} GiB, of which {_side(holder)} holds "
                        f"{gib(taken)}; {_side(shard)} has {gib(size)} there too"
                    )
                    clashes[r.incarnation] = Lost(kept, "gpu_conflict", why)
                holders.append((r, shard, size))
    return clashes


def crowded(node: Node, catalog: Catalog) -> bool:
    """Whether two of its shards name one port, or together more of a GPU than there is."""
    reports = [s.report for s in node.shards]
    ports = [r.port for r in reports]
    ports += [p for r in reports if r.ports for p in r.ports.values()]
    if len({*ports}) < len(ports):
        return True
    gpus = [uuid for r in reports for uuid in r.gpus]
    return len({*gpus}) < len(gpus) and _overfull(node, catalog)


def _overfull(node: Node, catalog: Catalog) -> bool:
    there = {g.uuid: g.memory_bytes for g in node.report.gpus or ()}
    taken: dict[str, int] = {}
    followed = _followed(node)
    for shard in node.shards:
        if followed and (shard.report.shard, shard.incarnation) in followed:
            continue
        need = resources_of(shard, catalog).gpu_memory_bytes or 0
        for uuid in shard.report.gpus:
            taken[uuid] = taken.get(uuid, 0) + (need or there.get(uuid, 0))
    return any(0 < there.get(uuid, 0) < size for uuid, size in taken.items())


def _followed(node: Node) -> set[tuple[str, str]]:
    """What has ended there by the time that something starts which was placed to come after it."""
    return {key for shard in node.shards for key in shard.after}


def _side(shard: Shard) -> str:
    """One side of a conflict (A3): shard, pid, since when, adopted or placed."""
    r = shard.report
    since = f"since {r.started_at}" if r.started_at else "since unknown"
    came = "placed" if shard.origin == PLACED else "adopted"
    return f"{r.shard} (pid {r.pid or 'unknown'}, {since}, {came})"


def _words(r: Replica) -> str:
    nodes = ", ".join(sorted({s.node for s in r.members}))
    return f"{r.replica} on {nodes}"


def _because(state: State, kept: Replica, other: Replica) -> str:
    """The first point of the total order on which they differ, in words."""
    if kept.going != other.going:
        return f"the other is {other.state}"
    if _serves(state, kept) != _serves(state, other):
        return "it is the one that is routed"
    if kept.complete_and_ready != other.complete_and_ready:
        return f"it is {kept.state}, the other {other.state}"
    if bool(kept.drift) != bool(other.drift):
        return "it has today's profile"
    if kept.in_flight != other.in_flight:
        return f"it serves {kept.in_flight} requests, the other {other.in_flight}"
    if kept.started_at != other.started_at:
        return f"running since {kept.started_at or 'unknown'}, the other since {other.started_at or 'unknown'}"
    return "it has served so far, or the lower id"
