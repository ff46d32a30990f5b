"""Places on replicas, and the queue for them."""

import asyncio
import hashlib
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from llmgw.core.types.routes import RouteKey, RouteModel
from llmgw.gateway.endpoint import Endpoint
from llmgw.gateway.queue import KEPT, Queue, share
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


class Waiter:
    prefix: int | None = None

    def __init__(self, name: str) -> None:
        self.name = name
        self.who = name[0]

    def assign(self, endpoint: Endpoint) -> None: ...

    def tick(self, now: float) -> None: ...


def queue(names: str) -> tuple[Queue, dict[str, Waiter]]:
    made, waiters = Queue(), {name: Waiter(name) for name in names.split()}
    for waiter in waiters.values():
        made.add(waiter)
    return made, waiters


def turns(made: Queue) -> str:
    taken = []
    while made:
        assert made.first() in made
        taken.append(made.take())
    return " ".join(w.name for w in taken if isinstance(w, Waiter))


def test_turns_go_round_over_clients_first_come_first_served_within_each() -> None:
    made, _ = queue("a1 a2 a3 a4 b1 b2 c1")
    assert turns(made) == "a1 b1 c1 a2 b2 a3 a4"
    made, waiters = queue("a1 a2 a3 b1 b2")
    assert made.take() is waiters["a1"]
    late = Waiter("c1")
    made.add(late)
    made.remove(waiters["b1"])
    assert waiters["b1"] not in made
    assert turns(made) == "b2 a2 c1 a3"


def test_who_had_a_place_and_lost_it_does_not_begin_at_the_end() -> None:
    made, _ = queue("a1 a2 b1")
    again = made.take()
    made.add(again, again=True)
    assert turns(made) == "b1 a1 a2"


@given(st.lists(st.tuples(st.sampled_from("abc"), st.sampled_from("+-*!")), max_size=60))
def test_it_holds_what_was_put_in(steps: list[tuple[str, str]]) -> None:
    made, held = Queue(), []
    for n, (who, step) in enumerate(steps):
        if step in "+*":
            waiter = Waiter(f"{who}{n}")
            made.add(waiter, again=step == "*")
            held.append(waiter)
        elif held and step == "!":
            taken = made.take()
            assert isinstance(taken, Waiter)
            held.remove(taken)
        elif held:
            made.remove(held.pop(n % len(held)))
        assert len(made) == len(held) == len(list(made))
        assert set(made) == set(held)
        assert all(w in made for w in held)
        assert {w: made.held(w) for w in "abc"} == {w: sum(h.who == w for h in held) for w in "abc"}


@pytest.mark.parametrize(("room", "most"), [(0, 0), (1, 1), (3, 3), (4, 3), (16, 12), (128, 120)])
def test_one_client_may_hold_all_but_a_few(room: int, most: int) -> None:
    assert share(room) == most
    assert room - most <= KEPT


def test_a_client_that_fills_the_queue_shuts_nobody_out() -> None:
    async def scenario() -> None:
        async with rig() as world:
            go = asyncio.Event()

            async def late(talk: Talk) -> None:
                await go.wait()
                await hello(talk)

            engine = await world.engine(late)
            keys = tuple(
                RouteKey(id=name, sha256=hashlib.sha256(name.encode()).hexdigest())
                for name in ("hog", "bob", "eve")
            )
            model = loaded(engine.replica(), max_in_flight=1, queue=8)
            world.use(table(keys=keys, m=model))

            async def asks(who: str, n: int) -> Client:
                body = {**ASK, "n": f"{who}{n}"}
                return await waits(world, body, authorization=f"Bearer {who}")

            first = await world.client()
            first.send(request({**ASK, "n": "hog0"}, authorization="Bearer hog"))
            await engine.talks.get()
            clients = [first] + [await asks("hog", n) for n in range(1, 7)]
            refused = await world.ask(ASK, authorization="Bearer hog")
            assert (refused.status, refused.error["code"]) == (429, "queue_share_used")
            assert (
                refused.error["message"] == "6 requests of this client wait for model 'm' already"
            )
            assert "6 of 8 places" in refused.error["hint"]
            assert refused.headers["retry-after"]
            clients += [await asks("bob", 0), await asks("eve", 0)]
            full = await world.ask(ASK, authorization="Bearer eve")
            assert (full.status, full.error["code"]) == (429, "queue_full")
            go.set()
            for client in clients:
                assert (await client.answer()).status == 200
            order = [json.loads(a.body)["n"] for a in engine.asked]
            assert order == ["hog0", "hog1", "bob0", "eve0", *(f"hog{n}" for n in range(2, 7))]
            text = world.gateway.meter.exposition(world.gateway.fleet, 0).decode().splitlines()
            assert 'llmgw_gateway_refusals_total{reason="queue_share_used"} 1' in text
            assert 'llmgw_gateway_refusals_total{reason="queue_full"} 1' in text
            assert 'llmgw_gateway_wait_seconds_count{model="m"} 8' in text
            assert 'llmgw_gateway_wakeups_total{model="m"} 0' in text, "one was ready, if busy"

    run(scenario())


def test_without_keys_a_client_is_its_address() -> None:
    async def scenario() -> None:
        async with rig() as world:
            world.use(table(m=RouteModel(status="loading", queue=4)))
            clients = [await waits(world, ASK) for _ in range(3)]
            assert (await world.ask(ASK)).error["code"] == "queue_share_used"
            other = Client(
                *await asyncio.open_connection("127.0.0.1", world.port, local_addr=("127.0.0.2", 0))
            )
            other.send(request(ASK))
            await world.until(lambda: world.waiting() == {"m": 4})
            assert (await world.ask(ASK)).error["code"] == "queue_full"
            assert world.gateway.meter.model("m").wakeups == 4, "none of them found one ready"
            for client in (*clients, other):
                client.reset()
            await world.until(lambda: not world.waiting())

    run(scenario())


def test_who_lost_a_place_is_served_before_those_who_came_later() -> None:
    async def scenario() -> None:
        async with rig() as world:
            engine = await world.engine()
            world.use(table(m=loaded(engine.replica(), max_in_flight=1)))
            await engine.stop()
            clients = [await waits(world, {**ASK, "n": n}) for n in range(3)]
            for _ in range(2):
                world.pass_time(5)  # the first gets a place, and loses it
                await world.until(lambda: world.waiting() == {"m": 3})
            again = await world.engine(port=engine.port)
            engine.port = 0
            world.pass_time(5)
            for client in clients:
                assert (await client.answer()).status == 200
            assert [json.loads(a.body)["n"] for a in again.asked] == [0, 1, 2]

    run(scenario())


def test_comments_are_no_pieces_of_an_answer() -> None:
    async def scenario() -> None:
        async with rig() as world:
            world.use(table(m=RouteModel(status="loading", wait_timeout_s=60)))
            client = await waits(world, STREAM)
            for _ in range(7):
                world.pass_time(10)
            await client.rest()
            await world.at_rest()
            model = world.gateway.meter.model("m")
            assert (sum(model.gap.counts), sum(model.first.counts)) == (0, 0)
            assert sum(model.wait.counts) == 1
            assert model.wait.sum == 60, "a wait in vain is one too"

    run(scenario())
