"""The agent's read-only API (contract/http.md "Agent, read-only"): inventory, status, logs, metrics. Changes nothing.

Served in the loop's own event loop, so that a wedged agent does not answer here either. Keys of engines and secret
values are never in an answer; browsers are kept out (Host, Origin, Sec-Fetch-Site).
"""

from __future__ import annotations

import asyncio
import hmac
import ipaddress
import re
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import msgspec
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.base import BaseHTTPMiddleware, RequestResponseEndpoint
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response, StreamingResponse
from starlette.routing import Route

from llmgw import wire
from llmgw.agent.placeholders import redacted
from llmgw.agent.view import View
from llmgw.core.helps import ENDED, SHOWN
from llmgw.core.names import unknown
from llmgw.core.supervise.claims import ID
from llmgw.core.supervise.report import node_report

TAIL_BYTES, FOLLOW_S = 64 * 1024, 0.5
#: One answer is made in the loop's own event loop: more of a log would hold up everything else (F60).
TAIL_MAX_BYTES = 4 << 20
RANK, NUMBER = re.compile(r"[0-9]{1,4}"), re.compile(r"[0-9]{1,15}")


def app(view: View) -> Starlette:
    routes = [
        Route("/v1/inventory", _through(view, _inventory)),
        Route("/v1/status", _through(view, _status)),
        Route("/v1/logs/{replica}/{rank}", _through(view, _logs)),
        Route("/metrics", _through(view, _metrics)),
        Route("/healthz", _through(view, _healthz)),
    ]
    guard = Middleware(BaseHTTPMiddleware, dispatch=_Guard(view))
    return Starlette(routes=routes, middleware=[guard], exception_handlers={HTTPException: _failed})


async def _failed(_request: Request, raised: Exception) -> Response:
    """No such path, no such method: in the shape of all our errors."""
    assert isinstance(raised, HTTPException)
    return error(
        raised.status_code, "not_found", raised.detail, "GET /v1/status tells what is here"
    )


Answer = Callable[[View, Request], Awaitable[Response]]


def _through(view: View, answer: Answer) -> Callable[[Request], Awaitable[Response]]:
    """A handler with the view it looks through."""

    async def endpoint(request: Request) -> Response:
        return await answer(view, request)

    return endpoint


class _Guard:
    """Who may ask: no browser, and with a token set only who has it. `/healthz` needs none."""

    def __init__(self, view: View) -> None:
        self.view = view

    async def __call__(self, request: Request, call_next: RequestResponseEndpoint) -> Response:
        refused = foreign_caller(request, self.view.names)
        if refused:
            return error(
                403, "forbidden", refused, "call the agent by its address, without a browser"
            )
        if request.url.path != "/healthz" and not self._known(request):
            hint = "send Authorization: Bearer with the node token or the operator token"
            return error(401, "unauthorised", "no token, or not one of this agent's", hint)
        return await call_next(request)

    def _known(self, request: Request) -> bool:
        if not self.view.tokens:
            return True
        kind, _, given = request.headers.get("authorization", "").partition(" ")
        matches = [
            hmac.compare_digest(t.encode(), given.strip().encode()) for t in self.view.tokens
        ]
        return kind.lower() == "bearer" and any(matches)


def foreign_caller(request: Request, names: frozenset[str]) -> str:
    """Why this request is not from a tool of ours, or "": DNS rebinding and cross-site calls end here."""
    host = host_of(request.headers.get("host", "")).lower()
    if not (host in names or host == "localhost" or _literal(host)):
        return f"Host {host!r} is neither an IP address nor a name of this agent"
    if "origin" in request.headers:
        return "requests with an Origin are refused"
    site = request.headers.get("sec-fetch-site", "same-origin")
    return "" if site == "same-origin" else f"Sec-Fetch-Site {site} is refused"


def host_of(header: str) -> str:
    """The name of a Host header, without the port."""
    if header.startswith("["):
        return header[1:].partition("]")[0]
    return header.rpartition(":")[0] if header.count(":") == 1 else header


def _literal(host: str) -> bool:
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True


def error(status: int, code: str, message: str, hint: str = "") -> Response:
    body = {"error": {"message": message, "type": "llmgw_error", "code": code, "hint": hint}}
    return _json(body, status)


