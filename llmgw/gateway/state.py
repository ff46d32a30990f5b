"""What one gateway process knows and counts: the fleet, keys, limits, connections, and what control wants to hear.

Answers for: folding a new table in, waking those who wait, and saying that demand changed. It may not know sockets; the
clock and the way to connect are passed in.
"""

from __future__ import annotations

import itertools
import re
import uuid
from collections.abc import Callable
from typing import Any, Protocol

from msgspec.structs import replace

from llmgw.core.types.routes import Demand, Heard, RouteTable
from llmgw.gateway import books, openai
from llmgw.gateway.balance import Fleet, Target, merged
from llmgw.gateway.books import Access, Ended
from llmgw.gateway.common import Common, alone
from llmgw.gateway.elsewhere import reachable
from llmgw.gateway.endpoint import Endpoint
from llmgw.gateway.http1 import BODY_BYTES, Budget
from llmgw.gateway.keys import Keys
from llmgw.gateway.meter import Meter
from llmgw.gateway.openai import Names
from llmgw.gateway.plane import Control
from llmgw.gateway.rests import Rest
from llmgw.gateway.shared import SharedTarget, share
from llmgw.gateway.word import Word

#: An idle connection is not kept longer: llama-server closes its own after 5 s, and each holds one of its threads.
IDLE_UPSTREAM_S = 4.0
#: The sweeper comes each second; after so long this process was held up.
STOOD_S = 2.5
REQUEST_ID = re.compile(rb"[A-Za-z0-9._:-]{1,128}")


class Connect(Protocol):
    """Finds or makes a connection to `endpoint` and tells the sink; `fresh` takes no idle one."""

    def __call__(self, endpoint: Endpoint, sink: Any, *, fresh: bool = False) -> None: ...


