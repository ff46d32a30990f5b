"""The loop with real messages: adopt, place, send, repeat, drain, publish; and what it does while it may not act."""

import asyncio

import pytest
from msgspec.structs import replace

from llmgw.core.types.messages import (
    Capacity,
    Compute,
    DrainShard,
    ForgetShard,
    Gpu,
    Refusal,
    Start,
    StopShard,
)
from tests.control.bench import CATALOG, ON_DEMAND, Agent, Bench, engine, scenario, started


@scenario
async def test_a2_a_running_engine_is_adopted_and_routed_and_nothing_starts(bench: Bench) -> None:
    async with bench.running():
        agent = Agent(bench)
        agent.runs(engine())
        assert await agent.register() == {"alpha-1/0": "adopt"}
        table = await bench.get("/gateway/v1/routes?version=0")
        (replica,) = table["models"]["alpha"]["replicas"]
        assert replica["endpoint"] == "http://10.0.0.1:18000"
        assert not bench.settling()  # epoch_seen 0: no control ever commanded it (A47)
        assert bench.orders(agent) == []
        assert [e["kind"] for e in bench.events("adopt")] == ["adopt"]


@scenario
async def test_a_wanted_model_is_started_once_and_then_routed(bench: Bench) -> None:
    async with bench.running() as control:
        agent = Agent(bench)
        await agent.register()
        (command,) = await agent.poll()
        assert isinstance(command, Start)
        assert (command.epoch, command.session) == (agent.said.epoch, agent.session)
        assert command.leader_uuid == agent.said.leader_uuid
        assert command.replica.startswith("alpha-")
        assert command.command == ("/bin/engine", "--port", "${port}")
        await bench.later(2)
        await bench.later(2)
        assert not control.sessions.get(agent.session).queue.keys() - {command.seq}
        assert (await agent.tell(started(command, "loading"))).match
        await bench.later(2)
        assert (await agent.tell(started(command))).match
        table = await bench.get("/gateway/v1/routes?version=0")
        (replica,) = table["models"]["alpha"]["replicas"]
        assert replica["incarnation"] == command.incarnation
        assert [e["replica"] for e in bench.events("start")] == [command.replica]


@scenario
async def test_a46_nothing_starts_while_an_expected_node_is_not_heard(bench: Bench) -> None:
    async with bench.running():
        agent = Agent(bench)
        await agent.register()
        await agent.start_one()
    async with bench.running() as control:
        other = Agent(bench, "box2", epoch_seen=control.state.epoch - 1, leader_uuid="x")
        await other.register()
        await bench.passes(30, other)
        assert bench.settling()
        assert (await bench.get("/api/v1/status"))["settling"]["waiting_for"] == ["box1"]
        assert bench.orders(other) == []
        assert await agent.register() == {next(iter(agent.shards))[0]: "adopt"}
        assert not bench.settling()
        assert bench.orders(other) == []
        assert bench.orders(agent) == []


@scenario
async def test_a46_a_silent_node_is_waited_for_no_longer_than_the_timeout(bench: Bench) -> None:
    async with bench.running():
        agent = Agent(bench)
        await agent.register()
        await agent.start_one()
    async with bench.running():
        other = Agent(bench, "box2")
        await other.register()
        await bench.passes(60, other)
        assert not bench.settling()
        # its engine is held, so no second one is placed on the node that answers (F61)
        assert bench.orders(other) == []
        status = await bench.get("/api/v1/status")
        assert [n["state"] for n in status["nodes"]] == ["unreachable", "ready"]


@scenario
async def test_a41_an_engine_its_agent_does_not_run_is_forgotten_and_replaced(bench: Bench) -> None:
    async with bench.running() as control:
        agent = Agent(bench)
        agent.runs(engine())
        await agent.register()
        agent.shards.clear()
        assert await agent.register() == {"alpha-1/0": "forget"}
        assert isinstance((await agent.poll())[0], Start)
        (told,) = bench.events("forget")
        assert (told["node"], told["shard"]) == ("box1", "alpha-1/0")
        assert [s.report.replica for s in control.state.nodes["box1"].shards] != ["alpha-1"]
        await bench.later(2)
        assert len(bench.events("forget")) == 1


