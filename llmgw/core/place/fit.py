"""One node asked whether one rank of a profile fits there: the spot and how tight it is, or what is in the way.

May not compare nodes.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import combinations, islice

from msgspec import Struct

from llmgw.core.capacity import ROUNDING, Held, gib, gpu_takes, pool_short, short_of
from llmgw.core.place.fleet import Fleet, GpuRoom
from llmgw.core.place.near import APART, NUMA, NVLINK, WORDS
from llmgw.core.types.catalog import Profile
from llmgw.core.types.messages import Gpu, Resources
from llmgw.core.types.plan import Spot
from llmgw.core.types.state import Node


class Fit(Struct, frozen=True):
    """`left_bytes`: memory left on the chosen GPUs, the smaller the better the fit; `wait`: what starts there now.

    `near`: how near the chosen GPUs are to each other.
    """

    spot: Spot
    left_bytes: int
    why: str
    wait: str
    near: int = APART


class Chosen(Struct, frozen=True):
    """GPUs of one node; `uuids` by index."""

    uuids: tuple[str, ...] = ()
    left_bytes: int = 0
    near: int = APART


def fit(fleet: Fleet, node: Node, profile: Profile) -> Fit | str:
    """The spot and how tight it is, or the first thing that is in the way."""
    refusal = _barred(fleet, node, profile)
    if refusal:
        return refusal
    chosen = _gpus(fleet, node, profile)
    return chosen if isinstance(chosen, str) else _spot(fleet, node, profile, chosen)


def ways(fleet: Fleet, node: Node, profile: Profile, limit: int) -> list[Fit]:
    """At most so many ways in which it fits where it fits, the best first: other GPUs leave other room for the next."""
    sets = islice(_sets(fleet, node, profile), limit)
    answers = (_spot(fleet, node, profile, chosen) for chosen in sets)
    return [answer for answer in answers if isinstance(answer, Fit)]


def _barred(fleet: Fleet, node: Node, profile: Profile) -> str:
    """What of the node as a whole is in the way, or ""."""
    if not node.usable:
        return _unusable(node)
    name = node.report.node
    here = fleet.held[name]
    need = fleet.need(profile, name)
    return (
        _cordoned(fleet, name, "")
        or eligible(node, profile)
        or here.refused
        or (here.lacking and here.lacking.get(f"profile {profile.fingerprint_on(name)}", ""))
        or short_of(node.report.capacity, here, need)
        or _pool(node, here, need)
        or circuit(fleet, node, profile, 1)
    )


def _spot(fleet: Fleet, node: Node, profile: Profile, chosen: Chosen) -> Fit | str:
    name = node.report.node
    here = fleet.held[name]
    shared = chosen.uuids and _pool(node, here, fleet.need(profile, name), chosen.uuids)
    if shared:
        return shared
    ports = _ports(node, here, 2 if profile.nodes > 1 else 1)
    if isinstance(ports, str):
        return ports
    return Fit(
        Spot(node=name, gpus=chosen.uuids, port=ports[0], group_port=sum(ports[1:])),
        chosen.left_bytes,
        f"fits {name}{_on(node, chosen)}",
        waits(fleet, node),
        chosen.near,
    )


def _unusable(node: Node) -> str:
    if node.too_old:
        return f"has an agent of protocol {node.report.protocol}, too old for new work: upgrade it"
    return "is not connected"


def _on(node: Node, chosen: Chosen) -> str:
    if not chosen.uuids:
        return " on its CPU"
    by = chosen.uuids
    index = {g.uuid: g.index for g in node.report.gpus or () if g.uuid in by}
    which = ", ".join([str(index[u]) for u in by])
    return f" GPU {which}{WORDS[chosen.near]}, {gib(chosen.left_bytes)} GiB left there"


def _cordoned(fleet: Fleet, node: str, gpu: str) -> str:
    """That an operator drained it, and since when."""
    cordoned = fleet.state.cordoned
    said = cordoned.get((node, gpu)) if cordoned else None
    return f"is drained {said}" if said else ""


def eligible(node: Node, profile: Profile) -> str:
    """What a node is against what the profile asks for, whatever runs there: pool, labels, fabric, weights, GPUs."""
    report = node.report
    if profile.pool not in report.pools:
        return f"is in pools {', '.join(report.pools) or 'none'}, not in {profile.pool}"
    for key, value in sorted(profile.select.items()) if profile.select else ():
        if report.labels.get(key) != value:
            return f"label {key} is {report.labels.get(key, 'not set')}, {value} is wanted"
    if profile.fabric not in ("", "any") and profile.fabric not in report.fabrics:
        return f"is not on fabric {profile.fabric}"
    if profile.weights and not profile.weights_on(report.node):
        return f"profile {profile.name} names weights for {', '.join(sorted(profile.weights))} only"
    if profile.gpus_exact and report.gpus is not None:
        named = sum(exactly(report.node, g, profile) for g in report.gpus)
        if named < profile.gpus:
            return (
                f"has {named} of the GPUs that gpus_exact names ({', '.join(profile.gpus_exact)}), "
                f"{profile.gpus} needed"
            )
    return ""


def exactly(node: str, gpu: Gpu, profile: Profile) -> bool:
    """Whether it is one of those that the profile names: by UUID, or as NODE:INDEX."""
    exact = profile.gpus_exact
    return not exact or gpu.uuid in exact or f"{node}:{gpu.index}" in exact


def circuit(fleet: Fleet, node: Node, profile: Profile, ranks: int) -> str:
    """Why the node's breaker panel does not bear so many ranks of the profile more, or ""."""
    name = node.report.circuit
    circuits = fleet.state.catalog.circuits
    if name is None or name not in circuits or not profile.power_w:
        return ""
    total, used = circuits[name], fleet.panel(name).power_w
    if used + profile.power_w * ranks > total + ROUNDING:
        free = f"{max(total - used, 0):g} of {total:g} W free"
        return f"circuit {name}: {free}, {profile.power_w * ranks:g} needed"
    return ""


