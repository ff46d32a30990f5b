"""What gateways tell of engines that really answer, for control's judgement of hung ones (F64)."""

import asyncio

from tests.gateway.peers import Talk, request
from tests.gateway.rig import loaded, rig, run, table

ASK = {"model": "m", "messages": []}
STREAM = {"model": "m", "messages": [], "stream": True}


def test_f64_bytes_in_the_middle_of_a_stream_are_told_and_their_age_after() -> None:
    async def scenario() -> None:
        async with rig() as world:
            more = asyncio.Event()

            async def slow(talk: Talk) -> None:
                await talk.open_stream()
                await talk.event("one")
                await more.wait()
                await talk.event("two")
                await talk.end_stream()

            engine = await world.engine(slow)
            world.use(table(m=loaded(engine.replica())))
            assert world.gateway.demand().answered == {}
            client = await world.client()
            client.send(request(STREAM))
            await client.until(b"data: one")
            assert world.gateway.demand().answered == {"e1": 0.0}
            world.pass_time(7.0)
            assert world.gateway.demand().answered == {"e1": 7.0}
            more.set()
            await client.until(b"data: two")
            assert world.gateway.demand().answered == {"e1": 0.0}

    run(scenario())


def test_f64_a_request_that_hangs_and_an_engine_that_only_says_no_are_no_answers() -> None:
    async def scenario() -> None:
        async with rig() as world:

            async def fails(talk: Talk) -> None:
                await talk.json({"error": "EngineCore encountered an issue"}, "500 Oops")

            engine = await world.engine(fails)
            world.use(table(m=loaded(engine.replica())))
            assert (await world.ask(ASK)).status == 500
            demand = world.gateway.demand()
            assert (demand.answered, demand.last_byte) == ({}, {"e1": 0.0})

    run(scenario())


def test_f64_one_that_is_no_longer_routed_is_told_of_while_it_still_serves() -> None:
    async def scenario() -> None:
        async with rig() as world:
            end = asyncio.Event()

            async def slow(talk: Talk) -> None:
                await talk.open_stream()
                await talk.event("one")
                await end.wait()
                await talk.end_stream()

            engine = await world.engine(slow)
            world.use(table(m=loaded(engine.replica())))
            client = await world.client()
            client.send(request(STREAM))
            await client.until(b"data: one")
            world.use(table(m=loaded()))
            assert world.gateway.demand().answered == {"e1": 0.0}
            end.set()
            await client.until(b"0\r\n\r\n")

    run(scenario())


def test_f64_what_an_engine_says_of_itself_is_no_answer() -> None:
    """Whoever scrapes a hung one through `/upstream/` would keep it: `/health` is 200 while a rank is dead."""

    async def scenario() -> None:
        async with rig() as world:
            engine = await world.engine(well)
            world.use(table(m=loaded(engine.replica())))
            client = await world.client()
            assert (await client.get("/upstream/m/health")).status == 200
            assert world.gateway.demand().answered == {}
            assert (await client.ask(ASK)).status == 200
            assert world.gateway.demand().answered == {"e1": 0.0}

    run(scenario())


async def well(talk: Talk) -> None:
    await talk.json({"status": "ok"})
