"""What an engine says of itself: where it put the model (A69), and how far its load is.

Answers for: one reader per value of the catalog's `compute`; nothing is invented where an engine does not say. The
facts are in the comments of `llmgw/catalog/engines/*.yaml`. May not read a file or ask an engine.
"""

from __future__ import annotations

import re
from typing import Any

import msgspec

from llmgw.core.types.messages import Compute

#: Asked once it is ready: who tells it there and not in its log.
ASK = {"ollama": "/api/ps"}
#: Told to load when it answers: who otherwise loads with the first request.
LOAD = {"ollama": "/api/generate"}

OFFLOADED = re.compile(r"offloaded (\d+)/(\d+) layers to GPU")
#: "CUDA0 model buffer size = 1.00 MiB", CUDA_Host (pinned, not on the card), CPU_Mapped, RPC0[10.0.0.2:18001]
BUFFER = re.compile(r"\b([A-Za-z]+)\d*(_\w+|\[[^]\s]*\])? +model buffer size += +([\d.]+) MiB")
#: What is no device of its own: ggml-cpu has a buffer type for AMX, too.
HOST = frozenset({"cpu", "amx", "host"})
VLLM_DEVICE = re.compile(r"\bdevice_config=(\w+)")
SGLANG_DEVICE = re.compile(r"\bdevice='(\w+)'")
DOTS = re.compile(r"^(\.+)$", re.MULTILINE)
SHARDS = re.compile(r"[Ll]oading [^:\n]*: +(\d{1,3})% Completed")
WHOLE = 100


def parse(kind: str, said: str) -> Compute | None:
    """`kind` is the profile's `compute`, `said` its log or what `ASK` brought; None where that says nothing."""
    match kind:
        case "llama.cpp":
            return _llama_cpp(said)
        case "vllm":
            return _device(VLLM_DEVICE, said)
        case "sglang":
            return _device(SGLANG_DEVICE, said)
        case "ollama":
            return _ollama(said)
        case _:
            return None


def progress(kind: str, log: str) -> float | None:
    """How much of the weights is read, 0 to 1, by the end of its log."""
    match kind:
        case "llama.cpp":
            dots = DOTS.findall(log)
            percent = len(dots[-1]) if dots else None
        case "vllm" | "sglang":
            shards = SHARDS.findall(log)
            percent = int(shards[-1]) if shards else None
        case _:
            return None
    return None if percent is None else min(percent, WHOLE) / WHOLE


def _llama_cpp(log: str) -> Compute | None:
    """The layers line is what it intends: without a GPU it says 3/3 too, over CPU buffers only. The buffers count."""
    layers = OFFLOADED.findall(log)
    buffers = [(name.lower(), how, float(mib)) for name, how, mib in BUFFER.findall(log)]
    away = [(name, mib) for name, how, mib in buffers if name not in HOST and how != "_Host"]
    if not layers and not buffers:
        return None
    gpu, total = map(int, layers[-1]) if layers else (None, None)
    if buffers and not away:
        gpu = gpu and 0
    here = [(name, mib) for name, mib in away if name != "rpc"]
    device = (here or away)[0][0] if away else "cpu" if buffers or gpu == 0 else None
    size = int(sum(mib for _, mib in here) * (1 << 20)) if buffers else None
    return Compute(device=device, layers_gpu=gpu, layers_total=total, gpu_bytes=size)


def _device(pattern: re.Pattern[str], log: str) -> Compute | None:
    found = pattern.search(log)
    if found is None:
        return None
    device = found[1].lower()
    return Compute(device=device, gpu_bytes=0 if device == "cpu" else None)


def _ollama(body: str) -> Compute | None:
    """GET /api/ps: the loaded models, with `size_vram` of each."""
    try:
        plain: Any = msgspec.json.decode(body)
        sizes = [model["size_vram"] for model in plain["models"]]
    except (msgspec.MsgspecError, TypeError, KeyError, RecursionError):
        return None
    if not sizes or not all(isinstance(size, int) and size >= 0 for size in sizes):
        return None
    return Compute(device="gpu" if sum(sizes) else "cpu", gpu_bytes=sum(sizes))
