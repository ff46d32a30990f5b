"""Connections to engines (and to control): pooled, one request at a time each.

Answers for: reuse, dialling without a task where an idle connection is there, and telling whose request was on a
connection that closed. It may not decide what follows from it.
"""

# mypy: disable-error-code="explicit-override"
# (asyncio's protocol methods; `typing.override` is newer than Python 3.11)

from __future__ import annotations

import asyncio
import errno
import os
import ssl
from collections.abc import Callable, Coroutine
from typing import Any, Protocol, cast

from llmgw.gateway.endpoint import Endpoint
from llmgw.gateway.outgoing import Pieces
from llmgw.gateway.reply import BadReplyError, ReplyReader
from llmgw.tls import trouble

CONNECT_S = 3.0
REFUSES = "refuses connections"
#: Head and body go out in one piece up to this size; beyond it joining costs more than it saves.
JOIN_BYTES = 64 * 1024
IDLE_MAX = 64
OK = 200


class Sink(Protocol):
    """Whose answer a connection reads: an `Exchange`, or a `Fetch` of ours."""

    def connected(self, upstream: Upstream) -> None: ...

    def unreachable(self, why: str) -> None: ...

    def answered(self, upstream: Upstream, first: bytes) -> Callable[[bytes], None] | None: ...

    def ended(self, upstream: Upstream) -> None: ...

    def lost(self, upstream: Upstream, why: str) -> None: ...


class Upstream(asyncio.Protocol):
    """A connection to an engine (or to control): one request at a time, then idle in its endpoint's pool."""

    __slots__ = (
        "_clock", "_endpoint", "_fresh", "_pass", "_paused", "_sink", "idle_since", "reader", "reused", "told",
        "transport",
    )  # fmt: skip

    def __init__(self, endpoint: Endpoint, clock: Callable[[], float]) -> None:
        self._endpoint = endpoint
        self._sink: Sink | None = None
        self._fresh = True  # nothing was ever asked here
        self.transport: asyncio.Transport
        self._clock = clock
        self._paused = False
        self._pass: Callable[[bytes], None] | None = None  # where the body goes
        self.reader: ReplyReader
        self.told = False  # the head of the answer has gone to the sink
        self.reused = False
        self.idle_since = 0.0

    def send(self, sink: Sink, head: bytes, body: Pieces, *, plain: bool) -> ReplyReader:
        self._sink = sink
        self._fresh = False
        self._pass = None
        self.told = False
        reader = self.reader = ReplyReader(self._endpoint.seen, plain=plain)
        if len(body) == 1 and len(body[0]) < JOIN_BYTES:
            self.transport.write(head + body[0])
        else:
            self.transport.writelines((head, *body))
        return reader

    def data_received(self, data: bytes) -> None:
        sink = self._sink
        if sink is None:  # nobody asked: whatever this is, it is no answer to the next request
            self.transport.abort()
            return
        reader = self.reader
        try:
            data = reader.feed(data)
        except BadReplyError as e:
            self.cancel()
            sink.lost(self, str(e))
            return
        if reader.status == OK and reader.counts:
            self._endpoint.answering = True
        if self._pass is not None:
            if data:
                self._pass(data)
        elif reader.answered:
            self.told = True
            self._pass = sink.answered(self, data)
        if reader.done and self._sink is sink:
            self._sink = None
            self.release()
            sink.ended(self)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast("asyncio.Transport", transport)

    def connection_lost(self, exc: Exception | None) -> None:
        sink, self._sink = self._sink, None
        if sink is None:
            if self in self._endpoint.idle:
                self._endpoint.idle.remove(self)
        elif exc is None and self.reader.ends_at_eof:
            self.reader.reusable = False
            sink.ended(self)
        else:
            sink.lost(self, _lost(exc, self.reader))

    def release(self) -> None:
        """Into the pool, where the connection may be used again."""
        transport, endpoint = self.transport, self._endpoint
        fresh = self._fresh
        clean = fresh or (self.reader.reusable and not transport.get_write_buffer_size())
        if not fresh and self.reader.parses:
            self.reader.close()
        if not clean or endpoint.gone or transport.is_closing() or len(endpoint.idle) >= IDLE_MAX:
            transport.close()
            return
        if self._paused:
            self.resume()
        self.reused = True
        self.idle_since = self._clock()
        endpoint.idle.append(self)

    def cancel(self) -> None:
        """The engine sees its client leave."""
        self._sink = None
        self.transport.abort()

    def switch(self) -> asyncio.Transport:
        """The connection, for good: it goes on in another protocol."""
        self._sink = None
        self.reader.close()
        return self.transport

    def close(self) -> None:
        self.transport.close()

    def pause(self) -> None:
        if not self._paused and not self.closing:
            self._paused = True
            self.transport.pause_reading()

    def resume(self) -> None:
        if self._paused and not self.closing:
            self._paused = False
            self.transport.resume_reading()

    @property
    def closing(self) -> bool:
        return self.transport.is_closing()


