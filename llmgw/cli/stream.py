"""An answer that comes line by line, with the standard library. May not try again: who follows decides that."""

from __future__ import annotations

import json
import socket
from collections.abc import Callable, Iterator

from llmgw.cli import ask


def lines(
    peer: ask.Peer,
    path: str,
    *,
    wait_s: float | None = ask.TIMEOUT_S,
    heard: Callable[[], object] | None = None,
) -> Iterator[str]:
    """`wait_s` None waits for ever for the next byte. UnreachableError: nobody, or it broke off.

    `heard` is called once somebody answers, which may be long before the first line.
    """
    base = ask.address(peer)[2]
    request = ask.head(peer, "GET", f"{base}{path}")
    try:
        with ask.connect(peer, ask.TIMEOUT_S) as sock:
            sock.sendall(request)
            yield from _body(peer, sock, wait_s, heard)
    except OSError as e:
        raise ask.unreachable(peer, e, wait_s or ask.TIMEOUT_S) from e


def _body(
    peer: ask.Peer, sock: socket.socket, wait_s: float | None, heard: Callable[[], object] | None
) -> Iterator[str]:
    data = b""
    while b"\r\n\r\n" not in data:
        part = sock.recv(1 << 16)
        if not part:
            msg = "it broke off"
            raise ask.mute(peer, data) or OSError(msg)
        data += part
    head, _, data = data.partition(b"\r\n\r\n")
    status = head.split(b" ", 2)[1:2]
    if status != [b"200"]:
        _refused(peer, sock, status, data)
    if heard:
        heard()
    sock.settimeout(wait_s)
    while True:
        *whole, data = data.split(b"\n")
        for line in whole:
            yield line.decode(errors="replace")
        part = sock.recv(1 << 16)
        if not part:
            break
        data += part
    if data:
        yield data.decode(errors="replace")


def _refused(peer: ask.Peer, sock: socket.socket, status: list[bytes], data: bytes) -> None:
    while part := sock.recv(1 << 16):
        data += part
    try:
        found = json.loads(data)
    except ValueError:
        found = None
    number = int(status[0]) if status and status[0].isdigit() else ask.BAD_REQUEST
    ask.answer(peer, max(number, ask.BAD_REQUEST), found)