@scenario
async def test_f79_a_stop_is_repeated_until_the_report_shows_it(bench: Bench) -> None:
    async with bench.running() as control:
        agent = Agent(bench)
        await agent.register()
        shard = await agent.start_one()
        agent.runs(engine("gone-1", model="gone", state="loading", port=18500))
        await agent.register()
        assert [a["reason"] for a in (await bench.get("/api/v1/status"))["stops_pending"]] == [
            "model_removed"
        ]
        session = control.sessions.get(agent.session)
        assert bench.orders(agent) == []
        await bench.passes(70, agent)  # stray_grace is a minute
        (first,) = await agent.poll()
        assert isinstance(first, StopShard)
        assert (first.shard, first.reason) == ("gone-1/0", "model_removed")
        await bench.later(6)
        assert list(session.queue) == [first.seq]  # not twice while the agent has not done it
        await agent.tell()
        await bench.later(6)
        (second,) = await agent.poll()
        assert (second.shard, second.seq > first.seq) == ("gone-1/0", True)
        await agent.tell(
            engine("gone-1", model="gone", state="stopped", desired="stopped", port=18500)
        )
        await bench.later(6)
        (forget,) = await agent.poll()
        assert isinstance(forget, ForgetShard)
        await agent.tell(gone=(("gone-1/0", "inc-gone-1"),))
        assert [s.report.shard for s in control.state.nodes["box1"].shards] == [shard.shard]


@scenario
async def test_a65_a_drain_is_told_to_gateways_and_survives_a_restart(bench: Bench) -> None:
    agent = Agent(bench)
    agent.runs(engine())
    async with bench.running() as control:
        await agent.register()
        await bench.demand(1, in_flight={"alpha-1": 1})
        bench.catalog.write_text(bench.catalog.read_text().replace("alpha:", "beta:"))
        await bench.post("/api/v1/catalog")
        for n in range(7):
            await bench.later(10)
            await agent.tell()
            await bench.demand(2 + n, in_flight={"alpha-1": 1})
        (drain,) = [c for c in await agent.poll() if isinstance(c, DrainShard)]
        assert drain.incarnation == "inc-alpha-1"
        assert control.state.draining["inc-alpha-1"].reason == "model_removed"
    bench.clock.now += 1
    async with bench.running(crash=True) as control:
        assert control.state.draining["inc-alpha-1"].reason == "model_removed"
        await agent.register()
        kinds = {type(c) for c in control.sessions.get(agent.session).queue.values()}
        assert DrainShard in kinds
        assert StopShard not in kinds


@scenario
async def test_a63_a_waiting_request_wakes_a_model_and_an_idle_one_goes_to_sleep(
    bench: Bench,
) -> None:
    bench.catalog.write_text(ON_DEMAND)
    async with bench.running():
        agent = Agent(bench)
        await agent.register()
        assert bench.orders(agent) == []
        await bench.demand(1, waiting={"alpha": 1})
        shard = await agent.start_one()
        await bench.demand(2)
        for n in range(125):
            await bench.later(5)
            await agent.tell()
            await bench.demand(3 + n)
        assert [e["reason"] for e in bench.events("drain")] == ["idle"]
        assert (await agent.stop_one()).incarnation == shard.incarnation
        assert (await bench.get("/api/v1/status"))["models"][0]["state"] == "unloaded"


@scenario
async def test_a_refused_start_is_not_asked_again_at_once(bench: Bench) -> None:
    async with bench.running() as control:
        agent = Agent(bench)
        await agent.register()
        (command,) = await agent.poll()
        assert isinstance(command, Start)
        refusal = Refusal(
            seq=command.seq,
            shard=command.shard,
            incarnation=command.incarnation,
            reason="port_in_use",
            resource=f"port {command.port}",
            why=f"port {command.port} is in use by pid 9",
        )
        await agent.tell(refused=(refusal,))
        (other,) = await agent.poll()
        assert isinstance(other, Start)
        assert other.port != command.port
        assert [e["reason"] for e in bench.events("refused")] == ["port_in_use"]
        assert len(control.state.nodes["box1"].shards) == 1


