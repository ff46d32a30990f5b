"""What the agent does to processes, when the world answers oddly: it says so, and neither dies nor guesses.

Real processes; what only another user, a full table of descriptors or a bad disk could bring about is put in by hand.
"""

from __future__ import annotations

import asyncio
import errno
import os
import resource
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace
from structlog.testing import capture_logs

from llmgw.agent import launch, ports, process, reattach
from llmgw.agent.devices import Devices
from llmgw.agent.gpu import Gpus, Reading, Use
from llmgw.agent.journal import Journal
from llmgw.agent.logs import Logs
from llmgw.agent.loop import Loop
from llmgw.agent.perform import Performer
from llmgw.core.supervise import initial_state
from llmgw.core.types.messages import Gpu, Start
from llmgw.core.types.node import Event, Exited, NodeFacts, Probed, Spawned, SpawnFailed, TreeSeen
from llmgw.core.types.record import Key, Record, Watch
from scripts.ports import free_port
from tests.agent.rig import until
from tests.engines.running import FAKE

#: Of this run alone: others may run these tests beside it.
NODE = uuid.uuid4().hex
FACTS = NodeFacts(node="box1", node_id=NODE)
START = Start(
    shard="alpha-1/0",
    replica="alpha-1",
    incarnation="inc-1",
    model="alpha",
    profile="main",
    command=("sleep", "60"),
    port=18000,
)
KEY: Key = ("alpha-1/0", "inc-1")
TOO_MANY = OSError(errno.EMFILE, "Too many open files")


class Bench:
    """A performer with nobody behind it: `events` is what it posted."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.events: list[Event] = []
        self.posted = asyncio.Event()
        self.logs = Logs(folder)
        self.devices = Devices(Gpus("none"), NODE)

    def run(self, act: Callable[[Performer], Any], *, posts: type[Event] | None = None) -> Any:
        """Do something with it, and wait until it has posted an event of that kind."""

        async def life() -> Any:
            async with asyncio.TaskGroup() as tasks:
                hands = Performer(
                    facts=FACTS,
                    state_dir=self.folder,
                    logs=self.logs,
                    devices=self.devices,
                    post=self.post,
                    tasks=tasks,
                )
                answer = act(hands)
                if asyncio.iscoroutine(answer):
                    answer = await answer
                async with asyncio.timeout(30):
                    while posts and not any(isinstance(e, posts) for e in self.events):
                        self.posted.clear()
                        await self.posted.wait()
                return answer

        return asyncio.run(life())

    def post(self, event: Event) -> None:
        self.events.append(event)
        self.posted.set()

    def look(self, record: Record) -> TreeSeen:
        seen = self.run(lambda hands: hands.look(record))
        assert isinstance(seen, TreeSeen)
        return seen

    def secrets(self, record: Record) -> frozenset[str]:
        found: frozenset[str] = self.run(lambda hands: hands.secrets_of(record))
        return found

    def spawn(self, record: Record) -> Event:
        answer: Event = self.run(lambda hands: hands.spawn(record))
        return answer

    def last(self, kind: type[Any]) -> Any:
        return next(e for e in reversed(self.events) if isinstance(e, kind))


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return Bench(tmp_path)


@pytest.fixture
def engine() -> Iterator[Record]:
    """A running process and the record of it."""
    child = subprocess.Popen(["sleep", "60"], start_new_session=True)
    stat = process.read_stat(child.pid)
    assert stat is not None
    yield running(child.pid, stat.ticks)
    child.kill()
    child.wait()


def running(pid: int, ticks: int, **changes: Any) -> Record:
    start = replace(START, **changes)
    return Record(
        start=start, state="ready", pid=pid, start_ticks=ticks, watch=Watch(verified=True)
    )


def ordered(*command: str) -> Record:
    return Record(start=replace(START, command=command, port=free_port()), intent=True)


def hide(monkeypatch: pytest.MonkeyPatch, pid: int, error: OSError) -> None:
    """Whoever looks at this process gets this error."""
    read = process.read_stat

    def looked(asked: int) -> process.Stat | None:
        if asked == pid:
            raise error
        return read(asked)

    monkeypatch.setattr(process, "read_stat", looked)


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

    bench.run(act)


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
