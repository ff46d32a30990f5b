"""The breaker of a replica (A68): what opens it, the one probe, what closes it, and what it costs clients."""

import asyncio
from typing import Any

import pytest

from llmgw.core.types.routes import RouteReplica, RouteTable
from llmgw.gateway.balance import Fleet, Target
from llmgw.gateway.breaker import (
    CLOSED,
    ERRORS_MAX,
    HALF_OPEN,
    JITTER,
    OPEN,
    PROBE_S,
    SILENT_S,
    SKIP_MAX_S,
    SKIP_S,
    Breaker,
)
from tests.gateway.peers import Client, Talk, hello, request, silence
from tests.gateway.rig import Rig, loaded, rig, run, table

ASK = {"model": "m", "messages": []}
STREAM = {"model": "m", "messages": [], "stream": True}


def test_it_is_left_alone_for_longer_and_longer_until_a_whole_answer() -> None:
    breaker, now, gaps = Breaker(), 0.0, []
    for n in range(8):
        assert breaker.failed("refuses connections", now) is (n == 0)
        until = breaker.until
        assert not breaker.failed("refuses connections", now), "of the same moment: counts once"
        assert breaker.until == until
        gaps.append(until - now)
        now = until
    for n, gap in enumerate(gaps):
        most = min(SKIP_S * 2**n, SKIP_MAX_S)
        assert JITTER * most <= gap <= most + 1e-9
    assert len(set(gaps)) > 4, "never the same while for two gateways"
    breaker.worked()
    assert (breaker.state, breaker.until) == (CLOSED, 0.0)
    breaker.failed("broke off", now)
    assert breaker.until - now > SKIP_S, "an answer that begins and breaks off forgets nothing"
    breaker.worked()
    breaker.whole()
    breaker.failed("refuses connections", now)
    assert breaker.until - now <= SKIP_S


def test_one_probe_decides() -> None:
    breaker, probe, other = Breaker(), object(), object()
    breaker.failed("refuses connections", 10.0)
    assert breaker.state == OPEN
    breaker.let_through(probe, 11.0)
    assert breaker.state == HALF_OPEN
    assert breaker.until > 1e9
    breaker.no_answer(other, 11.0)
    assert breaker.state == HALF_OPEN, "another request's end says nothing"
    breaker.no_answer(probe, 12.0)
    assert (breaker.state, breaker.until) == (OPEN, 12.0), "its client left: the next one is it"
    breaker.let_through(other, 12.0)
    assert not breaker.failed("refuses connections", 12.0)
    assert breaker.state == OPEN
    assert 12.0 < breaker.until < 20.0


def test_a_row_of_errors_counts_only_where_others_can_serve() -> None:
    alone, one_of_two = Breaker(), Breaker()
    for n in range(1, ERRORS_MAX + 3):
        assert not alone.erred("answers 500", 1.0, others=False)
        assert one_of_two.erred("answers 500", 1.0, others=True) is (n == ERRORS_MAX)
    assert (alone.state, one_of_two.state) == (CLOSED, OPEN)
    alone.failed("refuses connections", 5.0)
    alone.let_through(object(), 9.0)
    alone.erred("answers 500", 9.0, others=False)
    assert alone.state == CLOSED, "it answers, and there is nobody better"
    one_of_two.let_through(object(), 9.0)
    one_of_two.erred("answers 500", 9.0, others=True)
    assert one_of_two.state == OPEN


def two(**more: Any) -> Target:
    replicas = [RouteReplica(replica=n, endpoint=f"http://10.0.0.1:1800{n}") for n in "12"]
    fleet = Fleet()
    fleet.apply(RouteTable(models={"m": loaded(*replicas, **more)}), 0.0)
    return fleet.targets["m"]


def test_silence_with_requests_in_flight_opens_while_another_can_serve() -> None:
    t = two(max_in_flight=2)
    a, b = t.endpoints
    a.in_flight = b.in_flight = 1
    assert t.watch(100.0) == []
    b.answering = True
    assert t.watch(100.0 + SILENT_S) == []
    assert t.watch(101.0 + SILENT_S) == [a], "said once"
    assert t.watch(102.0 + SILENT_S) == []
    assert a.breaker.why == f"1 has sent nothing for {SILENT_S + 2:.0f} s"
    assert t.choose(102.5 + SILENT_S) is b
    assert t.watch(101.0 + 3 * SILENT_S) == [], "the other one is silent now: one is kept"
    assert not b.breaker.open
    a.answering = True
    t.watch(102.0 + 3 * SILENT_S)
    assert a.breaker.state == OPEN
    assert t.choose(102.0 + 3 * SILENT_S + SKIP_MAX_S, (b,)) is a, "its bytes have let it be probed"


