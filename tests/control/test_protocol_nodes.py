"""Who is behind a name: renamed, doubled, wedged, too old, too new; and fields that only one side knows.

F52-F56, F60. Control's real API; where it needs an agent that lives, its real loop.
"""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Callable
from typing import Any

import pytest
from msgspec.structs import replace

from llmgw.core.types.messages import PROTOCOL
from tests.control.bench import CATALOG, ON_DEMAND, Agent, Bench, engine, scenario
from tests.control.pair import Node, Wire, until

JSON = {"content-type": "application/json"}

# ---------------------------------------------------------------- names


@scenario
async def test_f54_a_node_renamed_while_control_was_down_is_not_waited_for(bench: Bench) -> None:
    agent = Agent(bench)
    agent.runs(engine())
    async with bench.running():
        await agent.register()
    agent.report = replace(agent.report, node="box9")
    async with bench.running() as control:
        assert await agent.register() == {"alpha-1/0": "adopt"}
        assert list(control.state.nodes) == ["box9"]
        await bench.passes(20, agent)  # of 60 s, which an expected node that is silent would take
        assert not bench.settling()
        assert bench.orders(agent) == []
        assert [e["node"] for e in bench.events("renamed")] == ["box9"]


@scenario
async def test_f54_a_node_renamed_after_it_fell_silent(bench: Bench) -> None:
    async with bench.running() as control:
        agent = Agent(bench)
        agent.runs(engine())
        await agent.register()
        await bench.later(16)
        agent.report = replace(agent.report, node="box9", instance="i2")
        await agent.register()
        assert list(control.state.nodes) == ["box9"]
        assert bench.orders(agent) == []


@scenario
async def test_f52_a_copy_of_a_state_dir_that_its_lock_does_not_reach(bench: Bench) -> None:
    """In two containers: same node id, same boot. Each ended the other's session as soon as it registered."""
    async with bench.running():
        first = Agent(bench, instance="i1")
        first.runs(engine())
        await first.register()
        copy = Agent(bench, instance="i2", address="10.0.0.7")
        await copy.register()
        said = await first.register(status=409)
        assert said["code"] == "duplicate_node"
        assert "at 10.0.0.1 (from 127.0.0.1) refused: box1 at 10.0.0.7" in said["message"]
        assert "took its place with the same node id" in said["message"]
        third = Agent(bench, instance="i3")
        await third.register()
        for other in (first, copy):
            assert (await other.register(status=409))["code"] == "duplicate_node"
        await third.register()
        await bench.passes(20, third)
        assert (await first.register(status=409))["code"] == "duplicate_node"
        await bench.later(16)
        await first.register()  # the others are gone: it is the one there is


@scenario
async def test_f52_the_name_of_a_silent_node_is_free_for_another_one(bench: Bench) -> None:
    async with bench.running():
        await Agent(bench).register()
        await bench.later(16)
        other = Agent(bench, node_id="another")
        await other.register()
        assert (await Agent(bench).register(status=409))["code"] == "duplicate_node"


# ---------------------------------------------------------------- a wedged agent


@scenario
async def test_f60_a_wedged_loop_falls_silent_though_its_connection_is_up(bench: Bench) -> None:
    """Heartbeats leave from the loop that supervises; the talk with control alone sends none."""
    wire = Wire(bench)
    node = Node(wire, bench.folder / "agent")
    async with bench.running() as control, node.running() as loop:
        await until(lambda: set(node.known().values()) == {"ready"} and node.agree(), "one engine")
        await bench.later(0)
        alive, version = dict(node.alive), control.routes.version
        (task,) = (t for t in asyncio.all_tasks() if "Loop.run" in repr(t.get_coro()))
        task.cancel()
        await asyncio.wait({task})
        wire.log.clear()
        loop.beat_s = 0.0  # its time comes, and nobody is there
        await asyncio.sleep(0.1)
        assert ("events", 200) not in wire.log
        await bench.later(14)
        assert bench.connected("box1")
        await bench.later(2)
        assert not bench.connected("box1")
        await bench.later(60)
        assert node.alive == alive
        assert control.state.nodes["box1"].shards[0].holds
        (replica,) = control.routes.models["alpha"].replicas
        assert replica.state == "ready"
        assert control.routes.version == version
        assert len(bench.events("start")) == 1


# ---------------------------------------------------------------- older and newer


def old_agent(bench: Bench, **more: Any) -> Agent:
    return Agent(bench, protocol=0, **more)


@scenario
async def test_f55_an_agent_below_the_floor_serves_on_and_gets_no_orders(bench: Bench) -> None:
    """An upgrade of control may cost no stream: its ready engines stay routed, it is asked for nothing."""
    bench.catalog.write_text(CATALOG.replace("{min: 1}", "{min: 2}"))
    async with bench.running() as control:
        agent = old_agent(bench)
        agent.runs(engine())
        agent.runs(engine("gone-1", model="gone", port=18001))
        assert set((await agent.register()).values()) == {"hold"}
        assert agent.said.read_only
        table = await bench.get("/gateway/v1/routes?version=0")
        routed = [r["replica"] for r in table["models"]["alpha"]["replicas"]]
        assert routed == ["alpha-1"]
        assert table["models"]["alpha"]["status"] == "loaded"
        for _ in range(20):
            await bench.later(10)
            assert (await agent.tell()).match
        assert bench.orders(agent) == []
        assert not bench.events("start")
        status = await bench.get("/api/v1/status")
        assert status["nodes"][0]["state"] == "read-only"
        assert "agent on box1 is too old (protocol 0)" in status["warnings"][0]
        assert "upgrade" in status["warnings"][0]
        (wait,) = [a for a in (await bench.get("/api/v1/plan"))["actions"] if a["action"] == "wait"]
        assert "too old for new work: upgrade it" in wait["why"]
        assert {v.reason for v in control.plan.verdicts} == {"protocol_too_old"}


