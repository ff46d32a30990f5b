"""Who would have to go so that a model fits: the smallest set of idle replicas, at the lowest cost (A64).

Pure arithmetic on what is held: who is idle, what stopping one costs and whether it is worth it is `evict`'s to say.
Nothing is stopped here, and what this says of a moved replica is a place where it would fit afterwards.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import combinations, islice

from msgspec import Struct

from llmgw.core.capacity import Held, resources_of
from llmgw.core.place.choose import NoRoom, Placement, find, take
from llmgw.core.place.fit import Fit, fit
from llmgw.core.place.fleet import Fleet
from llmgw.core.place.order import nodes_for
from llmgw.core.place.together import Want, together
from llmgw.core.types.catalog import Model, Profile
from llmgw.core.types.plan import Replica
from llmgw.core.types.state import State

#: Sets looked at before the search gives up: a pass must end in time.
SETS = 1_000
#: With so few replicas every set of them is looked at; of more, sets of those that are on one node, of the cheapest.
FEW = 8


class Idle(Struct, frozen=True):
    """A replica that may be stopped for another, and what that costs: seconds of loading, say. Any unit will do."""

    replica: Replica
    cost: float = 0.0


class Room(Struct, frozen=True):
    """`placement` fits once `evict` are gone and `move` are stopped; each of those would fit again where it says."""

    placement: Placement
    evict: tuple[Replica, ...] = ()
    move: tuple[tuple[Replica, Placement], ...] = ()


def make_room(  # noqa: PLR0917 - the question has so many parts
    state: State,
    held: dict[str, Held],
    model: Model,
    profiles: tuple[Profile, ...] = (),
    removable: Sequence[Idle] = (),
    movable: Sequence[Idle] = (),
) -> Room | NoRoom:
    """`room_in` for one question; who has several to ask keeps a `Fleet`."""
    return room_in(Fleet(state, held), model, profiles, removable, movable)


def room_in(
    fleet: Fleet,
    model: Model,
    profiles: tuple[Profile, ...] = (),
    removable: Sequence[Idle] = (),
    movable: Sequence[Idle] = (),
) -> Room | NoRoom:
    """The smallest set that makes room, then the one that costs least, then the caller's order of preference.

    `removable` may be gone for good, `movable` must find a place elsewhere at once: a min of one is still owed.
    `profiles` () means all of the model, in their order: the first of them that any set makes room for.
    A refusal that is `soon` needs nobody to go: other starts come first. The fleet is left as it was.
    """
    answer = find(fleet, model, profiles)
    if isinstance(answer, Placement):
        return Room(answer)
    if answer.soon:
        return answer
    later: NoRoom | None = None
    for profile in profiles or model.profiles:
        found = _Search(fleet, model, profile, removable, movable).found()
        if isinstance(found, Room):
            return found
        later = later or found
    return later or answer


class _Search:
    """For one profile. Sets are numbers of those that would go, in the caller's order; the movable ones come last."""

    def __init__(
        self,
        fleet: Fleet,
        model: Model,
        profile: Profile,
        removable: Sequence[Idle],
        movable: Sequence[Idle],
    ) -> None:
        self._fleet = fleet
        self._model = model
        self._profile = profile
        self._both = (*removable, *movable)
        self._stay = len(removable)
        self._later: NoRoom | None = None
        #: each node by itself can tell: one node each, nobody moves, and no breaker panel has too little
        one_node = profile.nodes == 1 and not movable and len(self._both) > FEW
        self._apart = one_node and not _panels_short(fleet, profile)

    def found(self) -> Room | NoRoom | None:
        """A refusal says that only other starts come first; None: nothing makes room."""
        every = tuple(range(len(self._both)))
        one = self._one() if self._apart else None
        if one is not None:
            return one
        some = self._able()
        if some is None:
            return self._later
        for chosen in islice(self._sets(some), SETS):
            room = self._with(chosen)
            if room is not None:
                return room
        return self._thinned(every[: self._stay]) or self._thinned(every) or self._later

    def _able(self) -> list[tuple[int, ...]] | None:
        """Those of which some set may make room: of so few all together, else by node; None where not even all do."""
        every = tuple(range(len(self._both)))
        if not self._apart:
            if not self._fits_without(every):
                return None
            return list(self._local()) if len(every) > FEW else [every]
        found = []
        for name, some in self._there().items():
            fits = self._fits_on(name, some)
            if fits:
                found.append(some)
            elif fits is None and self._later is None:
                self._fits_without(some)  # says what comes first there
        return found or None

    def _one(self) -> Room | None:
        """The first of all in their order that makes room alone: nearly always there is one."""
        for i in self._cheapest():
            names = {s.node for s in self._both[i].replica.members}
            if any(self._fits_on(name, (i,)) for name in sorted(names)):
                return self._with((i,))
        return None

    def _cheapest(self) -> Sequence[int]:
        every = range(len(self._both))
        same = not any(idle.cost for idle in self._both)
        return every if same else sorted(every, key=lambda i: self._both[i].cost)

    def _there(self) -> dict[str, tuple[int, ...]]:
        """By node that it could be on, who is there, the cheapest first."""
        there: dict[str, list[int]] = {}
        for i in self._cheapest():
            for shard in self._both[i].replica.members:
                there.setdefault(shard.node, []).append(i)
        names = (n for n in nodes_for(self._fleet, self._profile) if n in there)
        return {name: tuple(dict.fromkeys(there[name])) for name in names}

    def _fits_on(self, name: str, some: tuple[int, ...]) -> bool | None:
        """Whether it fits on that node once these have gone; None: only after other starts."""
        gone = [self._both[i].replica for i in some]
        if not _might(self._fleet, self._profile, name, gone):
            return False
        mark = self._fleet.mark()
        for r in gone:
            self._fleet.free(r)
        answer = fit(self._fleet, self._fleet.nodes[name], self._profile)
        self._fleet.reset(mark)
        if isinstance(answer, Fit):
            return None if answer.wait else True
        return False

    def _sets(self, able: list[tuple[int, ...]]) -> Iterator[tuple[int, ...]]:
        """The smallest first, of equal ones the cheapest, then in the caller's order."""
        for size in range(1, max(map(len, able), default=0) + 1):
            sets = {c for some in able for c in combinations(some[:FEW], size)}
            yield from sorted(sets, key=lambda c: (sum(self._both[i].cost for i in c), c))

    def _local(self) -> Iterator[tuple[int, ...]]:
        """Of each node that would have room without all of them those that are there, the cheapest first."""
        for name, some in self._there().items():
            if self._fits_on(name, some) is not False:
                yield some

    def _thinned(self, chosen: tuple[int, ...]) -> Room | None:
        """Where there are more sets than a pass may look at: all of these, less those that need not go."""
        room = self._with(chosen)
        for i in reversed(chosen) if room is not None else ():
            fewer = tuple(k for k in chosen if k != i)
            if (found := self._with(fewer)) is not None:
                room, chosen = found, fewer
        return room

    def _fits_without(self, chosen: tuple[int, ...]) -> bool:
        mark = self._fleet.mark()
        answer = self._placed_without(chosen)
        self._fleet.reset(mark)
        return answer is not None

    def _placed_without(self, chosen: tuple[int, ...]) -> Placement | None:
        for i in chosen:
            self._fleet.free(self._both[i].replica)
        answer = find(self._fleet, self._model, (self._profile,), words=False)
        if isinstance(answer, Placement):
            return answer
        if answer.soon:
            self._later = self._later or answer
        return None

    def _with(self, chosen: tuple[int, ...]) -> Room | None:
        """What becomes of the model and of those that move once these have gone."""
        fleet = self._fleet
        mark = fleet.mark()
        answer = self._placed_without(chosen)
        move = [self._both[i].replica for i in chosen if i >= self._stay]
        models = [fleet.state.catalog.models[r.model] for r in move]
        places = None if answer is None else self._moved(answer, models)
        fleet.reset(mark)
        if places is None:
            return None
        evict = tuple(self._both[i].replica for i in chosen if i < self._stay)
        return Room(places[0], evict, tuple(zip(move, places[1:], strict=True)))

    def _moved(self, answer: Placement, models: list[Model]) -> list[Placement] | None:
        """Places for the model and for those: one after the other, else all of them together."""
        fleet = self._fleet
        mark = fleet.mark()
        places = [answer]
        take(fleet, self._model, answer)
        for m in models:
            there = find(fleet, m)
            then = there if isinstance(there, Placement) else there.then
            if then is None:
                fleet.reset(mark)
                wants = [Want(m, m.profiles) for m in models]
                return together(fleet, [Want(self._model, (self._profile,)), *wants])
            take(fleet, m, then, starts=False)
            places.append(then)
        return places


