"""A client and an engine that agreed to go on in another protocol: their bytes, both ways, until one of them ends.

Answers for: back-pressure both ways, an end of either felt by the other at once and with what was still on its way, and
the request counted as in flight all the while. It may not read what goes by.
"""

# mypy: disable-error-code="explicit-override"
# (asyncio's protocol methods; `typing.override` is newer than Python 3.11)

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from typing import Protocol, cast

from llmgw.gateway.answer import Client

#: What a client said last goes out to its engine for so long.
LAST_WORDS_S = 30.0
#: A client whose network went away says nothing, ever: its kernel is asked after this, so often, so many times.
KEEP_IDLE_S, KEEP_GAP_S, KEEP_COUNT = 60, 15, 4


class Owner(Protocol):
    """The request that became a tunnel: it hears once how it ended."""

    def tunnelled(self, *, sent: int, last_byte: float, by_client: bool) -> None: ...


class Side(asyncio.Protocol):
    """One of the two connections; `own` is the protocol it had, which hears of a full buffer and of the end."""

    __slots__ = ("_own", "_tunnel", "other", "transport")

    def __init__(
        self, tunnel: Tunnel, transport: asyncio.Transport, own: asyncio.Protocol | None
    ) -> None:
        self._tunnel = tunnel
        self._own = own
        self.transport = transport
        self.other: Side

    def data_received(self, data: bytes) -> None:
        self._tunnel.passed(self, len(data))
        if not self.other.transport.is_closing():
            self.other.transport.write(data)

    def pause_writing(self) -> None:
        if self._own is not None:
            self._own.pause_writing()  # the sweeper looks for clients that take nothing
        if not self.other.transport.is_closing():
            self.other.transport.pause_reading()

    def resume_writing(self) -> None:
        if self._own is not None:
            self._own.resume_writing()
        if not self.other.transport.is_closing():
            self.other.transport.resume_reading()

    def eof_received(self) -> bool:
        self._tunnel.end(self)
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        self._tunnel.end(self)
        if self._own is not None:
            self._own.connection_lost(exc)


class Tunnel:
    def __init__(
        self,
        owner: Owner,
        client: tuple[asyncio.Transport, asyncio.Protocol],
        engine: asyncio.Transport,
        now: Callable[[], float],
    ) -> None:
        self._owner: Owner | None = owner
        self._now = now
        self._sent = 0
        self._last_byte = now()
        self._client = Side(self, *client)
        self._engine = Side(self, engine, None)
        self._client.other, self._engine.other = self._engine, self._client
        for side in (self._client, self._engine):
            keep_alive(side.transport)
            side.transport.set_protocol(side)

    def first(self, from_client: bytes, from_engine: bytes) -> None:
        """What came with the two heads."""
        if from_client:
            self._client.data_received(from_client)
        if from_engine:
            self._engine.data_received(from_engine)

    def passed(self, side: Side, size: int) -> None:
        self._last_byte = self._now()
        if side is self._engine:
            self._sent += size

    def end(self, by: Side) -> None:
        """Both go; what is written already still goes out, if it is taken soon."""
        owner, self._owner = self._owner, None
        if owner is None:
            return
        self._client.transport.close()  # the sweeper sees to it that it is taken
        engine = self._engine.transport
        engine.close()
        if engine.get_write_buffer_size():
            asyncio.get_running_loop().call_later(LAST_WORDS_S, engine.abort)
        owner.tunnelled(sent=self._sent, last_byte=self._last_byte, by_client=by is self._client)


class Engine(Protocol):
    def switch(self) -> asyncio.Transport: ...


def join(
    owner: Owner, client: Client, engine: Engine, first: bytes, now: Callable[[], float]
) -> None:
    """`first`: what the engine sent behind its head."""
    transport, protocol, beyond = client.switch()
    tunnel = Tunnel(owner, (transport, protocol), engine.switch(), now)
    tunnel.first(beyond, first)


def keep_alive(transport: asyncio.Transport) -> None:
    sock = cast("socket.socket", transport.get_extra_info("socket"))
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, KEEP_IDLE_S)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, KEEP_GAP_S)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, KEEP_COUNT)