def waits(fleet: Fleet, node: Node) -> str:
    """A start draws the most power and memory of an engine's life: few at a time per node and circuit (A62)."""
    if not fleet.waits(node.report.node):
        return ""
    limit = fleet.state.catalog.start_limit
    circuit = node.report.circuit
    places = [("there", fleet.held[node.report.node].starting)]
    if circuit is not None:
        places.append((f"on circuit {circuit}", fleet.panel(circuit).starting))
    where, starting = next(p for p in places if len(p[1]) >= limit)
    names = f"{', '.join(sorted(starting))} {'is' if len(starting) == 1 else 'are'}"
    return f"{names} still starting {where}, {limit} start{'s' * (limit > 1)} at a time"


def _pool(node: Node, held: Held, need: Resources, uuids: tuple[str, ...] = ()) -> str:
    gpus = node.report.gpus
    return pool_short(gpus, node.report.capacity, held, need, uuids) if gpus else ""


def _gpus(fleet: Fleet, node: Node, profile: Profile) -> Chosen | str:
    """The nearest and then tightest GPUs that take it; or why the freest one does not."""
    chosen = next(_sets(fleet, node, profile), None)
    if chosen is not None:
        return chosen
    if node.report.gpus is None:
        return f"its GPUs are not known ({node.report.gpus_error or 'driver not up?'})"
    if node.report.gpus_error:  # known once, and not now (F59)
        return f"its GPUs are not known ({node.report.gpus_error})"
    name = node.report.node
    need = fleet.need(profile, name).gpu_memory_bytes or 0
    rooms = [r for r in fleet.rooms(name) if exactly(name, r.gpu, profile)]
    able, refused, nearest = 0, 0, ""
    for r in sorted(rooms, key=lambda r: (-r.free_bytes, r.gpu.index)):
        # Of those after the first nobody is told why: too little memory is enough to know.
        why = (nearest and r.free_bytes < need) or _refuses(fleet, node, profile, r)
        able, refused = able + (not why), refused + bool(why)
        nearest = nearest or str(why)
    return _short_of_gpus(able, profile.gpus, refused, nearest)


