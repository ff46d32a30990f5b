"""The agent's side of sleep: by its own doors, step by step, over kills at any of them; nothing is given out twice."""

from __future__ import annotations

from typing import Any

import pytest

from llmgw.core.supervise.health import STEADY_S
from llmgw.core.supervise.report import shard_report
from llmgw.core.supervise.sleep import AGAIN_S, SLEEP_S
from llmgw.core.types.messages import Gpu
from llmgw.core.types.node import (
    CallDoor,
    DoorAnswered,
    GpusSeen,
    Probe,
    Refuse,
    Signal,
)
from llmgw.core.types.sleep import Asleep, Doors, SleepShard, WakeShard
from tests.core.agent_bench import BY, GIB, GPU1, KEY, Bench, on_gpu

DOORS = Doors(
    level=1, asleep="/is_sleeping", sleep=("/sleep?level=1",), wake=("/wake_up",), canary=True
)
ABOUT: dict[str, Any] = {"shard": KEY[0], "incarnation": KEY[1], "reason": "t", **BY}
SLEEP, WAKE = SleepShard(**ABOUT), WakeShard(**ABOUT)
REST, FREED = 2 * GIB, 8 * GIB


def in_use(gib: int) -> GpusSeen:
    gpu = Gpu(uuid="GPU-0", index=0, memory_bytes=24 * GIB, memory_used_bytes=gib * GIB)
    return GpusSeen((gpu, GPU1))


def answer(b: Bench, which: Any, *, asleep: bool | None, **facts: Any) -> Bench:
    return b(
        DoorAnswered(key=KEY, attempt=b.record.attempt, which=which, asleep=asleep, **facts), 0.5
    )


def ready(gib: int | None = 10) -> Bench:
    b = Bench().command(on_gpu(1, "GPU-0", gib=gib, sleep=DOORS))
    return b.spawned().tick(0.1).probe()


def asleep(gib: int | None = 10) -> Bench:
    b = ready(gib).command(SLEEP)
    return answer(b, "sleep", asleep=True, rest_bytes=REST, freed_bytes=FREED)


def woken() -> Bench:
    return asleep().command(WAKE)


# ---------------------------------------------------------------- to sleep


def test_an_order_is_journaled_before_the_door_is_called() -> None:
    b = ready().command(SLEEP)
    assert b.kinds() == ["WriteRecord", "CallDoor", "Changed"]
    assert b.one(CallDoor).which == "sleep"
    assert (b.record.state, b.record.nap) == ("asleep", "falling")
    assert shard_report(b.record).asleep == Asleep()
    assert shard_report(b.record).sleep == 1


def test_what_came_back_is_told_once_the_engine_says_that_it_sleeps() -> None:
    b = asleep()
    said = Asleep(verified=True, freed_bytes=FREED, rest_bytes=REST)
    assert shard_report(b.record).asleep == said
    assert b.changed() == (KEY,)
    assert shard_report(b.journaled()[KEY]).asleep == said


def test_an_order_that_comes_twice_changes_nothing() -> None:
    b = asleep()
    before = b.record
    b.command(SLEEP)
    assert b.record is before
    assert b.kinds() == ["Changed"]


def test_a_sleeper_is_never_probed_nor_ended_for_its_silence() -> None:
    """Nor by a probe that was on its way: it was asked while awake."""
    b = asleep()
    b.tick(10 * STEADY_S).tick(3600.0)
    assert not b.of(Probe)
    b.probe("failed").probe("refused").tick(1.0)
    assert b.record.state == "asleep"
    assert b.due() == float("inf")


@pytest.mark.parametrize("why", ["loading", "no door", "draining"])
def test_what_is_not_ready_or_has_no_door_is_refused(why: str) -> None:
    if why == "loading":
        b = Bench().command(on_gpu(1, "GPU-0", gib=10, sleep=DOORS)).spawned()
    elif why == "no door":
        b = Bench().ready()
    else:
        b = ready().drain()
    state = b.record.state
    b.command(SLEEP)
    assert b.refusal()[0] == "not_ready"
    assert b.record.state == state
    assert KEY in b.changed()


