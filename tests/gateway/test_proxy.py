"""The data path over real sockets: a client's bytes to an engine and back, and clients that leave."""

import asyncio
import json
from typing import cast

import pytest

from llmgw.gateway.proxy import Downstream
from tests.gateway.peers import Talk, hello, request
from tests.gateway.rig import loaded, rig, run, table
from tests.gateway.test_cost import Transport

ASK = {"model": "m", "messages": []}
STREAM = {"model": "m", "messages": [], "stream": True}


async def three_events(talk: Talk) -> None:
    await talk.open_stream()
    for text in ("one", "two", "[DONE]"):
        await talk.event(text)
    await talk.end_stream()


@pytest.mark.parametrize("peer", ["127.0.0.1", "127.8.9.1", "::1", "::ffff:127.0.0.1"])
def test_who_asks_from_this_box(peer: str) -> None:
    """Where `[::]` is listened on, an IPv4 address comes as one of IPv6 (RFC 4291 2.5.5.2)."""

    async def scenario() -> None:
        async with rig() as world:
            client = Downstream(world.gateway)
            transport = Transport()
            for one, here in ((peer, True), ("::ffff:10.0.0.1", False), ("10.127.0.1", False)):
                transport.peer = one
                client.connection_made(cast("asyncio.BaseTransport", transport))
                assert client.loopback is here
            world.gateway.connections.discard(client)

    run(scenario())


def test_a_request_goes_to_an_engine_and_its_answer_comes_back() -> None:
    async def scenario() -> None:
        async with rig() as world:
            engine = await world.engine()
            world.use(table(m=loaded(engine.replica())))
            answer = await world.ask(ASK, user_agent="test", x_request_id="abc-1")
            assert answer.status == 200
            assert answer.json == {"from": "e1", "asked": ASK}
            assert answer.headers["x-llmgw-replica"] == "e1"
            assert answer.headers["x-request-id"] == "abc-1"
            asked = engine.asked[0]
            assert asked.path == "/v1/chat/completions"
            assert asked.headers["host"] == f"127.0.0.1:{engine.port}"
            assert asked.headers["user-agent"] == "test"
            assert asked.headers["x-request-id"] == "abc-1"
            (line,) = world.lines()
            assert (line["status"], line["model"], line["replica"]) == (200, "m", "e1")
            assert (line["end"], line["id"]) == ("ok", "abc-1")

    run(scenario())


def test_credentials_of_a_client_stay_here_and_those_of_the_engine_are_sent() -> None:
    async def scenario() -> None:
        async with rig() as world:
            engine = await world.engine()
            world.use(
                table(m=loaded(engine.replica(api_key="inner", upstream_model="/models/m.gguf")))
            )
            answer = await world.ask(
                ASK,
                authorization="Bearer outer",
                x_api_key="outer",
                cookie="outer",
                accept_encoding="gzip",
            )
            headers = engine.asked[0].headers
            assert headers["authorization"] == "Bearer inner"
            assert not {"x-api-key", "cookie", "accept-encoding"} & headers.keys()
            assert answer.json["asked"] == {**ASK, "model": "/models/m.gguf"}
            assert "outer" not in json.dumps(world.lines())

    run(scenario())


def test_a_path_goes_on_with_its_query() -> None:
    async def scenario() -> None:
        async with rig() as world:
            engine = await world.engine()
            world.use(table(m=loaded(engine.replica())))
            assert (await world.ask(ASK, "/v1/messages?beta=true")).status == 200
            assert engine.asked[0].path == "/v1/messages?beta=true"

    run(scenario())


def test_events_arrive_one_by_one() -> None:
    async def scenario() -> None:
        async with rig() as world:
            go = asyncio.Event()

            async def slow(talk: Talk) -> None:
                await talk.open_stream()
                await talk.event("one")
                await go.wait()
                await talk.event("two")
                await talk.end_stream()

            engine = await world.engine(slow)
            world.use(table(m=loaded(engine.replica())))
            client = await world.client()
            client.send(request(STREAM))
            status, headers = await client.head()
            assert status == 200
            assert headers["content-type"] == "text/event-stream"
            pieces = client.chunks()
            assert await anext(pieces) == b"data: one\n\n"
            assert world.in_flight() == {"e1": 1}
            go.set()
            assert await anext(pieces) == b"data: two\n\n"
            assert [p async for p in pieces] == []
            assert (await client.ask(ASK)).status == 200, "the connection goes on"

    run(scenario())


