"""Listening sockets, and whose a taken port is. May not know what is served on them."""

from __future__ import annotations

import errno
import socket
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from urllib.parse import urlsplit

from llmgw.config import Address
from llmgw.control.lease import spec
from llmgw.errors import LlmgwError

PROC = Path("/proc")
EVERY = frozenset({"0.0.0.0", "::"})  # noqa: S104 - compared
BACKLOG = 4096
_LISTEN = "0A"


class PortTakenError(LlmgwError):
    """`pid` and `command` of the holder, 0 and "" where /proc does not tell."""

    code = "port_taken"

    def __init__(self, what: str, where: Address, option: str, pid: int, command: str) -> None:
        by = f" by pid {pid} ({command})" if pid else ""
        msg = f"{what} cannot listen on {where}: the port is in use{by}"
        super().__init__(msg, f"end that program, or choose another port: {option} HOST:PORT")
        self.pid = pid
        self.command = command


def bound(where: Address, what: str, option: str) -> socket.socket:
    """Listens already; closed on exec unless it is passed on by its number."""
    try:
        found = socket.getaddrinfo(where.host, where.port, type=socket.SOCK_STREAM)
        family, kind, proto, _, place = found[0]
        sock = socket.socket(family, kind, proto)
    except OSError as e:
        msg = f"{what} cannot listen on {where}: {e.strerror}"
        raise LlmgwError(msg, f"choose another address: {option} HOST:PORT") from e
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.bind(place)
        sock.listen(BACKLOG)
    except OSError as e:
        sock.close()
        if e.errno == errno.EADDRINUSE:
            raise PortTakenError(what, where, option, *holder(where.port)) from e
        msg = f"{what} cannot listen on {where}: {e.strerror}"
        raise LlmgwError(msg, f"choose another address: {option} HOST:PORT") from e
    return sock


def advertised(where: Address, lease: str) -> str:
    """Where other controls and gateways find this one; bound to every address, the one that etcd is reached by."""
    if where.host not in EVERY:
        return where.url
    store = spec.check(lease)
    if store is None:
        return Address("127.0.0.1", where.port).url  # a file's standby is on this host
    server = urlsplit(store.servers[0])
    with socket.socket(
        socket.AF_INET6 if ":" in str(server.hostname) else socket.AF_INET, socket.SOCK_DGRAM
    ) as sock:
        try:
            sock.connect((str(server.hostname), server.port or 1))  # sends nothing
            host = sock.getsockname()[0]
        except OSError:
            host = socket.gethostname()
    return Address(host, where.port).url


def holder(port: int) -> tuple[int, str]:
    """Pid and command of the program that listens on a port of this box; (0, "") where /proc does not say."""
    return next(holders(port), (0, ""))


def holders(port: int) -> Iterator[tuple[int, str]]:
    """All who have the listening socket: several after it was passed on."""
    inodes = {f"socket:[{inode}]" for inode in _inodes(port)}
    for folder in PROC.glob("[0-9]*"):
        if inodes.isdisjoint(_links(folder / "fd")):
            continue
        try:
            words = (folder / "cmdline").read_bytes().split(b"\0")
        except OSError:
            continue
        yield int(folder.name), b" ".join(words).decode(errors="replace").strip()[:120]


def _links(fds: Path) -> Iterator[str]:
    """Each by itself: one may be closed while we look, and a program that begins closes many."""
    with suppress(OSError):  # it has ended, or is another user's
        for fd in fds.iterdir():
            with suppress(OSError):
                yield str(fd.readlink())


def _inodes(port: int) -> set[str]:
    found = set()
    for name in ("net/tcp", "net/tcp6"):
        try:
            lines = (PROC / name).read_text().splitlines()[1:]
        except OSError:
            continue
        for line in lines:
            fields = line.split()
            if fields[3] == _LISTEN and int(fields[1].rpartition(":")[2], 16) == port:
                found.add(fields[9])
    return found