class Gateway:
    """Shared by every connection and request of this process."""

    def __init__(
        self,
        *,
        clock: Callable[[], float],
        access: Access | None,
        open_without_keys: bool,
        body_limit: int = BODY_BYTES,
        here: str = "",
    ) -> None:
        """`here`: whose loopback ours is, "" where that is not known."""
        self.id = str(uuid.uuid4())
        self.clock = clock
        self.now = clock()  # once a second: enough for time-outs
        self.access = access
        self.body_limit = body_limit
        self.here = here
        self.budget = Budget()
        self.meter = Meter()
        self.fleet = Fleet()
        self.fleet.word = Word(self.now)
        self.names = Names(RouteTable())
        self.open_without_keys = open_without_keys
        #: what the workers of this gateway count together
        self.common = alone()
        self.keys = Keys((), open_without=open_without_keys, common=self.common)
        self.connections: set[Any] = set()
        self.stopping = False
        #: what is scraped: ours, or ours among those of the other workers
        self.scraped: Callable[[bytes], bytes] = bytes
        self.handed_over = False  # stopping, and another process accepts in our place
        #: has it done once this round of the loop is over
        self.soon: Callable[[Callable[[], None]], object] = _at_once
        self._ended: list[Ended] = []
        self.on_change: list[Callable[[], None]] = []
        self.connect: Connect
        self._list = b""
        self._n = 0
        self._prefix = self.id[:8].encode()
        self._numbers = itertools.count(1)

    def count_with(self, common: Common) -> None:
        """Before the first table: this process is one of several."""
        self.common = common
        common.alive(self.now)
        share(self.fleet, common)

    def look(self) -> None:
        """One of several workers: whether a place came free elsewhere for those that wait here."""
        for target in tuple(self.fleet.targets.values()):
            if target.waiting.size and isinstance(target, SharedTarget):
                target.look(self.clock())
                if not target.waiting.size:
                    self.changed()

    # -- tables

    def apply(self, table: RouteTable) -> None:
        """Uses `table` from now on, folded into the present one where it is partial."""
        now, word = self.clock(), self.fleet.word
        old = word.remembered(self.fleet.table or RouteTable(), now)
        table = merged(old, reachable(table, self.here))
        gone = self.fleet.apply(table, now)
        word.uses(table.version)
        word.look(now)
        self.names = Names(table)
        keys = Keys(table.keys, open_without=self.open_without_keys, common=self.common)
        self.keys = keys.following(self.keys)
        self._list = b""
        for target in (*gone, *self.fleet.targets.values()):
            self._wake(target)
        self.changed()

    def _wake(self, target: Target) -> None:
        if not target.waiting:
            return
        now = self.clock()
        target.pump(now)
        if target.gave_up:
            for waiter in tuple(target.waiting):
                waiter.tick(now)  # which ends the wait

    @property
    def word_due(self) -> bool:
        """There are replicas that are not asked only because control has not answered of late."""
        return any(t.unsure for t in self.fleet.targets.values())

    def heard(self, began: float, said: Heard) -> None:
        """Control has answered what it was told at `began`."""
        table = self.fleet.table
        version = table.version if table is not None else 0
        self._given(lambda word, now: word.heard(began, said, version, now))

    def alone(self, began: float) -> None:
        """No control that we know of runs: each refused a connection since `began`."""
        self._given(lambda word, now: word.alone(began, now))

    def _given(self, give: Callable[[Word, float], None]) -> None:
        word = self.fleet.word
        lapsed = word.lapsed
        give(word, self.clock())
        if lapsed and not word.lapsed:
            for target in self.fleet.targets.values():
                self._wake(target)
            self.changed()

    def resolve(self, name: str) -> Target | None:
        found = self.names.resolve(name)
        return None if found is None else self.fleet.targets[found]

    def model_list(self) -> bytes:
        """From memory: listing asks nobody and wakes nothing."""
        if not self._list:
            self._list = openai.model_list([(t.name, t.route) for t in self.fleet.targets.values()])
        return self._list

    def exposition(self) -> bytes:
        self.write_down()
        return self.meter.exposition(self.fleet, len(self.connections))

    # -- requests

    def book(self, ended: Ended) -> None:
        """Written down when the loop has sent what is to be sent."""
        self._ended.append(ended)
        if len(self._ended) == 1:
            self.soon(self.write_down)

    def write_down(self) -> None:
        ended, self._ended = self._ended, []
        books.write_down(ended, self.meter, self.access)

    def request_id(self, sent: bytes | None) -> bytes:
        if sent is not None and REQUEST_ID.fullmatch(sent):
            return sent
        return b"%b-%d" % (self._prefix, next(self._numbers))

    def emptied(self, endpoint: Endpoint) -> None:
        """Nothing is left on a replica that drains, or that is in the table no more."""
        self.fleet.retired.pop(endpoint, None)
        self.changed()

    def pump(self, target: Target) -> None:
        """A place may be free: those who wait come first."""
        target.pump(self.clock())
        if not target.waiting:
            self.changed()

    def in_flight(self) -> int:
        """Connections with a request that is not answered to its end."""
        return sum(c.busy for c in self.connections)

    # -- demand

    def changed(self) -> None:
        for callback in self.on_change:
            callback()

    def demand(self) -> Demand:
        self._n += 1
        return self.fleet.demand(self.id, self._n, self.clock())

    def told(self, control: Control, unserved: frozenset[str]) -> tuple[Demand, Rest | None]:
        """What to tell it; with models that it is to make room for now, what is idle here rests until `answered`."""
        demand, now = replace(self.demand(), heard=control.heard), self.clock()
        able = control.up and control.heard and not control.still
        if not able or unserved <= control.knows or now < control.spared_until:
            return demand, None
        rest = self.fleet.rest(demand.in_flight, now)
        if rest is None:
            return demand, None
        return replace(demand, resting=tuple(sorted(rest.replicas))), rest

    def answered(self, rest: Rest, version: int) -> None:
        """It is over with that table."""
        rest.version = version
        table = self.fleet.table
        if table is not None and self.fleet.rests.uses(table.version):
            self._rested()

    def _rested(self) -> None:
        for target in self.fleet.rested():
            self._wake(target)

    # -- the sweeper

    def tick(self) -> None:
        """Once a second: every time-out there is. No request has a timer of its own."""
        stood = self.clock() - self.now > STOOD_S
        now = self.now = self.clock()
        self.common.alive(now)
        self.fleet.word.look(now)
        # After a stop what lies in the sockets is older than the clock: it is read first.
        if not stood and self.fleet.rests.look(now):
            self._rested()
        for target in tuple(self.fleet.targets.values()):
            for _ in target.watch(now):
                self.meter.count("breaker_opened")
            if not target.waiting:
                continue
            for waiter in tuple(
                target.waiting
            ):  # first: one that is tried again does not wait for a moment
                waiter.tick(now)
            target.pump(now)
            if not target.waiting:
                self.changed()
        for endpoint in self.fleet.endpoints():
            _close_idle(endpoint, now - IDLE_UPSTREAM_S)
        for connection in tuple(self.connections):
            connection.sweep(now)
        if self.access is not None:
            self.access.flush()


def _at_once(work: Callable[[], None]) -> None:
    work()


def _close_idle(endpoint: Endpoint, before: float) -> None:
    old = [line for line in endpoint.idle if line.idle_since < before]
    for line in old:
        endpoint.idle.remove(line)
        line.close()
