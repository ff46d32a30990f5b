"""Taking over an engine that a person started by hand, as the agent decides it (A70, A71)."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from llmgw.core.supervise.take import take
from llmgw.core.types.by_hand import ByHand, Started
from llmgw.core.types.messages import Foreign, Resources, Take
from llmgw.core.types.node import (
    CommandReceived,
    GpusSeen,
    Identify,
    Probe,
    Refuse,
    Signal,
    Spawn,
    TreeSeen,
    WriteRecord,
)
from llmgw.core.types.record import Key
from tests.core.agent_bench import BY, C1, GPU0, KEY, Bench, on_gpu, start
from tests.core.test_supervise_laws import KEYS, STARTS, World, rest, step

STEP_REST = (st.sampled_from(KEYS), st.floats(0.01, 40.0), st.integers(0, 9))
STEP = st.tuples(
    st.sampled_from(["answer"] * 6 + ["tick"] * 4 + ["start", "stop", "drain", "die", "kill"]),
    *STEP_REST,
)

PID, TICKS = 4242, 77
WHO = "pid 4242 (engine --port 18001)"
STOP_IT = "systemctl stop ollama.service, and let llmgw start it"
ENGINE = ("engine", "--port", "18001")
SEEN = ByHand(
    start_ticks=TICKS,
    started_at="T0",
    command="engine --port 18001",
    argv=ENGINE,
    values={"port": "18001"},
    weights="/m.gguf",
    user="uid 0",
    user_wanted="uid 0",
    gpus=(),
    listener="ours",
    health="ok",
)


def order(n: int = 1, pid: int = PID, **changes: Any) -> Take:
    wanted = start(n, **changes)
    about: dict[str, Any] = {"shard": wanted.shard, "incarnation": wanted.incarnation}
    return Take(pid=pid, start_ticks=TICKS, start=wanted, **about, **BY)


def taken(bench: Bench, seen: ByHand = SEEN, **changes: Any) -> Bench:
    return bench.command(order(**changes), by_hand=seen)


def test_a71_it_is_written_down_identified_and_probed_and_nothing_else() -> None:
    bench = taken(Bench())
    assert bench.kinds() == ["WriteRecord", "Identify", "Changed"]
    written = bench.one(WriteRecord).record
    assert (written.pid, written.start_ticks, written.by_hand) == (PID, TICKS, True)
    assert (written.boot_id, written.started_at, written.artefact) == ("boot-1", "T0", "/m.gguf")
    assert (written.state, written.api_key) == ("unknown", "")
    bench.identified(leader="same")
    assert (bench.record.state, bench.record.endpoint) == ("starting", "http://127.0.0.1:18001")
    bench.tick()
    assert bench.one(Probe).check
    bench.probe()
    assert (bench.record.state, bench.record.attempt) == ("ready", 1)
    assert not [e for e in bench.log if isinstance(e, Spawn | Signal)]


def test_a71_said_again_it_is_answered_and_changes_nothing() -> None:
    bench = taken(Bench()).identified(leader="same").probe()
    before = bench.state
    assert taken(bench, ByHand()).kinds() == ["Changed"]
    assert bench.state == before


def test_a71_the_record_alone_keeps_it_over_restarts_of_the_agent() -> None:
    """Killed before the journal it is a stranger, after it ours; without the journal nothing tells (F42)."""
    again = taken(Bench()).restarted()
    assert again.record.by_hand
    again.identified(leader="same")
    assert again.record.state == "starting"
    assert again.of(Signal) == []
    assert Bench().state.records == {}


def test_its_rows_among_the_strangers_are_gone_at_once() -> None:
    mine = Started(pid=PID, start_ticks=TICKS)
    rows = (
        Foreign(pid=PID, by_hand=mine),
        Foreign(pid=PID + 1, gpu="GPU-0", by_hand=mine),
        Foreign(pid=9, gpu="GPU-0"),
    )
    bench = Bench()(GpusSeen((GPU0,), rows))
    assert [f.pid for f in taken(bench).state.foreign] == [9]


def test_a71_its_end_before_it_is_ours_is_told_and_not_restarted() -> None:
    bench = taken(Bench()).identified(leader="absent", detail="no process 4242")
    assert (bench.record.state, bench.record.desired) == ("failed", "running")
    assert bench.record.error == (
        "not running when the agent came back: no process 4242; nobody saw it exit"
    )


def test_a71_its_crash_is_restarted_and_then_it_is_an_engine_like_any_other() -> None:
    """In place: the same port, with our markers; its session and output are ours from then on."""
    bench = taken(Bench()).identified(leader="same").probe()
    bench.gone(None)
    spawn = bench.one(Spawn).record
    assert (spawn.attempt, spawn.intent, spawn.by_hand) == (2, True, False), (
        "journaled before it runs"
    )
    bench.spawned(pid=5000)
    assert (bench.record.by_hand, bench.record.pid) == (False, 5000)


def test_a71_its_stop_is_that_of_any_engine() -> None:
    bench = taken(Bench()).identified(leader="same").probe()
    bench.stop()
    assert bench.one(Signal).record.by_hand
    bench(TreeSeen(key=KEY, attempt=1))
    assert bench.record.state == "stopped"


@pytest.mark.parametrize(
    ("seen", "why"),
    [
        (ByHand(error="permission denied"), "pid 4242 cannot be looked at: permission denied"),
        (ByHand(), "there is no process 4242 any more"),
        (
            replace(SEEN, start_ticks=78),
            "pid 4242 is another process now (engine --port 18001, start ticks 78, not 77)",
        ),
        (
            replace(SEEN, marked="box9"),
            "pid 4242 (engine --port 18001) belongs to the llmgw agent of box9",
        ),
        (
            replace(SEEN, container=True),
            "pid 4242 (engine --port 18001) runs in a container, whose runtime answers for it",
        ),
        (
            replace(SEEN, service="ollama.service"),
            f"{WHO} belongs to ollama.service, which would start it again: {STOP_IT}",
        ),
    ],
)
def test_a71_another_process_or_somebody_elses_is_not_taken(seen: ByHand, why: str) -> None:
    bench = taken(Bench(), seen)
    assert bench.refusal() == ("not_taken", "", why)
    assert bench.state.records == {}


@pytest.mark.parametrize(
    ("changes", "fact"),
    [
        ({"argv": (*ENGINE, "-c", "16384")}, "-c 16384 instead of nothing"),
        ({"user": "uid 1000"}, "user uid 1000 instead of uid 0"),
        ({"gpus": ("GPU-0",)}, "GPUs GPU-0 instead of none"),
        ({"gpus": None}, "GPUs unknown instead of none"),
        ({"listener": ""}, "listens on nothing that can be seen instead of 127.0.0.1:18001"),
        (
            {"listener": "other", "listener_detail": "its listener is pid 9 (x)"},
            "listens on its listener is pid 9 (x) instead of 127.0.0.1:18001",
        ),
        ({"health": "failed", "health_detail": "404"}, "/health 404 instead of ok"),
        ({"health": "refused"}, "/health refused instead of ok"),
    ],
)
def test_a71_what_differs_is_refused_with_all_that_was_compared(
    changes: dict[str, Any], fact: str
) -> None:
    bench = taken(Bench(), replace(SEEN, **changes))
    reason, resource, why = bench.refusal()
    assert (reason, resource) == ("not_taken", "")
    assert why.endswith(f" is not what main starts: {fact}")
    refused = bench.one(Refuse).refusal
    assert [f for f in refused.facts if not f.same]
    assert [f for f in refused.facts if f.same]
    assert bench.state.records == {}


def test_one_that_still_loads_is_taken() -> None:
    bench = taken(Bench(), replace(SEEN, health="loading")).identified(leader="same")
    assert bench.probe("loading").record.state == "loading"


def test_its_environment_and_several_facts_at_once_are_said() -> None:
    seen = replace(SEEN, env={"MODE": "slow"}, user="uid 7")
    why = taken(Bench(), seen, env={"MODE": "fast"}, world_size=2).refusal()[2]
    assert why.endswith(
        "MODE slow instead of fast; user uid 7 instead of uid 0; nodes 2 instead of 1"
    )


def test_a_templates_own_variables_are_no_part_of_what_a_profile_says() -> None:
    """As they are none of its fingerprint: a person does not set how loud the log is."""
    command = replace(order(env={"LOUD": "4", "KEY": "${api_key}"}), template_env=("LOUD", "KEY"))
    bench = Bench().command(command, by_hand=replace(SEEN, api_key="sesame"))
    assert bench.record.api_key == "sesame"
    assert bench.record.start.env == {"LOUD": "4", "KEY": "${api_key}"}


def test_beyond_loopback_an_engine_without_a_key_is_not_taken() -> None:
    """As none is started (contract/catalog.md): anybody could ask it."""
    open_to_all = Bench()
    facts = replace(open_to_all.state.facts, address="10.0.0.5")
    open_to_all.state = replace(open_to_all.state, facts=facts)
    assert taken(open_to_all).refusal()[2].endswith("API key none instead of one")
    assert taken(open_to_all, insecure=True).record.pid == PID
    other = Bench()
    other.state = replace(other.state, facts=facts)
    assert taken(other, replace(SEEN, api_key="sesame")).record.api_key == "sesame"


def test_a71_one_process_is_taken_once() -> None:
    bench = taken(Bench())
    bench.command(order(2, port=18001), by_hand=SEEN)
    assert bench.refusal() == ("not_taken", "", "pid 4242 is alpha-1/0 (inc-1) already")
    bench.identified(leader="same").probe()
    bench.stop()
    bench.gone()  # what ended is nobody's: that number may be a new process's
    bench.command(order(2, port=18001), by_hand=SEEN)
    assert bench.one(Identify).record.start.shard == "alpha-2/0"


def test_names_ports_and_gpus_of_others_stay_theirs() -> None:
    bench = Bench().ready(n=1)
    named = replace(order(2), incarnation="inc-9")
    assert bench.command(named, by_hand=SEEN).refusal()[0] == "bad_name"
    assert taken(bench, incarnation="inc-2").refusal()[0] == "shard_held"
    bench.command(order(2, port=18001), by_hand=SEEN)
    assert bench.refusal()[:2] == ("port_held", "port 18001")
    bench.command(order(2, launcher="fpga"), by_hand=SEEN)
    assert bench.refusal()[0] in ("not_built", "not_taken")


@pytest.mark.parametrize(
    ("there", "mine", "why"),
    [
        (None, 4, "GPU GPU-0: alpha-1/0 (inc-1, pid 4711, since T0, ready) has it alone"),
        (
            4,
            None,
            "GPU GPU-0: alpha-1/0 (inc-1, pid 4711, since T0, ready) is on it, and alpha-2/0 would have it alone",
        ),
    ],
)
def test_a_gpu_that_was_promised_alone_is_not_shared(
    there: int | None, mine: int | None, why: str
) -> None:
    bench = Bench()
    bench.command(on_gpu(1, gib=there)).spawned().tick(0.1).probe()
    resources = Resources(gpu_memory_bytes=mine)
    seen = replace(SEEN, gpus=("GPU-0",), argv=("engine", "--port", "18002"))
    bench.command(order(2, gpus=("GPU-0",), resources=resources), by_hand=seen)
    assert bench.refusal() == ("gpu_held", "gpu GPU-0", why)


def test_memory_that_is_in_use_already_is_not_asked_for() -> None:
    """It runs: what it takes is measured, whatever the profile says it needs (A62)."""
    full = replace(GPU0, memory_used_bytes=GPU0.memory_bytes)
    bench = Bench()(GpusSeen((full,)))
    resources = Resources(gpu_memory_bytes=20 << 30)
    bench = taken(bench, replace(SEEN, gpus=("GPU-0",)), gpus=("GPU-0",), resources=resources)
    assert bench.record.by_hand


def test_a71_the_laws_hold_for_what_was_taken_over_too() -> None:
    """Journaled before, nothing signalled that is not verified, one TERM, never two attempts, nothing forgotten."""

    @given(st.lists(st.one_of(STEP, st.tuples(st.just("take"), *STEP_REST)), max_size=60))
    def hold(steps: list[tuple[str, Key, float, int]]) -> None:
        world = World()
        for what, key, seconds, pick in steps:
            if what == "take":
                take_over(world, key)
            else:
                step(world, what, key, seconds, pick)
        for what in ("stop", "force"):
            for key in KEYS:
                step(world, what, key, 0.0, 0)
            rest(world, 200.0)
        assert all(r.ended for r in world.bench.state.records.values())

    hold()


def take_over(world: World, key: Key) -> None:
    """A process of a person appears and is taken over, where its agent agrees."""
    if key in world.disk.keys() | world.ordered_off | world.gave_up:
        return
    wanted = STARTS[key]
    pid = world.next_pid + 1
    command = Take(shard=key[0], incarnation=key[1], pid=pid, start_ticks=pid, start=wanted, **BY)
    argv = tuple(w.replace("${port}", str(wanted.port)) for w in wanted.command)
    seen = replace(SEEN, start_ticks=pid, argv=argv, gpus=wanted.gpus)
    if take(world.bench.state, command, seen, world.bench.now).record is None:
        return
    world.next_pid = pid
    world.alive[pid] = (key, 1)
    world.feed(CommandReceived(command=command, control=C1, by_hand=seen))
    assert world.bench.state.records[key].by_hand


def test_what_a_newer_control_says_of_it_is_kept() -> None:
    bench = Bench().command(order(), by_hand=SEEN, extra={"later": 1})
    assert bench.record.extra == {"later": 1}
