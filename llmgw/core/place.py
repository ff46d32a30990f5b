"""Where a replica goes: best fit, deterministic, or one sentence naming the tightest resource (A62).

Considers the profiles in the order of the catalog and takes the first that fits somewhere. May not evict, move or wait:
it answers for one replica against what is held now; the caller counts each answer in before it asks again.
"""

from __future__ import annotations

from msgspec import Struct
from msgspec.structs import replace

from llmgw.core.capacity import (
    GpuHeld,
    Held,
    circuit_power_w,
    circuit_starting,
    gib,
    gpu_free_bytes,
    gpu_takes,
    resources_for,
    taken,
)
from llmgw.core.types.catalog import Model, Profile
from llmgw.core.types.messages import Peer, ShardReport, Start
from llmgw.core.types.plan import Spot
from llmgw.core.types.state import PLACED, Node, Shard, State


class Fit(Struct, frozen=True):
    """`left_bytes`: memory left on the chosen GPUs, the smaller the better the fit."""

    spot: Spot
    left_bytes: int
    why: str


class Placement(Struct, frozen=True):
    profile: str
    spots: tuple[Spot, ...]
    why: str


class NoRoom(Struct, frozen=True):
    profile: str
    why: str


def place(
    state: State, held: dict[str, Held], model: Model, profiles: tuple[Profile, ...] = ()
) -> Placement | NoRoom:
    """The first profile that fits, on the node where it fits best; else why not, for the profile that came closest."""
    refusals = []
    for profile in profiles or model.profiles:
        answer = _place_profile(state, held, profile)
        if isinstance(answer, Placement):
            return answer
        refusals.append(answer)
    first = refusals[0]
    others = "".join(f"; {r.profile}: {r.why}" for r in refusals[1:])
    return replace(first, why=f"{first.profile}: {first.why}{others}") if others else first


def _place_profile(state: State, held: dict[str, Held], profile: Profile) -> Placement | NoRoom:
    if profile.nodes > 1:
        return NoRoom(
            profile.name, f"needs {profile.nodes} nodes, multi-node starts are not supported yet"
        )
    fits: list[Fit] = []
    refusals: list[str] = []
    for name in sorted(state.nodes):
        node = state.nodes[name]
        if not node.usable:
            refusals.append(f"{name} is not connected")
            continue
        answer = _fit(state, held, node, profile)
        if isinstance(answer, Fit):
            fits.append(answer)
        else:
            refusals.append(f"{name}: {answer}")
    if fits:
        best = min(fits, key=lambda f: (f.left_bytes, held[f.spot.node].shards, f.spot.node))
        return Placement(profile.name, (best.spot,), best.why)
    return NoRoom(profile.name, "; ".join(refusals) or "no node is registered")


def _fit(state: State, held: dict[str, Held], node: Node, profile: Profile) -> Fit | str:
    """One node: the spot and how tight it is, or the first thing that is in the way."""
    here = held[node.report.node]
    for refusal in (
        here.refused,
        _eligible(node, profile),
        _budget(node, here, profile),
        _circuit(state, held, node, profile),
        _start_limit(state, held, node),
    ):
        if refusal:
            return refusal
    gpus = _gpus(node, here, profile)
    if isinstance(gpus, str):
        return gpus
    uuids, left = gpus
    port = _port(node, here)
    if not port:
        first, last = node.report.capacity.ports
        return f"no port of {first}-{last} is free"
    name = node.report.node
    return Fit(Spot(node=name, gpus=uuids, port=port), left, f"fits {name}{_on(node, uuids, left)}")


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
        return f"is in pools {', '.join(report.pools)}, not in {profile.pool}"
    for key, value in sorted(profile.select.items()):
        if report.labels.get(key) != value:
            return f"label {key} is {report.labels.get(key, 'not set')}, {value} is wanted"
    if profile.fabric not in ("", "any") and profile.fabric not in report.fabrics:
        return f"is not on fabric {profile.fabric}"
    return ""


def _budget(node: Node, held: Held, profile: Profile) -> str:
    capacity = node.report.capacity
    for what, unit, need, used, total in (
        (
            "host memory",
            "GiB",
            profile.host_memory_bytes,
            held.host_memory_bytes,
            capacity.host_memory_bytes,
        ),
        ("CPU cores", "cores", profile.cpu_cores, held.cpu_cores, capacity.cpu_cores),
        ("power", "W", profile.power_w, held.power_w, capacity.power_w),
    ):
        if total is not None and need and used + need > total:
            figure = gib if unit == "GiB" else "{:g}".format
            return f"{what}: {figure(total - used)} of {figure(total)} {unit} free, {figure(need)} needed"
    return ""


