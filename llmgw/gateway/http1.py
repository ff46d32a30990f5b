"""HTTP/1.1 requests of clients, bytes in, values out, over httptools; and the framing of what we answer.

Answers for: limits, and the refusal of every shape on which two parsers could disagree (request smuggling). It may not
know sockets, models or the clock.
"""

from __future__ import annotations

import re
from collections import deque
from http import HTTPStatus
from typing import Any, NamedTuple

import httptools
import msgspec

from llmgw.gateway import memo, websocket

HEAD_BYTES = 64 * 1024
BODY_BYTES = 64 * 1024 * 1024
HELD_BYTES = 1024 * 1024 * 1024
TOO_LARGE = f"headers are larger than {HEAD_BYTES} bytes"

#: Read by us and never sent on: hop by hop (RFC 9110 7.6.1), what we word ourselves, and the client's credentials.
#: `accept-encoding`: a stream that we opened with comments cannot go on compressed.
OWN_HEADERS = frozenset(
    b"connection keep-alive proxy-authenticate proxy-authorization proxy-connection te trailer upgrade http2-settings "
    b"transfer-encoding content-length host expect authorization x-api-key api-key cookie origin x-request-id "
    b"accept-encoding access-control-request-method access-control-request-headers".split()
)
#: Of two of these, who stands before us may have read the other one.
ONCE = (b"host", b"transfer-encoding")
#: What cannot stand in a host and its port (RFC 9112 3.2).
_host = re.compile(rb"[^\s/?#@,\\]*").fullmatch
#: The scheme and host of a target in absolute form, as sent to a proxy.
_origin = re.compile(rb"https?://[^/?]*", re.IGNORECASE).match
STATUS_LINES = {s.value: b"HTTP/1.1 %d %b\r\n" % (s.value, s.phrase.encode()) for s in HTTPStatus}
#: With one of these a head is read by the parser, each time.
UNUSUAL = frozenset((b"transfer-encoding", b"expect", b"upgrade", b"te", b"trailer"))
HEAD_END = b"\r\n\r\n"
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


class Request(msgspec.Struct, eq=False):
    """One whole request. `own` are the headers we read, `forward` the parts of the lines that go on, to be joined.

    `upgrade`: it offers to become a WebSocket. `derived`: shared with those that begin with the same head.
    """

    method: bytes
    target: bytes
    path: bytes
    own: dict[bytes, bytes]
    forward: list[bytes]
    derived: memo.Derived | None = None
    body: bytes = b""
    http10: bool = False
    keep_alive: bool = True
    upgrade: bool = False

    def again(self, body: bytes) -> Request:
        """One more that begins with the same head."""
        return Request(
            self.method, self.target, self.path, self.own, self.forward, self.derived, body
        )

    def header(self, name: bytes) -> bytes:
        """Of those that go on: the last of that name, as engines' own servers read it, else b""."""
        values = (
            v for n, _, v, _ in zip(*[iter(self.forward)] * 4, strict=True) if n.lower() == name
        )
        return b", ".join(values)


def begun(method: bytes, target: bytes, own: dict[bytes, bytes], forward: list[bytes]) -> Request:
    if not target.startswith(b"/") and (found := _origin(target)) is not None:
        target = target[found.end() :]
        target = target if target.startswith(b"/") else b"/" + target
    return Request(method, target, target.partition(b"?")[0], own, forward)


