"""Everything at once, from a seed: whatever clients, engines and tables do, every place is given back."""

import asyncio
import contextlib
import random

import pytest

from llmgw.core.types.routes import RouteModel, RouteTable
from llmgw.gateway.wait import PATIENCE_S
from tests.gateway.peers import Client, Cut, Engine, Talk, hello, request, silence
from tests.gateway.rig import Rig, loaded, rig, run, table

CLIENTS = 120


async def stream(talk: Talk) -> None:
    await talk.open_stream()
    for n in range(5):
        await talk.event(f"{n}")
        await asyncio.sleep(0)
    await talk.end_stream()


async def breaks(talk: Talk) -> None:
    await talk.open_stream()
    await talk.event("one")
    await talk.die()


async def stalls(talk: Talk) -> None:
    await talk.open_stream()
    await talk.event("one")
    await talk.client_leaves()


async def half_a_head(talk: Talk) -> None:
    await talk.say(b"HTTP/1.1 200 OK\r\ncontent-")
    await talk.hang_up()


async def nonsense(talk: Talk) -> None:
    await talk.say(b"SSH-2.0-OpenSSH\r\n\r\n")


async def busy(talk: Talk) -> None:
    await talk.json({}, "503 Service Unavailable")


async def two_answers(talk: Talk) -> None:
    await talk.say(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nhiHTTP/1.1 200 OK\r\n\r\n")


SCRIPTS = [
    hello,
    hello,
    stream,
    stream,
    silence,
    breaks,
    stalls,
    half_a_head,
    nonsense,
    busy,
    two_answers,
    Talk.die,
    Talk.hang_up,
]


async def one_client(world: Rig, dice: random.Random) -> None:
    """Asks up to three times on one connection, and leaves when it feels like it."""
    client = Client(*await asyncio.open_connection("127.0.0.1", world.port))
    try:
        async with asyncio.timeout(dice.choice([0.0, 0.005, 0.05, 60])):
            for _ in range(dice.randint(1, 3)):
                body = {
                    "model": dice.choice("mmmn"),
                    "stream": dice.random() < 0.5,
                    "x": "y" * dice.choice([1, 100_000]),
                }
                client.send(request(body, version=dice.choice(["1.1", "1.1", "1.0"])))
                await client.answer()
    except (TimeoutError, Cut, asyncio.IncompleteReadError, ConnectionError):
        pass
    finally:
        if dice.random() < 0.5:
            client.reset()
        await client.close()


def some_table(version: int, engines: list[Engine], dice: random.Random) -> RouteTable:
    def some_model() -> RouteModel:
        status = dice.choice(["loaded", "loaded", "loading", "unloaded", "failed"])
        chosen = dice.sample(engines, dice.randint(0, len(engines)))
        replicas = tuple(
            e.replica(state=dice.choice(["ready", "ready", "draining"])) for e in chosen
        )
        return RouteModel(
            status=status, replicas=replicas, max_in_flight=dice.choice([1, 4]), queue=20, why="so"
        )

    names = dice.choice([["m", "n"], ["m"], ["n"]])
    models = {name: some_model() for name in names}
    return RouteTable(version=version, partial=dice.random() < 0.2, models=models)


async def disorder(world: Rig, engines: list[Engine], dice: random.Random) -> None:
    for version in range(2, 60):
        for engine in engines:
            engine.script = dice.choice(SCRIPTS)
        if dice.random() < 0.3:
            world.use(some_table(version, engines, dice))
        if dice.random() < 0.2:
            dice.choice(engines).drop_idle()
        world.pass_time(dice.choice([0.1, 1.0, 5.0]))
        await asyncio.sleep(0.005)


@pytest.mark.parametrize("seed", range(6))
def test_every_place_is_given_back(seed: int) -> None:
    dice = random.Random(seed)

    async def scenario() -> None:
        async with rig() as world:
            engines = [await world.engine(hello, f"e{n}") for n in range(3)]
            world.use(table(1, m=loaded(*(e.replica() for e in engines)), n=RouteModel()))
            async with asyncio.TaskGroup() as group:
                clients = [
                    group.create_task(one_client(world, random.Random(seed * 1000 + n)))
                    for n in range(CLIENTS)
                ]
                await disorder(world, engines, dice)
                # The end of the world: engines are gone, models have failed, and nobody has a reason to wait.
                for engine in engines:
                    engine.script = Talk.die
                    engine.drop_idle()
                seen = list(world.gateway.fleet.endpoints())
                world.use(table(99, m=RouteModel(status="failed"), n=RouteModel(status="failed")))
                while not all(client.done() for client in clients):
                    world.pass_time(PATIENCE_S)
                    with contextlib.suppress(TimeoutError):
                        async with asyncio.timeout(0.01):
                            await asyncio.wait(clients)
            await world.at_rest()
            assert not [e.replica for e in seen if e.breaker.probe is not None], "shut for ever"
            assert len(world.lines()) > CLIENTS / 4

    run(scenario())
