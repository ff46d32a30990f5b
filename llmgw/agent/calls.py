"""HTTP to one control over connections that stay open: a swap is several calls, and each is waited for (P9).

Answers for: one call at a time on a connection, TLS and pins as `tls` has them, a bound on every wait. May not try
again, nor follow anybody to another place, nor know what is said.
"""

from __future__ import annotations

import asyncio
import os
from typing import NamedTuple, Protocol, cast
from urllib.parse import urlsplit

import httptools
import msgspec
from typing_extensions import override

from llmgw import config, tls
from llmgw.config import Trust
from llmgw.errors import first_words

#: Connections kept while nobody uses them: orders are waited for on one, and the other one tells.
IDLE = 2
#: Addresses of one name are tried this much apart (RFC 8305).
NEXT_S = 0.25
HTTPS, HTTP = 443, 80


class NoAnswerError(ConnectionError):
    """Somebody was there, and answered nothing, or not in HTTP."""


class Answer(NamedTuple):
    status: int
    content: bytes

    @property
    def ok(self) -> bool:
        return self.status // 100 == 2  # noqa: PLR2004


class Caller(Protocol):
    """What a link needs; `shown`: the token, "" for none."""

    shown: str

    @property
    def in_clear(self) -> bool: ...
    async def call(
        self, method: str, path: str, body: bytes, limit_s: float, *, shy: bool = False
    ) -> Answer: ...
    def close(self) -> None: ...


class Calls:
    def __init__(self, url: str, trust: Trust, *, token: str, node: str) -> None:
        place = urlsplit(url)
        self._tls = tls.client(trust) if place.scheme == "https" else None
        self._host = place.hostname or ""
        self._port = place.port or (HTTPS if self._tls else HTTP)
        self._path = place.path.rstrip("/")
        name = self._host if self._host.isascii() else self._host.encode("idna").decode()
        name = f"[{name}]" if ":" in name else name
        port = f":{place.port}" if place.port else ""
        self._fixed = f"host: {name}{port}\r\nx-llmgw-node: {node}\r\n"
        self.shown = token
        self._idle: list[_Line] = []

    @property
    def in_clear(self) -> bool:
        """What is said may be read on its way."""
        return self._tls is None and not config.Address(self._host, 0).loopback

    async def call(
        self, method: str, path: str, body: bytes, limit_s: float, *, shy: bool = False
    ) -> Answer:
        """OSError where there is none; `shy`: without the token."""
        token = f"authorization: Bearer {self.shown}\r\n" if self.shown and not shy else ""
        more = f"content-type: application/json\r\ncontent-length: {len(body)}\r\n" if body else ""
        head = f"{method} {self._path}{path} HTTP/1.1\r\n{self._fixed}{token}{more}\r\n"
        line = self._free()
        try:
            async with asyncio.timeout(limit_s):
                if line is None:
                    line = await self._open()
                answer = await line.ask(head.encode() + body)
        except TimeoutError as e:
            msg = f"no answer in {limit_s:g} s"
            raise (TimeoutError(msg) if line is None else NoAnswerError(msg)) from e
        finally:
            if line is not None and not line.free:
                line.close()
        if line.free and len(self._idle) < IDLE:
            self._idle.append(line)
        elif line.free:
            line.close()
        return answer

    def close(self) -> None:
        while self._idle:
            self._idle.pop().close()

    def _free(self) -> _Line | None:
        while self._idle:
            line = self._idle.pop()
            if line.free:
                return line
            line.close()
        return None

    async def _open(self) -> _Line:
        loop = asyncio.get_running_loop()
        try:
            _, line = await loop.create_connection(
                _Line, self._host, self._port, ssl=self._tls, happy_eyeballs_delay=NEXT_S
            )
        except ConnectionError as e:  # asyncio puts words of its own into `strerror`
            if e.errno is None:
                raise
            raise type(e)(e.errno, os.strerror(e.errno)) from e
        return line


class _Line(asyncio.Protocol):
    """One connection; `free` while another question may be asked on it."""

    def __init__(self) -> None:
        self.free = True
        self._status = 0
        #: its head is there; and its end is that of the connection, for it said no length
        self._begun = self._open_ended = False
        self._parts: list[bytes] = []
        self._parser: httptools.HttpResponseParser | None = None
        self._answer: asyncio.Future[Answer] | None = None
        self._transport: asyncio.Transport

    async def ask(self, question: bytes) -> Answer:
        self.free, self._begun, self._open_ended, self._parts = False, False, True, []
        self._parser = httptools.HttpResponseParser(self)
        self._answer = asyncio.get_running_loop().create_future()
        self._transport.write(question)
        return await self._answer

    def close(self) -> None:
        self.free = False
        self._transport.abort()

    # ------------------------------------------------ the connection

    @override
    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)

    @override
    def data_received(self, data: bytes) -> None:
        if self._parser is None or self._answer is None or self._answer.done():
            self.close()  # nobody asked
            return
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError as e:
            self._failed(f"not HTTP: {data[:60]!r}", e)

    @override
    def connection_lost(self, exc: Exception | None) -> None:
        self.free = False
        if self._begun and self._open_ended:
            self._whole()
        else:
            self._failed(str(exc or "it closed the connection without an answer"), exc)

    def _failed(self, why: str, cause: Exception | None) -> None:
        self._transport.abort()
        if self._answer is not None and not self._answer.done():
            error = NoAnswerError(why)
            error.__cause__ = cause
            self._answer.set_exception(error)

    # ------------------------------------------------ the answer, as the parser calls it

    def on_header(self, name: bytes, value: bytes) -> None:  # noqa: ARG002 - the parser's form
        if name.lower() in (b"content-length", b"transfer-encoding"):
            self._open_ended = False

    def on_headers_complete(self) -> None:
        assert self._parser is not None
        self._status, self._begun = self._parser.get_status_code(), True

    def on_body(self, part: bytes) -> None:
        self._parts.append(part)

    def on_message_complete(self) -> None:
        assert self._parser is not None
        self.free = self._parser.should_keep_alive() and not self._transport.is_closing()
        self._whole()

    def _whole(self) -> None:
        if self._answer is not None and not self._answer.done():
            self._answer.set_result(Answer(self._status, b"".join(self._parts)))


def error_of(answer: Answer) -> tuple[str, str, str]:
    """Message, hint and code of the errors of our own APIs; anybody else's by its first words."""
    try:
        error = msgspec.json.decode(answer.content)["error"]
        return str(error["message"]), str(error.get("hint") or ""), str(error.get("code") or "")
    except (msgspec.MsgspecError, LookupError, TypeError, AttributeError):
        return first_words(answer.content), "", ""