def _circuit(state: State, held: dict[str, Held], node: Node, profile: Profile) -> str:
    circuit = node.report.circuit
    if circuit is None or circuit not in state.catalog.circuits or not profile.power_w:
        return ""
    total, used = state.catalog.circuits[circuit], circuit_power_w(state, held, circuit)
    if used + profile.power_w > total:
        return (
            f"circuit {circuit}: {total - used:g} of {total:g} W free, {profile.power_w:g} needed"
        )
    return ""


def _start_limit(state: State, held: dict[str, Held], node: Node) -> str:
    """A start draws the most power and memory of an engine's life: few at a time per node and circuit (A62)."""
    limit = state.catalog.start_limit
    here = held[node.report.node].starting
    if len(here) >= limit:
        return f"{', '.join(sorted(here))} is still starting there, {limit} start at a time"
    circuit = node.report.circuit
    if circuit is not None:
        there = circuit_starting(state, held, circuit)
        if len(there) >= limit:
            return f"{', '.join(sorted(there))} is still starting on circuit {circuit}, {limit} start at a time"
    return ""


def _gpus(node: Node, held: Held, profile: Profile) -> tuple[tuple[str, ...], int] | str:
    """The tightest GPUs that take it, as (uuids by index, bytes left); or why none do."""
    if not profile.gpus:
        return (), 0
    if node.report.gpus is None:
        return "its GPUs are not known (driver not up?)"
    able: list[tuple[int, int, str]] = []
    refusals = []
    for gpu in sorted(node.report.gpus, key=lambda g: g.index):
        there = held.gpus.get(gpu.uuid, GpuHeld())
        refusal = gpu_takes(gpu, there, profile.gpu_memory_bytes)
        if refusal:
            refusals.append(refusal)
        else:
            left = gpu_free_bytes(gpu, there) - (profile.gpu_memory_bytes or 0)
            able.append((left, gpu.index, gpu.uuid))
    if len(able) < profile.gpus:
        have = f"{len(able)} of {profile.gpus} GPUs fit" if profile.gpus > 1 else ""
        return "; ".join([*([have] if have else []), *refusals]) or "has no GPU"
    chosen = sorted(able)[: profile.gpus]
    uuids = tuple(u for _, _, u in sorted(chosen, key=lambda c: c[1]))
    return uuids, sum(left for left, _, _ in chosen)


def _port(node: Node, held: Held) -> int:
    first, last = node.report.capacity.ports
    return next((p for p in range(first, last + 1) if p not in held.ports), 0)


def counted(
    held: dict[str, Held], model: Model, placement: Placement
) -> dict[str, Held]:
    """`held` with the placement in it: the next question of the same pass sees it (work in flight is held)."""
    profile = model.profile(placement.profile)
    assert profile is not None
    held = dict(held)
    for spot in placement.spots:
        report = ShardReport(
            shard=f"{model.name} (just placed)", gpus=spot.gpus, port=spot.port, state="pending"
        )
        shard = Shard(node=spot.node, report=report, origin=PLACED)
        held[spot.node] = taken(held[spot.node], shard, resources_for(profile))
    return held


def start_message(
    state: State,
    model: Model,
    placement: tuple[str, tuple[Spot, ...]],
    replica: str,
    incarnation: str,
) -> tuple[tuple[str, Start], ...]:
    """The start of each rank as (node, message), unexpanded.

    Ids come from the caller: the core makes no random ones.
    """
    profile = model.profile(placement[0])
    assert profile is not None
    spots = placement[1]
    peers = tuple(
        Peer(rank=s.rank, node=s.node, address=state.nodes[s.node].report.address, port=s.port)
        for s in spots
    )
    return tuple(
        (
            spot.node,
            Start(
                shard=f"{replica}/{spot.rank}",
                replica=replica,
                incarnation=incarnation,
                rank=spot.rank,
                world_size=len(spots),
                model=model.name,
                served_name=model.name,
                profile=profile.name,
                fingerprint=profile.fingerprint_on(spot.node),
                weights=profile.weights_on(spot.node),
                launcher=profile.launcher,
                image=profile.image,
                engine=profile.engine,
                command=profile.command,
                env=profile.env,
                pool=profile.pool,
                fabric=profile.fabric,
                gpus=spot.gpus,
                port=spot.port,
                resources=resources_for(profile),
                health=profile.health,
                compute=profile.compute,
                ready=profile.ready,
                start_timeout_s=profile.start_timeout_s,
                stop=profile.stop,
                restart=profile.restart,
                peers=peers,
                insecure=profile.insecure,
            ),
        )
        for spot in spots
    )
