"""The answer to one request as it goes out: its head, the framing of its body, and what has been sent so far.

Answers for: every byte that a client gets, and that a client can tell a whole answer from a broken one. It may not
decide what is answered.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Protocol

from llmgw.gateway import http1, openai
from llmgw.gateway.http1 import Request
from llmgw.gateway.openai import EVENTS, ProblemError
from llmgw.gateway.reply import BODILESS, ReplyReader

#: Browsers are clients too: keys are the guard here, not origins (contract/http.md).
CORS = (
    b"access-control-allow-origin: *\r\n"
    b"access-control-expose-headers: x-request-id, x-llmgw-replica, retry-after\r\n"
)
STREAM = b"content-type: text/event-stream; charset=utf-8\r\ncache-control: no-store\r\n"
#: How much of an engine's refusal is read when only an error event can carry it.
REFUSAL_BYTES = 64 * 1024
CLOSE = b"connection: close\r\n"
CHUNKED = b"transfer-encoding: chunked\r\n"
UNAUTHORIZED = 401


class Client(Protocol):
    """The connection a request came by."""

    paused: bool
    loopback: bool
    peer: str

    @property
    def write(self) -> Callable[[bytes], object]: ...

    def finished(self, *, keep_alive: bool) -> None: ...

    def abort(self) -> None: ...

    def switch(self) -> tuple[asyncio.Transport, asyncio.Protocol, bytes]: ...


class Answer:
    """`opened`: a stream whose head we sent before any engine answered. `keep_alive`: what its head promised.

    `pieces`: writes after the head. The last three are kept: what an engine says of tokens comes just before the end.
    """

    __slots__ = (
        "_last",
        "_request",
        "_second",
        "_third",
        "_write",
        "chunked",
        "collected",
        "keep_alive",
        "opened",
        "pieces",
        "request_id",
        "sent",
        "status",
    )

    def __init__(
        self, client: Client, request: Request, request_id: bytes, *, keep_alive: bool
    ) -> None:
        self._write = client.write
        self._request = request
        self.request_id = request_id
        self.keep_alive = keep_alive and request.keep_alive
        self.status = 0
        self.sent = 0
        self.pieces = 0
        self._third = self._second = self._last = b""
        self.opened = False
        self.collected: bytearray | None = None
        self.chunked = False  # the body goes out in chunks, an engine's or ours

    def write(self, data: bytes) -> None:
        self.sent += len(data)
        self.pieces += 1
        self._third, self._second, self._last = self._second, self._last, data
        self._write(data)

    def tail(self, size: int) -> bytes:
        """The last bytes of what was sent of an engine's answer, `size` at most."""
        last = self._last[-size:]
        if len(last) == size or not self._second:
            return last
        return (self._third[-size:] + self._second[-size:] + last)[-size:]

    def whole(self, status: int, headers: bytes, body: bytes) -> None:
        """An answer of our own."""
        head_only = self._request.method == b"HEAD"
        headers += self._common()
        self.status = status
        self.write(
            http1.answer(status, headers, body, keep_alive=self.keep_alive, head_only=head_only)
        )

    def refuse(self, problem: ProblemError, dialect: str) -> None:
        retry = problem.retry_after_s
        headers = openai.JSON if retry is None else b"%bretry-after: %d\r\n" % (openai.JSON, retry)
        if problem.status == UNAUTHORIZED:  # which names the scheme (RFC 9110 15.5.2)
            headers += b"www-authenticate: Bearer\r\n"
        body = openai.error_body(problem, dialect, self.request_id.decode())
        self.whole(problem.status, headers + problem.headers, body)

    def error_event(self, problem: ProblemError, dialect: str) -> None:
        """The end of a stream that cannot go on."""
        self.emit(openai.error_event(problem, dialect, self.request_id.decode()))
        self.end_stream()

    def switch(self, reader: ReplyReader, replica: bytes) -> None:
        """The head that ends HTTP on this connection."""
        self.status = reader.status
        self.write(
            b"%b%bx-request-id: %b\r\nx-llmgw-replica: %b\r\nx-accel-buffering: no\r\n\r\n"
            % (
                reader.lines,
                b"connection: Upgrade\r\nupgrade: websocket\r\n",
                self.request_id,
                replica,
            )
        )

    def open_stream(self) -> None:
        self.opened = True
        self.keep_alive = False
        self.chunked = not self._request.http10
        self.status = 200
        framing = CHUNKED if self.chunked else b""
        headers = STREAM + framing + CLOSE + self._common()
        self.write(b"%b%b\r\n" % (http1.status_line(200), headers))

    def collect(self, data: bytes) -> None:
        """What an engine says in place of a stream."""
        if self.collected is None:
            self.collected = bytearray()
        self.collected += data[: REFUSAL_BYTES - len(self.collected)]

    def comment(self, line: bytes) -> None:
        if not self.opened:
            self.open_stream()
        self.emit(line)

    def relay(self, reader: ReplyReader, replica: bytes, first: bytes) -> None:
        """An engine's head, its own framing where the client can read it, and the first of the body."""
        request = self._request
        if reader.chunked:
            self.chunked = not request.http10
            framing = CHUNKED if self.chunked else b""
        elif reader.length is None:
            self.keep_alive = False  # the end of the connection is the end of the body
            framing = b""
        elif reader.status in BODILESS:
            framing = b""
        else:
            framing = b"content-length: %d\r\n" % reader.length
        self.status = reader.status
        data = b"".join(  # for each answer: twice as quick as to format it
            (
                reader.lines,
                framing,
                b"x-request-id: ",
                self.request_id,
                b"\r\nx-llmgw-replica: ",
                replica,
                b"\r\nx-accel-buffering: no\r\n",
                b"" if self.keep_alive else CLOSE,
                CORS if b"origin" in request.own else b"",
                b"\r\n",
                first,
            )
        )
        self.sent += len(data)
        self._last = first
        self._write(data)

    def _common(self) -> bytes:
        headers = common(self.request_id)
        return headers + CORS if b"origin" in self._request.own else headers

    def emit(self, data: bytes) -> None:
        """Body bytes of a stream, in chunks of ours."""
        if data:
            self.write(http1.chunk(data) if self.chunked else data)

    def end_stream(self) -> None:
        if self.chunked:
            self.write(http1.LAST_CHUNK)

    def takes_event(self, reader: ReplyReader) -> bool:
        """Whether an event of ours may follow what was relayed of a broken stream. Ends `reader`."""
        if not is_stream(reader):
            return False
        return reader.at_boundary() if self.chunked else reader.length is None


def common(request_id: bytes) -> bytes:
    """Header lines of every answer of our own, as `relay` adds them to an engine's.

    `x-accel-buffering` keeps a proxy before us from holding a stream back.
    """
    return b"x-request-id: %b\r\nx-llmgw-replica: -\r\nx-accel-buffering: no\r\n" % request_id


def is_stream(reader: ReplyReader) -> bool:
    return reader.content_type.startswith(EVENTS) and not reader.encoded
