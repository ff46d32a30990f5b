"""F49: an engine writes a gigabyte of log as fast as it can, with limits as they are shipped.

What its files take is looked at all the while. What it writes between two looks of the agent, and all that it writes
while no agent runs, nobody can keep from the disk: that is cut at the next look.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx

from llmgw.agent.logs import LOG_MAX_BYTES, Logs
from tests.agent.rig import Rig, until
from tests.engines.fake_engine import FLOOD_ENDS

GIB = 1 << 30
#: Its log and the part that was cut.
BOUND = 2 * LOG_MAX_BYTES
#: What a quarter of a second of it may add, with room for a slow moment of a shared box. A gigabyte is far more.
BETWEEN = 10 * LOG_MAX_BYTES


def test_a_flood_of_1_gb_is_bounded_while_it_is_written(rig: Rig) -> None:
    rig.start_agent().registered()
    with most(rig.state_dir / "logs/alpha-1") as peak:
        shard = rig.ready(1, "--log-flood", str(GIB))
        before = memory(rig)
        ended(rig, shard["pid"])
        bounded(rig)
    assert max(peak) <= BOUND + BETWEEN, f"{max(peak) >> 20} MiB"
    assert peak_memory(rig) < before + (16 << 20), "the agent reads none of it"
    untouched(rig, shard["pid"])


def test_a_flood_of_1_gb_whose_agent_is_killed_in_the_middle(rig: Rig) -> None:
    rig.start_agent().registered()
    shard = rig.ready(1, "--log-flood", str(GIB))
    until(lambda: written(shard["pid"]) > GIB // 4, "a quarter of it")
    rig.kill9().again()
    assert written(shard["pid"]) <= GIB + 4096
    ended(rig, shard["pid"])
    bounded(rig)
    assert peak_memory(rig) < 90 << 20
    untouched(rig, shard["pid"])


def last_words(rig: Rig) -> str:
    """As people read it: what was cut off may be the end of it."""
    return Logs(rig.state_dir).tail("alpha-1/0", 4096).rstrip()


def ended(rig: Rig, pid: int) -> None:
    until(lambda: written(pid) >= GIB, "all of it", 60)
    until(lambda: last_words(rig).endswith(FLOOD_ENDS), "its last line")


def bounded(rig: Rig) -> None:
    until(lambda: size(rig.state_dir / "logs/alpha-1") <= BOUND, "a bound")


def untouched(rig: Rig, pid: int) -> None:
    """The engine noticed nothing, and what it said last is there to read."""
    now = rig.control.shards["alpha-1/0"]
    assert (now["state"], now["pid"], now["attempt"]) == ("ready", pid, 1)
    assert httpx.get(f"{now['endpoint']}/health", trust_env=False).status_code == 200
    url = f"http://{rig.settings['listen']}/v1/logs/alpha-1/0"
    lines = httpx.get(url, trust_env=False).text.splitlines()
    assert lines[-1] == FLOOD_ENDS
    assert set(lines[1:-1]) == {"x" * 1023}


@contextmanager
def most(folder: Path) -> Iterator[list[int]]:
    """What the folder takes, looked at every few milliseconds."""
    found, over = [0], threading.Event()

    def look() -> None:
        while not over.is_set():
            found[0] = max(found[0], size(folder))
            time.sleep(0.005)

    watch = threading.Thread(target=look)
    watch.start()
    try:
        yield found
    finally:
        over.set()
        watch.join()


def size(folder: Path) -> int:
    paths = list(folder.iterdir()) if folder.is_dir() else []
    return sum(path.stat().st_blocks * 512 for path in paths)


def written(pid: int) -> int:
    lines = Path(f"/proc/{pid}/io").read_text().splitlines()
    return next(int(x.split()[1]) for x in lines if x.startswith("wchar:"))


def memory(rig: Rig) -> int:
    return _status(rig, "VmRSS")


def peak_memory(rig: Rig) -> int:
    return _status(rig, "VmHWM")


def _status(rig: Rig, key: str) -> int:
    assert rig.agent is not None
    lines = Path(f"/proc/{rig.agent.pid}/status").read_text().splitlines()
    return next(int(x.split()[1]) << 10 for x in lines if x.startswith(key))
