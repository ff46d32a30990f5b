"""The one writer of control: it takes what came in, looks at the whole, acts, keeps, sends and publishes.

Answers for: one task owns the state, a pass is never interrupted (no await in it), persist before send, one answer to
every question in its order. What is right for the fleet is the core's; how long a file may take is `keep`'s.
"""

from __future__ import annotations

import asyncio
import os
import socket
import time
from collections.abc import Callable
from functools import cached_property, partial
from typing import Any, TypeVar

from msgspec.structs import replace

from llmgw.control import intent, keys
from llmgw.control import store as stores
from llmgw.control.apply import Applied, Performer
from llmgw.control.asks import Ask, closing
from llmgw.control.awake import Awake
from llmgw.control.catalogs import Catalogs
from llmgw.control.crash import crash
from llmgw.control.edited import Edited
from llmgw.control.gate import Gate
from llmgw.control.keep import Keeper
from llmgw.control.lead import Leads
from llmgw.control.lease import Lease
from llmgw.control.peers import Peers
from llmgw.control.picture import Moment
from llmgw.control.refused import Refused
from llmgw.control.rests import Rests
from llmgw.control.sessions import Sessions
from llmgw.control.settings import ControlSettings
from llmgw.control.shunned import Shunned
from llmgw.control.store import Store
from llmgw.control.story import Story
from llmgw.control.teller import Teller
from llmgw.core import evict, route
from llmgw.core.adopt.survey import Survey, survey
from llmgw.core.reconcile.decide import decide
from llmgw.core.types.messages import DrainShard, ForgetShard, Refusal, SendReport, StopShard, Token
from llmgw.core.types.plan import Plan, Verdict
from llmgw.core.types.routes import RouteTable
from llmgw.core.types.state import (
    Announced,
    Answered,
    Event,
    Published,
    SessionLost,
    State,
    Tick,
)
from llmgw.errors import LlmgwError
from llmgw.wire.places import Nowhere

#: A pass at least this often, less often only where passes themselves take long.
TICK_S = 1.0
#: No more than one part in so many of a core goes into passes that nothing asked for.
REST = 10
T = TypeVar("T")


