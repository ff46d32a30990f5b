"""Cells of the crash matrix: which part dies where, how that point is come to, and the pool of fleets they run in.

Answers for: cells beside each other, each on ports of its own; a fleet that a cell leaves as it was found goes on to
the next one. It may not judge what a fleet looks like: `stage` does.
"""

import os
import queue
import signal
import sqlite3
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing
from itertools import count
from pathlib import Path
from typing import NamedTuple

import httpx
import pytest
from typing_extensions import override

from llmgw.agent.logs import LOG_MAX_BYTES
from tests.e2e import truth
from tests.e2e.stage import ASLEEP, DEAF, RIVAL, STEADY, Stage
from tests.nursery import Nursery

#: Fleets beside each other: they mostly wait, for time-outs and for one another.
BESIDE = 6
#: A slow box may see the end before the start that follows it has come, and nothing is kept: then the next one is it.
SWAPS = 5


# ---------------------------------------------------------------- what some points need besides a tour


def nothing(_: Stage) -> None:
    pass


def no_gateway(stage: Stage) -> None:
    """Control and gateway are gone together."""
    pid = stage.gateway_pid()
    assert pid
    stage.kill_pid(pid)


def garbled_inventory(stage: Stage) -> None:
    """F14."""
    stage.inventory.write_bytes(b"no database at all" * 100)


def old_inventory(stage: Stage) -> None:
    """Restored from a backup of the first day (F16)."""
    with closing(sqlite3.connect(stage.inventory)) as db, db:
        db.execute("UPDATE meta SET value = '0' WHERE key = 'epoch'")


def garbled_record(stage: Stage) -> None:
    """Of the engine that nobody may touch: its markers are all that is left of it (F42)."""
    _record(stage, STEADY).write_bytes(b"{")
    stage.kept += (".unreadable",)


def lost_engine(stage: Stage) -> None:
    """Unreadable is not absent (A39): nobody can say what became of it, and it is asked about again and again."""
    _record(stage, DEAF).write_bytes(b"{")
    stage.kill_pid(next(e.pid for e in truth.engines(stage) if e.model == DEAF))
    stage.kept += (".unreadable",)


def _record(stage: Stage, name: str) -> Path:
    return next((stage.folder / "agent" / "records").glob(f"{name}-*.json"))


def long_log(stage: Stage) -> None:
    path = next((stage.folder / "agent" / "logs").glob(f"{STEADY}-*")) / "0.log"
    os.truncate(path, LOG_MAX_BYTES + 1)


def another_leader(stage: Stage) -> None:
    """Control was restarted too: its epoch is a new one."""
    stage.kill("control")
    stage.start("control")


def lock_removed(stage: Stage) -> None:
    stage.inventory.with_name("inventory.db.lock").unlink()


def told_to_end(stage: Stage) -> None:
    stage.processes["control"].send_signal(signal.SIGTERM)


def down(stage: Stage) -> None:
    """`llmgw down`: control dies when it has ended its gateway."""
    with pytest.raises(httpx.TransportError):
        stage.http.post(f"{stage.urls['control']}/api/v1/shutdown", json={})


def swapped(stage: Stage) -> None:
    """Two models that do not fit beside each other, to and fro: the start goes out together with the stop."""
    for _ in range(SWAPS):
        stage.wake(RIVAL)
        stage.rest(STEADY, RIVAL, DEAF)
        stage.wake(ASLEEP)
        stage.whole()
        stage.started(2)
        if stage.deaths:
            return


class Way(NamedTuple):
    """How a point is come to: `meanwhile` its part is down before the life in which it dies; `then` in that life."""

    meanwhile: Callable[[Stage], None] = nothing
    then: Callable[[Stage], None] = nothing
    fresh: bool = False
    #: it waits for long, so it begins first
    slow: bool = False


