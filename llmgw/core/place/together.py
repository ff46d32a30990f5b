"""Several replicas placed together: what none of them could tell alone, that one has to make way for another.

One after the other by best fit finds nearly always what there is. Where it does not, those of the same pass that have
not started yet are placed anew along with the one that found no room: a search of so many steps and no more, so that a
pass ends in time. What runs is never moved here.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import combinations, islice

from msgspec import Struct
from msgspec.structs import replace

from llmgw.core.place.choose import (
    NoRoom,
    Placement,
    everywhere,
    fabrics,
    find,
    grouped,
    ranks,
    take,
)
from llmgw.core.place.fit import waits, ways
from llmgw.core.place.fleet import Fleet
from llmgw.core.place.order import nodes_for
from llmgw.core.types.catalog import Model, Profile

#: Placements tried in one search; nodes, ways a node, and ways in all tried for one replica.
STEPS, NODES, WAYS, CHOICES = 300, 8, 8, 32
#: So many that were planned before may be planned anew for one that finds no room.
FEW = 7


class Want(Struct, frozen=True):
    """One replica that needs a place, and the profiles it may have."""

    model: Model
    profiles: tuple[Profile, ...]


class Planned(Struct):
    """One that has a place in this pass; `starts`: now, or once other starts are over."""

    model: Model
    placement: Placement
    starts: bool

    def counted(self, fleet: Fleet) -> None:
        take(fleet, self.model, self.placement, starts=self.starts)

    def dropped(self, fleet: Fleet) -> None:
        profile = self.model.profile(self.placement.profile)
        assert profile is not None
        fleet.drop(self.model, profile, self.placement.spots, starts=self.starts)


def together(fleet: Fleet, wants: Sequence[Want], steps: int = STEPS) -> list[Placement] | None:
    """A place for each, or None; the fleet is left as it was."""
    mark = fleet.mark()
    found: dict[int, Placement] = {}
    done = _search(fleet, dict(enumerate(wants)), found, [steps])
    fleet.reset(mark)
    return [found[i] for i in range(len(wants))] if done else None


def _search(
    fleet: Fleet, left: dict[int, Want], found: dict[int, Placement], steps: list[int]
) -> bool:
    """The one with the fewest nodes to go to first, for it is the likeliest to be left without."""
    if not left:
        return True
    counts = []
    for i, want in left.items():
        count = sum(1 for p in want.profiles for _ in islice(everywhere(fleet, p), NODES))
        if not count:
            return False
        counts.append((count, i))
    i = min(counts)[1]
    rest = {k: w for k, w in left.items() if k != i}
    for placement in islice(_choices(fleet, left[i]), CHOICES):
        if not steps[0]:
            return False
        steps[0] -= 1
        mark = fleet.mark()
        take(fleet, left[i].model, placement, starts=False)
        found[i] = placement
        if _search(fleet, rest, found, steps):
            return True
        fleet.reset(mark)
    return False


def _choices(fleet: Fleet, want: Want) -> Iterator[Placement]:
    for profile in want.profiles:
        if profile.nodes > 1:
            yield from _groups(fleet, profile)
            continue
        for f in list(islice(everywhere(fleet, profile), NODES)):
            for way in ways(fleet, fleet.nodes[f.spot.node], profile, WAYS):
                yield Placement(profile.name, (replace(way.spot, group_port=0),), way.why)


def _groups(fleet: Fleet, profile: Profile) -> Iterator[Placement]:
    for fabric in fabrics(fleet, profile):
        able = list(islice(everywhere(fleet, profile, fabric), NODES))
        sets = (
            ranks(fleet, profile, fabric, some)[0] for some in combinations(able, profile.nodes)
        )
        whole = (chosen for chosen in sets if len(chosen) == profile.nodes)
        yield from (grouped(profile, fabric, chosen) for chosen in whole)


def replanned(fleet: Fleet, before: list[Planned], model: Model) -> list[Planned] | None:
    """The places of those planned before, some of them other ones, and last the one of a model that found no room.

    Its lessers, and those alike, may get another of their profiles for it: to run at all comes first. On return the
    fleet has them counted in; None: it is as it was.
    """
    some = _near(fleet, before, model)
    alone = find(fleet.bare(), model) if some else None
    if alone is None or (isinstance(alone, NoRoom) and not alone.soon):
        return None
    mark = fleet.mark()
    for p in some:
        p.dropped(fleet)
    wants = [Want(p.model, _may_have(p, model)) for p in some]
    places = together(fleet, [*wants, Want(model, model.profiles)])
    if places is None:
        fleet.reset(mark)
        return None
    new = []
    for m, placement in zip([*(p.model for p in some), model], places, strict=True):
        starts = not any(waits(fleet, fleet.nodes[s.node]) for s in placement.spots)
        new.append(Planned(m, placement, starts))
        new[-1].counted(fleet)
    by = {id(p): n for p, n in zip(some, new, strict=False)}
    return [*(by.get(id(p), p) for p in before), new[-1]]


def _near(fleet: Fleet, before: list[Planned], model: Model) -> list[Planned]:
    """Those worth moving for it: on nodes it could be on, where most is free."""
    if len(before) <= FEW:
        return before
    able = {name for p in model.profiles for name in nodes_for(fleet, p)}
    there = [p for p in before if any(s.node in able for s in p.placement.spots)]

    def free_bytes(p: Planned) -> int:
        rooms = (r for s in p.placement.spots for r in fleet.rooms(s.node))
        return max((r.free_bytes for r in rooms), default=0)

    return sorted(there, key=free_bytes, reverse=True)[:FEW]


def _may_have(p: Planned, model: Model) -> tuple[Profile, ...]:
    """One of more weight keeps the profile that it has: for a lesser one it does not go down to its fall-back."""
    if p.model.scaling.priority <= model.scaling.priority:
        return p.model.profiles
    return tuple(q for q in p.model.profiles if q.name == p.placement.profile)
