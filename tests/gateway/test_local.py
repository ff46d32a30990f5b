"""What the gateway answers by itself, over a real connection."""

import hashlib

import pytest

from llmgw.core.types.routes import RouteKey, RouteModel
from llmgw.gateway import local
from llmgw.gateway.http1 import begun
from llmgw.gateway.openai import ProblemError
from llmgw.gateway.state import Gateway
from tests.gateway.peers import hello, request
from tests.gateway.rig import loaded, rig, run, table

KEY = RouteKey(id="bob", sha256=hashlib.sha256(b"secret").hexdigest(), models=("shown",))


def test_models_from_memory_with_every_node_down() -> None:
    async def scenario() -> None:
        async with rig() as world:
            client = await world.client()
            assert (await client.get("/v1/models")).json == {"object": "list", "data": []}
            world.use(
                table(
                    m=RouteModel(context=8192, aliases=("a", "b*")), hidden=RouteModel(listed=False)
                )
            )
            listed = (await client.get("/v1/models")).json["data"]
            assert [m["id"] for m in listed] == ["m"]
            assert listed[0]["status"]["value"] == "unloaded"
            for name in ("m", "a", "b1"):
                one = (await client.get(f"/v1/models/{name}")).json
                assert one == listed[0]
            assert (await client.get("/v1/models/hidden")).status == 200
            unknown = await client.get("/v1/models/nobody%2Fhere")
            assert unknown.status == 404
            assert unknown.error["code"] == "model_not_found"
            assert "'nobody/here'" in unknown.error["message"]
            world.use(table(2, m=loaded()))
            assert (await client.get("/v1/models")).json["data"][0]["status"]["value"] == "loaded"

    run(scenario())


def test_a_key_sees_its_models_only() -> None:
    async def scenario() -> None:
        async with rig() as world:
            world.use(table(keys=(KEY,), shown=RouteModel(), other=RouteModel()))
            client = await world.client()
            assert (await client.get("/v1/models")).status == 401
            bearer = {"authorization": "Bearer secret"}
            listed = (await client.get("/v1/models", **bearer)).json["data"]
            assert [m["id"] for m in listed] == ["shown"]
            assert (await client.get("/v1/models/shown", **bearer)).status == 200
            assert (await client.get("/v1/models/other", **bearer)).status == 404

    run(scenario())


def test_listing_and_scraping_wake_nothing_and_reset_no_idle_clock() -> None:
    async def scenario() -> None:
        async with rig() as world:
            engine = await world.engine()
            world.use(table(m=loaded(engine.replica()), sleeping=RouteModel()))
            client = await world.client()
            for path in ("/v1/models", "/v1/models/sleeping", "/healthz", "/metrics"):
                assert (await client.get(path)).status == 200
            demand = world.gateway.demand()
            assert (demand.waiting, demand.in_flight, demand.last_byte) == ({}, {}, {})
            assert not engine.asked

    run(scenario())


def test_health() -> None:
    async def scenario() -> None:
        async with rig() as world:
            client = await world.client()
            before = (await client.get("/healthz")).json
            assert (before["status"], before["table"]) == ("ok", None)
            world.use(table(3))
            after = (await client.get("/healthz")).json
            assert (after["table"], after["gateway"]) == (3, world.gateway.id)

    run(scenario())


def test_metrics() -> None:
    async def scenario() -> None:
        async with rig() as world:
            engine = await world.engine()
            world.use(table(m=loaded(engine.replica())))
            await world.ask({"model": "m"})
            await world.ask({"model": "nobody"})
            client = await world.client()
            answer = await client.get("/metrics")
            assert answer.headers["content-type"].startswith("text/plain; version=0.0.4")
            lines = answer.body.decode().splitlines()
            assert 'llmgw_gateway_requests_total{model="m",code="200"} 1' in lines
            assert 'llmgw_gateway_requests_total{model="",code="404"} 1' in lines
            assert 'llmgw_gateway_in_flight{model="m",replica="e1"} 0' in lines
            assert "llmgw_gateway_table_version 1" in lines
            assert "nobody" not in answer.body.decode(), "what clients make up is no label"

    run(scenario())


