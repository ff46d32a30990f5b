"""Who may speak to control at all: host, origin, content type, token, size (contract/http.md).

Answers for: refusing before anything is read. Agents execute what control sends, so a web page that a person on this
box has open must not reach it, nor may a stranger. It may not know what a request is about beyond its path.
"""

from __future__ import annotations

import hmac
from collections.abc import Iterable

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send

from llmgw.control import web
from llmgw.control.node_tokens import ANYONE, SHARED, NodeTokens
from llmgw.control.refused import HEADER, Refused
from llmgw.control.settings import allowed_host
from llmgw.errors import CatalogError, LlmgwError, UnauthorisedError

#: A node with thousands of shards stays far below.
BODY_BYTES = 32 << 20
_SERVER = 500
OPEN = frozenset({"/healthz", "/readyz"}) | web.OPEN
#: Under which a request says by what token it came.
WHO = "llmgw.who"
_NODES = ("/agent/v1/", "/gateway/v1/")
REGISTER = "/agent/v1/register"
_TYPES = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    409: "conflict_error",
    410: "gone_error",
}


class Tokens:
    """`nodes` are those of agents and gateways; the operators' opens everything. None set: all are welcome.

    `named` may come and go while control runs. `wide`: we listen beyond loopback, where they are asked for even alone.
    """

    def __init__(
        self,
        operator: str,
        nodes: Iterable[str],
        named: NodeTokens | None = None,
        *,
        wide: bool = False,
    ) -> None:
        self._operator = [operator] if operator else []
        self._nodes = [n for n in nodes if n]
        self._named = named
        self._wide = wide

    def add_node(self, token: str) -> None:
        """One that a gateway was started with before the settings changed."""
        if token and token not in self._nodes and (self._nodes or self._operator):
            self._nodes.append(token)

    def check(self, path: str, given: str) -> str:
        """Who asks, as `node_tokens` has it: the name of a node's token, "" for a shared one, else anyone."""
        if path in OPEN:
            return ANYONE
        nodes = path.startswith(_NODES)
        wanted = self._operator + (self._nodes if nodes else [])
        # Every one is compared, so that time does not tell which was near.
        matches = [hmac.compare_digest(given.encode(), w.encode()) for w in wanted]
        named = self._named if nodes else None
        if named is not None and given and (name := named.known(given)):
            return "" if name == SHARED else name
        if any(matches[len(self._operator) :]):
            return ""
        needed = wanted or (named is not None and self._wide and named.present)
        if needed and not any(matches):
            msg = "the token is wrong" if given else "a token is needed and none was sent"
            raise UnauthorisedError(msg, _hint(nodes=nodes, given=bool(given)))
        return ANYONE


def _hint(*, nodes: bool, given: bool) -> str:
    """Each ends in what works: nobody is sent to a verb that would only send him on."""
    if nodes:
        verb, line = ("llmgw token new", "another line") if given else ("llmgw token", "the line")
        why = f"`{verb}` on control's box prints {line} to start it with"
        return f"{why}; or set LLMGW_NODE_TOKEN to control's"
    why = "set LLMGW_TOKEN to control's: its own LLMGW_TOKEN, or the word in `token` beside its inventory"
    return f"{why}; the user who runs control needs neither on its box"


class Guard:
    """The outermost ASGI application."""

    def __init__(self, app: ASGIApp, tokens: Tokens, own_host: str, refused: Refused) -> None:
        self._app = app
        self._tokens = tokens
        self._own_host = own_host
        self._refused = refused

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        headers: dict[bytes, bytes] = dict(scope["headers"])
        try:
            self._same_site(headers, typed=scope["path"] == "/")
            self._json_only(headers)
            scope[WHO] = self._who(scope, headers)
        except LlmgwError as e:
            await refusal(e)(scope, receive, send)
            return
        await self._app(scope, receive, send)

    def _who(self, scope: Scope, headers: dict[bytes, bytes]) -> str:
        """By what token it comes; of an agent that has no right one is said who it is."""
        given = _bearer(headers)
        node = headers.get(HEADER, b"").decode("latin-1")
        try:
            who = self._tokens.check(scope["path"], given)
        except UnauthorisedError:
            if scope["path"] == REGISTER:
                came_from = (scope.get("client") or ("",))[0]
                self._refused.heard(node, came_from, sent=bool(given))
            raise
        if scope["path"] == REGISTER:
            self._refused.let_in(node)
        return who

    def _same_site(self, headers: dict[bytes, bytes], *, typed: bool) -> None:
        """A browser says where a request comes from; ours is no site that a page may call.

        `typed`: the page itself may come from the address bar, which is no site ("none", Fetch Metadata 2.2).
        """
        host = headers.get(b"host", b"").decode("latin-1")
        if not allowed_host(host, self._own_host):
            msg = f"host {host[:80]!r} is not this control"
            hint = f"use an IP address, localhost or {self._own_host}"
            raise LlmgwError(msg, hint, code="forbidden_host", status=403)
        origin = headers.get(b"origin", b"").decode("latin-1")
        site = headers.get(b"sec-fetch-site", b"same-origin").decode("latin-1")
        own = origin.partition("://")[2] == host
        if (origin and not own) or not (site == "same-origin" or (typed and site == "none")):
            msg = "requests from web pages of other sites are refused"
            hint = "use llmgw, curl, or a page that control itself serves"
            raise LlmgwError(msg, hint, code="forbidden_origin", status=403)

    def _json_only(self, headers: dict[bytes, bytes]) -> None:
        said = headers.get(b"content-type", b"").decode("latin-1")
        has_body = headers.get(b"content-length", b"0") != b"0" or b"transfer-encoding" in headers
        kind = said.partition(";")[0].strip().lower()
        if (said or has_body) and kind != "application/json":
            msg = f"a body of type {kind[:60] or 'unknown'} is refused"
            hint = "send JSON and say so: Content-Type: application/json"
            raise LlmgwError(msg, hint, code="forbidden_content_type", status=403)


def _bearer(headers: dict[bytes, bytes]) -> str:
    scheme, _, token = headers.get(b"authorization", b"").decode("latin-1").partition(" ")
    return token.strip() if scheme.lower() == "bearer" else ""


async def body(request: Request) -> bytes:
    """The request's body, up to the limit."""
    parts = []
    size = 0
    async for part in request.stream():
        size += len(part)
        if size > BODY_BYTES:
            msg = f"the body is larger than {BODY_BYTES >> 20} MiB"
            raise LlmgwError(msg, "send less", code="too_large", status=413)
        parts.append(part)
    return b"".join(parts)


def refusal(e: LlmgwError) -> Response:
    kind = _TYPES.get(e.status, "server_error" if e.status >= _SERVER else "invalid_request_error")
    error: dict[str, object] = {"message": e.message, "type": kind, "code": e.code, "hint": e.hint}
    if isinstance(e, CatalogError):
        error["problems"] = list(e.problems)
    headers = {"WWW-Authenticate": "Bearer"} if isinstance(e, UnauthorisedError) else {}
    return Response(msgspec.json.encode({"error": error}), e.status, headers, "application/json")
