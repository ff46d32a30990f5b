"""An agent without a right token is named in status and the log, with what to run: nobody waits for a node in vain."""

from __future__ import annotations

from typing import Any

from msgspec.structs import replace

from llmgw.control import refused
from tests.control.bench import Agent, Bench, scenario

NODE = "x-llmgw-node"


async def warnings(bench: Bench) -> list[str]:
    found = await bench.client.get("/api/v1/status", headers={"authorization": "Bearer op"})
    return [w for w in found.json()["warnings"] if "refused" in w]


async def knock(bench: Bench, node: str = "box1", token: str = "", **more: Any) -> str:
    head = {NODE: node} | ({"authorization": f"Bearer {token}"} if token else {})
    bench.client.headers.update(head)
    error = await Agent(bench, **more).register(401)
    for name in head:
        del bench.client.headers[name]
    return str(error["hint"])


@scenario
async def test_who_sent_none_and_who_sent_a_wrong_one(bench: Bench) -> None:
    bench.settings = replace(bench.settings, token="op")
    async with bench.running():
        assert "`llmgw token` on control's box" in await knock(bench)
        (said,) = await warnings(bench)
        assert said == (
            "node box1 at 127.0.0.1 is refused: it sent no token; "
            "`llmgw token` on control's box prints the line to start its agent with"
        )
        assert "`llmgw token new` on control's box" in await knock(bench, "box2", "revoked")
        assert (await warnings(bench))[1] == (
            "node box2 at 127.0.0.1 is refused: its token is none of control's (any more); "
            "`llmgw token new` on control's box prints another line to start its agent with"
        )
        await knock(bench)
        assert [e["node"] for e in bench.events("node_refused")] == ["box1", "box2"], "said once"


@scenario
async def test_it_is_over_once_the_node_is_let_in_or_gone(bench: Bench) -> None:
    bench.settings = replace(bench.settings, token="op")
    async with bench.running():
        await knock(bench)
        await knock(bench, "box2")
        bench.client.headers.update({NODE: "box1", "authorization": "Bearer op"})
        await Agent(bench).register()
        assert ["box2" in w for w in await warnings(bench)] == [True]
        await bench.later(refused.HEARD_S + 1)
        assert await warnings(bench) == []


@scenario
async def test_strangers_fill_no_log(bench: Bench) -> None:
    """Anybody may knock, under any name."""
    bench.settings = replace(bench.settings, token="op")
    async with bench.running():
        for n in range(3 * refused.SHOWN):
            await knock(bench, f"n{n}")
        await knock(bench, "\x1b[31m")
        assert len(await warnings(bench)) == refused.SHOWN
        assert len(bench.events("node_refused")) == refused.SHOWN
        await bench.later(refused.HEARD_S + 1)
        await knock(bench, "\x1b[31m")  # and one that says no name, as older agents do
        (said,) = await warnings(bench)
        assert said.startswith("an agent at 127.0.0.1 is refused")