@pytest.mark.parametrize(
    ("method", "path", "status", "allow"),
    [
        ("GET", "/v1/chat/completions", 405, "POST, OPTIONS"),
        ("POST", "/v1/models", 405, "GET, HEAD, OPTIONS"),
        ("DELETE", "/healthz", 405, "GET, HEAD, OPTIONS"),
        ("GET", "/", 404, None),
        ("POST", "/v1/chat/completions/", 404, None),
        ("GET", "/v1/modelsx", 404, None),
        ("TRACE", "/upstream/m/health", 405, "GET, HEAD, POST, PUT, PATCH, DELETE"),
    ],
)
def test_what_is_not_served(method: str, path: str, status: int, allow: str | None) -> None:
    async def scenario() -> None:
        async with rig() as world:
            client = await world.client()
            answer = await client.get(path, method)
            assert answer.status == status
            assert answer.headers.get("allow") == allow
            assert method == "HEAD" or answer.error["message"]
            assert (await client.get("/healthz")).status == 200, "the connection goes on"

    run(scenario())


def test_head_has_the_head_only() -> None:
    async def scenario() -> None:
        async with rig() as world:
            client = await world.client()
            for path, status in (("/v1/models", 200), ("/healthz", 200), ("/v1/completions", 405)):
                answer = await client.get(path, "HEAD")
                assert answer.status == status
                assert int(answer.headers["content-length"]) > 0
            assert (await client.get("/healthz")).status == 200, "no body is in the way"

    run(scenario())


def test_browsers_may_ask_from_anywhere() -> None:
    async def scenario() -> None:
        async with rig() as world:
            engine = await world.engine(
                lambda talk: talk.json({}, extra="access-control-allow-origin: https://other\r\n")
            )
            world.use(table(m=loaded(engine.replica())))
            client = await world.client()
            client.send(
                request(
                    None,
                    method="OPTIONS",
                    origin="https://chat",
                    access_control_request_method="POST",
                    access_control_request_headers="authorization,x-stainless-os",
                )
            )
            preflight = await client.answer()
            assert preflight.status == 204
            assert preflight.headers["access-control-allow-origin"] == "*"
            assert (
                preflight.headers["access-control-allow-headers"] == "authorization,x-stainless-os"
            )
            assert "POST" in preflight.headers["access-control-allow-methods"]
            answer = await client.ask({"model": "m"}, origin="https://chat")
            assert answer.headers["access-control-allow-origin"] == "*"
            assert "origin" not in engine.asked[0].headers
            plain = await client.ask({"model": "m"})
            assert "access-control-allow-origin" not in plain.headers, "an engine grants nothing"
            refused = await client.ask({"model": "nobody"}, origin="https://chat")
            assert refused.headers["access-control-allow-origin"] == "*"

    run(scenario())


def test_every_answer_has_the_headers_of_every_answer() -> None:
    async def scenario() -> None:
        async with rig() as world:
            engine = await world.engine(hello)
            world.use(table(m=loaded(engine.replica())))
            for body in ({"model": "m"}, {"model": "nobody"}, b"{"):
                answer = await world.ask(body)
                assert answer.headers["x-accel-buffering"] == "no"
                assert answer.headers["x-llmgw-replica"] in ("e1", "-")
                assert answer.headers["x-request-id"]
            client = await world.client()
            client.send(b"nonsense\r\n\r\n")
            answer = await client.answer()
            assert answer.status == 400
            assert answer.headers["x-request-id"]
            assert answer.headers["connection"] == "close"

    run(scenario())


def test_figures_are_for_this_box_or_for_those_with_a_key() -> None:
    gateway = Gateway(clock=lambda: 0.0, access=None, open_without_keys=True)
    gateway.apply(table(keys=(KEY,), shown=RouteModel()))
    request = begun(b"GET", b"/metrics", {}, [])
    assert local.respond(gateway, request, loopback=True)[0] == 200
    with pytest.raises(ProblemError, match="no API key was sent"):
        local.respond(gateway, request, loopback=False)
    request.own[b"authorization"] = b"Bearer secret"
    assert local.respond(gateway, request, loopback=False)[0] == 200
