"""A scope of its own for each engine: the name, and that nothing a bus may answer keeps an engine from running.

That systemd does what it is asked for is shown by a real one, in tests/systemd.
"""

from __future__ import annotations

import asyncio
import os
import pwd
import socket
import struct
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from llmgw.agent import scopes
from llmgw.agent.bus import ATTACH, BusError, answer, call
from llmgw.core.supervise.claims import is_key

UNIT = "llmgw-engine-alpha-1-0-inc-1-1.scope"
OURS = "/system.slice/llmgw-agent.service"


def message(kind: int, serial: int, error: str = "", words: str = "") -> bytes:
    """An answer as dbus-daemon writes it: REPLY_SERIAL, for an error its name, then the sender and the types."""
    fields = struct.pack("<BB1sxI", 5, 1, b"u", serial)
    for code, text in ((4, error), (7, "org.freedesktop.DBus")):
        if text:
            fields += bytes(-len(fields) % 8)
            fields += struct.pack("<BB1sxI", code, 1, b"s", len(text)) + text.encode() + b"\0"
    body = b""
    if words:
        fields += bytes(-len(fields) % 8) + struct.pack("<BB1sxB1sx", 8, 1, b"g", 1, b"s")
        body = struct.pack("<I", len(words)) + words.encode() + b"\0"
    head = struct.pack("<cBBBIII", b"l", kind, 1, 1, len(body), 77, len(fields))
    return head + fields + bytes(-len(fields) % 8) + body


Reply = Callable[[bytes, int], bytes | None]


class FakeBus:
    """Answers each message with what `reply(message, serial)` gives, a signal before it; None: never."""

    def __init__(self, folder: Path, reply: Reply, auth: bytes = b"OK 1234\r\n") -> None:
        self.path = folder / "bus"
        self.heard: list[bytes] = []
        self._reply, self._auth = reply, auth
        self._door = socket.socket(socket.AF_UNIX)
        self._door.bind(str(self.path))
        self._door.listen()
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._door.shutdown(socket.SHUT_RDWR)
        self._door.close()
        self._thread.join(5)

    def _serve(self) -> None:
        while True:
            try:
                client, _ = self._door.accept()
            except OSError:
                return
            with client, client.makefile("rb") as said:
                said.readline()
                client.sendall(self._auth)
                said.readline()
                self._talk(client, said.read)

    def _talk(self, client: socket.socket, read: Callable[[int], bytes]) -> None:
        while len(head := read(16)) == 16:
            body, serial, fields = struct.unpack("<III", head[4:])
            text = read(fields + -fields % 8) + read(body)
            self.heard.append(text)
            reply = self._reply(text, serial)
            if reply is not None:
                client.sendall(message(4, 0) + reply)


@pytest.fixture
def bus(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., FakeBus]]:
    """A systemd that is said to be pid 1, with this bus; the engine is moved once a scope was answered for."""
    made: list[FakeBus] = []

    def make(reply: Reply, **more: bytes) -> FakeBus:
        made.append(FakeBus(tmp_path, reply, **more))
        return made[-1]

    def cgroup(pid: int) -> str:
        moved = pid != os.getpid() and len(made[0].heard) > 1 if made else False
        return f"/llmgw.slice/{UNIT}" if moved else OURS

    monkeypatch.setattr(scopes, "booted", lambda: True)
    monkeypatch.setattr(scopes, "cgroup", cgroup)
    monkeypatch.setattr(scopes, "bus_path", lambda _: tmp_path / "bus")
    monkeypatch.setattr(scopes, "LIMIT_S", 0.5)
    yield make
    for each in made:
        each.close()


def enclosed(pid: int = 4_000_000) -> str:
    """Of a process that is not there: nobody's is moved by a mistake in a test."""
    return asyncio.run(scopes.enclose(pid, UNIT, "llmgw engine alpha-1/0"))


def fine(_: bytes, serial: int) -> bytes:
    return message(2, serial)


def refused(words: str, name: str) -> Reply:
    return lambda said, n: fine(said, n) if b"Hello" in said else message(3, n, name, words)


def test_the_name_is_one_that_systemd_takes_and_of_one_start_only() -> None:
    assert scopes.unit_name("alpha-1/0", "inc-1", 1) == UNIT
    shard, incarnation = "s" * 100 + "/9999", "i" * 100  # the longest that an agent takes
    assert is_key((shard, incarnation))
    names = {scopes.unit_name(shard, incarnation, attempt) for attempt in (1, 2, 99_999)}
    assert len(names) == 3
    assert max(map(len, names)) <= 255