class RequestReader:
    """`feed` bytes of one connection; whole requests queue in `ready`, `error` is what ends it after them.

    `continue_wanted`: the client waits for `100 Continue` before it sends its body. `partial`: a request has begun and
    is not whole, `held` bytes of its body are here.
    """

    def __init__(self, budget: Budget, body_limit: int = BODY_BYTES) -> None:
        self.ready: deque[Request] = deque()
        self.error: Refused | None = None
        self._refused: Request | None = None
        self.continue_wanted = False
        self._budget = budget
        self._body_limit = body_limit
        self._parser: Any = httptools.HttpRequestParser(self)
        self._last = False
        self._marks = 0  # heads, parts of bodies and ends seen
        self._offered: Request | None = None  # the head of a request that offers an upgrade
        self.beyond = b""  # bytes behind the head of one that may become a WebSocket
        self._candidate = b""  # the head that the parser reads, if it began there
        self._known: memo.Head | None = None
        self._like: Request
        self._left = 0  # of the body of a request whose head was known
        self._begin()

    def _begin(self) -> None:
        self.in_head = True
        self.partial = False
        self._read_bytes = self.held = 0
        self._target = b""
        self._headers: list[tuple[bytes, bytes]] = []
        self._parts: list[bytes] = []
        self._request: Request | None = None

    def alone(self, data: bytes) -> Request | None:
        """The one request that `data` is, where its head is known: most of what comes. Else None, and `feed` it."""
        known = self._known
        if known is None or self.partial or self._last or self.error is not None:
            return None
        length, budget = known.length(data), self._budget
        body = data[known.end :]
        if len(body) != length or length > self._body_limit or budget.used + length > budget.limit:
            return None
        budget.used += length
        return self._like.again(body)

    def feed(self, data: bytes) -> None:
        if self._left:
            data = self._more(data)
        if not self.partial and not self._last and self.error is None:
            known = self._known
            length = known.length(data) if known is not None else 0
            if length > 0 and self._again(data, length):
                return
            end = data.find(HEAD_END, 0, memo.HEAD_MAX)
            self._candidate = data[: end + 4] if end > 0 else b""
        self._parse(data)

    def _again(self, data: bytes, length: int) -> bool:
        """The next request has the head of the one before it; False where the parser should say more of it."""
        assert self._known is not None
        body, budget = data[self._known.end :], self._budget
        size = len(body)
        if size > length or length > self._body_limit or budget.used + length > budget.limit:
            return False
        budget.used += size
        if size == length:
            self.ready.append(self._like.again(body))
            return True
        self.in_head = False
        self.partial = True
        self._request = self._like.again(b"")
        self._left = length - size
        self.held = size
        if body:
            self._parts.append(body)
        return True

    def _more(self, data: bytes) -> bytes:
        """The body of a request whose head was known; gives what stands behind it."""
        part = data[: self._left]
        self._left -= len(part)
        self.on_body(part)
        if self.error is not None:
            self._left = 0
        elif not self._left:
            request = self._request
            assert request is not None
            request.body = b"".join(self._parts)
            self.ready.append(request)
            self._begin()
        return data[len(part) :]

    def _learn(self, request: Request) -> None:
        """Its head stood alone at the beginning of a read, and everything about it was usual."""
        head, self._candidate = self._candidate, b""
        plain = request.method == b"POST" and not request.http10 and request.keep_alive
        if plain and not UNUSUAL & request.own.keys():
            self._known = memo.head(head, len(self._headers))
            request.derived = memo.Derived(b"".join(request.forward))
            self._like = request.again(b"")

    def _parse(self, data: bytes) -> None:
        while data and self.error is None and not self._last:
            marks, size = self._marks, len(data)
            try:
                self._parser.feed_data(data)
                data = b""
            except httptools.HttpParserUpgrade as e:
                data = self._without_upgrade(data[e.args[0] :])
            except httptools.HttpParserError as e:
                if not self._last:  # what follows a last request is not looked at
                    self._refuse(400, f"bad request: {e}")
                return
            if marks == self._marks:
                # The parser keeps an unfinished header to itself, so whole reads are counted too; those that bring no
                # body as well: trailers and the extensions of chunks have no other end.
                self._read_bytes += size
                if self._read_bytes > HEAD_BYTES:
                    self._refuse(431, TOO_LARGE)

    def close(self) -> None:
        """Gives back what is held, and drops the parser, which refers back to this reader."""
        self._release()
        for request in self.ready:
            self._budget.used -= len(request.body)
        self.ready.clear()
        self._last = True
        self._parser = None

    def _release(self) -> None:
        self._budget.used -= self.held
        self.held = 0
        self._parts = []

    def _refuse(self, status: int, message: str) -> None:
        if self.error is None and not self._last:
            self._release()
            self._refused = self.told()
            self.error = Refused(status, message)

    def told(self) -> Request:
        """What is known of a request that is refused, for the words and the log."""
        own = {name.lower(): value for name, value in self._headers}
        method = self._parser.get_method() if self._target else b"-"
        return self._refused or self._request or begun(method, self._target, own, [])

    def _without_upgrade(self, rest: bytes) -> bytes:
        """The bytes to parse instead of a request that offers an upgrade we decline (RFC 9110 7.8).

        JDK's HTTP client offers h2c on every plain request. llhttp ends such a request at its head, as if the body were
        the other protocol already, so the head is fed again without the offer, before the rest.
        """
        self._candidate = b""
        request = self._offered
        if request is None or request.method == b"CONNECT":
            self._refuse(405, "CONNECT is not served here")
            return b""
        if not request.http10 and websocket.offered(request.method, request.own):
            return self._last_of_http(request, rest)
        own = {k: v for k, v in request.own.items() if k not in (b"upgrade", b"http2-settings")}
        close = b"close" in own.get(b"connection", b"").lower()
        own[b"connection"] = b"close" if close else b"keep-alive"
        lines = [b"%b: %b\r\n" % item for item in own.items()] + request.forward
        head = b"%b %b HTTP/1.1\r\n%b\r\n" % (request.method, request.target, b"".join(lines))
        self._parser = httptools.HttpRequestParser(self)
        return head + rest

    def _last_of_http(self, request: Request, rest: bytes) -> bytes:
        """Whatever becomes of the offer, no other request follows on this connection."""
        request.upgrade = True
        request.keep_alive = False
        request.forward = websocket.passed_on(request.own, request.forward)
        self.beyond = rest
        self._last = True
        self.ready.append(request)
        return b""

    # -- called by httptools

    def on_message_begin(self) -> None:
        self.partial = True

    def on_url(self, url: bytes) -> None:
        self._target += url

    def on_header(self, name: bytes, value: bytes) -> None:
        self._headers.append((name, value))  # sorted in one go: this is called for each of them

    def on_headers_complete(self) -> None:
        self.in_head = False
        self._read_bytes = 0
        self._marks += 1
        own: dict[bytes, bytes] = {}
        forward: list[bytes] = []
        size = len(self._target)
        for name, value in self._headers:
            size += len(name) + len(value) + 4
            lower = name.lower()
            if lower not in OWN_HEADERS:
                forward += (name, b": ", value, b"\r\n")
            elif lower in ONCE and lower in own:
                return self._refuse(400, f"bad request: two {name.decode()} headers")
            else:
                own[lower] = value
        if size > HEAD_BYTES:
            return self._refuse(431, TOO_LARGE)
        parser = self._parser
        version = parser.get_http_version()
        refused = self._judge(version, own)
        if refused is not None:
            return self._refuse(*refused)
        if b"connection" in own:
            forward = _without_named(forward, own[b"connection"])
        self.continue_wanted = b"expect" in own and version == "1.1"
        found = self._request = begun(parser.get_method(), self._target, own, forward)
        found.http10 = version == "1.0"
        return None

    def _judge(self, version: str, own: dict[bytes, bytes]) -> Refused | None:
        """What the parser lets pass and we do not."""
        length = own.get(b"content-length")
        if length is not None and int(length) > self._body_limit:
            return Refused(413, f"the body is larger than {self._body_limit} bytes")
        host = own.get(b"host")
        if host is not None and _host(host) is None:
            return Refused(400, "bad request: the Host header is none")
        if version == "1.1":
            if host is None:
                return Refused(400, "bad request: no Host header")
        elif version != "1.0":
            return Refused(505, f"HTTP/{version} is not spoken here, only 1.1 and 1.0")
        coding = own.get(b"transfer-encoding")
        if coding is not None and (coding.lower() != b"chunked" or version == "1.0"):
            return Refused(400, "bad request: Transfer-Encoding may be chunked, in HTTP/1.1")
        if b"expect" in own and own[b"expect"].lower() != b"100-continue":
            return Refused(417, "the only expectation met here is 100-continue")
        return None

    def on_body(self, part: bytes) -> None:
        if self.error is not None:
            return
        size = len(part)
        self._marks += 1
        self._read_bytes = 0
        self.continue_wanted = False
        self.held += size
        self._budget.used += size
        self._parts.append(part)
        if self.held > self._body_limit:
            self._refuse(413, f"the body is larger than {self._body_limit} bytes")
        elif self._budget.used > self._budget.limit:
            self._refuse(503, f"requests in flight hold {self._budget.limit} bytes already")

    def on_message_complete(self) -> None:
        self._marks += 1
        request, parts, parser = self._request, self._parts, self._parser
        if self._last:
            self._release()  # what follows a last request in the same read is not looked at
        elif request is not None and self.error is None:
            if parser.should_upgrade():
                self._offered = request
            else:
                request.own.pop(memo.LENGTH, None)  # it is that of the body, and no other
                request.body = parts[0] if len(parts) == 1 else b"".join(parts)
                request.keep_alive = parser.should_keep_alive() and not request.http10
                self._last = not request.keep_alive
                if self._candidate:
                    self._learn(request)
                self.continue_wanted = False
                self.ready.append(request)
        self._begin()


def _without_named(forward: list[bytes], connection: bytes) -> list[bytes]:
    """Headers that `Connection` names are for this hop only."""
    names = {name.strip().lower() for name in connection.split(b",")}
    lines = zip(*[iter(forward)] * 4, strict=True)
    return [part for line in lines if line[0].lower() not in names for part in line]


def status_line(status: int) -> bytes:
    return STATUS_LINES.get(status) or b"HTTP/1.1 %d Status\r\n" % status


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
