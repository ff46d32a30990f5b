"""The agent's decisions about one engine: its attempts, its health, its words. Commands: test_supervise.py."""

from __future__ import annotations

from math import inf

import pytest
from msgspec.structs import replace

from llmgw.core.supervise import next_due
from llmgw.core.supervise.report import node_report
from llmgw.core.supervise.restarts import duration, exit_words
from llmgw.core.supervise.table import TABLE, ImpossibleTransitionError, move
from llmgw.core.types.catalog import Ready, Restart
from llmgw.core.types.messages import SHARD_STATES, Compute, Resources
from llmgw.core.types.node import (
    Event,
    Exited,
    GpusSeen,
    Identified,
    MemorySeen,
    Probe,
    Probed,
    SessionLost,
    Signal,
    Spawn,
    Spawned,
    SpawnFailed,
    TreeSeen,
    WriteRecord,
)
from llmgw.core.types.record import Record
from tests.core.agent_bench import C1, GIB, GPU0, GPU1, KEY, Bench, on_gpu, start

# ---------------------------------------------------------------- attempts


def test_first_failure_restarts_at_once_then_back_off_then_gives_up() -> None:
    """A67, in the words an operator sees."""
    b = Bench().ready(restart=Restart(max=4, window_s=1800.0, backoff_s=5.0))
    b.exited(1, "out of memory")
    assert b.record.state == "pending"
    b.tree()
    assert b.one(Spawn).record.attempt == 2
    assert b.record.error == "exited with code 1: out of memory"
    for attempt, wait_s in ((2, 5.0), (3, 10.0)):
        b.spawned(pid=4711 + attempt).gone(-11)
        assert not b.of(Spawn)
        assert b.due() == pytest.approx(wait_s)
        assert not b.tick(wait_s - 0.1).of(Spawn)
        assert b.tick(0.1).one(Spawn).record.attempt == attempt + 1
    b.spawned().gone(-4)
    assert (b.record.state, b.record.gave_up) == ("failed", True)
    assert str(b.record.error).startswith("gave up after 4 in 30m: killed by signal 4 (SIGILL)")
    assert not b.tick(1e6).effects
    assert b.stop().kinds() == ["Changed"]


def test_a67_what_no_repeat_mends_is_tried_once_more_and_no_further() -> None:
    """An argument that its build does not know: 36 s and five starts went by before that was shown."""
    b = Bench().start().spawned().exited(1, "error: invalid argument: --x", lasting=True)
    assert b.record.error == "exited with code 1: error: invalid argument: --x"
    assert b.tree().one(Spawn).record.attempt == 2, "it may have been a fluke"
    b.spawned(pid=4712).exited(1, "error: invalid argument: --x", lasting=True).tree()
    assert (b.record.state, b.record.gave_up, b.record.attempt) == ("failed", True, 2)
    assert (
        b.record.error == "gave up after 2 in 30m: exited with code 1: error: invalid argument: --x"
    )
    assert b.journaled()[KEY].lasting == 2


@pytest.mark.parametrize("first", ["ready", "other", "spawn", "found", "sleeper"])
def test_a67_what_no_repeat_mends_is_no_end_of_what_was_up_or_had_another(first: str) -> None:
    """Its binary was swapped by an upgrade, say: the usual rule, however often it says so."""
    b = Bench()
    match first:
        case "ready":
            b.ready().exited(1, "x", lasting=True)
        case "other":
            b.start().spawned().exited(1, "x")
        case "spawn":
            b.start().spawn_failed("out of processes")
        case "found":
            b = b.start().spawned().restarted(heard=True)
            b.identified(leader="same", pid=4711, start_ticks=99).exited(1, "x", lasting=True)
        case _:
            b.start().spawned()
            b.state = replace(b.state, records={KEY: replace(b.record, nap="waking")})
            b.exited(1, "x", lasting=True)
    b.tree() if first != "spawn" else None
    for attempt, wait_s in ((2, 5.0), (3, 10.0), (4, 20.0)):
        assert b.record.attempt == attempt
        b.spawned(pid=4711 + attempt).exited(1, "x", lasting=True).tree()
        assert not b.tick(wait_s - 0.1).of(Spawn)
        assert b.tick(0.1).one(Spawn).record.attempt == attempt + 1
    b.spawned(pid=4800).exited(1, "x", lasting=True).tree()
    assert (b.record.state, b.record.gave_up) == ("failed", True)
    assert str(b.record.error).startswith("gave up after 5 in 30m")