@scenario
async def test_f55_what_runs_below_the_floor_counts_and_is_not_placed_again(bench: Bench) -> None:
    async with bench.running():
        agent = old_agent(bench)
        agent.runs(engine())
        await agent.register()
        new = Agent(bench, "box2")
        await new.register()
        await bench.passes(70, agent, new)
        assert bench.orders(new) == []
        agent.shards.clear()
        await agent.register()
        await bench.passes(10, agent, new)
        assert bench.orders(new) == ["start"]


@scenario
async def test_f55_an_idle_model_below_the_floor_is_not_drained(bench: Bench) -> None:
    bench.catalog.write_text(ON_DEMAND)
    async with bench.running():
        agent = old_agent(bench)
        agent.runs(engine())
        await agent.register()
        for n in range(80):
            await bench.later(10)
            await agent.tell()
            await bench.demand(n + 1)
        assert bench.orders(agent) == []
        assert not bench.events("drain")
        table = await bench.get("/gateway/v1/routes?version=0")
        assert [r["state"] for r in table["models"]["alpha"]["replicas"]] == ["ready"]


@scenario
async def test_f55_below_the_floor_nothing_that_it_says_is_lost(bench: Bench) -> None:
    """It may go on telling; and once it is upgraded it is a node like any other."""
    async with bench.running() as control:
        agent = old_agent(bench)
        agent.runs(engine())
        await agent.register()
        await agent.tell(engine(state="failed", error="exit 1"))
        assert control.state.nodes["box1"].shards[0].report.state == "failed"
        agent.report = replace(agent.report, protocol=PROTOCOL, instance="i2")
        await agent.register()
        assert not agent.said.read_only
        await bench.later(6)
        assert "start" in bench.orders(agent)


@scenario
async def test_f56_an_agent_of_a_newer_protocol_is_welcome(bench: Bench) -> None:
    async with bench.running():
        agent = Agent(bench, protocol=PROTOCOL + 7)
        await agent.register()
        assert not agent.said.read_only
        assert agent.said.protocol == PROTOCOL
        assert (await agent.start_one()).model == "alpha"


@pytest.mark.parametrize(
    "body", [b"\xff", b"{", b'{"node": 5}', b'{"node": "box1", "protocol": "two"}']
)
def test_f55_what_cannot_be_decoded_asks_for_an_upgrade(body: bytes, tmp_path: Any) -> None:
    @scenario
    async def story(bench: Bench) -> None:
        async with bench.running() as control:
            answer = await bench.client.post("/agent/v1/register", content=body, headers=JSON)
            assert answer.status_code == 426
            assert "upgrade llmgw" in answer.json()["error"]["hint"]
            assert control.state.nodes == {}

    story(tmp_path)


@scenario
async def test_f56_what_only_a_newer_agent_knows_comes_back_out_of_the_inventory(
    bench: Bench,
) -> None:
    async with bench.running():
        agent = Agent(bench, extra={"rack": {"row": 3}})
        agent.runs(engine(extra={"quant": "q9"}))
        await agent.register()
    async with bench.running() as control:
        node = control.state.nodes["box1"]
        assert node.report.extra == {"rack": {"row": 3}}
        assert node.shards[0].report.extra == {"quant": "q9"}


@scenario
async def test_f56_fields_of_a_newer_controls_order_survive_an_older_agent(bench: Bench) -> None:
    """Journaled as they came, through every write of this version, for the next one to read."""
    wire = Wire(bench)
    node = Node(wire, bench.folder / "agent")

    def journal() -> Any:
        (path,) = (node.folder / "records").glob("alpha*.json")
        return json.loads(path.read_text())

    def newer(content: bytes) -> bytes:
        content = re.sub(rb'"resources":\{', b'"resources":{"numa":1,', content)
        return re.sub(rb'"kind":"start"', b'"kind":"start","mood":["calm"]', content)

    wire.answered = newer
    async with bench.running():
        await until_up(node, journal)
        await until_up(node, journal)


async def until_up(node: Node, journal: Callable[[], Any]) -> None:
    """A life of the agent in which its engine dies, and is started again."""
    async with node.running():
        await until(lambda: node.alive and node.agree(), "one engine")
        (record,) = node.records.values()
        node.hands.die(record)
        await until(lambda: journal()["attempt"] == record.attempt + 1, "another try")
        await until(lambda: node.alive and node.agree(), "it runs again")
        assert journal()["start"]["mood"] == ["calm"]
        assert journal()["start"]["resources"]["numa"] == 1
