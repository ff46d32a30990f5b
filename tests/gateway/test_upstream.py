"""Calls of our own, over the connections that engines' answers use."""

import asyncio
import json

import pytest

from llmgw.gateway import upstream
from tests.gateway.peers import silence
from tests.gateway.rig import loaded, rig, run, table

ASK = {"model": "m", "messages": []}
STREAM = {"model": "m", "messages": [], "stream": True}


def test_a_control_call_of_ours_survives_a_stale_connection() -> None:
    async def scenario() -> None:
        async with rig() as world:
            engine = await world.engine()
            world.use(table(m=loaded(engine.replica())))
            (endpoint,) = world.gateway.fleet.endpoints()
            head = b"POST / HTTP/1.1\r\nhost: x\r\ncontent-length: 2\r\n\r\n"
            for _ in range(2):
                status, body = await upstream.Fetch(world.dialer, endpoint, head, b"{}").result()
                assert (status, json.loads(body)["from"]) == (200, "e1")
            assert engine.connections == 1
            engine.drop_idle()
            assert (await upstream.Fetch(world.dialer, endpoint, head, b"{}").result())[0] == 200
            engine.script = silence
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.05):
                    await upstream.Fetch(world.dialer, endpoint, head, b"{}").result()
            while engine.talks.qsize() > 1:
                engine.talks.get_nowait()
            await (await engine.talks.get()).left.wait()

    run(scenario())
