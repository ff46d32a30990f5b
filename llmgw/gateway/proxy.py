"""Connections of clients: requests one after another, and the bytes of their answers.

Answers for: back-pressure both ways, time-outs of clients, and the leaving of a client being felt at once. It may not
decide: framing is that of `http1`, and what happens to a request is that of `exchange`.
"""

# mypy: disable-error-code="explicit-override"
# (asyncio's protocol methods; `typing.override` is newer than Python 3.11)

from __future__ import annotations

import asyncio
import socket
import struct
from collections.abc import Awaitable, Callable
from typing import cast

from llmgw.gateway import http1, openai, problems
from llmgw.gateway.answer import Answer
from llmgw.gateway.books import Ended
from llmgw.gateway.exchange import Exchange
from llmgw.gateway.http1 import RequestReader
from llmgw.gateway.openai import ProblemError
from llmgw.gateway.state import Gateway

#: A client may take this long to send its headers, to send more of a body, to send all of it, and to ask again.
HEADERS_S, BODY_GAP_S, BODY_S, KEEP_ALIVE_S = 15.0, 60.0, 600.0, 75.0
#: Where another process took over, an idle client stays so long: it may be about to ask, and hears "close" then.
HANDED_OVER_S = 20.0
#: A client that takes nothing for so long is gone, whatever its kernel says.
WRITE_STALL_S = 300.0
#: After a refusal the rest of what a client sends is read and dropped, or it would not see the answer: until it is
#: quiet for so long, and no longer than that, or one byte now and then would hold the connection for ever.
LINGER_S, LINGER_MAX_S = 5.0, 60.0
#: Next requests that a client sends before its answer (pipelining) are kept up to this; then it is not read.
STASH_BYTES = 64 * 1024
#: So much of a body is taken before its key is looked at: all bodies together have a limit, which is for clients.
STRANGER_BYTES = 1024 * 1024
NO_LINGER = struct.pack("ii", 1, 0)


