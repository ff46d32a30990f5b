"""Engines' logs through control: asked of the agent that has them, passed on as they come (contract/http.md).

Answers for: which agent, and one clear error where none can be asked. It may not keep a line, nor hide one: the agent
leaves secrets out. An agent on loopback only gives no address to ask at; the command line then asks its own box's.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from typing import Any

import httpx
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse

from llmgw import tls
from llmgw.config import Trust
from llmgw.control import given
from llmgw.control.loop import Control
from llmgw.core.helps import ENDED, SHOWN
from llmgw.core.names import plain, unknown
from llmgw.core.types.messages import NodeReport
from llmgw.core.types.state import Node
from llmgw.errors import LlmgwError, UsageError

#: To reach an agent, and for its first byte; a log that is followed may then be silent for as long as it likes.
CONNECT_S = 5.0
OK, NOT_FOUND = 200, 404


async def answer(control: Control, request: Request) -> Response:
    """The log of one shard, by its replica and rank."""
    shard = f"{request.path_params['name']}/{request.path_params['rank']}"
    asked = _asked(request)
    away: list[str] = []
    for name, node in _likely(control, shard):
        if not node.report.inspect:
            away.append(f"{name} (its agent listens on loopback only)")
            continue
        stream = _Stream(node.report, f"/v1/logs/{shard}", asked, _token(control, node))
        try:
            status = await stream.open()
        except httpx.HTTPError as e:
            why = tls.trouble(e)[0] or type(e).__name__
            away.append(f"{name} at {node.report.inspect} ({why})")
            continue
        if status == OK:
            return StreamingResponse(stream.rest(), media_type="text/plain")
        await stream.close()
        if status != NOT_FOUND:
            away.append(f"{name} (it answered {status})")
    said = plain(shard)
    if away:
        msg = f"the log of {said} cannot be asked for: {', '.join(away)}"
        hint = (
            "run `llmgw logs` on that box, with LLMGW_STATE_DIR set to the folder its agent was started with, if that "
            "is another one; or give its agent an --address and --listen that control can reach"
        )
        raise LlmgwError(msg, hint, code="no_log_here", status=503)
    raise _nobody(control, shard, said, previous="previous" in asked)


def _nobody(control: Control, shard: str, said: str, *, previous: bool) -> LlmgwError:
    """Every agent that may have it was asked, and none has."""
    shards = [s.report for node in control.state.nodes.values() for s in node.shards]
    mine = [report for report in shards if report.shard == shard]
    if mine:
        error = next((report.error for report in mine if report.error), "")
        wrote = f"written nothing: {error}" if error else "written nothing yet"
        msg = f"{said} has {'no attempt before this one' if previous else wrote}"
        return LlmgwError(msg, f"{SHOWN}; {ENDED}", code="not_found", status=404)
    name = shard.rpartition("/")[0]
    models = control.catalogs.catalog.models
    known = sorted({*models, *(report.shard.rpartition("/")[0] for report in shards)})
    run = f"{SHOWN}; {ENDED}"
    if name not in known:
        return unknown("model or replica", name, known, run)
    return LlmgwError(f"no agent has a log of {said}", run, code="not_found", status=404)


def _asked(request: Request) -> dict[str, Any]:
    """What the agent is asked for, in its own words."""
    asked: dict[str, Any] = {k: "1" for k in ("follow", "previous") if given.switch(request, k)}
    tail = given.number(request, "tail", 0)
    if tail < 0:
        msg = f"tail={tail} is less than no byte"
        raise UsageError(msg, "how many bytes of its end are wanted")
    return asked | ({"tail": tail} if "tail" in request.query_params else {})


def _likely(control: Control, shard: str) -> list[tuple[str, Node]]:
    """Those that have the shard; for one that is over and out of the picture, every node that answers."""
    nodes = sorted(control.state.nodes.items())
    having = [(n, node) for n, node in nodes if any(s.report.shard == shard for s in node.shards)]
    return having or [(n, node) for n, node in nodes if node.connected]


def _token(control: Control, node: Node) -> dict[str, str]:
    """The one that its agent has: no other node's is shown to it."""
    token = control.node_tokens.of(node.report.node_id) or control.settings.node_token
    return {"Authorization": f"Bearer {token}"} if token else {}


class _Stream:
    """One GET whose body is passed on while it comes, closed with whoever reads it."""

    def __init__(
        self, report: NodeReport, path: str, asked: dict[str, Any], headers: dict[str, str]
    ) -> None:
        self._stack = AsyncExitStack()
        self._url, self._asked, self._headers = f"{report.inspect}{path}", asked, headers
        self._verify = tls.verify(self._url, Trust(tuple(filter(None, [report.inspect_pin]))))
        self._answer: httpx.Response

    async def open(self) -> int:
        timeout = httpx.Timeout(
            CONNECT_S, read=None if self._asked.get("follow") == "1" else CONNECT_S
        )
        try:
            client = await self._stack.enter_async_context(
                httpx.AsyncClient(timeout=timeout, trust_env=False, verify=self._verify)
            )
            call = client.stream("GET", self._url, params=self._asked, headers=self._headers)
            self._answer = await self._stack.enter_async_context(call)
        except BaseException:
            await self._stack.aclose()
            raise
        return self._answer.status_code

    async def close(self) -> None:
        await self._stack.aclose()

    async def rest(self) -> AsyncIterator[bytes]:
        async with self._stack:
            async for part in self._answer.aiter_bytes():
                yield part
