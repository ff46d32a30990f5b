"""Who uses the fleet: requests that wait, run and end, and a gateway that tells every control about them.

A gateway keeps the newest table it was given, and of a partial one what it knew besides. It decides nothing here.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from msgspec.structs import replace

from llmgw.core.types.routes import Demand, Heard, RouteModel, RouteReplica, RouteTable
from llmgw.gateway.balance import UNLOADED, as_known
from llmgw.gateway.feed import DEMAND_S
from llmgw.gateway.rests import Rest, Rests
from llmgw.gateway.word import Word
from tests.sim.world import Engine

if TYPE_CHECKING:
    from tests.sim.controls import Control
    from tests.sim.simulation import Simulation

POST_S = 4.0
#: Gateways speak each second; here so much less often, and what counts by that (`REST_S`) counts so much slower.
SLOW = POST_S / DEMAND_S
RETRY_S = 2.0
PATIENCE_S = 90.0


@dataclass(frozen=True)
class Told:
    """A control's answer to demand, and the poll that comes with it. `at`: "" of who makes nothing of what rests."""

    table: RouteTable
    at: str


@dataclass
class Request:
    model: str
    ends_s: float
    asked_s: float = 0.0
    began_s: float = 0.0
    replica: str = ""
    engine: Engine | None = None


