"""Engines that break off or misbehave, and readers that are slow: nothing is cut silently or kept without bound."""

import asyncio
import json

import pytest

from llmgw.gateway import proxy
from tests.gateway.peers import Cut, Talk, hello, request
from tests.gateway.rig import loaded, rig, run, table

ASK = {"model": "m", "messages": []}
STREAM = {"model": "m", "messages": [], "stream": True}
EVENTS = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n"
JSON = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\n"
CHUNKED = b"transfer-encoding: chunked\r\n\r\n"


def test_a_stream_that_breaks_between_events_ends_with_an_error_event() -> None:
    async def scenario() -> None:
        async with rig() as world:

            async def breaks(talk: Talk) -> None:
                await talk.open_stream()
                await talk.event("one")
                await talk.die()

            engine = await world.engine(breaks)
            world.use(table(m=loaded(engine.replica())))
            answer = await world.ask(STREAM)
            events = [e for e in answer.body.split(b"\n\n") if e]
            assert events[0] == b"data: one"
            error = json.loads(events[1].removeprefix(b"data: "))["error"]
            assert error["code"] == "engine_failed"
            assert "(e1)" in error["message"]
            assert len(events) == 2
            (line,) = world.lines()
            assert line["end"] == "broken"
            assert line["why"]

    run(scenario())


@pytest.mark.parametrize(
    "sent",
    [
        EVENTS + CHUNKED + b"20\r\ndata: half",
        JSON + CHUNKED + b"2\r\n{}\r\n",
        JSON + b"content-length: 20\r\n\r\n{",
        EVENTS + b"content-length: 90\r\n\r\ndata: 1\n\n",
        EVENTS + b"content-encoding: gzip\r\n" + CHUNKED + b"1\r\nx\r\n",
    ],
    ids=["inside a chunk", "chunked JSON", "JSON", "stream with a length", "compressed stream"],
)
@pytest.mark.parametrize("how", ["die", "hang_up"])
def test_what_cannot_carry_an_event_is_cut_visibly(sent: bytes, how: str) -> None:
    async def scenario() -> None:
        async with rig() as world:

            async def breaks(talk: Talk) -> None:
                await talk.say(sent)
                await getattr(talk, how)()

            engine = await world.engine(breaks)
            world.use(table(m=loaded(engine.replica())))
            with pytest.raises((Cut, asyncio.IncompleteReadError, ConnectionError)):
                await world.ask(STREAM)
            assert world.lines()[0]["end"] == "broken"

    run(scenario())


def test_an_answer_without_a_length_ends_with_its_connection() -> None:
    async def scenario() -> None:
        async with rig() as world:
            head = b"HTTP/1.1 200 OK\r\ncontent-type: text/plain\r\n\r\n"

            async def no_length(talk: Talk) -> None:
                await talk.say(head + b"hel")
                await talk.say(b"lo")
                await talk.hang_up()

            engine = await world.engine(no_length)
            world.use(table(m=loaded(engine.replica())))
            answer = await world.ask(ASK)
            assert answer.headers["connection"] == "close"
            assert answer.body == b"hello"

            async def broken(talk: Talk) -> None:
                await talk.say(head + b"hel")
                await talk.client_has(b"hel")
                await talk.die()

            engine.script = broken
            client = await world.client()
            client.send(request(ASK))
            await client.until(b"hel")
            (await engine.talks.get()).seen.set()
            (await engine.talks.get()).seen.set()
            with pytest.raises(Cut):
                await client.rest()

    run(scenario())


