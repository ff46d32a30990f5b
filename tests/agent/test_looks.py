"""How the agent looks at all processes: once a turn, after the signal to a child, and what it may not see is not gone.

Real processes; what only another user or a full table of descriptors could bring about is put in by hand.
"""

from __future__ import annotations

import asyncio
import errno
import os
import resource
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from llmgw.agent import process, reattach
from llmgw.agent.gpu import Reading, Use
from llmgw.agent.perform import Performer
from llmgw.core.types.messages import Gpu
from llmgw.core.types.node import Exited, Spawned
from llmgw.core.types.record import Record
from tests.agent.perform_rig import (
    KEY,
    NODE,
    TOO_MANY,
    Bench,
    hide,
    ordered,
    running,
)
from tests.agent.rig import until

# ---------------------------------------------------------------- one look at all processes


def test_a_child_is_signalled_before_anybody_else_is_looked_at(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """P9: the look takes milliseconds, in which it may end. Once it is, and no other of its tree is left out."""
    sent: list[tuple[int, int]] = []
    order: list[str] = []

    def send(pid: int, ticks: int, _signum: int) -> bool:
        order.append("signal")
        sent.append((pid, ticks))
        return True

    def look() -> process.Stats:
        order.append("look")
        return stats()

    def act(hands: Performer) -> Record:
        code = "import subprocess, time; subprocess.Popen(['sleep', '60']); time.sleep(60)"
        spawned = hands.spawn(ordered(sys.executable, "-c", code))
        assert isinstance(spawned, Spawned)
        record = running(spawned.pid, spawned.start_ticks)
        until(lambda: len(hands.pids_of(record)) > 1, "its child")
        monkeypatch.setattr(process, "send", send)
        monkeypatch.setattr(reattach, "all_stats", look)
        hands.signal(record, "TERM")
        monkeypatch.undo()
        hands.looks.over()
        hands.signal(record, "KILL")
        return record

    stats = process.all_stats
    record = bench.run(act, posts=Exited)
    assert order == ["signal", "look", "signal"]
    assert sent[0] == (record.pid, record.start_ticks)
    assert len({pid for pid, _ in sent}) == len(sent)


DETACHES = """
import subprocess, sys, time
sleep = [sys.executable, "-c", "import time; time.sleep(60)"]
print(subprocess.Popen(sleep, env={}, start_new_session=True).pid, file=open(sys.argv[1], "w"))
time.sleep(60)
"""


@pytest.mark.parametrize("told", [True, False])
def test_a_worker_without_session_and_environment_does_not_outlive_a_leader_that_ends_at_once(
    bench: Bench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, told: bool
) -> None:
    """Nobody looked before: once its parent is dead nothing says whose it is, and it held its GPU for ever.

    `told`: whether the kernel lists children; where it does not, the look comes before the signal.
    """
    if not told:
        monkeypatch.setattr(process, "below", lambda _pid: None)
    look = process.all_stats

    def late() -> process.Stats:
        if told:
            time.sleep(0.05)  # its parent is gone by then
        return look()

    def act(hands: Performer) -> int:
        file = tmp_path / "worker"
        spawned = hands.spawn(ordered(sys.executable, "-c", DETACHES, str(file)))
        assert isinstance(spawned, Spawned)
        until(lambda: file.exists() and file.read_text().endswith("\n"), "its worker")
        monkeypatch.setattr(reattach, "all_stats", late)
        hands.signal(running(spawned.pid, spawned.start_ticks), "KILL")
        return int(file.read_text())

    worker = bench.run(act, posts=Exited)
    until(lambda: (stat := process.read_stat(worker)) is None or not stat.live, "the worker's end")


def test_one_turn_is_one_look_and_who_comes_in_it_is_looked_for(
    bench: Bench, engine: Record, monkeypatch: pytest.MonkeyPatch
) -> None:
    looked: list[process.Stats] = []
    stats = process.all_stats

    def look() -> process.Stats:
        looked.append(stats())
        return looked[-1]

    monkeypatch.setattr(reattach, "all_stats", look)

    async def act(hands: Performer) -> None:
        assert hands.look(engine).alive == hands.look(engine).alive == (engine.pid,)
        assert len(looked) == 1
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        hands.look(engine)
        assert len(looked) == 2
        spawned = hands.spawn(ordered("sleep", "60"))
        assert isinstance(spawned, Spawned)
        assert hands.look(running(spawned.pid, spawned.start_ticks)).alive == (spawned.pid,)
        hands.signal(running(spawned.pid, spawned.start_ticks), "KILL")

    bench.run(act, posts=Exited)


# ---------------------------------------------------------------- who may not be looked at


def test_a_process_that_may_not_be_looked_at_is_not_dead(
    bench: Bench, engine: Record, monkeypatch: pytest.MonkeyPatch
) -> None:
    """F45: /proc with hidepid; unverifiable is held, and never signalled."""
    assert engine.pid is not None
    hide(monkeypatch, engine.pid, PermissionError(errno.EACCES, "Permission denied"))
    seen = reattach.evidence(engine, NODE, {})
    assert "may not be looked at" in seen.error
    tree = bench.look(engine)
    assert (tree.alive, tree.doubtful) == ((), (engine.pid,))

    def act(hands: Performer) -> None:
        with pytest.raises(PermissionError):
            hands.signal(engine, "TERM")

    bench.run(act)
    assert subprocess.run(["kill", "-0", str(engine.pid)], check=False).returncode == 0


def test_strangers_that_may_not_be_looked_at_are_in_nobodys_way(
    bench: Bench, engine: Record, monkeypatch: pytest.MonkeyPatch
) -> None:
    """hidepid=1 shows their folders and nothing in them: an agent that is not root has to live with it."""
    hide(monkeypatch, 1, PermissionError(errno.EACCES, "Permission denied"))
    tree = bench.look(engine)
    assert (tree.alive, tree.doubtful) == ((engine.pid,), ())
    assert reattach.evidence(engine, NODE, {}).leader == "same"
    bench.devices.last = Reading((Gpu(uuid="GPU-0"),), (Use(1, "GPU-0", 5),), measured=True)
    (foreign,) = bench.devices.seen({KEY: engine}, {}).foreign
    assert (foreign.pid, foreign.memory_bytes) == (1, 5)  # A70: not shown to us, so not ours


@pytest.mark.parametrize("what", ["read_stat", "environ"])
def test_out_of_descriptors_nobody_counts_as_gone(
    bench: Bench, engine: Record, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    """F45, F43: an engine whose markers cannot be read just now would be started a second time."""

    def none_left(_pid: int) -> Any:
        raise TOO_MANY

    monkeypatch.setattr(process, what, none_left)
    for record in (engine, replace(engine, pid=None, state="pending", intent=True)):
        assert "Too many open files" in reattach.evidence(record, NODE, {}).error
        tree = bench.look(record)
        assert tree.alive == ()
        assert "Too many open files" in tree.detail
    bench.run(lambda hands: hands.remember_trees({KEY: engine}))  # the heartbeat goes on


def test_an_engine_that_nobody_watches_is_watched_again(bench: Bench, engine: Record) -> None:
    """Its end would go unseen for ever: whatever came in between, the next heartbeat looks."""

    def unwatched(hands: Performer) -> None:
        hands.remember_trees({KEY: engine})
        assert KEY in hands.pidfds
        os.kill(engine.pid or 0, 9)

    bench.run(unwatched, posts=Exited)
    seen = replace(engine, watch=replace(engine.watch, exited=True))

    def seen_already(hands: Performer) -> None:
        hands.remember_trees({KEY: seen})
        assert not hands.pidfds

    bench.run(seen_already)


def test_an_environment_that_cannot_be_read_is_not_an_empty_one() -> None:
    """F43: an empty one says that this is no engine of ours."""
    assert "PATH" in process.environ(os.getpid())
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (0, hard))
    try:
        with pytest.raises(OSError, match="Too many open files"):
            process.environ(os.getpid())
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert process.environ(1 << 22) == {}


def test_a_look_that_fails_loses_no_descriptor(
    engine: Record, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert engine.pid is not None
    hide(monkeypatch, engine.pid, PermissionError(errno.EACCES, "Permission denied"))
    before = len(list(Path("/proc/self/fd").iterdir()))
    for _ in range(3):
        with pytest.raises(PermissionError):
            process.open_pidfd(engine.pid, engine.start_ticks)
    assert len(list(Path("/proc/self/fd").iterdir())) == before
