"""One control plane: its life, its inventory, and the facts that come in. It decides nothing.

Its talk with agents is `sessions.py`'s, what a pass does with a plan is `passes.py`'s.
Killed, it loses its memory and keeps its inventory; paused, it hears nothing until it wakes.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from msgspec import Struct
from msgspec.structs import replace

from llmgw.core.reconcile.fresh import Memory
from llmgw.core.types import state as s
from llmgw.core.types.catalog import Catalog
from llmgw.core.types.messages import StopShard
from llmgw.core.types.routes import Demand, RouteTable
from tests.sim.network import Unreachable
from tests.sim.passes import Passes
from tests.sim.sessions import Sessions

if TYPE_CHECKING:
    from tests.sim.simulation import Simulation

#: What came in is looked at so much later, all of it at once.
PASS_S = 0.25


class Inventory(Struct, frozen=True):
    """The file: what a new control starts from."""

    memory: Memory = Memory()


@dataclass
class Hearsay:
    """What this very process was told: the judge asks no more of it than that."""

    #: nodes that its inventory has it wait for; whether that knew any node at all
    expected: frozenset[str] = frozenset()
    remembered: bool = False
    #: when a node registered for the first time, and whether settling was over at some moment
    last_new_s: float | None = None
    settled: bool = False
    #: incarnations in its inventory, reported with what they run, or placed by itself
    incarnations: set[str] = field(default_factory=set)
    gateways: set[str] = field(default_factory=set)
    #: last byte by replica, as gateways have it
    used_s: dict[str, float] = field(default_factory=dict)


class Control:
    def __init__(self, sim: Simulation, url: str) -> None:
        self.sim = sim
        self.url = url
        self.disk = Inventory()
        self.state: s.State | None = None
        self.uuid = ""
        self.sessions = Sessions(self)
        self.passes = Passes(self)
        self.heard = Hearsay()
        self.table = RouteTable()
        #: the highest table any gateway has told of
        self.table_seen = 0
        self.started_s = 0.0
        #: boundaries left before it is killed; None: not doomed
        self.doom: int | None = None
        self.paused = False
        self.life = 0
        self._due = False

    @property
    def up(self) -> bool:
        return self.state is not None

    @property
    def picture(self) -> s.State:
        """The state of a control that is up."""
        assert self.state is not None
        return self.state

    # ------------------------------------------------------------ life

    def start(self) -> None:
        if self.state is not None or not self.sim.lease.take(self.url):
            return
        sim = self.sim
        self.life += 1
        self.paused, self.doom, self._due = False, None, False
        self.uuid = f"{self.url}.{self.life}"
        memory = replace(self.disk.memory, epoch=self.disk.memory.epoch + 1)
        self.keep(memory)
        state = sim.core.started(
            sim.catalog,
            memory,
            now=sim.clock.now,
            settle_timeout_s=sim.settle_timeout_s,
            keep_unknown=False,
        )
        self.state = replace(state, leader_uuid=self.uuid)
        self.sessions, self.passes = Sessions(self), Passes(self)
        self.table, self.table_seen = RouteTable(), 0
        self.started_s = sim.clock.now
        self.heard = Hearsay(
            expected=frozenset(r.node for r, silent in memory.nodes if not silent),
            remembered=bool(memory.nodes),
            incarnations={
                x.incarnation for report, _ in memory.nodes for x in report.shards if x.model
            },
        )
        known = f"epoch {memory.epoch}, {len(memory.nodes)} nodes remembered"
        sim.say(self.url, "control starts", known)
        self._tick()

    def crash(self, why: str = "killed") -> None:
        if self.state is None:
            return
        self.sim.say(self.url, "control is gone", why)
        self.state, self.doom = None, None
        self.sim.lease.free(self.url)

    def doomed(self, before: str) -> bool:
        """Whether it is killed here, at a boundary between two effects."""
        if self.doom is None:
            return False
        self.doom -= 1
        if self.doom >= 0:
            return False
        self.crash(f"killed before {before}")
        return True

    def later(self, delay_s: float, act: Callable[[], None]) -> None:
        """Something this very process would do then; a paused one does it when it wakes."""
        life = self.life

        def then() -> None:
            if self.state is None or self.life != life:
                return
            if self.paused:
                self.later(1.0, act)
            else:
                act()

        self.sim.clock.after(delay_s, then)

    def listening(self) -> s.State:
        if self.state is None or self.paused:
            raise Unreachable
        return self.state

    def keep(self, memory: Memory) -> None:
        self.disk = Inventory(memory)

    # ------------------------------------------------------------ facts

    def observe(self, event: s.Event) -> None:
        self.state = self.sim.core.observe(self.picture, event, self.sim.clock.now)
        self.sim.judge.settling_for(self)
        self.wake()

    def wake(self) -> None:
        if not self._due:
            self._due = True
            self.later(PASS_S, self._pass)

    def _pass(self) -> None:
        self._due = False
        if self.sim.lease.holds(self.url) or self.sim.lease.late(self.url):
            self.passes.run()
        else:
            self.crash("the lease is lost")

    def _tick(self) -> None:
        for node in self.sessions.expired():
            self.sim.say(self.url, "session lost", node)
            self.observe(s.SessionLost(node))
        self.wake()
        self.later(self.sim.tick_s, self._tick)

    def reload(self, catalog: Catalog) -> None:
        if self.state is not None:
            self.observe(s.CatalogLoaded(catalog))

    def demand(self, demand: Demand) -> RouteTable:
        """The answer carries the newest table: a gateway's long-poll, folded in."""
        self.listening()
        now, heard = self.sim.clock.now, self.heard
        self.table_seen = max(self.table_seen, demand.table)
        heard.gateways.add(demand.gateway)
        for replica, age_s in demand.last_byte.items():
            heard.used_s[replica] = max(heard.used_s.get(replica, 0.0), now - age_s)
        heard.used_s |= dict.fromkeys(demand.in_flight, now)
        self.observe(s.Demanded(demand))
        return self.table

    def gateway_gone(self, name: str) -> None:
        if self.state is not None and not self.paused:
            self.observe(s.GatewayGone(name))

    def operate(self) -> None:
        """What an operator does when things are calm: clear what gave up, end what nobody can read (A39)."""
        if self.state is None:
            return
        for model in list(self.state.failures):
            self.observe(s.Cleared(model))
        for node in self.picture.nodes.values():
            for shard in node.shards:
                r = shard.report
                if r.state == "unknown":
                    stop = StopShard(shard=r.shard, incarnation=r.incarnation, reason="operator")
                    self.sessions.send(shard.node, stop)