def test_failures_outside_the_window_are_forgiven() -> None:
    b = Bench().ready(restart=Restart(max=2, window_s=60.0))
    for _ in range(5):
        b.gone(1).spawned().tick(61.0).probe()
    assert b.record.attempt == 6
    assert not b.record.gave_up


def test_no_restarts_wanted() -> None:
    b = Bench().ready(restart=Restart(max=0)).gone(1)
    assert (b.record.state, b.record.gave_up) == ("failed", False)


def test_a_start_that_never_comes_up_is_stopped_and_counts() -> None:
    b = Bench().start(start_timeout_s=60.0).spawned()
    b.probe("refused", detail="connection refused").tick(30.0).probe("loading", progress=0.1)
    assert b.record.state == "loading"
    b.tick(50.0).probe("loading", progress=0.5)  # progress moves the deadline
    assert b.tick(50.0).probe("loading", progress=0.5).record.state == "loading"
    assert b.state.records[KEY].watch.progress == 0.5
    b.tick(11.0)
    assert b.one(Signal).name == "TERM"
    assert b.record.watch.progress is None
    assert b.record.state == "pending"
    assert "not ready after 60 s without progress; last probe: loading" in str(b.record.error)
    b.gone(0)
    assert b.one(Spawn).record.attempt == 2
    assert len(b.record.failures) == 1


def test_a_quick_loader_without_figures() -> None:
    b = Bench().start().spawned().probe("loading").probe("loading")
    assert b.record.state == "loading"
    assert b.probe(compute=Compute(layers_gpu=3)).record.compute == Compute(layers_gpu=3)


def test_that_it_loads_is_told_and_not_journaled() -> None:
    """A write is a wait between a client and its first token (P9); another agent's first probe tells it again."""
    b = Bench().start().spawned()
    assert b.of(WriteRecord)
    b.probe("loading")
    assert (b.of(WriteRecord), b.changed()) == ([], (KEY,))
    again = b.restarted().identified(leader="same", pid=4711, start_ticks=99)
    assert again.record.state == "starting"
    assert again.tick(0.01).probe("loading").record.state == "loading"
    assert b.probe().one(WriteRecord).record.state == "ready"


def test_a_spawn_that_fails() -> None:
    b = Bench().start().spawn_failed("engine binary /x not found on box1", fatal=True)
    assert (b.record.state, b.record.error) == ("failed", "engine binary /x not found on box1")
    b = Bench().start().spawn_failed("out of processes")
    assert b.one(Spawn).record.attempt == 2


def test_what_is_left_of_a_dead_engine_is_killed_before_the_next_start() -> None:
    """F65: the API process dies, its worker still holds the memory."""
    b = Bench().ready().exited(-9)
    assert not b.of(Signal)
    b.tree(4712)
    assert b.one(Signal).name == "KILL"
    assert not b.of(Spawn)
    b.tick(0.05)
    assert b.tree().one(Spawn).record.attempt == 2


def test_late_answers_are_ignored() -> None:
    """Answers about attempt 1, and about nobody, while attempt 2 is ready."""
    b = Bench().ready().gone(1).spawned(pid=4712).tick(0.1).probe()
    before = b.record
    late: list[Event] = [
        Spawned(key=KEY, attempt=1, pid=1, start_ticks=1),
        SpawnFailed(key=KEY, attempt=1, error="late"),
        Exited(key=KEY, attempt=1, code=1),
        Probed(key=KEY, attempt=1, outcome="refused"),
        TreeSeen(key=KEY, attempt=1),
        TreeSeen(key=KEY, attempt=2),
        MemorySeen(key=KEY, attempt=2, used_bytes=0),
        Identified(key=KEY),
        Exited(key=("beta-1/0", "x"), attempt=1),
    ]
    for event in late:
        assert b(event).record == before
        assert not b.effects
    b.exited(1).exited(2)
    assert b.record.exit_code == 1
    b.probe("refused")
    assert b.record.state == "pending"


