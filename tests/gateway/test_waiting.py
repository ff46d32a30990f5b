"""A request for a model that is not there yet: the wait, its comments, and every way it ends."""

import json

import pytest

from llmgw.core.types.routes import RouteModel
from tests.gateway.peers import Client, Talk, request
from tests.gateway.rig import Rig, loaded, rig, run, table

ASK = {"model": "m", "messages": []}
STREAM = {"model": "m", "messages": [], "stream": True}
LOADING = RouteModel(status="loading", progress=0.42, why="loading 42 of 100 tensors")


async def two_events(talk: Talk) -> None:
    await talk.open_stream()
    await talk.event("one")
    await talk.event("[DONE]")
    await talk.end_stream()


async def waits(
    world: Rig, body: object, path: str = "/v1/chat/completions", **more: str
) -> Client:
    """A client whose request waits."""
    before = world.waiting().get("m", 0)
    client = await world.client()
    client.send(request(body, path, **more))
    await world.until(lambda: world.waiting().get("m", 0) == before + 1)
    return client


def error_of(event: bytes) -> dict[str, object]:
    data = next(line for line in event.split(b"\n") if line.startswith(b"data: "))
    return dict(json.loads(data.removeprefix(b"data: "))["error"])


def test_a_request_wakes_a_model_and_waits() -> None:
    async def scenario() -> None:
        async with rig() as world:
            engine = await world.engine()
            world.use(table(1, m=RouteModel(status="unloaded")))
            world._changes.clear()
            client = await waits(world, ASK)
            assert world._changes.is_set(), "control hears of it at once"
            assert world.gateway.demand().table == 1
            world.pass_time(30)
            world.use(table(2, m=LOADING))
            assert world.waiting() == {"m": 1}
            world.use(table(3, m=loaded(engine.replica())))
            answer = await client.answer()
            assert answer.status == 200
            assert world.waiting() == {}
            (line,) = world.lines()
            assert line["waited_ms"] == 30_000

    run(scenario())


def test_a_waiting_stream_is_told_so() -> None:
    async def scenario() -> None:
        async with rig() as world:
            engine = await world.engine(two_events)
            world.use(table(1, m=LOADING))
            client = await waits(world, STREAM)
            world.pass_time(1.5)
            status, headers = await client.head()
            assert status == 200
            assert headers["content-type"].startswith("text/event-stream")
            assert headers["x-accel-buffering"] == "no"
            pieces = client.chunks()
            assert await anext(pieces) == b": llmgw loading m 42% 2s\n\n"
            for _ in range(4):
                world.pass_time(2)
            world.pass_time(2.5)
            assert await anext(pieces) == b": llmgw loading m 42% 12s\n\n"
            world.use(table(2, m=loaded(engine.replica())))
            rest = b"".join([p async for p in pieces])
            assert rest == b"data: one\n\ndata: [DONE]\n\n"
            assert await client.rest() == b""

    run(scenario())


def test_a_fast_wake_answers_with_its_own_status() -> None:
    async def scenario() -> None:
        async with rig() as world:

            async def refuses(talk: Talk) -> None:
                await talk.json({"error": {"message": "too long"}}, "400 Bad Request")

            engine = await world.engine(refuses)
            world.use(table(1, m=RouteModel()))
            client = await waits(world, STREAM)
            world.pass_time(0.9)
            world.use(table(2, m=loaded(engine.replica())))
            answer = await client.answer()
            assert (answer.status, answer.error["message"]) == (400, "too long")

    run(scenario())


def test_without_progress_there_is_no_percent() -> None:
    async def scenario() -> None:
        async with rig() as world:
            world.use(table(1, m=RouteModel(status="unloaded")))
            client = await waits(world, STREAM)
            world.pass_time(1)
            await client.head()
            assert await anext(client.chunks()) == b": llmgw loading m 1s\n\n"
            client.reset()
            await world.until(lambda: not world.waiting())

    run(scenario())


@pytest.mark.parametrize("path", ["/v1/embeddings", "/v1/audio/speech"])
def test_what_does_not_stream_waits_in_silence(path: str) -> None:
    async def scenario() -> None:
        async with rig() as world:
            engine = await world.engine()
            world.use(table(1, m=RouteModel()))
            client = await waits(world, STREAM, path)
            world.pass_time(20)
            world.use(table(2, m=loaded(engine.replica())))
            assert (await client.answer()).json["from"] == "e1"

    run(scenario())


