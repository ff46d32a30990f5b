"""The loop with real messages: adopt, place, send, repeat, drain, publish; and what it does while it may not act."""

import asyncio

from msgspec.structs import replace

from llmgw.core.types.messages import (
    Compute,
    DrainShard,
    ForgetShard,
    Gpu,
    Refusal,
    SendReport,
    Start,
    StopShard,
)
from tests.control.bench import ON_DEMAND, Agent, Bench, engine, scenario, started


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
async def test_f58_a_lost_reply_changes_nothing(bench: Bench) -> None:
    async with bench.running() as control:
        agent = Agent(bench)
        agent.runs(engine())
        await agent.register()
        first = control.state.nodes["box1"].shards
        verdicts = await agent.register()
        assert verdicts == {"alpha-1/0": "keep"}
        assert [s.report for s in first] == [s.report for s in control.state.nodes["box1"].shards]
        assert bench.orders(agent) == []


@scenario
async def test_f57_a_start_that_an_old_session_never_took_is_placed_afresh(bench: Bench) -> None:
    async with bench.running():
        agent = Agent(bench)
        await agent.register()
        old = agent.session
        await agent.register()
        command = (await agent.poll())[0]
        assert isinstance(command, Start)
        assert command.session != old
        await agent.tell(started(command))
        await bench.later(10)
        assert len(bench.control.state.nodes["box1"].shards) == 1


@scenario
async def test_a_different_digest_asks_for_a_complete_report(bench: Bench) -> None:
    async with bench.running():
        agent = Agent(bench)
        agent.runs(engine())
        await agent.register()
        assert (await agent.tell()).match
        assert not (await agent.tell(digest="0" * 64)).match
        agent.runs(engine("alpha-2", port=18001))
        assert not (await agent.tell()).match
        await agent.register()
        assert (await agent.tell()).match


@scenario
async def test_events_count_and_older_ones_are_ignored(bench: Bench) -> None:
    async with bench.running() as control:
        agent = Agent(bench)
        agent.runs(engine())
        await agent.register()
        await agent.tell(engine(state="unhealthy"))
        agent.n -= 1
        assert (await agent.tell(engine(state="ready"))).match
        assert control.state.nodes["box1"].shards[0].report.state == "unhealthy"


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
async def test_a_silent_session_ends_after_15_s_and_its_node_is_held(bench: Bench) -> None:
    async with bench.running():
        agent = Agent(bench)
        agent.runs(engine())
        await agent.register()
        await bench.later(14)
        assert bench.connected("box1")
        await bench.later(2)
        assert not bench.connected("box1")
        await agent.poll(status=410)
        await agent.tell(status=410)
        table = await bench.get("/gateway/v1/routes?version=0")
        assert [r["state"] for r in table["models"]["alpha"]["replicas"]] == ["ready"]
        assert await agent.register() == {"alpha-1/0": "keep"}


@scenario
async def test_f16_an_epoch_from_before_a_restored_backup_is_outbid_before_the_answer(
    bench: Bench,
) -> None:
    async with bench.running() as control:
        other = Agent(bench, "box2")
        await other.register()
        agent = Agent(bench, epoch_seen=41, leader_uuid="another")
        await agent.register()
        assert agent.said.epoch == 42
        assert control.store.epoch() == 42
        (order, *_) = [c for c in await other.poll() if isinstance(c, SendReport)]
        assert order.epoch == 42
        assert control.routes.version > 42_000_000


@scenario
async def test_a_refusal_for_the_epoch_asks_the_agent_what_it_knows(bench: Bench) -> None:
    async with bench.running():
        agent = Agent(bench)
        await agent.register()
        refusal = Refusal(
            seq=1, shard="", incarnation="", reason="lower_epoch", why="epoch 1 is over"
        )
        assert not (await agent.tell(refused=(refusal,))).match


@scenario
async def test_two_leaders_block_this_one_until_the_other_is_gone(bench: Bench) -> None:
    async with bench.running() as control:
        agent = Agent(bench)
        await agent.register()
        (command,) = await agent.poll()
        no = Refusal(
            seq=command.seq,
            shard=command.shard,
            incarnation=command.incarnation,
            reason="two_leaders",
            why="http://c2 leads this node too and was obeyed first: use --lease etcd",
        )
        await agent.tell(refused=(no,))
        assert "use --lease etcd" in (await bench.get("/api/v1/status"))["blocked"]
        kinds = {type(c) for c in control.sessions.get(agent.session).queue.values()}
        assert Start not in kinds - {type(command)}
        assert await _next(agent, SendReport)
        await agent.register()
        assert (await bench.get("/api/v1/status"))["blocked"] is None
        assert await _next(agent, Start)


async def _next(agent: Agent, kind: type) -> bool:
    return any(isinstance(c, kind) for c in await agent.poll())


@scenario
async def test_f55_an_agent_that_is_too_old_is_read_only(bench: Bench) -> None:
    async with bench.running() as control:
        agent = Agent(bench, protocol=0)
        agent.runs(engine())
        assert await agent.register() == {"alpha-1/0": "hold"}
        assert agent.said.read_only
        await bench.later(70)
        assert not [s for s in control.sessions.nodes() if control.sessions.of(s).queue]


@scenario
async def test_f54_a_renamed_node_takes_its_engines_along(bench: Bench) -> None:
    async with bench.running() as control:
        agent = Agent(bench)
        agent.runs(engine())
        await agent.register()
        agent.report = replace(agent.report, node="box9")
        await agent.register()
        assert list(control.state.nodes) == ["box9"]
        assert bench.orders(agent) == []


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
        assert await bench.post("/api/v1/replicas/first/clear") == {"model": "alpha"}
        kinds = {type(c) for c in await agent.poll()}
        assert kinds == {ForgetShard, Start}
        await bench.post("/api/v1/replicas/nobody/clear", status=404)
