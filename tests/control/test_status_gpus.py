"""GPUs in `llmgw.status/1`: what is wrong with them, and who holds their memory besides (A70, F59, F72, F73)."""

from msgspec.structs import replace

from llmgw.core.types.messages import Capacity, Foreign, Gpu, Resources
from llmgw.render import page
from llmgw.render import status as shown_status
from tests.control.bench import CATALOG, Agent, Bench, engine, scenario

GIB = 1 << 30
GPU = Gpu(uuid="GPU-0", name="NVIDIA GeForce RTX 3090", memory_bytes=24 * GIB)


def lines(status: dict[str, object]) -> str:
    return page.plain(shown_status.page(status, wide=True, now_s=0.0))


@scenario
async def test_a_lost_gpu_and_one_with_errors_are_told(bench: Bench) -> None:
    async with bench.running():
        lost = replace(GPU, healthy=False, lost=True, trouble="it does not answer any more")
        bad = replace(GPU, uuid="GPU-1", index=1, healthy=False, trouble="2 memory errors")
        warned = replace(GPU, uuid="GPU-2", index=2, trouble="rows are remapped at its next reset")
        await Agent(bench, gpus=(lost, bad, warned)).register()
        status = await bench.get("/api/v1/status")
        assert [w for w in status["warnings"] if w.startswith("GPU")] == [
            "GPU 0 of box1 is lost: it does not answer any more",
            "GPU 1 of box1 is not used for new work: 2 memory errors",
            "GPU 2 of box1 is ok: rows are remapped at its next reset",
        ]
        shown = [(g["lost"], g["healthy"], g["trouble"]) for g in status["nodes"][0]["gpus"]]
        assert shown[0] == (True, False, "it does not answer any more")
        assert "0 RTX 3090 (lost)" in lines(status)
        assert "1 RTX 3090 (not healthy)" in lines(status)
        assert "2 RTX 3090 (" not in lines(status)


@scenario
async def test_a70_f73_who_holds_memory_besides(bench: Bench) -> None:
    async with bench.running():
        desktop = Foreign(pid=9, gpu="GPU-0", memory_bytes=GIB, command="Xorg")
        ours = Foreign(pid=4711, gpu="GPU-0", memory_bytes=3 * GIB, shard="alpha-1/0")
        agent = Agent(bench, gpus=(GPU,), foreign=(desktop, ours))
        agent.runs(engine(gpus=("GPU-0",), resources=Resources(gpu_memory_bytes=10 * GIB)))
        await agent.register()
        status = await bench.get("/api/v1/status")
        (node,) = status["nodes"]
        assert [(f["pid"], f["memory"], f["shard"]) for f in node["foreign"]] == [
            (9, GIB, None),
            (4711, 3 * GIB, "alpha-1/0"),
        ]
        assert node["gpus"][0]["foreign"] == 4 * GIB
        said = "alpha-1/0 on box1 holds 3.0 GiB of GPU 0 beyond what it was given"
        assert [w.startswith(said) for w in status["warnings"]].count(True) == 1
        assert "4.0 GiB" in lines(status)
        plan = await bench.get("/api/v1/plan")
        assert [f["pid"] for f in plan["foreign"]] == [9]


@scenario
async def test_a1_an_engine_of_a_node_that_is_no_more_is_warned_of_once(bench: Bench) -> None:
    """It is in no other list."""
    async with bench.running():
        old = [Foreign(pid=8, gpu=gpu, port=9001, why="is node old's") for gpu in ("G-0", "G-1")]
        agent = Agent(bench, gpus=(GPU,), foreign=tuple(old))
        await agent.register()
        status = await bench.get("/api/v1/status")
        assert status["warnings"].count("pid 8 on box1 is node old's") == 1
        assert {f["why"] for f in status["nodes"][0]["foreign"]} == {"is node old's"}
        assert (await bench.get("/api/v1/plan"))["foreign"][0]["why"] == "is node old's"


@scenario
async def test_f59_devices_that_are_not_known_are_told_with_the_reason(bench: Bench) -> None:
    async with bench.running():
        agent = Agent(bench, gpus=None, gpus_error="NVML: Unknown Error")
        await agent.register()
        status = await bench.get("/api/v1/status")
        assert "the GPUs of box1 are not known: NVML: Unknown Error" in status["warnings"]


@scenario
async def test_a62_limits_that_do_not_keep_to_the_budget_of_the_node_are_told(bench: Bench) -> None:
    """Placement counts declared watts; only the cards' own limits hold an engine to them."""
    cards = [replace(GPU, uuid=f"GPU-{i}", index=i, power_limit_w=350.0) for i in range(2)]
    lost = replace(cards[1], healthy=False, lost=True)
    said = (
        "the 2 GPUs of box1 may draw 700 W by their power limits, and the node is to draw 600 W "
        "(--power-w): lower their limits, or raise the figure"
    )
    async with bench.running():
        for gpus, budget_w, told in (
            (tuple(cards), 600.0, [said]),
            (tuple(cards), 700.0, []),
            (tuple(cards), None, []),
            ((cards[0], lost), 600.0, []),
            ((cards[0], replace(cards[1], power_limit_w=None)), 600.0, []),
        ):
            await Agent(bench, gpus=gpus, capacity=Capacity(power_w=budget_w)).register()
            status = await bench.get("/api/v1/status")
            assert [w for w in status["warnings"] if "power limits" in w] == told


@scenario
async def test_f61_status_says_what_becomes_of_engines_on_a_silent_node(bench: Bench) -> None:
    bench.catalog.write_text(CATALOG.replace("    aliases", "    lost_after: 30s\n    aliases"))
    async with bench.running():
        agent = Agent(bench, gpus=(GPU,))
        agent.runs(engine())
        await agent.register()
        other = Agent(bench, node="box2")
        await other.register()
        for seconds, said in ((20, "counts as lost in "), (30, "counts as lost, replaced where")):
            await bench.passes(seconds, other)
            status = await bench.get("/api/v1/status")
            begins = f"box1 is silent, what it runs is left alone: alpha-1 ({said}"
            assert [w.startswith(begins) for w in status["warnings"]].count(True) == 1
        assert "start" in bench.orders(other)