def test_silence_of_all_places_taken_elsewhere_opens_nothing() -> None:
    t = two(max_in_flight=1)
    a, b = t.endpoints
    a.in_flight = b.in_flight = 1
    t.watch(100.0)
    b.answering = True
    assert t.watch(101.0 + SILENT_S) == []
    assert not a.breaker.open
    idle = two()
    idle.watch(100.0)
    assert idle.watch(101.0 + SILENT_S) == [], "nothing is asked of an idle one"


def test_a_long_probe_is_answer_enough_where_there_is_nobody_else() -> None:
    t = two()
    a, b = t.endpoints
    for e in (a, b):
        e.breaker.failed("broke off", 1.0)
    a.breaker.let_through(object(), 3.0)
    t.watch(3.0 + PROBE_S)
    assert a.breaker.state == HALF_OPEN
    t.watch(3.1 + PROBE_S)
    assert (a.breaker.state, b.breaker.state) == (CLOSED, OPEN)
    b.breaker.let_through(object(), 9.0)
    t.watch(100.0)
    assert b.breaker.state == HALF_OPEN, "the other one serves"
    a.in_flight = t.route.max_in_flight
    t.watch(101.0)
    assert b.breaker.state == CLOSED, "the other one is full"


async def waits(world: Rig, body: object) -> Client:
    before = world.waiting().get("m", 0)
    client = await world.client()
    client.send(request(body))
    await world.until(lambda: world.waiting().get("m", 0) == before + 1)
    return client


def breakers(world: Rig) -> dict[str, str]:
    return world.gateway.demand().breaker


def test_one_request_probes_and_the_others_wait_for_its_answer() -> None:
    """A replica alone in its model: nobody is refused, and no herd comes down on an engine that may be ill."""

    async def scenario() -> None:
        async with rig() as world:
            engine = await world.engine(name="e")
            world.use(table(m=loaded(engine.replica())))
            await engine.stop()
            clients = [await waits(world, ASK) for _ in range(5)]
            assert breakers(world) == {"e": "open"}
            text = world.gateway.meter.exposition(world.gateway.fleet, 0).decode()
            assert 'llmgw_gateway_breaker{model="m",replica="e"} 2' in text.splitlines()
            go = asyncio.Event()

            async def late(talk: Talk) -> None:
                await go.wait()
                await hello(talk)

            again = await world.engine(late, "e", engine.port)
            engine.port = 0
            world.pass_time(1)
            await world.until(lambda: again.asked)
            world.pass_time(1)
            assert (len(again.asked), world.waiting()) == (1, {"m": 4})
            assert breakers(world) == {"e": "half-open"}
            go.set()
            for client in clients:
                assert (await client.answer()).status == 200
            assert breakers(world) == {}

    run(scenario())


def test_a_probe_whose_client_leaves_makes_way_for_the_next() -> None:
    async def scenario() -> None:
        async with rig() as world:
            engine = await world.engine(name="e")
            world.use(table(m=loaded(engine.replica())))
            await engine.stop()
            first, second = await waits(world, ASK), await waits(world, ASK)
            again = await world.engine(silence, "e", engine.port)
            engine.port = 0
            world.pass_time(1)
            await world.until(lambda: again.asked)
            again.script = hello
            first.reset()
            assert (await second.answer()).status == 200
            assert breakers(world) == {}

    run(scenario())


def test_a_long_probe_does_not_keep_everybody_out() -> None:
    """A whole answer may take minutes before its first byte; the only replica must not be shut for that long."""

    async def scenario() -> None:
        async with rig() as world:
            engine = await world.engine(name="e")
            world.use(table(m=loaded(engine.replica())))
            await engine.stop()
            probe, other = await waits(world, ASK), await waits(world, ASK)
            again = await world.engine(silence, "e", engine.port)
            engine.port = 0
            world.pass_time(1)
            await world.until(lambda: again.asked)
            again.script = hello
            world.pass_time(PROBE_S + 1)
            assert (await other.answer()).status == 200
            probe.reset()

    run(scenario())