def test_a_door_that_gives_no_answer_is_tried_again() -> None:
    b = ready().command(SLEEP)
    answer(b, "sleep", asleep=None, detail="no answer in 2 s")
    assert not b.of(CallDoor)
    assert b.due() == AGAIN_S
    b.tick(AGAIN_S)
    assert b.one(CallDoor).which == "sleep"
    answer(b, "sleep", asleep=False).tick(AGAIN_S)
    assert b.one(CallDoor).which == "sleep"


def test_one_that_does_not_fall_asleep_in_its_time_is_ended_and_not_loaded_again_here() -> None:
    """Its model may run elsewhere by then: control decides."""
    b = ready().command(SLEEP)
    answer(b, "sleep", asleep=None, detail="POST /sleep: HTTP 404").tick(SLEEP_S)
    assert (b.record.state, b.record.ending) == ("stopping", "failed")
    assert b.record.error == "it did not fall asleep in its time: POST /sleep: HTTP 404"
    assert b.one(Signal).name == "TERM"


def test_a_sleeper_that_dies_is_not_started_again_by_its_agent() -> None:
    b = asleep().exited(-9)
    assert (b.record.state, b.record.ending) == ("stopping", "failed")
    assert shard_report(b.record).asleep is not None, "it takes nothing back in its end"
    b.tree().memory(0).memory(0).memory(0).memory(0).tick()
    assert b.record.state == "failed"
    assert (b.record.nap, b.record.rest_bytes) == ("", None)
    assert shard_report(b.record).asleep is None


@pytest.mark.parametrize("how", ["drain", "stop"])
def test_a_drain_or_a_stop_ends_a_sleeper_at_once(how: str) -> None:
    b = asleep()
    b = b.drain() if how == "drain" else b.stop()
    assert (b.record.state, b.record.ending) == ("stopping", "stopped")
    assert b.one(Signal).name == "TERM"


def test_a_stop_while_it_falls_asleep_leaves_no_late_answer_to_count() -> None:
    b = ready().command(SLEEP).stop()
    answer(b, "sleep", asleep=True, rest_bytes=REST)
    assert (b.record.nap, b.record.rest_bytes) == ("falling", None)


# ---------------------------------------------------------------- what it holds


def test_what_a_sleeper_gave_back_is_free_for_another() -> None:
    b = asleep()(in_use(2))
    b.command(on_gpu(2, "GPU-0", gib=20))
    assert not b.of(Refuse)


def test_while_it_falls_asleep_it_holds_all_that_it_was_given() -> None:
    b = ready().command(SLEEP)(in_use(2))
    b.command(on_gpu(2, "GPU-0", gib=20))
    assert b.refusal()[0] == "gpu_held"


def test_where_nobody_can_measure_it_holds_all_that_it_was_given() -> None:
    b = answer(ready().command(SLEEP), "sleep", asleep=True)(in_use(2))
    b.command(on_gpu(2, "GPU-0", gib=20))
    assert b.refusal()[0] == "gpu_held"


def test_it_is_not_woken_onto_memory_that_is_anothers_now() -> None:
    b = asleep()(in_use(2)).command(on_gpu(2, "GPU-0", gib=20)).command(WAKE)
    reason, resource, why = b.refusal()
    assert (reason, resource) == ("gpu_held", "gpu GPU-0")
    assert "4.0 of 24.0 GiB free, 10.0 needed" in why
    assert b.record.state == "asleep"
    assert KEY in b.changed(), "control counts it as waking until it hears otherwise"


def test_one_that_had_its_gpu_alone_wakes_alone() -> None:
    b = asleep(gib=None)(in_use(2)).command(on_gpu(2, "GPU-0", gib=20))
    assert not b.of(Refuse)
    assert b.command(WAKE).refusal()[0] == "gpu_held"
    b = asleep(gib=None)(in_use(2)).command(WAKE)
    assert b.record.state == "loading"


