"""HTTP/1.1 requests of clients, bytes in, values out, over httptools; and the framing of what we answer.

Answers for: limits, and the refusal of every shape on which two parsers could disagree (request smuggling). It may not
know sockets, models or the clock.
"""

from __future__ import annotations

from collections import deque
from http import HTTPStatus
from typing import NamedTuple

import httptools

HEAD_BYTES = 64 * 1024
BODY_BYTES = 64 * 1024 * 1024
HELD_BYTES = 1024 * 1024 * 1024

#: Read by us and never sent on: hop by hop (RFC 9110 7.6.1), what we word ourselves, and the client's credentials.
#: `accept-encoding`: a stream that we opened with comments cannot go on compressed.
OWN_HEADERS = frozenset(
    b"connection keep-alive proxy-authenticate proxy-authorization proxy-connection te trailer upgrade http2-settings "
    b"transfer-encoding content-length host expect authorization x-api-key api-key cookie origin x-request-id "
    b"accept-encoding access-control-request-method access-control-request-headers".split()
)
REASONS = {status.value: status.phrase.encode() for status in HTTPStatus}
CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"
LAST_CHUNK = b"0\r\n\r\n"


class Refused(NamedTuple):
    """Why a request cannot be framed: it is answered with `status`, and its connection ends."""

    status: int
    message: str


class Budget:
    """Bytes of request bodies that this process holds at one time, over all connections."""

    __slots__ = ("limit", "used")

    def __init__(self, limit: int = HELD_BYTES) -> None:
        self.limit = limit
        self.used = 0


class Request:
    """One whole request. `own` are the headers we read, `forward` the lines that go on."""

    __slots__ = ("body", "forward", "http10", "keep_alive", "method", "own", "path", "target")

    def __init__(
        self, method: bytes, target: bytes, own: dict[bytes, bytes], forward: list[bytes]
    ) -> None:
        if target.startswith((b"http://", b"https://")):  # absolute form, as sent to a proxy
            target = b"/" + target.split(b"//", 1)[1].partition(b"/")[2]
        self.method = method
        self.target = target
        self.path = target.partition(b"?")[0]
        self.own = own
        self.forward = forward
        self.body = b""
        self.http10 = False
        self.keep_alive = True


