"""An engine's own doors to sleep and wake by, and what falling asleep gave back, as the driver measures it.

Answers for: the `DoorAnswered` that a `CallDoor` is answered with. Bounded, and the same when it is called twice. May
not decide, nor believe an engine about memory: what it still uses is the driver's to say (A62).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from http import HTTPStatus
from typing import Any, NamedTuple, Protocol

import msgspec

from llmgw.agent import probe
from llmgw.agent.devices import Devices
from llmgw.agent.placeholders import host_of, redacted
from llmgw.agent.process import Pids
from llmgw.core.supervise.sleep import SLEEP_S
from llmgw.core.types.node import DoorAnswered, DoorName, Event, NodeFacts
from llmgw.core.types.record import Key, Record
from llmgw.core.types.sleep import Doors

#: Memory that was given back is measured until it has stopped falling, for so long at most.
MEASURE_S, MEASURES = 0.25, 12
#: The agent's records, as they are when it is called.
Records = Callable[[], dict[Key, Record]]


class Hands(Protocol):
    """What is needed of the performer."""

    facts: NodeFacts
    devices: Devices
    known: dict[Key, Pids]
    post: Callable[[Event], None]

    def secrets_of(self, record: Record) -> frozenset[str]: ...
    def pids_of(self, record: Record) -> Iterable[int]: ...


class Use(NamedTuple):
    """What an engine uses of GPU memory: on the GPU where that is most, and on all of its GPUs."""

    most: int
    total: int


async def called(hands: Hands, record: Record, which: DoorName, records: Records) -> None:
    """With the memory that is free now, for the next start is decided by it."""
    answer = await call(hands, record, which)
    hands.post(hands.devices.seen(records(), hands.known))
    hands.post(answer)


async def call(hands: Hands, record: Record, which: DoorName) -> DoorAnswered:
    doors = record.start.sleep
    assert doors is not None, f"{record.key} has no doors"
    told = _Told(hands, record, which)
    try:
        if which == "wake":
            await _knock(hands, record, doors.wake, record.start.start_timeout_s)
        elif which == "sleep":
            return await _to_sleep(hands, record, doors, told)
        sleeps = await _is_asleep(hands, record, doors)
        rest = await _use(hands, record) if sleeps else None
        return told(asleep=sleeps, rest_bytes=None if rest is None else rest.most)
    except (TimeoutError, LookupError, *probe.BROKEN) as e:
        return told(detail=str(e) or "no answer in time")


class _Word(msgspec.Struct):
    """What an engine says at its door."""

    is_sleeping: bool


class _Told:
    """The answer, as far as it is known."""

    def __init__(self, hands: Hands, record: Record, which: DoorName) -> None:
        self._secrets = hands.secrets_of(record)
        self._about: dict[str, Any] = {"key": record.key, "attempt": record.attempt, "which": which}

    def __call__(self, *, detail: str = "", **facts: Any) -> DoorAnswered:
        return DoorAnswered(detail=redacted(detail, self._secrets), **self._about, **facts)


async def _to_sleep(hands: Hands, record: Record, doors: Doors, told: _Told) -> DoorAnswered:
    """One that sleeps already, by an order before the agent was restarted, is only measured."""
    before: Use | None = None
    if not await _is_asleep(hands, record, doors):
        before = await _use(hands, record)
        await _knock(hands, record, doors.sleep, SLEEP_S)
        if not await _is_asleep(hands, record, doors):
            return told(asleep=False, detail="it took the order and says that it does not sleep")
    rest = await _rest(hands, record)
    if rest is None:
        return told(asleep=True)
    freed = None if before is None else max(before.total - rest.total, 0)
    return told(asleep=True, rest_bytes=rest.most, freed_bytes=freed)


async def _rest(hands: Hands, record: Record) -> Use | None:
    """What it still uses; the driver may take a moment to see that memory was freed."""
    last = await _use(hands, record)
    for _ in range(MEASURES):
        if last is None:
            return None
        await asyncio.sleep(MEASURE_S)
        now = await _use(hands, record)
        if now is None or now.total >= last.total:
            return now
        last = now
    return last


async def _use(hands: Hands, record: Record) -> Use | None:
    """By its processes in the driver's list; None where nobody can measure, or the list does not have it."""
    if not record.start.gpus:
        return Use(0, 0)
    reading = await hands.devices.read()
    mine = set(hands.pids_of(record))
    by_gpu = dict.fromkeys(record.start.gpus, 0)
    listed = False
    for use in reading.uses:
        if use.pid in mine and use.gpu in by_gpu:
            by_gpu[use.gpu] += use.memory_bytes
            listed = True
    if not reading.measured or not listed or reading.blind & {*by_gpu}:
        return None
    return Use(max(by_gpu.values()), sum(by_gpu.values()))


async def _is_asleep(hands: Hands, record: Record, doors: Doors) -> bool:
    host = host_of(record, hands.facts)
    said = await probe.fetch(host, record.start.port, doors.asleep, record.api_key)
    if said.status == HTTPStatus.NOT_FOUND:
        return False  # started without its doors, so it cannot sleep
    if said.status // 100 != 2:  # noqa: PLR2004  2xx
        msg = f"GET {doors.asleep}: HTTP {said.status}"
        raise LookupError(msg)
    try:
        return msgspec.json.decode(said.body, type=_Word).is_sleeping
    except msgspec.MsgspecError as e:
        msg = f"GET {doors.asleep}: it does not say is_sleeping"
        raise LookupError(msg) from e


async def _knock(hands: Hands, record: Record, steps: Iterable[str], limit_s: float) -> None:
    """Each in turn; the first that is refused is the last."""
    async with asyncio.timeout(limit_s):
        for step in steps:
            address, port = host_of(record, hands.facts), record.start.port
            said = await probe.knock(address, port, step, record.api_key, limit_s)
            if said.outcome != "ok":
                msg = f"POST {step}: {said.detail or said.outcome}"
                raise LookupError(msg)
