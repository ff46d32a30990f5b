"""Control's HTTP: paths to calls, values to JSON (contract/http.md).

Answers for: one error shape and no traceback to anybody. It may not touch the state: it asks `calls` and `looks`.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import suppress
from importlib.resources import files
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
from llmgw.control import (
    calls,
    cordons,
    engine_logs,
    given,
    joining,
    keyring,
    keys,
    looks,
    peers,
    reloads,
    stops,
    takeover,
    verbs,
    wake,
    web,
)
from llmgw.control.guard import WHO, Guard, Tokens, body, refusal
from llmgw.control.loop import Control
from llmgw.control.metrics import exposition
from llmgw.control.no_such import PATH_CHARS, answers
from llmgw.control.sessions import POLL_S, stamped
from llmgw.core.names import plain
from llmgw.core.types.messages import Commands, Events
from llmgw.core.types.routes import Demand, Heard
from llmgw.errors import LlmgwError, UsageError
from llmgw.wire import WireError, decode, decode_report

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
    none = answers(control.settings)
    starlette = Starlette(
        routes=routes, exception_handlers={HTTPException: none, 404: none, 405: none}
    )
    return Guard(starlette, tokens, control.settings.listen.host, control.refused)


def _answered(handler: Handler, control: Control) -> Handler:
    """Errors of ours as they are; a bug is logged here and told as one line."""

    async def answer(request: Request) -> Response:
        try:
            if peers.leaders(control, request.method, request.url.path, request.url.query):
                return await _passed_on(request, control)
            said = await handler(request)
            if request.method != "GET" and request.url.path.startswith("/api/v1/"):
                await control.lease.left()
        except LlmgwError as e:
            return refusal(e)
        except ClientDisconnect:
            return Response(status_code=499)
        except Exception as e:
            where = f"{request.method} {plain(request.url.path, PATH_CHARS)}"
            control.story.log.exception("a request failed", kind="bug", request=where)
            msg = f"{where} failed inside control: {type(e).__name__}"
            return refusal(LlmgwError(msg, "its log has the details", code="bug", status=500))
        return said

    return answer


async def _passed_on(request: Request, control: Control) -> Response:
    """Asked of a standby, answered by the leader."""
    path = f"{request.url.path}?{request.url.query}".rstrip("?")
    told = await body(request)
    status, said = await peers.passed_on(control, request.method, path, told, request.headers)
    return Response(said, status, media_type="application/json")


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
            ("GET", "/api/v1/logs/{name}/{rank}", self.logs, "an engine's log; follow=1 streams"),
            ("GET", "/api/v1/leader", self.leader, "who leads"),
            ("POST", "/api/v1/standbys", self.standbys, "a standby is there, and what it lacks"),
            ("GET", "/api/v1/catalog", self.catalog, "the catalog in use, redacted"),
            ("POST", "/api/v1/catalog", self.reload, "read the catalog from disk again"),
            ("PUT", "/api/v1/catalog", self.put_catalog, "write the catalog to disk and use it"),
            ("POST", "/api/v1/pause", self.pause, "end nothing that nobody asked for"),
            ("POST", "/api/v1/resume", self.resume, "the end of a pause"),
            ("POST", "/api/v1/confirm", self.confirm, "let happen what is blocked, by its digest"),
            ("POST", "/api/v1/models/{name}/wake", self.wake, "have a model up, or see how"),
            ("POST", "/api/v1/models/{name}/stop", self.stop_model, "drain and stop its replicas"),
            ("POST", "/api/v1/replicas/{name}/stop", self.stop, "drain and stop a replica"),
            ("POST", "/api/v1/replicas/{name}/clear", self.clear, "forget failures"),
            ("POST", "/api/v1/nodes/{name}/drain", self.drain, "nothing of ours there any more"),
            ("POST", "/api/v1/nodes/{name}/undrain", self.undrain, "the end of a drain"),
            ("POST", "/api/v1/nodes/{name}/forget", self.forget, "remove a node for good"),
            ("GET", "/api/v1/keys", self.keys, "API keys of clients, without their secrets"),
            ("POST", "/api/v1/keys", self.add_key, "make an API key; it is shown this once"),
            ("POST", "/api/v1/keys/{name}/revoke", self.revoke_key, "an API key ends at once"),
            *joining.rows(self),
            ("POST", "/api/v1/end", self.end, "drain and stop every engine"),
            ("POST", "/api/v1/shutdown", self.shutdown, "end control and its gateway"),
            *(("GET", path, web.answer, "the page for people") for path in sorted(web.OPEN)),
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
        return _json(await calls.register(self.control, report, came_from, request.scope[WHO]))

    async def commands(self, request: Request) -> Response:
        session = self.control.sessions.get(request.query_params.get("session", ""))
        found = await self.control.sessions.poll(session, given.number(request, "after", 0))
        token, acting = self.control.token, self.control.acting  # as of the moment it leaves (F22)
        return _json(
            Commands(
                commands=tuple(stamped(c, session, token) for c in found if acting),
                leader=acting,
                epoch=token.epoch,
            )
        )

    async def events(self, request: Request) -> Response:
        return _json(await calls.events(self.control, decode(await body(request), Events)))

    async def routes(self, request: Request) -> Response:
        """The whole table at once when the asker has another, else when it changes (A50)."""
        control = self.control
        version = given.number(request, "version", -1)
        if not control.routes.version:
            msg = "there is no route table yet"
            raise LlmgwError(msg, control.blocked, code="not_leading", status=503)
        if control.leader is not None and control.routes.version <= version:
            return Response(status_code=204)  # a standby has nothing newer: ask the leader
        if control.routes.version == version and not control.acting:
            return Response(status_code=204)  # another may lead by now, unknown to this one
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
        version, leads = self.control.routes.version, self.control.leader is None
        acting = self.control.acting
        at = self.control.rests.at() if acting else ""
        return _json(Heard(version=version, leader=leads, acting=acting, at=at))

    # -- operators

    async def status(self, request: Request) -> Response:
        return _json(await looks.status(self.control, request.query_params.get("places", "")))

    async def plan(self, request: Request) -> Response:
        path = request.query_params.get("catalog", "")
        # In a thread: a long catalog takes seconds to read, and sessions end when control is deaf that long.
        other = await asyncio.to_thread(catalog.load, self._beside(path)) if path else None
        partial = given.switch(request, "allow_partial")
        return _json(looks.plan(self.control, other, allow_partial=partial))

    async def plan_for(self, request: Request) -> Response:
        other = await asyncio.to_thread(given.posted_catalog, await body(request))
        partial = given.switch(request, "allow_partial")
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
        told = given.object_of(await body(request))
        if "pid" in told:
            return _json(await takeover.takeover(self.control, **takeover.parsed(told)))
        partial = given.flag(told, "allow_partial")
        return _json(await looks.adopt(self.control, allow_partial=partial))

    async def story(self, request: Request) -> Response:
        after = given.number(request, "after", 0)
        if given.switch(request, "follow"):
            return StreamingResponse(self._follow(after), media_type="application/x-ndjson")
        return _json({"schema": "llmgw.events/1", "events": self.control.story.after(after)})

    async def _follow(self, after: int) -> AsyncIterator[bytes]:
        while not self.control.closing:
            more = self.control.story.more
            for event in self.control.story.after(after):
                after = event["id"]
                yield msgspec.json.encode(event) + b"\n"
            await more.wait()

    async def logs(self, request: Request) -> Response:
        return await engine_logs.answer(self.control, request)

    async def leader(self, request: Request) -> Response:  # noqa: ARG002 - a handler's form
        control = self.control
        about = {"leader": control.leading, "leader_uuid": control.state.leader_uuid}
        return _json(control.peers.document(control.now().mono) | about)

    async def standbys(self, request: Request) -> Response:
        told = decode(await body(request), peers.Told)
        return _json(self.control.peers.heard(told, self.control.now().mono))

    async def catalog(self, request: Request) -> Response:  # noqa: ARG002 - a handler's form
        catalogs = self.control.catalogs
        document = catalog.show(catalogs.catalog)
        about = {"path": str(catalogs.path), "error": catalogs.error or None}
        return _json(document | about)

    async def reload(self, request: Request) -> Response:
        told = given.object_of(await body(request))
        return _json(await reloads.reload(self.control, asked=True, **given.shown(told)))

    async def put_catalog(self, request: Request) -> Response:
        told = given.object_of(await body(request))
        text = given.one_text(told.get("catalog"))
        said = await reloads.reload(self.control, text=text, asked=True, **given.shown(told))
        return _json(said)

    async def pause(self, request: Request) -> Response:
        why = given.text(given.object_of(await body(request)), "why")
        return _json(await verbs.pause(self.control, why))

    async def resume(self, request: Request) -> Response:  # noqa: ARG002 - a handler's form
        return _json(await verbs.resume(self.control))

    async def confirm(self, request: Request) -> Response:
        digest = given.text(given.object_of(await body(request)), "digest")
        return _json(await verbs.confirm(self.control, digest))

    async def wake(self, request: Request) -> Response:
        dry_run = given.flag(given.object_of(await body(request)), "dry_run")
        name = request.path_params["name"]
        return _json(await wake.wake(self.control, name, dry_run=dry_run))

    async def stop_model(self, request: Request) -> Response:
        if given.flag(given.object_of(await body(request)), "force"):
            msg = "force releases one shard, not a model"
            raise UsageError(msg, 'POST /api/v1/replicas/{name}/stop {"force": true, "rank": 0}')
        return _json(await stops.model(self.control, request.path_params["name"]))

    async def stop(self, request: Request) -> Response:
        """`rank` names a shard. Without `force` it stands for its whole replica, but there must be one."""
        name = request.path_params["name"]
        told = given.object_of(await body(request))
        rank = given.whole(told, "rank")
        if rank is not None and type(rank) is not int:
            msg = "rank is not a whole number"
            raise UsageError(msg, "name the shard: REPLICA/0 is rank 0")
        if not given.flag(told, "force"):
            return _json(await stops.replica(self.control, name, rank))
        return _json(await stops.force(self.control, name, rank))

    async def clear(self, request: Request) -> Response:
        return _json(await verbs.clear(self.control, request.path_params["name"]))

    async def forget(self, request: Request) -> Response:
        return _json(await verbs.forget(self.control, request.path_params["name"]))

    async def drain(self, request: Request) -> Response:
        gpu = cordons.gpu_given(given.object_of(await body(request)))
        return _json(await cordons.drain(self.control, request.path_params["name"], gpu))

    async def undrain(self, request: Request) -> Response:
        gpu = cordons.gpu_given(given.object_of(await body(request)))
        return _json(await cordons.undrain(self.control, request.path_params["name"], gpu))

    async def keys(self, request: Request) -> Response:  # noqa: ARG002 - a handler's form
        return _json({"keys": keys.shown(self.control.keeper.keys)})

    async def add_key(self, request: Request) -> Response:
        return _json(await keyring.add(self.control, decode(await body(request), keys.Wanted)))

    async def revoke_key(self, request: Request) -> Response:
        want = decode(await body(request), keys.Revoking)
        return _json(await keyring.revoke(self.control, request.path_params["name"], want))

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
        """Written by scripts/openapi.py, out of this table and the declared documents."""
        text = files("llmgw.control").joinpath("openapi.json").read_bytes()
        return Response(text, media_type="application/json")
