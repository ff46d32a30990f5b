"""Engines in containers: what `perform.py` does with processes, done through podman and docker. Decides nothing.

Every answer is posted later, one thing at a time for each engine, in the order in which it was asked for. What cannot
be known while the runtime is away is said to be so, and asked again (F45). An ended container is removed once its exit
code is read; one without our node's label is never touched.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import time
from collections.abc import Coroutine, Mapping
from signal import Signals
from typing import assert_never

import structlog
from msgspec.structs import replace

from llmgw.agent import container_evidence as evidence
from llmgw.agent import crash, process
from llmgw.agent.container_spawn import Hands, Now, start
from llmgw.agent.container_start import labels_of
from llmgw.agent.explain import TAIL_BYTES, explain, lasting
from llmgw.agent.followers import Followers
from llmgw.agent.placeholders import redacted
from llmgw.agent.reattach import listens_at
from llmgw.agent.runtime import AwayError, Box, Image, Runtime, done
from llmgw.core.supervise.claims import CONTAINERS
from llmgw.core.types.node import (
    Exited,
    Identified,
    Identify,
    Look,
    Signal,
    Spawn,
    TreeSeen,
)
from llmgw.core.types.record import Key, Record

log = structlog.get_logger()
#: A container whose process is not shown to us is asked for; one that has just ended.
POLL_S, SETTLE_S = 2.0, 0.1
#: So long a runtime may take to say how a process ended that is seen to be gone.
CODE_S = 3.0
#: A container without a record that was made and not started yet: so long somebody may still be about to.
CREATION_GRACE_S = 60.0


class Containers:
    def __init__(self, hands: Hands) -> None:
        self.hands = hands
        self.now: Now = lambda record: record
        #: what was found at the start, until re-attach is through
        self.first: evidence.First | None = None
        self.followers = Followers(hands.logs)
        self.watched: dict[Key, str] = {}
        self.codes: dict[str, Box] = {}
        self.locks: dict[Key, asyncio.Lock] = {}
        self.images: dict[str, Image] = {}

    def mine(self, record: Record) -> bool:
        """Also one whose record cannot be read, when a container has its name."""
        boxes = self.first.boxes if self.first and record.unreadable else ()
        return record.start.launcher in CONTAINERS or any(
            evidence.key_of(b) == record.key for b in boxes
        )

    def _do(self, key: Key, what: Coroutine[None, None, None]) -> None:
        async def in_turn() -> None:
            async with self.locks.setdefault(key, asyncio.Lock()):
                await what

        self.hands.tasks.create_task(in_turn())

    def perform(self, effect: Spawn | Signal | Look | Identify) -> Identified | None:
        """What `Performer` does with processes; the answer comes later, but for `Identify` at the agent's start."""
        record = effect.record
        match effect:
            case Spawn():
                self._do(record.key, self._spawn(record))
            case Signal():
                self._do(record.key, self._signal(record, effect.name))
            case Look():
                self._do(record.key, self._look(record))
            case Identify():
                return self.identify(record)
            case _:
                assert_never(effect)
        return None

    # ------------------------------------------------ start

    async def _spawn(self, record: Record) -> None:
        answer, box = await start(self.hands, self.now, record)
        if box is not None:
            pids = self.hands.known[record.key]
            self._watch(replace(record, start_ticks=pids.get(box.pid, 0)), box, fresh=True)
        self.hands.post(answer)

    # ------------------------------------------------ its end

    def _watch(self, record: Record, box: Box, *, fresh: bool = False) -> None:
        key = record.key
        self.watched[key] = box.id
        self.followers.keep(key, box, fresh=fresh)
        self.hands.tasks.create_task(self._wait(record, box))

    async def _wait(self, record: Record, box: Box) -> None:
        """Until its first process is gone; where /proc does not show that, until its runtime says so."""
        while self.watched.get(record.key) == box.id:
            shown = False
            with contextlib.suppress(OSError, AwayError):
                ticks = evidence.groups().get(box.id, {}).get(box.pid)
                fd = None if ticks is None else process.open_pidfd(box.pid, ticks)
                shown = fd is not None
                if fd is not None:
                    await _readable(fd)
            with contextlib.suppress(AwayError):
                now = await Runtime(box.kind).inspect([box.id])
                if not now or now[0].over or not evidence.alive(now[0], record, evidence.groups()):
                    self._do(record.key, self._ended(record, box))
                    return
                if now[0].pid != box.pid:
                    self._moved(record, now[0])
                box = now[0]
            await asyncio.sleep(SETTLE_S if shown else POLL_S)

    def _moved(self, record: Record, box: Box) -> None:
        """Somebody has started it again: its new process is the one to watch."""
        log.warning("its container was started again", shard=record.start.shard, pid=box.pid)
        ticks = evidence.groups().get(box.id, {}).get(box.pid, 0)
        self.hands.post(Identified(key=record.key, leader="same", pid=box.pid, start_ticks=ticks))

    async def _ended(self, record: Record, box: Box) -> None:
        if self.watched.get(record.key) != box.id:
            return
        del self.watched[record.key]
        end = await self._end_of(box)
        await self.followers.done(record.key)
        left = ""
        with contextlib.suppress(OSError):  # its end is told all the same
            left = self.hands.logs.end(record.start.shard, TAIL_BYTES)
        code = None if end is None else end.code
        said = explain(next(iter(record.start.command), record.start.image), code, left)
        said = redacted(said, self.hands.secrets_of(record))
        oom = True if end is not None and end.out_of_memory else self.hands.ooms.recent()
        crash.here("after-reap")
        key, attempt = record.key, record.attempt
        ended = Exited(key=key, attempt=attempt, code=code, last_line=said, out_of_memory=oom)
        stays = lasting(code, left, record.start.command)
        self.hands.post(replace(ended, lasting=stays))

    async def _end_of(self, box: Box) -> Box | None:
        """With its exit code; None where nobody knows it."""
        until = time.monotonic() + CODE_S
        while box.id not in self.codes and time.monotonic() < until:
            with contextlib.suppress(AwayError):
                found = await Runtime(box.kind).inspect([box.id])
                if not found:
                    break
                if found[0].over:
                    self.codes[box.id] = found[0]
                    break
            await asyncio.sleep(SETTLE_S)
        return self.codes.pop(box.id, None)

    async def _clear(self, runtime: Runtime, boxes: list[Box]) -> bool:
        """Remove what is over; its end is kept for whoever still has to tell it."""
        gone = True
        for box in boxes:
            if box.over and box.id in self.watched.values():
                self.codes[box.id] = box
            gone = await runtime.remove(box) and gone
        return gone

    # ------------------------------------------------ looking and signalling

    async def _boxes(self, record: Record) -> list[Box]:
        labels = labels_of(record.key, self.hands.facts.node_id)
        return await evidence.ours(Runtime(record.start.launcher), labels, self.images)

    async def _look(self, record: Record) -> None:
        key, attempt = record.key, record.attempt
        try:
            boxes = await self._boxes(record)
            there = evidence.groups()
            pids = {p: t for b in boxes for p, t in evidence.alive(b, record, there).items()}
            runtime = Runtime(record.start.launcher)
            if not pids:
                await self.followers.done(key)
            if not pids and not await self._clear(runtime, boxes):
                log.warning("an ended container cannot be removed", shard=record.start.shard)
        except AwayError as e:
            doubtful = (record.pid or 0,)
            self.hands.post(TreeSeen(key=key, attempt=attempt, doubtful=doubtful, detail=str(e)))
            return
        self.hands.known.setdefault(key, {}).update(pids)
        self.hands.post(TreeSeen(key=key, attempt=attempt, alive=tuple(sorted(pids))))

    async def _signal(self, record: Record, name: str) -> None:
        """By the runtime, which may do it where we may not; where that is away, by our own hand where we may."""
        runtime = Runtime(record.start.launcher)
        try:
            boxes = await self._boxes(record)
            sent = [b.id[:12] for b in boxes if not b.over and await runtime.kill(b, name)]
        except AwayError as e:
            pid, ticks = record.pid or 0, record.start_ticks
            with contextlib.suppress(OSError):
                sent = (
                    [str(pid)] if ticks and process.send(pid, ticks, Signals[f"SIG{name}"]) else []
                )
                log.warning("signalled without its runtime", pids=sent, error=str(e))
            return
        log.info("signalled", signal=name, shard=record.start.shard, containers=sent)

    def members(self, key: Key) -> process.Pids:
        """Its processes as far as they can be seen."""
        found: process.Pids = {}
        with contextlib.suppress(AwayError):
            found = evidence.groups().get(self.watched.get(key, ""), {})
        self.hands.known.setdefault(key, {}).update(found)
        return found

    # ------------------------------------------------ re-attach

    def identify(self, record: Record) -> Identified | None:
        """At once from what was found at the start; later by asking."""
        if self.first is None:
            self._do(record.key, self._identify(record))
            return None
        away = self.first.away.get(record.start.launcher)
        if away is not None:
            return Identified(key=record.key, error=away)
        boxes = [b for b in self.first.boxes if evidence.key_of(b) == record.key]
        return self._told(record, boxes, self.first.marks, self.first.there)

    async def _identify(self, record: Record) -> None:
        try:
            # Before the runtime is asked: what it was making then is made by now, or its program is seen.
            marks = process.sweep(self.hands.facts.node_id, process.all_stats())
            boxes = await self._boxes(record)
            seen = self._told(record, boxes, marks, evidence.groups())
        except AwayError as e:
            seen = Identified(key=record.key, error=str(e))
        except OSError as e:
            seen = Identified(key=record.key, error=f"cannot look at its processes: {e}")
        self.hands.post(seen)

    def _told(
        self,
        record: Record,
        boxes: list[Box],
        marks: Mapping[Key, list[process.Mark]],
        there: Mapping[str, process.Pids],
    ) -> Identified:
        key = record.key
        seen = evidence.evidence(record, boxes, evidence.clients(key, marks), there)
        if seen.leader == "same":
            box = next(b for b in boxes if b.pid == seen.pid and not b.over)
            attempt = evidence.attempt_of(box)
            self.hands.known[key] = dict(there.get(box.id, {}))
            self._watch(replace(record, attempt=attempt, start_ticks=seen.start_ticks), box)
            seen = replace(seen, address=listens_at(record, seen, self.hands.facts))
        elif not seen.doubtful and not seen.others and boxes:
            self._do(key, self._swept(boxes))
        return seen

    def settled(self, records: dict[Key, Record]) -> None:
        """Re-attach is through: remove what is left of containers that nobody waits for."""
        boxes = self.first.boxes if self.first else ()
        self.first = None
        waited_for = {key for key, r in records.items() if not r.ended}
        left = [b for b in boxes if evidence.key_of(b) not in waited_for]
        over = [b for b in left if b.over]
        if over:
            self.hands.tasks.create_task(self._swept(over))
        unborn = [b for b in left if b.unborn]
        if unborn:
            self.hands.tasks.create_task(self._swept(unborn, CREATION_GRACE_S))

    async def _swept(self, boxes: list[Box], grace_s: float = 0.0) -> None:
        """Each is looked at again just before: what runs by now is not touched."""
        await asyncio.sleep(grace_s)
        for box in boxes:
            runtime = Runtime(box.kind)
            with contextlib.suppress(AwayError):
                now = [b for b in await runtime.inspect([box.id]) if b.over or b.unborn]
                if now and box.id not in evidence.groups():
                    log.info("removing an ended container of ours", id=box.id[:12])
                    await self._clear(runtime, now)

    def remember(self) -> None:
        """Now and then: its processes for when they are listed on a GPU, and its log's follower."""
        if self.watched:
            with contextlib.suppress(AwayError):
                there = evidence.groups()
                for key, box_id in self.watched.items():
                    self.hands.known.setdefault(key, {}).update(there.get(box_id, {}))
        self.followers.mend()

    def forget(self, key: Key) -> None:
        self.watched.pop(key, None)
        self.followers.forget(key)
        if not self.locks.get(key, asyncio.Lock()).locked():
            self.locks.pop(key, None)


async def _readable(fd: int) -> None:
    """A pidfd is readable once its process has ended."""
    loop = asyncio.get_running_loop()
    end: asyncio.Future[None] = loop.create_future()
    loop.add_reader(fd, done, end)
    try:
        await end
    finally:
        loop.remove_reader(fd)
        os.close(fd)
