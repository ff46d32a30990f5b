"""Where an engine says it put the model (A69), read from its log; nothing is invented where it does not say.

load_tensors: offloaded 49/49 layers to GPU
load_tensors:        CUDA0 model buffer size =  4685.30 MiB
"""

from __future__ import annotations

import re

from llmgw.core.types.messages import Compute

OFFLOADED = re.compile(r"offloaded (\d+)/(\d+) layers to GPU")
BUFFER = re.compile(r"\b([A-Za-z]+)(\d*)(?:_\w+)? +model buffer size += +([\d.]+) MiB")
_HOST = frozenset({"cpu", "host"})


def parse(kind: str, log: str) -> Compute | None:
    """`kind` is the profile's `compute`; None where there is no parser or the log says nothing."""
    return llama_cpp(log) if kind == "llama.cpp" else None


def llama_cpp(log: str) -> Compute | None:
    layers = OFFLOADED.findall(log)
    buffers = [(name.lower(), float(mib)) for name, _, mib in BUFFER.findall(log)]
    on_gpu = [(name, mib) for name, mib in buffers if name not in _HOST]
    if not layers and not buffers:
        return None
    gpu, total = map(int, layers[-1]) if layers else (None, None)
    device = on_gpu[0][0] if on_gpu else "cpu" if gpu == 0 or (buffers and not layers) else None
    size = int(sum(mib for _, mib in on_gpu) * (1 << 20))
    return Compute(
        device=device,
        layers_gpu=gpu,
        layers_total=total,
        gpu_bytes=size if buffers else None,
    )
