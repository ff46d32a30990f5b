"""One control plane: its life, its inventory, and the facts that come in. It decides nothing.

Its talk with agents is `sessions.py`'s, what a pass does with a plan is `passes.py`'s.
Killed, it loses its memory and keeps its inventory; stopped, it takes up what came in when it wakes.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from msgspec import Struct
from msgspec.structs import replace
from typing_extensions import override

from llmgw.control.awake import Awake
from llmgw.control.intent import merged
from llmgw.control.picture import (
    Moment,
    draining_of,
    draining_rows,
    failure_rows,
    failures_of,
    memory_of,
)
from llmgw.control.rests import Rests
from llmgw.core.reconcile.fresh import Memory
from llmgw.core.types import state as s
from llmgw.core.types.catalog import Catalog
from llmgw.core.types.plan import Plan
from llmgw.core.types.routes import Demand, RouteTable
from tests.sim.clock import BEGAN, Act
from tests.sim.gateways import SLOW, Told
from tests.sim.network import Answer, Unreachable
from tests.sim.passes import Passes
from tests.sim.process import Process
from tests.sim.sessions import Sessions

if TYPE_CHECKING:
    from tests.sim.simulation import Simulation

#: What came in is looked at so much later, all of it at once.
PASS_S = 0.25
#: Ended for want of a lease or of room for an epoch, it is started again after this.
AGAIN_S = 2.0
#: Who waits tells of it at least so often; with a message late or lost a wait is one all the same.
BREAK_S = 25.0
#: The boundaries at which it may be killed or stopped (`Process.trap`).
POINTS = (
    "before-epoch",
    "after-epoch",
    "before-survey",
    "before-decide",
    "before-persist",
    "before-send",
    "before-publish",
    "before-answer",
)


class Inventory(Struct, frozen=True):
    """The file: what a new control starts from. `kept`: its writer's clocks (F26); `catalog`: the last good (F11)."""

    memory: Memory = Memory()
    kept: Moment = Moment(0.0, 0.0)
    catalog: Catalog | None = None


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
    #: (node, GPU or "") that are drained, by its inventory and what an operator said since
    drained: set[tuple[str, str]] = field(default_factory=set)
    #: what it has ordered to stop
    stopped: set[str] = field(default_factory=set)
    #: last byte by replica, as gateways have it; last time that somebody waited, by model
    used_s: dict[str, float] = field(default_factory=dict)
    waited_s: dict[str, float] = field(default_factory=dict)
    #: since when somebody has waited for a model without a break, by model
    asked_s: dict[str, float] = field(default_factory=dict)
    #: when a replica was first seen whole and ready, by incarnation
    up_s: dict[str, float] = field(default_factory=dict)
    #: since when an engine answers nobody and nothing keeps control from seeing it, by incarnation and sessions
    hung_s: dict[str, float] = field(default_factory=dict)


def _failures(memory: Memory, kept: Moment) -> list[tuple[str, str, str]]:
    return [(model, at, text) for model, _, at, text in failure_rows(memory.failures, kept)]


