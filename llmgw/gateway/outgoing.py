"""What is asked of an engine for a client's request: whom it names, and the bytes that go out.

Answers for: the model read from a body or a path and put in the engine's own words; all else as the client sent it. It
may not know sockets.
"""

from __future__ import annotations

import asyncio
from typing import Any, Protocol

import msgspec

from llmgw.gateway import form, openai, raw, websocket
from llmgw.gateway.endpoint import Endpoint
from llmgw.gateway.http1 import Request
from llmgw.gateway.openai import Api, ProblemError
from llmgw.gateway.reply import ReplyReader

#: Pieces of a body, to be sent one after another.
Pieces = tuple[bytes | memoryview, ...]


class Upstream(Protocol):
    """A connection to an engine."""

    reused: bool
    told: bool
    reader: ReplyReader

    def send(self, sink: Any, head: bytes, body: Pieces, *, plain: bool) -> ReplyReader: ...

    def cancel(self) -> None: ...

    def release(self) -> None: ...

    def pause(self) -> None: ...

    def resume(self) -> None: ...

    def switch(self) -> asyncio.Transport: ...


class Asked(msgspec.Struct):
    """`target`: the path that the engine is asked; `span`: where a form names the model."""

    model: str
    stream: bool
    target: bytes
    span: tuple[int, int] | None = None


def asked(request: Request, api: Api) -> Asked:
    """`ProblemError` where the request does not say which model it is for."""
    if api.raw:
        call = raw.call(request.target)
        return Asked(call.model, stream=False, target=call.target)
    if api.socket:
        if not request.upgrade:
            raise websocket.only_so()
        return Asked(websocket.model(request.target), stream=False, target=request.target)
    if api.form:
        found = form.asked(request.body, request.header(b"content-type"))
        span = (found.start, found.end)
        return Asked(found.model, found.stream and api.streams, request.target, span)
    try:
        body = openai.asked(request.body)
    except ProblemError as problem:
        coding = request.header(b"content-encoding").decode(errors="replace")
        if coding.lower() in ("", "identity"):
            raise
        raise openai.packed(coding) from problem
    return Asked(body.model, body.stream is True and api.streams, request.target)


def renamed(request: Request, name: str, asked: Asked, api: Api) -> tuple[bytes, Pieces]:
    """Path and body with the engine's own `name` of the model; a large form is not copied for it."""
    if api.socket:
        return websocket.renamed(asked.target, name), (request.body,)
    if asked.span is None:
        return asked.target, (openai.renamed(request.body, name),)
    start, end = asked.span
    body = memoryview(request.body)
    return asked.target, (body[:start], name.encode(), body[end:])


def head(
    request: Request, endpoint: Endpoint, target: bytes, body: Pieces, request_id: bytes
) -> bytes:
    """A request without a body says so only where its method may have one."""
    size = len(body[0]) if len(body) == 1 else sum(map(len, body))
    derived = request.derived
    length = b"content-length: %d\r\n" % size if size or request.method not in raw.READING else b""
    return b"".join(
        (
            request.method,
            b" ",
            target,
            b" HTTP/1.1\r\nhost: ",
            endpoint.authority,
            b"\r\n",
            b"".join(request.forward) if derived is None else derived.lines,
            length,
            b"x-request-id: ",
            request_id,
            b"\r\n",
            endpoint.authorization,
            b"\r\n",
        )
    )
