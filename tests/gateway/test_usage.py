"""Tokens as engines report them."""

import pytest

from llmgw.gateway.usage import tokens
from tests.gateway.peers import Talk, request
from tests.gateway.rig import Rig, loaded, rig, run, table

STREAM = {"model": "m", "messages": [], "stream": True}
DETAILS = b'"prompt_tokens_details":{"cached_tokens":4}'
USAGE = b'"usage":{"completion_tokens":16,"prompt_tokens":5,"total_tokens":21,%b}' % DETAILS
ANTHROPIC = (
    b'event: message_delta\ndata: {"type":"message_delta","usage":'
    b'{"cache_read_input_tokens":3,"input_tokens":9,"output_tokens":8}}\n\n'
    b'event: message_stop\ndata: {"type":"message_stop"}\n\n'
)


@pytest.mark.parametrize(
    ("tail", "found"),
    [
        (b"{%b}" % USAGE, (5, 16)),
        (b'{"usage": {"prompt_tokens": 7, "total_tokens": 7}, "x": 1}', (7, 0)),
        (b'data: {"choices":[],%b,"timings":{"prompt_n":5}}\n\ndata: [DONE]\n\n' % USAGE, (5, 16)),
        (ANTHROPIC, (9, 8)),
        (b'data: {"response":{"usage":{"input_tokens":2,"input_tokens_details":{},"output_tokens":3}}}', (2, 3)),
        (b'{"choices":[],"usage":null}', (0, 0)),
        (b'{"usage":{"prompt_tokens":-1}}', (0, 0)),
        (b'{"usage":{"prompt_tokens":99999999999999999999}}', (0, 0)),
        (rb'{"content":"\"usage\": {\"prompt_tokens\": 1}"}', (0, 0)),
        (b"", (0, 0)),
    ],
)  # fmt: skip
def test_what_stands_at_the_end(tail: bytes, found: tuple[int, int]) -> None:
    assert tokens(tail) == found


def counted(world: Rig) -> tuple[int, int]:
    model = world.gateway.meter.model("m")
    return model.prompt, model.completion


def test_of_whole_answers_and_streams_however_they_are_cut() -> None:
    async def scenario() -> None:
        async with rig() as world:
            engine = await world.engine()
            world.use(table(m=loaded(engine.replica())))
            big = {"x": "y" * 10_000, "usage": {"prompt_tokens": 3, "completion_tokens": 4}}
            for n, document in enumerate((big, {"usage": big["usage"]}), 1):

                async def whole(talk: Talk, document: object = document) -> None:
                    await talk.json(document)

                engine.script = whole
                await world.ask({"model": "m"})
                assert counted(world) == (3 * n, 4 * n)

            async def stream(talk: Talk) -> None:
                world.clock.now += 0.05
                await talk.open_stream()
                for text in ("one", "two", f'{{"choices":[],{USAGE.decode()}}}', "[DONE]"):
                    await talk.event(text)
                    await talk.seen.wait()
                    talk.seen.clear()
                    world.clock.now += 0.1
                await talk.end_stream()

            engine.script = stream
            client = await world.client()
            before = engine.talks.qsize()
            client.send(request(STREAM))
            for _ in range(before):
                engine.talks.get_nowait()
            talk = await engine.talks.get()
            for text in (b"one", b"two", b'"usage"', b"[DONE]"):
                await client.until(text)
                talk.seen.set()
            await client.until(b"0\r\n\r\n")
            await world.at_rest()
            assert counted(world) == (11, 24)
            gap = world.gateway.meter.model("m").gap
            assert sum(gap.counts) == 1, "one value for the whole stream"
            assert 0.05 < gap.sum < 0.2

            async def fails(talk: Talk) -> None:
                await talk.json({"usage": big["usage"]}, "400 Bad Request")

            engine.script = fails
            await world.ask({"model": "m"})
            assert counted(world) == (11, 24)

    run(scenario())