def test_a_wait_that_takes_too_long() -> None:
    async def scenario() -> None:
        async with rig() as world:
            world.use(
                table(
                    1,
                    m=RouteModel(
                        status="loading", progress=0.25, why="reading weights", wait_timeout_s=60
                    ),
                )
            )
            client, stream = await waits(world, ASK), await waits(world, STREAM)
            world.pass_time(20)
            world.pass_time(40)
            answer = await client.answer()
            assert answer.status == 503
            assert answer.headers["retry-after"] == "60"
            error = answer.error
            assert error["code"] == "model_not_ready"
            assert error["message"] == "model 'm' is still loading after 60 s: reading weights"
            assert (error["stage"], error["progress"], error["eta_s"], error["waited_s"]) == (
                "loading",
                0.25,
                180.0,
                60,
            )
            assert (await stream.head())[0] == 200
            body = b"".join([p async for p in stream.chunks()])
            assert error_of(body)["code"] == "model_not_ready"
            assert await stream.rest() == b""

    run(scenario())


def test_a_failed_model_says_why_at_once() -> None:
    async def scenario() -> None:
        async with rig() as world:
            world.use(
                table(
                    1,
                    m=RouteModel(status="failed", why="gave up after 5 in 30m: CUDA out of memory"),
                )
            )
            for body in (ASK, STREAM):
                answer = await world.ask(body)
                assert answer.status == 503
                assert answer.error["code"] == "model_failed"
                assert "CUDA out of memory" in answer.error["message"]
                assert answer.error["hint"] == "`llmgw clear m` lets it start again"
            assert world.waiting() == {}

    run(scenario())


def test_a_model_that_fails_while_it_is_waited_for() -> None:
    async def scenario() -> None:
        async with rig() as world:
            world.use(table(1, m=LOADING))
            client, early, opened = (
                await waits(world, ASK),
                await waits(world, STREAM),
                await waits(world, STREAM),
            )
            world.use(table(2, m=RouteModel(status="failed", why="exit code 1")))
            for waiting in (client, early):
                answer = await waiting.answer()
                assert (answer.status, answer.error["code"]) == (503, "model_failed")
            assert (await opened.answer()).status == 503
            world.use(table(3, m=LOADING))
            opened = await waits(world, STREAM, "/v1/messages")
            world.pass_time(2)
            await opened.head()
            world.use(table(4, m=RouteModel(status="failed", why="exit code 1")))
            body = b"".join([p async for p in opened.chunks()])
            assert b"event: error\n" in body
            assert error_of(body)["type"] == "overloaded_error"
            assert "exit code 1" in str(error_of(body)["message"])

    run(scenario())


def test_a64_a_model_that_fits_nowhere_is_refused_at_once_with_the_reason() -> None:
    """The first who asks waits until control has looked; whoever comes then is told before he waits."""

    async def scenario() -> None:
        async with rig() as world:
            world.use(table(1, m=RouteModel(status="unloaded")))
            first, opened = await waits(world, ASK), await waits(world, STREAM)
            why = "1 waiting, 0 running; box1: GPU 0 has 4.0 of 24.0 GiB free, 40.0 needed"
            world.use(table(2, m=RouteModel(status="unloaded", why=why, no_room=why)))
            for answer in (await first.answer(), await opened.answer(), await world.ask(ASK)):
                assert (answer.status, answer.error["code"]) == (503, "model_no_room")
                assert answer.error["message"] == f"there is no room for model 'm': {why}"
                assert answer.error["hint"] == "`llmgw status m` says what is in the way"
                assert answer.headers["retry-after"] == "30"
            assert world.waiting() == {}

    run(scenario())


def test_a67_a_file_that_is_not_there_is_no_matter_of_room() -> None:
    async def scenario() -> None:
        async with rig() as world:
            fact = "model file /m/a b.gguf does not exist on box1"
            more = (
                "put it there, or set another one in profile main of the catalog; looked for again"
            )
            why = f"1 waiting, 0 running; box1: {fact}; {more} at once after llmgw clear m"
            world.use(table(1, m=RouteModel(status="unloaded", why=why, no_room=why)))
            answer = await world.ask(ASK)
            assert (answer.status, answer.error["code"]) == (503, "model_no_room")
            assert answer.error["message"] == f"model 'm' cannot start: {fact}"
            assert answer.error["hint"] == "put it there, then `llmgw clear m`"

    run(scenario())


