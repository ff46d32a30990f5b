"""Places on replicas, and the queue for them."""

import asyncio
import json

from llmgw.core.types.routes import RouteModel
from tests.gateway.peers import Client, Talk, hello, request, silence
from tests.gateway.rig import Rig, loaded, rig, run, table

ASK = {"model": "m", "messages": []}
STREAM = {"model": "m", "messages": [], "stream": True}
LOADING = RouteModel(status="loading", progress=0.42, why="loading 42 of 100 tensors")


async def waits(
    world: Rig, body: object, path: str = "/v1/chat/completions", **more: str
) -> Client:
    """A client whose request waits."""
    before = world.waiting().get("m", 0)
    client = await world.client()
    client.send(request(body, path, **more))
    await world.until(lambda: world.waiting().get("m", 0) == before + 1)
    return client


def test_over_the_limit_requests_queue_and_over_the_queue_they_are_refused() -> None:
    async def scenario() -> None:
        async with rig() as world:
            go = asyncio.Event()

            async def late(talk: Talk) -> None:
                await go.wait()
                await hello(talk)

            engine = await world.engine(late)
            world.use(table(m=loaded(engine.replica(), max_in_flight=2, queue=2)))
            running = []
            for n in range(2):
                client = await world.client()
                client.send(request({**ASK, "n": n}))
                running.append(client)
                await engine.talks.get()
            queued = [await waits(world, {**ASK, "n": n}) for n in (2, 3)]
            assert world.in_flight() == {"e1": 2}
            for body in (ASK, STREAM):
                answer = await world.ask(body)
                assert answer.status == 429
                assert answer.error["code"] == "queue_full"
                assert answer.error["type"] == "rate_limit_error"
                assert answer.headers["retry-after"]
            go.set()
            for n, client in enumerate(running + queued):
                assert (await client.answer()).json["asked"]["n"] == n
            assert [json.loads(a.body)["n"] for a in engine.asked] == [0, 1, 2, 3], (
                "first come, first served"
            )

    run(scenario())


def test_the_queue_of_a_model_that_loads_is_limited_before_a_stream_opens() -> None:
    async def scenario() -> None:
        async with rig() as world:
            world.use(table(m=RouteModel(status="loading", queue=1)))
            client = await waits(world, STREAM)
            answer = await world.ask(STREAM)
            assert answer.status == 429
            client.reset()
            await world.until(lambda: not world.waiting())

    run(scenario())


def test_a_queued_stream_is_told_so() -> None:
    async def scenario() -> None:
        async with rig() as world:
            engine = await world.engine(silence)
            world.use(table(m=loaded(engine.replica(), max_in_flight=1, wait_timeout_s=5)))
            busy = await world.client()
            busy.send(request(ASK))
            await engine.talks.get()
            client, plain = await waits(world, STREAM), await waits(world, ASK)
            world.pass_time(2)
            await client.head()
            assert await anext(client.chunks()) == b": llmgw queued m 2s\n\n"
            world.pass_time(3)
            answer = await plain.answer()
            assert answer.status == 503
            assert answer.error["message"] == "all 1 replicas of model 'm' were busy for 5 s"
            assert answer.error["stage"] == "queued"
            busy.reset()

    run(scenario())


def test_who_leaves_the_queue_holds_nobody_up() -> None:
    async def scenario() -> None:
        async with rig() as world:
            go = asyncio.Event()

            async def late(talk: Talk) -> None:
                await go.wait()
                await hello(talk)

            engine = await world.engine(late)
            world.use(table(m=loaded(engine.replica(), max_in_flight=1)))
            first = await world.client()
            first.send(request(ASK))
            await engine.talks.get()
            leaves, stays = await waits(world, ASK), await waits(world, ASK)
            leaves.reset()
            await world.until(lambda: world.waiting() == {"m": 1})
            go.set()
            assert (await first.answer()).status == 200
            assert (await stays.answer()).status == 200
            assert len(engine.asked) == 2

    run(scenario())
