"""The TCP sockets of one port, asked of the kernel directly (sock_diag(7)).

/proc/net/tcp is the whole host's table as text: milliseconds on an idle box, between a client and its first token.
Raises OSError where the kernel does not answer (inet_diag is a module that a container may not load). May not judge.
"""

from __future__ import annotations

import os
import socket
import struct
from collections.abc import Iterator
from ipaddress import ip_address
from typing import NamedTuple

#: NETLINK_SOCK_DIAG, TCPDIAG_GETSOCK, REQUEST | DUMP. Asked by family (SOCK_DIAG_BY_FAMILY) the kernel walks the whole
#: host's table for each of the two; asked so it walks it once, for both.
SOCK_DIAG, GETSOCK, DUMP = 4, 18, 0x301
ERROR, DONE = 2, 3  # NLMSG_ERROR, NLMSG_DONE
#: A bit for each state (tcp_states.h): those that only listen, and all.
LISTENING, ALL = 1 << 10, 0x1FFF
_HEAD = struct.Struct("=IHHII")
#: struct inet_diag_req: family, lengths, extensions; its sockid, whose ports are big-endian, with the addresses,
#: interface and cookie of nobody; states, and none of the flags.
_ASKED, _PORTS, _ANYBODY, _STATES = (
    bytes((socket.AF_INET, 0, 0, 0)),
    struct.Struct("!HH"),
    bytes(36) + b"\xff" * 8,
    struct.Struct("=II"),
)
#: struct inet_diag_msg: family, state, ..., port, addresses, ..., inode.
_FOUND = struct.Struct("=BB2x2s2x16s16s12x16xI")
BUFFER_BYTES = 1 << 16


class Found(NamedTuple):
    address: str
    state: int
    inode: int


def sockets(port: int, states: int = ALL) -> list[Found]:
    """Of this network namespace, with `port` as their own; those of one that is only bound are in no table."""
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW | socket.SOCK_CLOEXEC, SOCK_DIAG) as line:
        return list(_dump(line, port, states))


def _dump(line: socket.socket, port: int, states: int) -> Iterator[Found]:
    what = _ASKED + _PORTS.pack(port, 0) + _ANYBODY + _STATES.pack(states, 0)
    line.send(_HEAD.pack(_HEAD.size + len(what), GETSOCK, DUMP, 0, 0) + what)
    while True:
        raw, at = line.recv(BUFFER_BYTES), 0
        while at < len(raw):
            size, kind, *_ = _HEAD.unpack_from(raw, at)
            body = at + _HEAD.size
            if kind == DONE:
                return
            if kind == ERROR:
                code = -struct.unpack_from("=i", raw, body)[0]
                raise OSError(code, os.strerror(code), "sock_diag")
            v, state, own, address, _, inode = _FOUND.unpack_from(raw, body)
            if own == port.to_bytes(2, "big"):
                yield Found(_address(v, address), state, inode)
            at += (size + 3) & ~3


def _address(family: int, raw: bytes) -> str:
    """A v4 address in v6 clothes is v4."""
    found = ip_address(raw[:4] if family == socket.AF_INET else raw)
    return str(getattr(found, "ipv4_mapped", None) or found)
