"""Is a port free, and whose listener is on it (A45, F69, F70)? May not choose a port.

A plain bind, without SO_REUSEADDR or SO_REUSEPORT, fails on every port that anybody listens on. It also fails for a
minute after an engine died with open connections (TIME_WAIT, and FIN_WAIT2 while the other end lives): they are
nobody's, and would block every restart.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import socket
import time
from collections.abc import Callable, Iterable, Iterator
from ipaddress import ip_address
from pathlib import Path
from typing import Literal, NamedTuple

from llmgw.agent import diag
from llmgw.agent.process import PROC, command_line

LISTEN = "0A"
TABLES = ("net/tcp", "net/tcp6")
ALL_V4, LOOPBACK = "0.0.0.0", "127.0.0.1"  # noqa: S104  compared with, not bound


Owner = tuple[Literal["", "ours", "other"], str]


class Socket(NamedTuple):
    address: str
    port: int
    state: str
    inode: int


#: Found free in this turn of the event loop: an order is looked at and carried out in one.
_found: set[int] = set()
#: Ports of engines of ours that have ended, and when: what is left on one by then is theirs, and nobody's.
_left: dict[int, float] = {}
#: TIME_WAIT lasts for a minute (TCP_TIMEWAIT_LEN), and so does an orphan in FIN_WAIT2 (tcp(7) tcp_fin_timeout).
ORPHANS_S = 120.0


def left(ports: Iterable[int]) -> None:
    """An engine of ours that had them has ended."""
    now = time.monotonic()
    for port in [p for p, at in _left.items() if now - at > ORPHANS_S]:
        del _left[port]
    _left.update(dict.fromkeys(ports, now))


def busy(ports: Iterable[int]) -> dict[int, str]:
    """Those of the ports that cannot be had, and by whom."""
    return {port: holder(port) for port in ports if port not in _found and not _free_now(port)}


def _free_now(port: int) -> bool:
    there = free(port)
    if there:
        with contextlib.suppress(RuntimeError):  # without a loop there are no turns
            asyncio.get_running_loop().call_soon(_found.clear)
            _found.add(port)
    return there


def free(port: int) -> bool:
    if _binds(port):
        return True
    return _orphaned(port) and _binds(port, reuse=True)


def _orphaned(port: int) -> bool:
    """Whether it is held by connections without an owner. To list them takes the kernel milliseconds (P9)."""
    at = _left.get(port)
    if at is not None and time.monotonic() - at < ORPHANS_S:
        return True
    return any(s.state != LISTEN and not s.inode for s in of_port(port))


def _binds(port: int, *, reuse: bool = False) -> bool:
    """Bind it on every address: the strictest question. With `reuse` orphans do not count, a listener does."""
    with socket.socket() as sock:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, int(reuse))
        try:
            sock.bind(("", port))
        except OSError as e:
            if e.errno in (errno.EADDRINUSE, errno.EACCES):
                return False
            raise
    return True


def sockets(
    local: int | None = None, read: Callable[[Path], str] = Path.read_text
) -> Iterator[Socket]:
    """All TCP sockets of this network namespace, or those of one local port: a busy host has tens of thousands."""
    wanted = "" if local is None else f":{local:04X} "
    for table in TABLES:
        path = PROC / table
        if not path.exists():
            continue
        for line in read(path).splitlines()[1:]:
            if wanted not in line:
                continue
            fields = line.split()
            address, _, port = fields[1].rpartition(":")
            if local in (None, int(port, 16)):
                yield Socket(_address(address), int(port, 16), fields[3], int(fields[9]))


def of_port(
    port: int, states: int = diag.ALL, read: Callable[[Path], str] = Path.read_text
) -> list[Socket]:
    """Those of one local port, and at least those of `states`: from the kernel's own list, else from the tables."""
    try:
        found = diag.sockets(port, states)
    except OSError:
        return list(sockets(port, read))
    return [Socket(s.address, port, f"{s.state:02X}", s.inode) for s in found]


