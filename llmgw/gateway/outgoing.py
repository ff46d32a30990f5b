"""What is asked of an engine for a client's request: whom it names, and the bytes that go out.

Answers for: the model read from a body or a path and put in the engine's own words; all else as the client sent it. It
may not know sockets.
"""

from __future__ import annotations

from typing import Any, NamedTuple, Protocol

from llmgw.gateway import form, openai, raw
from llmgw.gateway.endpoint import Endpoint
from llmgw.gateway.http1 import Request
from llmgw.gateway.openai import Api
from llmgw.gateway.reply import ReplyReader

#: Pieces of a body, to be sent one after another.
Pieces = tuple[bytes | memoryview, ...]


class Upstream(Protocol):
    """A connection to an engine."""

    reused: bool
    told: bool
    reader: ReplyReader

    def send(self, sink: Any, head: bytes, body: Pieces, *, plain: bool) -> None: ...

    def cancel(self) -> None: ...

    def release(self) -> None: ...

    def pause(self) -> None: ...

    def resume(self) -> None: ...


class Asked(NamedTuple):
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
    if api.form:
        found = form.asked(request.body, request.header(b"content-type"))
        span = (found.start, found.end)
        return Asked(found.model, found.stream and api.streams, request.target, span)
    body = openai.asked(request.body)
    return Asked(body.model, body.stream is True and api.streams, request.target)


def pieces(request: Request, endpoint: Endpoint, asked: Asked, api: Api) -> Pieces:
    """The body with the engine's own name of the model; a large form is not copied for it."""
    name = endpoint.upstream_model
    if api.raw or not name or name == asked.model:
        return (request.body,)
    if asked.span is None:
        return (openai.renamed(request.body, name),)
    start, end = asked.span
    body = memoryview(request.body)
    return body[:start], name.encode(), body[end:]


def head(
    request: Request, endpoint: Endpoint, target: bytes, size: int, request_id: bytes
) -> bytes:
    """`size`: bytes of the body; a request without one says so only where its method may have one."""
    length = b"content-length: %d\r\n" % size if size or request.method != b"GET" else b""
    return b"%b %b HTTP/1.1\r\nhost: %b\r\n%b%bx-request-id: %b\r\n%b\r\n" % (
        request.method,
        target,
        endpoint.authority,
        b"".join(request.forward),
        length,
        request_id,
        endpoint.authorization,
    )
