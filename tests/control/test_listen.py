"""Whose a taken port is, by a /proc of our own making; and what is made of one that /proc tells nobody of."""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from llmgw.config import Address
from llmgw.control import listen, spawn
from llmgw.control.listen import PortTakenError, holders
from tests.control.test_spawn import made

PORT = 8801
PID = 4242


def table(proc: Path, port: int) -> None:
    """A listener with inode 77."""
    (proc / "net").mkdir(parents=True)
    row = f"   0: 0100007F:{port:04X} 00000000:0000 0A 00000000:00000000 00:00000000 00000000  0  0 77 1"
    (proc / "net" / "tcp").write_text(f"  sl  local_address ...\n{row}\n")


def process(proc: Path, pid: int, *words: str) -> Path:
    """That has it among others; its folder of descriptors."""
    fds = proc / str(pid) / "fd"
    fds.mkdir(parents=True)
    for number, target in ((0, "/dev/null"), (3, "socket:[77]"), (5, "socket:[78]")):
        (fds / str(number)).symlink_to(target)
    write_words(proc, pid, *words)
    return fds


def write_words(proc: Path, pid: int, *words: str) -> None:
    (proc / str(pid) / "cmdline").write_bytes(b"".join(os.fsencode(w) + b"\0" for w in words))


@pytest.fixture
def proc(tmp_path: Path, monkeypatch: Any) -> Path:
    monkeypatch.setattr(listen, "PROC", tmp_path / "proc")
    monkeypatch.setattr(spawn, "PROC", tmp_path / "proc")
    monkeypatch.setattr(spawn, "ASK_S", 0.01)
    return tmp_path / "proc"


def test_a_descriptor_that_is_closed_meanwhile_hides_no_other(proc: Path) -> None:
    """As a program that is being executed closes what it does not pass on."""
    table(proc, PORT)
    fds = process(proc, PID, "llmgw", "gateway")
    for number in (1, 4, 9):
        (fds / str(number)).touch()  # no link any more
    assert list(holders(PORT)) == [(PID, "llmgw gateway")]
    assert list(holders(PORT + 1)) == []


def taken(gateway: spawn.Gateway) -> socket.socket:
    return socket.create_server((gateway.where.host, gateway.where.port))


def after_the_first(monkeypatch: Any, then: Callable[[], None]) -> list[int]:
    """Do that between the first bind that is refused and the second; the pids that each refusal named."""
    bound, named = listen.bound, list[int]()

    def watched(where: Address, what: str, option: str) -> socket.socket:
        if len(named) == 1:
            then()
        try:
            return bound(where, what, option)
        except PortTakenError as e:
            named.append(e.pid)
            raise

    monkeypatch.setattr(spawn, "bound", watched)
    return named


@pytest.mark.usefixtures("proc")
def test_a_port_that_nobody_is_seen_to_have_may_be_free_in_a_moment(
    tmp_path: Path, monkeypatch: Any
) -> None:
    gateway = made(tmp_path)
    with taken(gateway) as other:
        named = after_the_first(monkeypatch, other.close)
        asyncio.run(gateway.prepare())
    assert named == [0]
    assert gateway.listener is not None
    gateway.let_go()


@pytest.mark.parametrize("seen", [False, True], ids=["not_seen", "without_words"])
def test_or_be_that_of_a_gateway_on_its_way_up(
    seen: bool, tmp_path: Path, proc: Path, monkeypatch: Any
) -> None:
    """The one before was killed just after it had spawned it."""
    gateway = made(tmp_path)
    table(proc, gateway.where.port)
    words = ("llmgw", "gateway", "--state-dir", str(tmp_path / "gateway"))
    if seen:
        process(proc, PID)

    def told() -> None:
        if not seen:
            process(proc, PID)
        write_words(proc, PID, *words)

    monkeypatch.setattr(spawn, "PATIENCE_S", 0.0)
    with taken(gateway):
        named = after_the_first(monkeypatch, told)
        asyncio.run(gateway.prepare())
    assert named == [PID if seen else 0, PID]
    assert f"the gateway (pid {PID}) has {gateway.where} and does not answer" in gateway.said()
    gateway.let_go()


def test_one_that_stays_taken_is_refused(tmp_path: Path, proc: Path, monkeypatch: Any) -> None:
    gateway = made(tmp_path)
    with taken(gateway):
        named = after_the_first(monkeypatch, lambda: None)
        with pytest.raises(PortTakenError, match=r"the port is in use$"):
            asyncio.run(gateway.prepare())
        assert len(named) > 2
        table(proc, gateway.where.port)
        process(proc, PID, "nginx")
        named.clear()
        with pytest.raises(PortTakenError, match=rf"in use by pid {PID} \(nginx\)$"):
            asyncio.run(gateway.prepare())
        assert named == [PID], "who is seen is named at once"
