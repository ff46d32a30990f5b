"""One answer of an engine, bytes in, bytes out: its head, and a body that goes on as it came.

Answers for: where an answer ends, that nothing behind its end reaches a client, and whether a stream that broke off may
still be ended properly. It may not know sockets, models or the clock.
"""

from __future__ import annotations

from typing import Any, NoReturn

import httptools

from llmgw.gateway.http1 import HEAD_BYTES, LAST_CHUNK

#: Hop by hop, what the gateway says itself, and CORS, which is the gateway's to grant.
OWN_HEADERS = frozenset(
    b"connection keep-alive proxy-authenticate proxy-connection te trailer transfer-encoding upgrade content-length "
    b"x-request-id x-llmgw-replica x-accel-buffering access-control-allow-origin access-control-allow-methods "
    b"access-control-allow-headers access-control-allow-credentials access-control-expose-headers "
    b"access-control-max-age".split()
)
HEAD_END = b"\r\n\r\n"
BODILESS, FINAL = (204, 304), 200


class BadReplyError(Exception):
    """An answer that cannot be framed; the message goes on from "the engine ..."."""


def bad(message: str) -> NoReturn:
    raise BadReplyError(message)


class ReplyReader:
    """`feed` gives the bytes of the body to pass on, chunk framing included.

    `plain` leaves the framing out: for HTTP/1.0 clients, and for streams whose framing is ours.
    """

    status = 0
    content_type = b""
    encoded = False
    length: int | None = None
    chunked = False
    any = False  # something arrived
    answered = False  # the head is whole
    done = False
    reusable = False
    #: False where line ends may follow the last chunk: they would stand before the client's next answer.
    tidy = True
    #: whether a good answer shows that the engine is well; who asks it for `/health` has asked for nothing else (F64)
    counts = True
    _excess = False
    _left = 0
    _buffer = b""

    def __init__(self, *, plain: bool = False) -> None:
        self.plain = plain
        self.headers: list[bytes] = []  # parts of lines, to be joined
        self._pieces: list[bytes] = []
        if plain:  # httptools looks for it once, here; a raw body costs no call per chunk
            self.on_body = self._pieces.append
        self._parser: Any = httptools.HttpResponseParser(self)

    def feed(self, data: bytes) -> bytes:
        self.any = True
        if self.answered:
            try:
                self._parser.feed_data(data)
            except (httptools.HttpParserError, httptools.HttpParserUpgrade) as e:
                self._unreadable(e)
        else:
            data = self._head(data)
            if not self.answered:
                return b""
        if self.length is not None:
            self._left -= len(data)
            self._excess = self._excess or self._left < 0
        elif self.done and self.chunked:
            self.tidy = data.endswith(LAST_CHUNK)
        if self._excess:
            bad("sent more than its answer")
        return self._plain() if self.plain else data

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
                bad("switched to another protocol")
            buffer = buffer[end:]  # 100, 102, 103 are for this hop, and nobody waits for them
        self._buffer = b""
        self._sort(buffer[:found].split(b"\r\n"))
        try:
            self._parser.feed_data(buffer)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade) as e:
            self._unreadable(e)
        if self.status < FINAL:
            bad(f"answered with status {self.status}")
        self._left = self.length or 0
        return buffer[end:]

    def _sort(self, lines: list[bytes]) -> None:
        """Headers that go on, and those that are read. The parser, fed next, refuses lines that are none."""
        headers = self.headers
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