def test_streams_that_break_count_more_each_time() -> None:
    async def scenario() -> None:
        async with rig() as world:

            async def breaks(talk: Talk) -> None:
                await talk.open_stream()
                await talk.event("one")
                await talk.die()

            ill, well = await world.engine(breaks, "ill"), await world.engine(name="well")
            world.use(table(m=loaded(ill.replica(), well.replica())))
            endpoint, _ = world.gateway.fleet.endpoints()
            for n in range(1, 4):
                assert b"engine_failed" in (await world.ask(STREAM)).body
                assert endpoint.breaker.fails == n
                assert (await world.ask(ASK)).json["from"] == "well"
                world.pass_time(SKIP_MAX_S)
            ill.script = hello
            assert (await world.ask(ASK)).json["from"] == "ill"
            assert (endpoint.breaker.fails, breakers(world)) == (0, {})
            assert world.gateway.meter.counts["breaker_opened"] == 3

    run(scenario())


@pytest.mark.parametrize("status", ["500 Internal Server Error", "504 Gateway Timeout"])
def test_a_fast_error_draws_no_traffic(status: str) -> None:
    """Least in flight prefers whoever is done first: an engine that fails at once would get everything."""

    async def scenario() -> None:
        async with rig() as world:

            async def fails(talk: Talk) -> None:
                await talk.json({"error": {"message": "bug"}}, status)

            ill, well = await world.engine(fails, "ill"), await world.engine(name="well")
            world.use(table(m=loaded(ill.replica(), well.replica())))
            statuses = [(await world.ask(ASK)).status for _ in range(20)]
            assert len(ill.asked) == ERRORS_MAX
            assert statuses.count(200) == 20 - ERRORS_MAX
            assert breakers(world) == {"ill": "open"}
            world.use(table(2, m=loaded(ill.replica())))
            world.pass_time(SKIP_MAX_S)
            for _ in range(ERRORS_MAX + 1):
                answer = await world.ask(ASK)
                assert answer.error["message"] == "bug", "alone it says what it says, at once"
            assert breakers(world) == {}

    run(scenario())


def test_an_answer_of_an_engines_own_api_says_nothing_about_it() -> None:
    """`/upstream/m/health` is asked to see the 503 of an engine that loads."""

    async def scenario() -> None:
        async with rig() as world:

            async def loads(talk: Talk) -> None:
                await talk.json({"error": {"message": "Loading model"}}, "503 Service Unavailable")

            engine = await world.engine(loads, "e")
            world.use(table(m=loaded(engine.replica())))
            client = await world.client()
            client.send(request(None, "/upstream/m/health", "GET"))
            answer = await client.answer()
            assert (answer.status, answer.error["message"]) == (503, "Loading model")
            assert breakers(world) == {}

    run(scenario())


def test_a_probe_that_streams_lets_the_others_in_at_its_first_byte() -> None:
    async def scenario() -> None:
        async with rig() as world:
            engine = await world.engine(name="e")
            world.use(table(m=loaded(engine.replica())))
            await engine.stop()
            probe, other = await waits(world, STREAM), await waits(world, ASK)

            async def streams(talk: Talk) -> None:
                again.script = hello
                await talk.open_stream()
                await talk.event("one")
                await talk.client_leaves()

            again = await world.engine(streams, "e", engine.port)
            engine.port = 0
            world.pass_time(1)
            assert (await other.answer()).status == 200, "not when the stream ends, nor at a tick"
            await probe.until(b"data: one\n\n")
            probe.reset()

    run(scenario())


def test_an_engine_that_says_no_is_not_silent() -> None:
    async def scenario() -> None:
        async with rig() as world:

            async def refuses(talk: Talk) -> None:
                await talk.json({"error": {"message": "too long"}}, "400 Bad Request")

            engines = [await world.engine(silence, "a"), await world.engine(silence, "b")]
            world.use(table(m=loaded(*(e.replica() for e in engines))))
            clients = [await world.client() for _ in engines]
            for engine, client in zip(engines, clients, strict=True):
                client.send(request(ASK))
                await engine.talks.get()
            world.pass_time(1)
            engines[0].script = refuses
            world.pass_time(SILENT_S / 2)
            assert (await world.ask(ASK)).status == 400
            world.pass_time(SILENT_S / 2 + 1)
            assert breakers(world) == {"b": "open"}
            for client in clients:
                client.reset()

    run(scenario())
