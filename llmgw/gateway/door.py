"""The server of `llmgw.handover`: how a new control finds this gateway, and gets the listening socket back.

Answers for: who may ask (the same uid, in a folder of mode 0700), and one gateway per state dir. It may not touch a
client.
"""

from __future__ import annotations

import asyncio
import fcntl
import os
import socket
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import msgspec

from llmgw import handover
from llmgw.errors import LlmgwError
from llmgw.handover import Ask, Hello

LOCK = "gateway.lock"


class StateDir:
    """The folder of one gateway, locked: two of them would take each other's socket and table."""

    def __init__(self, path: Path) -> None:
        try:
            path.mkdir(mode=0o700, parents=True, exist_ok=True)
            path.chmod(0o700)
            self._lock = os.open(path / LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as e:
            message = f"state dir {path} cannot be used: {e.strerror}"
            raise LlmgwError(message, "give a writable one of your own") from e
        self.path = path
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            holder = os.read(self._lock, 20).decode() or "unknown"
            os.close(self._lock)
            message = f"state dir {path} is in use by the gateway with pid {holder}"
            raise LlmgwError(message, "stop it, or give another state dir") from None
        with suppress(OSError):  # on a full disk: the pid helps people, the lock holds without it
            os.ftruncate(self._lock, os.pwrite(self._lock, str(os.getpid()).encode(), 0))

    def release(self) -> None:
        """The next gateway may start, while this one finishes."""
        os.close(self._lock)


class Door:
    """Listens on `gateway.sock` without a task or a thread: an answer is one line."""

    def __init__(
        self,
        state_dir: Path,
        listener: socket.socket,
        hello: Callable[[], Hello],
        token: str,
        stop: Callable[[], None],
    ) -> None:
        self._path = state_dir / handover.NAME
        self._listener = listener
        self._hello = hello
        self._token = token
        self._stop = stop
        self._loop = asyncio.get_running_loop()
        self._open: dict[socket.socket, bytes] = {}
        self._path.unlink(missing_ok=True)  # left by one that was killed: the lock is ours
        self._sock = socket.socket(socket.AF_UNIX)
        self._sock.setblocking(False)  # noqa: FBT003 - the standard library's own signature
        with handover.short(self._path) as name:
            self._sock.bind(name)
        self._sock.listen(16)
        self._loop.add_reader(self._sock, self._accept)

    def close(self) -> None:
        self._loop.remove_reader(self._sock)
        self._sock.close()
        self._path.unlink(missing_ok=True)
        for conn in tuple(self._open):
            self._end(conn)

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
                self._answer(conn, line)
            elif data and len(line) < handover.LINE_BYTES:
                return
        except OSError:
            pass  # it left; control asks again
        self._end(conn)

    def _end(self, conn: socket.socket) -> None:
        self._loop.remove_reader(conn)
        del self._open[conn]
        conn.close()

    def _answer(self, conn: socket.socket, line: bytes) -> None:
        fds: list[int] = []
        said = self._hello()
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
        elif op == "stop":
            self._loop.call_soon(self._stop)
        elif op != "hello":
            said = Hello(error=f"unknown request {line[:80]!r}")
        socket.send_fds(conn, [msgspec.json.encode(said) + b"\n"], fds)
