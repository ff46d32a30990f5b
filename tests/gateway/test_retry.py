"""Another replica, or another try: only while nothing of an answer has arrived."""

import asyncio
import contextlib
import socket
from collections.abc import Iterator

from llmgw.core.types.routes import RouteModel, RouteReplica
from llmgw.gateway.wait import PATIENCE_S
from tests.gateway.peers import Client, Talk, hello, request
from tests.gateway.rig import Rig, loaded, rig, run, table

ASK = {"model": "m", "messages": []}
STREAM = {"model": "m", "messages": [], "stream": True}
LOADING = RouteModel(status="loading", progress=0.42, why="loading 42 of 100 tensors")


async def two_events(talk: Talk) -> None:
    await talk.open_stream()
    await talk.event("one")
    await talk.event("[DONE]")
    await talk.end_stream()


async def waits(
    world: Rig, body: object, path: str = "/v1/chat/completions", **more: str
) -> Client:
    """A client whose request waits."""
    before = world.waiting().get("m", 0)
    client = await world.client()
    client.send(request(body, path, **more))
    await world.until(lambda: world.waiting().get("m", 0) == before + 1)
    return client


def test_a_refused_connection_goes_to_another_replica() -> None:
    async def scenario() -> None:
        async with rig() as world:
            dead, alive = await world.engine(name="dead"), await world.engine(name="alive")
            await dead.stop()
            world.use(table(m=loaded(dead.replica(), alive.replica())))
            for _ in range(3):
                assert (await world.ask(ASK)).json["from"] == "alive"
            assert world.gateway.meter.counts["retries"] == 1, "the dead one draws no traffic"
            assert world.gateway.demand().breaker == {"dead": "open"}

    run(scenario())


def test_an_engine_restarted_in_its_place_is_waited_for() -> None:
    async def scenario() -> None:
        async with rig() as world:
            engine = await world.engine()
            world.use(table(m=loaded(engine.replica())))
            assert (await world.ask(ASK)).status == 200
            await engine.stop()
            client = await waits(world, ASK)
            world.pass_time(1)
            await world.until(lambda: world.waiting() == {"m": 1})
            engine.port, port = 0, engine.port
            again = await world.engine(port=port)
            world.pass_time(5)
            assert (await client.answer()).json["from"] == "e1"
            assert len(again.asked) == 1

    run(scenario())


def test_a_new_table_helps_a_request_whose_replica_is_gone() -> None:
    async def scenario() -> None:
        async with rig() as world:
            dead, other = await world.engine(name="dead"), await world.engine(name="other")
            await dead.stop()
            world.use(table(1, m=loaded(dead.replica())))
            client = await waits(world, STREAM)
            world.pass_time(1.5)
            await client.head()
            assert await anext(client.chunks()) == b": llmgw reconnecting m 2s\n\n"
            await world.until(lambda: world.waiting() == {"m": 1})
            world.use(table(2, m=LOADING))
            world.pass_time(PATIENCE_S * 3)
            assert world.waiting() == {"m": 1}, "control says it loads: that is waited for"
            other.script = two_events
            world.use(table(3, m=loaded(other.replica())))
            body = b"".join([p async for p in client.chunks()])
            assert body.endswith(b"data: one\n\ndata: [DONE]\n\n")

    run(scenario())


def test_replicas_that_cannot_be_reached_are_not_waited_for_without_end() -> None:
    async def scenario() -> None:
        async with rig() as world:
            dead = await world.engine(name="dead")
            await dead.stop()
            world.use(table(1, m=loaded(dead.replica())))
            client = await waits(world, ASK)
            for _ in range(int(PATIENCE_S)):
                world.pass_time(1)
                await world.until(lambda: world.waiting() == {"m": 1})
            world.pass_time(1)
            answer = await client.answer()
            assert answer.status == 503
            assert answer.error["code"] == "engine_unreachable"
            assert "dead refuses connections" in answer.error["message"]

    run(scenario())


def test_an_engine_that_answers_503_is_not_ready() -> None:
    """llama-server does while it loads, also after a restart in its place; a quick no must not draw traffic."""

    async def scenario() -> None:
        async with rig() as world:

            async def loads(talk: Talk) -> None:
                await talk.json(
                    {"error": {"message": "Loading model", "code": 503}}, "503 Service Unavailable"
                )

            first, second = await world.engine(loads, "first"), await world.engine(name="second")
            world.use(table(1, m=loaded(first.replica(), second.replica())))
            for _ in range(3):
                assert (await world.ask(ASK)).json["from"] == "second"
            assert len(first.asked) == 1
            world.use(table(2, m=loaded(first.replica())))
            client = await waits(world, ASK)
            first.script = hello
            world.pass_time(5)
            assert (await client.answer()).json["from"] == "first"

    run(scenario())


def test_an_engine_that_dies_before_it_answers_costs_one_more_try() -> None:
    async def scenario() -> None:
        async with rig() as world:
            first, second = await world.engine(Talk.die, "first"), await world.engine(name="second")
            world.use(table(1, m=loaded(first.replica(), second.replica())))
            assert (await world.ask(ASK)).json["from"] == "second"
            second.script = Talk.hang_up
            world.pass_time(10)
            answer = await world.ask(ASK)
            assert answer.status == 502
            assert answer.error["code"] == "engine_failed"
            assert "before its answer" in answer.error["message"]
            assert len(first.asked) + len(second.asked) == 4, "two tries each, and no third"

    run(scenario())


