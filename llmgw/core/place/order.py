"""Which nodes are worth asking, the tightest first: kept sorted by free memory, so that no model asks them all.

Only puts the questions in order; `fit` answers them, with all that a node may be short of.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterator
from heapq import heappop, heappush, merge

from llmgw.core.place.asks import where
from llmgw.core.place.fit import Fit, eligible, fit
from llmgw.core.place.fleet import Fleet, nearest
from llmgw.core.place.near import APART
from llmgw.core.types.catalog import Profile

#: free bytes of one GPU, engines on its node, the node: in this order one GPU alone is the best fit
Entry = tuple[int, int, str]
NOBODY: frozenset[str] = frozenset()
#: Of more nodes at once it is quicker to sort the whole again.
MANY = 8


class Order:
    """GPUs of the nodes that are eligible, sorted; of nodes for a CPU profile one entry each."""

    def __init__(self, fleet: Fleet, nodes: list[str], profile: Profile, *, waiting: bool) -> None:
        self._fleet = fleet
        self._cpu = not profile.gpus
        self._whole = not profile.gpu_memory_bytes
        self._waiting = waiting
        self._of = {name: self._entries(name) for name in nodes}
        self._sorted = sorted(e for entries in self._of.values() for e in entries)
        self._seen = len(fleet.changed)

    def at_least(self, free_bytes: int) -> Iterator[Entry]:
        self._catch_up()
        entries = self._sorted
        for i in range(bisect_left(entries, (free_bytes,)), len(entries)):
            yield entries[i]

    def freest(self) -> Iterator[Entry]:
        self._catch_up()
        return reversed(self._sorted)

    def _catch_up(self) -> None:
        changed = self._fleet.changed
        names = {*changed[self._seen :]} & self._of.keys() if len(changed) > self._seen else ()
        self._seen = len(changed)
        fresh = {name: self._entries(name) for name in names}
        fresh = {name: entries for name, entries in fresh.items() if entries != self._of[name]}
        if len(fresh) > MANY:
            self._sorted = [e for e in self._sorted if e[2] not in fresh]
            self._sorted += (e for entries in fresh.values() for e in entries)
            self._sorted.sort()
        else:
            for name, entries in fresh.items():
                for entry in self._of[name]:
                    del self._sorted[bisect_left(self._sorted, entry)]
                for entry in entries:
                    insort(self._sorted, entry)
        self._of |= fresh

    def _entries(self, name: str) -> list[Entry]:
        fleet = self._fleet
        if fleet.waits(fleet.nodes[name]) != self._waiting:
            return []
        shards = fleet.held[name].shards
        if self._cpu:
            return [(0, shards, name)]
        rooms = [r for r in fleet.rooms(name) if r.gpu.healthy]
        if self._whole:
            return [(r.free_bytes, shards, name) for r in rooms if not r.there.by]
        return [(r.free_bytes, shards, name) for r in rooms if r.free_bytes]


def tightest(
    fleet: Fleet,
    profile: Profile,
    *,
    waiting: bool = False,
    near: int = APART,
    skip: frozenset[str] = NOBODY,
    fabric: str = "",
) -> Iterator[Fit]:
    """The fits of all nodes, the one with the least left over first; no more nodes are asked than it takes.

    `waiting`: of those nodes where other starts come first, else of the others; `near`: GPUs that near to each other.
    """
    low, high = _needs(fleet, profile)
    found: list[tuple[int, int, str, Fit]] = []
    asked: set[str] = set()
    for free, shards, name in _order(fleet, profile, waiting, near, fabric).at_least(low):
        if name in asked or name in skip:
            continue
        asked.add(name)
        # The first GPU of a node to come up is its tightest: less than this cannot be left on those it gives.
        bound = (max(free - high, 0) * profile.gpus, shards, name)
        while found and found[0][:3] <= bound:
            yield heappop(found)[3]
        answer = fit(fleet, fleet.nodes[name], profile)
        if isinstance(answer, Fit) and answer.near >= near:
            heappush(found, (answer.left_bytes, shards, name, answer))
    while found:
        yield heappop(found)[3]


def tightness(fleet: Fleet, f: Fit) -> tuple[int, int, str]:
    return (f.left_bytes, fleet.held[f.spot.node].shards, f.spot.node)


def freest(fleet: Fleet, profile: Profile) -> Iterator[str]:
    """Nodes by their GPU with the most free memory, the most first: those that come nearest."""
    both = (_order(fleet, profile, waiting, APART, "").freest() for waiting in (False, True))
    said: set[str] = set()
    for _, _, name in merge(*both, reverse=True):
        if name not in said:
            said.add(name)
            yield name


def _needs(fleet: Fleet, profile: Profile) -> tuple[int, int]:
    """The least and the most that it needs of a GPU: what was learned may differ with the weights of a node."""
    declared = (profile.gpu_memory_bytes or 0) if profile.gpus else 0
    learned = fleet.state.learned
    if not declared or not learned:
        return declared, declared
    peaks = [learned.get(f, 0) for f in profile.fingerprints.values()]
    return max(declared, min(peaks, default=0)), max(declared, *peaks, 0)


def nodes_for(fleet: Fleet, profile: Profile, fabric: str = "") -> list[str]:
    """Those it could be on, whatever runs there now, in the order of their names."""

    def look() -> list[str]:
        return [
            name
            for name, node in sorted(fleet.nodes.items())
            if node.usable
            and not eligible(node, profile)
            and (not fabric or fabric in node.report.fabrics)
        ]

    return fleet.once(("nodes", where(profile), fabric), look)


def _order(fleet: Fleet, profile: Profile, waiting: bool, near: int, fabric: str) -> Order:  # noqa: FBT001 - one of a key's parts
    def look() -> Order:
        nodes = nodes_for(fleet, profile, fabric)
        if near:
            nodes = [n for n in nodes if nearest(fleet, n, profile.gpus) >= near]
        return Order(fleet, nodes, profile, waiting=waiting)

    kind = not profile.gpus, not profile.gpu_memory_bytes, near and profile.gpus
    return fleet.once(("order", where(profile), kind, waiting, near, fabric), look)
