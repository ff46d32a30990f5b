"""What the gateway answers by itself: the model list, health, metrics, CORS preflight, and what it does not serve.

Answers for: listing, scraping and health checks that ask nobody, wake nothing and touch no idle clock. It may not know
sockets.
"""

from __future__ import annotations

from urllib.parse import unquote

import msgspec

from llmgw.gateway import openai, raw, websocket
from llmgw.gateway.http1 import Request
from llmgw.gateway.keys import allowed
from llmgw.gateway.openai import JSON, ProblemError
from llmgw.gateway.state import Gateway

MODELS = b"/v1/models"
METRICS = b"content-type: text/plain; version=0.0.4; charset=utf-8\r\n"
PREFLIGHT = (
    b"access-control-allow-origin: *\r\n"
    b"access-control-allow-methods: GET, HEAD, POST, PUT, PATCH, DELETE, OPTIONS\r\n"
    b"access-control-allow-headers: %b\r\n"
    b"access-control-max-age: 86400\r\n"
    b"vary: access-control-request-headers\r\n"
)
READING = (b"GET", b"HEAD")

Reply = tuple[int, bytes, bytes]


def respond(gateway: Gateway, request: Request, *, loopback: bool) -> Reply:
    """Status, header lines and body; `ProblemError` where there is nothing to answer."""
    path, method = request.path, request.method
    if method == b"OPTIONS":
        return _preflight(request)
    if path in openai.APIS:
        raise _wrong_method(method, "POST, OPTIONS")
    if path == websocket.REALTIME:
        raise _wrong_method(method, "GET, OPTIONS")
    if path.startswith(raw.PREFIX):
        raise _wrong_method(method, ", ".join(m.decode() for m in raw.METHODS))
    if path not in (MODELS, b"/healthz", b"/metrics") and not path.startswith(MODELS + b"/"):
        message = f"{path[:200].decode(errors='replace')} is not served here"
        hint = "clients use /v1/chat/completions and its like; a base URL ends in /v1"
        raise ProblemError(404, "not_found", message, hint)
    if method not in READING:
        raise _wrong_method(method, "GET, HEAD, OPTIONS")
    if path == b"/healthz":
        return _health(gateway)
    if path == b"/metrics":
        if not loopback:
            gateway.keys.check(request.own)
        return 200, METRICS, gateway.scraped(gateway.exposition())
    return _models(gateway, request)


def _wrong_method(method: bytes, allow: str) -> ProblemError:
    message = f"method {method.decode()} is not allowed here"
    headers = b"allow: %b\r\n" % allow.encode()
    return ProblemError(405, "method_not_allowed", message, f"use {allow}", headers=headers)


def _preflight(request: Request) -> Reply:
    wanted = request.own.get(b"access-control-request-headers", b"authorization, content-type")
    return (
        204,
        PREFLIGHT % wanted if b"origin" not in request.own else _bare(PREFLIGHT) % wanted,
        b"",
    )


def _bare(headers: bytes) -> bytes:
    """Without the line that every answer to an `Origin` has already."""
    return headers.split(b"\r\n", 1)[1]


def _health(gateway: Gateway) -> Reply:
    table = gateway.fleet.table
    facts = {
        "status": "stopping" if gateway.stopping else "ok",
        "gateway": gateway.id,
        "table": table.version if table is not None else None,
    }
    return 200, JSON, msgspec.json.encode(facts)


def _models(gateway: Gateway, request: Request) -> Reply:
    key = gateway.keys.check(request.own)
    targets = [t for t in gateway.fleet.targets.values() if allowed(key, t.name)]
    if request.path == MODELS:
        if key is None or key.models is None:
            return 200, JSON, gateway.model_list()
        return 200, JSON, openai.model_list([(t.name, t.route) for t in targets])
    name = unquote(request.path[len(MODELS) + 1 :].decode())
    target = gateway.resolve(name)
    if target is None or target not in targets:
        raise gateway.names.unknown(name, [t.name for t in targets])
    return 200, JSON, msgspec.json.encode(openai.model_document(target.name, target.route))
