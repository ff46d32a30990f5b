"""Bodies that are not quite proper JSON: one that an engine may take goes on, all others are refused with a word."""

import gzip
import json

import pytest

from llmgw.gateway import openai
from tests.gateway.rig import loaded, rig, run, table

#: What JavaScript makes of a text that was cut inside an emoji.
CUT = (
    rb'{"model":"m","messages":[{"content":"cut \ud83d"},{"content":"\udc00\ud83d\ude00 \\ud83d"}]}'
)


@pytest.mark.parametrize(
    "text", [rb"\ud83d", rb"\udc00 and so on", rb"\uD83D\ud83d\ude00", rb"\ud83d\n"]
)
def test_half_an_emoji_is_for_the_engine_to_judge(text: bytes) -> None:
    async def scenario() -> None:
        async with rig() as world:
            engine = await world.engine()
            world.use(table(m=loaded(engine.replica(), sticky_prefix_bytes=64)))
            body = b'{"model":"m","messages":[{"content":"%b"}]}' % text
            assert (await world.ask(body)).status == 200
            assert engine.asked[0].body == body, "the body goes through as bytes"

    run(scenario())


def test_half_an_emoji_beside_a_name_that_has_to_be_replaced() -> None:
    async def scenario() -> None:
        async with rig() as world:
            engine = await world.engine()
            world.use(table(m=loaded(engine.replica(upstream_model="own"))))
            assert (await world.ask(CUT)).status == 200
            sent = json.loads(engine.asked[0].body)
            assert sent["model"] == "own"
            assert [m["content"] for m in sent["messages"]] == [
                "cut \ufffd",
                "\ufffd\U0001f600 \\ud83d",
            ]

    run(scenario())


def test_a_body_that_is_packed_is_refused_as_such() -> None:
    """RFC 9110 15.5.16: what is malformed is the reading, not the body."""

    async def scenario() -> None:
        async with rig() as world:
            engine = await world.engine()
            world.use(table(m=loaded(engine.replica())))
            answer = await world.ask(gzip.compress(b'{"model":"m"}'), content_encoding="gzip")
            assert (answer.status, answer.error["code"]) == (415, "body_encoded")
            assert answer.headers["accept-encoding"] == "identity"
            assert "gzip" in answer.error["message"]
            assert (await world.ask({"model": "m"}, content_encoding="identity")).status == 200

    run(scenario())


@pytest.mark.parametrize("connected", [False, True])
def test_a_body_in_which_a_name_cannot_be_replaced_is_refused(connected: bool) -> None:
    async def scenario() -> None:
        async with rig() as world:
            engine = await world.engine()
            world.use(table(m=loaded(engine.replica(upstream_model="own"), max_in_flight=1)))
            if connected:
                assert (await world.ask({"model": "m"})).status == 200
            asked = len(engine.asked)
            answer = await world.ask(b'{"model":"m","\xff":1}')
            assert answer.status == 400
            assert answer.error["code"] == "invalid_body"
            assert "UTF-8" in answer.error["message"]
            assert len(engine.asked) == asked
            assert (await world.ask({"model": "m"})).status == 200, "its place is free"

    run(scenario())


@pytest.mark.parametrize(
    "body",
    [
        rb'{"model":"m","x":"%b"}' % (rb"\ud800" * 1000),
        rb'{"model":"\ud800"',
        rb'{"model":"m" "\ud800"}',
        rb'{"x":"\ud800"}',
    ],
)
def test_what_is_wrong_otherwise_is_refused_for_that(body: bytes) -> None:
    with pytest.raises(openai.ProblemError) as refused:
        openai.asked(body)
    assert refused.value.status == 400
