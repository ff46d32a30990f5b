"""Two claims on one thing, kept by one total order (A35-A38): one replica id, too many replicas, one port, one GPU.

Says who loses to whom and why; what happens to the loser (drained, once the kept one is routable) is `reconcile`'s.
"""

from __future__ import annotations

from msgspec import Struct

from llmgw.core.adopt.group import YOUNGEST, Group
from llmgw.core.capacity import gib, ports_of, resources_of
from llmgw.core.types.plan import Replica
from llmgw.core.types.state import PLACED, Shard, State


class Lost(Struct, frozen=True):
    to: Replica
    reason: str
    why: str


def order(state: State, r: Replica) -> tuple[object, ...]:
    """The total order of A38; the lowest stays. After settling, the routed one comes first (A35)."""
    nodes = sorted(s.node for s in r.members)
    return (
        r.state == "draining",
        not _serves(state, r),
        not r.complete_and_ready,
        bool(r.drift),
        -r.in_flight,
        r.started_at or YOUNGEST,
        r.incarnation,
        nodes[0] if nodes else "",
    )


def _serves(state: State, r: Replica) -> bool:
    """Routed, and the picture is whole enough for that to count (A35)."""
    return not state.settling and r.incarnation in state.routed


def rivals(state: State, groups: list[Group]) -> dict[str, Lost]:
    """Claimed groups that lose against another claim on the same thing: incarnation -> to whom, why."""
    ranked = _ranked(state, groups)
    lost: dict[str, Lost] = {}
    by_id: dict[tuple[str, str], Replica] = {}
    for g in ranked:
        r = g.replica
        first = by_id.setdefault((r.model, r.replica), r)
        if first is not r:
            lost[r.incarnation] = Lost(
                first,
                "duplicate_replica",
                f"{_words(first)} is kept as {r.replica}: {_because(state, first, r)}",
            )
    _surplus(state, [g for g in ranked if g.incarnation not in lost], lost)
    _ports([g for g in ranked if g.incarnation not in lost], lost)
    return lost


def _ranked(state: State, groups: list[Group]) -> list[Group]:
    return sorted(
        (g for g in groups if g.replica.claimed and g.replica.members),
        key=lambda g: order(state, g.replica),
    )


def _surplus(state: State, ranked: list[Group], lost: dict[str, Lost]) -> None:
    """More replicas than `max` (A38). The replacement in a roll is not too many, coming up or just ready (A66).

    The old one is routed and the new one is not yet: by A35 the new one would lose at the moment it is ready, and the
    roll begin anew for ever. `roll.surplus` says which one goes.
    """
    kept: dict[str, list[Replica]] = {}
    for g in ranked:
        r = g.replica
        if r.state == "draining":
            continue
        model = state.catalog.models[r.model]
        others = kept.setdefault(r.model, [])
        rolling = not r.drift and any(o.drift for o in others)
        if others and len(others) >= model.scaling.max + rolling:
            first = others[0]
            lost[r.incarnation] = Lost(
                first,
                "duplicate_replica",
                f"{r.model} runs {len(others) + 1} times, max is {model.scaling.max}; "
                f"{_words(first)} is kept: {_because(state, first, r)}",
            )
        else:
            others.append(r)


def _ports(ranked: list[Group], lost: dict[str, Lost]) -> None:
    """Two engines on one port of a node (SO_REUSEPORT, A45, F70): what goes to one may be answered by the other."""
    holders: dict[tuple[str, int], tuple[Replica, Shard]] = {}
    for g in ranked:
        for shard in g.replica.members:
            for port in ports_of(shard):
                kept, holder = holders.setdefault((shard.node, port), (g.replica, shard))
                if kept is not g.replica:
                    why = f"port {port} of {shard.node} is held by {_side(holder)}; {_side(shard)} has it too"
                    lost[g.incarnation] = Lost(kept, "port_conflict", why)


def gpu_clashes(state: State, groups: list[Group]) -> dict[str, Lost]:
    """Engines that together have more of a GPU than there is (F73): named, both sides (A3), and left running.

    Both run, so the memory was enough for what they use; ending one is for a person to say.
    """
    memory = {
        (name, gpu.uuid): gpu.memory_bytes
        for name, node in state.nodes.items()
        for gpu in node.report.gpus or ()
    }
    there: dict[tuple[str, str], list[tuple[Replica, Shard, int]]] = {}
    clashes: dict[str, Lost] = {}
    for g in _ranked(state, groups):
        for shard in g.replica.members:
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
                    clashes[g.incarnation] = Lost(kept, "gpu_conflict", why)
                holders.append((g.replica, shard, size))
    return clashes


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
    if (kept.state == "draining") != (other.state == "draining"):
        return "the other is draining"
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
