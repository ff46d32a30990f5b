"""What is said of a path that control does not have: what there is instead, and whose path it is.

Answers for: a client that was given control's address for the gateway's is told the right one. May not serve anything.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Match

from llmgw.config import Address
from llmgw.control.guard import refusal
from llmgw.control.settings import ControlSettings
from llmgw.core.names import plain
from llmgw.errors import LlmgwError

#: What is said of a path that somebody asked for.
PATH_CHARS = 200
_NOT_ALLOWED = 405
Answer = Callable[[Request, Exception], Awaitable[Response]]


def answers(settings: ControlSettings) -> Answer:
    async def no_such(request: Request, error: Exception) -> Response:
        status = getattr(error, "status_code", 404)
        what = "the method is not the right one for" if status == _NOT_ALLOWED else "there is no"
        msg = f"{what} {request.method} {plain(request.url.path, PATH_CHARS)}"
        hint = _hint(settings, request)
        said = refusal(LlmgwError(msg, hint, code="not_found", status=status))
        if status == _NOT_ALLOWED:
            said.headers["Allow"] = ", ".join(sorted(_methods(request)))
        return said

    return no_such


def _hint(settings: ControlSettings, request: Request) -> str:
    path, at = request.url.path, settings.gateway
    if not (path == "/v1" or path.startswith("/v1/")):
        return "GET /openapi.json lists what there is"
    if at is None:
        return "this is control; clients ask a gateway, and this control runs none (--gateway none)"
    where = Address(request.url.hostname or at.near.host, at.port) if at.every else at
    return f"this is control; clients ask the gateway: {where.url}{path}"


def _methods(request: Request) -> set[str]:
    """Of every route of this path; Starlette knows those of the first one only (RFC 9110, 15.5.6)."""
    found: set[str] = set()
    for route in request.app.routes:
        match, _ = route.matches(request.scope)
        found |= set() if match is Match.NONE else route.methods
    return found
