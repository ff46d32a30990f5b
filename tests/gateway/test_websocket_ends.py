"""WebSockets under load and at their ends: back-pressure, silence, drains, and engines that die within the switch."""

import asyncio
from pathlib import Path

import pytest

from llmgw.errors import EXIT_OK
from llmgw.gateway import proxy
from llmgw.gateway.breaker import SILENT_S
from tests.gateway.peers import Talk, hello, request
from tests.gateway.rig import loaded, rig, run, table
from tests.gateway.test_main import client
from tests.gateway.test_takeover import world
from tests.gateway.test_websocket import OFFER, REALTIME, TAKEN, echo, in_use, opened


def test_a_slow_reader_pauses_its_engine_and_a_slow_engine_its_client() -> None:
    """What is held between them is bounded: 32 MiB are said each way while nobody reads."""
    piece, pieces = b"x" * 65536, 512
    said = {"engine": 0, "client": 0}

    async def scenario() -> None:
        async with rig() as world:
            go = asyncio.Event()

            async def floods(talk: Talk) -> None:
                await talk.say(TAKEN)
                talk.listen(on=False)
                for _ in range(pieces):
                    await talk.say(piece)
                    said["engine"] += len(piece)
                await go.wait()
                talk.listen(on=True)
                heard = 0
                while heard < len(piece) * pieces:
                    heard += len(await talk.heard())
                await talk.say(b"all heard")
                await talk.hang_up()

            engine = await world.engine(floods)
            world.use(table(m=loaded(engine.replica())))
            client = await opened(world)

            async def speak() -> None:
                for _ in range(pieces):
                    client.send(piece)
                    await client.writer.drain()
                    said["client"] += len(piece)

            client.listen(on=False)
            speaking = world.group.create_task(speak())
            before: dict[str, int] = {}
            while said != before or not all(said.values()):  # until nothing moves any more
                before = dict(said)
                await asyncio.sleep(0.3)
            # Socket buffers in the kernel, both ways and twice, and the high water marks of four transports.
            assert 0 < said["engine"] < 24 << 20, said
            assert 0 < said["client"] < 24 << 20, said
            go.set()
            client.listen(on=True)
            got = await client.rest()
            await speaking
            assert got == piece * pieces + b"all heard"

    run(scenario())


def test_a_client_that_takes_nothing_is_dropped_in_the_end() -> None:
    async def scenario() -> None:
        async with rig() as world:

            async def floods(talk: Talk) -> None:
                await talk.say(TAKEN)
                while True:
                    await talk.say(b"x" * 65536)

            engine = await world.engine(floods)
            world.use(table(m=loaded(engine.replica())))
            await opened(world)
            (connection,) = world.gateway.connections
            await world.until(lambda: connection.paused)
            world.pass_time(proxy.WRITE_STALL_S + 1)
            await world.at_rest()

    run(scenario())


def test_a_silent_socket_is_no_silent_engine_and_its_idle_clock_starts_at_the_last_byte() -> None:
    async def scenario() -> None:
        async with rig() as world:
            engine = await world.engine(echo)
            other = await world.engine(hello, "e2")
            world.use(table(m=loaded(engine.replica(weight=100), other.replica(weight=1))))
            client = await opened(world)
            client.send(b"hi")
            assert await client.until(b"HI") == b"HI"
            for _ in range(5):
                world.pass_time(SILENT_S)
            demand = world.gateway.demand()
            assert demand.in_flight == {"e1": 1}
            assert demand.breaker == {}
            await client.close()
            await world.at_rest()
            assert world.gateway.demand().last_byte["e1"] >= SILENT_S * 5

    run(scenario())


def test_a_drain_waits_for_it() -> None:
    """A65: nothing new for the replica, and what it has is reported until it ends."""

    async def scenario() -> None:
        async with rig() as world:
            engine = await in_use(world)
            client = await opened(world)
            world.use(table(2, m=loaded(engine.replica(state="draining"))))
            assert world.in_flight() == {"e1": 1}
            world.use(table(3, m=loaded()))
            assert world.in_flight() == {"e1": 1}
            client.send(b"on")
            assert await client.until(b"ON") == b"ON"
            world.gateway.stopping = True
            world.pass_time(30.0)
            assert world.gateway.in_flight() == 1
            await client.close()
            await world.at_rest()

    run(scenario())


@pytest.mark.parametrize("cut", range(0, len(TAKEN), 7))
def test_an_engine_that_dies_within_its_switch(cut: int) -> None:
    async def scenario() -> None:
        async with rig() as world:

            async def breaks(talk: Talk) -> None:
                await talk.say(TAKEN[:cut])
                await talk.die()

            engine = await world.engine(breaks)
            world.use(table(m=loaded(engine.replica())))
            client = await world.client()
            client.send(request(None, REALTIME, "GET", **OFFER))
            answering = world.group.create_task(client.answer())
            for _ in range(3):
                await asyncio.sleep(0.01)
                world.pass_time(10.0)
            while not answering.done():
                await asyncio.sleep(0.01)
                world.pass_time(10.0)
            assert (await answering).status in (502, 503)

    run(scenario())


@pytest.mark.parametrize("workers", [1, 2])
def test_a_session_lives_on_in_a_gateway_that_was_replaced_for_as_long_as_it_takes(
    tmp_path: Path, workers: int
) -> None:
    """Nobody waits for that process: the limit of an end, here none at all, is for who was told to stop."""

    async def scenario() -> None:
        async with world(tmp_path) as w:
            w.engine.script = echo
            old = await w.first(workers=workers, drain_timeout_s=0.0)
            async with client(w.port) as session:
                session.send(request(None, REALTIME, "GET", **OFFER))
                assert (await session.head())[0] == 101
                await w.heir(workers=workers).event("took over")
                await old.event("stopping")
                async with client(w.port) as other:
                    assert (await other.get("/healthz")).status == 200
                for _ in range(3):
                    await asyncio.sleep(0.5)
                    session.send(b"still here")
                    assert await session.until(b"STILL HERE") == b"STILL HERE"
                assert old.popen.poll() is None
            assert await old.end() == EXIT_OK

    run(scenario())
