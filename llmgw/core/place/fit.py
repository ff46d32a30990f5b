"""One node asked whether one rank of a profile fits there: the spot and how tight it is, or what is in the way.

May not compare nodes.
"""

from __future__ import annotations

from itertools import islice

from msgspec import Struct

from llmgw.core.capacity import (
    GpuHeld,
    Held,
    circuit_power_w,
    circuit_starting,
    gib,
    gpu_free_bytes,
    gpu_takes,
    pool_free_bytes,
    pool_short,
    resources_for,
    short_of,
)
from llmgw.core.types.catalog import Profile
from llmgw.core.types.plan import Spot
from llmgw.core.types.state import Node, State


class Fit(Struct, frozen=True):
    """`left_bytes`: memory left on the chosen GPUs, the smaller the better the fit; `wait`: what starts there now."""

    spot: Spot
    left_bytes: int
    why: str
    wait: str


def fit(state: State, held: dict[str, Held], node: Node, profile: Profile) -> Fit | str:
    """The spot and how tight it is, or the first thing that is in the way."""
    if not node.usable:
        return _unusable(node)
    name = node.report.node
    here = held[name]
    refusal = (
        _eligible(node, profile)
        or here.refused
        or here.lacking.get(f"profile {profile.fingerprint_on(name)}", "")
        or short_of(node.report.capacity, here, resources_for(profile))
        or _pool(node, here, profile)
        or circuit(state, held, node, profile, 1)
    )
    if refusal:
        return refusal
    gpus = _gpus(node, here, profile)
    if isinstance(gpus, str):
        return gpus
    uuids, left = gpus
    shared = _pool(node, here, profile, uuids)
    if shared:
        return shared
    ports = _ports(node, here, 2 if profile.nodes > 1 else 1)
    if isinstance(ports, str):
        return ports
    return Fit(
        Spot(node=name, gpus=uuids, port=ports[0], group_port=sum(ports[1:])),
        left,
        f"fits {name}{_on(node, uuids, left)}",
        _start_limit(state, held, node),
    )


def _unusable(node: Node) -> str:
    if node.too_old:
        return f"has an agent of protocol {node.report.protocol}, too old for new work: upgrade it"
    return "is not connected"


def _on(node: Node, uuids: tuple[str, ...], left_bytes: int) -> str:
    if not uuids:
        return " on its CPU"
    index = {g.uuid: g.index for g in node.report.gpus or ()}
    which = ", ".join(str(index[u]) for u in uuids)
    return f" GPU {which}, {gib(left_bytes)} GiB left there"


def _eligible(node: Node, profile: Profile) -> str:
    """Pool, labels and fabric of the profile against the node's."""
    report = node.report
    if profile.pool not in report.pools:
        return f"is in pools {', '.join(report.pools) or 'none'}, not in {profile.pool}"
    for key, value in sorted(profile.select.items()):
        if report.labels.get(key) != value:
            return f"label {key} is {report.labels.get(key, 'not set')}, {value} is wanted"
    if profile.fabric not in ("", "any") and profile.fabric not in report.fabrics:
        return f"is not on fabric {profile.fabric}"
    if profile.weights and not profile.weights_on(report.node):
        return f"profile {profile.name} names weights for {', '.join(sorted(profile.weights))} only"
    return ""


def circuit(state: State, held: dict[str, Held], node: Node, profile: Profile, ranks: int) -> str:
    """Why the node's breaker panel does not bear so many ranks of the profile more, or ""."""
    name = node.report.circuit
    if name is None or name not in state.catalog.circuits or not profile.power_w:
        return ""
    total, used = state.catalog.circuits[name], circuit_power_w(state, held, name)
    if used + profile.power_w * ranks > total:
        free = f"{max(total - used, 0):g} of {total:g} W free"
        return f"circuit {name}: {free}, {profile.power_w * ranks:g} needed"
    return ""


def _start_limit(state: State, held: dict[str, Held], node: Node) -> str:
    """A start draws the most power and memory of an engine's life: few at a time per node and circuit (A62)."""
    circuit = node.report.circuit
    places = [("there", held[node.report.node].starting)]
    if circuit is not None:
        places.append((f"on circuit {circuit}", circuit_starting(state, held, circuit)))
    limit = state.catalog.start_limit
    for where, starting in places:
        if len(starting) >= limit:
            names = f"{', '.join(sorted(starting))} {'is' if len(starting) == 1 else 'are'}"
            return f"{names} still starting {where}, {limit} start{'s' * (limit > 1)} at a time"
    return ""


def _pool(node: Node, held: Held, profile: Profile, uuids: tuple[str, ...] = ()) -> str:
    report = node.report
    need = resources_for(profile)
    return pool_short(report.gpus or (), report.capacity, held, need, uuids)


def _gpus(node: Node, held: Held, profile: Profile) -> tuple[tuple[str, ...], int] | str:
    """The tightest GPUs that take it, as (uuids by index, bytes left); or why the nearest one does not."""
    if not profile.gpus:
        return (), 0
    if node.report.gpus is None:
        return f"its GPUs are not known ({node.report.gpus_error or 'driver not up?'})"
    if node.report.gpus_error:  # known once, and not now (F59)
        return f"its GPUs are not known ({node.report.gpus_error})"
    pool = pool_free_bytes(node.report.gpus, node.report.capacity, held)
    able: list[tuple[int, int, str]] = []
    refused: list[tuple[int, int, str]] = []
    for gpu in node.report.gpus:
        there = held.gpus.get(gpu.uuid, GpuHeld())
        free = gpu_free_bytes(gpu, there)
        if gpu.unified and pool is not None:
            free = min(free, pool)
        refusal = gpu_takes(gpu, there, profile.gpu_memory_bytes) or _pool(
            node, held, profile, (gpu.uuid,)
        )
        if refusal:
            refused.append((-free, gpu.index, refusal))
        else:
            able.append((free - (profile.gpu_memory_bytes or 0), gpu.index, gpu.uuid))
    if len(able) < profile.gpus:
        return _short_of_gpus(len(able), profile.gpus, [why for _, _, why in sorted(refused)])
    chosen = sorted(able)[: profile.gpus]
    uuids = tuple(u for _, _, u in sorted(chosen, key=lambda c: c[1]))
    return uuids, sum(left for left, _, _ in chosen)


def _short_of_gpus(fit: int, need: int, refusals: list[str]) -> str:
    """`refusals`: of each GPU that does not fit, the one with the most free memory first."""
    if not refusals:
        return f"has {fit} GPUs, {need} needed" if fit else "has no GPU"
    count = f"{fit} of {need} GPUs fit, " if need > 1 else ""
    others = f", the nearest of {len(refusals)}" if len(refusals) > 1 else ""
    return f"{count}{refusals[0]}{others}"


def _ports(node: Node, held: Held, count: int) -> tuple[int, ...] | str:
    """The lowest free ones. Whichever node leads a group has its second one for the ranks to meet at."""
    first, last = node.report.capacity.ports
    free = tuple(islice((p for p in range(first, last + 1) if p not in held.ports), count))
    return free if len(free) == count else f"no port of {first}-{last} is free"
