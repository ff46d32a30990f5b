"""What an agent sees of engines that a person started: listeners, trees, services and containers (A70, A71, F65)."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from llmgw.agent import by_hand, process
from llmgw.core.types.by_hand import Started
from llmgw.core.types.messages import Start
from llmgw.core.types.record import Record
from scripts.ports import free_port
from tests.agent.rig import alive, until
from tests.engines.shell import Shell, shell

PROGRAM = {"fake_engine.py"}
START = Start(shard="a-1/0", replica="a-1", incarnation="i", model="a", profile="main")


@pytest.fixture
def person(tmp_path: Path) -> Iterator[Shell]:
    with shell(tmp_path) as one:
        yield one


def listening(engines: by_hand.Engines, pid: int) -> Started:
    """It, once it listens."""
    found: list[Started] = until(lambda: [e for e in engines.look(PROGRAM) if e.pid == pid], "it")
    return found[0]


def ticks_of(pid: int) -> int:
    stat = process.read_stat(pid)
    assert stat is not None
    return stat.ticks


# ------------------------------------------------ found


def test_a70_a_new_listener_is_looked_at_once(person: Shell, monkeypatch: Any) -> None:
    engines = by_hand.Engines()
    pid, port = person.engine("--api-key", "sesame")
    found = listening(engines, pid)
    assert (found.port, found.start_ticks, found.cwd) == (port, ticks_of(pid), str(person.folder))
    assert found.argv[-4:] == ("--port", str(port), "--api-key", "***")
    assert found.started_at.startswith("20")

    looked: set[int] = set()
    holders_of = by_hand._holders_of

    def noted(inodes: set[int]) -> dict[int, int]:
        looked.update(inodes)
        return holders_of(inodes)

    mine = {i for i, at in by_hand._listening() if at == port}
    monkeypatch.setattr(by_hand, "_holders_of", noted)
    assert any(e.pid == pid for e in engines.look(PROGRAM))
    assert not any(e.pid == pid for e in engines.look())  # the catalog does not start it any more
    assert not looked & mine  # others may begin to listen on this host meanwhile
    os.kill(pid, signal.SIGKILL)
    until(lambda: not any(e.pid == pid for e in engines.look(PROGRAM)), "its end")


def test_a70_nobody_who_carries_an_agents_markers_is_a_stranger(person: Shell) -> None:
    """Two agents may share a host: each one's engines are its own, and no person's."""
    engines = by_hand.Engines()
    marked, _ = person.engine(env="LLMGW_NODE_ID=another")
    plain, _ = person.engine()
    listening(engines, plain)
    until(lambda: (person.folder / "engine.log").read_text().count("listening") >= 1, "both")
    time.sleep(0.3)
    assert not any(e.pid == marked for e in engines.look(PROGRAM))


def test_of_a_parent_and_its_workers_the_parent_is_the_engine(tmp_path: Path) -> None:
    """Workers inherit the socket (uvicorn, gunicorn); several ports: the one that is named."""
    script = tmp_path / "llama-server"
    first, second = sorted((free_port(), free_port()))
    script.write_text(
        "import os, socket, time\n"
        f"a = socket.create_server(('127.0.0.1', {first}))\n"
        f"b = socket.create_server(('127.0.0.1', {second}))\n"
        "os.fork()\n"
        "print('up', flush=True)\n"
        "time.sleep(60)\n"
    )
    words = [sys.executable, str(script), "--port", str(second)]
    with subprocess.Popen(
        words, stdout=subprocess.PIPE, start_new_session=True, text=True
    ) as server:
        try:
            assert server.stdout
            assert server.stdout.readline()
            assert server.stdout.readline()
            engines = by_hand.Engines()
            (found,) = [e for e in engines.look() if str(script) in e.argv]
            assert (found.pid, found.port) == (server.pid, second)
            worker = next(s.pid for s in process.all_stats().values() if s.ppid == server.pid)
            assert by_hand.engine_of(worker, {server.pid: found}) == found
            assert by_hand.engine_of(os.getpid(), {server.pid: found}) is None
        finally:
            os.killpg(server.pid, signal.SIGKILL)


def test_a_command_line_without_end_is_cut_and_broken_text_is_text(tmp_path: Path) -> None:
    script = tmp_path / "vllm"
    port = free_port()
    script.write_text(
        f"import socket, time\ns = socket.create_server(('127.0.0.1', {port}))\n"
        "print('up', flush=True)\ntime.sleep(60)\n"
    )
    words = [sys.executable.encode(), bytes(script), b"\xff", b"x" * 10_000, b"y"]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as server:
        try:
            assert server.stdout
            assert server.stdout.readline()
            (found,) = [e for e in by_hand.Engines().look() if e.pid == server.pid]
            assert found.argv[1:] == (str(script), "\ufffd")
        finally:
            server.kill()


# ------------------------------------------------ the tree


def test_a71_only_what_descends_from_it_is_its_tree(person: Shell) -> None:
    """Never the shell, nor what else was started in it; what was seen to descend stays known (F65)."""
    pid, _ = person.engine("--fork")
    other, _ = person.engine()
    child = until(
        lambda: [s.pid for s in process.all_stats().values() if s.ppid == pid], "its child"
    )[0]
    record = Record(start=START, pid=pid, start_ticks=ticks_of(pid), by_hand=True)
    seen = by_hand.tree_of(record, {}, [], process.all_stats())
    assert (seen.leader, set(seen.alive), seen.doubtful) == ("same", {pid, child}, ())
    assert process.all_stats()[child].sid == person.process.pid
    assert other not in seen.alive
    os.kill(pid, signal.SIGKILL)
    until(lambda: not alive(pid), "its end")
    after = by_hand.tree_of(record, seen.alive, [], process.all_stats())
    assert (set(after.alive), after.leader) == ({child}, "absent")
    assert by_hand.tree_of(record, {}, [], process.all_stats()).alive == {}
    process.send(child, seen.alive[child], signal.SIGKILL)
    stranger = Record(start=START, pid=other, start_ticks=1, by_hand=True)
    said = by_hand.tree_of(stranger, {}, [], process.all_stats())
    assert (said.alive, said.leader) == ({}, "other")
    assert "not 1" in said.detail


# ------------------------------------------------ services and containers


@pytest.mark.parametrize(
    ("group", "service"),
    [
        ("0::/system.slice/ollama.service", "ollama.service"),
        ("0::/user.slice/user-1000.slice/session-3.scope", ""),
        ("0::/user.slice/user-1000.slice/user@1000.service/tmux-spawn-1.scope", ""),
        ("0::/user.slice/user-1000.slice/user@1000.service", ""),
        ("0::/user.slice/user@1000.service/app.slice/llama.service", "llama.service"),
        ("12:pids:/x\n1:name=systemd:/system.slice/x.service/sub", "x.service"),
        ("0::/", ""),
        ("3:cpu:/x.service", ""),
    ],
)
def test_a71_a_services_process_is_its_units(
    group: str, service: str, tmp_path: Path, monkeypatch: Any
) -> None:
    """systemd.unit(5): what a .service lost it starts again; a .scope was started by somebody else."""
    proc = _proc(tmp_path, monkeypatch, group)
    assert by_hand._service(proc) == service


@pytest.mark.parametrize(
    ("group", "contained"),
    [
        ("0::/system.slice/docker-0123.scope", True),
        ("0::/machine.slice/libpod-0123.scope/container", True),
        ("0::/user.slice/session-3.scope", False),
    ],
)
def test_a71_a_containers_process_is_its_runtimes(
    group: str, contained: bool, tmp_path: Path, monkeypatch: Any
) -> None:
    assert by_hand._contained(_proc(tmp_path, monkeypatch, group)) is contained


def _proc(folder: Path, monkeypatch: Any, group: str) -> int:
    """A /proc with another process of that control group, and ours in a group of its own."""
    for pid, said in ((4242, group), (os.getpid(), "0::/agent.service")):
        (folder / str(pid) / "ns").mkdir(parents=True)
        (folder / str(pid) / "cgroup").write_text(f"{said}\n")
        for name in ("pid", "net"):
            (folder / str(pid) / "ns" / name).symlink_to(f"{name}:[1]")
    monkeypatch.setattr(by_hand, "PROC", folder)
    return 4242


def test_a_group_that_is_ours_too_is_no_ones_service(tmp_path: Path, monkeypatch: Any) -> None:
    """In a container of our own, or beside the agent, everything is in one group."""
    pid = _proc(tmp_path, monkeypatch, "0::/agent.service")
    assert (by_hand._service(pid), by_hand._contained(pid)) == ("", False)
    (tmp_path / str(pid) / "ns" / "net").unlink()
    (tmp_path / str(pid) / "ns" / "net").symlink_to("net:[2]")
    assert by_hand._contained(pid)
    (
        tmp_path / str(pid) / "ns" / "net"
    ).unlink()  # not shown to us: its user differs, and that is said
    assert not by_hand._contained(pid)