class Control(Process):
    def __init__(self, sim: Simulation, url: str) -> None:
        super().__init__(sim.clock, sim.struck)
        self.sim = sim
        self.url = url
        self.disk = Inventory()
        self.disk_full = False
        self.wall_s = 0.0
        self.state: s.State | None = None
        self.plan = Plan()
        self.uuid = ""
        self._awake = Awake(lambda: sim.clock.now)
        self.sessions = Sessions(self)
        self.passes = Passes(self)
        self.heard = Hearsay()
        self.rests = Rests(lambda: sim.clock.now / SLOW)
        self.table = RouteTable()
        #: the highest table any gateway has told of
        self.table_seen = 0
        self.started_s = 0.0
        #: agents that will try again, now that it listens
        self.missed: list[Act] = []
        #: up and not leading: it knows the fleet, serves nothing of it and commands nothing
        self.standing = False
        #: the time of its lease is over and nobody else has it: the store is away (F30)
        self.lapsed = False
        #: replies owed until the next pass is over
        self.owed: list[Answer] = []
        self._due = False

    @property
    def picture(self) -> s.State:
        """The state of a control that leads."""
        assert self.state is not None
        return self.state

    @property
    def now_s(self) -> float:
        """Its own clock, which stood while it was stopped: nobody was silent meanwhile (F22)."""
        return self._awake.now_s()

    # ------------------------------------------------------------ life

    @override
    def freeze(self, for_s: float) -> None:
        if self.up and not self.frozen:
            self._awake.turn()
        super().freeze(for_s)

    @override
    def thaw(self) -> None:
        if self.frozen:
            self._awake.turn()
        super().thaw()

    def start(self) -> None:
        if self.up and not self.standing:
            return
        if self.sim.lease.take(self.url, self.start):
            if not self.up:
                self.begins()
                self._awake = Awake(lambda: self.sim.clock.now)
                self.rests = Rests(lambda: self.sim.clock.now / SLOW)
            self.go(self._leads())
        elif not self.up and self.sim.lease.kind != "file":
            self._stands_by()

    def _stands_by(self) -> None:
        """A warm standby: agents register with it too."""
        catalog = self.disk.catalog if self.sim.catalog_broken else self.sim.catalog
        self.begins()
        self.standing, self.uuid = True, f"{self.url}.{self.life}"
        self._awake = Awake(lambda: self.sim.clock.now)
        self.rests = Rests(lambda: self.sim.clock.now / SLOW)
        self.state = self._started(catalog or Catalog(), Memory())
        self.sessions, self.heard, self.table = Sessions(self), Hearsay(), RouteTable()
        self.sim.say(self.url, "stands by", "")
        self._welcomes()
        self._tick()

    def _started(self, catalog: Catalog, memory: Memory) -> s.State:
        return self.sim.core.started(
            catalog,
            memory,
            now=self.now_s,
            settle_timeout_s=self.sim.settle_timeout_s,
            keep_unknown=False,
        )

    def _welcomes(self) -> None:
        missed, self.missed = self.missed, []
        for again in missed:
            again()

    def _leads(self) -> Iterator[str]:
        """An epoch that cannot be stored is none: it does not lead (F15)."""
        yield "before-epoch"
        memory = self.remembered()
        epoch = self.next_epoch(memory.epoch)
        if not self.keep_epoch(epoch):
            self.crash("no epoch can be stored", again_s=AGAIN_S)
            return
        yield "after-epoch"
        sim = self.sim
        catalog = self.disk.catalog if sim.catalog_broken else sim.catalog
        if catalog is None:
            self.crash("no catalog can be read, and none is remembered", again_s=AGAIN_S)
            return
        self.uuid = f"{self.url}.{self.life}"
        again = self.standing or self.lapsed
        gateways = self.picture.gateways if again else {}
        if self.standing:
            memory = merged(memory, None, memory_of(self.picture, 0.0))
        elif self.lapsed:
            memory = replace(memory_of(self.picture, 0.0), gateways=None)
        state = self._started(catalog, memory)
        self.state = replace(state, epoch=epoch, leader_uuid=self.uuid, gateways=gateways)
        self.passes = Passes(self)
        if self.standing:
            self.sessions.unfence()
        else:
            self.sessions = Sessions(self)
        self.sessions.recall(report for report, _ in memory.nodes)
        self.table, self.table_seen = RouteTable(), 0
        self.started_s = self.now_s
        self.heard = Hearsay(
            expected=frozenset(r.node for r, silent in memory.nodes if not silent),
            remembered=bool(memory.nodes),
            drained=set(memory.cordoned),
            incarnations={
                x.incarnation for report, _ in memory.nodes for x in report.shards if x.model
            },
        )
        known = f"epoch {epoch}, {len(memory.nodes)} nodes remembered"
        sim.say(self.url, "control starts", known)
        self.standing = self.lapsed = False
        self._welcomes()
        if sim.requires:
            self.observe(s.Withheld(sim.requires))
        if again:
            self.wake()
        else:
            self._tick()

    def crash(self, why: str = "killed", *, again_s: float | None = None) -> None:
        """Also of one that waits for the lease."""
        self.sim.lease.waiting.pop(self.url, None)
        if again_s is not None:
            self.sim.clock.after(again_s, self.start)
        if not self.up:
            return
        self.sim.say(self.url, "control is gone", why)
        self.ends()
        self.state, self.standing, self.lapsed = None, False, False
        self._due = False
        self.sim.lease.died(self.url)
        owed, self.owed = self.owed, []
        for answer in owed:
            answer.fail()

    def listening(self) -> s.State:
        if not self.up or self.state is None:
            raise Unreachable
        self.awake()
        return self.state

    # ------------------------------------------------------------ the file

    def keep(self, memory: Memory) -> bool:
        if not self.disk_full:
            self.disk = Inventory(memory, self._moment(), self.picture.catalog)
        return not self.disk_full

    def next_epoch(self, above: int) -> int:
        lease = self.sim.lease
        return 1 + (above if lease.kind == "file" else max(above, lease.epoch))

    def keep_epoch(self, epoch: int) -> bool:
        if not self.disk_full:
            self.sim.lease.epoch = epoch
            memory = replace(self.disk.memory, epoch=epoch)
            self.disk = replace(self.disk, memory=memory)
        return not self.disk_full

    def remembered(self) -> Memory:
        """Times are in the file by the clock on the wall, and come back by it."""
        memory, kept, now = self.disk.memory, self.disk.kept, self._moment()
        lease = self.sim.lease
        return replace(
            memory,
            gateways=memory.gateways if lease.kind == "file" else lease.gateways,
            draining=draining_of(draining_rows(memory.draining, kept), now, self._bad_row),
            failures=failures_of(_failures(memory, kept), now, self._bad_row),
        )

    def _moment(self) -> Moment:
        return Moment(self.now_s, BEGAN.timestamp() + self.sim.clock.now + self.wall_s)

    def _bad_row(self, why: str) -> None:
        self.sim.say(self.url, "inventory", why)

    # ------------------------------------------------------------ facts

    def observe(self, event: s.Event, *, urgent: bool = True) -> None:
        self.state = self.sim.core.observe(self.picture, event, self.now_s)
        if not self.standing:
            self.sim.judge.settling_for(self)
        if urgent:
            self.wake()

    def wake(self) -> None:
        if not self._due:
            self._due = True
            self.later(PASS_S, self._pass)

    def _pass(self) -> None:
        self._due = False
        lease = self.sim.lease
        if self.standing:
            self.answers()
        elif lease.holds(self.url):
            self.go(self._leads() if self.lapsed else self.passes.steps())
        elif lease.away and lease.holder == self.url:
            if not self.lapsed:
                self.sim.say(self.url, "decides nothing", "its lease cannot be renewed")
            self.lapsed = True
            self.answers()
        else:
            self.crash("the lease is lost", again_s=AGAIN_S)

    def owes(self, answer: Answer) -> Answer:
        """Told when the pass that it sets off is over."""
        self.owed.append(answer)
        self.wake()
        return answer

    def answers(self) -> None:
        if self.state is not None:
            self.state = self.sim.core.observe(self.state, s.Answered(), self.now_s)
        self.rests.over()
        owed, self.owed = self.owed, []
        for answer in owed:
            answer.give()

    def _tick(self) -> None:
        self._awake.turn()
        for node in self.sessions.expired():
            self.sim.say(self.url, "session lost", node)
            self.observe(s.SessionLost(node))
        self.wake()
        self.later(self.sim.tick_s, self._tick)

    def reload(self, catalog: Catalog) -> None:
        """A file that cannot be read never takes the place of a good one (A58)."""
        if self.frozen:
            self.hold(lambda: self.reload(self.sim.catalog))
        elif self.state is not None and not self.sim.catalog_broken:
            self.observe(s.CatalogLoaded(catalog))

    def demand(self, demand: Demand) -> Told | Answer:
        """The answer carries the newest table: a gateway's long-poll, folded in. News wakes the writer (`calls.py`)."""
        state = self.listening()
        now, heard, demand = self.now_s, self.heard, self.rests.taken(demand)
        old = state.gateways.get(demand.gateway)
        self.table_seen = max(self.table_seen, demand.table)
        for replica, age_s in demand.last_byte.items():
            heard.used_s[replica] = max(heard.used_s.get(replica, 0.0), now - age_s)
        heard.used_s |= dict.fromkeys(demand.in_flight, now)
        for model in demand.waiting:
            if now - heard.waited_s.get(model, -1e6) > BREAK_S:
                heard.asked_s[model] = now - demand.waited.get(model, 0.0)
        heard.waited_s |= dict.fromkeys(demand.waiting, now)
        self.state = self.sim.core.observe(state, s.Demanded(demand), now)
        told = None if old is None else (old.demand.waiting, old.demand.table)
        if told != (demand.waiting, demand.table):
            self.wake()
        return self.owes(Answer(self._told)) if demand.resting else self._told()

    def _told(self) -> Told:
        acting = not (self.standing or self.lapsed)
        return Told(self.table, self.rests.at() if acting else "")

    def gateway_gone(self, name: str) -> None:
        if self.frozen:
            self.hold(lambda: self.gateway_gone(name))
        elif self.state is not None:
            self.observe(s.GatewayGone(name))
