"""A replica that is full says so quickly (429): that must neither draw traffic nor cost an answer."""

import asyncio

from llmgw.core.types.routes import RouteKey, RouteModel
from llmgw.gateway.state import Gateway
from tests.gateway.peers import Engine, Talk, hello
from tests.gateway.rig import Rig, loaded, rig, run, table
from tests.gateway.test_cost import ASK, BODY, EVENT, EVENTS, KEY, Pair

ASKED = {"model": "m"}


async def full(talk: Talk) -> None:
    await talk.json({"error": "overloaded"}, "429 Too Many Requests", "retry-after: 7\r\n")


async def two(world: Rig, **more: int) -> tuple[Engine, Engine]:
    """The first in the table, to which whoever comes first goes, is full."""
    no, yes = await world.engine(full, "no"), await world.engine(hello, "yes")
    world.use(table(m=loaded(no.replica(), yes.replica(), **more)))
    return no, yes


def test_a_replica_that_is_full_draws_nobody() -> None:
    async def scenario() -> None:
        async with rig() as world:
            no, yes = await two(world)
            for _ in range(10):
                answer = await world.ask(ASKED)
                assert (answer.status, answer.json["from"]) == (200, "yes")
            assert no.asked
            assert len(yes.asked) == 10
            assert world.gateway.demand().breaker == {}, "to be full is no failure"

    run(scenario())


def test_where_all_are_full_the_client_hears_it_from_the_engine() -> None:
    async def scenario() -> None:
        async with rig() as world:
            engines = [await world.engine(full, name) for name in "abc"]
            world.use(table(m=loaded(*(e.replica() for e in engines))))
            answer = await world.ask(ASKED)
            assert (answer.status, answer.headers["retry-after"]) == (429, "7")
            assert answer.json == {"error": "overloaded"}
            assert [len(e.asked) for e in engines] == [1, 1, 1]

    run(scenario())


def test_who_waits_already_is_not_overtaken_for_it() -> None:
    async def scenario() -> None:
        async with rig() as world:
            go = asyncio.Event()

            async def later(talk: Talk) -> None:
                await go.wait()
                await (full if talk.engine.name == "no" else hello)(talk)

            no, yes = await world.engine(later, "no"), await world.engine(later, "yes")
            world.use(table(m=loaded(no.replica(), yes.replica(), max_in_flight=1)))
            asked = [world.group.create_task(world.ask(ASKED)) for _ in range(3)]
            await world.until(lambda: world.waiting() == {"m": 1})
            go.set()
            answers = [await a for a in asked]
            assert min(a.status for a in answers) == 200
            await world.at_rest()

    run(scenario())


def test_a_call_that_nobody_knows_stays_where_it_was_made() -> None:
    async def scenario() -> None:
        async with rig() as world:
            no, yes = await two(world)
            answer = await world.ask(b"x", "/upstream/m/do")
            assert answer.status == 429
            assert len(no.asked) + len(yes.asked) == 1

    run(scenario())


class _Watched(Pair):
    """What of its limit a key has in use at each write to its client."""

    def __init__(self) -> None:
        super().__init__()
        gateway: Gateway = self.gateway
        table = gateway.fleet.table
        assert table is not None
        limited = RouteKey(id="k", sha256=table.keys[0].sha256, limits={"in_flight": 1.0})
        again = RouteModel(status="loaded", max_in_flight=8, replicas=table.models["m"].replicas)
        gateway.apply(type(table)(version=2, models={"m": again}, keys=(limited,)))
        self.held: list[int] = []
        self.client.write = self._write

    def _write(self, data: bytes) -> None:
        self.answered.written.append(data)
        self.held.append(sum(use.in_flight for use in self.gateway.keys._uses.values()))


def test_a_limit_counts_until_the_last_byte_goes_out_and_no_longer() -> None:
    """The loop writes at once: whoever asks one at a time met itself in another worker, and got 429."""

    async def scenario() -> None:
        pair = _Watched()
        for n in range(3):
            pair.ask(b"x" * n)
            pair.answer()
        assert pair.held == [0, 0, 0]
        pair.held.clear()
        pair.ask()
        for piece in (EVENTS, EVENT, EVENT, b"0\r\n\r\n"):
            pair.engine.data_received(piece)
        assert pair.held == [1, 1, 1, 0]
        pair.held.clear()
        body = BODY.replace(b'"m"', b'"nobody"')
        pair.client.data_received(ASK % (KEY, len(body), body))
        assert pair.answered.written[-1].startswith(b"HTTP/1.1 404 ")
        assert pair.held == [0]

    asyncio.run(scenario())
