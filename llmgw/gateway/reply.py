"""One answer of an engine, bytes in, bytes out: its head, and a body that goes on as it came.

Answers for: where an answer ends, that nothing behind its end reaches a client, and whether a stream that broke off may
still be ended properly. It may not know sockets, models or the clock.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Any, NoReturn

import httptools
import msgspec

from llmgw.gateway import memo
from llmgw.gateway.http1 import HEAD_BYTES, HEAD_END, LAST_CHUNK, status_line

#: Hop by hop, what the gateway says itself, and CORS, which is the gateway's to grant.
OWN_HEADERS = frozenset(
    b"connection keep-alive proxy-authenticate proxy-connection te trailer transfer-encoding upgrade content-length "
    b"x-request-id x-llmgw-replica x-accel-buffering access-control-allow-origin access-control-allow-methods "
    b"access-control-allow-headers access-control-allow-credentials access-control-expose-headers "
    b"access-control-max-age".split()
)
OK = FINAL = 200
BODILESS = (204, 304)
CLOSE = frozenset((b"close",))


class BadReplyError(Exception):
    """An answer that cannot be framed; the message goes on from "the engine ..."."""


def bad(message: str) -> NoReturn:
    raise BadReplyError(message)


class Seen:
    """The last head of an engine that was usual, and what was read in it."""

    __slots__ = ("content_type", "encoded", "head", "lines", "status")

    def __init__(self) -> None:
        self.head: memo.Head | None = None
        self.status = 0
        self.content_type = b""
        self.encoded = False
        self.lines = b""


class ReplyReader(msgspec.Struct, eq=False):
    """`feed` gives the bytes of the body to pass on, chunk framing included.

    `plain` leaves the framing out: for HTTP/1.0 clients, and for streams whose framing is ours.
    """

    _seen: Seen = msgspec.field(default_factory=Seen)
    plain: bool = False
    status: int = 0
    content_type: bytes = b""
    encoded: bool = False
    length: int | None = None
    chunked: bool = False
    any: bool = False  # something arrived
    answered: bool = False  # the head is whole
    done: bool = False
    reusable: bool = False
    #: False where line ends may follow the last chunk: they would stand before the client's next answer.
    tidy: bool = True
    #: whether a good answer shows that the engine is well; who asks it for `/health` has asked for nothing else (F64)
    counts: bool = True
    #: the client offered to go on as a WebSocket; the engine took the offer
    may_switch: bool = False
    switched: bool = False
    _head_only: bool = False
    #: status line and headers that go on, once the head is whole
    lines: bytes = b""
    _excess: bool = False
    _left: int = 0
    _buffer: bytes = b""
    #: False: only counts, behind a head that was known
    parses: bool = False
    _parser: Any = None
    _candidate: bytes = b""
    _count: int = 0
    _pieces: Any = None
    _headers: Any = None  # parts of lines, to be joined
    on_body: Callable[[bytes], None] | None = None  # for the parser

    def answers_head(self) -> None:
        """What is known of heads holds where a body follows."""
        self._head_only = True
        self._seen = Seen()

    def feed(self, data: bytes) -> bytes:
        if not self.any:
            self.any = True
            head = self._seen.head
            if head is not None and (length := head.length(data)) >= 0:
                return self._again(data, head.end, length)
            self._begin()
        if not self.parses:
            return self._counted(data)
        if not self.answered:
            return self._begun(data)
        try:
            self._parser.feed_data(data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade) as e:
            self._unreadable(e)
        if self.done or self.plain or self.length is not None:
            return self._checked(data)
        return data  # of a stream, and this is for each event

    def _begun(self, data: bytes) -> bytes:
        body = self._head(data)
        return self._checked(body) if self.answered else b""

    def _checked(self, data: bytes) -> bytes:
        if self.length is not None:
            self._left -= len(data)
            self._excess = self._excess or self._left < 0
        elif self.done and self.chunked:
            self.tidy = not data or data.endswith(LAST_CHUNK)
        if self._excess:
            bad("sent more than its answer")
        if self.done and self._candidate:
            self._learn()
        return self._plain() if self.plain else data

    def _begin(self) -> None:
        if self.plain:  # httptools looks for it once, here; a raw body costs no call per chunk
            self._pieces = []
            self.on_body = self._pieces.append
        self.parses = True
        self._parser = httptools.HttpResponseParser(self)

    def _again(self, data: bytes, end: int, length: int) -> bytes:
        """The head that came last, but for its length: the body is counted, there is nothing to parse in it."""
        seen = self._seen
        self.status, self.lines = seen.status, seen.lines
        self.content_type, self.encoded = seen.content_type, seen.encoded
        self.length = self._left = length
        self.answered = True
        body = data[end:]
        if len(body) != length:
            return self._counted(body)
        self.done = self.reusable = True
        return body

    def _counted(self, data: bytes) -> bytes:
        self._left -= len(data)
        if not self._left:
            self.done = self.reusable = True
        elif self._left < 0:
            bad("sent more than its answer")
        return data

    def _learn(self) -> None:
        usual = self.status == OK and self.length and not self.chunked and self.reusable
        found = memo.head(self._candidate, self._count) if usual else None
        if found is not None:
            seen = self._seen
            seen.status, seen.lines, seen.head = self.status, self.lines, found
            seen.content_type, seen.encoded = self.content_type, self.encoded

    def _plain(self) -> bytes:
        body = b"".join(self._pieces)
        self._pieces.clear()
        return body

    def _head(self, data: bytes) -> bytes:
        """Parses the head as soon as it is whole, past any 1xx; gives what of `data` is body."""
        buffer = self._buffer + data if self._buffer else data
        while True:
            found = buffer.find(HEAD_END)
            if found < 0 or found > HEAD_BYTES:
                if len(buffer) > HEAD_BYTES:
                    bad(f"sent headers larger than {HEAD_BYTES} bytes")
                self._buffer = buffer
                return b""
            end = found + len(HEAD_END)
            if buffer[9:10] != b"1" or not buffer.startswith(b"HTTP/1."):
                break
            if buffer[9:12] == b"101":
                if not self.may_switch:
                    bad("switched to another protocol")
                return self._switch(buffer[:end], buffer[end:])
            buffer = buffer[end:]  # 100, 102, 103 are for this hop, and nobody waits for them
        self._buffer = b""
        if buffer is data:
            self._candidate = buffer[:end]
        self._sort(buffer[:found].split(b"\r\n"))
        try:
            self._parser.feed_data(buffer)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade) as e:
            self._unreadable(e)
        if self.status < FINAL:
            bad(f"answered with status {self.status}")
        self._lines()
        self._left = self.length or 0
        return self._bodiless(buffer[end:]) if self._head_only else buffer[end:]

    def _bodiless(self, rest: bytes) -> bytes:
        """Its length is that of the body it would have; the parser waits for that one, so it is not asked on."""
        if rest:
            bad("sent more than its answer")
        self._candidate = b""
        self._left = 0
        self.done = True
        self.reusable = self._parser.should_keep_alive()
        return b""

    def _switch(self, head: bytes, rest: bytes) -> bytes:
        """The last of HTTP here: what follows is not read."""
        self._buffer = b""
        self._sort(head[: -len(HEAD_END)].split(b"\r\n"))
        with suppress(httptools.HttpParserUpgrade):
            try:
                self._parser.feed_data(head)
            except httptools.HttpParserError as e:
                bad(f"sent no proper HTTP: {e}")
        self._lines()
        self.length, self.chunked, self.plain, self.switched = None, False, False, True
        return rest

    def _sort(self, lines: list[bytes]) -> None:
        """Headers that go on, and those that are read. The parser, fed next, refuses lines that are none."""
        headers = self._headers = []
        hops: set[bytes] = set()
        self._count = len(lines) - 1
        for line in lines[1:]:
            name, _, value = line.partition(b":")
            lower = name.lower()
            if lower not in OWN_HEADERS:
                headers += (line, b"\r\n")
                if lower == b"content-type":
                    self.content_type = value.strip().lower()
                elif lower == b"content-encoding":
                    self.encoded = True
            elif lower == b"content-length":
                # The parser, fed next, refuses those that are none; Python refuses to read very long ones.
                self.length = int(value.strip()[-30:]) if value.strip().isdigit() else None
            elif lower == b"transfer-encoding":
                self.chunked = value.lower().strip().endswith(b"chunked")
            elif lower == b"connection":
                hops.update(word.strip() for word in value.lower().split(b","))
        if not hops <= OWN_HEADERS | CLOSE:  # it names others that are for this hop only
            pairs = zip(headers[::2], headers[1::2], strict=True)
            self._headers = [
                part
                for pair in pairs
                if pair[0].partition(b":")[0].lower() not in hops
                for part in pair
            ]

    def _lines(self) -> None:
        self.lines = status_line(self.status) + b"".join(self._headers)

    def _unreadable(self, error: Exception) -> None:
        if not self.done:
            bad(f"sent no proper HTTP: {error}")
        self._excess = True

    @property
    def ends_at_eof(self) -> bool:
        return self.answered and not self.done and self.length is None and not self.chunked

    def at_boundary(self) -> bool:
        """Whether a chunk of ours may follow what was passed on so far. Ends this reader.

        Asked of the parser by ending the body for it: only between two chunks does that make a whole answer.
        """
        if not self.chunked or self.done:
            return False
        try:
            self._parser.feed_data(LAST_CHUNK)
        except httptools.HttpParserError:
            return False
        return self.done

    def close(self) -> None:
        """Drops the parser, which refers back to this reader."""
        self._parser = None

    # -- called by httptools

    def on_message_begin(self) -> None:
        self._excess = self.done

    def on_headers_complete(self) -> None:
        if self.answered:
            return
        self.answered = True
        self.status = self._parser.get_status_code()
        if self.status in BODILESS:
            self.length, self.chunked = 0, False

    def on_message_complete(self) -> None:
        if not self.done:
            self.done = True
            self.reusable = self._parser.should_keep_alive()