def test_an_engine_that_says_more_than_its_answer() -> None:
    async def scenario() -> None:
        async with rig() as world:

            async def split(talk: Talk) -> None:
                evil = b"HTTP/1.1 200 OK\r\ncontent-length: 4\r\n\r\nevil"
                await talk.say(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nhi" + evil)

            engine = await world.engine(split)
            world.use(table(m=loaded(engine.replica())))
            client = await world.client()
            answer = await client.ask(ASK)
            assert answer.status == 502
            assert "sent more than its answer" in answer.error["message"]

            async def split_late(talk: Talk) -> None:
                await talk.say(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n")
                await talk.seen.wait()
                await talk.say(b"hi" + evil)

            evil = b"HTTP/1.1 200 OK\r\ncontent-length: 4\r\n\r\nevil"
            engine.script = split_late
            world.pass_time(5)
            client.send(request(ASK))
            await client.until(b"\r\n\r\n")
            while engine.talks.qsize() > 1:
                engine.talks.get_nowait()
            (await engine.talks.get()).seen.set()
            with pytest.raises(Cut):
                await client.rest()
            engine.script = hello
            world.pass_time(5)
            assert (await world.ask(ASK)).status == 200

    run(scenario())


def test_bytes_on_an_idle_connection_are_no_answer() -> None:
    async def scenario() -> None:
        async with rig() as world:

            async def chatters(talk: Talk) -> None:
                await hello(talk)
                await talk.seen.wait()
                await talk.say(b"HTTP/1.1 200 OK\r\ncontent-length: 4\r\n\r\nevil")

            engine = await world.engine(chatters)
            world.use(table(m=loaded(engine.replica())))
            assert (await world.ask(ASK)).json["from"] == "e1"
            (await engine.talks.get()).seen.set()
            (endpoint,) = world.gateway.fleet.endpoints()
            await world.until(lambda: not endpoint.idle)
            assert (await world.ask(ASK)).json["from"] == "e1"

    run(scenario())


def test_informational_answers_are_for_this_hop() -> None:
    async def scenario() -> None:
        async with rig() as world:

            async def early(talk: Talk) -> None:
                await talk.say(b"HTTP/1.1 103 Early Hints\r\nlink: x\r\n\r\n")
                await hello(talk)

            engine = await world.engine(early)
            world.use(table(m=loaded(engine.replica())))
            assert (await world.ask(ASK)).json["from"] == "e1"

    run(scenario())


def test_a_slow_reader_pauses_its_engine() -> None:
    piece, pieces = b"x" * 65536, 1000

    async def scenario() -> None:
        async with rig() as world:
            said = 0
            done = asyncio.Event()

            async def flood(talk: Talk) -> None:
                nonlocal said
                await talk.say(
                    b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n" % (len(piece) * pieces)
                )
                for _ in range(pieces):
                    await talk.say(piece)
                    said += len(piece)
                done.set()

            engine = await world.engine(flood)
            world.use(table(m=loaded(engine.replica())))
            client = await world.client()
            client.send(request(ASK))
            await client.head()
            client.writer.transport.pause_reading()  # type: ignore[attr-defined]
            last = -1
            while said != last:  # until nothing moves any more
                last = said
                await asyncio.sleep(0.2)
            assert not done.is_set()
            assert said < len(piece) * pieces / 2, "kernel buffers, and no more"
            (connection,) = world.gateway.connections
            assert connection._transport.get_write_buffer_size() < 1 << 20
            client.writer.transport.resume_reading()  # type: ignore[attr-defined]
            got = await client.reader.readexactly(len(piece) * pieces)
            assert len(got) == len(piece) * pieces
            await done.wait()

    run(scenario())


def test_a_client_that_takes_nothing_goes() -> None:
    async def scenario() -> None:
        async with rig() as world:

            async def flood(talk: Talk) -> None:
                await talk.open_stream()
                while not talk.left.is_set():
                    await talk.event("x" * 60000)

            engine = await world.engine(flood)
            world.use(table(m=loaded(engine.replica())))
            client = await world.client()
            client.writer.transport.pause_reading()  # type: ignore[attr-defined]
            client.send(request(STREAM))
            (connection,) = world.gateway.connections
            await world.until(lambda: connection.paused)
            world.pass_time(proxy.WRITE_STALL_S - 1)
            assert world.in_flight() == {"e1": 1}
            world.pass_time(2)
            await world.at_rest()

    run(scenario())
