"""Which nodes are worth asking, the tightest first: kept sorted by free memory, so that no model asks them all.

Only puts the questions in order; `fit` answers them, with all that a node may be short of.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterator
from heapq import heappop, heappush, merge

from llmgw.core.capacity import gpu_takes
from llmgw.core.place.fit import Fit, eligible, fit
from llmgw.core.place.fleet import Fleet
from llmgw.core.place.near import APART
from llmgw.core.types.catalog import Profile

#: free bytes of one GPU, engines on its node, the node: in this order one GPU alone is the best fit
Entry = tuple[int, int, str]
NOBODY: frozenset[str] = frozenset()
#: Of more nodes at once it is quicker to sort the whole again.
MANY = 32
#: Stands for what is free of a GPU that cannot be had whole.
NO = -1
#: Whether other starts come first.
WHEN = (False, True)


class Order:
    """GPUs of the nodes that are eligible, sorted; of nodes for a CPU profile one entry each.

    In two lists: where a start may come now, and where others come first. GPUs of a node with as much free are one.
    """

    def __init__(self, fleet: Fleet, nodes: list[str], profile: Profile) -> None:
        self._fleet = fleet
        self._cpu = not profile.gpus
        self._whole = not profile.gpu_memory_bytes
        #: for all orders of a kind: the entries of a node, and what they were made of
        self._known: dict[str, tuple[object, list[Entry]]]
        self._known = fleet.always(("entries", self._whole), dict)
        self._of = {name: self._entries(name) for name in nodes}
        self._later = {name for name in nodes if fleet.waits(name)}
        both = sorted(e for entries in self._of.values() for e in entries)
        self._sorted = [[e for e in both if (e[2] in self._later) is later] for later in WHEN]
        self._seen = len(fleet.changed)

    def at_least(self, free_bytes: int, *, waiting: bool) -> Iterator[Entry]:
        self._catch_up()
        entries = self._sorted[waiting]
        for i in range(bisect_left(entries, (free_bytes,)), len(entries)):
            yield entries[i]

    def freest(self) -> Iterator[Entry]:
        self._catch_up()
        return merge(*(reversed(entries) for entries in self._sorted), reverse=True)

    def _catch_up(self) -> None:
        changed = self._fleet.changed
        if len(changed) == self._seen:
            return
        names = {*changed[self._seen :]} & self._of.keys()
        self._seen = len(changed)
        fresh = {name: self._entries(name) for name in names}
        later = {name for name in names if self._fleet.waits(name)}
        moved = later ^ (self._later & names)
        fresh = {n: entries for n, entries in fresh.items() if n in moved or entries != self._of[n]}
        if len(fresh) > MANY:
            self._sort_anew(fresh, later)
        else:
            for name, entries in fresh.items():
                before, after = self._sorted[name in self._later], self._sorted[name in later]
                for entry in self._of[name]:
                    del before[bisect_left(before, entry)]
                for entry in entries:
                    insort(after, entry)
        self._of |= fresh
        self._later = (self._later - names) | later

    def _sort_anew(self, fresh: dict[str, list[Entry]], later: set[str]) -> None:
        for when in WHEN:
            there = [e for e in self._sorted[when] if e[2] not in fresh]
            there += (e for n, entries in fresh.items() if (n in later) is when for e in entries)
            there.sort()
            self._sorted[when] = there

    def _entries(self, name: str) -> list[Entry]:
        fleet = self._fleet
        shards = fleet.held[name].shards
        if self._cpu:
            return [(0, shards, name)]
        rooms = fleet.rooms(name)
        known = self._known.get(name)
        if known is not None and known[0] is rooms:
            return known[1]
        able = [r for r in rooms if r.gpu.healthy]
        if self._whole:
            # One that strangers use is no whole one: it comes nearest all the same, after those that are.
            able = [r for r in able if not r.there.by]
            free = dict.fromkeys(
                NO if gpu_takes(r.gpu, r.there, None) else r.free_bytes for r in able
            )
        else:
            free = dict.fromkeys(r.free_bytes for r in able if r.free_bytes)
        entries = [(each, shards, name) for each in free]
        self._known[name] = (rooms, entries)
        return entries


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
    order = _order(fleet, profile, near, fabric)
    for free, shards, name in order.at_least(low, waiting=waiting):
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
    said: set[str] = set()
    for _, _, name in _order(fleet, profile, APART, "").freest():
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

    return fleet.always(("nodes", fleet.asks(profile).where, fabric), look)


def _order(fleet: Fleet, profile: Profile, near: int, fabric: str) -> Order:
    kind = not profile.gpus, not profile.gpu_memory_bytes, near and profile.gpus, near
    key = (fleet.asks(profile).where, kind, fabric)
    return fleet.once(key, lambda: _made(fleet, profile, near, fabric))


def _made(fleet: Fleet, profile: Profile, near: int, fabric: str) -> Order:
    """Nearness makes an order of its own only where some nodes lack it."""
    nodes = nodes_for(fleet, profile, fabric)
    if near:
        levels = fleet.nearest(profile.gpus)
        those = [n for n in nodes if levels[n] >= near]
        if len(those) == len(nodes):
            return _order(fleet, profile, APART, fabric)
        nodes = those
    return Order(fleet, nodes, profile)
