"""What is done to the parts of a fleet under load, and what is left of them: for `bench.mixed`.

Answers for: kills and upgrades at their times, and a census of memory, descriptors, threads and processes. It may not
know what clients ask.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from itertools import cycle
from pathlib import Path
from typing import Any, NamedTuple

from bench.mixed_clients import Tally
from llmgw import handover
from llmgw.errors import LlmgwError
from scripts.fleet import Fleet, spawned, wait_for

#: Resident memory of one kind of process may grow by this much from its early lives to its late ones.
GROWTH = 1.25
GROWTH_BYTES = 8 << 20
#: At rest a process may have so many descriptors and threads more than at first: pools, and what a log has open.
MORE_FDS, MORE_THREADS = 8, 4
Json = dict[str, Any]


def gateways(fleet: Fleet) -> set[int]:
    """Every process of a gateway of this fleet: parents, workers, and old ones that finish."""
    return set(spawned(str(fleet.folder / "control" / "gateway")))


class Trouble:
    """Kills and replaces parts of a fleet, and looks at their memory."""

    def __init__(self, fleet: Fleet, tally: Tally, dice: random.Random, workers: int) -> None:
        self.fleet = fleet
        self.tally = tally
        self.dice = dice
        self.workers = workers
        self.count: Counter[str] = Counter()
        self.memory: dict[str, dict[int, list[int]]] = defaultdict(lambda: defaultdict(list))
        self.gateways: list[subprocess.Popen[bytes]] = []

    async def every(self, pauses_s: Sequence[float], what: Callable[[], None]) -> None:
        for seconds in cycle(pauses_s):
            await asyncio.sleep(seconds)
            await asyncio.to_thread(what)

    def control(self) -> None:
        self.fleet.kill("control")
        self.count["control killed"] += 1
        time.sleep(self.dice.random() * 3)
        self.fleet.start("control")

    def gateway(self) -> None:
        before = self.fleet.gateway_pid()
        url, state = self.fleet.urls, self.fleet.folder / "control" / "gateway"
        words = ["gateway", "--takeover", "--state-dir", str(state), "--control", url["control"]]
        words += ["--listen", url["gateway"].removeprefix("http://")]
        words += ["--workers", str(self.workers)]
        with self.fleet.log("gateway").open("ab") as log:
            heir = subprocess.Popen(
                [sys.executable, "-m", "llmgw", *words],
                env=self.fleet.env,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        self.gateways.append(heir)

        def taken_over() -> bool:
            try:
                return handover.hello(state).pid not in {0, before}
            except LlmgwError:
                return False

        wait_for(taken_over, "a gateway that took over")
        self.count["gateway upgraded"] += 1
        for old in self.gateways:
            old.poll()  # reaped

    def engine(self) -> None:
        found = sorted(x for x in self.fleet.engines().items() if x[1].startswith("steady"))
        if not found:
            return
        pid, shard = self.dice.choice(found)
        self.tally.killed_s[shard.partition("/")[0]] = time.monotonic()
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
        self.count["engine killed"] += 1

    def look(self) -> None:
        found = [(name, process.pid) for name, process in self.fleet.processes.items()]
        for name, pid in [*found, *(("gateway", pid) for pid in gateways(self.fleet))]:
            if size := resident(pid):
                self.memory[name][pid].append(size)

    def flat(self) -> tuple[bool, Json]:
        """The most of each life that was seen twice: late lives against early ones, or one life alone."""
        shown: Json = {}
        good = True
        for name, lives in self.memory.items():
            sizes = [max(s) for s in lives.values() if len(s) > 1]
            if len(sizes) <= 1:  # one long life: its first quarter against its last
                samples = max(lives.values(), key=len)
                quarter = max(1, len(samples) // 4)
                sizes = [max(samples[:quarter]), max(samples[-quarter:])]
            half = max(1, len(sizes) // 2)
            early, late = max(sizes[:half]), max(sizes[-half:])
            good = good and late < early * GROWTH + GROWTH_BYTES
            shown[name] = {"lives": len(lives), "early_mib": early >> 20, "late_mib": late >> 20}
        return good, shown


def resident(pid: int) -> int:
    try:
        fields = Path(f"/proc/{pid}/statm").read_text().split()
    except OSError:
        return 0
    return int(fields[1]) * os.sysconf("SC_PAGESIZE")


class Held(NamedTuple):
    fds: int
    threads: int


Census = dict[str, Held]


def census(fleet: Fleet) -> Census:
    """What each part has open; of several processes of a kind the most."""
    pids = [(name, process.pid) for name, process in fleet.processes.items()]
    found: Census = {}
    for name, pid in [*pids, *(("gateway", pid) for pid in gateways(fleet))]:
        with contextlib.suppress(OSError):
            place = Path(f"/proc/{pid}")
            held = Held(*(sum(1 for _ in (place / kind).iterdir()) for kind in ("fd", "task")))
            before = found.get(name, Held(0, 0))
            found[name] = Held(*map(max, held, before))
    return found


def left(fleet: Fleet, first: Census, workers: int) -> list[str]:
    """What is there that should not be, with nobody asking any more; empty where nothing is."""
    return [*_too_much(census(fleet), first), *_too_many(fleet, workers), *_dead(fleet)]


def _too_much(now: Census, first: Census) -> Iterator[str]:
    for name, held in now.items():
        before = first.get(name, Held(0, 0))
        if held.fds > before.fds + MORE_FDS or held.threads > before.threads + MORE_THREADS:
            yield f"{name} has {held.fds} descriptors and {held.threads} threads, at first {before}"


def _too_many(fleet: Fleet, workers: int) -> Iterator[str]:
    most = 1 if workers == 1 else 1 + workers
    serve = gateways(fleet)
    if len(serve) > most:
        yield f"{len(serve)} processes of gateways, not {most}"
    status = fleet.status()
    if status is None:
        yield "control does not answer"
        return
    busy = {r["replica"]: r["in_flight"] for r in status["replicas"] if r["in_flight"]}
    if busy:
        yield f"in flight: {busy}"
    known = {r["replica"] for r in status["replicas"]}
    engines = Counter(shard for shard in fleet.engines().values())
    for shard, count in engines.items():
        if count > 1 or shard.partition("/")[0] not in known:
            yield f"{count} processes of {shard}, known to control: {sorted(known)}"


def _dead(fleet: Fleet) -> Iterator[str]:
    """Children that nobody has reaped."""
    ours = {process.pid for process in fleet.processes.values()} | gateways(fleet)
    for folder in Path("/proc").iterdir():
        if not folder.name.isdecimal():
            continue
        with contextlib.suppress(OSError):
            state, parent = (folder / "stat").read_text().rpartition(")")[2].split()[:2]
            if state == "Z" and int(parent) in ours:
                yield f"{folder.name} is dead and unreaped under {parent}"
