"""Where a replica goes: best fit, deterministic, or one sentence naming the tightest resource (A62).

Considers the profiles in the order of the catalog and takes the first that fits somewhere. May not evict, move or wait:
it answers for one replica against what is held now; the caller counts each answer in before it asks again.
"""

from __future__ import annotations

from msgspec import Struct

from llmgw.core.capacity import (
    GpuHeld,
    Held,
    circuit_power_w,
    circuit_starting,
    gib,
    gpu_free_bytes,
    gpu_takes,
    resources_for,
    short_of,
    taken,
)
from llmgw.core.types.catalog import Model, Profile
from llmgw.core.types.messages import Peer, ShardReport, Start
from llmgw.core.types.plan import Spot
from llmgw.core.types.state import PLACED, Node, Shard, State


class Fit(Struct, frozen=True):
    """`left_bytes`: memory left on the chosen GPUs, the smaller the better the fit; `wait`: what starts there now."""

    spot: Spot
    left_bytes: int
    why: str
    wait: str


class Placement(Struct, frozen=True):
    profile: str
    spots: tuple[Spot, ...]
    why: str


class NoRoom(Struct, frozen=True):
    """`soon`: there is room, only other starts come first."""

    profile: str
    why: str
    soon: bool = False


def place(
    state: State, held: dict[str, Held], model: Model, profiles: tuple[Profile, ...] = ()
) -> Placement | NoRoom:
    """The first profile that fits, on the node where it fits best; else why not, for each profile in turn.

    A profile that only waits for other starts to end is waited for: else whatever starts second after a power cut would
    spend its life on its fall-back profile.
    """
    refusals = []
    for profile in profiles or model.profiles:
        answer = _place_profile(state, held, profile)
        if isinstance(answer, Placement) or answer.soon:
            return answer
        refusals.append(answer)
    if len(refusals) == 1:
        return refusals[0]
    return NoRoom(refusals[0].profile, "; ".join(f"{r.profile}: {r.why}" for r in refusals))


def _place_profile(state: State, held: dict[str, Held], profile: Profile) -> Placement | NoRoom:
    if profile.nodes > 1:
        return NoRoom(
            profile.name, f"needs {profile.nodes} nodes, multi-node starts are not supported yet"
        )
    fits: list[Fit] = []
    refusals: list[str] = []
    for name, node in sorted(state.nodes.items()):
        if not node.usable:
            refusals.append(f"{name} {_unusable(node)}")
            continue
        answer = _fit(state, held, node, profile)
        if isinstance(answer, Fit):
            fits.append(answer)
        else:
            refusals.append(f"{name}: {answer}")
    ready = [f for f in fits if not f.wait]
    if ready:
        best = min(ready, key=lambda f: (f.left_bytes, held[f.spot.node].shards, f.spot.node))
        return Placement(profile.name, (best.spot,), best.why)
    if fits:
        return NoRoom(profile.name, "; ".join(f"{f.spot.node}: {f.wait}" for f in fits), soon=True)
    return NoRoom(profile.name, "; ".join(refusals) or "no node is registered")


def _unusable(node: Node) -> str:
    if node.too_old:
        return f"has an agent of protocol {node.report.protocol}, too old for new work: upgrade it"
    return "is not connected"


def _fit(state: State, held: dict[str, Held], node: Node, profile: Profile) -> Fit | str:
    """One node: the spot and how tight it is, or the first thing that is in the way."""
    name = node.report.node
    here = held[name]
    refusal = (
        _eligible(node, profile)
        or here.refused
        or short_of(node.report.capacity, here, resources_for(profile))
        or _circuit(state, held, node, profile)
    )
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
    return Fit(
        Spot(node=name, gpus=uuids, port=port),
        left,
        f"fits {name}{_on(node, uuids, left)}",
        _start_limit(state, held, node),
    )


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


def _circuit(state: State, held: dict[str, Held], node: Node, profile: Profile) -> str:
    circuit = node.report.circuit
    if circuit is None or circuit not in state.catalog.circuits or not profile.power_w:
        return ""
    total, used = state.catalog.circuits[circuit], circuit_power_w(state, held, circuit)
    if used + profile.power_w > total:
        free = f"{max(total - used, 0):g} of {total:g} W free"
        return f"circuit {circuit}: {free}, {profile.power_w:g} needed"
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


def _gpus(node: Node, held: Held, profile: Profile) -> tuple[tuple[str, ...], int] | str:
    """The tightest GPUs that take it, as (uuids by index, bytes left); or why the nearest one does not."""
    if not profile.gpus:
        return (), 0
    if node.report.gpus is None:
        return "its GPUs are not known (driver not up?)"
    able: list[tuple[int, int, str]] = []
    refused: list[tuple[int, int, str]] = []
    for gpu in node.report.gpus:
        there = held.gpus.get(gpu.uuid, GpuHeld())
        free = gpu_free_bytes(gpu, there)
        refusal = gpu_takes(gpu, there, profile.gpu_memory_bytes)
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


def _port(node: Node, held: Held) -> int:
    first, last = node.report.capacity.ports
    return next((p for p in range(first, last + 1) if p not in held.ports), 0)


def counted(held: dict[str, Held], model: Model, placement: Placement) -> dict[str, Held]:
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
