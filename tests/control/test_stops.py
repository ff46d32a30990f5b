"""`llmgw stop`: whom a name means, what is done about it, and what cannot be (A43, A65)."""

from __future__ import annotations

from typing import Any

from llmgw.core.types.messages import DrainShard, ShardReport, StopShard
from tests.control.bench import CATALOG, ON_DEMAND, Agent, Bench, engine, scenario


async def running(bench: Bench, *shards: ShardReport, **report: Any) -> Agent:
    agent = Agent(bench, **report)
    for shard in shards or (engine(),):
        agent.runs(shard)
    await agent.register()
    return agent


def forced(bench: Bench, agent: Agent) -> list[tuple[str, str, bool]]:
    queue = bench.control.sessions.get(agent.session).queue.values()
    return [(c.shard, c.reason, c.force) for c in queue if isinstance(c, StopShard)]


def waits(said: Any) -> Any:
    (row,) = said["stopping"]
    return row["shards"][0]["waits"]


@scenario
async def test_a65_requests_in_flight_finish_and_nothing_new_comes(bench: Bench) -> None:
    bench.catalog.write_text(ON_DEMAND)
    async with bench.running():
        agent = await running(bench)
        await bench.demand(1, in_flight={"alpha-1": 1})
        said = await bench.post("/api/v1/models/first/stop")
        assert said == {
            "stopping": [
                {
                    "replica": "alpha-1",
                    "incarnation": "inc-alpha-1",
                    "model": "alpha",
                    "shards": [{"shard": "alpha-1/0", "node": "box1", "pid": 4711, "waits": None}],
                }
            ],
            "wanted": {},
            "warning": None,
        }
        table = await bench.get("/gateway/v1/routes?version=0")
        assert [r["state"] for r in table["models"]["alpha"]["replicas"]] == ["draining"]
        await bench.serves(20, agent, in_flight={"alpha-1": 1})
        assert bench.orders(agent) == ["drain"]
        (pending,) = (await bench.get("/api/v1/status"))["stops_pending"]
        assert pending["reason"] == "operator"
        assert "an operator asked for it at 20" in pending["why"]
        await bench.serves(5, agent)
        await bench.later(1)
        assert (await agent.stop_one()).reason == "operator"
        assert "start" not in bench.orders(agent)


@scenario
async def test_a65_an_operators_drain_outlives_control(bench: Bench) -> None:
    agent = Agent(bench)
    async with bench.running():
        agent = await running(bench)
        await bench.post("/api/v1/replicas/alpha-1/stop")
    async with bench.running(crash=True):
        await agent.register()
        assert bench.control.state.draining["inc-alpha-1"].reason == "operator"
        await bench.later(1)
        assert "drain" in bench.orders(agent)


@scenario
async def test_the_answer_says_when_the_catalog_starts_another(bench: Bench) -> None:
    async with bench.running():
        agent = await running(bench)
        for wanted in ({"alpha": 1}, {}):  # asked again, the other one is there already
            said = await bench.post("/api/v1/replicas/inc-alpha-1/stop", {"rank": 0})
            assert said["wanted"] == wanted
            assert [r["replica"] for r in said["stopping"]] == ["alpha-1"]
        await bench.later(1)
        assert sorted(bench.orders(agent)) == ["start", "stop"]


@scenario
async def test_it_need_not_be_in_the_catalog_nor_answer_now(bench: Bench) -> None:
    async with bench.running():
        agent = await running(bench, engine("gone-1", model="gone"))
        await bench.later(16)
        said = await bench.post("/api/v1/models/gone/stop")
        assert waits(said) == "box1 does not answer, it is stopped when it is back"
        assert bench.control.state.draining["inc-gone-1"].reason == "operator"
        await agent.register()
        await bench.later(1)
        assert "drain" in bench.orders(agent)


@scenario
async def test_what_does_not_run_is_no_mistake_and_a_glob_no_name(bench: Bench) -> None:
    bench.catalog.write_text(ON_DEMAND.replace("[first]", '[first, "al*"]'))
    async with bench.running():
        assert (await bench.post("/api/v1/models/alpha/stop"))["stopping"] == []
        await running(bench)
        for name in ("al*", "alx"):
            await bench.post(f"/api/v1/models/{name}/stop", status=404)


