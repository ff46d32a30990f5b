"""Where the model was put, out of a llama.cpp log; silence stays silence."""

import pytest

from llmgw.agent.compute import parse
from llmgw.core.types.messages import Compute

GPU_LOG = """
load_tensors: offloading 48 repeating layers to GPU
load_tensors: offloaded 49/49 layers to GPU
load_tensors:        CUDA0 model buffer size =  1024.00 MiB
load_tensors:        CUDA1 model buffer size =  1024.00 MiB
load_tensors:   CPU_Mapped model buffer size =   166.92 MiB
"""
MIB = 1 << 20


@pytest.mark.parametrize(
    ("log", "said"),
    [
        (GPU_LOG, Compute(device="cuda", layers_gpu=49, layers_total=49, gpu_bytes=2048 * MIB)),
        (
            "load_tensors: offloaded 0/31 layers to GPU\nload_tensors: CPU model buffer size = 87.1 MiB",
            Compute(device="cpu", layers_gpu=0, layers_total=31, gpu_bytes=0),
        ),
        (
            "load_tensors: CPU_Mapped model buffer size = 87.1 MiB",
            Compute(device="cpu", gpu_bytes=0),
        ),
        ("offloaded 5/31 layers to GPU", Compute(layers_gpu=5, layers_total=31)),
        ("srv  init: model loaded", None),
    ],
)
def test_llama_cpp(log: str, said: Compute | None) -> None:
    assert parse("llama.cpp", log) == said
    assert parse("", log) is None
