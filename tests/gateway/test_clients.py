"""What clients send, in every framing, and how long they may take."""

import asyncio
import json

import pytest

from llmgw.gateway import proxy
from tests.gateway.peers import Engine, Talk, hello, request
from tests.gateway.rig import loaded, rig, run, table

ASK = {"model": "m", "messages": []}
STREAM = {"model": "m", "messages": [], "stream": True}


async def three_events(talk: Talk) -> None:
    await talk.open_stream()
    for text in ("one", "two", "[DONE]"):
        await talk.event(text)
    await talk.end_stream()


@pytest.mark.parametrize("size", [10, 5_000_000])
def test_bodies_arrive_as_they_were_sent(size: int) -> None:
    async def scenario() -> None:
        async with rig() as world:

            async def echo(talk: Talk) -> None:
                await talk.json({"size": len(talk.asked.body), "sum": sum(talk.asked.body)})

            engine = await world.engine(echo)
            world.use(table(m=loaded(engine.replica())))
            body = json.dumps({"model": "m", "x": "ab" * size}).encode()
            want = {"size": len(body), "sum": sum(body)}
            client = await world.client()
            assert (await client.ask(body)).json == want
            chunks = b"".join(b"%x\r\n%b\r\n" % (len(p), p) for p in (body[:7], body[7:]))
            client.send(
                b"POST /v1/embeddings HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n"
                + chunks
                + b"0\r\n\r\n"
            )
            assert (await client.answer()).json == want
            assert "transfer-encoding" not in engine.asked[1].headers

    run(scenario())


def test_a_body_over_the_limit_is_refused_readably() -> None:
    async def scenario() -> None:
        async with rig(body_limit=1000) as world:
            client = await world.client()
            client.send(request(b"x" * 3_000_000))
            answer = await client.answer()
            assert answer.status == 413
            assert "1000 bytes" in answer.error["message"]
            assert answer.headers["connection"] == "close"

    run(scenario())


def test_a_refused_client_that_sends_on_is_dropped_after_a_while() -> None:
    async def scenario() -> None:
        async with rig() as world:
            client = await world.client()
            client.send(b"nonsense\r\n\r\n")
            assert (await client.answer()).status == 400
            assert await client.reader.read() == b"", "nothing more comes"
            client.send(b"more")
            world.pass_time(proxy.LINGER_S + 1)
            await world.until(lambda: not world.gateway.connections)

    run(scenario())


def test_a_refused_client_does_not_stay_by_sending_a_byte_now_and_then() -> None:
    async def scenario() -> None:
        async with rig() as world:
            client = await world.client()
            client.send(b"nonsense\r\n\r\n")
            assert (await client.answer()).status == 400
            (connection,) = world.gateway.connections
            for _ in range(int(proxy.LINGER_MAX_S / proxy.LINGER_S) + 1):
                connection.data_received(b"x")
                world.pass_time(proxy.LINGER_S - 0.1)
                connection.data_received(b"x")
                world.pass_time(0.2)
            await world.until(lambda: not world.gateway.connections)

    run(scenario())


def test_expect_100_continue() -> None:
    async def scenario() -> None:
        async with rig() as world:
            engine = await world.engine()
            world.use(table(m=loaded(engine.replica())))
            client = await world.client()
            body = json.dumps(ASK).encode()
            head = request(body, expect="100-continue")[: -len(body)]
            client.send(head)
            assert await client.until(b"\r\n\r\n") == b"HTTP/1.1 100 Continue\r\n\r\n"
            client.send(body)
            assert (await client.answer()).json["asked"] == ASK
            assert "expect" not in engine.asked[0].headers
            client.send(request(body, expect="100-continue"))
            assert (await client.head())[0] == 200

    run(scenario())


@pytest.mark.parametrize("step", [None, 1])
def test_pipelined_requests_are_answered_in_order(step: int | None) -> None:
    async def scenario() -> None:
        async with rig() as world:
            engine = await world.engine()
            world.use(table(m=loaded(engine.replica())))
            client = await world.client()
            stream = b"".join(
                [
                    request({**ASK, "n": 1}),
                    request(None, "/healthz", "GET"),
                    request({**ASK, "n": 2}),
                    request({"model": "nobody"}),
                    request({**ASK, "n": 3}),
                ]
            )
            if step is None:
                client.send(stream)
            else:
                for byte in stream:
                    client.send(bytes([byte]))
                    await asyncio.sleep(0)
            answers = [await client.answer() for _ in range(5)]
            assert [a.status for a in answers] == [200, 200, 200, 404, 200]
            assert [answers[i].json["asked"]["n"] for i in (0, 2, 4)] == [1, 2, 3]
            assert engine.connections == 1

    run(scenario())


def test_a_flood_of_pipelined_requests_is_answered_whole() -> None:
    async def scenario() -> None:
        async with rig() as world:
            client = await world.client()
            client.send(request(None, "/healthz", "GET") * 5000)
            for _ in range(5000):
                assert (await client.answer()).status == 200

    run(scenario())


def test_what_a_client_sends_ahead_is_bounded() -> None:
    async def scenario() -> None:
        async with rig() as world:
            go = asyncio.Event()

            async def late(talk: Talk) -> None:
                await go.wait()
                await hello(talk)

            engine = await world.engine(late)
            world.use(table(m=loaded(engine.replica())))
            client = await world.client()
            client.send(request(ASK))
            await engine.talks.get()
            ahead = request(json.dumps({"model": "m", "x": "y" * 2_000_000}).encode())
            client.send(ahead)
            (connection,) = world.gateway.connections
            await world.until(lambda: len(connection._stash) > proxy.STASH_BYTES)
            assert len(connection._stash) < 1 << 20
            go.set()
            assert (await client.answer()).status == 200
            assert (await client.answer()).json["asked"]["x"] == "y" * 2_000_000

    run(scenario())


