"""Requests refused for their framing or their path: told in the words of their API, and written down like any other."""

import asyncio
import hashlib
import json

import pytest

from llmgw.core.types.routes import RouteKey
from tests.gateway.peers import Talk, request
from tests.gateway.rig import loaded, rig, run, table

TOO_LARGE = (
    b"POST %b HTTP/1.1\r\nhost: a\r\norigin: http://page\r\nx-request-id: mine-1\r\n"
    b"content-length: 99999999999\r\n\r\n"
)


@pytest.mark.parametrize(
    ("path", "kind"),
    [
        ("/v1/messages?beta=true", "request_too_large"),
        ("/v1/messages/count_tokens", "request_too_large"),
        ("/v1/chat/completions", "invalid_request_error"),
    ],
)
def test_a_body_that_is_too_large(path: str, kind: str) -> None:
    async def scenario() -> None:
        async with rig() as world:
            client = await world.client()
            client.send(TOO_LARGE % path.encode())
            answer = await client.answer()
            assert answer.status == 413
            assert answer.json.get("type") == ("error" if kind == "request_too_large" else None)
            assert answer.error["type"] == kind
            assert answer.error["code"] == "body_too_large"
            assert answer.error["hint"]
            assert answer.headers["x-request-id"] == "mine-1"
            assert answer.headers["access-control-allow-origin"] == "*"
            assert answer.headers["connection"] == "close"
            (line,) = world.lines()
            assert line["id"] == "mine-1"
            assert (line["method"], line["path"]) == ("POST", path.partition("?")[0])
            assert (line["status"], line["end"]) == (413, "refused")
            assert "larger than" in line["why"]

    run(scenario())


@pytest.mark.parametrize(
    ("data", "status", "code"),
    [
        (b"GET / HTTP/1.1\r\n\r\n", 400, "bad_request"),
        (b"nonsense\r\n\r\n", 400, "bad_request"),
        (b"GET /%b HTTP/1.1\r\n\r\n" % (b"a" * 70_000), 431, "headers_too_large"),
        (b"GET / HTTP/1.1\r\nhost: a\r\nexpect: x\r\n\r\n", 417, "bad_request"),
    ],
)
def test_what_cannot_be_read_has_a_line_as_well(data: bytes, status: int, code: str) -> None:
    async def scenario() -> None:
        async with rig() as world:
            client = await world.client()
            client.send(data)
            answer = await client.answer()
            assert (answer.status, answer.error["code"]) == (status, code)
            (line,) = world.lines()
            assert (line["status"], line["end"]) == (status, "refused")
            assert line["id"] == answer.headers["x-request-id"]

    run(scenario())


@pytest.mark.parametrize(
    ("method", "path", "status"), [("GET", "/v1/messages", 405), ("GET", "/v1/messages/x", 404)]
)
def test_a_wrong_method_or_path_of_anthropics_is_told_in_its_words(
    method: str, path: str, status: int
) -> None:
    async def scenario() -> None:
        async with rig() as world:
            client = await world.client()
            answer = await client.get(path, method)
            assert answer.status == status
            assert answer.json["type"] == "error"
            assert answer.json["request_id"] == answer.headers["x-request-id"]

    run(scenario())


def test_a_key_that_is_missing_is_asked_for_as_http_has_it() -> None:
    """RFC 9110 15.5.2: a 401 names the scheme."""

    async def scenario() -> None:
        async with rig(open_without_keys=False) as world:
            world.use(table(m=loaded()))
            for answer in (
                await world.ask({"model": "m"}),
                await (await world.client()).get("/v1/models"),
            ):
                assert answer.status == 401
                assert answer.headers["www-authenticate"] == "Bearer"

    run(scenario())


