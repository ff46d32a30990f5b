"""After an agent restart: every row of the table of core.supervise.reattach (F35-F49); nothing is signalled."""

from __future__ import annotations

from math import inf
from typing import Any

import pytest
from msgspec.structs import replace

from llmgw.core.supervise import unidentified
from llmgw.core.supervise.report import node_report
from llmgw.core.types.messages import Resources
from llmgw.core.types.node import (
    Identified,
    Identify,
    Look,
    Measure,
    Probe,
    Signal,
    Spawn,
    Tick,
    Told,
)
from llmgw.core.types.record import Record
from tests.core.agent_bench import C1, GIB, KEY, Bench, on_gpu, start

HERE: dict[str, Any] = {"leader": "same"}
MARKED: dict[str, Any] = {"pid": 4711, "start_ticks": 99}
TORN = Record(
    start=replace(start(), model="", command=()), partial=True, state="unknown", error="torn"
)


def again(b: Bench, **evidence: Any) -> Bench:
    """The agent is killed; the next process looks at what is there."""
    after = b.restarted()
    assert not after.state.reattached
    assert [r.key for r in unidentified(after.state)] == [KEY]
    assert not after.tick(1.0).effects
    assert after.due() == inf
    after.identified(**evidence)
    assert not after.of(Signal)
    assert not after.of(Spawn)
    return after


def test_a_container_that_somebody_started_again_has_another_process() -> None:
    """Found while it runs: the rest is as it was. A process that we started ourselves never changes its number."""
    b = Bench().ready(launcher="podman", image="a:1")
    assert b.record.state == "ready"
    b.identified(leader="same", pid=5000, start_ticks=7)
    assert (b.record.state, b.record.pid, b.record.start_ticks) == ("ready", 5000, 7)
    assert b.record.attempt == 1
    for nothing in ({"leader": "same", "pid": 5000}, {"leader": "absent"}, {"leader": "same"}):
        assert b.identified(**nothing).record.pid == 5000
    own = Bench().ready()
    assert own.identified(leader="same", pid=5000, start_ticks=7).record.pid == 4711


def test_ours_goes_on_where_it_was() -> None:
    """F35: same pid, same state; then it is probed like any, quickly until it answered once."""
    b = again(Bench().ready(), **HERE)
    assert b.state.reattached
    assert (b.record.state, b.record.pid, b.effects) == ("ready", 4711, ())
    assert b.tick().one(Probe).check
    assert b.probe("refused").due() == pytest.approx(0.25)
    b.tick(0.25).probe("refused").tick(0.25).probe("refused")
    assert b.record.state == "unhealthy"  # F46
    b.probe().probe().probe()
    assert b.record.state == "ready"


def test_f46_ours_while_it_loads_gets_its_whole_time_and_is_not_ended_for_what_nobody_saw() -> None:
    """It may have come up while no agent looked, and be too busy now to answer; control knows if it serves (F64)."""
    b = again(Bench().start(start_timeout_s=60.0).spawned(), **HERE)
    assert not b.tick(59.0).of(Signal)
    assert b.record.state == "starting"
    assert not b.tick(2.0).of(Signal)
    assert b.record.state == "unhealthy"
    assert "not ready after 60 s without progress" in str(b.record.error)
    assert b.probe().record.state == "ready"


def test_found_by_its_markers_when_the_agent_died_before_it_could_journal_the_pid() -> None:
    """F43: no second spawn."""
    b = again(Bench().start(), **MARKED)
    assert (b.record.state, b.record.pid, b.record.intent) == ("starting", 4711, False)
    assert b.record.endpoint == "http://127.0.0.1:18001"
    assert b.tick(0.1).probe().record.state == "ready"
    b = again(Bench().start().stop(), **MARKED)
    assert b.tick().one(Signal).name == "TERM"


def test_the_exec_failed_after_the_intent() -> None:
    """F44."""
    b = again(Bench().start())
    assert b.record.state == "failed"
    assert "no process has its markers" in str(b.record.error)
    assert node_report(b.state, for_register=True).shards[0].never_ran


def test_gone_while_the_agent_was_down_is_failed_unobserved_and_control_decides() -> None:
    """F37, F38: whoever has its pid now is left alone."""
    b = again(Bench().ready(), leader="other", detail="pid 4711 is another process's (nginx)")
    assert b.due() == inf
    assert (b.record.state, b.record.exit_code) == ("failed", None)
    assert "pid 4711 is another process's (nginx); nobody saw it exit" in str(b.record.error)
    b.session(C1, "s1", "L1")
    assert not b.tick(3600.0).of(Spawn)


def test_gone_holds_its_gpu_until_the_memory_is_back() -> None:
    b = again(Bench().command(on_gpu(1)).spawned().tick(0.1).probe())
    assert b.record.state == "stopping"
    assert b.of(Measure)
    assert b.due() == pytest.approx(0.25)
    b.memory(GIB).memory(0).memory(0).memory(0).memory(0)
    assert b.record.state == "failed"