@scenario
async def test_a69_an_engine_on_the_cpu_of_a_gpu_box_is_a_warning(bench: Bench) -> None:
    gpu = Gpu(uuid="GPU-0", memory_bytes=24 << 30)
    async with bench.running():
        agent = Agent(bench, gpus=(gpu,))
        agent.runs(
            engine(gpus=("GPU-0",), compute=Compute(device="cuda", layers_gpu=0, layers_total=49))
        )
        await agent.register()
        (warning,) = (await bench.get("/api/v1/status"))["warnings"]
        assert "alpha-1/0 on box1 has 1 GPU and computes on the CPU, 0 of 49 layers" in warning


@scenario
async def test_routes_are_told_when_they_change_and_not_before(bench: Bench) -> None:
    async with bench.running() as control:
        version = control.routes.version
        async with asyncio.TaskGroup() as group:
            waiting = group.create_task(bench.get(f"/gateway/v1/routes?version={version}"))
            agent = Agent(bench)
            agent.runs(engine())
            await agent.register()
            table = await waiting
        assert table["version"] > version
        assert table["models"]["alpha"]["status"] == "loaded"


@scenario
async def test_versions_rise_over_a_restart_also_past_a_lost_inventory(bench: Bench) -> None:
    async with bench.running() as control:
        first = control.routes.version
    async with bench.running() as control:
        second = control.routes.version
    bench.inventory.unlink()
    async with bench.running() as control:
        assert first < second
        await bench.demand(1, table=second)
        await bench.later(1)
        assert control.routes.version > second


@scenario
async def test_a_bad_fact_is_answered_and_ends_nothing(bench: Bench) -> None:
    async with bench.running():
        agent = Agent(bench)
        agent.runs(engine())
        await agent.register()
        raw = b'{"node": "box2", "node_id": "x", "shards": [7, {"shard": "odd/0", "port": "many"}]}'
        answer = await bench.client.post(
            "/agent/v1/register", content=raw, headers={"content-type": "application/json"}
        )
        assert answer.status_code == 200, answer.text
        assert {v["verdict"] for v in answer.json()["verdicts"]} == {"hold"}
        assert (await agent.tell()).match


@scenario
async def test_a_given_up_model_says_so_over_restarts_until_it_is_cleared(bench: Bench) -> None:
    agent = Agent(bench)
    async with bench.running():
        await agent.register()
        shard = await agent.start_one("loading")
        why = "gave up after 5 failures in 30 min: exit 1"
        await agent.tell(replace(shard, state="failed", gave_up=True, error=why))
        status = await bench.get("/api/v1/status")
        assert (status["models"][0]["state"], status["models"][0]["why"]) == ("failed", why)
    async with bench.running():
        await agent.register()
        assert bench.orders(agent) == []
        assert (await bench.get("/api/v1/status"))["models"][0]["state"] == "failed"
        assert await bench.post("/api/v1/replicas/first/clear") == {
            "model": "alpha",
            "failures": 1,
            "learned": 0,
            "in_catalog": True,
        }
        kinds = {type(c) for c in await agent.poll()}
        assert kinds == {ForgetShard, Start}
        await bench.post("/api/v1/replicas/nobody/clear", status=404)


@scenario
async def test_a_failed_model_is_cleared_by_its_name_when_the_catalog_lost_it(bench: Bench) -> None:
    async with bench.running():
        agent = Agent(bench)
        await agent.register()
        shard = await agent.start_one("loading")
        await agent.tell(replace(shard, state="failed", gave_up=True, error="exit 1"))
        bench.catalog.write_text(CATALOG.replace("alpha:", "beta:"))
        await bench.post("/api/v1/catalog")
        assert await bench.post("/api/v1/replicas/alpha/clear") == {
            "model": "alpha",
            "failures": 1,
            "learned": 0,
            "in_catalog": False,
        }


