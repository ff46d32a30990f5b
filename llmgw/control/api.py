"""Control's HTTP: paths to calls, values to JSON (contract/http.md).

Answers for: one error shape and no traceback to anybody. It may not touch the state: it asks `calls` and `looks`.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec
from starlette.applications import Starlette
from starlette.convertors import StringConvertor, register_url_convertor
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route

from llmgw import __version__, catalog
from llmgw.control import calls, keyring, keys, looks, reloads, stops, takeover, verbs
from llmgw.control.guard import Guard, Tokens, body, refusal
from llmgw.control.loop import Control
from llmgw.control.metrics import exposition
from llmgw.control.sessions import POLL_S, stamped
from llmgw.core.types.catalog import Catalog
from llmgw.core.types.messages import Commands, Events
from llmgw.core.types.routes import Demand
from llmgw.errors import LlmgwError, UsageError
from llmgw.wire import WireError, decode, decode_report

#: What is said of a path that somebody asked for.
PATH_CHARS = 200
Handler = Callable[[Request], Awaitable[Response]]


class _Any(StringConvertor):
    """A name as it was given: a slash in it was sent as %2F, and is a slash by the time that routes are read."""

    regex = r"[\s\S]*"


register_url_convertor("any", _Any())


def app(control: Control, tokens: Tokens, *, shut_down: Callable[[], int | None]) -> Guard:
    """The whole API. `shut_down` ends control and its gateway, and says which process that is."""
    api = Api(control, shut_down)
    routes = [
        Route(path.replace("{name}", "{name:any}"), _answered(handler, control), methods=[method])
        for method, path, handler, _ in api.table()
    ]
    starlette = Starlette(
        routes=routes, exception_handlers={HTTPException: _no_such, 404: _no_such, 405: _no_such}
    )
    return Guard(starlette, tokens, control.settings.listen.host)


def _answered(handler: Handler, control: Control) -> Handler:
    """Errors of ours as they are; a bug is logged here and told as one line."""

    async def answer(request: Request) -> Response:
        try:
            return await handler(request)
        except LlmgwError as e:
            return refusal(e)
        except ClientDisconnect:
            return Response(status_code=499)
        except Exception as e:
            where = f"{request.method} {verbs.plain(request.url.path, PATH_CHARS)}"
            control.story.log.exception("a request failed", kind="bug", request=where)
            msg = f"{where} failed inside control: {type(e).__name__}"
            return refusal(LlmgwError(msg, "its log has the details", code="bug", status=500))

    return answer


async def _no_such(request: Request, error: Exception) -> Response:
    status = getattr(error, "status_code", 404)
    what = "there is no" if status == 404 else "the method is not the right one for"  # noqa: PLR2004
    msg = f"{what} {request.method} {verbs.plain(request.url.path, PATH_CHARS)}"
    return refusal(
        LlmgwError(msg, "GET /openapi.json lists what there is", code="not_found", status=status)
    )


def _json(value: Any, status: int = 200) -> Response:
    return Response(msgspec.json.encode(value), status, media_type="application/json")


class Api:
    def __init__(self, control: Control, shut_down: Callable[[], int | None]) -> None:
        self.control = control
        self._shut_down = shut_down
        self._table = (0, b"")

    def table(self) -> list[tuple[str, str, Handler, str]]:
        """Method, path, handler and what it is for: the routes, and /openapi.json."""
        return [
            ("POST", "/agent/v1/register", self.register, "complete inventory of a node"),
            ("GET", "/agent/v1/commands", self.commands, "long poll for orders"),
            ("POST", "/agent/v1/events", self.events, "what changed on a node"),
            ("GET", "/gateway/v1/routes", self.routes, "long poll for the route table"),
            ("POST", "/gateway/v1/demand", self.demand, "what a gateway serves and waits for"),
            ("GET", "/api/v1/status", self.status, "the fleet"),
            ("GET", "/api/v1/plan", self.plan, "what a restart of control would do"),
            ("POST", "/api/v1/plan", self.plan_for, "the same for a catalog in the body"),
            ("POST", "/api/v1/adopt", self.adopt, "survey the fleet now, or take an engine over"),
            ("GET", "/api/v1/events", self.story, "what happened; follow=1 streams"),
            ("GET", "/api/v1/leader", self.leader, "who leads"),
            ("GET", "/api/v1/catalog", self.catalog, "the catalog in use, redacted"),
            ("POST", "/api/v1/catalog", self.reload, "read the catalog from disk again"),
            ("PUT", "/api/v1/catalog", self.put_catalog, "write the catalog to disk and use it"),
            ("POST", "/api/v1/pause", self.pause, "end nothing that nobody asked for"),
            ("POST", "/api/v1/resume", self.resume, "the end of a pause"),
            ("POST", "/api/v1/confirm", self.confirm, "let happen what is blocked, by its digest"),
            ("POST", "/api/v1/models/{name}/stop", self.stop_model, "drain and stop its replicas"),
            ("POST", "/api/v1/replicas/{name}/stop", self.stop, "drain and stop a replica"),
            ("POST", "/api/v1/replicas/{name}/clear", self.clear, "forget failures"),
            ("POST", "/api/v1/nodes/{name}/forget", self.forget, "remove a node for good"),
            ("GET", "/api/v1/keys", self.keys, "API keys of clients, without their secrets"),
            ("POST", "/api/v1/keys", self.add_key, "make an API key; it is shown this once"),
            ("POST", "/api/v1/keys/{name}/revoke", self.revoke_key, "an API key ends at once"),
            ("POST", "/api/v1/end", self.end, "drain and stop every engine"),
            ("POST", "/api/v1/shutdown", self.shutdown, "end control and its gateway"),
            ("GET", "/healthz", self.healthz, "the process answers"),
            ("GET", "/readyz", self.readyz, "control leads and has looked at the fleet"),
            ("GET", "/metrics", self.metrics, "figures for Prometheus"),
            ("GET", "/openapi.json", self.openapi, "this list"),
        ]

    # -- agents and gateways

    async def register(self, request: Request) -> Response:
        try:
            report = decode_report(await body(request))
        except WireError as e:
            e.status = (
                426  # the one status that says: another version. The node counts as silent (F55)
            )
            e.hint = e.hint or "upgrade llmgw on that node, or here: the older of the two"
            raise
        came_from = request.client.host if request.client else ""
        return _json(await calls.register(self.control, report, came_from))

    async def commands(self, request: Request) -> Response:
        session = self.control.sessions.get(request.query_params.get("session", ""))
        found = await self.control.sessions.poll(session, _number(request, "after", 0))
        token = self.control.token
        return _json(
            Commands(
                commands=tuple(stamped(c, token) for c in found),
                leader=self.control.leading,
                epoch=token.epoch,
            )
        )

    async def events(self, request: Request) -> Response:
        return _json(await calls.events(self.control, decode(await body(request), Events)))

    async def routes(self, request: Request) -> Response:
        """The whole table at once when the asker has another, else when it changes (A50)."""
        control = self.control
        version = _number(request, "version", -1)
        if not control.routes.version:
            msg = "there is no route table yet"
            raise LlmgwError(msg, control.blocked, code="not_leading", status=503)
        if control.routes.version == version and not control.closing:
            with suppress(TimeoutError):
                async with asyncio.timeout(POLL_S):
                    await control.published.wait()
        table = control.routes
        if table.version == version:
            return Response(status_code=304)
        if self._table[0] != table.version:
            self._table = (table.version, msgspec.json.encode(table))
        return Response(self._table[1], media_type="application/json")

    async def demand(self, request: Request) -> Response:
        await calls.demand(self.control, decode(await body(request), Demand))
        return _json({"version": self.control.routes.version})

    # -- operators

    async def status(self, request: Request) -> Response:  # noqa: ARG002 - a handler's form
        return _json(looks.status(self.control))

    async def plan(self, request: Request) -> Response:
        path = request.query_params.get("catalog", "")
        # In a thread: a long catalog takes seconds to read, and sessions end when control is deaf that long.
        other = await asyncio.to_thread(catalog.load, self._beside(path)) if path else None
        partial = request.query_params.get("allow_partial", "") in ("1", "true")
        return _json(looks.plan(self.control, other, allow_partial=partial))

    async def plan_for(self, request: Request) -> Response:
        other = await asyncio.to_thread(_posted_catalog, await body(request))
        partial = request.query_params.get("allow_partial", "") in ("1", "true")
        return _json(looks.plan(self.control, other, allow_partial=partial))

    def _beside(self, path: str) -> Path:
        """A catalog's errors quote it: what control may read is not for everybody who may ask."""
        home = self.control.catalogs.path.resolve().parent
        found = (home / path).resolve()
        if "\0" in path or not found.is_relative_to(home):
            msg = f"catalog {path} is not in {home}, the folder of the one in use"
            hint = 'send its text instead: POST {"catalog": {FILE: TEXT}}, as llmgw does'
            raise LlmgwError(msg, hint, code="forbidden_path", status=403)
        return found

    async def adopt(self, request: Request) -> Response:
        given = _object(await body(request))
        if "pid" in given:
            return _json(await takeover.takeover(self.control, **takeover.parsed(given)))
        partial = given.get("allow_partial") is True
        return _json(await looks.adopt(self.control, allow_partial=partial))

    async def story(self, request: Request) -> Response:
        after = _number(request, "after", 0)
        if request.query_params.get("follow") == "1":
            return StreamingResponse(self._follow(after), media_type="application/x-ndjson")
        return _json({"schema": "llmgw.events/1", "events": self.control.story.after(after)})

    async def _follow(self, after: int) -> AsyncIterator[bytes]:
        while not self.control.closing:
            more = self.control.story.more
            for event in self.control.story.after(after):
                after = event["id"]
                yield msgspec.json.encode(event) + b"\n"
            await more.wait()

    async def leader(self, request: Request) -> Response:  # noqa: ARG002 - a handler's form
        control = self.control
        return _json(
            {
                "name": control.name,
                "leader": control.leading,
                "epoch": control.state.epoch,
                "leader_uuid": control.state.leader_uuid,
                "lease": control.lease.name,
            }
        )

    async def catalog(self, request: Request) -> Response:  # noqa: ARG002 - a handler's form
        catalogs = self.control.catalogs
        document = catalog.show(catalogs.catalog)
        about = {"path": str(catalogs.path), "error": catalogs.error or None}
        return _json(document | about)

    async def reload(self, request: Request) -> Response:
        given = _object(await body(request))
        return _json(await reloads.reload(self.control, **_shown(given)))

    async def put_catalog(self, request: Request) -> Response:
        given = _object(await body(request))
        text = _one_text(given.get("catalog"))
        return _json(await reloads.reload(self.control, text=text, **_shown(given)))

    async def pause(self, request: Request) -> Response:
        why = _object(await body(request)).get("why")
        return _json(await verbs.pause(self.control, "" if why is None else str(why)))

    async def resume(self, request: Request) -> Response:  # noqa: ARG002 - a handler's form
        return _json(await verbs.resume(self.control))

    async def confirm(self, request: Request) -> Response:
        digest = _object(await body(request)).get("digest")
        return _json(await verbs.confirm(self.control, str(digest or "")))

    async def stop_model(self, request: Request) -> Response:
        if _object(await body(request)).get("force") is True:
            msg = "force releases one shard, not a model"
            raise UsageError(msg, 'POST /api/v1/replicas/{name}/stop {"force": true, "rank": 0}')
        return _json(await stops.model(self.control, request.path_params["name"]))

    async def stop(self, request: Request) -> Response:
        """`rank` names a shard. Without `force` it stands for its whole replica, but there must be one."""
        name = request.path_params["name"]
        given = _object(await body(request))
        rank = given.get("rank")
        if rank is not None and type(rank) is not int:
            msg = "rank is not a whole number"
            raise UsageError(msg, "name the shard: REPLICA/0 is rank 0")
        if given.get("force") is not True:
            return _json(await stops.replica(self.control, name, rank))
        return _json(await stops.force(self.control, name, rank))

    async def clear(self, request: Request) -> Response:
        return _json(await verbs.clear(self.control, request.path_params["name"]))

    async def forget(self, request: Request) -> Response:
        return _json(await verbs.forget(self.control, request.path_params["name"]))

    async def keys(self, request: Request) -> Response:  # noqa: ARG002 - a handler's form
        return _json({"keys": keys.shown(self.control.keeper.keys)})

    async def add_key(self, request: Request) -> Response:
        return _json(await keyring.add(self.control, decode(await body(request), keys.Wanted)))

    async def revoke_key(self, request: Request) -> Response:
        return _json(await keyring.revoke(self.control, request.path_params["name"]))

    async def end(self, request: Request) -> Response:  # noqa: ARG002 - a handler's form
        return _json(await verbs.end(self.control))

    async def shutdown(self, request: Request) -> Response:  # noqa: ARG002 - a handler's form
        # With the pids: whoever asked can see when both are really gone.
        pids = {"pid": os.getpid(), "gateway_pid": self._shut_down() or 0}
        return _json({"ends": ["control", "gateway"]} | pids)

    # -- everybody

    async def healthz(self, request: Request) -> Response:  # noqa: ARG002 - a handler's form
        return _json({"ok": True, "version": __version__})

    async def readyz(self, request: Request) -> Response:  # noqa: ARG002 - a handler's form
        control = self.control
        ready = control.leading and control.passes > 0 and not control.blocked
        settling = list(control.plan.settling_for)
        said = {"ready": ready, "settling": settling, "why": control.blocked or None}
        return _json(said, 200 if ready else 503)

    async def metrics(self, request: Request) -> Response:  # noqa: ARG002 - a handler's form
        return Response(exposition(self.control), media_type="text/plain; version=0.0.4")

    async def openapi(self, request: Request) -> Response:  # noqa: ARG002 - a handler's form
        paths: dict[str, Any] = {}
        for method, path, _, what in self.table():
            names = [p[1:-1] for p in path.split("/") if p.startswith("{")]
            paths.setdefault(path, {})[method.lower()] = {
                "summary": what,
                "parameters": [
                    {"name": n, "in": "path", "required": True, "schema": {"type": "string"}}
                    for n in names
                ],
                "responses": {"200": {"description": what}},
            }
        info = {"title": "llmgw control", "version": __version__}
        return _json({"openapi": "3.1.0", "info": info, "paths": paths})