def test_gone_after_a_drain_is_stopped() -> None:
    assert again(Bench().ready().drain()).record.state == "stopped"


def test_a_stop_goes_on_without_a_second_term() -> None:
    """F79: desired=stopped is on disk; the TERM is too."""
    b = again(Bench().ready().stop(), **HERE)
    assert not b.tick(19.0).of(Signal)
    assert b.tick(1.0).one(Signal).name == "KILL"
    b = again(Bench().ready().stop().tick(20.0), **HERE)  # the KILL was sent
    assert b.tick().one(Signal).name == "KILL"
    assert again(Bench().ready().stop()).record.state == "stopped"


def test_leftovers_of_a_dead_leader_are_ended_and_nothing_is_free_before() -> None:
    """F65 across an agent restart."""
    b = again(Bench().ready(), others=(4712,))
    assert b.record.state == "stopping"
    assert "pids 4712 of it are left" in str(b.record.error)
    assert b.tick().of(Look)
    assert b.tree(4712).one(Signal).name == "KILL"
    assert b.tree().record.state == "failed"
    b = again(Bench().start(), others=(4712,))
    assert b.tick().tree(4712).one(Signal).name == "KILL"
    b = again(Bench().ready().stop(), others=(4712,))
    assert b.record.state == "stopping"
    assert not b.tick().tree(4712).of(Signal)
    assert b.tick(20.0).one(Signal).name == "KILL"


def test_a_reboot_ends_all_whatever_the_pids_say() -> None:
    """F39, F40: same pid, same start tick, another boot."""
    for before, state in (
        (Bench().ready(), "failed"),
        (Bench().start(), "failed"),
        (Bench().ready().exited(1), "failed"),
        (Bench().ready().drain(), "stopped"),
        (Bench().ready().stop(), "stopped"),
        (Bench().command(on_gpu(1)).spawned(), "failed"),
    ):
        b = before.restarted()
        b.state = replace(b.state, facts=replace(b.state.facts, boot_id="boot-2"))
        b.identified(**HERE, **MARKED)
        assert b.record.state == state
        assert not b.of(Signal)


def test_unverifiable_is_held_unsignalled_and_asked_again() -> None:
    """F45: unverifiable is not dead."""
    b = again(Bench().ready(), error="/proc/4711/stat: permission denied")
    assert b.record.state == "unknown"
    assert "permission denied" in str(b.record.error)
    assert b.due() == pytest.approx(10.0)
    assert b.exited(1).record.state == "unknown"
    assert b.tick(10.0).one(Identify).record.key == KEY
    assert not b.tick(60.0).effects
    b.identified(doubtful=(4712,))
    assert "pids 4712 may belong to it" in str(b.record.error)
    b.tick(10.0).identified(**HERE)
    assert b.record.state == "starting"
    assert b.tick().probe().record.state == "ready"
    b.identified(error="late")
    assert b.record.state == "ready"


@pytest.mark.parametrize("order", ["stop", "drain"])
def test_an_order_meets_an_unknown_shard(order: str) -> None:
    b = again(Bench().ready(), error="cannot look").session(C1, "s1", "L1")
    getattr(b, order)()
    assert b.record.state == "unknown"
    assert bool(b.of(Identify)) is (order == "stop")
    b.tick(10.0).identified(**HERE).tick()
    assert [e.name for e in b.of(Signal)] == (["TERM"] if order == "stop" else [])
    b = again(Bench().ready(), error="cannot look").session(C1, "s1", "L1")
    getattr(b, order)()
    b.tick(10.0).identified()
    assert b.record.state == "stopped"


@pytest.mark.parametrize("order", ["stop", "drain"])
def test_an_order_meets_an_unknown_tear_down(order: str) -> None:
    """It was to be restarted; now it is not."""
    b = again(Bench().ready().exited(1), error="cannot look").session(C1, "s1", "L1")
    assert (b.record.state, b.record.ending) == ("unknown", "restart")
    getattr(b, order)()
    b.tick(10.0).identified(others=(4712,))
    assert b.record.state == "stopping"
    b.tick().tree()
    assert b.record.state == "stopped"
    b = again(Bench().ready().stop(), error="cannot look").session(C1, "s1", "L1")
    getattr(b, order)()
    b.tick(10.0).identified(**HERE)
    assert (b.record.state, b.record.signalled) == ("stopping", "stop")


def test_dead_engines_wait_until_a_leader_is_heard() -> None:
    """F36: after its own restart the agent restarts nothing before that."""
    b = again(Bench().ready(), **HERE)
    b.tick().probe().gone(1)
    assert b.record.state == "pending"
    assert not b.tick(3600.0).of(Spawn)
    b.session("http://standby", "s9", "L9", leader=False)
    assert not b.of(Spawn)
    assert b.session(C1, "s1", "L1").one(Spawn).record.attempt == 2


