"""Engines that a person started: found, taken over, ended; real processes under a real shell (A70, A71, F74)."""

from __future__ import annotations

import os
import shutil
import signal
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from llmgw.agent import ports, process
from llmgw.core.types.catalog import Restart, Stop
from llmgw.core.types.messages import Start, Take
from scripts.ports import free_port
from tests.agent.cards import GIB, UUIDS, Cards
from tests.agent.rig import Rig, alive, gpu_users, until
from tests.engines.running import FAKE
from tests.engines.shell import Shell, shell

PROGRAM = {"fake_engine.py"}


@pytest.fixture
def person(tmp_path: Path) -> Iterator[Shell]:
    with shell(tmp_path) as one:
        yield one


def ticks_of(pid: int) -> int:
    stat = process.read_stat(pid)
    assert stat is not None
    return stat.ticks


def order(pid: int, port: int, *flags: str, n: int = 1, **changes: Any) -> Take:
    base: dict[str, Any] = {
        "shard": f"alpha-{n}/0",
        "replica": f"alpha-{n}",
        "incarnation": f"inc-{n}",
        "model": "alpha",
        "profile": "main",
        "command": (*FAKE, "--port", "${port}", *flags),
        "port": port,
        "stop": Stop(grace_s=10.0),
        "restart": Restart(max=0),
    }
    start = Start(**{**base, **changes})
    return Take(
        shard=start.shard,
        incarnation=start.incarnation,
        pid=pid,
        start_ticks=ticks_of(pid),
        start=start,
    )


def taken(rig: Rig, pid: int, port: int, *flags: str, **changes: Any) -> dict[str, Any]:
    """The engine is up, and ordered to be taken over until it is seen ready."""
    until(lambda: not ports.free(port), "its port")
    rig.control.send(order(pid, port, *flags, **changes))
    return rig.control.shard("alpha-1/0", "ready")


# ------------------------------------------------ taken over


def test_a71_taken_over_served_and_stopped_while_the_shell_lives(rig: Rig, person: Shell) -> None:
    rig.start_agent().registered()
    pid, port = person.engine("--fork", "--ignore-term", "--tokens", "3")
    other, _ = person.engine()
    shard = taken(rig, pid, port, "--fork", "--ignore-term", "--tokens", "3")
    assert (shard["pid"], shard["port"], shard["attempt"]) == (pid, port, 1)
    assert shard["endpoint"] == f"http://127.0.0.1:{port}"
    record = rig.record()
    assert (record["by_hand"], record["start_ticks"]) == (True, ticks_of(pid))
    child = next(s.pid for s in process.all_stats().values() if s.ppid == pid)
    said = (
        f"llmgw: pid {pid} was started by hand and taken over, its output goes to {person.folder}"
    )
    until(lambda: said in rig.engine_log(), "the log's first line")
    rig.stop(grace_s=0.2)
    ended = rig.control.shard("alpha-1/0", "stopped")
    assert ended["error"] is None
    assert not alive(pid)
    assert not alive(child)  # deaf to TERM, both: the KILL is for the tree, not for the session
    assert alive(other)
    assert person.says("echo alive") == "alive"


def test_a71_killed_at_each_moment_it_is_a_stranger_or_ours(rig: Rig, person: Shell) -> None:
    """Before the journal nothing has happened; after it the next agent finds it ready. Nobody is signalled."""
    pid, port = person.engine()
    until(lambda: not ports.free(port), "its port")
    for at, is_ours in (
        ("before-order", False),
        ("before-WriteRecord", False),
        ("after-WriteRecord", True),
    ):
        rig.start_agent(crash_at=at).registered(len(rig.control.registers) + 1)
        rig.control.send(order(pid, port))
        rig.crashed()
        assert rig.record_path().exists() is is_ours
        rig.control.queue.clear()
    rig.again()
    assert rig.control.shard("alpha-1/0", "ready")["pid"] == pid
    for at in ("before-Identify", "reattach-half", "after-reattach"):
        rig.kill9() if at == "before-Identify" else None
        if at != "before-Identify":
            rig.start_agent(crash_at=at).crashed()
    rig.again()
    assert rig.control.registers[-1]["shards"][0]["pid"] == pid
    assert alive(pid)


def test_a71_with_its_journal_lost_it_is_a_stranger_again(rig: Rig, person: Shell) -> None:
    """It carries no markers: only the record tells. It runs on, and can be taken over anew."""
    rig.start_agent().registered()
    pid, port = person.engine()
    taken(rig, pid, port)
    rig.kill9()
    shutil.rmtree(rig.state_dir / "records")
    rig.again()
    assert rig.control.registers[-1]["shards"] == []
    assert alive(pid)
    assert taken(rig, pid, port)["pid"] == pid


def test_a71_its_end_is_seen_and_its_output_not_quoted(rig: Rig, person: Shell) -> None:
    rig.start_agent().registered()
    pid, port = person.engine()
    taken(rig, pid, port)
    os.kill(pid, signal.SIGKILL)
    error = rig.control.shard("alpha-1/0", "failed")["error"]
    assert "started by hand" not in error


def test_a71_restarted_in_place_it_is_an_engine_of_ours(rig: Rig, person: Shell) -> None:
    rig.start_agent().registered()
    pid, port = person.engine()
    taken(rig, pid, port, restart=Restart(max=3, backoff_s=0.1))
    os.kill(pid, signal.SIGKILL)

    def next_one() -> bool:
        shard = rig.control.shards["alpha-1/0"]
        return (shard["attempt"], shard["state"]) == (2, "ready")

    rig.control.wait(next_one, "the next attempt")
    assert rig.engine_pids() == [rig.control.shards["alpha-1/0"]["pid"]]
    assert not rig.record()["by_hand"]


