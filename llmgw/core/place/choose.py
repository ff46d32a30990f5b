"""Which nodes: the first profile that fits somewhere, where it fits best; several nodes for a group, on one fabric.

Replicas of one model are spread over nodes as far as that goes; GPUs near to each other come first. A circuit bears all
ranks of a group together; the limit on starts counts a group as one, for its ranks start together.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from heapq import merge
from itertools import islice

from msgspec import Struct
from msgspec.structs import replace

from llmgw.core.capacity import Held
from llmgw.core.place.fit import Fit, circuit, fit
from llmgw.core.place.fleet import Fleet
from llmgw.core.place.near import APART, NUMA, NVLINK
from llmgw.core.place.order import NOBODY, freest, nodes_for, tightest, tightness
from llmgw.core.types.catalog import Model, Profile
from llmgw.core.types.plan import Spot
from llmgw.core.types.state import State

#: So many nodes are named in one sentence, of those where other starts come first; `llmgw status MODEL` shows them all.
SAID, WAITS = 8, 3


class Placement(Struct, frozen=True):
    profile: str
    spots: tuple[Spot, ...]
    why: str


class NoRoom(Struct, frozen=True):
    """`soon`: there is room, only other starts come first; `then`: and that is where."""

    profile: str
    why: str
    soon: bool = False
    then: Placement | None = None


def place(
    state: State, held: dict[str, Held], model: Model, profiles: tuple[Profile, ...] = ()
) -> Placement | NoRoom:
    """`find` for one question; who has several to ask keeps a `Fleet`."""
    return find(Fleet(state, held), model, profiles)


def find(
    fleet: Fleet, model: Model, profiles: tuple[Profile, ...] = (), *, words: bool = True
) -> Placement | NoRoom:
    """The first profile that fits, on the node where it fits best; else why not, for each profile in turn.

    `words`: whether anybody will read why not; it takes longer to say than to find.

    A profile that only waits for other starts to end is waited for: else whatever starts second after a power cut would
    spend its life on its fall-back profile.
    """
    homes = fleet.homes(model)
    refusals = []
    for profile in profiles or model.profiles:
        answer = _spread(fleet, profile, homes, words=words)
        if isinstance(answer, Placement) or answer.soon:
            return answer
        refusals.append(answer)
    if len(refusals) == 1:
        return refusals[0]
    return NoRoom(refusals[0].profile, "; ".join(f"{r.profile}: {r.why}" for r in refusals))


def _spread(
    fleet: Fleet, profile: Profile, homes: frozenset[str], *, words: bool
) -> Placement | NoRoom:
    """Where no replica of the model is yet, also where that has to be waited for; else anywhere."""
    if homes:
        answer = _place_profile(fleet, profile, homes, words=words)
        if isinstance(answer, Placement) or answer.soon:
            return answer
    return _place_profile(fleet, profile, NOBODY, words=words)


def _place_profile(
    fleet: Fleet, profile: Profile, skip: frozenset[str], *, words: bool
) -> Placement | NoRoom:
    if not skip and fleet.hopeless(profile):
        return _no(fleet, profile) if words else NoRoom(profile.name, "")
    answer: Placement | NoRoom | None
    answer = (_group if profile.nodes > 1 else _alone)(fleet, profile, skip)
    if answer is None:
        answer = _no(fleet, profile) if words else NoRoom(profile.name, "")
    if not skip and isinstance(answer, NoRoom) and not answer.soon:
        fleet.give_up(profile)
    return answer


def _alone(fleet: Fleet, profile: Profile, skip: frozenset[str]) -> Placement | NoRoom | None:
    # In a large fleet the best of those to wait for is enough to say.
    named = WAITS + 1 if len(fleet.nodes) <= SAID else 1
    for waiting in (False, True):
        for near in _nearness(fleet, profile):
            fits = tightest(fleet, profile, waiting=waiting, near=near, skip=skip)
            found = list(islice(fits, named if waiting else 1))
            if not found:
                continue
            best = found[0]
            there = Placement(profile.name, (replace(best.spot, group_port=0),), best.why)
            return _later(there, found) if waiting else there
    return None


def _nearness(fleet: Fleet, profile: Profile) -> tuple[int, ...]:
    """How near GPUs can be anywhere in this fleet, the nearest first: no node is asked for what none has."""
    if profile.gpus < 2 or profile.nodes > 1:  # noqa: PLR2004
        return (APART,)

    def look() -> int:
        return max(fleet.nearest(profile.gpus).values(), default=APART)

    best = fleet.always(("near", profile.gpus), look)
    return tuple(level for level in (NVLINK, NUMA, APART) if level <= best)


def _later(then: Placement, fits: list[Fit]) -> NoRoom:
    waits = sorted((f.spot.node, f.wait) for f in fits)
    said = [f"{name}: {wait}" for name, wait in waits[:WAITS]]
    more = ["and on other nodes likewise"] if len(waits) > WAITS else []
    return NoRoom(then.profile, "; ".join(said + more), soon=True, then=then)


def _no(fleet: Fleet, profile: Profile) -> NoRoom:
    return NoRoom(profile.name, "; ".join(_refusals(fleet, profile)) or "no node is registered")


def _refusals(fleet: Fleet, profile: Profile) -> list[str]:
    """What each node says, in the order of names; of a large fleet those that come nearest."""
    names, more = _to_name(fleet, profile)
    said = []
    for name in names:
        node = fleet.nodes[name]
        answer = fit(fleet, node, profile)
        if isinstance(answer, str):
            said.append(f"{name}{'' if not node.usable else ':'} {answer}")
    return said + ([f"and {more} more nodes likewise"] if more else [])


def _to_name(fleet: Fleet, profile: Profile) -> tuple[list[str], int]:
    if len(fleet.nodes) <= SAID:
        return sorted(fleet.nodes), 0
    names = list(islice(freest(fleet, profile), SAID))
    names += islice((n for n in nodes_for(fleet, profile) if n not in names), SAID - len(names))
    names += islice((n for n in sorted(fleet.nodes) if n not in names), SAID - len(names))
    return sorted(names), len(fleet.nodes) - len(names)


def _group(fleet: Fleet, profile: Profile, skip: frozenset[str]) -> Placement | NoRoom:
    """The tightest nodes that are on one fabric and whose circuits bear them together; the tightest of all leads."""
    waiting: NoRoom | None = None
    best, said = -1, list[str]()
    for fabric in fabrics(fleet, profile):
        chosen, others = ranks(
            fleet, profile, fabric, tightest(fleet, profile, skip=skip, fabric=fabric)
        )
        if len(chosen) == profile.nodes:
            return grouped(profile, fabric, chosen)
        able, _ = ranks(fleet, profile, fabric, everywhere(fleet, profile, fabric, skip))
        if waiting is None and len(able) == profile.nodes:
            waiting = _later(grouped(profile, fabric, able), [f for f in able if f.wait])
        if len(chosen) >= max(best, 0):
            best, said = len(chosen), [*_off_fabric(fleet, profile, fabric), *others]
    if waiting:
        return waiting
    short = f"{best} of {profile.nodes} nodes fit"
    return NoRoom(profile.name, "; ".join([short, *_refusals(fleet, profile), *said]))


def everywhere(
    fleet: Fleet, profile: Profile, fabric: str = "", skip: frozenset[str] = NOBODY
) -> Iterator[Fit]:
    """The fits of all nodes, the tightest first, also where other starts come first."""
    ready = tightest(fleet, profile, skip=skip, fabric=fabric)
    later = tightest(fleet, profile, skip=skip, fabric=fabric, waiting=True)
    return merge(ready, later, key=lambda f: tightness(fleet, f))


def fabrics(fleet: Fleet, profile: Profile) -> tuple[str, ...]:
    """Those to try: `any` stands for each that a node names; none asked for is one that all are on."""
    if profile.fabric != "any":
        return (profile.fabric,)

    def look() -> tuple[str, ...]:
        return tuple(sorted({f for n in fleet.nodes.values() for f in n.report.fabrics})) or (
            "any",
        )

    return fleet.always("fabrics", look)


def ranks(
    fleet: Fleet, profile: Profile, fabric: str, fits: Iterable[Fit]
) -> tuple[list[Fit], list[str]]:
    """As many as are asked for, in this order, and why others were passed over: adapters taken, a circuit too weak."""
    chosen: list[Fit] = []
    refusals: list[str] = []
    borne: dict[str | None, int] = {}
    for f in fits:
        name = f.spot.node
        node = fleet.nodes[name]
        panel = node.report.circuit
        held = fleet.held[name].hcas
        hcas = node.report.fabrics[fabric].hcas if fabric else ()
        busy = [h for h in hcas if h in held]
        refusal = f"{busy[0]} is held by {held[busy[0]]}" if busy else ""
        refusal = refusal or circuit(fleet, node, profile, borne.get(panel, 0) + 1)
        if refusal:
            refusals.append(f"{name}: {refusal}")
            continue
        borne[panel] = borne.get(panel, 0) + 1
        chosen.append(replace(f, spot=replace(f.spot, fabric=fabric, hcas=hcas)))
        if len(chosen) == profile.nodes:
            break
    return chosen, refusals[:SAID]


def _off_fabric(fleet: Fleet, profile: Profile, fabric: str) -> list[str]:
    """Nodes that would take a rank, and are not on this fabric."""
    if profile.fabric != "any":
        return []  # where one is named it is the first thing that such a node says
    off = "names no fabric" if fabric == "any" else f"is not on fabric {fabric}"
    return [
        f"{name}: {off}"
        for name in _to_name(fleet, profile)[0]
        if fabric not in fleet.nodes[name].report.fabrics
        and isinstance(fit(fleet, fleet.nodes[name], profile), Fit)
    ]


def grouped(profile: Profile, fabric: str, chosen: list[Fit]) -> Placement:
    spots = tuple(
        replace(f.spot, rank=i, group_port=0 if i else f.spot.group_port)
        for i, f in enumerate(chosen)
    )
    on = f" on fabric {fabric}" if fabric else ""
    return Placement(profile.name, spots, f"{'; '.join(f.why for f in chosen)}{on}")


def counted(
    state: State, held: dict[str, Held], model: Model, placement: Placement
) -> dict[str, Held]:
    """`held` with the placement in it, for who keeps no `Fleet`."""
    fleet = Fleet(state, held)
    take(fleet, model, placement)
    return fleet.held


def take(fleet: Fleet, model: Model, placement: Placement, *, starts: bool = True) -> None:
    """Counted in: the next question of the same pass sees it (work in flight is held)."""
    profile = model.profile(placement.profile)
    assert profile is not None
    fleet.take(model, profile, placement.spots, starts=starts)