#: The tables as they were read in this turn of the event loop.
_turn: dict[Path, str] = {}


def _once_a_turn(table: Path) -> str:
    """Fifty engines that answered together are one look at the table: it takes the kernel milliseconds to write it."""
    if table in _turn:
        return _turn[table]
    text = table.read_text()
    with contextlib.suppress(RuntimeError):  # without a loop there are no turns
        asyncio.get_running_loop().call_soon(_turn.clear)
        _turn[table] = text
    return text


def _address(raw: str) -> str:
    """As the kernel prints it: words of four bytes in host order; a v4 address in v6 clothes is v4."""
    words = [bytes.fromhex(raw[i : i + 8])[::-1] for i in range(0, len(raw), 8)]
    found = ip_address(b"".join(words))
    mapped = getattr(found, "ipv4_mapped", None)
    return str(mapped or found)


def listeners(port: int, address: str) -> list[Socket]:
    """Those that would get a connection to this address and port: the kernel prefers the closest binding."""
    there = [s for s in of_port(port, diag.LISTENING, _once_a_turn) if s.state == LISTEN]
    # One on all v4 addresses never hears a v6 one; on all of v6 it mostly hears both.
    everywhere = ("::",) if ":" in address else (ALL_V4, "::")
    for bound in (address, *everywhere):
        closest = [s for s in there if s.address == bound]
        if closest:
            return closest
    return []


def place(port: int, address: str, before: str) -> str:
    """Where to ask who listens on it: at `address` where that is heard, else where it does listen.

    `before`: where it was asked so far, "" where nobody knows, which stays while nobody listens.
    """
    found = of_port(port, diag.LISTENING, _once_a_turn) if port else []
    there = [s.address for s in found if s.state == LISTEN]
    try:
        if not there or listened(port, address):
            return address if there else before or address
        if before and listened(port, before):
            return before
        return LOOPBACK if there[0] == ALL_V4 else there[0]
    except (OSError, ValueError):  # a name that is none, or not known just now
        return before or address


def listened(port: int, address: str) -> bool:
    """Whether somebody takes connections there, without making one."""
    return bool(listeners(port, _numeric(address)))


def owner(port: int, address: str, ours: Iterable[int]) -> Owner:
    """Whose listener it is, "" where that cannot be seen; words for a stranger's, which counts where there are two."""
    found = {s.inode for s in listeners(port, _numeric(address)) if s.inode}
    strange = found - {inode for pid in ours for inode in inodes(pid)}
    if not strange:
        return ("ours", "") if found else ("", "")
    pid = _holder_of(strange)
    return ("other", f"its listener is {_named(pid)}") if pid else ("", "")


def pid_of(port: int) -> int:
    """Who has a port; 0 where nobody does, or nobody that we may see."""
    return _holder_of({s.inode for s in of_port(port) if s.inode})


def holder(port: int) -> str:
    """The same in words, of a port that somebody has."""
    pid = pid_of(port)
    return _named(pid) if pid else "a process that this user may not see"


def inodes(pid: int) -> Iterator[int]:
    """Sockets that a process holds open; none where we may not look."""
    folder = PROC / str(pid) / "fd"
    try:
        names = os.listdir(folder)  # noqa: PTH208  names only
    except OSError:
        return
    for name in names:
        target = _link(folder / name)
        if target.startswith("socket:["):
            yield int(target[8:-1])


def _link(path: Path) -> str:
    try:
        return os.readlink(path)  # noqa: PTH115  a socket's link is no path
    except OSError:
        return ""


def _holder_of(wanted: set[int]) -> int:
    for name in os.listdir(PROC):  # noqa: PTH208  names only
        if name.isdecimal() and not wanted.isdisjoint(inodes(int(name))):
            return int(name)
    return 0


def _named(pid: int) -> str:
    return f"pid {pid} ({command_line(pid)[:80]})"


def _numeric(address: str) -> str:
    try:
        return str(ip_address(address))
    except ValueError:
        return socket.gethostbyname(address)