def test_100_continue_comes_when_it_is_its_requests_turn() -> None:
    """Before that a client takes it for one of the answer before, and waits for its own for ever."""

    async def scenario() -> None:
        async with rig() as world:
            go = asyncio.Event()

            async def answers(talk: Talk) -> None:
                await go.wait()
                await talk.json({})

            engine = await world.engine(answers)
            world.use(table(m=loaded(engine.replica())))
            client = await world.client()
            first = request({"model": "m"})
            second = request({"model": "m"}, expect="100-continue")
            head, _, body = second.partition(b"\r\n\r\n")
            client.send(first + head + b"\r\n\r\n")
            await world.until(lambda: engine.asked)
            go.set()
            assert (await client.until(b"\r\n")).startswith(b"HTTP/1.1 200")
            await client.until(b"\r\n\r\n{}")
            assert await client.until(b"\r\n\r\n") == b"HTTP/1.1 100 Continue\r\n\r\n"
            client.send(body)
            assert (await client.answer()).status == 200

    run(scenario())


def test_a_request_that_begins_behind_a_long_answer_is_not_late_for_that() -> None:
    async def scenario() -> None:
        async with rig() as world:
            go = asyncio.Event()

            async def answers(talk: Talk) -> None:
                await go.wait()
                await talk.json({})

            engine = await world.engine(answers)
            world.use(table(m=loaded(engine.replica())))
            client = await world.client()
            second = request({"model": "m"})
            client.send(second + second[:20])
            await world.until(lambda: engine.asked)
            for _ in range(60):
                world.pass_time(1)
            go.set()
            assert (await client.answer()).status == 200
            world.pass_time(1)
            client.send(second[20:])
            assert (await client.answer()).status == 200

    run(scenario())


def test_an_engines_own_words_stay_out_of_the_log() -> None:
    """They may hold the prompt: many engines repeat what they refuse."""

    async def scenario() -> None:
        async with rig() as world:

            async def refuses(talk: Talk) -> None:
                await talk.json({"error": {"message": "bad input: my secret"}}, "400 Bad Request")

            engine = await world.engine(refuses)
            world.use(table(1, m=loaded()))
            client = await world.client()
            client.send(request({"model": "m", "stream": True}))
            await world.until(world.waiting)
            world.pass_time(2)
            await client.head()
            world.use(table(2, m=loaded(engine.replica())))
            said = b"".join([p async for p in client.chunks()])
            assert b"my secret" in said
            (line,) = world.lines()
            assert "answered 400" in line["why"]
            assert "secret" not in json.dumps(line)

    run(scenario())


@pytest.mark.parametrize("expect", [False, True])
def test_a_stranger_does_not_fill_the_room_that_bodies_have(expect: bool) -> None:
    """Without a key one is told so at the first of a large body, and at once where one asks before it."""

    async def scenario() -> None:
        async with rig(open_without_keys=False) as world:
            key = RouteKey(id="bob", sha256=hashlib.sha256(b"secret").hexdigest())
            world.use(table(keys=(key,), m=loaded()))
            client = await world.client()
            more = b"expect: 100-continue\r\n" if expect else b""
            head = b"POST /v1/messages HTTP/1.1\r\nhost: a\r\n%bcontent-length: 50000000\r\n\r\n"
            client.send(head % more + (b"" if expect else b" " * (2 << 20)))
            status, headers = await client.head()
            assert status == 401
            assert headers["connection"] == "close"
            assert json.loads(await client.rest())["error"]["type"] == "authentication_error"
            assert world.gateway.budget.used == 0
            (line,) = world.lines()
            assert (line["path"], line["status"]) == ("/v1/messages", 401)

    run(scenario())


def test_with_a_key_a_large_body_goes_through() -> None:
    async def scenario() -> None:
        async with rig(open_without_keys=False) as world:
            engine = await world.engine()
            key = RouteKey(id="bob", sha256=hashlib.sha256(b"secret").hexdigest())
            world.use(table(keys=(key,), m=loaded(engine.replica())))
            for more in ({}, {"expect": "100-continue"}):
                body = b'{"model":"m","x":"%b"}' % (b"a" * (4 << 20))
                client = await world.client()
                data = request(body, authorization="Bearer secret", **more)
                head, _, _ = data.partition(b"\r\n\r\n")
                client.send(head + b"\r\n\r\n")
                if more:
                    assert (await client.until(b"\r\n\r\n")).startswith(b"HTTP/1.1 100 ")
                client.send(body)
                assert (await client.answer()).status == 200

    run(scenario())
