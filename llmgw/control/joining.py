"""`/api/v1/tokens`: an operator makes, lists and revokes node tokens, and hears what the next box needs to join.

Answers for: a token that was revoked is refused from the next request on, and its node's session ends. May not print a
command line: `llmgw token` does.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, Protocol

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from llmgw.control import node_tokens
from llmgw.control.guard import body
from llmgw.control.loop import Control
from llmgw.control.verbs import leading
from llmgw.errors import LlmgwError
from llmgw.wire import decode

Json = dict[str, Any]
Handler = Callable[[Request], Awaitable[Response]]


class Owner(Protocol):
    """The API."""

    control: Control


def rows(api: Owner) -> list[tuple[str, str, Handler, str]]:
    """As `api.table` has them."""

    async def listed(request: Request) -> Response:  # noqa: ARG001 - a handler's form
        return _json({"tokens": node_tokens.shown(api.control.node_tokens.now())})

    async def made(request: Request) -> Response:
        return _json(await add(api.control, decode(await body(request), node_tokens.Wanted)))

    async def revoked(request: Request) -> Response:
        return _json(await revoke(api.control, request.path_params["name"]))

    return [
        ("GET", "/api/v1/tokens", listed, "node tokens, without the words themselves"),
        ("POST", "/api/v1/tokens", made, "what the next box needs to join"),
        ("POST", "/api/v1/tokens/{name}/revoke", revoked, "a node token ends at once"),
    ]


def _json(value: Json) -> Response:
    return Response(msgspec.json.encode(value), media_type="application/json")


async def add(control: Control, want: node_tokens.Wanted) -> Json:
    """`urls`: where other boxes find this control, each with its pin behind the #; else where this one does."""
    urls = control.node_tokens.urls
    if not urls and control.settings.token:  # agents of this box are asked for one, too
        urls = (control.node_tokens.near,)
    if not urls:
        where = control.settings.listen
        msg = f"control listens on {where}, which no other box can reach, and asks nobody of this one for a token"
        there = (control.settings.inventory_path.parent / "token").exists()  # made after this start
        first = "" if there else "`llmgw token new --operator`, then "
        hint = (
            f"{first}end this control (engines and the gateway keep running) and start it "
            f"as `llmgw control --listen 0.0.0.0:{where.port}`; then this again"
        )
        raise LlmgwError(msg, hint, code="loopback_only", status=409)
    leading(control)  # by another's word ours would be gone in a moment
    made = control.node_tokens.edit(lambda there: node_tokens.added(there, want.name, new=want.new))

    def fold(now: float) -> None:  # noqa: ARG001 - a turn's form
        why = f"an operator was told the node token {made.name}"
        control.story.tell("node_token_shown", why, token=made.name)

    await control.ask(fold)
    return {"name": made.name, "token": made.token, "urls": list(urls)}


async def revoke(control: Control, name: str) -> Json:
    leading(control)
    control.node_tokens.edit(lambda there: (node_tokens.without(there, name), None))

    def fold(now: float) -> list[str]:  # noqa: ARG001 - a turn's form
        nodes = control.sessions.revoke(name)
        ends = f"; the session of {', '.join(nodes)} ends" if nodes else ""
        why = f"an operator revoked the node token {name}{ends}, engines keep running"
        control.story.tell("node_token_revoked", why, token=name)
        return nodes

    return {"revoked": name, "nodes": await control.ask(fold)}
