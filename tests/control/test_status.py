"""`llmgw.status/1`: every key of the contract, times as text, and what needs attention (contract/cli.md)."""

from typing import Any

from msgspec.structs import replace

from llmgw.core import learn
from llmgw.core.types.messages import Capacity, Foreign, Gpu, Resources
from llmgw.core.types.state import Failure, Refused
from llmgw.wire.places import NAMED, Nowhere
from tests.control.bench import CATALOG, ON_DEMAND, Agent, Bench, engine, scenario
from tests.core.world import catalog, gpus, model, node, profile, settled, shard

KEYS = {
    "schema leader settling blocked catalog nodes models replicas stops_pending warnings",
    "name epoch lease standbys",
    "path version error",
    "node state since version gpus power_w power_budget_w engines",
    "uuid index name memory reserved used foreign",
    "name aliases state min max ready waiting idle_until why",
    "replica incarnation model profile state have want endpoint in_flight since adopted_at drift breaker shards",
    "shard node gpus port pid state progress compute error",
}
GIB = 1 << 30
GPU = Gpu(
    uuid="GPU-0", name="RTX 3090", memory_bytes=24 * GIB, memory_used_bytes=19 * GIB, power_w=212.0
)


def objects(value: Any) -> list[dict[str, Any]]:
    if isinstance(value, dict):
        return [value, *(o for v in value.values() for o in objects(v))]
    return [o for v in value for o in objects(v)] if isinstance(value, list) else []


@scenario
async def test_every_key_of_the_contract_is_there(bench: Bench) -> None:
    async with bench.running():
        other = Foreign(pid=9, gpu="GPU-0", memory_bytes=GIB)
        capacity = Capacity(power_w=300.0)
        agent = Agent(bench, gpus=(GPU,), version="0.1.0", capacity=capacity, foreign=(other,))
        agent.runs(engine(gpus=("GPU-0",), resources=Resources(gpu_memory_bytes=18 * GIB)))
        await agent.register()
        status = await bench.get("/api/v1/status")
        found = objects(status)
        for keys in KEYS:
            assert any(set(keys.split()) <= set(o) for o in found), keys
        (node,) = status["nodes"]
        assert (node["state"], node["power_w"], node["power_budget_w"]) == ("ready", 212.0, 300.0)
        (gpu,) = node["gpus"]
        assert (gpu["reserved"], gpu["used"], gpu["foreign"]) == (18 * GIB, 19 * GIB, GIB)
        (replica,) = status["replicas"]
        assert replica["since"] == "2026-01-01T00:00:00Z"
        assert status["leader"]["lease"] == "file"
        assert status["settling"] is None


@scenario
async def test_a_loading_model_says_how_far_it_is(bench: Bench) -> None:
    async with bench.running():
        agent = Agent(bench)
        agent.runs(engine(state="loading", progress=0.63))
        await agent.register()
        (model,) = (await bench.get("/api/v1/status"))["models"]
        assert (model["state"], model["why"]) == ("loading", "loading on box1, 63%")


@scenario
async def test_a_model_that_fits_nowhere_names_the_tightest_resource(bench: Bench) -> None:
    bench.catalog.write_text(CATALOG.replace("1GiB", "100GiB"))
    async with bench.running():
        agent = Agent(bench, capacity=Capacity(host_memory_bytes=64 * GIB))
        await agent.register()
        (model,) = (await bench.get("/api/v1/status"))["models"]
        assert model["state"] == "waiting"
        assert "64.0 of 64.0 GiB free, 100.0 needed" in model["why"]
        assert len(bench.events("wait")) == 1


@scenario
async def test_a62_where_a_model_could_go_is_told_also_when_nobody_waits(bench: Bench) -> None:
    bench.catalog.write_text(ON_DEMAND.replace("1GiB", "100GiB"))
    async with bench.running():
        await Agent(bench, capacity=Capacity(host_memory_bytes=64 * GIB)).register()
        status = await bench.get("/api/v1/status?places=alpha")
        (model,) = status["models"]
        why = "host memory: 64.0 of 64.0 GiB free, 100.0 needed"
        (place,) = model["places"]
        assert (place["node"], place["takes"], place["why"]) == ("box1", "no", why)
        (said,) = status["warnings"]
        assert said == f"alpha fits nowhere, not even with nothing else running: box1: {why}"
        plain = await bench.get("/api/v1/status?places=nobody")
        assert "places" not in plain["models"][0]