def _json(value: Any, status: int = 200) -> Response:
    return Response(msgspec.json.encode(value), status, media_type="application/json")


async def _inventory(view: View, _request: Request) -> Response:
    report = node_report(view.state(), for_register=False)
    return _json(wire.report_document(report, secrets=False))


async def _status(view: View, _request: Request) -> Response:
    """The node's own view, for `llmgw status` with control away."""
    state = view.state()
    report = wire.report_document(node_report(state, for_register=False), secrets=False)
    return _json(
        {
            "schema": "llmgw.agent-status/1",
            "node": report,
            "controls": view.controls(),
            "control_heard": state.control_heard,
        }
    )


async def _logs(view: View, request: Request) -> Response:
    replica, rank = request.path_params["replica"], request.path_params["rank"]
    shard = f"{replica}/{rank}"
    previous = request.query_params.get("previous", "0") == "1"
    if not (ID.fullmatch(replica) and RANK.fullmatch(rank)):
        return error(404, "not_found", f"{shard[:80]!r} is no shard's name", SHOWN)
    path = view.logs.previous(shard) if previous else view.logs.path(shard)
    if not path.exists():
        return _no_log(view, replica, shard)
    wanted = request.query_params.get("tail", "")
    size = int(wanted) if NUMBER.fullmatch(wanted) else TAIL_BYTES
    size = min(size, TAIL_MAX_BYTES)
    if request.query_params.get("follow", "0") == "1" and not previous:  # which nobody writes to
        return StreamingResponse(_follow(view, shard, size), media_type="text/plain")
    text = view.logs.tail(shard, size, previous=previous)
    return PlainTextResponse(redacted(text, _secrets(view, shard)))


def _no_log(view: View, replica: str, shard: str) -> Response:
    """Of an attempt before the first, of one that has written nothing, of nobody that is known here."""
    if view.logs.path(shard).exists():
        hint = f"`llmgw logs {shard}` shows the one that runs or ran last; {ENDED}"
        return error(404, "no_log_here", f"{shard} has no attempt before this one", hint)
    starts = [record.start for record in view.state().records.values()]
    if any(start.shard == shard for start in starts):
        return error(404, "no_log_here", f"{shard} has written nothing yet", f"{SHOWN}; {ENDED}")
    replicas = {start.replica for start in starts}
    known = sorted(replicas | {start.model for start in starts})
    what, name = f"{'' if replica in known else 'model or '}replica", replica
    if replica in replicas:
        what, name, known = "shard", shard, sorted({start.shard for start in starts})
    others = [other for other in known if other != name]
    said = unknown(what, name, others, f"{SHOWN}; {ENDED}", where=" here")
    return error(said.status, said.code, said.message, said.hint)


async def _follow(view: View, shard: str, size: int) -> AsyncIterator[str]:
    """What is there and what comes, in whole lines (half a line may hold half a secret); then the next attempt's."""
    path = view.logs.path(shard)
    found = path.stat()
    at, node = max(found.st_size - size, 0), found.st_ino
    inside = at > 0
    at -= inside
    while path.exists():
        found = path.stat()
        if found.st_ino != node or found.st_size < at:
            at, node, inside = 0, found.st_ino, False
        said = view.logs.since(shard, at) if found.st_size > at else b""
        lines = said[: said.rfind(b"\n") + 1]
        at += len(lines)
        if inside and lines:
            lines, inside = lines.partition(b"\n")[2], False
        if lines:
            yield redacted(lines.decode(errors="replace"), _secrets(view, shard))
        else:
            await asyncio.sleep(FOLLOW_S)


def _secrets(view: View, shard: str) -> frozenset[str]:
    records = view.state().records.values()
    found = (view.secrets_of(r) for r in records if r.start.shard == shard)
    return frozenset().union(*found)


async def _metrics(view: View, _request: Request) -> Response:
    body, kind = await view.metrics()
    return Response(body, media_type=kind)


async def _healthz(view: View, _request: Request) -> Response:
    ok = view.state().reattached
    return _json({"status": "ok" if ok else "reattaching"}, 200 if ok else 503)