@scenario
async def test_a43_force_is_an_order_to_the_agent_of_one_shard(bench: Bench) -> None:
    bench.catalog.write_text(ON_DEMAND)
    async with bench.running():
        agent = await running(bench, engine(), engine("alpha-2", port=18001, state="stopping"))
        body = {"force": True, "rank": 0}
        said = await bench.post("/api/v1/replicas/alpha-2/stop", body)
        shard = {"shard": "alpha-2/0", "node": "box1", "pid": 4711}
        assert said == {"forced": shard, "sent": True}
        assert forced(bench, agent) == [("alpha-2/0", "operator", True)]
        assert (await bench.post("/api/v1/replicas/alpha-2/stop", body))["sent"] is False
        assert bench.control.state.draining == {}
        assert len(bench.events("stop")) == 1


@scenario
async def test_a43_force_is_heard_also_while_a_stop_is_under_way(bench: Bench) -> None:
    """The ordinary stop that does not come to an end is why anybody forces it."""
    bench.catalog.write_text(CATALOG.replace("alpha", "beta").replace("min: 1", "min: 0"))
    async with bench.running():
        agent = await running(bench, engine(state="loading"))
        await bench.passes(70, agent)
        assert forced(bench, agent) == [("alpha-1/0", "model_removed", False)]
        await bench.post("/api/v1/replicas/alpha-1/stop", {"force": True, "rank": 0})
        assert forced(bench, agent)[1:] == [("alpha-1/0", "operator", True)]


@scenario
async def test_a43_force_is_refused_with_a_reason(bench: Bench) -> None:
    async with bench.running():
        await running(bench, engine(), engine("alpha-1", port=18001, incarnation="inc-other"))
        for path, body, status, said in (
            ("replicas/alpha-1", {"force": True}, 400, "name the shard: alpha-1/0"),
            ("replicas/alpha-1", {"force": True, "rank": True}, 400, "name the shard"),
            ("models/alpha", {"force": True}, 400, "replicas/{name}/stop"),
            ("replicas/inc-other", {"force": True, "rank": 7}, 404, "known:"),
            ("replicas/alpha-1", {"force": True, "rank": 0}, 409, "name one by its incarnation"),
        ):
            answer = await bench.post(f"/api/v1/{path}/stop", body, status=status)
            assert said in answer["error"]["hint"], path
        await bench.later(16)
        body = {"force": True, "rank": 0}
        answer = await bench.post("/api/v1/replicas/inc-other/stop", body, status=409)
        assert answer["error"]["code"] == "node_silent"
        assert "llmgw forget box1" in answer["error"]["hint"]


@scenario
async def test_f55_nothing_is_sent_to_an_agent_that_is_too_old(bench: Bench) -> None:
    async with bench.running():
        await running(bench, protocol=0)
        body = {"force": True, "rank": 0}
        await bench.post("/api/v1/replicas/alpha-1/stop", body, status=409)
        said = await bench.post("/api/v1/replicas/alpha-1/stop")
        assert waits(said) == "the agent on box1 is too old to be told, upgrade it"


@scenario
async def test_a46_while_settling_it_is_noted_and_done_afterwards(bench: Bench) -> None:
    async with bench.running():
        agent = await running(bench)
        await running(bench, engine("beta-1", model="beta"), node="box2", node_id="id-box2")
    async with bench.running():
        await agent.register()
        assert bench.settling()
        said = await bench.post("/api/v1/replicas/alpha-1/stop")
        assert waits(said) == "it begins when settling is over"
        assert bench.orders(agent) == []
        await bench.passes(61, agent)
        assert DrainShard in {
            type(c) for c in bench.control.sessions.get(agent.session).queue.values()
        }


@scenario
async def test_a43_a_shard_that_does_not_exist_is_not_its_replica(bench: Bench) -> None:
    """Nobody was shown what would go: stop alpha-1/5 ended alpha-1."""
    async with bench.running():
        await running(bench, engine(), engine("alpha-2", port=18001))
        before = bench.control.state.draining
        for body in ({"rank": 5}, {"rank": 5, "force": True}):
            said = (await bench.post("/api/v1/replicas/alpha-1/stop", body, status=404))["error"]
            assert said["message"] == "there is no model, replica or shard called alpha-1/5"
            assert said["hint"] == "did you mean alpha-1/0? `llmgw status` shows what there is"
        odd: Any
        for odd in ("0", 0.5, True, []):
            await bench.post("/api/v1/replicas/alpha-1/stop", {"rank": odd}, status=400)
        assert bench.control.state.draining == before
        assert "alpha-1" not in {r["replica"] for r in bench.events("stop")}