def test_of_many_that_fit_nowhere_some_are_named() -> None:
    models = [model(f"m{i:02}", profile(gpus=9)) for i in range(NAMED + 2)]
    found = Nowhere().said(settled(catalog(*models), node("box1")))
    assert len(found) == NAMED + 1
    assert found[-1] == "and 2 more models fit nowhere; llmgw status MODEL says why"


def test_what_fits_nowhere_is_looked_for_anew_only_when_the_catalog_or_a_node_is_another() -> None:
    """Every look at the status asks, and it is a question to all models of the catalog."""
    nowhere, of_one = Nowhere(), catalog(model("wide", profile(gpus=9)))
    state = settled(of_one, node("box1", gpus=gpus("box1", 24)))
    said = nowhere.said(state)
    assert len(said) == 1
    busy = settled(of_one, node("box1", shard("a-1/0"), gpus=gpus("box1", 24, used={0: 20})))
    assert nowhere.said(state) is said
    assert nowhere.said(busy) is said
    for other in (
        settled(of_one, node("box1", gpus=gpus("box1", 48))),
        settled(of_one, node("box2", gpus=gpus("box2", 24))),
        settled(of_one, node("box1", gpus=gpus("box1", 24)), node("box2")),
        settled(of_one, node("box1", gpus=gpus("box1", *[24] * 9))),
        settled(catalog(model("wide", profile(gpus=10))), node("box1", gpus=gpus("box1", 24))),
    ):
        before = nowhere.said(state)
        assert nowhere.said(other) is not before
        assert nowhere.said(other) == Nowhere().said(other)


@scenario
async def test_when_an_idle_model_goes_to_sleep_and_when_a_stop_is_due(bench: Bench) -> None:
    bench.catalog.write_text(ON_DEMAND)
    async with bench.running():
        agent = Agent(bench)
        agent.runs(engine())
        agent.runs(engine("gone-1", model="gone", port=18001, state="loading"))
        await agent.register()
        status = await bench.get("/api/v1/status")
        now = bench.clock.moment(bench.clock.now)
        assert status["models"][0]["idle_until"] == now.iso(now.mono + 600)
        (stop,) = status["stops_pending"]
        assert (stop["shard"], stop["reason"]) == ("gone-1/0", "model_removed")
        assert stop["at"] == now.iso(now.mono + 60)
        await bench.later(10)
        assert (await bench.get("/api/v1/status"))["stops_pending"][0]["at"] == stop["at"]


@scenario
async def test_f63_when_every_node_is_silent_the_fault_is_here(bench: Bench) -> None:
    async with bench.running():
        for n in (1, 2):
            agent = Agent(bench, f"box{n}")
            agent.runs(engine(f"alpha-{n}", port=18000 + n))
            await agent.register()
        await bench.later(20)
        status = await bench.get("/api/v1/status")
        assert [n["state"] for n in status["nodes"]] == ["unreachable", "unreachable"]
        assert "none of 2 nodes answers" in status["warnings"][0]


@scenario
async def test_f59_unknown_gpus_and_old_agents_are_warnings(bench: Bench) -> None:
    async with bench.running():
        await Agent(bench, gpus=None).register()
        await Agent(bench, "box2", protocol=0).register()
        first, second = (await bench.get("/api/v1/status"))["warnings"]
        assert "GPUs of box1 are not known" in first
        assert "agent on box2 is too old" in second


@scenario
async def test_a25_the_age_of_an_engine_on_a_silent_node_is_its_own(bench: Bench) -> None:
    """It was not seen by this control: the zero of our clock is no answer to since when it was adopted."""
    async with bench.running():
        agent = Agent(bench)
        agent.runs(engine())
        await agent.register()
    bench.clock.now += 500.0
    async with bench.running():
        began = bench.clock.moment(bench.clock.now).iso(bench.clock.now)
        await bench.later(20)
        status = await bench.get("/api/v1/status")
        (replica,), (node,) = status["replicas"], status["nodes"]
        assert (replica["since"], replica["adopted_at"]) == ("2026-01-01T00:00:00Z", None)
        assert (node["since"], status["started_at"]) == (None, began), "how long, at least"


