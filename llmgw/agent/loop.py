"""The one task that owns the agent's state: takes an event, asks `core.supervise`, performs the effects in their order.

Everything else posts to its queue. Heartbeats leave from here, so a wedged loop falls silent (F60). What could not be
journaled is not done: a command is refused, its effects are not performed. May not decide about a shard.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections import deque
from collections.abc import Callable
from typing import Any, NamedTuple, assert_never

import structlog
from msgspec.structs import replace

from llmgw.agent import crash, doors, orders, reattach
from llmgw.agent.journal import Journal
from llmgw.agent.link import Link
from llmgw.agent.perform import Performer
from llmgw.core.supervise import next_due, supervise, unidentified
from llmgw.core.supervise.commands import target
from llmgw.core.supervise.follow import Following
from llmgw.core.supervise.report import node_report
from llmgw.core.supervise.table import ImpossibleTransitionError
from llmgw.core.types.by_hand import ByHand
from llmgw.core.types.messages import Command, NodeReport, Refusal, Take
from llmgw.core.types.node import (
    AgentState,
    CallDoor,
    Changed,
    CommandReceived,
    DeleteRecord,
    Effect,
    Event,
    Identify,
    Knock,
    Look,
    Measure,
    Probe,
    Refuse,
    Register,
    SessionLost,
    Signal,
    Spawn,
    SpawnFailed,
    StoreToken,
    Tick,
    WriteRecord,
)
from llmgw.core.types.record import Key

log = structlog.get_logger()
HEARTBEAT_S = 5.0
#: How often logs are looked at, and while one of them grows fast: a flood may write a gigabyte a second.
LOGS_S, FLOOD_S = 0.25, 0.05


class Snapshot(NamedTuple):
    """Close the intake of this control's session, then answer with the complete inventory (A42)."""

    control: str
    answer: asyncio.Future[NodeReport]


class Order(NamedTuple):
    """A command; `applied` is set once it is journaled or refused."""

    event: CommandReceived
    applied: asyncio.Future[None]