def test_from_its_wake_on_it_holds_all_that_it_was_given() -> None:
    b = woken()(in_use(2)).command(on_gpu(2, "GPU-0", gib=20))
    assert b.refusal()[0] == "gpu_held"
    assert shard_report(b.record).asleep is None


def test_unknown_devices_are_nothing_to_wake_on() -> None:
    b = asleep()(GpusSeen(None, error="driver not up")).command(WAKE)
    assert b.refusal()[0] == "devices_unknown"


# ---------------------------------------------------------------- to wake


def test_it_is_served_by_only_once_it_is_awake_and_made_a_token() -> None:
    b = woken()
    assert (b.record.state, b.record.nap) == ("loading", "waking")
    assert b.one(CallDoor).which == "wake"
    assert not b.of(Probe)
    answer(b, "wake", asleep=False)
    assert b.record.nap == "proving"
    assert b.one(Probe).token
    b.probe("failed", detail="HTTP 500")
    assert b.record.state == "loading"
    b.tick(1.0)
    assert b.one(Probe).token
    b.probe()
    assert (b.record.state, b.record.nap) == ("ready", "")
    b.tick(STEADY_S)
    assert not b.one(Probe).token, "a profile that asks for no token is asked for none again"


def test_a_model_without_tokens_proves_nothing_but_its_health() -> None:
    doors = Doors(level=1, asleep="/a", sleep=("/s",), wake=("/w",))
    b = Bench().command(on_gpu(1, "GPU-0", gib=10, sleep=doors)).spawned().tick(0.1).probe()
    b = answer(b.command(SLEEP), "sleep", asleep=True, rest_bytes=REST).command(WAKE)
    assert not answer(b, "wake", asleep=False).one(Probe).token


def test_a_probe_from_before_its_sleep_proves_nothing() -> None:
    b = woken().probe()
    assert (b.record.state, b.record.nap) == ("loading", "waking")
    answer(b, "sleep", asleep=True, rest_bytes=REST)
    assert b.record.rest_bytes is None, "nor does a late answer of another door"


@pytest.mark.parametrize("nap", ["waking", "proving", ""])
def test_a_wake_that_comes_again_changes_nothing(nap: str) -> None:
    b = woken()
    if nap != "waking":
        answer(b, "wake", asleep=False)
    if not nap:
        b.probe()
    before = b.record
    b.command(WAKE)
    assert b.record is before
    assert not b.of(Refuse)


@pytest.mark.parametrize("what", ["falling", "draining"])
def test_only_a_sleeper_is_woken(what: str) -> None:
    b = ready().command(SLEEP) if what == "falling" else ready().drain()
    b.command(WAKE)
    assert b.refusal()[0] == "not_asleep"


def test_one_that_does_not_wake_in_its_time_is_ended_and_started_again() -> None:
    b = woken()
    answer(b, "wake", asleep=True).tick(AGAIN_S)
    assert b.one(CallDoor).which == "wake"
    answer(b, "wake", asleep=None, detail="POST /wake_up: HTTP 500").tick(900.0)
    assert (b.record.state, b.record.ending) == ("pending", "restart")
    assert b.record.error == "it did not wake in its time: POST /wake_up: HTTP 500"


def test_one_that_wakes_and_makes_no_token_in_its_time_is_ended_too() -> None:
    """Also after a restart of the agent: nobody was sent to it, so it serves nobody."""
    b = answer(woken(), "wake", asleep=False).restarted(heard=True)
    b.identified(leader="same").probe("failed")
    b.tick(901.0)
    assert (b.record.state, b.record.ending) == ("pending", "restart")


def test_a_drain_while_it_wakes_is_not_undone_by_that() -> None:
    b = answer(woken().drain(), "wake", asleep=False).probe()
    assert b.record.state == "draining"