class Downstream(asyncio.Protocol):
    """A client's connection: one request at a time, the next ones parsed when it is their turn."""

    __slots__ = (
        "_advancing", "_began", "_exchange", "_gateway", "_lingering", "_read_at", "_reader", "_stalled_since",
        "_stash", "_transport", "loopback", "paused", "peer", "write",
    )  # fmt: skip

    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway
        self._reader = RequestReader(gateway.budget, gateway.body_limit)
        self._exchange: Exchange | None = None
        self._transport: asyncio.Transport
        self._stash = bytearray()
        self._advancing = False
        self._lingering = False
        self._read_at = self._began = gateway.now
        self._stalled_since = 0.0
        self.write: Callable[[bytes], object]
        self.paused = False
        self.loopback = False
        self.peer = ""

    @property
    def busy(self) -> bool:
        """Asked while this process ends: what a slow client has not taken yet is part of its answer."""
        return self._exchange is not None or self._transport.get_write_buffer_size() > 0

    # -- called by the loop

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        self.write = self._transport.write
        peer = transport.get_extra_info("peername")
        self.peer = str(peer[0]) if peer else ""
        self.loopback = self.peer == "::1" or self.peer.startswith(("127.", "::ffff:127."))
        self._gateway.connections.add(self)

    def data_received(self, data: bytes) -> None:
        self._read_at = now = self._gateway.now
        if self._exchange is not None:
            self._stash += data
            if len(self._stash) > STASH_BYTES:
                self._transport.pause_reading()
        elif (request := self._reader.alone(data)) is not None:
            self._began = now
            exchange = self._exchange = Exchange(self._gateway, self, request)
            exchange.begin()
        elif not self._lingering:
            self._feed(data)
            if not self._advancing:
                self._advance()

    def eof_received(self) -> bool:
        """A client that will send no more has left: a closed connection looks the same as a half-closed one.

        Waiting to be told more (a reset, at the first write) would let an engine work for nobody all through prefill.
        """
        if self._exchange is not None:
            self._exchange.left()
            self._exchange = None
        return False

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002 - gone is gone
        self._gateway.connections.discard(self)
        if self._exchange is not None:
            self._exchange.left()
            self._exchange = None
        self._reader.close()

    def pause_writing(self) -> None:
        """The client is slow: so is its engine, from here on."""
        self.paused = True
        self._stalled_since = self._gateway.now
        if self._exchange is not None and self._exchange.upstream is not None:
            self._exchange.upstream.pause()

    def resume_writing(self) -> None:
        self.paused = False
        if self._exchange is not None and self._exchange.upstream is not None:
            self._exchange.upstream.resume()

    # -- requests

    def _feed(self, data: bytes) -> None:
        reader = self._reader
        if not reader.partial:
            self._began = self._gateway.now
        reader.feed(data)
        if reader.held > STRANGER_BYTES and not reader.ready and reader.error is None:
            self._known()

    def _known(self) -> bool:
        """Whether the sender of a request that is not whole has a key, where one is needed; refused if not."""
        try:
            self._gateway.keys.check(self._reader.told().own)
        except ProblemError as problem:
            self._refuse(problem)
            return False
        return True

    def _advance(self) -> None:
        """Starts the next request, if it is its turn; a loop, because answers of our own end within `begin`."""
        if self._advancing:
            return
        self._advancing = True
        reader = self._reader
        while self._exchange is None and not self._transport.is_closing():
            if reader.ready:
                self._exchange = Exchange(self._gateway, self, reader.ready.popleft())
                self._exchange.begin()
            elif self._stash:
                data = bytes(self._stash)
                self._stash.clear()
                self._transport.resume_reading()
                self._feed(data)
            elif reader.error is not None and not self._lingering:
                self._refuse(problems.refused(*reader.error))
            else:
                # Not before: behind the request before it, a client would take it for that one's.
                if reader.continue_wanted and reader.error is None and not self._lingering:
                    reader.continue_wanted = False
                    if self._known():
                        self._transport.write(http1.CONTINUE)
                break
        self._advancing = False

    def _refuse(self, problem: ProblemError) -> None:
        """Ends the connection with an answer that the client can read to its end."""
        gateway, request, why = self._gateway, self._reader.told(), problem.message
        gateway.meter.count("refused")
        gateway.meter.refusal(problem.code)
        request_id = gateway.request_id(request.own.get(b"x-request-id"))
        answer = Answer(self, request, request_id, keep_alive=False)
        answer.refuse(problem, openai.of(request.path).dialect)
        seconds = max(gateway.clock() - self._began, 0.0)
        gateway.book(
            Ended(request, answer, "", "", "", seconds, 0.0, "refused", why, b"", None, None)
        )
        self._lingering = True
        self._read_at = self._began = self._gateway.now
        self._reader.close()
        self._transport.write_eof()

    def finished(self, *, keep_alive: bool) -> None:
        self._exchange = None
        self._read_at = self._gateway.now
        if not keep_alive or (self._gateway.stopping and not self._gateway.handed_over):
            self._transport.close()
        elif (
            self._stash
            or (reader := self._reader).ready
            or reader.continue_wanted
            or reader.error is not None
        ):
            self._advance()

    def abort(self) -> None:
        """A reset: where an answer ends with its connection, a clean close would make a whole one of it."""
        self._exchange = None
        sock = self._transport.get_extra_info("socket")
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, NO_LINGER)
        self._transport.abort()

    def switch(self) -> tuple[asyncio.Transport, asyncio.Protocol, bytes]:
        """The connection goes on in another protocol; and what came of that already, still unread."""
        beyond = self._reader.beyond + bytes(self._stash)
        self._reader.beyond = b""
        self._stash.clear()
        self._transport.resume_reading()
        return self._transport, self, beyond

    # -- time

    def sweep(self, now: float) -> None:
        """Once a second: whoever is too slow, or not wanted any more, goes."""
        quiet_s = now - self._read_at
        if self._exchange is not None:
            gone = self.paused and now - self._stalled_since > WRITE_STALL_S
            self._began = now  # of a request behind it: until this one ends it is not read on
        elif self._transport.is_closing():
            gone = quiet_s > WRITE_STALL_S  # and what is left to write is not taken
        else:
            late_s = now - self._began
            gone = self._lingering and (quiet_s > LINGER_S or late_s > LINGER_MAX_S)
            if not gone and not self._lingering:
                self._sweep_idle(late_s, quiet_s)
        if gone:
            self._transport.abort()

    def _sweep_idle(self, late_s: float, quiet_s: float) -> None:
        if self._reader.partial:
            if late_s > (HEADERS_S if self._reader.in_head else BODY_S) or quiet_s > BODY_GAP_S:
                self._refuse(
                    problems.refused(408, f"the request is not whole after {late_s:.0f} s")
                )
        elif quiet_s > self._idle_s():
            self._transport.close()

    def _idle_s(self) -> float:
        if not self._gateway.stopping:
            return KEEP_ALIVE_S
        return HANDED_OVER_S if self._gateway.handed_over else -1.0


def serve_on(gateway: Gateway, listener: socket.socket) -> Awaitable[asyncio.Server]:
    """Accepts clients on a socket that listens already."""
    loop = asyncio.get_running_loop()
    return loop.create_server(lambda: Downstream(gateway), sock=listener, backlog=4096)
