"""What the agent does to processes, when the world answers oddly: it says so, and neither dies nor guesses.

Real processes; what only another user, a full table of descriptors or a bad disk could bring about is put in by hand.
"""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import time
from typing import Any

import pytest
from msgspec.structs import replace
from structlog.testing import capture_logs

from llmgw.agent import launch, ports, process, reattach
from llmgw.agent.gpu import Reading, Use
from llmgw.agent.journal import Journal
from llmgw.agent.loop import Loop
from llmgw.agent.perform import Performer
from llmgw.core.failed import no_program
from llmgw.core.supervise import initial_state
from llmgw.core.types.messages import Gpu
from llmgw.core.types.node import Exited, Probed, Spawned, SpawnFailed
from llmgw.core.types.record import Record
from scripts.ports import free_port
from tests.agent.perform_rig import (
    FACTS,
    KEY,
    NODE,
    START,
    Bench,
    running,
)
from tests.agent.rig import until
from tests.engines.running import FAKE

# ---------------------------------------------------------------- starts


@pytest.mark.parametrize("secret", [b"abcd\0efgh", b"\xff"], ids=["nul", "not text"])
def test_a_secret_that_no_environment_can_hold_fails_that_engine_only(
    bench: Bench, secret: bytes
) -> None:
    path = bench.folder / "secret"
    path.write_bytes(secret)
    places: list[dict[str, Any]] = [
        {"env": {"TOKEN": f"${{file.{path}}}"}},
        {"command": ("sleep", f"${{file.{path}}}")},
        {"command": (f"${{file.{path}}}",)},
        {"weights": f"/${{file.{path}}}"},
    ]
    for changes in places:
        record = Record(start=replace(START, port=free_port(), **changes), intent=True)
        said = bench.spawn(record)
        assert isinstance(said, SpawnFailed), changes
        assert said.fatal
        assert "abcd" not in said.error
        bench.secrets(record)


@pytest.mark.parametrize("name", ["file./a\0b", "env.A\0B"])
def test_a_placeholder_that_names_nothing_fails_that_engine_only(bench: Bench, name: str) -> None:
    start = replace(START, env={"A": f"${{{name}}}"}, port=free_port())
    assert isinstance(bench.spawn(Record(start=start, intent=True)), SpawnFailed)
    assert bench.secrets(Record(start=start)) == frozenset()


def test_a_log_that_cannot_be_opened_is_no_lack_of_its_program(bench: Bench) -> None:
    """Its node would be avoided for a program that is there."""
    bench.logs.path(KEY[0]).parent.symlink_to(bench.logs.folder / "gone" / "deeper")
    said = bench.spawn(Record(start=replace(START, port=free_port()), intent=True))
    assert isinstance(said, SpawnFailed)
    assert "cannot be started on" in said.error
    assert not no_program(said.error)


def test_what_is_started_carries_its_order(bench: Bench) -> None:
    """The sweep finds it, whole: F43, design.md 3."""
    start = replace(START, port=free_port())
    record = Record(start=start, intent=True, attempt=2)

    def act(hands: Performer) -> None:
        said = hands.spawn(record)
        assert isinstance(said, Spawned)
        until(lambda: process.environ(said.pid), "exec")  # it shows a moment after it is through
        survey = reattach.Survey(NODE)
        child = hands.children.pop(KEY)
        child.kill()
        child.wait()
        (found,) = reattach.orphans([], survey, "boot-1")
        assert (found.start, found.attempt, found.partial) == (start, 2, False)
        assert found.started_at
        assert reattach.orphans([replace(record, pid=said.pid)], survey, "boot-1") == []
        assert reattach.orphans([], survey, "boot-1", released={KEY}) == []  # A43
        seen = reattach.evidence(replace(found, pid=None), NODE, {}, survey)
        assert (seen.pid, seen.start_ticks) == (said.pid, said.start_ticks)

    bench.run(act)


def test_since_when_a_process_is_there() -> None:
    """A25; for people: nobody is known by it (F41)."""
    now = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    stat = process.read_stat(os.getpid())
    assert stat is not None
    assert "2000" < process.started_at(stat.ticks) <= now
    assert process.started_at(0) < process.started_at(stat.ticks)


# ---------------------------------------------------------------- ends and answers


