"""Who gets the next request: replicas as this process knows them, and the choice between them.

Answers for: weight between profiles, then least in flight; draining and failing replicas left out; tables folded in, a
partial one without forgetting anybody (A50). It may not know sockets or the clock: `now` is an argument.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol
from urllib.parse import urlsplit

from msgspec.structs import replace

from llmgw.core.types.routes import Demand, RouteModel, RouteReplica, RouteTable

#: How long a replica that failed is left alone, doubling from the first to the second figure.
SKIP_S, SKIP_MAX_S = 0.5, 4.0

LOADED, LOADING, FAILED = "loaded", "loading", "failed"
READY = "ready"


class Closable(Protocol):
    """An idle upstream connection."""

    idle_since: float

    def close(self) -> None: ...


class Waiter(Protocol):
    """A request that waits for a replica of its model."""

    def assign(self, endpoint: Endpoint) -> None: ...

    def tick(self, now: float) -> None: ...


class Endpoint:
    """One replica: what the table says of it, and what this process has seen of it."""

    __slots__ = (
        "authority",
        "authorization",
        "draining",
        "fails",
        "gone",
        "host",
        "idle",
        "in_flight",
        "last_byte",
        "name",
        "port",
        "profile",
        "replica",
        "skip_until",
        "upstream_model",
        "weight",
        "why",
    )  # fmt: skip

    def __init__(self, route: RouteReplica) -> None:
        url = urlsplit(route.endpoint)
        self.replica = route.replica
        self.name = route.replica.encode()
        self.host = url.hostname or ""
        self.port = url.port or 80
        self.authority = url.netloc.encode()
        self.gone = False
        self.in_flight = 0
        self.last_byte: float | None = None
        self.fails = 0
        self.skip_until = 0.0
        self.why = ""
        self.idle: list[Closable] = []
        self.update(route)

    def update(self, route: RouteReplica) -> None:
        self.profile = route.profile
        self.weight = route.weight
        self.draining = route.state != READY
        self.upstream_model = route.upstream_model
        key = route.api_key.encode()
        self.authorization = b"authorization: Bearer %b\r\n" % key if key else b""

    def failed(self, why: str, now: float) -> None:
        """Leaves this replica alone for a while; failures of one and the same moment count once."""
        if now >= self.skip_until:
            self.fails += 1
            self.skip_until = now + min(SKIP_S * 2 ** (min(self.fails, 10) - 1), SKIP_MAX_S)
        self.why = why

    def left(self, now: float) -> bool:
        """One request less; True when control waits to hear of it: nothing is left here."""
        self.in_flight -= 1
        self.last_byte = now
        return not self.in_flight and (self.gone or self.draining)

    def worked(self) -> None:
        self.fails = 0
        self.skip_until = 0.0


class Target:
    """One model: its route, its replicas, and the requests that wait for one of them, first come first served."""

    __slots__ = ("_credit", "endpoints", "loading_since", "name", "route", "waiting")

    def __init__(self, name: str) -> None:
        self.name = name
        self.route = RouteModel()
        self.endpoints: list[Endpoint] = []
        self.waiting: dict[Waiter, None] = {}
        self.loading_since: float | None = None
        self._credit: dict[str, int] = {}

    @property
    def ready(self) -> int:
        return sum(not e.draining for e in self.endpoints)

    @property
    def room(self) -> int:
        """How many requests may wait: the queue of each ready replica.

        While there is none, one queue, and one at least: without a waiter nothing would wake the model.
        """
        ready = self.ready
        return self.route.queue * ready if ready else max(self.route.queue, 1)

    @property
    def gave_up(self) -> bool:
        return self.route.status == FAILED and not self.ready

    def eta_s(self, now: float) -> float | None:
        """Seconds until it is loaded, as its progress so far suggests."""
        done = self.route.progress
        if self.loading_since is None or not done:
            return None
        return round((now - self.loading_since) * (1 - done) / done, 1)

    @property
    def failing(self) -> str:
        """Why no replica can be reached, where the table says that there are some; else empty."""
        ready = [e for e in self.endpoints if not e.draining]
        return ready[0].why if ready and all(e.fails for e in ready) else ""

    def choose(self, now: float, tried: tuple[Endpoint, ...] = ()) -> Endpoint | None:
        """The replica for the next request, or None: nobody is ready, or all are full or failing."""
        limit = self.route.max_in_flight
        if len(self.endpoints) == 1:
            only = self.endpoints[0]
            taken = only.in_flight >= limit or now < only.skip_until or only.draining
            return None if taken or only in tried else only
        free = [
            e
            for e in self.endpoints
            if e.in_flight < limit and now >= e.skip_until and not e.draining and e not in tried
        ]
        if len(free) <= 1:
            return free[0] if free else None
        profile = self._next_profile({e.profile: e.weight for e in free})
        return min((e for e in free if e.profile == profile), key=_in_flight)

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
            endpoint = self.choose(now)
            if endpoint is None:
                return
            waiter = next(iter(self.waiting))
            del self.waiting[waiter]
            waiter.assign(endpoint)


def _in_flight(endpoint: Endpoint) -> int:
    return endpoint.in_flight


def merged(old: RouteTable, new: RouteTable) -> RouteTable:
    """The table to use when `new` arrives: itself, unless control is still settling.

    A partial table never takes away a replica, a model or the keys: control has not heard of them yet, which is no
    order (A50; elsewhere an empty table was published during recovery, and traffic stopped with every replica healthy).
    """
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


class Fleet:
    """All models of the table in use. Models and replicas keep their counters from one table to the next."""

    def __init__(self) -> None:
        self.table: RouteTable | None = None
        self.targets: dict[str, Target] = {}
        #: no longer in the table, with requests still in flight
        self.retired: dict[Endpoint, str] = {}
        self._known: dict[tuple[str, str, str], Endpoint] = {}

    def apply(self, table: RouteTable, now: float) -> list[Target]:
        """Takes `table` for granted; gives the models that are no longer in it."""
        known, targets = {}, {}
        for name, route in table.models.items():
            target = targets[name] = self.targets.get(name) or Target(name)
            if route.status != LOADING:
                target.loading_since = None
            elif target.loading_since is None:
                target.loading_since = now
            target.route = route
            target.endpoints = []
            for r in route.replicas:
                key = (r.replica, r.incarnation, r.endpoint)
                endpoint = known[key] = self._known.get(key) or Endpoint(r)
                endpoint.update(r)
                target.endpoints.append(endpoint)
        gone = [t for name, t in self.targets.items() if name not in targets]
        for target in gone:
            target.route = RouteModel(status=FAILED, why="it is no longer in the catalog")
            target.endpoints = []
        self._retire([e for key, e in self._known.items() if key not in known])
        self.table, self.targets, self._known = table, targets, known
        return gone

    def _retire(self, endpoints: list[Endpoint]) -> None:
        for endpoint in endpoints:
            endpoint.gone = True
            if endpoint.in_flight:
                self.retired[endpoint] = endpoint.replica
            while endpoint.idle:
                endpoint.idle.pop().close()

    def endpoints(self) -> Iterator[Endpoint]:
        for target in self.targets.values():
            yield from target.endpoints

    def demand(self, gateway: str, n: int, now: float) -> Demand:
        """The whole present state, for control."""
        in_flight: dict[str, int] = {}
        for endpoint in (*self.endpoints(), *self.retired):
            if endpoint.in_flight:
                count = in_flight.get(endpoint.replica, 0)
                in_flight[endpoint.replica] = count + endpoint.in_flight
        return Demand(
            gateway=gateway,
            n=n,
            table=self.table.version if self.table else 0,
            in_flight=in_flight,
            waiting={t.name: len(t.waiting) for t in self.targets.values() if t.waiting},
            last_byte={
                e.replica: round(now - e.last_byte, 3)
                for e in self.endpoints()
                if e.last_byte is not None
            },
            breaker={e.replica: "open" for e in self.endpoints() if e.fails},
        )
