"""How a new control takes the gateway's listening socket, and the gateway's secret, from the running gateway.

One JSON line each way over `STATE_DIR/gateway.sock`: `{"op":"hello"}` says who serves, `{"op":"listener"}` hands over
the listening socket (SCM_RIGHTS) and the token the gateway calls control with, `{"op":"stop"}` lets it finish and exit.
`{"op":"takeover"}` is a new gateway's: it gets the state dir's lock too, and the connection stays open until `stop` on
it; if it ends without, the old gateway goes on as before. Each side looks at the other's uid. The functions here are
the client's, and block for `timeout_s` at most; the server is `gateway.door`. It may not spawn or end anything.
"""

from __future__ import annotations

import array
import os
import socket
import struct
from contextlib import closing
from pathlib import Path
from typing import NamedTuple

import msgspec

from llmgw.errors import LlmgwError, UnreachableError

NAME = "gateway.sock"
LINE_BYTES = 64 * 1024
_UCRED = struct.Struct("3i")


class Ask(msgspec.Struct):
    op: str


class Hello(msgspec.Struct, omit_defaults=True):
    """What a gateway says of itself; `token` only with the listener, `error` where it refuses."""

    pid: int = 0
    gateway: str = ""
    version: str = ""
    table: int = 0
    listen: str = ""
    token: str = ""
    error: str = ""
    #: the URLs by which it was told to call control
    controls: tuple[str, ...] = ()
    #: a worker whose parent died: it serves, and starts no other
    orphan: bool = False
    #: the refusal is one of this moment: ask again
    busy: bool = False


class Listener(NamedTuple):
    socket: socket.socket
    token: str
    gateway: Hello


class BusyError(UnreachableError):
    """The gateway changes hands right now: ask again."""


class RefusedError(UnreachableError):
    """It will say the same the next time."""


class Old(NamedTuple):
    """The gateway whose place is taken. It serves until `end`, and for ever if `conn` ends before that.

    `lock` is its state dir's, the same one: it is held until both have let go.
    """

    listener: socket.socket
    lock: int
    token: str
    gateway: Hello
    conn: socket.socket

    def end(self) -> bool:
        """Let it finish what it has; False where it did not answer: it is dead, or reads that when it wakes."""
        with closing(self.conn):
            try:
                self.conn.sendall(msgspec.json.encode(Ask("stop")) + b"\n")
                return bool(_receive(self.conn)[0])
            except OSError:
                return False

    def keep(self) -> None:
        """Its place is not wanted after all."""
        self.conn.close()
        self.listener.close()
        os.close(self.lock)


def hello(state_dir: Path, timeout_s: float = 2.0) -> Hello:
    """The gateway that serves from `state_dir`; `UnreachableError` where none answers."""
    said, fds = _ask(state_dir, "hello", timeout_s)
    _close(fds)
    return said


def listener(state_dir: Path, timeout_s: float = 2.0) -> Listener:
    """A duplicate of the gateway's listening socket, ready to be passed on to the next gateway."""
    said, fds = _ask(state_dir, "listener", timeout_s)
    if len(fds) != 1:
        _close(fds)
        message = f"the gateway (pid {said.pid}) handed over {len(fds)} sockets instead of one"
        raise UnreachableError(message, "stop it and let control start a new one")
    return Listener(socket.socket(fileno=fds[0]), said.token, said)


def stop(state_dir: Path, timeout_s: float = 2.0) -> Hello:
    """Lets the gateway finish what it has and exit; says which process that is."""
    said, fds = _ask(state_dir, "stop", timeout_s)
    _close(fds)
    return said


def takeover(state_dir: Path, timeout_s: float = 2.0) -> Old:
    """Begin to take the place of the gateway that serves from `state_dir`; `BusyError` where another one does."""
    conn = socket.socket(socket.AF_UNIX)
    try:
        said, fds = _asked(conn, state_dir / NAME, "takeover", timeout_s)
    except BaseException:
        conn.close()
        raise
    if len(fds) != len(("listener", "lock")):
        conn.close()
        _close(fds)
        message = f"the gateway (pid {said.pid}) handed over {len(fds)} descriptors instead of 2"
        raise UnreachableError(message, "stop it and start a new one")
    return Old(socket.socket(fileno=fds[0]), fds[1], said.token, said, conn)


def _ask(state_dir: Path, op: str, timeout_s: float) -> tuple[Hello, list[int]]:
    with closing(socket.socket(socket.AF_UNIX)) as sock:
        return _asked(sock, state_dir / NAME, op, timeout_s)


def _asked(sock: socket.socket, path: Path, op: str, timeout_s: float) -> tuple[Hello, list[int]]:
    sock.settimeout(timeout_s)
    try:
        with short(path) as name:
            sock.connect(name)
        _same_user(sock, path)
        sock.sendall(msgspec.json.encode(Ask(op)) + b"\n")
        line, fds = _receive(sock)
    except OSError as e:
        message = f"no gateway answers at {path}: {e}"
        raise UnreachableError(message, "none runs from this state dir, or it hangs") from e
    try:
        said = msgspec.json.decode(line, type=Hello)
    except msgspec.MsgspecError as e:
        _close(fds)
        message = f"no gateway at {path}: it answers {line[:80]!r}"
        raise UnreachableError(message) from e
    if said.error:
        _close(fds)
        message = f"the gateway at {path} refuses {op}: {said.error}"
        raise (
            BusyError(message)
            if said.busy
            else RefusedError(message, "stop it and start a new one")
        )
    return said, fds


def _receive(sock: socket.socket) -> tuple[bytes, list[int]]:
    line, fds = b"", array.array("i")
    while not line.endswith(b"\n") and len(line) < LINE_BYTES:
        data, ancillary, _, _ = sock.recvmsg(
            4096, socket.CMSG_SPACE(4 * fds.itemsize), socket.MSG_CMSG_CLOEXEC
        )
        for level, kind, value in ancillary:
            if (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS):
                fds.frombytes(value[: len(value) - len(value) % fds.itemsize])
        if not data:
            break
        line += data
    return line, fds.tolist()


def _close(fds: list[int]) -> None:
    for fd in fds:
        os.close(fd)


def _same_user(sock: socket.socket, path: Path) -> None:
    uid = peer_uid(sock)
    if uid not in (os.getuid(), 0):
        message = f"{path} is served by uid {uid}, not by {os.getuid()}: no socket is taken from it"
        raise LlmgwError(message, "check who may write to the state dir")


def peer_uid(sock: socket.socket) -> int:
    """Whose process is on the other side, by the kernel's word."""
    raw = sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _UCRED.size)
    return int(_UCRED.unpack(raw)[1])


class short:  # noqa: N801 - reads as the context manager it is
    """A name of `path` for a unix socket, whose names end after 107 bytes: through the open folder."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def __enter__(self) -> str:
        self._fd = os.open(self._path.parent, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        return f"/proc/self/fd/{self._fd}/{self._path.name}"

    def __exit__(self, *_: object) -> None:
        os.close(self._fd)