def test_http_1_0_clients_get_no_chunks() -> None:
    async def scenario() -> None:
        async with rig() as world:
            engine = await world.engine(three_events)
            world.use(table(m=loaded(engine.replica())))
            client = await world.client()
            client.send(request(STREAM, version="1.0"))
            status, headers = await client.head()
            assert status == 200
            assert "transfer-encoding" not in headers
            assert headers["connection"] == "close"
            assert await client.rest() == b"data: one\n\ndata: two\n\ndata: [DONE]\n\n"
            engine.script = hello
            client = await world.client()
            client.send(request(ASK, version="1.0"))
            answer = await client.answer()
            assert int(answer.headers["content-length"]) == len(answer.body)
            assert answer.json["from"] == "e1"
            assert await client.rest() == b""

    run(scenario())


def test_a_broken_stream_to_an_http_1_0_client_ends_with_an_event() -> None:
    async def scenario() -> None:
        async with rig() as world:

            async def breaks(talk: Talk) -> None:
                await talk.open_stream()
                await talk.event("one")
                await talk.die()

            engine = await world.engine(breaks)
            world.use(table(m=loaded(engine.replica())))
            client = await world.client()
            client.send(request(STREAM, version="1.0"))
            await client.head()
            body = await client.rest()
            assert body.startswith(b"data: one\n\n")
            assert b'"code":"engine_failed"' in body

    run(scenario())


def test_connection_close_is_honoured() -> None:
    async def scenario() -> None:
        async with rig() as world:
            engine = await world.engine()
            world.use(table(m=loaded(engine.replica())))
            client = await world.client()
            answer = await client.ask(ASK, connection="close")
            assert answer.headers["connection"] == "close"
            assert await client.rest() == b""

    run(scenario())


def test_an_answer_before_the_body_was_taken_ends_that_connection() -> None:
    async def scenario() -> None:
        async with rig() as world:

            async def raw(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
                await reader.readuntil(b"\r\n\r\n")
                writer.write(b"HTTP/1.1 413 Too Large\r\ncontent-length: 2\r\n\r\nno")
                await writer.drain()
                held.append(writer)

            held: list[asyncio.StreamWriter] = []
            server = await asyncio.start_server(raw, "127.0.0.1", 0)
            port = server.sockets[0].getsockname()[1]
            engine = Engine(hello, "e1")
            engine.port = port
            world.use(table(m=loaded(engine.replica())))
            answer = await world.ask(json.dumps({"model": "m", "x": "y" * 20_000_000}).encode())
            assert (answer.status, answer.body) == (413, b"no")
            (endpoint,) = world.gateway.fleet.endpoints()
            assert not endpoint.idle
            for writer in held:
                writer.close()
            server.close()
            await server.wait_closed()

    run(scenario())


@pytest.mark.parametrize(
    ("sent", "seconds"),
    [
        (b"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\n", proxy.HEADERS_S + 1),
        (request(b"x" * 10)[:-5], proxy.BODY_GAP_S + 1),
    ],
    ids=["headers", "body"],
)
def test_a_request_that_does_not_come_is_given_up(sent: bytes, seconds: float) -> None:
    async def scenario() -> None:
        async with rig() as world:
            client = await world.client()
            client.send(sent)
            (connection,) = world.gateway.connections
            await world.until(lambda: connection._reader.partial)
            world.pass_time(seconds / 2)
            assert world.gateway.connections
            world.pass_time(seconds / 2)
            answer = await client.answer()
            assert answer.status == 408

    run(scenario())


def test_an_idle_connection_is_closed() -> None:
    async def scenario() -> None:
        async with rig() as world:
            engine = await world.engine()
            world.use(table(m=loaded(engine.replica())))
            client = await world.client()
            assert (await client.ask(ASK)).status == 200
            world.pass_time(proxy.KEEP_ALIVE_S - 1)
            assert (await client.ask(ASK)).status == 200
            world.pass_time(proxy.KEEP_ALIVE_S + 1)
            assert await client.rest() == b""

    run(scenario())


def test_a_long_answer_is_not_idle() -> None:
    async def scenario() -> None:
        async with rig() as world:
            go = asyncio.Event()

            async def long(talk: Talk) -> None:
                await go.wait()
                await hello(talk)

            engine = await world.engine(long)
            world.use(table(m=loaded(engine.replica())))
            client = await world.client()
            client.send(request(ASK))
            await engine.talks.get()
            world.pass_time(3600)
            go.set()
            assert (await client.answer()).status == 200
            world.pass_time(1)
            assert (await client.ask(ASK)).status == 200

    run(scenario())


def test_when_it_stops_requests_end_and_connections_go() -> None:
    async def scenario() -> None:
        async with rig() as world:
            go = asyncio.Event()

            async def late(talk: Talk) -> None:
                await go.wait()
                await hello(talk)

            engine = await world.engine(late)
            world.use(table(m=loaded(engine.replica())))
            idle, busy = await world.client(), await world.client()
            busy.send(request(ASK))
            await engine.talks.get()
            world.gateway.stopping = True
            world.pass_time(1)
            assert await idle.rest() == b""
            assert world.gateway.in_flight() == 1
            go.set()
            answer = await busy.answer()
            assert answer.status == 200
            assert await busy.rest() == b""

    run(scenario())