# ---------------------------------------------------------------- health


def test_k_of_n_probes_make_it_unhealthy_never_one() -> None:
    b = Bench().ready(ready=Ready(failures=3, of=5))
    for outcome, state in (
        ("failed", "ready"),
        ("ok", "ready"),
        ("refused", "ready"),
        ("loading", "unhealthy"),
        ("failed", "unhealthy"),
        ("ok", "unhealthy"),
        ("ok", "unhealthy"),
        ("ok", "ready"),
    ):
        assert b.tick(2.0).one(Probe).check is False
        b.probe(outcome, detail=f"it said {outcome}")
        assert b.record.state == state
        if outcome == "loading":
            assert b.record.error == "3 of the last 5 health probes failed: it said loading"
            assert b.changed() == (KEY,)
    assert b.record.error is None
    assert b.drain().record.state == "draining"


def test_quick_probes_first_then_steady_ones() -> None:
    b = Bench().start().spawned()
    assert b.due() == pytest.approx(0.005)
    assert not b.tick().of(Probe)
    assert b.tick(0.005).one(Probe).check is True
    assert b.due() == pytest.approx(900.0 - 0.005)  # one at a time
    assert b.probe("refused").due() == pytest.approx(0.002)
    assert b.tick(1.995).probe("refused").due() == pytest.approx(0.06)
    assert b.tick(98.0).probe("refused").due() == pytest.approx(0.25)
    assert b.tick(0.25).probe().due() == pytest.approx(
        1.75
    )  # at 102 s, with all others of its node
    assert b.tick(1.75).probe().due() == pytest.approx(2.0)


def test_an_answer_from_a_strangers_listener_stops_the_newcomer() -> None:
    """A45, F70: SO_REUSEPORT lets two share a port; a restart cannot help."""
    b = Bench().start().spawned().probe(owner="other", detail="pid 77 (python)")
    assert b.one(Signal).name == "TERM"
    assert b.gone().record.state == "failed"
    assert b.record.error == "port 18001 answers, but it is not ours: pid 77 (python)"
    b = Bench().ready()
    b.state = replace(
        b.state, records={KEY: replace(b.record, watch=replace(b.record.watch, owned=False))}
    )
    for _ in range(3):
        assert b.tick(2.0).one(Probe).check is True
        b.probe(owner="other", detail="pid 77")
    assert b.record.state == "unhealthy"


def test_a_lost_gpu_fails_only_what_is_on_it_and_only_after_a_probe() -> None:
    """F72; F59: unknown devices fail nobody."""
    b = Bench().command(on_gpu(1)).spawned().tick(0.1).probe()
    b(GpusSeen(None)).tick(2.0).probe("failed")
    assert b.record.state == "ready"
    b(GpusSeen((replace(GPU0, healthy=False, lost=True), GPU1)))
    assert b.record.state == "ready"
    b.tick(2.0).probe()
    assert b.record.state == "ready"
    b.tick(2.0).probe("failed", detail="no answer")
    assert (b.record.state, b.record.ending) == ("stopping", "failed")
    assert b.record.error == "GPU GPU-0 is lost (fell off the bus?): no answer"


def test_f72_a_gpu_that_is_only_not_for_new_work_ends_nobody_at_one_probe() -> None:
    """Memory errors: what runs there is judged by k of n probes, as everywhere."""
    b = Bench().command(on_gpu(1)).spawned().tick(0.1).probe()
    b(GpusSeen((replace(GPU0, healthy=False, trouble="1 memory error"), GPU1)))
    b.tick(2.0).probe("failed")
    assert (b.record.state, b.record.ending) == ("ready", "")
    b(GpusSeen((GPU1,))).tick(2.0).probe("failed")  # gone altogether
    assert b.record.ending == "failed"