def test_an_end_is_told_though_its_log_cannot_be_read(bench: Bench) -> None:
    """F80: whatever else fails, the exit is posted, with its code."""

    def act(hands: Performer) -> None:
        start = replace(START, command=("sh", "-c", "sleep 0.2; exit 7"), port=free_port())
        assert isinstance(hands.spawn(Record(start=start, intent=True)), Spawned)
        log = bench.logs.path(KEY[0])
        log.unlink()
        log.mkdir()

    bench.run(act, posts=Exited)
    assert (bench.last(Exited).code, bench.last(Exited).last_line) == (7, "")


@pytest.mark.parametrize(
    "said",
    [
        "CUDA0 model buffer size =  1.2.3 MiB",
        "offloaded " + "9" * 5000 + "/1 layers to GPU",
        "CUDA0 model buffer size =  . MiB",
    ],
    ids=range(3),
)
def test_an_engine_that_says_nonsense_is_probed_all_the_same(bench: Bench, said: str) -> None:
    """Its log is a stranger's words: it ended the agent."""
    log = bench.logs.open_for_attempt(KEY[0])
    os.write(log, f"{said}\n".encode())
    os.close(log)
    port = free_port()
    with subprocess.Popen([*FAKE, "--port", str(port)], start_new_session=True) as child:
        record = running(child.pid, 0, port=port, compute="llama.cpp")
        until(lambda: ports.listeners(port, "127.0.0.1"), "its listener")
        bench.run(lambda hands: hands.probe(record, check=True), posts=Probed)
        child.kill()
    assert (bench.last(Probed).outcome, bench.last(Probed).owner) == ("ok", "ours")


def test_a_log_that_cannot_be_cut_ends_no_agent(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A full disk, or a folder in its way: told, and tried again."""
    monkeypatch.setattr("llmgw.agent.logs.LOG_MAX_BYTES", 10)
    log = bench.logs.open_for_attempt(KEY[0])
    os.write(log, b"x" * 20)
    os.close(log)
    in_the_way = bench.logs.path(KEY[0]).with_suffix(".log.cut")
    in_the_way.mkdir()
    loop = Loop(initial_state(FACTS, [Record(start=START)]), Journal(bench.folder))

    async def looked(hands: Performer) -> None:
        loop.performer = hands
        watch = hands.tasks.create_task(loop.bound_logs())
        await asyncio.to_thread(until, lambda: said, "a warning")
        in_the_way.rmdir()
        await asyncio.to_thread(until, in_the_way.is_file, "another try")
        watch.cancel()

    with capture_logs() as said:
        bench.run(lambda hands: hands.tasks.create_task(looked(hands)))
    assert {entry["event"] for entry in said} == {"a log cannot be cut"}
    assert in_the_way.read_text() == "x" * 10


# ---------------------------------------------------------------- whose GPU use it is


def test_what_was_released_is_a_stranger_on_the_gpu(bench: Bench) -> None:
    """A43, A70: by its markers, its session and its number it was ours; it is subtracted from now on."""
    env = {**os.environ, **launch.markers(Record(start=START), FACTS)}
    with subprocess.Popen(
        [sys.executable, "-c", "input()"], stdin=subprocess.PIPE, env=env, start_new_session=True
    ) as child:
        until(lambda: process.environ(child.pid), "exec")
        stat = process.read_stat(child.pid)
        assert stat is not None
        use = Use(child.pid, "GPU-0", 7)
        bench.devices.last = Reading((Gpu(uuid="GPU-0"),), (use,), measured=True)
        held = running(child.pid, stat.ticks)
        held = replace(held, start=replace(START, gpus=("GPU-0",)))
        known = {KEY: {child.pid: stat.ticks}}
        assert bench.devices.seen({KEY: held}, known).foreign == ()
        unknown = replace(held, pid=None, state="unknown")
        assert bench.devices.seen({KEY: unknown}, {}).foreign == ()
        released = replace(held, pid=None, state="stopped", force=True)
        for records in ({KEY: released}, {}):
            (foreign,) = bench.devices.seen(records, known).foreign
            assert (foreign.pid, foreign.gpu, foreign.memory_bytes) == (child.pid, "GPU-0", 7)
        child.communicate(b"\n")
    assert bench.devices.seen({KEY: released}, known).foreign == ()  # dead: NVML lists it on