def test_a_waiting_restart_survives_the_agent() -> None:
    b = Bench().ready().gone(1).spawned().gone(1)
    assert (b.record.state, b.record.pid) == ("pending", None)
    b = again(b)
    assert b.record.state == "pending"
    b.tick(60.0)
    assert b.session(C1, "s1", "L1").one(Spawn).record.attempt == 3
    b = again(Bench().ready().exited(1))  # between its death and the look at its tree
    assert b.record.state == "pending"
    assert b.session(C1, "s1", "L1").one(Spawn).record.attempt == 2


def test_an_unreadable_record_is_held_until_it_is_found_or_stopped() -> None:
    """F42, A39: unreadable is not absent."""
    b = Bench(TORN, heard=False).identified()
    assert b.state.reattached
    assert (b.record.state, b.record.error) == ("unknown", "torn")
    b.session(C1, "s1", "L1")
    assert b.forget().refusal()[0] == "still_running"
    b.stop()
    assert b.of(Identify)
    assert b.identified().record.state == "stopped"


def test_the_rest_of_an_unreadable_record_holds_for_a_minute_what_nobody_knows() -> None:
    """Which GPUs it had is not known, so no measurement says that they are free."""
    b = Bench(TORN, heard=False).identified(others=(4712,))
    b.tick().tree(4712).tick(0.1).tree()
    assert b.of(Measure)
    for _ in range(5):
        b.memory(0)
    assert b.record.state == "stopping"
    assert b.memory(0, after_s=60.0).record.state == "failed"
    b = Bench(TORN, heard=False).identified(others=(4712,), rebuilt=replace(start(), command=()))
    assert b.tick().tree(4712).tick(0.1).tree().record.state == "failed"


def test_an_unreadable_record_whose_process_carries_its_markers_is_taken_up_again() -> None:
    b = Bench(TORN, heard=False).identified(rebuilt=replace(start(), command=()), **MARKED)
    assert (b.record.state, b.record.pid, b.record.error) == ("starting", 4711, None)
    assert b.record.start.model == "alpha"
    assert b.tick().probe().record.state == "ready"
    b.session(C1, "s1", "L1").gone(1)  # how it was started is not known
    assert (b.record.state, b.record.error) == ("failed", "exited with code 1")


WHOLE = Told(whole=True, attempt=3, started_at="T9", artefact="/m/a.gguf", api_key="k9")


def test_markers_that_tell_the_whole_order_make_it_a_record_like_any_other() -> None:
    """F42, A20, A21, design.md 3: reported whole, and started again in place, once a leader was heard (F36)."""
    b = Bench(TORN, heard=False).identified(rebuilt=on_gpu(1, gib=10), told=WHOLE, **MARKED)
    told = node_report(b.state, for_register=True).shards[0]
    assert (told.world_size, told.resources) == (1, Resources(gpu_memory_bytes=10 * GIB))
    assert (told.attempt, told.started_at, told.artefact) == (3, "T9", "/m/a.gguf")
    assert (told.api_key, told.pool, told.state, told.error) == ("k9", "default", "starting", None)
    assert not b.record.partial
    b.tick().probe().gone(1).memory(0).memory(0).memory(0).memory(0)
    assert (b.record.state, b.record.started_at) == ("pending", "T9")
    assert b.session(C1, "s1", "L1").one(Spawn).record.attempt == 4
    b = Bench(TORN, heard=False).identified(rebuilt=start(), told=WHOLE, error="cannot look")
    assert b.record.error == "cannot be verified, so held: cannot look"


def test_an_image_without_a_command_is_started_again() -> None:
    """Its entrypoint is the whole command; what did not fit into a marker has no image either."""
    boxed = replace(start(), launcher="podman", image="a:1", command=())
    b = Bench(TORN, heard=False).identified(rebuilt=boxed, told=WHOLE, **MARKED)
    b.tick().probe().gone(1).session(C1, "s1", "L1")
    assert b.record.state == "pending"
    assert b.record.intent


def test_an_order_whose_command_did_not_fit_is_whole_and_not_started_again() -> None:
    b = Bench(TORN, heard=False)
    b.identified(rebuilt=replace(start(), command=()), told=WHOLE, **MARKED)
    assert node_report(b.state, for_register=True).shards[0].world_size == 1
    b.session(C1, "s1", "L1").tick().probe().gone(1)
    assert (b.record.state, b.record.gave_up) == ("failed", False)


def test_what_ended_needs_no_look() -> None:
    b = Bench().ready().stop().gone().restarted()
    assert b.state.reattached
    assert b(Identified(key=KEY, leader="same")).record.state == "stopped"
    assert b(Tick()).effects == ()
