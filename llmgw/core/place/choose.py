"""Which nodes: the first profile that fits somewhere, where it fits best; several nodes for a group, on one fabric.

A circuit bears all ranks of a group together; the limit on starts counts a group as one, for its ranks start together.
"""

from __future__ import annotations

from msgspec import Struct
from msgspec.structs import replace

from llmgw.core.capacity import Held, resources_for, taken
from llmgw.core.place.fit import Fit, circuit, fit
from llmgw.core.types.catalog import Model, Profile
from llmgw.core.types.messages import ShardReport
from llmgw.core.types.plan import Spot
from llmgw.core.types.state import PLACED, Shard, State


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
    fits: list[Fit] = []
    refusals: list[str] = []
    for name, node in sorted(state.nodes.items()):
        answer = fit(state, held, node, profile)
        if isinstance(answer, Fit):
            fits.append(answer)
        else:
            refusals.append(f"{name}{'' if not node.usable else ':'} {answer}")
    if profile.nodes > 1:
        return _group(state, held, profile, fits, refusals)
    ready = [f for f in fits if not f.wait]
    if ready:
        best = min(ready, key=lambda f: _tightness(held, f))
        return Placement(profile.name, (replace(best.spot, group_port=0),), best.why)
    if fits:
        return NoRoom(profile.name, _waits(fits), soon=True)
    return NoRoom(profile.name, "; ".join(refusals) or "no node is registered")


def _tightness(held: dict[str, Held], f: Fit) -> tuple[int, int, str]:
    return (f.left_bytes, held[f.spot.node].shards, f.spot.node)


def _waits(fits: list[Fit]) -> str:
    return "; ".join(f"{f.spot.node}: {f.wait}" for f in fits)


def _group(
    state: State, held: dict[str, Held], profile: Profile, fits: list[Fit], refusals: list[str]
) -> Placement | NoRoom:
    """The tightest nodes that are on one fabric and whose circuits bear them together; the tightest of all leads."""
    waiting: list[Fit] = []
    most, said = 0, refusals
    for fabric in _fabrics(state, profile):
        able, others = _on_fabric(state, held, fabric, fits)
        able.sort(key=lambda f: _tightness(held, f))
        chosen, too_much = _borne(state, held, profile, [f for f in able if not f.wait])
        if len(chosen) == profile.nodes:
            spots = tuple(
                replace(f.spot, rank=i, group_port=0 if i else f.spot.group_port)
                for i, f in enumerate(chosen)
            )
            on = f" on fabric {fabric}" if fabric else ""
            return Placement(profile.name, spots, f"{'; '.join(f.why for f in chosen)}{on}")
        if len(_borne(state, held, profile, able)[0]) == profile.nodes:
            waiting = waiting or [f for f in able if f.wait]
        if len(chosen) >= most:
            most, said = len(chosen), [*refusals, *others, *too_much]
    if waiting:
        return NoRoom(profile.name, _waits(waiting), soon=True)
    short = f"{most} of {profile.nodes} nodes fit"
    return NoRoom(profile.name, "; ".join([short, *said]))


def _fabrics(state: State, profile: Profile) -> tuple[str, ...]:
    """Those to try: `any` stands for each that a node names; none asked for is one that all are on."""
    if profile.fabric != "any":
        return (profile.fabric,)
    return tuple(sorted({f for n in state.nodes.values() for f in n.report.fabrics})) or ("any",)


def _on_fabric(
    state: State, held: dict[str, Held], fabric: str, fits: list[Fit]
) -> tuple[list[Fit], list[str]]:
    """Those that are on it with its adapters free, and why others are not."""
    if not fabric:
        return list(fits), []
    able, refusals = [], []
    for f in fits:
        name = f.spot.node
        there = state.nodes[name].report.fabrics.get(fabric)
        if there is None:
            off = "names no fabric" if fabric == "any" else f"is not on fabric {fabric}"
            refusals.append(f"{name}: {off}")
            continue
        busy = [h for h in there.hcas if h in held[name].hcas]
        if busy:
            refusals.append(f"{name}: {busy[0]} is held by {held[name].hcas[busy[0]]}")
            continue
        able.append(replace(f, spot=replace(f.spot, fabric=fabric, hcas=there.hcas)))
    return able, refusals


def _borne(
    state: State, held: dict[str, Held], profile: Profile, fits: list[Fit]
) -> tuple[list[Fit], list[str]]:
    """As many as are asked for, in this order, passing over those whose circuit has no more to give."""
    chosen: list[Fit] = []
    refusals: list[str] = []
    ranks: dict[str | None, int] = {}
    for f in fits:
        if len(chosen) == profile.nodes:
            break
        node = state.nodes[f.spot.node]
        panel = node.report.circuit
        too_much = circuit(state, held, node, profile, ranks.get(panel, 0) + 1)
        if too_much:
            refusals.append(f"{f.spot.node}: {too_much}")
            continue
        ranks[panel] = ranks.get(panel, 0) + 1
        chosen.append(f)
    return chosen, refusals


def counted(held: dict[str, Held], model: Model, placement: Placement) -> dict[str, Held]:
    """`held` with the placement in it: the next question of the same pass sees it (work in flight is held)."""
    profile = model.profile(placement.profile)
    assert profile is not None
    held = dict(held)
    for spot in placement.spots:
        report = ShardReport(
            shard=f"{model.name} (just placed)",
            gpus=spot.gpus,
            hcas=spot.hcas,
            port=spot.port,
            ports={"group": spot.group_port},
            state="pending",
        )
        shard = Shard(node=spot.node, report=report, origin=PLACED)
        held[spot.node] = taken(held[spot.node], shard, resources_for(profile))
    return held
