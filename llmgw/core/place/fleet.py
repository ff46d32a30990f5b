"""The fleet as one pass sees it: what is held, grown by each placement, and taken back where one was only tried.

Keeps what many questions of one pass would else add up anew: breaker panels, the free memory of each GPU. May not
choose: `fit` asks one node, `order` says which are worth asking.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TypeVar, cast

from msgspec import Struct
from msgspec.structs import replace

from llmgw.core.capacity import (
    GpuHeld,
    Held,
    Panel,
    given_back,
    gpu_free_bytes,
    needed,
    on_panel,
    panels,
    pool_free_bytes,
    taken,
)
from llmgw.core.place.asks import Asks, asks
from llmgw.core.place.freed import without
from llmgw.core.place.near import islands, level, widest
from llmgw.core.types.catalog import Model, Profile
from llmgw.core.types.messages import Gpu, Resources, ShardReport
from llmgw.core.types.plan import Replica, Spot
from llmgw.core.types.state import PLACED, Node, Shard, State

T = TypeVar("T")


class GpuRoom(Struct, frozen=True, gc=False):
    """One GPU of a node with what is free of it: never the optimistic one of reserved and measured."""

    free_bytes: int
    gpu: Gpu
    there: GpuHeld


class Fleet:
    """`held` is its own: grown by `take`, shrunk by `free`, and set back by `reset`.

    `changed`: names of nodes in the order in which what they hold changed, so that an index can keep up.
    """

    def __init__(self, state: State, held: dict[str, Held]) -> None:
        self.state = state
        self.nodes = dict(state.nodes)
        self.held = dict(held)
        self._first = held
        #: the fleet that this one is the bare one of: where both hold the same, what it counted is right here as well
        self._like: Fleet | None = None
        self.changed: list[str] = []
        self._once: dict[object, object] = {}
        self._always: dict[object, object] = {}
        self._before: list[tuple[str, Node, Held, tuple[str, int]]] = []
        self._homes: dict[str, list[str]] | None = None
        self._taken: dict[str, dict[str, int]] = {}
        self._refused: list[tuple[int, Asks]] = []
        self._lacking: bool | None = None
        self._bare: Fleet | None = None
        self._islands: dict[tuple[str, int], tuple[frozenset[str], ...]] = {}
        self._panels: dict[str, Panel] | None = None
        self._rooms: dict[str, tuple[GpuRoom, ...]] = {}
        self._tightest: dict[str, list[GpuRoom]] = {}
        self._waits: dict[str, bool] = {}
        #: with the profile itself, so that its id stays its own
        self._needs: dict[int, tuple[Profile, Resources | None]] = {}
        self._asks: dict[int, tuple[Profile, Asks]] = {}

    def once(self, key: object, make: Callable[[], T]) -> T:
        """What `make` says, asked once in the life of this fleet."""
        known = self._once.get(key)
        if known is None:
            known = self._once[key] = make()
        return cast("T", known)

    def always(self, key: object, make: Callable[[], T]) -> T:
        """The same for what no placement and no end changes: the bare fleet knows it as well."""
        known = self._always.get(key)
        if known is None:
            known = self._always[key] = make()
        return cast("T", known)

    def panel(self, circuit: str) -> Panel:
        if self._panels is None:
            self._panels = panels(self.nodes, self.held)
        return self._panels.get(circuit, Panel())

    def need(self, profile: Profile, node: str) -> Resources:
        known = self._needs.get(id(profile))
        if known is None:
            same = None if profile.by_node else needed(profile, node, self.state.learned)
            known = self._needs[id(profile)] = (profile, same)
        return known[1] or needed(profile, node, self.state.learned)

    def asks(self, profile: Profile) -> Asks:
        known = self._asks.get(id(profile))
        if known is None:
            known = self._asks[id(profile)] = (profile, asks(profile, self.need(profile, "")))
        return known[1]

    def bare(self) -> Fleet:
        """The same without what this pass has counted in; one for all who ask, so they leave it as it was."""
        if self._bare is None:
            self._bare = bare = Fleet(self.state, self._first)
            bare._like, bare._always = self, self._always
            bare._needs, bare._asks = self._needs, self._asks
        return self._bare

    def waits(self, name: str) -> bool:
        """Whether other starts come first there: few at a time per node and circuit (A62)."""
        known = self._waits.get(name)
        if known is None:
            limit, circuit = self.state.catalog.start_limit, self.nodes[name].report.circuit
            known = self._waits[name] = len(self.held[name].starting) >= limit or (
                circuit is not None and len(self.panel(circuit).starting) >= limit
            )
        return known

    def islands(self, node: Node, level: int) -> tuple[frozenset[str], ...]:
        key = (node.report.node, level)
        if key not in self._islands:
            self._islands[key] = islands(node.report.gpus or (), level)
        return self._islands[key]

    def nearest(self, count: int) -> dict[str, int]:
        """By node, how near so many of its GPUs, two or more, can be to each other at best."""

        def look() -> dict[str, int]:
            widths = self.always("widths", self._widths)
            return {name: level(count, *width) for name, width in widths.items()}

        return self.always(("nearest", count), look)

    def _widths(self) -> dict[str, tuple[int, int]]:
        return {name: widest(node.report.gpus or ()) for name, node in self.nodes.items()}

    def rooms(self, name: str) -> tuple[GpuRoom, ...]:
        """Each GPU of the node, in the order of its report; () where it has none or they are not known."""
        there = self._rooms.get(name)
        if there is None:
            like = self._like
            same = like is not None and self.held[name] is like.held[name]
            there = like.rooms(name) if like and same else self._counted(name)
            self._rooms[name] = there
        return there

    def tightest(self, name: str) -> list[GpuRoom]:
        """The same, the one with the least free memory first."""
        there = self._tightest.get(name)
        if there is None:
            there = sorted(self.rooms(name), key=lambda r: (r.free_bytes, r.gpu.index))
            self._tightest[name] = there
        return there

    def _counted(self, name: str) -> tuple[GpuRoom, ...]:
        report, here = self.nodes[name].report, self.held[name]
        gpus = report.gpus or ()
        pool = pool_free_bytes(gpus, report.capacity, here)
        rooms = []
        for gpu in gpus:
            there = here.gpus.get(gpu.uuid, _NOTHING)
            free = gpu_free_bytes(gpu, there)
            if gpu.unified and pool is not None:
                free = min(free, pool)
            rooms.append(GpuRoom(free, gpu, there))
        return tuple(rooms)

    def homes(self, model: Model) -> frozenset[str]:
        """Nodes that a replica of the model is on: the next one had better be elsewhere."""
        if model.scaling.max < 2:  # noqa: PLR2004
            return frozenset()
        if self._homes is None:
            self._homes = {}
            for name, node in self.nodes.items():
                for shard in node.shards:
                    if shard.holds:
                        self._homes.setdefault(shard.report.model, []).append(name)
        names = (model.name, *model.aliases)
        there = {node for name in names for node in self._homes.get(name, ())}
        placed = self._taken.get(model.name, {})
        return frozenset(there | {node for node, count in placed.items() if count})

    def hopeless(self, profile: Profile) -> bool:
        """Whether one that asks for no more was refused by all before: what is held has only grown since."""
        if not self._refused:
            return False
        mine = self.asks(profile)
        return any(no.covers(mine) for _, no in self._refused)

    def give_up(self, profile: Profile) -> None:
        """Not where the weights of a node, or an agent's no to this very profile, made the difference."""
        if self._lacking is None:
            self._lacking = any(h.lacking for h in self.held.values())
        if not (profile.by_node or self._lacking):
            self._refused.append((len(self._before), self.asks(profile)))

    def take(
        self, model: Model, profile: Profile, spots: Iterable[Spot], *, starts: bool = True
    ) -> None:
        """Count a placement in: work in flight is held. One that does not `start` yet is not in a start's way."""
        for spot in spots:
            shard = _planned(model, spot, starts=starts)
            here = taken(self.held[spot.node], shard, self.need(profile, spot.node))
            self._set(spot.node, self.nodes[spot.node], here, (model.name, 1))

    def drop(
        self, model: Model, profile: Profile, spots: Iterable[Spot], *, starts: bool = True
    ) -> None:
        """The reverse of `take`: it may go elsewhere instead."""
        self._refused.clear()
        for spot in spots:
            shard = _planned(model, spot, starts=starts)
            need = self.need(profile, spot.node)
            here = given_back(self.held[spot.node], shard, need, {})
            self._set(spot.node, self.nodes[spot.node], here, (model.name, -1))

    def free(self, replica: Replica) -> None:
        """The picture once it has ended; what really ends holds till its agent has verified the rest (A43)."""
        self.ended(replica.members)

    def ended(self, shards: Iterable[Shard]) -> None:
        self._refused.clear()
        for shard in shards:
            there = self.nodes[shard.node], self.held[shard.node]
            self._set(shard.node, *without(*there, shard, self.state.catalog), ("", 0))

    def hold(self, node: str, held: Held) -> None:
        """What the node holds from now on: a sleeper that wakes takes all that it was given."""
        if held.lacking:
            self._lacking = True
        self._set(node, self.nodes[node], held, ("", 0))

    def lacks(self, node: str, fingerprint: str, why: str) -> None:
        """What the profile would load is not there: no place is found for it on that node, nor kept."""
        here = self.held.get(node)
        if here is not None:
            self.hold(node, replace(here, lacking=here.lacking | {f"profile {fingerprint}": why}))

    def mark(self) -> int:
        return len(self._before)

    def reset(self, mark: int) -> None:
        """As it was at that mark."""
        while len(self._before) > mark:
            name, node, held, (model, more) = self._before.pop()
            self._count(model, name, -more)
            self._put(name, node, held)
        while self._refused and self._refused[-1][0] > mark:
            self._refused.pop()

    def _set(self, name: str, node: Node, held: Held, counts: tuple[str, int]) -> None:
        self._before.append((name, self.nodes[name], self.held[name], counts))
        self._count(counts[0], name, counts[1])
        self._put(name, node, held)

    def _circuits(self) -> dict[str | None, list[str]]:
        there: dict[str | None, list[str]] = {}
        for name, node in self.nodes.items():
            there.setdefault(node.report.circuit, []).append(name)
        return there

    def _count(self, model: str, name: str, more: int) -> None:
        """How many of a model were put on a node in this pass."""
        there = self._taken.setdefault(model, {})
        there[name] = there.get(name, 0) + more

    def _put(self, name: str, node: Node, held: Held) -> None:
        circuit = node.report.circuit
        if self._panels is not None and circuit is not None:
            panel = self._panels[circuit]
            self._panels[circuit] = on_panel(panel, node, self.held[name], held)
            limit = self.state.catalog.start_limit
            if (len(panel.starting) < limit) != (len(self._panels[circuit].starting) < limit):
                flipped = self.always("circuits", self._circuits)[circuit]
                self.changed += flipped
                for n in flipped:
                    self._waits.pop(n, None)
        self.nodes[name], self.held[name] = node, held
        self._rooms.pop(name, None)
        self._tightest.pop(name, None)
        self._waits.pop(name, None)
        self.changed.append(name)


_NOTHING = GpuHeld()


def _planned(model: Model, spot: Spot, *, starts: bool) -> Shard:
    report = ShardReport(
        shard=f"{model.name} (just placed)",
        gpus=spot.gpus,
        hcas=spot.hcas,
        port=spot.port,
        ports={"group": spot.group_port},
        state="pending" if starts else "unknown",
    )
    return Shard(node=spot.node, report=report, origin=PLACED)