def test_f80_it_asks_for_a_scope_with_this_process_in_it(bus: Callable[..., FakeBus]) -> None:
    heard = bus(fine).heard
    assert enclosed() == ""
    hello, start = heard
    assert b"Hello" in hello
    for part in (UNIT, "llmgw-engines.slice", "PIDs", "Delegate", "OOMPolicy", "kill"):
        assert part.encode() + b"\0" in start
    assert struct.pack("<I", 4_000_000) in start
    assert b"MemoryMax" not in start


def test_a_systemd_before_253_is_asked_again_without_an_oom_policy(
    bus: Callable[..., FakeBus],
) -> None:
    why = "Cannot set property OOMPolicy, or unknown property."
    name = "org.freedesktop.DBus.Error.PropertyReadOnly"

    def older(said: bytes, serial: int) -> bytes:
        return message(3, serial, name, why) if b"OOMPolicy" in said else fine(said, serial)

    heard = bus(older).heard
    assert enclosed() == ""
    assert [b"OOMPolicy" in said for said in heard] == [False, True, False]


def test_where_systemd_is_not_pid_1_nobody_is_asked(
    bus: Callable[..., FakeBus], monkeypatch: pytest.MonkeyPatch
) -> None:
    heard = bus(fine).heard
    monkeypatch.setattr(scopes, "booted", lambda: False)
    assert enclosed() == ""
    assert heard == []


def test_what_sits_elsewhere_is_left_where_it_is(
    bus: Callable[..., FakeBus], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A container's process, an engine in somebody's own unit."""
    heard = bus(fine).heard
    elsewhere = {os.getpid(): OURS, 4_000_000: "/machine.slice/libpod-1234.scope"}
    monkeypatch.setattr(scopes, "cgroup", elsewhere.__getitem__)
    assert enclosed() == ""
    assert heard == []


@pytest.mark.usefixtures("bus")
def test_no_bus_is_said_in_words(tmp_path: Path) -> None:
    assert enclosed() == (
        f"it, or a part of it, stays in {OURS} and not in {UNIT}: "
        f"no bus answers at {tmp_path / 'bus'}: no such file or directory"
    )


@pytest.mark.parametrize(
    ("reply", "auth", "why"),
    [
        (
            refused("Unit was already loaded.", "org.freedesktop.systemd1.UnitExists"),
            b"OK 1\r\n",
            "Unit was already loaded. (org.freedesktop.systemd1.UnitExists)",
        ),
        (fine, b"REJECTED EXTERNAL\r\n", f"the bus refuses uid {os.geteuid()}: REJECTED EXTERNAL"),
        (lambda *_: None, b"OK 1\r\n", "within 0.5 s"),
        (lambda *_: b"HTTP/1.1 400 Bad Request\r\n", b"OK 1\r\n", "or no D-Bus"),
    ],
    ids=["an error", "not let in", "silence", "something else"],
)
def test_whatever_the_bus_says_is_an_answer_in_words(
    bus: Callable[..., FakeBus], reply: Reply, auth: bytes, why: str
) -> None:
    bus(reply, auth=auth)
    assert why in enclosed()


def test_an_engine_is_put_under_no_manager_that_ends_before_it_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A user's own is stopped when he logs out, unless it lingers or we are part of it ourselves."""
    user = pwd.getpwall()[1]
    own = Path(f"/run/user/{user.pw_uid}/bus")
    monkeypatch.setattr(scopes, "LINGERS", tmp_path)
    monkeypatch.delenv("XDG_RUNTIME_DIR", raising=False)
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    assert scopes.bus_path(OURS) == scopes.SYSTEM_BUS
    monkeypatch.setattr(os, "geteuid", lambda: user.pw_uid)
    assert scopes.bus_path(f"/user.slice/user@{user.pw_uid}.service/app.slice/a.service") == own
    with pytest.raises(BusError, match=f"loginctl enable-linger {user.pw_name}"):
        scopes.bus_path(OURS)
    (tmp_path / user.pw_name).touch()
    assert scopes.bus_path(OURS) == own


def test_an_answer_is_read_past_fields_it_does_not_know() -> None:
    said = message(3, 9, "org.example.Error", "no")
    length = struct.unpack("<I", said[12:16])[0]
    fields = said[16 : 16 + length]
    assert answer(3, fields, said[16 + length + -length % 8 :]) == (3, 9, "no (org.example.Error)")


def test_a_message_is_padded_as_the_specification_wants() -> None:
    """The head with its fields ends at a multiple of 8, whatever the names are (D-Bus Specification, Marshaling)."""
    said = call(3, ATTACH, b"body")
    fields = struct.unpack("<I", said[12:16])[0]
    assert said[:4] == b"l\x01\x00\x01"
    assert len(said) == 16 + fields + -fields % 8 + 4


def test_the_cgroup_of_one_that_is_gone_is_nobodys() -> None:
    assert scopes.cgroup(4_000_000) == ""
    assert scopes.cgroup(os.getpid()).startswith("/")