PLAIN = Way()
WAYS = {
    "before_create": Way(fresh=True),
    "after_set_aside": Way(meanwhile=garbled_inventory, slow=True),
    **dict.fromkeys(
        ("after_bind", "before_spawn", "after_spawn", "after_watch"), Way(meanwhile=no_gateway)
    ),
    "epoch_raised": Way(meanwhile=old_inventory),
    "lock_dropped": Way(then=lock_removed),
    "gateway_ended": Way(then=down),
    "before_last_keep": Way(then=told_to_end),
    "after_last_keep": Way(then=told_to_end),
    "before-identity": Way(fresh=True),
    "after-identity": Way(fresh=True),
    "record-set-aside": Way(meanwhile=garbled_record),
    "before-StoreToken": Way(meanwhile=another_leader),
    "after-StoreToken": Way(meanwhile=another_leader),
    "log-copied": Way(meanwhile=long_log),
    "before-Identify": Way(meanwhile=lost_engine, slow=True),
    "after-Identify": Way(meanwhile=lost_engine, slow=True),
    **dict.fromkeys(("start-kept", "start-due"), Way(then=swapped)),
}
#: In how many lives a point is died at, where that is not three: how often a start and a tour pass it. Points that
#: stand for others, which are there by their own names, are tried once.
PASSED = {
    1: """after_lock before_epoch after_epoch after_handover catalog_checked catalog_swapped after_send
    after-lock after-load after-reattach after-boot after-identity log-moved before-Signal-KILL after-Signal-KILL
    before-WriteRecord after-WriteRecord before-Signal after-Signal""",
    2: """registration_folded before_register_answer before_catalog_kept after_catalog_kept
    after_send_start after_send_drain after_send_stop after_send_forget after_send_report
    before-identity before-register after-register before-Signal-TERM after-Signal-TERM
    before-DeleteRecord after-DeleteRecord""",
}
TIMES = {name: times for times, names in PASSED.items() for name in names.split()}


class Cell(NamedTuple):
    """Where each part is to die, life by life."""

    points: tuple[tuple[str, tuple[str, ...]], ...]
    way: Way = PLAIN

    @override
    def __str__(self) -> str:
        return "+".join(f"{part} {', '.join(points)}" for part, points in self.points)


def passings(name: str) -> int:
    return TIMES.get(name, 1 if name in WAYS else 3)


def cell(part: str, name: str) -> Cell:
    points = tuple(f"{name}:{n}" for n in range(1, passings(name) + 1))
    return Cell(((part, points),), WAYS.get(name, PLAIN))


def play(stage: Stage, cell: Cell) -> None:
    """Until everybody has died everywhere, and a tour after that ended where it began."""
    way, points = cell.way, {part: list(names) for part, names in cell.points}
    tours = sum(map(len, points.values())) + 1
    stage.points = points
    if way.meanwhile is lost_engine:
        held(stage)
    elif way.fresh:
        stage.begin()
    else:
        stage.restart(*points, meanwhile=lambda: way.meanwhile(stage))
    if way.then is not nothing:
        way.then(stage)
        stage.until(lambda: stage.deaths, "its death")
        stage.whole()
    while stage.armed and tours:
        stage.tour()
        tours -= 1
    assert not stage.armed, f"never came to {stage.armed}; died at {stage.deaths}"


def held(stage: Stage) -> None:
    """An engine of which nobody can say what became is neither forgotten nor replaced (A39); the others run on."""
    before = stage.whole()
    stage.kill("agent")
    lost_engine(stage)
    stage.start("agent")
    stage.until(lambda: stage.deaths, "its death")

    def known() -> bool:
        replicas = (stage.status() or {"replicas": []})["replicas"]
        shards = [s for r in replicas for s in r["shards"] if s["shard"] == before[DEAF].shard]
        return [s["state"] for s in shards] == ["unknown"]

    stage.until(known, "held as unknown")
    now = {e.model: e for e in truth.engines(stage)}
    assert now == {STEADY: before[STEADY], ASLEEP: before[ASLEEP]}
    stage.started(0)


class Matrix:
    """A pool of fleets; each takes the next cell, and a new fleet is made where the last one did not end well."""

    def __init__(self, folder: Path, nvml: Path) -> None:
        self._folder = folder
        self._nursery = Nursery(LD_LIBRARY_PATH=str(nvml))
        self._names = count()
        self._idle: queue.SimpleQueue[Stage] = queue.SimpleQueue()
        self._pool = ThreadPoolExecutor(BESIDE)
        self._results: dict[Cell, Future[None]] = {}

    def begin(self, cells: list[Cell]) -> None:
        for cell in sorted(cells, key=lambda c: not c.way.slow):
            self._results[cell] = self._pool.submit(self._run, cell)

    def result(self, cell: Cell) -> None:
        self._results[cell].result()

    def _run(self, cell: Cell) -> None:
        stage = self._stage(begun=not cell.way.fresh)
        try:
            play(stage, cell)
            if not stage.kept:
                stage.clear()
        except BaseException:
            stage.close()
            raise
        stage.deaths.clear()
        if stage.kept:
            stage.close()
        else:
            self._idle.put(stage)

    def _stage(self, *, begun: bool) -> Stage:
        if begun:
            try:
                return self._idle.get_nowait()
            except queue.Empty:
                pass
        stage = Stage(self._folder / str(next(self._names)), self._nursery)
        if begun:
            try:
                stage.begin()
            except BaseException:
                stage.close()
                raise
        return stage

    def close(self) -> None:
        self._pool.shutdown(cancel_futures=True)
        while not self._idle.empty():
            self._idle.get().close()
        self._nursery.close()
