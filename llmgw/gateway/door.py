"""The server of `llmgw.handover`: how a new control finds this gateway, and how a new gateway takes its place.

Answers for: who may ask (the same uid, in a folder of mode 0700), and one gateway per state dir; two only while one
takes over from the other, and either may be killed then. It may not touch a client.
"""

from __future__ import annotations

import asyncio
import fcntl
import os
import socket
from contextlib import closing, suppress
from pathlib import Path
from typing import Protocol

import msgspec

from llmgw import handover
from llmgw.errors import LlmgwError
from llmgw.handover import Ask, Hello

LOCK = "gateway.lock"


class InUseError(LlmgwError):
    """A gateway serves from this state dir."""


class StateDir:
    """The folder of one gateway, locked: two of them would take each other's socket and table.

    A lock that is handed over (`inherited`) is held by both, as flock(2) has it, until the second lets go. Its file
    names the holder, and the `family` of workers that holder is of: of a dead parent they hold the place together.
    """

    def __init__(
        self, path: Path, inherited: int | None = None, family: str = "", *, signs: bool = True
    ) -> None:
        """`signs` False: whoever looks first at who had it `before`, and lets go or signs."""
        self.path = path
        self.family = family
        #: pid and family of whoever had it last
        self.before = ("", "")
        if inherited is not None:
            self.lock = inherited
            return
        try:
            path.mkdir(mode=0o700, parents=True, exist_ok=True)
            path.chmod(0o700)
            self.lock = os.open(path / LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as e:
            message = f"state dir {path} cannot be used: {e.strerror}"
            raise LlmgwError(message, "give a writable one of your own") from e
        try:
            fcntl.flock(self.lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            holder = _holder(self.lock)[0] or "unknown"
            os.close(self.lock)
            message = f"state dir {path} is in use by the gateway with pid {holder}"
            hint = "stop it, take over from it with --takeover, or give another state dir"
            raise InUseError(message, hint) from None
        self.before = _holder(self.lock)
        if signs:
            self.sign()

    def sign(self, pid: int | None = None) -> None:
        """Whose it is; on a full disk the lock holds without it. 0: a family's, and all of it ends."""
        words = f"{os.getpid() if pid is None else pid} {self.family}".strip()
        with suppress(OSError):
            os.ftruncate(self.lock, os.pwrite(self.lock, words.encode(), 0))

    def release(self) -> None:
        """The next gateway may start, while this one finishes. Never LOCK_UN: the heir holds the same lock."""
        os.close(self.lock)


def _holder(lock: int) -> tuple[str, str]:
    pid, _, family = os.pread(lock, 60, 0).decode(errors="replace").partition(" ")
    return pid, family


def holder(path: Path) -> tuple[str, str]:
    """Pid and family of the last one to have the lock; empty where nobody can say."""
    try:
        lock = os.open(path / LOCK, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return "", ""
    with closing(os.fdopen(lock, "rb")):
        return _holder(lock)


class Doorman(Protocol):
    """What the door asks of its gateway: what to say of it, to end, and to leave its place to another."""

    def hello(self) -> Hello: ...

    def stop(self) -> None: ...

    def give_way(self) -> None: ...


class Door:
    """Listens on `gateway.sock` without a task or a thread: an answer is one line.

    It comes to its name by a rename, so there is always one behind it, also while gateways change. `settled` False: we
    take over ourselves, and nobody from us.
    """

    def __init__(
        self,
        state_dir: StateDir,
        listener: socket.socket,
        gateway: Doorman,
        token: str,
        *,
        settled: bool = True,
    ) -> None:
        self._path = state_dir.path / handover.NAME
        self._state_dir = state_dir
        self._listener = listener
        self._gateway = gateway
        self._token = token
        self.settled = settled
        self._loop = asyncio.get_running_loop()
        self._open: dict[socket.socket, bytes] = {}
        self._heir: socket.socket | None = None
        self._gave_way = False
        self._bind()

    def _bind(self) -> None:
        aside = self._path.with_suffix(".new")
        aside.unlink(missing_ok=True)  # left by one that was killed
        self._sock = socket.socket(socket.AF_UNIX)
        self._sock.setblocking(False)  # noqa: FBT003 - the standard library's own signature
        with handover.short(aside) as name:
            self._sock.bind(name)
        self._sock.listen(16)
        self._inode = aside.stat().st_ino
        aside.replace(self._path)
        self._loop.add_reader(self._sock, self._accept)

    def _ours(self) -> bool:
        try:
            return self._path.stat().st_ino == self._inode
        except OSError:
            return False

    def close(self) -> None:
        self._shut()
        # While an heir is there the name may become its own at any moment.
        if self._heir is None and self._ours():
            self._path.unlink()
        for conn in tuple(self._open):
            self._end(conn)

    def _shut(self) -> None:
        self._loop.remove_reader(self._sock)
        self._sock.close()

    def _accept(self) -> None:
        try:
            conn, _ = self._sock.accept()
        except OSError:
            return
        conn.setblocking(False)  # noqa: FBT003 - as above
        self._open[conn] = b""
        self._loop.add_reader(conn, self._read, conn)

    def _read(self, conn: socket.socket) -> None:
        try:
            data = conn.recv(4096)
            line = self._open[conn] = self._open[conn] + data
            if line.endswith(b"\n"):
                self._open[conn] = b""
                if self._answer(conn, line):
                    return
            elif data and len(line) < handover.LINE_BYTES:
                return
        except OSError:
            pass  # it left; control asks again
        if conn is self._heir and not self._gave_way:
            self._deserted()
        self._end(conn)

    def _end(self, conn: socket.socket) -> None:
        self._loop.remove_reader(conn)
        del self._open[conn]
        conn.close()

    def _deserted(self) -> None:
        """The heir ended before we did: its door, where it had opened one, is dead."""
        self._heir = None
        self._state_dir.sign()
        if not self._ours():
            self._shut()
            self._bind()

    def _answer(self, conn: socket.socket, line: bytes) -> bool:
        """Whether this connection has more to say."""
        fds: list[int] = []
        said = self._gateway.hello()
        uid = handover.peer_uid(conn)
        try:
            op = msgspec.json.decode(line, type=Ask).op
        except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError):
            op = ""
        if uid not in (os.getuid(), 0):
            said = Hello(error=f"uid {uid} may not ask")
        elif op == "listener":
            said.token = self._token
            fds = [self._listener.fileno()]
        elif op == "takeover":
            if self._heir is not None or not self.settled:
                said = Hello(error=f"pid {said.pid} hands over or takes over already", busy=True)
            else:
                said.token = self._token
                fds = [self._listener.fileno(), self._state_dir.lock]
                self._heir = conn
        elif op == "stop" and conn is self._heir:
            self._gave_way = True
            self._loop.call_soon(self._gateway.give_way)
        elif op == "stop":
            self._loop.call_soon(self._gateway.stop)
        elif op != "hello":
            said = Hello(error=f"unknown request {line[:80]!r}")
        socket.send_fds(conn, [msgspec.json.encode(said) + b"\n"], fds)
        return conn is self._heir and not self._gave_way
