"""The agent's side of sleep over kills at any step of it, and with the record lost: nothing is forgotten or doubled."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from llmgw.core.supervise.report import shard_report
from llmgw.core.supervise.sleep import AGAIN_S
from llmgw.core.types.node import (
    CallDoor,
    Changed,
    DoorAnswered,
    Measure,
    Probe,
    Signal,
    Told,
    WriteRecord,
)
from llmgw.core.types.record import Record
from llmgw.core.types.sleep import Asleep
from tests.core.agent_bench import GPU0, KEY, Bench, on_gpu
from tests.core.test_supervise_sleep import (
    DOORS,
    FREED,
    REST,
    SLEEP,
    WAKE,
    answer,
    asleep,
    in_use,
    ready,
    woken,
)

# ---------------------------------------------------------------- killed at any moment


def test_killed_while_it_fell_asleep_the_door_is_called_again() -> None:
    b = ready().command(SLEEP).restarted()
    b.identified(leader="same")
    assert (b.record.state, b.record.nap) == ("asleep", "falling")
    b.tick()
    assert b.one(CallDoor).which == "sleep"


def test_killed_while_it_slept_it_is_asked_and_not_called() -> None:
    b = asleep().restarted()
    b.identified(leader="same").tick()
    assert b.one(CallDoor).which == "ask"
    assert b.record.rest_bytes == REST
    answer(b, "ask", asleep=None, detail="no answer").tick(3600.0)
    assert b.one(CallDoor).which == "ask", "silence is no failure of a sleeper"
    answer(b, "ask", asleep=True).tick(3600.0)
    assert not b.effects
    assert b.record.state == "asleep"
    assert not b.of(Signal)


def test_a_sleeper_that_somebody_else_woke_holds_all_again_and_proves_itself() -> None:
    b = asleep().restarted()
    b.identified(leader="same").tick()
    answer(b, "ask", asleep=False)
    assert (b.record.state, b.record.nap, b.record.rest_bytes) == ("loading", "proving", None)
    assert b.one(Probe).token


@pytest.mark.parametrize(("step", "which"), [("waking", "wake"), ("proving", "")])
def test_killed_while_it_woke_it_goes_on_waking(step: str, which: str) -> None:
    b = woken()
    if step == "proving":
        answer(b, "wake", asleep=False)
    b = b.restarted()
    b.identified(leader="same").tick()
    assert b.record.state == "loading"
    if which:
        assert b.one(CallDoor).which == which
        assert not b.of(Probe)
    else:
        assert [p.token for p in b.log if isinstance(p, Probe)] == [True]


def test_a_sleeper_that_could_not_be_looked_at_still_sleeps_once_it_can() -> None:
    b = asleep().restarted()
    b.identified(error="/proc cannot be read")
    assert b.record.state == "unknown"
    assert shard_report(b.record).asleep is not None
    b.identified(leader="same").tick()
    assert b.record.state == "asleep"
    assert not [e for e in b.log if isinstance(e, Probe)]


def test_a_sleeper_that_is_gone_when_the_agent_comes_back_has_failed() -> None:
    b = asleep().restarted()
    b.identified(leader="absent")
    b.one(Measure)  # its memory is verified like any other's
    assert b.record.ending == "failed"


def test_the_journal_has_every_step_before_it_is_taken() -> None:
    b = ready()
    steps: list[str] = []
    b.command(SLEEP)
    answer(b, "sleep", asleep=True, rest_bytes=REST, freed_bytes=FREED)
    b.command(WAKE)
    answer(b, "wake", asleep=False)
    b.probe()
    for effect in b.log:
        if isinstance(effect, WriteRecord):
            steps.append(effect.record.nap)
        if isinstance(effect, CallDoor):
            steps.append(effect.which)
    assert steps[3:] == ["falling", "sleep", "asleep", "waking", "wake", "proving", ""]


def test_a_telling_of_a_sleeper_is_a_change() -> None:
    b = ready().command(SLEEP)
    assert b.one(Changed).keys == (KEY,)
    assert GPU0.uuid in b.record.start.gpus


def found(**desired: Any) -> Bench:
    """Without its record, by its markers."""
    order = on_gpu(1, "GPU-0", gib=10, sleep=DOORS)
    torn = replace(order, model="", sleep=None)
    b = Bench(Record(start=torn, state="unknown", partial=True, **desired))
    told = Told(attempt=1, started_at="T0", whole=True)
    return b.identified(pid=4711, start_ticks=99, rebuilt=order, told=told).tick()


@pytest.mark.parametrize("sleeps", [True, False])
def test_f42_found_by_its_markers_alone_it_is_asked_before_it_is_probed(
    sleeps: bool,
) -> None:
    """Its health check says 200 in its sleep too; who routed it then would have every request refused."""
    b = found()
    assert (b.record.state, shard_report(b.record).asleep) == ("starting", None)
    assert [e.which for e in b.log if isinstance(e, CallDoor)] == ["ask"]
    assert not [e for e in b.log if isinstance(e, Probe)]
    b.command(on_gpu(2, "GPU-0", gib=20))
    assert b.refusal()[0] == "gpu_held", "it may be awake, so it holds all"
    answer(b, "ask", asleep=sleeps, rest_bytes=REST if sleeps else None)
    if sleeps:
        assert shard_report(b.record).asleep == Asleep(verified=True, rest_bytes=REST)
        assert b.record.state == "asleep"
    else:
        b.one(Probe)
        assert b.probe().record.state == "ready"


def test_where_its_rest_cannot_be_measured_all_of_its_own_may_be_what_is_in_use() -> None:
    """And what others were given counts as ever."""
    b = answer(found(), "ask", asleep=True)(in_use(24)).command(WAKE)
    assert b.record.state == "loading"


@pytest.mark.parametrize("sleeps", [True, False])
def test_a65_a_drain_of_what_may_be_awake_waits_for_its_answer(
    sleeps: bool,
) -> None:
    b = found().drain()
    assert (b.record.state, b.record.desired) == ("starting", "draining")
    assert not b.of(Signal)
    answer(b, "ask", asleep=sleeps)
    if sleeps:
        assert b.record.ending == "stopped"
    else:
        assert b.probe().record.state == "draining"


def test_what_may_be_awake_and_says_nothing_is_left_to_its_probes() -> None:
    b = found()
    answer(b, "ask", asleep=None, detail="no answer")
    assert b.due() == AGAIN_S
    b.tick(901.0)
    assert (b.record.state, b.record.nap) == ("unhealthy", "")


def test_one_that_dies_before_it_could_answer_is_not_started_again_here() -> None:
    """It may have slept, and what it gave back be another's."""
    assert found().exited(-9).record.ending == "failed"


def test_f37_an_answer_for_another_attempt_is_none() -> None:
    b = ready().command(SLEEP)
    b(DoorAnswered(key=KEY, attempt=7, which="sleep", asleep=True))
    assert b.record.nap == "falling"
