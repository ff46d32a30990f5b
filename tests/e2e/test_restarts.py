"""The promise with a real llama-server: kill -9 of any part, in any order, and nobody notices (A2, F1-F6, F35)."""

import random
import threading
import time
from pathlib import Path
from typing import NamedTuple

import httpx
import pytest
from typing_extensions import override

from scripts.fleet import Fleet, start_ticks, wait_for
from tests.e2e.conftest import Make, counted, model, tiny

COUNT = " one two three four five six seven eight nine ten."
KILLS = 10


class Asked(NamedTuple):
    begun_s: float
    ended_s: float
    problem: str


class Loop(threading.Thread):
    """One client that asks again and again, each time over a new connection."""

    def __init__(self, url: str) -> None:
        super().__init__(daemon=True)
        self.url = f"{url}/v1/chat/completions"
        self.asked: list[Asked] = []
        self.enough = threading.Event()

    @override
    def run(self) -> None:
        body = {"model": "alpha", "messages": [{"role": "user", "content": "please count"}]}
        while not self.enough.is_set():
            begun, problem = time.monotonic(), ""
            try:
                answer = httpx.post(self.url, json=body, timeout=30, trust_env=False)
                if answer.status_code != httpx.codes.OK:
                    problem = f"{answer.status_code} {answer.text}"
                elif answer.json()["choices"][0]["message"]["content"] != COUNT:
                    problem = answer.text
            except httpx.HTTPError as e:
                problem = f"{type(e).__name__}: {e}"
            self.asked.append(Asked(begun, time.monotonic(), problem))

    def more(self, count: int) -> None:
        """Until so many more were answered."""
        wanted = len(self.asked) + count
        wait_for(lambda: len(self.asked) >= wanted, f"{count} more answers")


def kill(fleet: Fleet, part: str) -> float:
    """Kill one part, see it back; gives the moment of its death."""
    old = fleet.life(part)
    assert old is not None
    if part == "gateway":
        pid = fleet.gateway_pid()
        assert pid
        died = time.monotonic()
        fleet.kill_pid(pid)
    else:
        died = time.monotonic()
        fleet.kill(part)
        fleet.start(part)
    fleet.back(part, old)
    return died


@pytest.mark.e2e
def test_ten_kills_in_a_row_cost_one_engine_start(make: Make, tmp_path: Path) -> None:
    starts = tmp_path / "starts"
    fleet = make({"alpha": model(counted(tiny("alpha"), starts))})
    fleet.start("control", "agent")
    pid = fleet.ready("alpha")["shards"][0]["pid"]
    ticks = start_ticks(pid)
    fleet.served("alpha")
    loop = Loop(fleet.urls["gateway"])
    loop.start()
    loop.more(3)
    order = random.Random(7).choices(["control", "agent", "gateway"], k=KILLS - 3)
    gateway_died = []
    for part in ["control", "agent", "gateway", *order]:
        died = kill(fleet, part)
        if part == "gateway":
            gateway_died.append(died)
        loop.more(3)
    loop.enough.set()
    loop.join()

    assert starts.read_text().split() == ["start"]
    assert list(fleet.engines()) == [pid]
    assert start_ticks(pid) == ticks
    failed = [a for a in loop.asked if a.problem]
    unexplained = [a for a in failed if not any(a.begun_s <= t <= a.ended_s for t in gateway_died)]
    assert not unexplained, f"{len(unexplained)} of {len(loop.asked)}: {unexplained[:3]}"
    assert len(failed) <= len(gateway_died)


@pytest.mark.e2e
def test_everything_at_once_and_the_box_comes_back(make: Make, tmp_path: Path) -> None:
    """Control, agent and gateway die together; only the engine is left, and it is found by all of them."""
    starts = tmp_path / "starts"
    fleet = make({"alpha": model(counted(tiny("alpha"), starts))})
    fleet.start("control", "agent")
    pid = fleet.ready("alpha")["shards"][0]["pid"]
    lives = {part: fleet.life(part) for part in ("control", "agent")}
    gateway = fleet.gateway_pid()
    assert gateway
    fleet.kill("control")
    fleet.kill("agent")
    fleet.kill_pid(gateway)
    fleet.start("agent", "control")
    for part, old in lives.items():
        fleet.back(part, old)
    fleet.served("alpha")
    assert fleet.ready("alpha")["shards"][0]["pid"] == pid
    assert starts.read_text().split() == ["start"]


@pytest.mark.e2e
def test_a_lost_inventory_stops_no_engine(make: Make, tmp_path: Path) -> None:
    """A51: the file is deleted while control is down; the fleet tells what runs, and the epoch goes on rising (F16)."""
    starts = tmp_path / "starts"
    fleet = make({"alpha": model(counted(tiny("alpha"), starts))})
    fleet.start("control", "agent")
    pid = fleet.ready("alpha")["shards"][0]["pid"]
    epoch = fleet.life("control")
    fleet.kill("control")
    fleet.inventory.unlink()
    fleet.start("control")
    fleet.back("control", epoch)
    assert fleet.ready("alpha")["shards"][0]["pid"] == pid
    assert starts.read_text().split() == ["start"]
    now = fleet.life("control")
    assert isinstance(now, int)
    assert isinstance(epoch, int)
    assert now > epoch