@scenario
async def test_a66_a_halted_roll_needs_attention_though_the_old_one_serves(bench: Bench) -> None:
    async with bench.running():
        agent = Agent(bench)
        await agent.register()
        await agent.start_one()
        bench.catalog.write_text(CATALOG.replace('"${port}"', '"${port}", --new'))
        await bench.post("/api/v1/catalog")
        await agent.start_one(state="failed")
        await bench.later(0)
        status = await bench.get("/api/v1/status")
        assert status["models"][0]["ready"] == 1
        (warning,) = status["warnings"]
        assert warning.startswith("alpha: roll: halted, the new ")
        assert "llmgw clear alpha" in warning


@scenario
async def test_a_missing_file_is_said_of_a_model_that_nobody_waits_for(bench: Bench) -> None:
    """Plainly unloaded it would look like one that starts when it is asked for."""
    bench.catalog.write_text(ON_DEMAND)
    async with bench.running() as control:
        await Agent(bench).register()
        lost = "model file /m does not exist on box1; put it there"
        (fingerprint,) = learn.fingerprints(control.state, "alpha")
        at_s = bench.clock.now
        found = Failure("i", "main", at_s, lost, fingerprint=fingerprint, absent="box1")
        control.state = replace(control.state, failures={"alpha": (found,)})
        status = await bench.get("/api/v1/status?places=alpha")
        (model,) = status["models"]
        assert (model["state"], model["why"]) == ("unloaded", lost)
        assert f"alpha: {lost}" in status["warnings"]
        assert [(p["takes"], p["why"]) for p in model["places"]] == [("no", lost)]
        bench.clock.now += 1801.0
        status = await bench.get("/api/v1/status")
        assert (status["models"][0]["why"], status["warnings"]) == (None, [])
        held = Refused("box1", f"profile {fingerprint}", bench.clock.now + 60.0, lost)
        again = replace(found, at_s=bench.clock.now)
        control.state = replace(control.state, failures={"alpha": (again,)}, refused=(held,))
        await bench.demand(1, waiting={"alpha": 1})
        await bench.later(1)
        status = await bench.get("/api/v1/status")
        assert status["models"][0]["state"] == "waiting"
        assert lost in status["models"][0]["why"]
        assert status["warnings"] == [], "the line of the model says it"


@scenario
async def test_a67_a_program_that_a_node_lacks_is_said_at_once_and_by_wake_too(
    bench: Bench,
) -> None:
    """Five starts in 36 s went by before `failed` was shown."""
    async with bench.running():
        agent = Agent(bench)
        await agent.register()
        shard = await agent.start_one("pending")
        lost = "engine binary /bin/engine not found on box1 - set the profile's command"
        await agent.tell(replace(shard, state="failed", error=lost))
        await bench.later(1)
        status = await bench.get("/api/v1/status")
        assert status["models"][0]["state"] == "waiting"
        assert lost in status["models"][0]["why"]
        said = await bench.post("/api/v1/models/alpha/wake")
        assert said["state"] == "failed", "not 0, and silence"
        assert lost in said["why"]
        table = await bench.get("/gateway/v1/routes?version=0")
        assert lost in table["models"]["alpha"]["no_room"], "nobody waits for it in vain"


@scenario
async def test_a67_what_backs_off_says_what_is_in_its_way_beside_that(bench: Bench) -> None:
    async with bench.running() as control:
        await Agent(bench).register()
        (fingerprint,) = learn.fingerprints(control.state, "alpha")
        tries = tuple(
            Failure(f"i{n}", "main", bench.clock.now, "exit 1", fingerprint=fingerprint)
            for n in range(3)
        )
        cordoned = {("box1", ""): "by her"}
        control.state = replace(control.state, failures={"alpha": tries}, cordoned=cordoned)
        await bench.demand(1)
        await bench.later(1)
        (model,) = (await bench.get("/api/v1/status"))["models"]
        assert model["state"] == "waiting"
        assert "after 3 failures: exit 1; nor would it find a place now: " in model["why"]
