"""`/upstream/MODEL/...`: any other call of an engine's own API, for whoever may (contract/http.md).

Answers for: which model and path are meant, and that no path climbs out of what it names. It may not choose a replica.
"""

from __future__ import annotations

from typing import NamedTuple
from urllib.parse import unquote_to_bytes

from llmgw.gateway import websocket
from llmgw.gateway.http1 import Request
from llmgw.gateway.keys import Use
from llmgw.gateway.openai import Api, ProblemError
from llmgw.gateway.reply import ReplyReader

PREFIX = b"/upstream/"
RIGHT = "upstream"
READING = (b"GET", b"HEAD")
METHODS = (*READING, b"POST", b"PUT", b"PATCH", b"DELETE")
#: A call of which nobody knows what it does is not made twice; reading may be.
READS, WRITES = Api(raw=True), Api(raw=True, repeats=False)


class Call(NamedTuple):
    """`target`: what the engine is asked, query included."""

    model: str
    target: bytes


def api(path: bytes, method: bytes) -> Api | None:
    """How a call that is none of `openai.APIS` is treated, None where it is not passed on."""
    if path == websocket.REALTIME and method == b"GET":
        return websocket.REALTIME_API
    if not path.startswith(PREFIX) or method not in METHODS:
        return None
    return READS if method in READING else WRITES


def call(target: bytes) -> Call:
    """`ProblemError` where the path is not plain: an engine may read `%2e%2e` as we do not."""
    path, mark, query = target[len(PREFIX) :].partition(b"?")
    name, _, rest = path.partition(b"/")
    parts: list[bytes] = []
    for part in rest.split(b"/"):
        plain = unquote_to_bytes(part)
        if plain == b".." or any(c in plain for c in b"/\\\0"):
            message = f"the path /{rest[:200].decode(errors='replace')} is refused: it is not plain"
            raise ProblemError(400, "bad_path", message, "no `..`, and no slash in %-form")
        if plain not in (b"", b"."):
            parts.append(part)
    last = b"/" if parts and rest.endswith(b"/") else b""
    model = unquote_to_bytes(name).decode(errors="replace")
    return Call(model, b"/" + b"/".join(parts) + last + mark + query)


def expect(reader: ReplyReader, request: Request, api: Api) -> None:
    """What an answer may be here that it may not be elsewhere."""
    reader.counts = not api.raw
    reader.may_switch = request.upgrade
    if request.method == b"HEAD":
        reader.answers_head()


def check(use: Use | None, *, loopback: bool) -> None:
    """A key with the right, or somebody on this box."""
    if loopback or (use is not None and RIGHT in use.key.rights):
        return
    whose = "without an API key" if use is None else f"API key {use.key.id!r}"
    message = f"{whose} /upstream/ may not be used from another box"
    hint = "`llmgw key add NAME --upstream` makes a key that may"
    raise ProblemError(403, "upstream_not_allowed", message, hint)
