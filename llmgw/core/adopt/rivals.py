"""Two claims on one thing, kept by one total order (A35-A38): one replica id, too many replicas, one port, one GPU.

Says who loses to whom and why; what happens to the loser (drained, once the kept one is routable) is `reconcile`'s.
"""

from __future__ import annotations

from msgspec import Struct

from llmgw.core.adopt.group import YOUNGEST, Group
from llmgw.core.capacity import ports_of, resources_of
from llmgw.core.types.plan import Replica
from llmgw.core.types.state import State


class Lost(Struct, frozen=True):
    to: Replica
    reason: str
    why: str


def order(state: State, r: Replica) -> tuple[object, ...]:
    """The total order of A38; the lowest stays. After settling, the routed one comes first (A35)."""
    nodes = sorted(s.node for s in r.members)
    return (
        r.state == "draining",
        not (not state.settling and r.incarnation in state.routed),
        not r.complete_and_ready,
        bool(r.drift),
        -r.in_flight,
        r.started_at or YOUNGEST,
        r.incarnation,
        nodes[0] if nodes else "",
    )


def rivals(state: State, groups: list[Group]) -> dict[str, Lost]:
    """Claimed groups that lose against another claim on the same thing: incarnation -> to whom, why."""
    ranked = sorted(
        (g for g in groups if g.replica.claimed and g.replica.members),
        key=lambda g: order(state, g.replica),
    )
    lost: dict[str, Lost] = {}
    by_id: dict[str, Replica] = {}
    for g in ranked:
        r = g.replica
        first = by_id.setdefault(r.replica, r)
        if first is not r:
            lost[r.incarnation] = Lost(
                first,
                "duplicate_replica",
                f"{_words(first)} is kept as {r.replica}: {_because(first, r)}",
            )
    _surplus(state, [g for g in ranked if g.incarnation not in lost], lost)
    _clashes(state, [g for g in ranked if g.incarnation not in lost], lost)
    return lost


def _surplus(state: State, ranked: list[Group], lost: dict[str, Lost]) -> None:
    """More replicas than `max` (A38). A replacement on its way up during a roll is not too many (A66)."""
    kept: dict[str, list[Replica]] = {}
    for g in ranked:
        r = g.replica
        if r.state == "draining":
            continue
        model = state.catalog.models[r.model]
        others = kept.setdefault(r.model, [])
        rolling = not r.complete_and_ready and not r.drift and any(o.drift for o in others)
        if len(others) >= model.scaling.max + rolling:
            first = others[0]
            lost[r.incarnation] = Lost(
                first,
                "duplicate_replica",
                f"{r.model} runs {len(others) + 1} times, max is {model.scaling.max}; "
                f"{_words(first)} is kept: {_because(first, r)}",
            )
        else:
            others.append(r)


def _clashes(state: State, ranked: list[Group], lost: dict[str, Lost]) -> None:
    """Two engines on one port of a node (SO_REUSEPORT, A45) or on a GPU that one of them has alone (F73)."""
    ports: dict[tuple[str, int], Replica] = {}
    gpus: dict[tuple[str, str], list[tuple[Replica, bool]]] = {}
    for g in ranked:
        r = g.replica
        for shard in r.members:
            whole = not resources_of(shard, state.catalog).gpu_memory_bytes
            for port in ports_of(shard):
                first = ports.setdefault((shard.node, port), r)
                if first is not r:
                    lost[r.incarnation] = Lost(
                        first,
                        "port_conflict",
                        f"port {port} of {shard.node} is {_words(first)}'s: {_because(first, r)}",
                    )
            for uuid in shard.report.gpus:
                there = gpus.setdefault((shard.node, uuid), [])
                other = next((o for o, alone in there if o is not r and (alone or whole)), None)
                if other is not None:
                    lost[r.incarnation] = Lost(
                        other,
                        "gpu_conflict",
                        f"{uuid} of {shard.node} is {_words(other)}'s and one of them has it alone: "
                        f"{_because(other, r)}",
                    )
                there.append((r, whole))


def _words(r: Replica) -> str:
    nodes = ", ".join(sorted({s.node for s in r.members}))
    return f"{r.replica} on {nodes}"


def _because(kept: Replica, other: Replica) -> str:
    """The first point of the total order on which they differ, in words."""
    if (kept.state == "draining") != (other.state == "draining"):
        return "the other is draining"
    if kept.complete_and_ready != other.complete_and_ready:
        return f"it is {kept.state}, the other {other.state}"
    if bool(kept.drift) != bool(other.drift):
        return "it has today's profile"
    if kept.in_flight != other.in_flight:
        return f"it serves {kept.in_flight} requests, the other {other.in_flight}"
    if kept.started_at != other.started_at:
        return f"running since {kept.started_at or 'unknown'}, the other since {other.started_at or 'unknown'}"
    return "it has served so far, or the lower id"
