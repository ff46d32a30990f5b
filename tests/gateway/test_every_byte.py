"""Broken off at every byte: by clients, and by engines. The right status or an error event, and nothing is left behind.

Each test walks one exchange from its first byte to its last in one world, whose counters must come back to nothing.
"""

import asyncio
import json
from functools import partial
from typing import NamedTuple

import pytest

from tests.gateway.kept import kept
from tests.gateway.peers import Client, Cut, Engine, Talk, request
from tests.gateway.rig import Rig, loaded, rig, run, table

ASK = {"model": "m", "messages": []}
STREAM = {"model": "m", "messages": [], "stream": True}
JSON = b'HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 16\r\n\r\n{"answer": "ok"}'
EVENTS = (
    b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
    b"b\r\ndata: one\n\n\r\nb\r\ndata: two\n\n\r\n6\r\ndata: \r\n8\r\n[DONE]\n\n\r\n0\r\n\r\n"
)
WHOLE = b"data: one\n\ndata: two\n\ndata: [DONE]\n\n"
#: A reset, and a clean end: what a killed process and one that exits look like.
ENDS = ["die", "hang_up"]


class Got(NamedTuple):
    status: int
    body: bytes
    cut: bool


async def answer(client: Client) -> Got:
    status, headers = await client.head()
    try:
        if headers.get("transfer-encoding") == "chunked":
            body = b"".join([piece async for piece in client.chunks()])
        elif "content-length" in headers:
            body = await client.reader.readexactly(int(headers["content-length"]))
        else:
            body = await client.rest()
    except Cut as e:
        return Got(status, e.got, cut=True)
    except asyncio.IncompleteReadError as e:
        return Got(status, e.partial, cut=True)
    except ConnectionError:
        return Got(status, b"", cut=True)
    return Got(status, body, cut=False)


def seen(engine: Engine, count: int) -> bool:
    return len(engine.asked) > count


async def patient(world: Rig, client: Client) -> Got:
    """The same while time passes for those that wait: a request is tried again after its engine died silently."""
    answering = world.group.create_task(answer(client))
    while not answering.done():
        if world.waiting():
            world.pass_time(5.0)
        await asyncio.sleep(0.001)
    return await answering


async def at_rest(world: Rig) -> None:
    await world.until(lambda: not world.gateway.connections)
    await world.at_rest()
    for endpoint in world.gateway.fleet.endpoints():
        assert endpoint.in_flight == 0
        assert endpoint.tunnels == 0


async def engine_dies(whole: bytes, how: str, body: object) -> list[Got]:
    """What a client gets for each number of bytes after which its engine ended."""
    said: list[Got] = []
    async with rig() as world:
        cut = 0

        async def breaks(talk: Talk) -> None:
            await talk.say(whole[:cut])
            if how == "die":
                await asyncio.sleep(0.002)  # a reset overtakes what was sent just before
            await getattr(talk, how)()

        engine = await world.engine(breaks)
        world.use(table(m=loaded(engine.replica())))
        for cut in range(len(whole)):  # noqa: B007 - the engine reads it
            client = await world.client()
            client.send(request(body))
            said.append(await patient(world, client))
            await client.close()
            world.pass_time(10.0)  # the breaker lets the next one through
            await at_rest(world)
    return said


@pytest.mark.parametrize("how", ENDS)
def test_an_engine_that_dies_at_any_byte_of_a_whole_answer(how: str) -> None:
    async def scenario() -> None:
        head = JSON.index(b"\r\n\r\n") + 4
        for cut, got in enumerate(await engine_dies(JSON, how, ASK)):
            if cut < head:
                assert (got.status, got.cut) == (502, False), cut
                assert json.loads(got.body)["error"]["code"] == "engine_failed"
            else:
                assert got.status == 200
                assert got.cut, f"{cut}: half an answer looks whole"
                assert JSON[head:].startswith(got.body)

    run(scenario())


