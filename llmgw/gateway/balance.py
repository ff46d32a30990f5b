"""Who gets the next request: replicas as this process knows them, and the choice between them.

Answers for: weight between profiles, then least in flight; draining and failing replicas left out, slow ones passed
over; tables folded in, a partial one without forgetting anybody (A50). It may not know sockets or the clock: `now` is
an argument.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from math import ceil
from zlib import crc32

from msgspec.structs import replace

from llmgw.core.types.routes import Demand, RouteModel, RouteReplica, RouteTable
from llmgw.gateway import outlier
from llmgw.gateway.breaker import SILENT_S
from llmgw.gateway.elsewhere import ELSEWHERE
from llmgw.gateway.endpoint import Endpoint
from llmgw.gateway.queue import Queue
from llmgw.gateway.rests import Rest, Rests
from llmgw.gateway.word import ALWAYS, Word

#: A replica may be so much busier than the average for the sake of its cache.
BUSIER = 1.25

#: What is told of a failure, in characters.
WHY_MAX = 300
LOADED, LOADING, UNLOADED, FAILED = "loaded", "loading", "unloaded", "failed"
#: Why nobody is sent to what may sleep by now.
UNHEARD = "whether it sleeps is not known yet: its node has not answered the control that leads now"
#: What makes an endpoint another one: replica, incarnation, address.
Key = tuple[str, str, str]


class Target:
    """One model: its route, its replicas, and the requests that wait for one of them."""

    __slots__ = (
        "_credit",
        "_turn",
        "endpoints",
        "loading_since",
        "name",
        "route",
        "slow",
        "waited_since",
        "waiting",
    )

    def __init__(self, name: str) -> None:
        self.name = name
        self.route = RouteModel()
        self.endpoints: list[Endpoint] = []
        self.waiting = Queue()
        self.waited_since: float | None = None  # as of the last demand
        self.loading_since: float | None = None
        self.slow = False  # some endpoint is
        self._turn = 0
        self._credit: dict[str, int] = {}

    @property
    def ready(self) -> int:
        return sum(e.usable for e in self.endpoints)

    @property
    def resting(self) -> bool:
        return any(e.resting for e in self.endpoints)

    @property
    def room(self) -> int:
        """How many requests may wait: the queue of each ready replica.

        While there is none, one queue, and one at least: without a waiter nothing would wake the model.
        """
        ready = self.ready
        return self.route.queue * ready if ready else max(self.route.queue, 1)

    @property
    def gave_up(self) -> bool:
        """Waiting is no use: it gave up, fits nowhere, or is up where we cannot reach it."""
        hopeless = self.route.status in (FAILED, ELSEWHERE) or self.route.no_room
        return bool(hopeless) and not self.ready

    def eta_s(self, now: float) -> float | None:
        """Seconds until it is loaded, as its progress so far suggests."""
        done = self.route.progress
        if self.loading_since is None or not done:
            return None
        return round((now - self.loading_since) * (1 - done) / done, 1)

    @property
    def failing(self) -> str:
        """Why no replica can be reached, where the table says that there are some; else empty."""
        ready = [e for e in self.endpoints if e.usable]
        return ready[0].breaker.why if ready and all(e.breaker.open for e in ready) else ""

    @property
    def unsure(self) -> list[Endpoint]:
        """Those that may sleep by now, for all that a gateway knows which no control answers."""
        return [e for e in self.endpoints if e.word.lapsed and not e.draining]

    def others(self, endpoint: Endpoint) -> bool:
        """Whether another replica can serve, and has a place free."""
        return any(
            e.in_flight < self.route.max_in_flight
            and not (e is endpoint or e.breaker.open)
            and e.usable
            for e in self.endpoints
        )

    def watch(self, now: float) -> list[Endpoint]:
        """Once a second: silent and slow replicas, and long probes; gives those whose breaker this opened."""
        opened = []
        for e in self.endpoints:
            quiet_s = e.quiet_s(now)
            if quiet_s > SILENT_S and self.others(e):
                why = f"{e.replica} has sent nothing for {quiet_s:.0f} s"
                if e.breaker.silent(why, now):
                    opened.append(e)
            elif e.breaker.probed_long(now) and not self.others(e):
                e.breaker.worked()
        watched = self.endpoints if self.route.sticky_prefix_bytes is None else ()
        self.slow = outlier.judge(watched, now)
        return opened

    def choose(
        self, now: float, tried: tuple[Endpoint, ...] = (), prefix: int | None = None
    ) -> Endpoint | None:
        """The replica for the next request, or None: nobody is ready, or all are full or failing.

        `prefix`: what its prompt begins with, as a number, where those that begin alike are to meet.
        """
        limit = self.route.max_in_flight
        if len(self.endpoints) == 1:
            only = self.endpoints[0]
            taken = only.in_flight >= limit or now < only.breaker.until or only.draining
            return None if taken or now >= only.word.until or only in tried else only
        free = [
            e
            for e in self.endpoints
            if e.in_flight < limit
            and e.breaker.until <= now < e.word.until
            and not e.draining
            and e not in tried
        ]
        if len(free) <= 1:
            return free[0] if free else None
        profile = self._next_profile({e.profile: e.weight for e in free})
        of_profile = [e for e in free if e.profile == profile]
        if prefix is not None:
            return _home(of_profile, prefix)
        if self.slow:
            of_profile = self._past_slow(of_profile)
        return min(of_profile, key=_in_flight)

    def _past_slow(self, endpoints: list[Endpoint]) -> list[Endpoint]:
        """Those that are not slow; every so often the slow ones, where they are no busier than those."""
        slow = [e for e in endpoints if e.slow]
        rest = [e for e in endpoints if not e.slow]
        if not slow or not rest:
            return endpoints
        self._turn = (self._turn + 1) % outlier.SHARE
        busy = min(map(_in_flight, slow)) > min(map(_in_flight, rest))
        return rest if self._turn or busy else slow

    def _next_profile(self, weights: dict[str, int]) -> str:
        """Smooth weighted round robin: each gains its weight, the richest pays for all."""
        if len(weights) == 1:
            return next(iter(weights))
        credit = self._credit
        for profile, weight in weights.items():
            credit[profile] = credit.get(profile, 0) + weight
        best = max(weights, key=credit.__getitem__)
        credit[best] -= sum(weights.values())
        return best

    def pump(self, now: float) -> None:
        """Gives free slots to those who wait."""
        while self.waiting:
            endpoint = self.choose(now, prefix=self.waiting.first().prefix)
            if endpoint is None:
                return
            self.waiting.take().assign(endpoint)


def _home(endpoints: list[Endpoint], prefix: int) -> Endpoint:
    """Each prefix has its own order of replicas, which hardly changes when one comes or goes (rendezvous hashing).

    The first in it that is not much busier than all are on average (consistent hashing with bounded loads).
    """
    most = ceil((sum(map(_in_flight, endpoints)) + 1) / len(endpoints) * BUSIER)
    order = sorted(endpoints, key=lambda e: crc32(e.name, prefix), reverse=True)
    return next(e for e in order if e.in_flight < most)


def _in_flight(endpoint: Endpoint) -> int:
    return endpoint.in_flight


def merged(old: RouteTable, new: RouteTable) -> RouteTable:
    """The table to use when `new` arrives: itself, unless control is still settling.

    A partial table never takes away a replica, a model or the keys: control has not heard of them yet, which is no
    order (A50; elsewhere an empty table was published during recovery, and traffic stopped with every replica healthy).
    """
    new = as_known(old, new)
    if not new.partial:
        return new
    models = dict(new.models)
    for name, before in old.models.items():
        after = models.get(name)
        if after is None:
            models[name] = before
            continue
        known = {r.replica for r in after.replicas}
        kept = tuple(r for r in before.replicas if r.replica not in known)
        if kept:
            status = after.status if known else before.status
            models[name] = replace(after, status=status, replicas=after.replicas + kept)
    return replace(new, models=models, keys=new.keys or old.keys)


def as_known(old: RouteTable, new: RouteTable) -> RouteTable:
    """The new table, where of what was not heard and may sleep by now all stays as it is in the old one.

    Every gateway was told before it was put to sleep: what is not in the old one may not be sent anything. Nor by a
    gateway that is new. What drains is sent nothing anyhow.
    """
    found = {}
    for name, route in new.models.items():
        if any(map(_guessed, route.replicas)):
            before = old.models.get(name, RouteModel())
            known = {r.incarnation: r.state for r in before.replicas}
            kept = tuple(
                replace(r, state=known[r.incarnation], unheard=False) if _guessed(r) else r
                for r in route.replicas
                if not _guessed(r) or r.incarnation in known
            )
            found[name] = replace(route, replicas=kept)
            if not kept:
                found[name] = replace(found[name], status=UNLOADED, why=UNHEARD)
    return replace(new, models=new.models | found) if found else new


def _guessed(replica: RouteReplica) -> bool:
    return replica.unheard and replica.state == "ready"


class Fleet:
    """All models of the table in use. Models and replicas keep their counters from one table to the next."""

    def __init__(self) -> None:
        self.table: RouteTable | None = None
        #: control's, of what may be put to sleep
        self.word = Word()
        self.rests = Rests()
        self.targets: dict[str, Target] = {}
        #: no longer in the table, with requests still in flight
        self.retired: dict[Endpoint, Key] = {}
        self._known: dict[Key, Endpoint] = {}
        #: one of several workers has others (`shared`)
        self.make_target: Callable[[str], Target] = Target
        self.make_endpoint: Callable[[RouteReplica], Endpoint] = Endpoint

    def apply(self, table: RouteTable, now: float) -> list[Target]:
        """Takes `table` for granted; gives the models that are no longer in it."""
        known, targets = {}, {}
        self.rests.uses(table.version)
        for name, route in table.models.items():
            target = targets[name] = self.targets.get(name) or self.make_target(name)
            if route.status != LOADING:
                target.loading_since = None
            elif target.loading_since is None:
                target.loading_since = now
            target.route = route
            target.endpoints = []
            for r in route.replicas:
                key = (r.replica, r.incarnation, r.endpoint)
                endpoint = known[key] = (
                    self._known.get(key) or self._again(key) or self.make_endpoint(r)
                )
                endpoint.update(r, resting=r.replica in self.rests.replicas)
                endpoint.word = self.word if r.sleeps else ALWAYS
                target.endpoints.append(endpoint)
        gone = [t for name, t in self.targets.items() if name not in targets]
        for target in gone:
            target.route = RouteModel(status=FAILED, why="it is no longer in the catalog")
            target.endpoints = []
        self._retire({key: e for key, e in self._known.items() if key not in known})
        self.table, self.targets, self._known = table, targets, known
        return gone

    def _again(self, key: Key) -> Endpoint | None:
        """One that is back in the table with requests of before still in flight: they fill its places."""
        for endpoint, its in self.retired.items():
            if its == key:
                del self.retired[endpoint]
                endpoint.gone = False
                return endpoint
        return None

    def _retire(self, endpoints: dict[Key, Endpoint]) -> None:
        for key, endpoint in endpoints.items():
            endpoint.gone = True
            if endpoint.in_flight:
                self.retired[endpoint] = key
            while endpoint.idle:
                endpoint.idle.pop().close()

    def endpoints(self) -> Iterator[Endpoint]:
        for target in self.targets.values():
            yield from target.endpoints

    def unserved(self) -> frozenset[str]:
        """Models that requests wait for, of which nothing runs or is on its way."""
        return frozenset(
            t.name
            for t in self.targets.values()
            if t.waiting and t.route.status == UNLOADED and not t.ready
        )

    def rest(self, in_flight: Collection[str], now: float) -> Rest | None:
        """Nothing goes to what is idle until `rested`; None where nothing is. Not what sleeps: see `as_known`."""
        idle = frozenset(
            e.replica
            for e in self.endpoints()
            if not e.draining and e.word is ALWAYS and e.replica not in in_flight
        )
        if not idle:
            return None
        rest = self.rests.begin(idle, now)
        self.rested()
        return rest

    def rested(self) -> list[Target]:
        """Replicas rest as promised, no more and no less; gives the models that may be served again."""
        free = []
        for target in self.targets.values():
            before = target.ready
            for e in target.endpoints:
                e.rests(e.replica in self.rests.replicas)
            if target.ready > before:
                free.append(target)
        return free

    def _waited(self, now: float) -> Iterator[tuple[str, float]]:
        """How long requests have waited without a break, as far as control was told of any."""
        for target in self.targets.values():
            if not target.waiting:
                target.waited_since = None
            elif target.waited_since is None:
                target.waited_since = now
            else:
                yield target.name, round(now - target.waited_since, 3)

    def demand(self, gateway: str, n: int, now: float) -> Demand:
        """The whole present state, for control."""
        in_flight: dict[str, int] = {}
        answered: dict[str, float] = {}
        for endpoint in (*self.endpoints(), *self.retired):
            replica = endpoint.replica
            if endpoint.in_flight:
                in_flight[replica] = in_flight.get(replica, 0) + endpoint.in_flight
            if endpoint.answering:
                endpoint.answered_at, endpoint.answering = now, False
            if endpoint.answered_at is not None:
                age_s = round(now - endpoint.answered_at, 3)
                answered[replica] = min(age_s, answered.get(replica, age_s))
        failing = [e for e in self.endpoints() if e.breaker.open]
        return Demand(
            gateway=gateway,
            n=n,
            table=self.table.version if self.table else 0,
            in_flight=in_flight,
            waiting={t.name: len(t.waiting) for t in self.targets.values() if t.waiting},
            waited=dict(self._waited(now)),
            last_byte={
                e.replica: round(now - e.last_byte, 3)
                for e in self.endpoints()
                if e.last_byte is not None
            },
            breaker={e.replica: e.breaker.state for e in failing},
            breaker_why={e.replica: e.breaker.why[:WHY_MAX] for e in failing},
            answered=answered,
        )