def _panels_short(fleet: Fleet, profile: Profile) -> bool:
    """Whether a breaker panel has too little for it: it has some back also from engines on other nodes."""
    power_w, circuits = profile.power_w, fleet.state.catalog.circuits
    return bool(power_w) and any(fleet.panel(c).power_w + power_w > w for c, w in circuits.items())


class _Most(Struct, frozen=True):
    """What each GPU of a node could have free at most once some have gone, the most first; and of whole ones."""

    held: Held
    shares: list[int]
    whole: int


def _might(fleet: Fleet, profile: Profile, name: str, gone: list[Replica]) -> bool:
    """Whether it could fit there once these have gone, by its GPUs alone: most nodes say no, and that at once."""
    if not profile.gpus:
        return True
    known: dict[tuple[str, ...], _Most] = fleet.once("most", dict)
    key = (name, *[r.incarnation for r in gone])
    most = known.get(key)
    if most is None or most.held is not fleet.held[name]:
        most = known[key] = _most(fleet, name, gone)
    need = fleet.need(profile, name).gpu_memory_bytes
    if not need:
        return most.whole >= profile.gpus
    return len(most.shares) >= profile.gpus and most.shares[profile.gpus - 1] >= need


def _most(fleet: Fleet, name: str, gone: list[Replica]) -> _Most:
    shards = [s for r in gone for s in r.members if s.node == name and s.holds]
    names = {s.report.shard for s in shards}
    back: dict[str, int] = {}
    for s in shards:
        each = resources_of(s, fleet.state.catalog).gpu_memory_bytes or 0
        for uuid in s.report.gpus:
            back[uuid] = back.get(uuid, 0) + each
    shares, whole = [], 0
    for room in fleet.rooms(name):
        there, total = room.there, room.gpu.memory_bytes
        alone = names.issuperset(there.by)
        whole += alone
        if alone or not there.whole:
            ours = there.reserved_bytes - back.get(room.gpu.uuid, 0)
            shares.append(total if room.gpu.unified else total - ours)
    return _Most(fleet.held[name], sorted(shares, reverse=True), whole)