def _number(request: Request, name: str, default: int) -> int:
    text = request.query_params.get(name, "")
    try:
        return int(text) if text else default
    except ValueError:
        msg = f"{name}={text[:40]!r} is not a number"
        raise UsageError(msg) from None


def _object(data: bytes) -> dict[str, Any]:
    if not data:
        return {}
    try:
        return msgspec.json.decode(data, type=dict[str, Any])
    except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError) as e:
        msg = f"the body is no JSON object: {e}"
        raise UsageError(msg) from e


def _shown(given: dict[str, Any]) -> dict[str, Any]:
    """What the operator has looked at and said of it."""
    return {"digest": str(given.get("digest") or ""), "confirm": given.get("confirm") is True}


def _one_text(posted: Any) -> str:
    """`{"catalog": text}`, or `{"catalog": {file: text}}` with one file: control's own file is one."""
    texts = list(posted.values()) if isinstance(posted, dict) else [posted]
    if len(texts) != 1 or not isinstance(texts[0], str):
        msg = "catalog is not one text"
        raise UsageError(msg, 'send {"catalog": TEXT}; control has one catalog file')
    return texts[0]


def _posted_catalog(data: bytes) -> Catalog:
    """`{"catalog": {file: text}}` or `{"catalog": text}`; anything else is a catalog itself, JSON being YAML."""
    given = _object(data)
    posted = given.get("catalog")
    if posted is None:
        return catalog.loads(data.decode(), "the posted catalog")
    if isinstance(posted, str):
        return catalog.loads(posted, "the posted catalog")
    try:
        return catalog.load_sources(msgspec.convert(posted, dict[str, str]))
    except msgspec.ValidationError as e:
        msg = f"catalog is neither a text nor texts by their file's name: {e}"
        raise UsageError(msg) from e