def _sets(fleet: Fleet, node: Node, profile: Profile) -> Iterator[Chosen]:
    """The GPUs it could have, the nearest to each other first, then the tightest; none where they are not known."""
    count = profile.gpus
    if not count:
        yield Chosen()
        return
    need = fleet.need(profile, node.report.node).gpu_memory_bytes or 0
    able = _able(fleet, node, profile, need)
    if count == 1:
        yield from (Chosen((r.gpu.uuid,), r.free_bytes - need) for r in able)
        return
    said: set[tuple[str, ...]] = set()
    for level in (NVLINK, NUMA, APART) if able else ():
        for there in _near(fleet, node, able, level):
            for rooms in combinations(there, count):
                uuids = tuple(r.gpu.uuid for r in sorted(rooms, key=lambda r: r.gpu.index))
                if uuids not in said:
                    said.add(uuids)
                    yield Chosen(uuids, sum(r.free_bytes - need for r in rooms), level)


def _able(fleet: Fleet, node: Node, profile: Profile, need_bytes: int) -> list[GpuRoom]:
    """The GPUs that take it, the tightest first; [] where they are not enough, or not known."""
    if node.report.gpus_error:  # known once, and not now (F59)
        return []
    name = node.report.node
    able = [r for r in fleet.tightest(name) if r.free_bytes >= need_bytes]
    if profile.gpus_exact:
        able = [r for r in able if exactly(name, r.gpu, profile)]
    if len(able) >= profile.gpus:
        # With room for its share a card of its own memory has nothing else to say: none is taken whole, none refused.
        plain = need_bytes and not fleet.state.cordoned
        able = [
            r
            for r in able
            if (plain and r.gpu.healthy and not r.gpu.unified)
            or not _refuses(fleet, node, profile, r)
        ]
    return able if len(able) >= profile.gpus else []


def _near(fleet: Fleet, node: Node, able: list[GpuRoom], level: int) -> list[list[GpuRoom]]:
    """Those of one island each, sorted as `able` is; the island with the tightest ones first."""
    if level == APART:
        return [able]
    sets = [[r for r in able if r.gpu.uuid in i] for i in fleet.islands(node, level)]
    return sorted(sets, key=lambda there: [r.free_bytes for r in there])


def _refuses(fleet: Fleet, node: Node, profile: Profile, room: GpuRoom) -> str:
    """Why this GPU does not take it, or ""."""
    name, gpu = node.report.node, room.gpu
    said = _cordoned(fleet, name, gpu.uuid)
    if said:
        return f"GPU {gpu.index} {said}"
    need, declared = fleet.need(profile, name), profile.gpu_memory_bytes or 0
    said = gpu_takes(gpu, room.there, need.gpu_memory_bytes)
    if said and declared and need.gpu_memory_bytes != declared:
        forget = "(llmgw clear forgets what it held)"
        return f"{said}; it held so much before, its gpu_memory says {gib(declared)} {forget}"
    return said or (_pool(node, fleet.held[name], need, (gpu.uuid,)) if gpu.unified else "")


def _short_of_gpus(fit: int, need: int, refused: int, nearest: str) -> str:
    """`nearest`: why the one with the most free memory of those that do not fit does not."""
    if not refused:
        return f"has {fit} GPUs, {need} needed" if fit else "has no GPU"
    count = f"{fit} of {need} GPUs fit, " if need > 1 else ""
    others = f", the nearest of {refused}" if refused > 1 else ""
    return f"{count}{nearest}{others}"


def _ports(node: Node, held: Held, count: int) -> tuple[int, ...] | str:
    """The lowest free ones. Whichever node leads a group has its second one for the ranks to meet at."""
    first, last = node.report.capacity.ports
    free = tuple(islice((p for p in range(first, last + 1) if p not in held.ports), count))
    return free if len(free) == count else f"no port of {first}-{last} is free"