def test_f72_what_died_with_its_gpu_is_not_started_again_there() -> None:
    """The engine would not see its GPU and come up on the CPU, healthy and slow."""
    b = Bench().command(on_gpu(1)).spawned().tick(0.1).probe().gone(-6)
    assert (b.record.state, b.record.ending) == ("pending", "restart")
    b(GpusSeen((replace(GPU0, healthy=False, lost=True), GPU1)))
    for _ in range(4):
        b.memory(0)
    assert b.tick().record.state == "failed"
    assert (b.record.state, b.of(Spawn)) == ("failed", [])
    assert "not started again, GPU GPU-0 is lost (fell off the bus?); before: " in str(
        b.record.error
    )
    assert len([e for e in b.log if isinstance(e, Spawn)]) == 1


# ---------------------------------------------------------------- words and tables


def test_the_table_is_closed() -> None:
    assert set(TABLE) == set(SHARD_STATES)
    assert {to for causes in TABLE.values() for to in causes.values()} <= set(SHARD_STATES)


def test_an_impossible_transition_tells_the_story() -> None:
    b = Bench().ready().stop().gone()
    with pytest.raises(ImpossibleTransitionError) as raised:
        move(b.record, "answers", "never", b.now)
    assert "alpha-1/0 (inc-1) cannot go from stopped by answers" in str(raised.value)
    assert "starting -answers-> ready: its health check answers" in str(raised.value)


def test_nothing_to_do_asks_for_no_tick() -> None:
    b = Bench()
    assert next_due(b.state) == inf
    assert b.tick().effects == ()
    assert b(SessionLost(C1)).state.sessions == {}


@pytest.mark.parametrize(
    ("code", "words"),
    [
        (None, "exited, and nobody could observe its exit code: bye"),
        (3, "exited with code 3: bye"),
        (-9, "killed by signal 9 (SIGKILL: out of memory, or somebody's kill): bye"),
        (-2, "killed by signal 2 (SIGINT): bye"),
        (
            -7,
            "killed by signal 7 (SIGBUS: a file that it has mapped, such as its weights, was cut short",
        ),
        (-15, "killed by signal 15 (SIGTERM): bye"),
        (-31, "killed by signal 31 (SIGSYS): bye"),
        (-40, "killed by signal 40: bye"),
    ],
)
def test_exit_words(code: int | None, words: str) -> None:
    assert exit_words(code, "bye").startswith(words)


@pytest.mark.parametrize(
    ("out_of_memory", "words"),
    [
        (True, "SIGKILL: out of memory by all appearances, the kernel ended a process for it"),
        (False, "SIGKILL: somebody's kill, the kernel ended nothing for want of memory)"),
        (None, "SIGKILL: out of memory, or somebody's kill)"),
    ],
)
def test_whose_kill_it_was(out_of_memory: bool | None, words: str) -> None:
    """F80: as far as the kernel tells; of any other end it says nothing."""
    b = Bench().ready(restart=Restart(max=0)).exited(-9, out_of_memory=out_of_memory)
    assert f"killed by signal 9 ({words}" in str(b.record.error)
    assert exit_words(3, "", out_of_memory=out_of_memory) == "exited with code 3"


def test_durations() -> None:
    assert [duration(s) for s in (90.0, 1800.0, 7200.0, 0.5)] == ["90s", "30m", "2h", "0.5s"]


def test_the_report() -> None:
    """`api_key` and `served_name` in `register` only; unknown reads as missing."""
    b = Bench().command(on_gpu(1, gib=10, served_name="served"), fresh_key="k1")
    secret, plain = (node_report(b.state, for_register=f).shards[0] for f in (True, False))
    assert (secret.api_key, secret.served_name) == ("k1", "served")
    assert (plain.api_key, plain.served_name) == (None, None)
    assert plain.resources == Resources(gpu_memory_bytes=10 * GIB)
    report = node_report(b.state, for_register=False)
    assert (report.epoch_seen, report.leader_uuid, report.reattached) == (1, "L1", True)
    assert node_report(Bench(heard=False).state, for_register=True).leader_uuid is None
    partial = Record(start=start(), partial=True, state="unknown", error="torn")
    told = node_report(Bench(partial, heard=False).state, for_register=True).shards[0]
    assert (told.world_size, told.resources, told.state) == (None, None, "unknown")