@scenario
async def test_a66_a_changed_profile_is_rolled_by_one_beside_the_old(bench: Bench) -> None:
    async with bench.running():
        agent = Agent(bench)
        await agent.register()
        old = await agent.start_one()
        await bench.demand(1, in_flight={old.replica: 1})
        bench.catalog.write_text(CATALOG.replace('"${port}"', '"${port}", --new'))
        assert (await bench.get("/api/v1/plan"))["summary"]["roll"] == 1
        await bench.post("/api/v1/catalog")
        new = await agent.start_one()
        assert new.fingerprint != old.fingerprint
        await bench.demand(2, in_flight={old.replica: 1})
        table = await bench.get("/gateway/v1/routes?version=0")
        states = {r["replica"]: r["state"] for r in table["models"]["alpha"]["replicas"]}
        assert states == {old.replica: "draining", new.replica: "ready"}
        await bench.serves(70, agent, in_flight={old.replica: 1})
        assert "stop" not in bench.orders(agent)
        await bench.serves(10, agent)
        assert (await agent.stop_one()).incarnation == old.incarnation
        assert (await bench.get("/api/v1/plan"))["exit_code"] == 0


@scenario
async def test_a66_without_room_the_old_one_goes_first(bench: Bench) -> None:
    async with bench.running():
        agent = Agent(bench, capacity=Capacity(host_memory_bytes=3 << 29))
        await agent.register()
        old = await agent.start_one()
        await bench.serves(70, agent)  # until every gateway had the time to say what it serves
        bench.catalog.write_text(CATALOG.replace('"${port}"', '"${port}", --new'))
        await bench.post("/api/v1/catalog")
        await bench.serves(5, agent)
        await bench.later(0)
        assert (await agent.stop_one()).reason == "drift"
        new = await agent.start_one()
        assert new.fingerprint != old.fingerprint


@scenario
async def test_nothing_is_published_or_written_while_nothing_changes(bench: Bench) -> None:
    async with bench.running() as control:
        agent = Agent(bench)
        await agent.register()
        await agent.start_one()
        await bench.demand(1)
        await bench.later(1)
        version, written = control.routes.version, bench.inventory.stat().st_mtime_ns
        for n in range(10):
            await bench.later(1)
            await agent.tell()
            await bench.demand(2 + n)
        assert control.routes.version == version
        assert bench.inventory.stat().st_mtime_ns == written


@scenario
async def test_a_fault_in_a_pass_is_said_and_ends_nothing(bench: Bench) -> None:
    async with bench.running() as control:
        agent = Agent(bench)
        agent.runs(engine())
        await agent.register()

        def fault(*_: object) -> None:
            raise ZeroDivisionError

        control.done_by.append(fault)
        with pytest.raises(ZeroDivisionError):
            await bench.later(1)
        assert "a pass failed: ZeroDivisionError" in (await bench.get("/api/v1/status"))["blocked"]
        control.done_by.remove(fault)
        await bench.later(1)
        assert (await bench.get("/api/v1/status"))["blocked"] is None
        assert (await agent.tell()).match


@scenario
async def test_a62_who_starts_just_now_is_no_news_to_those_that_wait(bench: Bench) -> None:
    """Of six models on one box each said five times, and twice each time, that somebody else was starting."""
    models = CATALOG.partition("models:\n")[2].replace("[first]", "[]")
    bench.catalog.write_text(CATALOG + "".join(models.replace("alpha", f"m{n}") for n in range(5)))
    async with bench.running():
        agent = Agent(bench)
        await agent.register()
        for _ in range(6):
            await bench.later(2)
            await agent.start_one()
        waits = bench.events("wait")
        assert sorted(e["model"] for e in waits) == [f"m{n}" for n in range(5)]
        assert {e["why"].partition("; ")[2].partition(":")[0] for e in waits} == {"box1"}
        assert len(bench.events("start")) == 6
