"""A real agent puts a real process to sleep and wakes it: its memory is measured, kill -9 at no step restarts it."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from llmgw.core.types.messages import Resources
from llmgw.core.types.sleep import Doors, SleepShard, WakeShard
from tests.agent.cards import GIB, UUIDS, Cards
from tests.agent.rig import Rig, until

SLEEPY = [sys.executable, str(Path(__file__).parents[1] / "engines" / "sleepy_engine.py")]
DOORS = Doors(
    level=1, asleep="/is_sleeping", sleep=("/sleep?level=1",), wake=("/wake_up {}",), canary=True
)
ABOUT: dict[str, Any] = {"shard": "alpha-1/0", "incarnation": "inc-1", "reason": "test"}
MINE = 10 * GIB


@pytest.fixture
def bed(tmp_path: Path, cards: Cards) -> Iterator[Rig]:
    """With the first card lent to one engine that can sleep."""
    rig = Rig(tmp_path, gpus="auto")
    rig.start_agent(**cards.env).registered()
    yield rig
    rig.close()


def engine(rig: Rig, cards: Cards, *flags: str, n: int = 1, **changes: Any) -> dict[str, Any]:
    command = (*SLEEPY, "--port", "${port}", "--card", str(cards.path), "--gpu-memory", str(MINE))
    base: dict[str, Any] = {
        "command": (*command, *flags),
        "gpus": UUIDS[:1],
        "resources": Resources(gpu_memory_bytes=MINE),
        "sleep": DOORS,
    }
    return rig.ready(n, **{**base, **changes})


def stats(shard: dict[str, Any]) -> dict[str, Any]:
    return dict(httpx.get(f"{shard['endpoint']}/stats", trust_env=False).json())


def slept(rig: Rig) -> dict[str, Any]:
    """Told as asleep and measured."""

    def look() -> dict[str, Any] | None:
        there = rig.control.shard("alpha-1/0", "asleep")
        return there if (there.get("asleep") or {}).get("verified") else None

    found = until(look, "alpha-1/0 asleep and measured")
    assert isinstance(found, dict)
    return found


def test_it_sleeps_gives_its_memory_back_and_wakes_as_the_same_process(
    bed: Rig, cards: Cards
) -> None:
    before = engine(bed, cards)
    bed.control.send(SleepShard(**ABOUT))
    there = slept(bed)
    assert there["asleep"] == {"verified": True, "freed": MINE - MINE // 10, "rest": MINE // 10}
    assert there["pid"] == before["pid"]
    assert stats(there)["doors"] == {"/sleep": 1, "/wake_up": 0}
    requests = stats(there)["requests"]
    bed.control.send(WakeShard(**ABOUT))
    awake = bed.control.shard("alpha-1/0", "ready")
    assert (awake["pid"], awake["asleep"]) == (before["pid"], None)
    assert stats(awake)["requests"] == requests + 1, "one real token before anybody is sent to it"
    assert stats(awake)["asleep"] is False


def test_what_it_gave_back_is_lent_to_another_and_it_is_not_woken_onto_it(
    bed: Rig, cards: Cards
) -> None:
    engine(bed, cards)
    bed.control.send(SleepShard(**ABOUT))
    slept(bed)
    engine(bed, cards, n=2, resources=Resources(gpu_memory_bytes=20 * GIB))
    bed.control.send(WakeShard(**ABOUT))
    no = bed.control.refusal("gpu_held")
    assert "alpha-1/0 asks for it" in no["why"]
    assert slept(bed)["state"] == "asleep"


def test_killed_while_it_falls_asleep_the_next_agent_goes_on(bed: Rig, cards: Cards) -> None:
    before = engine(bed, cards, "--turn-s", "0.6")
    bed.control.send(SleepShard(**ABOUT))
    assert bed.control.shard("alpha-1/0", "asleep")["asleep"]["verified"] is False
    assert bed.record()["nap"] == "falling"
    bed.kill9().start_agent(**cards.env).registered(2)
    there = slept(bed)
    assert there["pid"] == before["pid"]
    assert there["asleep"]["rest"] == MINE // 10


def test_killed_while_it_sleeps_it_is_asked_and_left_asleep(bed: Rig, cards: Cards) -> None:
    before = engine(bed, cards)
    bed.control.send(SleepShard(**ABOUT))
    there = slept(bed)
    bed.kill9().start_agent(**cards.env).registered(2)
    assert slept(bed)["asleep"] == there["asleep"]
    assert stats(before)["doors"] == {"/sleep": 1, "/wake_up": 0}
    bed.control.send(WakeShard(**ABOUT))
    assert bed.control.shard("alpha-1/0", "ready")["pid"] == before["pid"]


def test_killed_while_it_wakes_the_next_agent_wakes_it(bed: Rig, cards: Cards) -> None:
    before = engine(bed, cards, "--turn-s", "0.6")
    bed.control.send(SleepShard(**ABOUT))
    slept(bed)
    bed.control.send(WakeShard(**ABOUT))
    bed.control.shard("alpha-1/0", "loading")
    bed.kill9().start_agent(**cards.env).registered(2)
    awake = bed.control.shard("alpha-1/0", "ready")
    assert (awake["pid"], awake["attempt"]) == (before["pid"], 1)


def test_one_that_dies_in_its_sleep_has_failed_and_is_not_started_again(
    bed: Rig, cards: Cards
) -> None:
    before = engine(bed, cards)
    bed.control.send(SleepShard(**ABOUT))
    slept(bed)
    os.kill(before["pid"], signal.SIGKILL)
    cards.use(0, 0)
    ended = bed.control.shard("alpha-1/0", "failed")
    assert (ended["attempt"], ended["gave_up"]) == (1, False)


def test_an_engine_without_a_gpu_sleeps_too(tmp_path: Path) -> None:
    rig = Rig(tmp_path)
    try:
        rig.start_agent().registered()
        rig.ready(1, command=(*SLEEPY, "--port", "${port}"), sleep=DOORS)
        rig.control.send(SleepShard(**ABOUT))
        assert slept(rig)["asleep"] == {"verified": True, "freed": 0, "rest": 0}
    finally:
        rig.close()


def test_doors_that_are_none_are_told_as_such(tmp_path: Path) -> None:
    """The plain fake engine knows no such paths; its end is `supervise`'s, by the same words."""
    rig = Rig(tmp_path)
    try:
        rig.start_agent().registered()
        rig.ready(1, sleep=DOORS)
        rig.control.send(SleepShard(**ABOUT))
        there = rig.control.shard("alpha-1/0", "asleep")
        assert there["asleep"]["verified"] is False
        rig.control.send(WakeShard(**ABOUT))
        assert "still falling asleep" in rig.control.refusal("not_asleep")["why"]
    finally:
        rig.close()
