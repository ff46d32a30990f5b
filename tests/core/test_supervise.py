"""The agent's decisions, one rule at a time: commands, stop, drain. The other test_supervise_* hold the rest."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from llmgw.core.supervise.report import node_report
from llmgw.core.types.messages import Foreign, Resources, Token
from llmgw.core.types.node import (
    DeleteRecord,
    GpusSeen,
    Look,
    Measure,
    Register,
    Renewed,
    Session,
    SessionLost,
    SessionOpened,
    Signal,
    Spawn,
    StoreToken,
    TreeSeen,
    WriteRecord,
)
from tests.core.agent_bench import C1, C2, FACTS, GIB, GPU0, GPU1, KEY, Bench, on_gpu, start

# ---------------------------------------------------------------- commands


def test_start_journals_the_intent_then_spawns() -> None:
    b = Bench().start()
    assert b.kinds() == ["WriteRecord", "Spawn", "Changed"]
    written, spawn = b.one(WriteRecord).record, b.one(Spawn).record
    assert written.intent
    assert (written.state, written.attempt) == ("pending", 1)
    assert spawn == written
    b.spawned()
    assert b.kinds() == ["WriteRecord", "Changed"]
    assert (b.record.state, b.record.pid, b.record.intent) == ("starting", 4711, False)
    assert b.record.endpoint == "http://127.0.0.1:18001"
    assert b.record.started_at == "T0"


def test_a_repeated_start_spawns_nothing_and_is_answered() -> None:
    b = Bench().start().spawned()
    assert b.start().kinds() == ["Changed"]
    reason, _, why = b.start(attempt=2).refusal()
    assert reason == "attempt_held"
    assert "at 1" in why


def test_a_key_is_made_where_none_comes() -> None:
    b = Bench().command(start(), fresh_key="k1")
    assert b.record.api_key == "k1"
    assert Bench().command(start(api_key="theirs"), fresh_key="k1").record.api_key == "theirs"


@pytest.mark.parametrize(
    ("changes", "reason", "word"),
    [
        ({"shard": "alpha-1/1"}, "bad_name", "rank 0"),
        ({"profile": "x" * 64}, "bad_name", "no name"),
        ({"health": ""}, "bad_command", "no path to ask for its health"),
        ({"launcher": "k8s"}, "not_built", "k8s"),
        ({"launcher": "podman"}, "bad_command", "the image ''"),
        ({"image": "a:1"}, "bad_command", "launcher exec and the image 'a:1'"),
        ({"launcher": "docker", "image": "--privileged"}, "bad_command", "'--privileged'"),
        ({"mounts": ("/a:/b",)}, "bad_command", "has mounts ['/a:/b']"),
        (
            {"launcher": "docker", "image": "a:1", "mounts": ("/a",)},
            "bad_command",
            "has mounts ['/a']",
        ),
        ({"command": ()}, "bad_command", "without a command"),
        ({"gpus": ("GPU-9",)}, "no_such_gpu", "GPU-9"),
    ],
)
def test_an_impossible_start_is_refused(changes: Any, reason: str, word: str) -> None:
    b = Bench().start(**changes)
    said, _, why = b.refusal()
    assert (said, word in why) == (reason, True), why
    assert not b.state.records
    assert not b.of(Spawn)


def test_a_start_is_refused_what_another_holds_and_both_are_named() -> None:
    """A3: an allocation conflict names the holder, its pid and since when, and the newcomer."""
    b = Bench().command(on_gpu(1, gib=18)).spawned()
    reason, resource, why = b.command(on_gpu(2, gib=10)).refusal()
    assert (reason, resource) == ("gpu_held", "gpu GPU-0")
    assert "alpha-1/0 (inc-1, pid 4711, since T0, starting)" in why
    assert "alpha-2/0" in why
    assert b.command(on_gpu(2)).refusal()[0] == "gpu_held"  # whole, and it is shared
    assert b.command(on_gpu(2, gib=6)).of(Spawn)  # room for both
    b = Bench().command(on_gpu(1)).spawned()
    assert "held whole" in b.command(on_gpu(2, gib=1)).refusal()[2]
    reason, resource, why = b.start(3, port=18001).refusal()
    assert (reason, resource) == ("port_held", "port 18001")
    assert "alpha-1/0" in why
    reason, _, why = b.start(1, incarnation="inc-9").refusal()
    assert reason == "shard_held"
    assert "inc-1" in why
    assert "inc-9" in why


def test_a_start_is_refused_what_strangers_use() -> None:
    """A70, F74: what is seen in use counts, whoever uses it; nobody is signalled."""
    b = Bench()
    stranger = Foreign(pid=42, gpu="GPU-1", memory_bytes=20 * GIB, command="llama-server")
    b(GpusSeen((GPU0, GPU1), (stranger,)))
    reason, resource, why = b.command(on_gpu(1, "GPU-1", gib=8)).refusal()
    assert (reason, resource) == ("gpu_held", "gpu GPU-1")
    assert "pid 42 (llama-server) holds 20.0 GiB" in why
    b(GpusSeen((replace(GPU0, healthy=False),)))
    assert "not healthy" in b.command(on_gpu(1)).refusal()[2]
    b(GpusSeen(None))
    assert b.command(on_gpu(1)).refusal()[0] == "devices_unknown"
    b.command(start(), ports_busy={18001: "pid 7 (nginx)"})
    reason, resource, why = b.refusal()
    assert (reason, resource) == ("port_in_use", "port 18001")
    assert "pid 7 (nginx)" in why


def test_host_memory_is_counted() -> None:
    b = Bench().start(1, resources=Resources(host_memory_bytes=60 * GIB))
    reason, _, why = b.start(2, resources=Resources(host_memory_bytes=5 * GIB)).refusal()
    assert reason == "host_memory"
    assert "4.0 of 64.0 GiB" in why
    b.state = replace(
        b.state, facts=replace(FACTS, capacity=replace(FACTS.capacity, host_memory_bytes=None))
    )
    assert b.start(2, resources=Resources(host_memory_bytes=5 * GIB)).of(Spawn)


def test_another_certificate_of_its_api_is_in_the_next_report() -> None:
    """Else who asks this agent by the hash of the one before is refused for the rest of its life."""
    b = Bench().start(epoch=5)
    b(Renewed("sha256:new"))
    assert b.effects == ()
    assert node_report(b.state, for_register=True).inspect_pin == "sha256:new"


def test_the_fence() -> None:
    """F21, F57: lower epoch, equal epoch of another leader, another session; a higher epoch is stored first."""
    b = Bench().start(epoch=5)
    assert b.one(StoreToken).token == Token(5, "L1")
    assert b.report(epoch=4).refusal()[0] == "lower_epoch"
    assert b.report(epoch=5, leader_uuid="L2").refusal()[0] == "other_leader"
    assert b.report(epoch=9, session="s0").refusal()[0] == "other_session"
    b.report(epoch=6, leader_uuid="L2")
    assert [type(e) for e in b.effects] == [StoreToken, Register]
    assert b.report(epoch=6, leader_uuid="L2").effects == (Register(C1),)
    b(SessionLost(C1))
    reason, _, why = b.report(epoch=6, leader_uuid="L2").refusal()
    assert reason == "other_session"
    assert "none" in why


def test_f16_the_epoch_of_a_leader_that_let_us_register_is_kept_at_once() -> None:
    b = Bench(heard=False)
    assert b.session(C1, "s0", "L1", leader=False).of(StoreToken) == []
    assert b.session(C1, "s0", "L1").of(StoreToken) == []
    assert b.report(session="s0", epoch=1).one(StoreToken).token == Token(1, "L1")
    b = Bench(heard=False)
    assert b.session(C1, "s1", "L1").one(StoreToken).token == Token(1, "L1")
    assert b.session(C1, "s2", "L1").of(StoreToken) == []
    newer = Session(session="s3", leader_uuid="L3", epoch=7, lease="file")
    assert b(SessionOpened(control=C1, session=newer)).one(StoreToken).token == Token(7, "L3")
    rival = Session(session="s4", leader_uuid="L4", epoch=9, lease="file")
    assert b(SessionOpened(control=C2, session=rival)).of(StoreToken) == []


def test_two_file_leases_the_one_obeyed_first_is_obeyed() -> None:
    b = Bench(heard=False)
    b.session(C1, "s1", "L1", lease="file").session(C2, "s2", "L2", lease="file")
    b.report()
    b.command(start(session="s2", epoch=9, leader_uuid="L2"), C2)
    reason, _, why = b.refusal()
    assert reason == "two_leaders"
    assert C1 in why
    assert "etcd" in why
    b(SessionLost(C1))
    assert b.command(start(session="s2", epoch=9, leader_uuid="L2"), C2).of(Spawn)


def test_with_a_shared_lease_the_higher_epoch_is_obeyed() -> None:
    b = Bench(heard=False)
    b.session(C1, "s1", "L1", lease="etcd").session(C2, "s2", "L2", lease="etcd")
    b.report()
    assert b.command(start(session="s2", epoch=2, leader_uuid="L2"), C2).of(Spawn)
    assert b.report(epoch=1).refusal()[0] == "lower_epoch"


def test_forget_deletes_what_has_ended_only() -> None:
    b = Bench().ready()
    assert b.forget().refusal()[0] == "still_running"
    assert b.forget("inc-9").refusal()[0] == "other_incarnation"
    assert b.forget("../../x").refusal()[0] == "bad_name"  # names become paths
    b.stop().gone()
    assert b.record.state == "stopped"
    assert b.forget().effects == (DeleteRecord(KEY),)
    assert not b.state.records
    assert b.forget().effects == (DeleteRecord(KEY),)  # the answer was lost: said again
    assert b.stop().effects == (DeleteRecord(KEY),)


# ---------------------------------------------------------------- stop and drain


def test_stop_is_one_term_grace_kill_all_of_it_seen_gone() -> None:
    b = Bench().ready()
    b.stop()
    assert b.kinds() == ["WriteRecord", "Signal", "Look", "Changed"]
    assert b.one(WriteRecord).record.signalled == "stop"
    assert b.one(Signal).name == "TERM"
    assert b.record.state == "stopping"
    assert b.due() == pytest.approx(0.25)
    b.tree(4711, 4712).stop().tick(1.0)
    assert not b.of(Signal)
    b.exited(0)
    assert b.of(Look)
    b.tree(4712)  # a child is left: it has its grace
    assert not b.of(Signal)
    b.tick(20.0)
    assert b.one(Signal).name == "KILL"
    b.tree(4712).tick(10.0)
    assert b.one(Signal).name == "KILL"
    assert "stuck: pids 4712 are still there" in str(b.record.error)
    b.tree()
    assert (b.record.state, b.record.pid) == ("stopped", None)
    assert b.stop().kinds() == ["Changed"]
    assert [e.name for e in b.log if isinstance(e, Signal)] == ["TERM", "KILL", "KILL"]


def test_an_end_that_was_looked_at_as_it_came_needs_no_further_look() -> None:
    """P9: who waits for its room waits for one look at all processes, not for two."""
    b = Bench().ready().stop()
    b.exited(0, seen=TreeSeen(key=KEY, attempt=1))
    assert not b.of(Look)
    assert (b.record.state, b.record.exit_code) == ("stopped", 0)
    b = Bench().ready().stop()
    b.exited(0, seen=TreeSeen(key=KEY, attempt=1, alive=(4712,)))
    assert b.of(Look)
    assert (b.record.state, b.record.watch.left) == ("stopping", (4712,))
    b = Bench().ready().exited(1, seen=TreeSeen(key=KEY, attempt=1))
    assert b.of(Look)  # by itself it ended before anybody thought of its tree


def test_a_second_stop_may_shorten_the_grace() -> None:
    b = Bench().ready().stop()
    assert b.stop(grace_s=0.0).one(Signal).name == "KILL"
    assert not b.stop(grace_s=0.0).of(Signal)


def test_doubtful_processes_hold_and_are_not_counted_as_gone() -> None:
    b = Bench().ready().stop().exited(0)
    b.tree(doubtful=(4800,))
    assert b.record.state == "stopping"
    assert "pids 4800" in str(b.record.error)
    assert b.tree().record.state == "stopped"


def test_memory_must_be_back_before_the_gpu_is_free() -> None:
    """F68, A43: the tree is gone, NVML still shows it or still falls; then k steady samples."""
    b = Bench().command(on_gpu(1, gib=10)).spawned().tick(0.1).probe()
    b.stop().tree(4711).exited(0).tree()
    assert b.of(Measure)
    assert b.due() == pytest.approx(0.25)
    b.memory(9 * GIB, 4711).memory(9 * GIB, 4711).memory(5 * GIB).memory(1 * GIB)
    assert b.record.state == "stopping"
    assert b.tick(0.5).of(Measure)
    b.memory(1 * GIB).memory(1 * GIB)
    assert b.command(on_gpu(2, gib=20)).refusal()[0] == "gpu_held"
    b.memory(1 * GIB)
    assert b.record.state == "stopped"
    b.memory(1 * GIB)
    assert b.command(on_gpu(2, gib=20)).of(Spawn)


def test_where_nobody_can_measure_a_minute_passes() -> None:
    b = Bench().command(on_gpu(1)).spawned().tick(0.1).probe().stop().gone()
    b.memory(None, after_s=59.0)
    assert b.record.state == "stopping"
    assert b.memory(None, after_s=1.5).record.state == "stopped"


def test_drain_keeps_serving_and_never_comes_back() -> None:
    """A65: no probe, no repeat and no exit makes a draining shard run again."""
    b = Bench().ready().drain()
    assert (b.record.state, b.record.desired) == ("draining", "draining")
    assert b.one(WriteRecord).record.desired == "draining"
    assert b.drain().kinds() == ["Changed"]
    b.tick(2.0).probe("failed").tick(2.0).probe()
    assert b.record.state == "draining"
    b.gone(1)
    assert (b.record.state, b.record.error) == ("stopped", "exited with code 1")
    assert b.drain().kinds() == ["Changed"]


def test_drain_before_it_is_ready() -> None:
    b = Bench().start().spawned().drain()
    assert b.record.state == "starting"
    assert b.probe().record.state == "draining"
    b = Bench().start().drain()
    assert (b.record.state, b.record.intent) == ("pending", True)
    b.spawned()
    assert b.record.state == "stopping"
    assert b.one(Signal).name == "TERM"


def test_stop_while_the_spawn_is_under_way() -> None:
    b = Bench().start().stop()
    assert not b.of(Signal)
    assert b.spawned().one(Signal).name == "TERM"
    b = Bench().start().stop().spawn_failed("no such binary", fatal=True)
    assert b.record.state == "stopped"


@pytest.mark.parametrize("order", ["stop", "drain"])
def test_no_next_attempt_after_stop_or_drain(order: str) -> None:
    b = Bench().ready().gone(1)  # attempt 2 is being spawned
    b.spawned().gone(1)  # attempt 3 waits for its back-off
    assert (b.record.state, b.record.attempt, b.record.intent) == ("pending", 2, False)
    getattr(b, order)()
    assert b.record.state == "stopped"
    b = Bench().ready().exited(1)  # the tree is not seen gone yet
    assert (b.record.state, b.record.ending) == ("pending", "restart")
    getattr(b, order)()
    assert b.record.state == "stopping"
    assert b.tree().record.state == "stopped"
    assert not b.tick(3600.0).of(Spawn)