class Gateway:
    def __init__(self, sim: Simulation, name: str) -> None:
        self.sim = sim
        self.name = name
        self.up = True
        #: alive, and its posts do not come through
        self.silent = False
        #: since when it has said nothing; None: its last post went out
        self.silent_since_s: float | None = None
        self.table = RouteTable()
        self.word = Word()
        #: what it leaves alone; by control when it last answered, and what it knows that nobody serves
        self.rests = Rests()
        self.heard: dict[str, str] = {}
        self.knows: dict[str, frozenset[str]] = {}
        self.running: list[Request] = []
        self.waiting: list[Request] = []
        self.waited_since_s: dict[str, float] = {}
        #: by model: how long each request waited until it was begun; how many were told that there is no room
        self.waited: dict[str, list[float]] = {}
        self.refused: Counter[str] = Counter()
        #: requests whose client gave up; how long one waits
        self.left = 0
        #: requests whose engine ended under them
        self.cut = 0
        self.patience_s = PATIENCE_S
        self.last_byte_s: dict[str, float] = {}
        #: the same, of bytes that an engine sent
        self.answered_s: dict[str, float] = {}
        self._n = 0
        self._due = False
        self._beat()

    def ask(self, model: str, duration_s: float) -> None:
        self.waiting.append(Request(model, duration_s, self.sim.clock.now))
        self._try()
        self._soon()
        now = self.sim.clock.now
        request = self.waiting[-1] if self.waiting else None
        if request is not None:
            self.sim.clock.at(now + self.patience_s, lambda: self._leaves(request))

    def falls_silent(self) -> None:
        """Again, before it said a word: who listens has heard nothing since the first time."""
        self.silent = True
        if self.silent_since_s is None:
            self.silent_since_s = self.sim.clock.now

    def crash(self) -> None:
        self.up = False
        self.running, self.waiting = [], []

    def adopt(self, table: RouteTable) -> None:
        """A newer table takes the place of the old one; a partial one only adds and changes (A50)."""
        if not self.up or table.version <= self.table.version:
            return
        before = self.word.remembered(self.table, self.sim.clock.now)
        new = as_known(before, table)
        self.table = merged(before, new) if new.partial else new
        self.word.uses(table.version)
        self.rests.uses(table.version)
        self.sim.judge.adopts(self, table, before)
        self._try()
        self._refuse()
        self._soon()

    def on(self, engine: Engine) -> list[Request]:
        return [r for r in self.running if r.engine is engine]

    # ------------------------------------------------------------ requests

    def _try(self) -> None:
        for request in list(self.waiting):
            found = self._choose(request.model)
            if found is not None:
                route, engine = found
                self.waiting.remove(request)
                request.replica, request.engine = route.replica, engine
                request.began_s = self.sim.clock.now
                waited_s = request.began_s - request.asked_s
                self.waited.setdefault(request.model, []).append(waited_s)
                self.running.append(request)
                self._byte(route.replica)
                self.sim.clock.after(request.ends_s, partial(self._ends, request))

    def _refuse(self) -> None:
        """Nothing makes room for it: whoever waits is told so."""
        for request in list(self.waiting):
            model = self.table.models.get(request.model)
            if model is not None and model.no_room and not model.replicas:
                self.waiting.remove(request)
                self.refused[request.model] += 1
                self.sim.say(self.name, "no room", f"{request.model}: {model.no_room}")

    def _byte(self, replica: str) -> None:
        self.last_byte_s[replica] = self.sim.clock.now

    def _choose(self, name: str) -> tuple[RouteReplica, Engine] | None:
        model = self.table.models.get(name)
        self.rests.look(self.sim.clock.now / SLOW)
        for route in model.replicas if model is not None else ():
            engine = self.sim.engine_at(route.endpoint)
            # A port may be another engine's by now: that one has another key and says 401.
            if engine is None or not engine.is_of(route.incarnation):
                continue
            if route.sleeps and self.sim.clock.now >= self.word.until:
                continue  # it may sleep by now
            if route.replica in self.rests.replicas:
                continue  # it may end by now
            if route.state == "ready" and engine.answers(self.sim.clock.now):
                self.sim.judge.sent(self, engine)
                return route, engine
        return None

    def _ends(self, request: Request) -> None:
        if request in self.running:
            self.running.remove(request)
            self.cut += request.engine is not None and not request.engine.leader
            self._byte(request.replica)
            self._soon()

    def _leaves(self, request: Request) -> None:
        if request in self.waiting:
            self.waiting.remove(request)
            self.left += 1
            self._soon()

    # ------------------------------------------------------------ demand

    def _beat(self) -> None:
        if self.up:
            if self.waiting:
                self._try()
            self._post()
            self.sim.clock.after(RETRY_S if self.waiting else POST_S, self._beat)

    def _soon(self) -> None:
        if not self._due:
            self._due = True
            self.sim.clock.after(0.1, self._post)

    def _post(self) -> None:
        self._due = False
        if not self.up or self.silent:
            return
        self.silent_since_s = None
        self._n += 1
        demand = self.demand(self._n)
        for url, control in self.sim.controls.items():
            if control.up:
                rest = self._rest(url, demand)
                resting = tuple(sorted(rest.replicas)) if rest is not None else ()
                its = replace(demand, resting=resting, heard=self.heard.get(url, ""))
                to = partial(control.demand, its)
                told = partial(self._told, control, self.sim.clock.now, self._unserved(), rest)
                self.sim.net.call((self.name, url), to, told, partial(self._unheard, url))

    def _unheard(self, url: str) -> None:
        self.heard.pop(url, None)

    def _unserved(self) -> frozenset[str]:
        names = {r.model for r in self.waiting} & self.table.models.keys()
        models = {name: self.table.models[name] for name in names}
        return frozenset(
            name
            for name, m in models.items()
            if m.status == UNLOADED and all(r.state != "ready" for r in m.replicas)
        )

    def _rest(self, url: str, demand: Demand) -> Rest | None:
        """For one that has answered last, and does not know yet of all that is to be made room for."""
        if not self.heard.get(url) or self._unserved() <= self.knows.get(url, frozenset()):
            return None
        routes = (r for m in self.table.models.values() for r in m.replicas)
        idle = {r.replica for r in routes if r.state == "ready" and not r.sleeps}
        return self.rests.begin(
            frozenset(idle - demand.in_flight.keys()), self.sim.clock.now / SLOW
        )

    def _told(
        self,
        control: Control,
        sent_s: float,
        unserved: frozenset[str],
        rest: Rest | None,
        told: Told,
    ) -> None:
        if self.silent:
            return
        table = told.table
        if rest is not None:
            rest.version = table.version
        self.heard[control.url], self.knows[control.url] = told.at, unserved
        self.adopt(table)
        self.rests.uses(self.table.version)
        said = Heard(version=table.version, leader=not control.standing)
        self.word.heard(sent_s, said, self.table.version, self.sim.clock.now)
        self._try()

    def demand(self, n: int) -> Demand:
        now = self.sim.clock.now
        self.looks(now)
        return Demand(
            gateway=self.name,
            n=n,
            table=self.table.version,
            in_flight=_counts(r.replica for r in self.running),
            waiting=_counts(r.model for r in self.waiting),
            waited={m: now - s for m, s in self._waited_since(now).items() if s < now},
            last_byte={k: now - t for k, t in self.last_byte_s.items()},
            answered={k: now - t for k, t in self.answered_s.items()},
        )

    def _waited_since(self, now: float) -> dict[str, float]:
        """Since when without a break, as of the last demand."""
        there = {r.model for r in self.waiting}
        self.waited_since_s = {m: self.waited_since_s.get(m, now) for m in there}
        return self.waited_since_s

    def looks(self, now: float) -> None:
        """Which of its streams move."""
        for r in self.running:
            if r.engine is not None and r.engine.answers(now):
                self.answered_s[r.replica] = now


def _counts(words: Iterable[str]) -> dict[str, int]:
    counts: dict[str, int] = {}
    for word in words:
        counts[word] = counts.get(word, 0) + 1
    return counts


def merged(old: RouteTable, new: RouteTable) -> RouteTable:
    """The new table, and what the old one knew besides."""
    models = dict(new.models)
    for name, known in old.models.items():
        there = models.get(name)
        if there is None:
            models[name] = known
        else:
            models[name] = replace(there, replicas=_both(known, there))
    return replace(new, models=models)


def _both(old: RouteModel, new: RouteModel) -> tuple[RouteReplica, ...]:
    said = {r.incarnation for r in new.replicas}
    return (*new.replicas, *(r for r in old.replicas if r.incarnation not in said))
