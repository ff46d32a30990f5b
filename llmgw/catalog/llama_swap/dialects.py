"""How the engines that llmgw knows by name say on a command line what it wants to know: weights, place, name, GPUs.

Sources: as in llmgw/catalog/engines/. May not know llama-swap.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import PurePosixPath

from msgspec import Struct
from msgspec.structs import replace

from llmgw.catalog.engines import built_in

#: Flag -> what the model is then for.
_KINDS = {
    "--embedding": "embed", "--embeddings": "embed", "--rerank": "rerank", "--reranking": "rerank",
    "--task=embed": "embed", "--task=score": "rerank", "--convert=embed": "embed", "--runner=pooling": "embed",
    "--is-embedding": "embed",
}  # fmt: skip

#: Programs that run the one that follows.
_IN_FRONT = frozenset(
    {"numactl", "nice", "ionice", "taskset", "chrt", "nohup", "setsid", "stdbuf", "uv", "uvx"}
)


class Dialect(Struct, frozen=True, kw_only=True):
    """`said`: options that llmgw gives by itself -> how many values follow, -1 for as many as are no option.

    `lists`: options that name one thing for each GPU, by commas; `counts`: numbers of GPUs that multiply.
    """

    engine: str
    weights: tuple[str, ...]
    said: Mapping[str, int]
    counts: tuple[str, ...] = ()
    lists: tuple[str, ...] = ()
    on_cpu: tuple[str, ...] = ()
    #: in front of the weights, "" where they stand alone
    flag: str = ""

    def command(self, head: Sequence[str], *, weights: bool) -> list[str]:
        """`head` with what the built-in engine's command has after its own program."""
        words = list(built_in()[self.engine].values["command"])
        rest = words[words.index("${weights}") + 1 :]
        named = ([self.flag] if self.flag else []) + ["${weights}"]
        return [*head, *(named if weights else []), *rest]


_COMMON = {"--host": 1, "--port": 1, "--api-key": 1}
_NAMED = _COMMON | {"--served-model-name": -1}
#: GPUs are numbered anew for each engine, so words that choose one are llmgw's.
LLAMA = Dialect(
    engine="llama.cpp",
    weights=("-m", "--model"),
    said=_COMMON | {"--alias": 1, "-a": 1, "-mg": 1, "--main-gpu": 1, "-dev": 1, "--device": 1},
    lists=("-ts", "--tensor-split", "-dev", "--device"),
    on_cpu=("-ngl=0", "--gpu-layers=0", "--n-gpu-layers=0", "-dev=none", "--device=none"),
    flag="--model",
)
VLLM = Dialect(
    engine="vllm",
    weights=("--model",),
    said=_NAMED,
    counts=("-tp", "--tensor-parallel-size", "-pp", "--pipeline-parallel-size", "-dp", "--data-parallel-size"),
    on_cpu=("--device=cpu",),
)  # fmt: skip
#: Before `vllm serve` it was a module, which takes no word without an option.
VLLM_MODULE = Dialect(
    engine="vllm", weights=VLLM.weights, said=VLLM.said, counts=VLLM.counts, on_cpu=VLLM.on_cpu, flag="--model"
)  # fmt: skip
SGLANG = Dialect(
    engine="sglang",
    weights=("--model-path", "--model"),
    said=_NAMED,
    counts=("--tp", "--tp-size", "--tensor-parallel-size", "--pp", "--pp-size", "--pipeline-parallel-size",
            "--dp", "--dp-size", "--data-parallel-size"),
    on_cpu=("--device=cpu",),
    flag="--model-path",
)  # fmt: skip


def spoken(words: Sequence[str]) -> tuple[Dialect | None, int]:
    """The dialect of a command, and how many of its words are the program with what runs it (`numactl`, `uv run`)."""
    first = PurePosixPath(words[0]).name
    wrapped = first in _IN_FRONT or first.startswith("python")
    for i, word in enumerate(words if wrapped else words[:1]):
        name, after = PurePosixPath(word).name, list(words[i + 1 : i + 2])
        if name.startswith("llama-server"):
            return LLAMA, i + 1
        if name in ("vllm", "sglang") and after == ["serve"]:
            return (VLLM if name == "vllm" else SGLANG), i + 2
        if word == "-m" and after == ["vllm.entrypoints.openai.api_server"]:
            return VLLM_MODULE, i + 2
        if word == "-m" and after == ["sglang.launch_server"]:
            return SGLANG, i + 2
    return None, 0


def of_image(image: str) -> Dialect | None:
    """Images of these engines take their arguments as the program does. Of those the weights are a path inside it."""
    known = (("vllm", VLLM), ("sglang", SGLANG), ("llama.cpp", LLAMA), ("llama-server", LLAMA))
    found = next((d for word, d in known if word in image), None)
    return replace(found, weights=()) if found else None


class Read(Struct):
    """`gpus` None where nothing says how many; `dropped` in the words of the command line, without secrets."""

    weights: str
    args: list[str]
    dropped: list[str]
    gpus: int | None
    kind: str


def read(dialect: Dialect, words: Sequence[str]) -> Read:
    """The arguments of an engine, taken apart."""
    found = Read("", [], [], None, "")
    counts, left = [], list(words)
    if dialect is VLLM and left and not left[0].startswith("-"):
        found.weights = left.pop(0)
    while left:
        word = left.pop(0)
        option, joined, value = word.partition("=") if word.startswith("-") else (word, "", "")
        nearest = value if joined else (left[0] if left else "")
        found.kind = _KINDS.get(option) or _KINDS.get(f"{option}={nearest}") or found.kind
        if f"{option}={nearest}" in dialect.on_cpu:
            found.gpus = 0
        elif option in dialect.lists:
            counts.append(len(nearest.split(",")))
        elif option in dialect.counts and nearest.isdigit():
            counts.append(int(nearest))
        many = 1 if option in dialect.weights else dialect.said.get(option, 0)
        values = [value] if joined else _values(left, many)
        if option in dialect.weights:
            found.weights = " ".join(values)
        elif option in dialect.said:
            shown = "***" if option == "--api-key" else " ".join(values)
            found.dropped.append(f"{option} {shown}".rstrip())
        else:
            found.args.append(word)
    if counts and found.gpus is None:
        found.gpus = max(counts) if dialect.lists else math.prod(counts)
    return found


def _values(left: list[str], many: int) -> list[str]:
    """Takes the values of an option away from `left`; -1: up to the next option."""
    end = (
        next((i for i, w in enumerate(left) if w.startswith("-")), len(left)) if many < 0 else many
    )
    values, left[:] = left[:end], left[end:]
    return values