def test_a_model_that_is_removed_while_it_is_waited_for() -> None:
    async def scenario() -> None:
        async with rig() as world:
            world.use(table(1, m=LOADING))
            client = await waits(world, ASK)
            world.use(table(2))
            answer = await client.answer()
            assert answer.status == 503
            assert "no longer in the catalog" in answer.error["message"]

    run(scenario())


def test_the_load_goes_on_without_the_client_that_asked_for_it() -> None:
    async def scenario() -> None:
        async with rig() as world:
            world.use(table(1, m=LOADING))
            first, second = await waits(world, ASK), await waits(world, STREAM)
            world._changes.clear()
            first.reset()
            await world.until(lambda: world.waiting() == {"m": 1})
            assert not world._changes.is_set()
            second.reset()
            await world.until(lambda: world.waiting() == {})
            assert world._changes.is_set()

    run(scenario())


def test_an_engine_that_refuses_a_stream_that_was_opened() -> None:
    async def scenario() -> None:
        async with rig() as world:

            async def refuses(talk: Talk) -> None:
                await talk.json({"error": {"message": "prompt too long"}}, "400 Bad Request")

            engine = await world.engine(refuses)
            world.use(table(1, m=LOADING))
            client = await waits(world, STREAM)
            world.pass_time(2)
            await client.head()
            world.use(table(2, m=loaded(engine.replica())))
            body = b"".join([p async for p in client.chunks()])
            error = error_of(body)
            assert error["code"] == "engine_refused"
            assert "answered 400" in str(error["message"])
            assert "prompt too long" in str(error["message"])

    run(scenario())


@pytest.mark.parametrize(
    "head",
    [b"content-length: 11\r\n\r\n", b"\r\n", b"transfer-encoding: chunked\r\n\r\n"],
    ids=["length", "until the end", "chunked"],
)
@pytest.mark.parametrize("version", ["1.1", "1.0"])
def test_an_opened_stream_goes_on_however_the_engine_frames(head: bytes, version: str) -> None:
    async def scenario() -> None:
        async with rig() as world:

            async def frames(talk: Talk) -> None:
                await talk.say(b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n" + head)
                body = b"data: one\n\n"
                await talk.say(b"b\r\n" + body + b"\r\n0\r\n\r\n" if b"chunked" in head else body)
                await talk.hang_up()

            engine = await world.engine(frames)
            world.use(table(1, m=LOADING))
            client = await world.client()
            client.send(request(STREAM, version=version))
            await world.until(world.waiting)
            world.pass_time(2)
            _, headers = await client.head()
            world.use(table(2, m=loaded(engine.replica())))
            if version == "1.0":
                assert "transfer-encoding" not in headers
                body = await client.rest()
            else:
                body = b"".join([p async for p in client.chunks()])
            assert body == b": llmgw loading m 42% 2s\n\ndata: one\n\n"

    run(scenario())


def test_an_opened_stream_whose_engine_dies() -> None:
    async def scenario() -> None:
        async with rig() as world:

            async def dies(talk: Talk) -> None:
                await talk.open_stream()
                await talk.say(b"20\r\ndata: half")
                await talk.die()

            engine = await world.engine(dies)
            world.use(table(1, m=LOADING))
            client = await waits(world, STREAM)
            world.pass_time(2)
            await client.head()
            world.use(table(2, m=loaded(engine.replica())))
            body = b"".join([p async for p in client.chunks()])
            assert b"data: half\n\ndata: {" in body, "our own framing: an event can always follow"
            assert b"engine_failed" in body

    run(scenario())


def test_a_wait_in_vain_is_a_wait_in_the_log() -> None:
    async def scenario() -> None:
        async with rig() as world:
            world.use(table(1, m=RouteModel(status="loading", wait_timeout_s=60)))
            client, left = await waits(world, ASK), await waits(world, ASK)
            world.clock.now += 30
            left.reset()
            await world.until(lambda: world.waiting() == {"m": 1})
            world.pass_time(30)
            assert (await client.answer()).status == 503
            assert [line["waited_ms"] for line in world.lines()] == [30_000, 60_000]

    run(scenario())