def test_a71_f38_another_process_with_that_pid_is_not_taken(rig: Rig, person: Shell) -> None:
    rig.start_agent().registered()
    pid, port = person.engine()
    until(lambda: not ports.free(port), "its port")
    take = order(pid, port)
    rig.control.send(Take(**{**_fields(take), "start_ticks": take.start_ticks - 1}))
    assert "is another process now" in rig.control.refusal("not_taken")["why"]
    assert not rig.record_path().exists()
    assert alive(pid)


def _fields(take: Take) -> dict[str, Any]:
    return {f: getattr(take, f) for f in take.__struct_fields__}


def test_a71_all_that_differs_is_said_at_once(rig: Rig, person: Shell) -> None:
    rig.start_agent().registered()
    pid, port = person.engine("--tokens", "4", env="MODE=slow")
    until(lambda: not ports.free(port), "its port")
    rig.control.send(order(pid, port, "--tokens", "3", env={"MODE": "fast"}))
    refused = rig.control.refusal("not_taken")
    differ = {f["what"]: (f["wanted"], f["runs"]) for f in refused["facts"] if not f["same"]}
    assert differ == {"--tokens": ("3", "4"), "MODE": ("fast", "slow")}
    assert {f["what"] for f in refused["facts"] if f["same"]} >= {"user", "GPUs", "listens on"}


def test_a71_an_order_that_names_no_shard_or_port_touches_nothing(rig: Rig, person: Shell) -> None:
    """Names become paths, and what no socket can be asked for would end the agent."""
    rig.start_agent().registered()
    pid, _ = person.engine()
    wrongs: list[dict[str, Any]] = [
        {"port": 70_000},
        {"port": 1, "replica": "..", "shard": "../0"},
        {"port": 1, "health": "x"},
    ]
    for wrong in wrongs:
        rig.control.send(order(pid, **wrong))
        assert "cannot be looked at" in rig.control.refusal("not_taken")["why"]
        rig.control.refused.clear()
    assert rig.agent
    assert rig.agent.poll() is None
    assert list((rig.state_dir / "records").iterdir()) == []


def test_a71_a_process_that_is_no_engine_is_not_taken(rig: Rig, person: Shell) -> None:
    """The shell itself, which listens on nothing; and one that answers no health check."""
    rig.start_agent().registered()
    me = person.process.pid
    rig.control.send(order(me, free_port(), n=1, command=("bash", "--norc")))
    refused = rig.control.refusal("not_taken")
    assert "listens on nothing that can be seen" in refused["why"]
    rig.control.refused.clear()
    with socket.create_server(("127.0.0.1", 0)) as mine:
        port = mine.getsockname()[1]
        rig.control.send(order(me, port, n=2, command=("bash", "--norc")))
        assert f"its listener is pid {os.getpid()}" in rig.control.refusal("not_taken")["why"]
    rig.control.refused.clear()
    pid, port = person.engine("--health-status", "500")
    until(lambda: not ports.free(port), "its port")
    rig.control.send(order(pid, port, "--health-status", "500", n=3))
    assert "/health " in rig.control.refusal("not_taken")["why"]
    assert person.says("echo alive") == "alive"


def test_a71_the_gpus_of_its_whole_tree_are_its(
    tmp_path: Path, person: Shell, cards: Cards
) -> None:
    """A worker of it has the memory (vLLM's EngineCore): shown under the engine, and its own once it is taken over."""
    rig = Rig(tmp_path, gpus="auto", world={"beat_s": 0.3})
    rig.start_agent(**cards.env).registered()
    try:
        rig.control.programs = list(PROGRAM)
        pid, port = person.engine("--fork")
        child = until(
            lambda: [s.pid for s in process.all_stats().values() if s.ppid == pid], "its child"
        )[0]
        cards.use(0, 9 * GIB, (child, 9 * GIB))

        def shown() -> list[dict[str, Any]]:
            rows = gpu_users(rig.control.events[-1]) if rig.control.events else []
            return [f for f in rows if f["by_hand"]]

        (row,) = rig.control.wait(shown, "the engine behind it")
        assert (row["pid"], row["gpu"], row["memory"]) == (child, UUIDS[0], 9 * GIB)
        assert (row["by_hand"]["pid"], row["by_hand"]["port"]) == (pid, port)
        rig.control.send(order(pid, port, "--fork", gpus=UUIDS[1:2]))
        differ = [f for f in rig.control.refusal("not_taken")["facts"] if not f["same"]]
        assert [(f["what"], f["wanted"], f["runs"]) for f in differ] == [
            ("GPUs", UUIDS[1], UUIDS[0])
        ]
        assert taken(rig, pid, port, "--fork", gpus=UUIDS[:1])["gpus"] == [UUIDS[0]]
        rig.control.wait(lambda: not gpu_users(rig.control.events[-1]), "no stranger any more")
    finally:
        rig.close()


def test_a71_its_key_is_found_where_it_was_given(rig: Rig, person: Shell) -> None:
    """Else an adopted engine would answer nobody: control is told the key, people are not."""
    rig.start_agent().registered()
    pid, port = person.engine("--api-key-env", "KEY", env="KEY=sesame")
    shard = taken(rig, pid, port, "--api-key-env", "KEY", env={"KEY": "${api_key}"})
    assert shard["api_key"] == "sesame"