class Loop:
    def __init__(self, state: AgentState, journal: Journal) -> None:
        self.state = state
        self.journal = journal
        self.queue: asyncio.Queue[Event | Snapshot | Order] = asyncio.Queue()
        self.links: dict[str, Link] = {}
        self.performer: Performer | None = None
        self.unsaved: set[Key] = set()
        self.following = Following()
        #: the token on the disk: the one in the state until a write of it failed
        self.stored = state.token
        self.beat_s = 0.0
        #: until then nothing is done for the clock's sake: control hears of the engines before they are probed
        self.quiet_until_s = 0.0
        #: a service manager may want signs of life more often
        self.beat_every_s = HEARTBEAT_S
        self.on_beat: Callable[[], None] = lambda: None

    # ------------------------------------------------ what others may call

    def post(self, event: Event) -> None:
        self.queue.put_nowait(event)

    def wake(self) -> None:
        """What is due by now is due at once."""
        self.post(Tick())

    async def snapshot(self, control: str) -> NodeReport:
        """The inventory for `register`; what was accepted before is journaled by then."""
        answer: asyncio.Future[NodeReport] = asyncio.get_running_loop().create_future()
        self.queue.put_nowait(Snapshot(control, answer))
        return await answer

    async def obey(self, control: str, command: Command, extra: dict[str, Any]) -> None:
        """Returns when the command is journaled, or refused. `extra`: fields of it that a newer control sent (F56)."""
        event = orders.given(control, command, extra)
        if self.following.keeps(self.state, event):
            orders.foresee(self.state, event, self.journal)
            crash.here("start-kept")
            return
        event = self._looked(replace(event, by_hand=await self._seen(command)))
        crash.here("ports-looked-at")
        applied: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.queue.put_nowait(Order(event, applied))
        await applied

    def _looked(self, event: CommandReceived) -> CommandReceived:
        filler = None if self.performer is None else self.performer.filler
        return orders.looked(event, self.journal.folder, filler)

    async def _seen(self, command: Command) -> ByHand:
        """What a `Take` names; looked at beside the loop, for an engine may be slow to answer."""
        if not isinstance(command, Take) or self.performer is None:
            return ByHand()
        return await self.performer.examine(command)

    # ------------------------------------------------ the task

    def reattach(self, performer: Performer, survey: reattach.Survey) -> None:
        """Say of every record what became of its process, before any control is told anything (A13)."""
        self.performer = performer
        performer.containers.now = lambda record: self.state.records.get(record.key, record)
        for record in unidentified(self.state):
            boxed = performer.containers.mine(record)
            found = performer.containers.identify(record) if boxed else None
            self.feed(found or performer.identify(record, survey))
            crash.here("reattach-half")

    async def run(self) -> None:
        while True:
            self.take(await self._next())
            while not self.queue.empty():  # what came together is one wake-up
                self.take(self.queue.get_nowait())
            now = time.monotonic()
            if now >= max(self.beat_s, self.quiet_until_s):
                self._beat()

    async def _next(self) -> Event | Snapshot | Order:
        due = max(min(next_due(self.state), self.beat_s), self.quiet_until_s)
        try:
            async with asyncio.timeout(max(due - time.monotonic(), 0.0)):
                return await self.queue.get()
        except TimeoutError:
            return Tick()

    def take(self, item: Event | Snapshot | Order) -> None:
        match item:
            case Snapshot():
                self.following.lost(item.control)
                self.feed(SessionLost(item.control))
                self.links[item.control].outbox.told_all()
                if not item.answer.done():
                    item.answer.set_result(node_report(self.state, for_register=True))
            case Order():
                crash.here("before-order")
                self.feed(self._in_time(item.event))
                crash.here("before-applied")
                if not item.applied.done():
                    item.applied.set_result(None)
            case _:
                self.feed(item)
        for late in self.following.due(self.state):
            crash.here("start-due")
            self.feed(self._looked(late))

    def _in_time(self, event: CommandReceived) -> CommandReceived:
        """Looked at last, when all that it waited for here is over."""
        link = self.links.get(event.control)
        done = event.command if link is None else orders.in_time(event.command, link.stamps)
        if done is event.command:
            return event
        log.info("a stop that came too late only drains", order=done.seq, control=event.control)
        return replace(event, command=done)

    def feed(self, event: Event) -> None:
        """One event and all that follows from it at once."""
        waiting = deque([event])
        while waiting:
            event = waiting.popleft()
            try:
                state, effects = supervise(self.state, event, time.monotonic())
            except ImpossibleTransitionError as e:
                # its text is the record's story
                log.critical("a bug: an event is dropped", kind=type(event).__name__, error=str(e))
                if isinstance(event, CommandReceived):
                    self._refuse(event, "bug", f"the agent's log has the details: {e}")
                continue
            failed = self._make_durable(effects, event)
            if failed and isinstance(event, CommandReceived):
                self._undo(effects)
                why = f"the agent cannot write its journal: {failed}"
                self._refuse(event, "cannot_journal", why)
                continue
            self.state = state
            waiting.extend(self._perform_all(effects))

    def _make_durable(self, effects: tuple[Effect, ...], event: Event) -> str:
        """The journal first; what failed, or ""."""
        for effect in (*self._owed(event), *effects):
            try:
                self._durable(effect)
            except OSError as e:
                failed = f"{e.strerror or e}: {e.filename or self.journal.folder}"
                log.warning("the journal cannot be written", error=failed)
                if isinstance(event, CommandReceived):
                    return failed
                if isinstance(effect, WriteRecord):
                    self.unsaved.add(effect.record.key)
        return ""

    def _owed(self, event: Event) -> tuple[StoreToken, ...]:
        """A leader was met while its token could not be written: no order is taken before it is (F21)."""
        token = self.state.token
        late = isinstance(event, CommandReceived) and token is not None and token != self.stored
        return (StoreToken(token),) if late and token is not None else ()

    def _undo(self, effects: tuple[Effect, ...]) -> None:
        """What was written of a command that is refused after all: a restart must not find it obeyed.

        A token stays: who was told of a higher epoch obeys no lower one.
        """
        if any(isinstance(e, StoreToken) and e.token == self.stored for e in effects):
            self.state = replace(self.state, token=self.stored)
        for effect in effects:
            if not isinstance(effect, WriteRecord | DeleteRecord):
                continue
            key = effect.record.key if isinstance(effect, WriteRecord) else effect.key
            if key in self.state.records:
                self.unsaved.add(key)
            else:
                with contextlib.suppress(OSError):
                    self.journal.delete(key)

    def _durable(self, effect: Effect) -> None:
        if not isinstance(effect, StoreToken | WriteRecord | DeleteRecord):
            return
        crash.around("before", effect)
        match effect:
            case StoreToken():
                self.journal.store_token(effect.token)
                self.stored = effect.token
            case WriteRecord():
                self.journal.write(effect.record)
                self.unsaved.discard(effect.record.key)
            case DeleteRecord():
                self.journal.delete(effect.key, released=effect.released)
                self.unsaved.discard(effect.key)
            case _:
                assert_never(effect)
        crash.around("after", effect)

    def _perform_all(self, effects: tuple[Effect, ...]) -> list[Event]:
        answers = []
        for effect in effects:
            try:
                answer = self._perform(effect)
            except OSError as e:
                log.warning("an effect failed", effect=type(effect).__name__, error=str(e))
                continue
            if answer is not None:
                answers.append(answer)
        return answers

    def _perform(self, effect: Effect) -> Event | None:
        hands = self.performer
        assert hands is not None
        match effect:
            case StoreToken() | WriteRecord():
                return None
            case DeleteRecord():
                hands.forget(effect.key)
                hands.logs.prune(self.state.records)
                self._tell(lambda link: link.outbox.gone.add(effect.key))
                return None
            case Refuse():
                self._say_no(effect.control, effect.refusal)
                return None
            case Register():
                self.links[effect.control].register_again("control asked for a report")
                return None
            case Changed():
                self._tell(lambda link: link.outbox.changed.update(effect.keys))
                return None
            case Probe():
                hands.probe(effect.record, check=effect.check, token=effect.token)
                return None
            case Knock():
                hands.knock(effect.record)
                return None
            case _:
                return self._touch(effect)

    def _touch(self, effect: Spawn | Signal | Look | Measure | CallDoor | Identify) -> Event | None:
        """Effects on processes."""
        hands = self.performer
        assert hands is not None
        record = effect.record
        crash.around("before", effect)
        answer: Event | None = None
        match effect:
            case Spawn():
                answer = self._spawn(effect)
            case Look() | Signal() | Identify() if hands.containers.mine(record):
                answer = hands.containers.perform(effect)
            case Signal():
                hands.signal(record, effect.name)
            case Look():
                answer = hands.look(record)
            case Measure():
                hands.measure(record, lambda: self.state.records)
            case CallDoor():
                calling = doors.called(hands, record, effect.which, lambda: self.state.records)
                hands.tasks.create_task(calling)
            case Identify():
                answer = hands.identify(record)
            case _:
                assert_never(effect)
        if not isinstance(effect, Spawn):
            crash.around("after", effect)
        return answer

    def _spawn(self, effect: Spawn) -> Event | None:
        hands, record = self.performer, effect.record
        assert hands is not None
        if record.key in self.unsaved:
            error = "not started: its journal record cannot be written"
            return SpawnFailed(key=record.key, attempt=record.attempt, error=error)
        if hands.containers.mine(record):
            return hands.containers.perform(effect)
        return hands.spawn(record)

    # ------------------------------------------------ telling

    def _tell(self, put: Callable[[Link], object]) -> None:
        for link in self.links.values():
            put(link)
            link.offer()

    def _say_no(self, control: str, refusal: Refusal) -> None:
        log.warning("refused", control=control, reason=refusal.reason, why=refusal.why)
        link = self.links.get(control)
        if link is not None:
            link.outbox.refused.append(refusal)
            link.offer()

    def _refuse(self, event: CommandReceived, reason: str, why: str) -> None:
        shard, incarnation = target(event.command)
        refusal = Refusal(
            seq=event.command.seq, shard=shard, incarnation=incarnation, reason=reason, why=why
        )
        self._say_no(event.control, refusal)

    def _beat(self) -> None:
        """Every few seconds: tell every control that we live, and what could not be written before."""
        self.beat_s = time.monotonic() + self.beat_every_s
        for key in sorted(self.unsaved & self.state.records.keys()):
            self._make_durable((WriteRecord(self.state.records[key]),), Tick())
        if self.state.token is not None and self.state.token != self.stored:
            self._make_durable((StoreToken(self.state.token),), Tick())
        self.journal.settle()
        self.journal.tidy(self.following.keys)
        assert self.performer is not None
        self.performer.remember_trees(self.state.records)
        self.performer.reap()
        self.on_beat()
        for link in self.links.values():
            link.offer()

    async def bound_logs(self) -> None:
        """Beside the loop, which has nothing to decide about it; a look is the size of a file for each engine."""
        assert self.performer is not None
        logs, flood = self.performer.logs, False
        while True:
            await asyncio.sleep(FLOOD_S if flood else LOGS_S)
            try:
                flood = logs.bound(self.state.records)
            except OSError as e:  # a full disk must not end the agent
                log.warning("a log cannot be cut", error=str(e))
                flood = False
