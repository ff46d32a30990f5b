"""The data path over real sockets: bytes of clients to engines and back, and what happens when either side goes."""

import asyncio
import json

import pytest

from tests.gateway.rig import Cut, Talk, hello, loaded, request, rig, run, silence, table

ASK = {"model": "m", "messages": []}
STREAM = {"model": "m", "messages": [], "stream": True}


def test_a_request_goes_to_an_engine_and_its_answer_comes_back() -> None:
    async def scenario() -> None:
        async with rig() as world:
            engine = await world.engine()
            world.use(table(m=loaded(engine.replica())))
            answer = await world.ask(ASK, user_agent="test", x_request_id="abc-1")
            assert answer.status == 200
            assert answer.json == {"from": "e1", "asked": ASK}
            assert answer.headers["x-llmgw-replica"] == "e1"
            assert answer.headers["x-accel-buffering"] == "no"
            assert answer.headers["x-request-id"] == "abc-1"
            asked = engine.asked[0]
            assert asked.path == "/v1/chat/completions"
            assert asked.headers["user-agent"] == "test"
            assert asked.headers["x-request-id"] == "abc-1"
            line = world.lines()[0]
            assert (line["status"], line["model"], line["replica"], line["end"]) == (200, "m", "e1", "ok")

    run(scenario())