@pytest.mark.parametrize("how", ENDS)
def test_an_engine_that_dies_at_any_byte_of_a_stream(how: str) -> None:
    """Between two chunks an event tells of it; inside one nothing may follow, so the connection breaks off."""

    async def scenario() -> None:
        head = EVENTS.index(b"\r\n\r\n") + 4
        told = cut_off = 0
        for cut, got in enumerate(await engine_dies(EVENTS, how, STREAM)):
            if 0 < cut < head:
                assert (got.status, got.cut) == (502, False), cut
                continue
            # With no byte at all it was tried again, and told meanwhile that it waits.
            assert got.status == 200
            if got.cut:
                cut_off += 1
                assert WHOLE.startswith(got.body), cut
                continue
            told += 1
            *_, last = [e for e in got.body.split(b"\n\n") if e]
            error = json.loads(last.removeprefix(b"data: "))["error"]
            assert error["code"] == "engine_failed", cut
        # At first, after the head and each chunk; and after the 0 of the last one, which may stand before any size.
        assert told == 1 + 5 + 1
        assert told + cut_off == 1 + len(EVENTS) - head

    run(scenario())


def test_an_engine_that_dies_at_any_byte_while_another_can_serve() -> None:
    """Before the first byte of its answer the request is given to the other, and the client sees nothing of it."""

    async def scenario() -> None:
        async with rig() as world:
            cut = 0

            async def breaks(talk: Talk) -> None:
                await talk.say(JSON[:cut])
                await talk.hang_up()

            async def serves(talk: Talk) -> None:
                await talk.say(JSON)

            first = await world.engine(breaks)
            second = await world.engine(serves, "e2")
            both = loaded(first.replica(weight=10000), second.replica(profile="q", weight=1))
            world.use(table(m=both))
            for cut in range(0, len(JSON), 9):
                client = await world.client()
                client.send(request(ASK))
                got = await answer(client)
                if cut == 0:
                    assert (got.status, got.body) == (200, JSON[-16:])
                else:
                    assert got.status == 502 or got.cut
                await client.close()
                world.pass_time(10.0)
                await at_rest(world)
            assert len(first.asked) >= len(JSON) // 9

    run(scenario())


@pytest.mark.parametrize("how", ["reset", "close"])
@pytest.mark.parametrize(
    "name",
    ["plain", "chunked", "two in a row", "old", "expects", "offers h2c", "websocket", "form"],
)
def test_a_client_that_leaves_at_any_byte_of_its_request(name: str, how: str) -> None:
    data = kept("requests")[name]

    async def scenario() -> None:
        async with rig() as world:

            async def silent(talk: Talk) -> None:
                await talk.client_leaves()

            engine = await world.engine(silent)
            world.use(table(m=loaded(engine.replica())))
            for cut in range(1, len(data) + 1):
                client = await world.client()
                client.send(data[:cut])
                await client.writer.drain()
                await asyncio.sleep(0)
                if how == "reset":
                    client.reset()
                else:
                    await client.close()
                await at_rest(world)
            # A client that closes after a whole request has left: the engine hears of it.
            await world.until(lambda: all(t.left.is_set() for t in list(engine.talks._queue)))  # type: ignore[attr-defined]

    run(scenario())


@pytest.mark.parametrize(("whole", "body"), [(JSON, ASK), (EVENTS, STREAM)], ids=["json", "stream"])
def test_a_client_that_leaves_at_any_byte_of_its_answer(whole: bytes, body: object) -> None:
    async def scenario() -> None:
        async with rig() as world:
            left: asyncio.Queue[None] = asyncio.Queue()

            async def says_on(talk: Talk) -> None:
                if cut < len(whole):
                    await talk.say(whole[:cut])
                    await talk.client_leaves()
                    left.put_nowait(None)
                else:
                    await talk.say(whole)

            engine = await world.engine(says_on)
            world.use(table(m=loaded(engine.replica())))
            for cut in range(len(whole) + 1):
                client = await world.client()
                client.send(request(body))
                if cut > whole.index(b"\r\n\r\n") + 3:
                    await client.until(b"\r\n\r\n")
                    await asyncio.sleep(0)
                else:
                    await world.until(partial(seen, engine, cut))
                client.reset()
                if cut < len(whole):
                    await left.get()
                await at_rest(world)

    run(scenario())