class Control(Leads):
    """Everything a request may look at is an immutable value here: `state`, `found`, `plan`, `routes`."""

    def __init__(
        self,
        settings: ControlSettings,
        *,
        store: Store,
        lease: Lease,
        story: Story,
        clock: Callable[[], float] = time.monotonic,
        moment: Callable[[float], Moment] = stores.moment,
    ) -> None:
        self.settings = settings
        #: never a configured name: two of one name would each take themselves for the other (F32)
        self.name = f"{socket.gethostname()}:{os.getpid()}"
        self.story = story
        self.store = store
        self.lease = lease
        self.sessions = Sessions()
        self.peers = Peers(self)
        self.keeper = Keeper(store, story)
        self.catalogs = Catalogs(settings.catalog, story)
        self.teller = Teller(story)
        self.shunned = Shunned(story)
        self.clock = clock
        self.awake = Awake(clock)
        self.moment = moment
        self.state = State()
        self.found = Survey((), ())
        self.plan = Plan()
        self.decided_s = 0.0
        self.routes = RouteTable()
        self.published = asyncio.Event()
        self.promoted = asyncio.Event()
        self.leading = False
        #: why this control does not lead; and nodes that obey another one (contract/http.md "two_leaders")
        self.follows = "does not lead yet"
        self.rivals: dict[str, str] = {}
        self.fault = ""
        #: highest epoch and route table that agents and gateways have told of
        self.epoch_seen = 0
        self.table_seen = 0
        self.passes = 0
        self.closing = False
        self.done_by: list[Callable[[Survey, Applied], None]] = []
        #: who waits for an agent's no; takeovers under way, by node and pid
        self.on_refusal: list[Callable[[Refusal], None]] = []
        self.takeovers: dict[tuple[str, int], asyncio.Task[dict[str, Any]]] = {}
        self.on_turn: Callable[[], None] = lambda: None
        #: what other parts have to complain of, for `status`
        self.notices: list[Callable[[], str]] = [
            lambda: self.keeper.problem,
            lambda: lease.problem,
            self.peers.said,
        ]
        self.gate = Gate(settings.require_plan, story, keep_unknown=settings.keep_unknown)
        self._asks: list[Ask[Any]] = []
        self._wake = asyncio.Event()
        self._due_s = 0.0
        self._led = False
        self._sorted: tuple[Plan, dict[str, list[Verdict]]] = (self.plan, {})

    @cached_property
    def nowhere(self) -> Nowhere:
        return Nowhere()

    @cached_property
    def rests(self) -> Rests:
        return Rests()

    @cached_property
    def edited(self) -> Edited:
        return Edited(self.catalogs, self.clock)

    @cached_property
    def refused(self) -> Refused:
        return Refused(self.story, self.clock)

    # -- from outside

    async def ask(
        self,
        fold: Callable[[float], T],
        answer: Callable[[T], Any] = lambda x: x,
        *,
        urgent: bool = True,
    ) -> Any:
        """`fold(now)` in the writer's turn, then `answer(what it gave)`; not urgent: no pass is made for it."""
        if self.closing:
            raise closing()
        ask = Ask(fold, answer)
        self._asks.append(ask)
        if urgent:
            self._due_s = 0.0
        self._wake.set()
        return await ask.future

    def now(self) -> Moment:
        """What facts are dated with: monotonic seconds in which control listened, and wall time."""
        return self.moment(self.awake.now_s())

    async def observe(self, event: Event) -> None:
        await self.ask(lambda now: self.fold(event, now))

    def close(self) -> None:
        """Let the writer end, and every long poll with it."""
        self.closing = True
        for ask in self._asks:
            ask.fail(closing())
        self.sessions.release()
        self.published.set()
        self.story.more.set()
        self._wake.set()

    def poke(self) -> None:
        """There is something to look at now."""
        self._due_s = 0.0
        self._wake.set()

    async def run(self) -> None:
        """Until closed. A fault in a pass is said and tried again: a bad fact must not end control (F20)."""
        while not self.closing:
            wait_s = min(max(self._due_s - self.clock(), 0.0), TICK_S)
            if not self._asks and wait_s:
                try:
                    async with asyncio.timeout(wait_s):
                        await self._wake.wait()
                except TimeoutError:
                    pass
            self._wake.clear()
            self.turn()
            self.on_turn()

    # -- the pass

    def turn(self) -> None:
        """Take everything that came in; look and act if something asks for it or it is time."""
        began = self.clock()
        stood_s = self.awake.turn()
        now = self.now()
        self.story.begin(now)
        asks, self._asks = self._asks, []
        try:
            if stood_s:
                self.authority(now)  # the first thing after waking: somebody else may lead by now
                why = f"control stood still for {stood_s:.0f} s; nobody counts as silent for that"
                self.story.tell("stalled", why, level="warning")
            self._silence(now)
            for ask in asks:
                self._fold(ask, now)
            if began >= self._due_s:
                self._passes(now)
                left_s = self.keeper.due_s - now.mono if self.leading else TICK_S
                soon_s = min(TICK_S, max(left_s, 0.0))
                self._due_s = began + max(soon_s, (self.clock() - began) * REST)
        except LlmgwError as e:  # a lost lease, no catalog to run on: this control ends
            self.lost(e)
            for ask in asks:
                ask.fail(e)
            raise
        except Exception as e:  # noqa: BLE001 - a bug in one pass must not end the routes and the sessions
            self._broken(e, asks)
        if self.rests.any:
            self.fold(Answered(), now.mono)
            self.rests.over()
        for ask in asks:
            ask.answer()

    def _passes(self, now: Moment) -> None:
        """Twice where a drain begins of what gateways leave alone until this turn answers them: it may be over now."""
        before = self.state.draining.keys()
        self._pass(now)
        rests = any(g.demand.resting for g in self.state.gateways.values())
        if rests and self.state.draining.keys() - before:
            self._pass(now)

    def _fold(self, ask: Ask[Any], now: Moment) -> None:
        """Each fact alone: what cannot be folded is answered with its error and leaves the picture as it was."""
        before = self.state
        if not ask.fold(now.mono):
            self.state = before

    def _broken(self, e: Exception, asks: list[Ask[Any]]) -> None:
        self.fault = f"a pass failed: {type(e).__name__}: {e}"
        self.story.log.error(self.fault, kind="bug", exc_info=e)
        for ask in asks:
            ask.fail(e)
        self._due_s = self.clock() + TICK_S

    def _silence(self, now: Moment) -> None:
        for session in self.sessions.expired(now.mono):
            why = f"{session.node} at {session.place} is silent"
            self.story.tell("node_silent", why, level="warning", node=session.node)
            self.fold(SessionLost(session.node), now.mono)

    def _pass(self, now: Moment) -> None:
        self.passes += 1
        self.authority(now)
        self.fold(Tick(), now.mono)
        if self.leading and self.gate.waits and not self.state.settling:
            self.fold(self.gate.judged(self.state, now.mono), now.mono)
        before = self.state
        found = survey(before)
        applied = self._decide(found, now)
        if self.leading:
            self._announce(found, now)
            self.lease.publish(partial(self._left, now))
        elif not self._led:
            self._dropped(found, now)
        self._keep_and_send(applied, now)
        self.found = found if self.state is before else survey(self.state)
        self._publish(now)
        for callback in self.done_by:
            callback(found, applied)
        self.fault = ""
        self.story.end_pass()
        crash("before_answer")

    def _left(self, now: Moment) -> bytes:
        used, tokens = self.catalogs.used, self.node_tokens.own()
        return intent.written(self.state, self.keeper.keys, now, used, tokens)

    def _decide(self, found: Survey, now: Moment) -> Applied:
        self.plan, self.decided_s = decide(self.state, now.mono, found), now.mono
        if not self.leading:
            return Applied(self.state)
        if self.rivals:
            # Asking for a report is refused too, until the other control is gone: its answer ends this.
            return Applied(self.state, [(node, SendReport()) for node in self.rivals])
        fenced = partial(self.sessions.fenced, epoch=self.state.epoch)
        performer = Performer(fenced, now.wall)
        applied = performer.apply(self.state, self.plan, now.mono)
        self.state = applied.state
        self.teller.found(found)
        self.teller.plan(self.plan, applied.done)
        self.shunned.look(self.state, now.mono)
        return applied

    def _announce(self, found: Survey, now: Moment) -> None:
        """What its agent does not run is said once, recorded in this pass's commit, and dropped (A39, A41)."""
        lacking = [v for v in found.verdicts if v.verdict == "forget"]
        for v in lacking:
            self.teller.forgotten(v)
        alive = {s.incarnation for n in self.state.nodes.values() for s in n.shards if s.holds}
        if lacking or set(self.state.draining) - alive:
            gone = frozenset(v.shard.incarnation for v in lacking)
            self.fold(Announced(gone), now.mono)

    def _keep_and_send(self, applied: Applied, now: Moment) -> None:
        """Persist, then send: what was ordered and lost is found again, what was never recorded would be a stranger."""
        orders = [c for _, c in applied.commands if not isinstance(c, ForgetShard)]
        if orders:
            crash("before_persist")
        # A stop names what its agent reported; a drain is written where it began, and not each time it is said again.
        fresh = any(not isinstance(c, StopShard | DrainShard) for c in orders)
        stops = {c.incarnation for c in orders if isinstance(c, StopShard)}
        kept = self.leading and self.keeper.keep(self.state, now, durable=fresh, stops=stops)
        if orders:
            crash("after_persist")
        for node, command in applied.commands:
            if self.rests.ends(command):
                bound = self.sessions.bound(node, command, self.rests)
                if bound is None:
                    continue  # it goes once gateways say that they have the table
                command = bound  # noqa: PLW2901
            # Until its end is recorded here, the agent's record of an ended shard is the only one there is.
            if kept or not isinstance(command, ForgetShard):
                self.sessions.send(node, command, now.mono)
        if self.leading and not self.rivals:
            self.sessions.fence(self.state.epoch, now.mono)
        if orders:
            crash("after_send")

    def _publish(self, now: Moment) -> None:
        """A new table when anything in it changed; drains count from the first one that shows them (A65)."""
        if not self._led and self.lease.held:
            return  # the lease is ours and no epoch is: it is not known what a table would replace
        routes = route.table(self.state, self.found, self.routes.version)
        routes = route.refusing(routes, evict.unplaceable(self.plan))
        table = replace(
            routes, keys=keys.routed(self.keeper.keys), controls=self.peers.urls(now.mono)
        )
        # Also when the epoch rose, or a gateway has a table of a control whose inventory is lost.
        floor = max(self.lowest_table, self.table_seen if self._led else 0)
        fresh = table != self.routes or floor > self.routes.version
        if fresh:
            crash("before_publish")
            version = max(floor, self.routes.version) + 1
            self.routes = replace(table, version=version)
            self.published.set()
            self.published = asyncio.Event()
            crash("after_publish")
        begun = (*self.state.draining.values(), *self.state.dozing.values())
        if self._led and (fresh or any(not d.version for d in begun)):
            draining = route.incarnations(self.routes, "draining")
            routed = route.incarnations(self.routes, "ready") | draining
            self.fold(Published(self.routes.version, routed, draining), now.mono)

    def verdicts(self, node: str) -> list[Verdict]:
        """Of one node, in the last plan; sorted out once for all that ask in one pass."""
        if self._sorted[0] is not self.plan:
            self._sorted = (self.plan, {})
            for v in self.plan.verdicts:
                self._sorted[1].setdefault(v.shard.node, []).append(v)
        return self._sorted[1].get(node, [])

    @property
    def blocked(self) -> str:
        """Why nothing is decided, "" while all is well."""
        return self.follows or next(iter(self.rivals.values()), "") or self.fault

    @property
    def token(self) -> Token:
        return Token(self.state.epoch, self.state.leader_uuid)