def _lost(exc: Exception | None, reader: ReplyReader) -> str:
    how = "closed the connection" if exc is None else f"broke the connection ({_reason(exc)})"
    return f"{how} {'inside' if reader.any else 'before'} its answer"


def _reason(exc: BaseException) -> str:
    if isinstance(exc, ssl.SSLError):
        return ": ".join(part for part in trouble(exc) if part)
    if isinstance(exc, OSError) and exc.errno is not None:
        return os.strerror(exc.errno).lower()
    return str(exc) or type(exc).__name__


class Dialer:
    """Connections to endpoints: an idle one at once, a new one by a task of the group that `spawn` holds."""

    def __init__(
        self, spawn: Callable[[Coroutine[Any, Any, None]], object], clock: Callable[[], float]
    ) -> None:
        self.connect_s = CONNECT_S
        self._spawn = spawn
        self._clock = clock
        self._loop = asyncio.get_running_loop()

    def connect(self, endpoint: Endpoint, sink: Sink, *, fresh: bool = False) -> None:
        idle = endpoint.idle
        while idle and not fresh:
            upstream: Any = idle.pop()
            if not upstream.transport.is_closing():
                sink.connected(upstream)
                return
        self._spawn(self._dial(endpoint, sink))

    async def _dial(self, endpoint: Endpoint, sink: Sink) -> None:
        try:
            async with asyncio.timeout(self.connect_s):
                _, upstream = await self._loop.create_connection(
                    lambda: Upstream(endpoint, self._clock),
                    *(endpoint.host, endpoint.port),
                    ssl=endpoint.tls,
                    server_hostname=None if endpoint.tls is None else endpoint.host,
                )
        except TimeoutError:
            sink.unreachable(f"does not answer: no connection within {self.connect_s:.0f} s")
        except OSError as e:
            refused = e.errno == errno.ECONNREFUSED
            sink.unreachable(REFUSES if refused else f"is away: {_reason(e)}")
        else:
            if upstream.closing:  # accepted and dropped before we got to use it
                sink.unreachable("closes connections at once")
            elif self._clock() >= endpoint.word.until:  # this process was held up meanwhile
                upstream.close()
                sink.unreachable("may have been put to sleep: no control answers this gateway")
            else:
                sink.connected(upstream)


class Fetch:
    """One small request of our own, with its whole answer: `await` it."""

    def __init__(self, dialer: Dialer, endpoint: Endpoint, head: bytes, body: bytes) -> None:
        self._dialer = dialer
        self._endpoint = endpoint
        self._head = head
        self._body = body
        self._answer = bytearray()
        self._upstream: Upstream | None = None
        self._future: asyncio.Future[tuple[int, bytes]] = asyncio.get_running_loop().create_future()

    async def result(self) -> tuple[int, bytes]:
        """Status and body; OSError says why there is none. Cancelling it drops the connection."""
        self._dialer.connect(self._endpoint, self)
        try:
            return await self._future
        finally:
            if self._upstream is not None:
                self._upstream.cancel()

    def connected(self, upstream: Upstream) -> None:
        if self._future.done():
            upstream.release()
            return
        self._upstream = upstream
        upstream.send(self, self._head, (self._body,), plain=True)

    def unreachable(self, why: str) -> None:
        if not self._future.done():
            self._future.set_exception(_error(why))

    def answered(self, upstream: Upstream, first: bytes) -> Callable[[bytes], None]:  # noqa: ARG002 - as any sink
        self._answer += first
        return self._answer.extend

    def ended(self, upstream: Upstream) -> None:
        self._upstream = None
        if not self._future.done():
            self._future.set_result((upstream.reader.status, bytes(self._answer)))

    def lost(self, upstream: Upstream, why: str) -> None:
        self._upstream = None
        if upstream.reused and not upstream.reader.any:
            self._dialer.connect(self._endpoint, self, fresh=True)
        elif not self._future.done():
            self._future.set_exception(OSError(why))


def _error(why: str) -> OSError:
    """Nobody listens there, or why we do not know."""
    return ConnectionRefusedError(why) if why == REFUSES else OSError(why)