def test_nothing_is_repeated_once_an_answer_has_begun() -> None:
    async def scenario() -> None:
        async with rig() as world:

            async def half(talk: Talk) -> None:
                await talk.say(b"HTTP/1.1 200 OK\r\ncontent-")
                await talk.hang_up()

            first, second = await world.engine(half, "first"), await world.engine(name="second")
            world.use(table(1, m=loaded(first.replica(), second.replica())))
            answer = await world.ask(ASK)
            assert answer.status == 502
            assert "inside its answer" in answer.error["message"]
            assert not second.asked

    run(scenario())


def test_an_engines_own_error_is_passed_on() -> None:
    async def scenario() -> None:
        async with rig() as world:

            async def fails(talk: Talk) -> None:
                await talk.json({"error": {"message": "bug"}}, "500 Internal Server Error")

            first, second = await world.engine(fails, "first"), await world.engine(name="second")
            world.use(table(1, m=loaded(first.replica(), second.replica())))
            answer = await world.ask(ASK)
            assert (answer.status, answer.error["message"]) == (500, "bug")
            assert not second.asked

    run(scenario())


def test_a_draining_replica_finishes_and_gets_nothing_new() -> None:
    async def scenario() -> None:
        async with rig() as world:
            go = asyncio.Event()

            async def late(talk: Talk) -> None:
                await go.wait()
                await hello(talk)

            old, new = await world.engine(late, "old"), await world.engine(name="new")
            world.use(table(1, m=loaded(old.replica())))
            client = await world.client()
            client.send(request(ASK))
            await old.talks.get()
            world.use(table(2, m=loaded(old.replica(state="draining"), new.replica())))
            assert (await world.ask(ASK)).json["from"] == "new"
            assert world.in_flight() == {"old": 1}
            world._changes.clear()
            go.set()
            assert (await client.answer()).json["from"] == "old"
            assert world._changes.is_set(), "control waits for this one"
            assert world.in_flight() == {}
            assert len(old.asked) == 1

    run(scenario())


def test_a_replica_that_leaves_the_table_finishes_what_it_has() -> None:
    async def scenario() -> None:
        async with rig() as world:
            go = asyncio.Event()

            async def late(talk: Talk) -> None:
                await talk.open_stream()
                await talk.event("one")
                await go.wait()
                await talk.event("two")
                await talk.end_stream()

            engine = await world.engine(late)
            world.use(table(1, m=loaded(engine.replica())))
            client = await world.client()
            client.send(request(STREAM))
            await client.until(b"data: one\n\n")
            world.use(table(2))
            assert world.in_flight() == {"e1": 1}
            go.set()
            assert (await client.until(b"0\r\n\r\n")).endswith(b"data: two\n\n\r\n0\r\n\r\n")
            await world.until(lambda: world.in_flight() == {})

    run(scenario())


@contextlib.contextmanager
def deaf_port() -> Iterator[int]:
    """A port whose backlog is full: no handshake there ends, as with a node that is switched off."""
    with contextlib.ExitStack() as held:
        listener = held.enter_context(socket.socket())
        listener.bind(("127.0.0.1", 0))
        listener.listen(0)
        for _ in range(8):
            filler = held.enter_context(socket.socket())
            filler.settimeout(0)
            filler.connect_ex(listener.getsockname())
        yield listener.getsockname()[1]


def test_a_node_that_does_not_answer_is_given_up_on() -> None:
    async def scenario() -> None:
        async with rig() as world:
            alive = await world.engine(name="alive")
            with deaf_port() as port:
                away = RouteReplica(replica="away", endpoint=f"http://127.0.0.1:{port}")
                world.use(table(m=loaded(away, alive.replica())))
                world.dialer.connect_s = 0.05
                assert (await world.ask(ASK)).json["from"] == "alive"
                (endpoint, _) = world.gateway.fleet.endpoints()
                assert "no connection within" in endpoint.breaker.why

    run(scenario())


def test_what_must_not_be_made_twice_is_sent_once() -> None:
    """Of an idle connection that closes nobody can tell whether the request came before: a fresh one, and no retry."""

    async def scenario() -> None:
        async with rig() as world:
            first, second = await world.engine(name="first"), await world.engine(name="second")
            world.use(table(m=loaded(first.replica(), second.replica())))
            assert (await world.ask(ASK)).json["from"] == "first"
            assert (await world.ask(ASK, "/upstream/m/lora-adapters")).status == 200
            assert first.connections == 2
            for script in (Talk.die, Talk.hang_up):
                first.script = script
                world.pass_time(10)
                before = len(first.asked)
                answer = await world.ask(ASK, "/upstream/m/lora-adapters")
                assert (answer.status, answer.error["code"]) == (502, "engine_failed")
                assert len(first.asked) == before + 1
            assert not second.asked

    run(scenario())


def test_a_bad_gateway_costs_one_more_try() -> None:
    """An engine behind a proxy of its own that is gone: another replica answers; where there is none, it is said."""

    async def scenario() -> None:
        async with rig() as world:

            async def gone(talk: Talk) -> None:
                await talk.json({"error": {"message": "no engine"}}, "502 Bad Gateway")

            first, second = await world.engine(gone, "first"), await world.engine(name="second")
            world.use(table(1, m=loaded(first.replica(), second.replica())))
            for _ in range(3):
                assert (await world.ask(ASK)).json["from"] == "second"
            assert len(first.asked) == 1, "it draws no traffic"
            second.script = gone
            world.pass_time(10)
            answer = await world.ask(ASK)
            assert (answer.status, answer.error["message"]) == (502, "no engine")
            assert len(first.asked) + len(second.asked) == 6, "two tries, and no third"
            assert world.gateway.demand().breaker == {"first": "open", "second": "open"}

    run(scenario())
