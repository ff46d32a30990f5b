"""Who may ask, what is refused, and models under other names."""

import hashlib
import json

import pytest

from llmgw.core.types.routes import RouteKey, RouteModel
from tests.gateway.rig import loaded, rig, run, table

ASK = {"model": "m", "messages": []}
STREAM = {"model": "m", "messages": [], "stream": True}
LOADING = RouteModel(status="loading", progress=0.42, why="loading 42 of 100 tensors")


def test_before_any_table() -> None:
    async def scenario() -> None:
        async with rig() as world:
            answer = await world.ask(ASK)
            assert answer.status == 503
            assert answer.error["code"] == "no_route_table"
            assert "llmgw control" in answer.error["hint"]
            assert answer.headers["retry-after"]

    run(scenario())


def test_an_unknown_model() -> None:
    async def scenario() -> None:
        async with rig() as world:
            world.use(table(qwen3_coder=RouteModel(aliases=("coder",))))
            answer = await world.ask({"model": "qwen-coder"})
            assert answer.status == 404
            assert answer.error["code"] == "model_not_found"
            assert answer.error["type"] == "invalid_request_error"
            assert answer.error["param"] == "model"
            assert answer.error["hint"] == "did you mean qwen3-coder?"
            anthropic = await world.ask({"model": "qwen-coder"}, "/v1/messages")
            assert anthropic.json["type"] == "error"
            assert anthropic.error["type"] == "not_found_error"

    run(scenario())


@pytest.mark.parametrize("body", [b"{", b"{}", b'{"model": 3}', b'{"model": ""}'])
def test_a_body_without_a_model(body: bytes) -> None:
    async def scenario() -> None:
        async with rig() as world:
            world.use(table(m=RouteModel()))
            client = await world.client()
            answer = await client.ask(body)
            assert answer.status == 400
            assert answer.error["code"] == "invalid_body"
            assert (await client.ask(body)).status == 400, "the connection goes on"

    run(scenario())


def test_keys() -> None:
    async def scenario() -> None:
        async with rig() as world:
            engine = await world.engine()
            digest = hashlib.sha256(b"secret").hexdigest()
            key = RouteKey(id="bob", sha256=digest, models=("m",))
            world.use(table(keys=(key,), m=loaded(engine.replica()), n=loaded(engine.replica())))
            none = await world.ask(ASK)
            assert (none.status, none.error["code"]) == (401, "invalid_api_key")
            wrong = await world.ask(ASK, authorization="Bearer other")
            assert wrong.status == 401
            right = await world.ask(ASK, authorization="Bearer secret")
            assert right.status == 200
            anthropic = await world.ask(ASK, "/v1/messages", x_api_key="secret")
            assert anthropic.status == 200
            other = await world.ask({"model": "n"}, authorization="Bearer secret")
            assert (other.status, other.error["code"]) == (403, "model_not_allowed")
            unknown = await world.ask({"model": "nn"}, authorization="Bearer secret")
            assert "n?" not in unknown.error["hint"], "a name that it may not know is no hint"
            assert [line["key"] for line in world.lines()] == ["", "", "bob", "bob", "bob", "bob"]
            assert "secret" not in json.dumps(world.lines())

    run(scenario())


def test_a_closed_gateway_without_keys_serves_nobody() -> None:
    async def scenario() -> None:
        async with rig(open_without_keys=False) as world:
            engine = await world.engine()
            world.use(table(m=loaded(engine.replica())))
            answer = await world.ask(ASK, authorization="Bearer x")
            assert answer.status == 401
            assert "--insecure" in answer.error["hint"]

    run(scenario())


def test_alias_and_glob_reach_the_model() -> None:
    async def scenario() -> None:
        async with rig() as world:
            engine = await world.engine()
            world.use(
                table(m=loaded(engine.replica(upstream_model="m"), aliases=("coder", "gpt-*")))
            )
            for name in ("m", "coder", "gpt-large"):
                answer = await world.ask({"model": name, "x": [1.50]})
                assert answer.json["asked"] == {"model": "m", "x": [1.5]}
            assert {line["model"] for line in world.lines()} == {"m"}

    run(scenario())


def test_a_conversation_goes_on_where_its_beginning_is_cached() -> None:
    async def scenario() -> None:
        async with rig() as world:
            engines = [await world.engine(name=f"e{n}") for n in range(3)]
            replicas = [e.replica() for e in engines]
            world.use(table(m=loaded(*replicas, sticky_prefix_bytes=64)))
            homes = set()
            for who in range(12):
                first = {"role": "system", "content": f"You are assistant {who:02} of this house."}
                turns = [[first, {"role": "user", "content": "x" * n}] for n in (1, 500)]
                asked = [{"model": "m", "messages": t, "seed": n} for n, t in enumerate(turns)]
                asked.append({"messages": turns[1], "model": "m", "temperature": 0.5})
                (home,) = {(await world.ask(a)).json["from"] for a in asked}
                homes.add(home)
            assert len(homes) > 1, "and others elsewhere"
            assert (await world.ask({"model": "m"})).status == 200

    run(scenario())