def test_connections_are_kept_on_both_sides() -> None:
    async def scenario() -> None:
        async with rig() as world:
            engine = await world.engine()
            world.use(table(m=loaded(engine.replica())))
            client = await world.client()
            for _ in range(5):
                assert (await client.ask(ASK)).status == 200
            assert engine.connections == 1
            world.pass_time(10)
            (endpoint,) = world.gateway.fleet.endpoints()
            assert not endpoint.idle, "an idle connection holds one of an engine's threads"

    run(scenario())


def test_a_connection_that_an_engine_closed_while_idle_is_no_error() -> None:
    async def scenario() -> None:
        async with rig() as world:
            engine = await world.engine()
            world.use(table(m=loaded(engine.replica())))
            assert (await world.ask(ASK)).status == 200
            engine.drop_idle()
            assert (await world.ask(ASK)).status == 200

    run(scenario())


def test_a_connection_that_closes_just_as_it_is_used_again_is_replaced() -> None:
    async def scenario() -> None:
        async with rig() as world:
            connections: dict[int, int] = {}

            async def one_each(talk: Talk) -> None:
                n = connections[talk.connection] = connections.get(talk.connection, 0) + 1
                if n > 1:
                    await talk.die()
                else:
                    await hello(talk)

            engine = await world.engine(one_each)
            world.use(table(m=loaded(engine.replica())))
            for _ in range(3):
                assert (await world.ask(ASK)).status == 200
            assert engine.connections == 3
            assert world.gateway.meter.counts["retries"] == 2
            (endpoint,) = world.gateway.fleet.endpoints()
            assert endpoint.breaker.fails == 0

    run(scenario())


@pytest.mark.parametrize("how", ["close", "reset", "half-close"])
@pytest.mark.parametrize("when", ["silent", "mid", "flow"])
def test_a_client_that_leaves_is_felt_by_the_engine_at_once(when: str, how: str) -> None:
    """Prefill is where a lost client costs most, and nothing is written there that could fail."""

    async def scenario() -> None:
        async with rig() as world:

            async def talkative(talk: Talk) -> None:
                if when == "silent":
                    await talk.client_leaves()
                    return
                await talk.open_stream()
                await talk.event("one")
                if when == "mid":
                    await talk.client_leaves()
                    return
                async with asyncio.TaskGroup() as group:
                    leaving = group.create_task(talk.client_leaves())
                    while not leaving.done():
                        await talk.event("more")
                        await asyncio.sleep(0.001)

            engine = await world.engine(talkative)
            world.use(table(m=loaded(engine.replica())))
            client = await world.client()
            client.send(request(STREAM))
            talk = await engine.talks.get()
            if when != "silent":
                await client.until(b"data: one\n\n")
            if how == "reset":
                client.reset()
            elif how == "half-close":
                client.writer.write_eof()
            else:
                client.writer.close()
            await talk.left.wait()
            await world.at_rest()
            (line,) = world.lines()
            assert line["end"] == "client_left"
            assert line["status"] == (499 if when == "silent" else 200)

    run(scenario())


def test_a_request_that_came_whole_before_a_half_close_is_answered_from_memory() -> None:
    async def scenario() -> None:
        async with rig() as world:
            client = await world.client()
            client.send(request(None, "/healthz", "GET"))
            client.writer.write_eof()
            assert (await client.answer()).status == 200
            assert await client.rest() == b""

    run(scenario())


def test_a_client_that_leaves_while_a_connection_is_made() -> None:
    async def scenario() -> None:
        async with rig() as world:
            engine = await world.engine()
            world.use(table(m=loaded(engine.replica())))
            asked = asyncio.Event()
            go = asyncio.Event()
            connect = world.gateway.connect

            def late(*args: object, **more: object) -> None:
                async def later() -> None:
                    asked.set()
                    await go.wait()
                    connect(*args, **more)  # type: ignore[arg-type]

                world.group.create_task(later())

            world.gateway.connect = late
            client = await world.client()
            client.send(request(ASK))
            await asked.wait()
            client.reset()
            await world.at_rest()
            go.set()
            (endpoint,) = world.gateway.fleet.endpoints()
            await world.until(lambda: endpoint.idle)
            world.gateway.connect = connect
            assert (await world.ask(ASK)).status == 200
            assert engine.connections == 1, "the late connection is used by the next"

    run(scenario())
