"""`POST nodes/{name}/drain|undrain`: which place is meant, the word kept over restarts, what is said of it (A65)."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from typing import Any

from msgspec.structs import replace

from llmgw.core.types.messages import Gpu, ShardReport
from llmgw.render import page
from llmgw.render import status as shown_status
from tests.control.bench import ON_DEMAND, Agent, Bench, engine, scenario

GIB = 1 << 30
GPUS = tuple(
    Gpu(uuid=f"GPU-{c}", index=i, name="NVIDIA GeForce RTX 3090", memory_bytes=24 * GIB)
    for i, c in enumerate("ab")
)


async def running(bench: Bench, *shards: ShardReport, **report: Any) -> Agent:
    agent = Agent(bench, gpus=GPUS, **report)
    for shard in shards or (engine(gpus=("GPU-b",)),):
        agent.runs(shard)
    await agent.register()
    return agent


async def lines(bench: Bench) -> str:
    return page.plain(shown_status.page(await bench.get("/api/v1/status"), now_s=0.0))


@scenario
async def test_a_gpu_is_named_by_index_or_uuid_and_what_is_there_is_drained(bench: Bench) -> None:
    bench.catalog.write_text(ON_DEMAND)
    async with bench.running():
        agent = await running(bench)
        said: dict[str, Any] = {}
        for gpu in (1, "1", "gpu1", "GPU-b", "gpu-B"):
            said = await bench.post("/api/v1/nodes/box1/drain", {"gpu": gpu})
            assert (said["node"], said["gpu"], said["where"]) == ("box1", "GPU-b", "GPU 1 of box1")
            assert said["warning"] is None
        (row,) = said["leaves"]
        about = (row["shard"], row["node"], row["pid"], row["model"])
        assert about == ("alpha-1/0", "box1", 4711, "alpha")
        begins = "requests in flight finish, then it is stopped: GPU 1 of box1 is drained since"
        assert row["what"].startswith(begins)
        assert bench.orders(agent) == ["drain"]
        status = await bench.get("/api/v1/status")
        (node,) = status["nodes"]
        assert (node["state"], node["drained"]) == ("ready", None)
        assert [bool(g["drained"]) for g in node["gpus"]] == [False, True]
        assert "1 RTX 3090 (draining)" in await lines(bench)


@scenario
async def test_a_drained_node_says_so_and_is_no_complaint(bench: Bench) -> None:
    bench.catalog.write_text(ON_DEMAND)
    async with bench.running():
        agent = await running(bench)
        await bench.post("/api/v1/nodes/box1/drain")
        status = await bench.get("/api/v1/status")
        assert status["nodes"][0]["state"] == "draining"
        assert shown_status.complaints(status) == []
        assert "1 engine still there; llmgw undrain box1 ends it" in await lines(bench)
        await bench.serves(70, agent)
        await agent.stop_one()
        status = await bench.get("/api/v1/status")
        assert status["nodes"][0]["state"] == "drained"
        assert ", it is free; llmgw undrain box1 ends it" in await lines(bench)
        await bench.demand(99_999_999, waiting={"alpha": 1})
        await bench.later(1)
        assert "start" not in bench.orders(agent)
        table = await bench.get("/gateway/v1/routes?version=0")
        assert "box1: is drained since" in table["models"]["alpha"]["no_room"]
        said = await bench.post("/api/v1/nodes/box1/undrain")
        assert said["was"].startswith("since 20")
        assert (said["where"], said["still"]) == ("box1", [])
        await bench.later(1)
        assert "start" in bench.orders(agent)
        assert (await bench.post("/api/v1/nodes/box1/undrain"))["was"] is None
        assert [e["kind"] for e in bench.control.story.events if "drain" in e["kind"]].count(
            "drain"
        ) >= 1


@scenario
async def test_a51_a65_it_survives_restarts_of_control_and_a_dry_run_knows_it(bench: Bench) -> None:
    async with bench.running(crash=True):
        await running(
            bench, engine(gpus=("GPU-b",)), engine("alpha-2", gpus=("GPU-a",), port=18001)
        )
        await bench.post("/api/v1/nodes/box1/drain", {"gpu": 0})
        await bench.post("/api/v1/nodes/box1/drain", {"gpu": 1})
    async with bench.running():
        state = bench.control.state
        assert sorted(state.cordoned) == [("box1", "GPU-a"), ("box1", "GPU-b")]
        plan = await bench.get("/api/v1/plan?allow_partial=1")
        assert plan["exit_code"] in (0, 1)
        said = await bench.post("/api/v1/nodes/box1/undrain", {"gpu": "GPU-a"})
        assert said["still"] == ["GPU 1 of box1"]
    async with bench.running():
        assert sorted(bench.control.state.cordoned) == [("box1", "GPU-b")]


@scenario
async def test_what_min_wants_stays_where_it_is_the_only_one_and_says_why(bench: Bench) -> None:
    """CATALOG wants one alpha on a CPU; a second box takes it over."""
    async with bench.running():
        await running(bench)
        await Agent(bench, node="box2").register()
        said = await bench.post("/api/v1/nodes/box1/drain")
        (row,) = said["leaves"]
        assert row["what"].startswith("moves, box1 is drained since")


@scenario
async def test_f61_a_silent_node_is_drained_by_name_and_leaves_when_it_is_back(
    bench: Bench,
) -> None:
    bench.catalog.write_text(ON_DEMAND)
    async with bench.running():
        agent = await running(bench)
        await bench.later(20)
        assert not bench.connected("box1")
        said = await bench.post("/api/v1/nodes/box1/drain", {"gpu": "1"})
        assert said["leaves"][0]["what"] == "box1 does not answer, it leaves when that is back"
        await agent.register()
        await bench.later(1)
        assert bench.orders(agent) == ["drain"]


@scenario
async def test_a46_while_control_settles_the_word_is_taken_and_nothing_leaves_yet(
    bench: Bench,
) -> None:
    async with bench.running(crash=True):
        await running(bench)
        await Agent(bench, node="box2").register()
    async with bench.running():
        await running(bench)
        said = await bench.post("/api/v1/nodes/box1/drain")
        assert said["leaves"][0]["what"] == "it begins to leave when settling is over"


@scenario
async def test_an_agent_that_is_too_old_is_named(bench: Bench) -> None:
    async with bench.running():
        await running(bench, protocol=0)
        said = await bench.post("/api/v1/nodes/box1/drain")
        assert said["leaves"][0]["what"] == "its agent is too old to be told, upgrade llmgw on box1"


@scenario
async def test_unknown_places_are_refused_with_the_nearest_name(bench: Bench) -> None:
    async with bench.running():
        await running(bench)
        for path, given, message, hint in (
            (
                "bxo1",
                {},
                "there is no node called bxo1",
                "did you mean box1? `llmgw status` shows what there is",
            ),
            ("box1", {"gpu": 7}, "node box1 has no GPU 7", "known: box1/0 (GPU-a), box1/1 (GPU-b)"),
            ("box1", {"gpu": "GPU-c"}, "node box1 has no GPU GPU-c", "did you mean box1/GPU-"),
        ):
            for verb in ("drain", "undrain"):
                error = (await bench.post(f"/api/v1/nodes/{path}/{verb}", given, 404))["error"]
                assert error["message"] == message
                assert error["hint"].startswith(hint)
        for bad in (True, "", [1]):
            error = (await bench.post("/api/v1/nodes/box1/drain", {"gpu": bad}, 400))["error"]
            assert error["message"] == "gpu is neither an index nor a UUID"
        assert bench.control.state.cordoned == {}


@scenario
async def test_a_gpu_that_is_gone_is_undrained_by_its_uuid(bench: Bench) -> None:
    async with bench.running():
        await running(bench)
        await bench.post("/api/v1/nodes/box1/drain", {"gpu": 1})
        await Agent(bench, gpus=GPUS[:1]).register()
        said = await bench.post("/api/v1/nodes/box1/undrain", {"gpu": "GPU-b"})
        assert (said["where"], bool(said["was"])) == ("GPU GPU-b of box1", True)


@scenario
async def test_f54_what_was_drained_stays_so_under_another_name(bench: Bench) -> None:
    """The operator drained a box: called otherwise, it would be given new work, and its engines would stay."""
    bench.catalog.write_text(ON_DEMAND)
    async with bench.running() as control:
        agent = await running(bench, engine(gpus=("GPU-a",)))
        await bench.post("/api/v1/nodes/box1/drain", {"gpu": 1})
        await bench.post("/api/v1/nodes/box1/drain")
        said = dict(control.state.cordoned)
        await bench.later(16)
        agent.report = replace(agent.report, node="box9", instance="i2")
        await agent.register()
        assert list(control.state.nodes) == ["box9"]
        assert control.state.cordoned == {("box9", gpu): why for (_, gpu), why in said.items()}
    async with bench.running() as control:
        assert control.state.cordoned.keys() == {("box9", ""), ("box9", "GPU-b")}


@scenario
async def test_f20_words_that_cannot_be_read_cost_themselves_only(bench: Bench) -> None:
    async with bench.running(crash=True):
        await running(bench)
        await bench.post("/api/v1/nodes/box1/drain")
    with closing(sqlite3.connect(bench.inventory)) as db, db:
        db.execute("UPDATE meta SET value = '[[\"box1\"' WHERE key = 'cordoned'")
    async with bench.running():
        assert bench.control.state.cordoned == {}
        assert sorted(bench.control.state.nodes) == ["box1"]
        assert "is left out" in bench.warnings[0]


@scenario
async def test_a65_what_leaves_is_stopped_though_its_node_is_given_back_and_is_said_so(
    bench: Bench,
) -> None:
    bench.catalog.write_text(ON_DEMAND)
    async with bench.running(crash=True):
        agent = await running(bench)
        await bench.demand(1, in_flight={"alpha-1": 1})
        await bench.post("/api/v1/nodes/box1/drain")
        assert bench.orders(agent) == ["drain"]
        said = await bench.post("/api/v1/nodes/box1/undrain")
        (row,) = said["leaves"]
        assert (row["shard"], row["node"], row["pid"]) == ("alpha-1/0", "box1", 4711)
        assert row["what"] == (
            "it is still stopped once its requests are done; a new one starts when it is asked for"
        )
        assert (await bench.post("/api/v1/nodes/box1/undrain"))["leaves"] == []
        (stop,) = (await bench.get("/api/v1/status"))["stops_pending"]
        began = "draining: it began to leave while box1 was drained (since 20"
        assert stop["why"].startswith(began)
        assert ", ended 20" in stop["why"]
        assert "is drained" not in stop["why"]
        assert stop["why"].endswith(f"; {stop['waits']}")
        assert stop["waits"] == "gateway g1 may still send requests there"
    async with bench.running():
        await agent.register()
        (stop,) = (await bench.get("/api/v1/status"))["stops_pending"]
        assert stop["why"].startswith(began)
