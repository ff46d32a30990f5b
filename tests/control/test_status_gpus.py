"""GPUs in `llmgw.status/1`: what is wrong with them, and who holds their memory besides (A70, F59, F72, F73)."""

from msgspec.structs import replace

from llmgw.core.types.messages import Foreign, Gpu, Resources
from llmgw.render import page
from llmgw.render import status as shown_status
from tests.control.bench import Agent, Bench, engine, scenario

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
async def test_f59_devices_that_are_not_known_are_told_with_the_reason(bench: Bench) -> None:
    async with bench.running():
        agent = Agent(bench, gpus=None, gpus_error="NVML: Unknown Error")
        await agent.register()
        status = await bench.get("/api/v1/status")
        assert "the GPUs of box1 are not known: NVML: Unknown Error" in status["warnings"]