class RequestReader:
    """`feed` bytes of one connection; whole requests queue in `ready`, `error` is what ends it after them.

    `continue_wanted`: the client waits for `100 Continue` before it sends its body. `partial`: a request has begun.
    """

    def __init__(self, budget: Budget, body_limit: int = BODY_BYTES) -> None:
        self.ready: deque[Request] = deque()
        self.error: Refused | None = None
        self.continue_wanted = False
        self.partial = False
        self._budget = budget
        self._body_limit = body_limit
        self._parser = httptools.HttpRequestParser(self)
        self._last = False
        self._heads = 0
        self._size = 0
        self._begin()

    def _begin(self) -> None:
        self._in_head = True
        self._head_bytes = self._read_bytes = 0
        self._method = self._target = b""
        self._own: dict[bytes, bytes] = {}
        self._forward: list[bytes] = []
        self._parts: list[bytes] = []
        self._request: Request | None = None

    def feed(self, data: bytes) -> None:
        while data and self.error is None and not self._last:
            heads, size = self._heads, len(data)
            try:
                self._parser.feed_data(data)
                data = b""
            except httptools.HttpParserUpgrade as e:
                data = self._without_upgrade(data[e.args[0] :])
            except httptools.HttpParserError as e:
                if not self._last:  # what follows a last request is not looked at
                    self._refuse(400, f"bad request: {e}")
                return
            if self._in_head and heads == self._heads:
                # The parser keeps an unfinished header to itself, so whole reads are counted too.
                self._read_bytes += size
                if self._read_bytes > HEAD_BYTES:
                    self._refuse(431, f"headers are larger than {HEAD_BYTES} bytes")

    def close(self) -> None:
        """Gives back what is held, and drops the parser, which refers back to this reader."""
        self._release()
        for request in self.ready:
            self._budget.used -= len(request.body)
        self.ready.clear()
        self._last = True
        del self._parser

    def _release(self) -> None:
        self._budget.used -= self._size
        self._size = 0
        self._parts = []

    def _refuse(self, status: int, message: str) -> None:
        if self.error is None:
            self._release()
            self.error = Refused(status, message)

    def _without_upgrade(self, rest: bytes) -> bytes:
        """The bytes to parse instead of a request that offers an upgrade we decline (RFC 9110 7.8).

        JDK's HTTP client offers h2c on every plain request. llhttp ends such a request at its head, as if the body were
        the other protocol already, so the head is fed again without the offer, before the rest.
        """
        if self._method == b"CONNECT":
            self._refuse(405, "CONNECT is not served here")
            return b""
        own = {k: v for k, v in self._own.items() if k not in (b"upgrade", b"http2-settings")}
        close = b"close" in own.get(b"connection", b"").lower()
        own[b"connection"] = b"close" if close else b"keep-alive"
        lines = [b"%b: %b\r\n" % item for item in own.items()] + self._forward
        head = b"%b %b HTTP/1.1\r\n%b\r\n" % (self._method, self._target, b"".join(lines))
        self._parser = httptools.HttpRequestParser(self)
        return head + rest

    # -- called by httptools

    def on_message_begin(self) -> None:
        self.partial = True

    def on_url(self, url: bytes) -> None:
        self._target += url
        self._head_bytes += len(url)

    def on_header(self, name: bytes, value: bytes) -> None:
        self._head_bytes += len(name) + len(value) + 4
        if self._head_bytes > HEAD_BYTES:
            self._refuse(431, f"headers are larger than {HEAD_BYTES} bytes")
        elif self._in_head:  # else a trailer, and nothing here needs one
            lower = name.lower()
            if lower not in OWN_HEADERS:
                self._forward.append(b"%b: %b\r\n" % (name, value))
            elif lower == b"host" and lower in self._own:
                self._refuse(400, "bad request: two Host headers")
            else:
                self._own[lower] = value

    def on_headers_complete(self) -> None:
        self._in_head = False
        self._heads += 1
        self._method = self._parser.get_method()
        version = self._parser.get_http_version()
        refused = self._judge(version)
        if refused is not None:
            return self._refuse(*refused)
        connection = self._own.get(b"connection")
        if connection is not None and b"," in connection:
            self._drop_named(connection)
        self.continue_wanted = b"expect" in self._own and version == "1.1"
        request = self._request = Request(self._method, self._target, self._own, self._forward)
        request.http10 = version == "1.0"
        return None

    def _judge(self, version: str) -> Refused | None:
        """What the parser lets pass and we do not."""
        own = self._own
        if version not in ("1.1", "1.0"):
            return Refused(505, f"HTTP/{version} is not spoken here, only 1.1 and 1.0")
        if b"host" not in own and version == "1.1":
            return Refused(400, "bad request: no Host header")
        coding = own.get(b"transfer-encoding")
        if coding is not None and (coding.lower() != b"chunked" or version == "1.0"):
            return Refused(400, "bad request: only Transfer-Encoding: chunked, and in HTTP/1.1")
        if int(own.get(b"content-length", b"0")) > self._body_limit:
            return Refused(413, f"the body is larger than {self._body_limit} bytes")
        if own.get(b"expect", b"100-continue").lower() != b"100-continue":
            return Refused(417, "the only expectation met here is 100-continue")
        return None

    def _drop_named(self, connection: bytes) -> None:
        """Headers that `Connection` names are for this hop only."""
        names = {name.strip().lower() for name in connection.split(b",")}
        self._forward = [f for f in self._forward if f.partition(b":")[0].lower() not in names]

    def on_body(self, part: bytes) -> None:
        if self.error is not None:
            return
        self.continue_wanted = False
        self._size += len(part)
        self._budget.used += len(part)
        self._parts.append(part)
        if self._size > self._body_limit:
            self._refuse(413, f"the body is larger than {self._body_limit} bytes")
        elif self._budget.used > self._budget.limit:
            self._refuse(503, f"requests in flight hold {self._budget.limit} bytes already")

    def on_message_complete(self) -> None:
        request = self._request
        if request is None or self.error is not None or self._parser.should_upgrade():
            self._begin()
            return
        parts = self._parts
        request.body = parts[0] if len(parts) == 1 else b"".join(parts)
        request.keep_alive = self._parser.should_keep_alive() and not request.http10
        self._last = not request.keep_alive
        self._size = 0  # the request's own from here on
        self.continue_wanted = self.partial = False
        self.ready.append(request)
        self._begin()


def status_line(status: int) -> bytes:
    return b"HTTP/1.1 %d %b\r\n" % (status, REASONS.get(status, b"Status"))


def chunk(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data) if data else b""


def answer(
    status: int, headers: bytes, body: bytes, *, keep_alive: bool, head_only: bool = False
) -> bytes:
    """A whole answer of our own; `headers` are finished lines."""
    close = b"" if keep_alive else b"connection: close\r\n"
    length = b"" if status == HTTPStatus.NO_CONTENT else b"content-length: %d\r\n" % len(body)
    head = b"%b%b%b%b\r\n" % (status_line(status), headers, length, close)
    return head if head_only else head + body
