"""The first catalog as a text with comments, for what was found. May not look at the box."""

from __future__ import annotations

import re

from llmgw.catalog.engines import with_program
from llmgw.catalog.first.look import Box, Weights

GIB = 1 << 30
#: Asked of a model that could do more: what most chats need, and what most cards bear.
CONTEXT = 8192
#: What an engine takes beside weights and cache: CUDA's context and the compute buffers. A guess, and said to be one.
OVERHEAD_BYTES = GIB
_BAD = re.compile(r"[^a-z0-9._-]+")
_QUANT = re.compile(r"[-.](I?Q\d[A-Za-z0-9_]*|BF16|F16|F32|MXFP4)$", re.IGNORECASE)

_HEAD = """\
# yaml-language-server: $schema=./catalog.schema.json
#
# Written by `llmgw init` for what it found on this box{where}.
# Each model below wakes with its first request and sleeps ten minutes after the last one.
#
#     llmgw catalog check FILE     says every mistake with its line
#     llmgw up --catalog FILE      runs it on this box
#
# An editor that speaks YAML completes and checks as you type, with what its first line names beside this file:
# llmgw catalog schema > catalog.schema.json
#
# Memory is an ESTIMATE: the size of the weights, the cache for the context given, and {overhead} beside. `llmgw status
# -o wide` shows the most that an engine has really held (GPU PEAK, HOST PEAK); put that here. Without gpu_memory a
# model has its GPUs to itself.
version: 1
"""
_EXAMPLE = """
# No weights were found{where}. `llmgw init --models DIR` looks in a folder of yours; or fill this one in.
models:
  my-model:                            # the name that clients ask for
    aliases: [default]                 # and another one for it
    context: 8192                      # told to clients; the same as -c below
    profiles:
      - name: main
        engine: llama.cpp
        weights: /path/to/model.gguf   # FILL IN: a .gguf file on this box
        args: [{args}]
{memory}
"""
_ON_GPU = """\
        gpus: 1
        gpu_memory: 8GiB               # FILL IN: the file's size and about 1 GiB; without it the GPU is its alone"""
_ON_CPU = """\
        host_memory: 4GiB              # FILL IN: the file's size and about 1 GiB
        # On a GPU, in place of host_memory, and with -ngl, 99 among the args:
        # gpus: 1
        # gpu_memory: 8GiB"""
_DEFAULT = "    aliases: [default]   # clients may ask for it by this name too"
_OLLAMA = """
# ollama is here ({program}). It serves what was pulled into its own store; a model's name is Ollama's:
#  llama3.2:
#    profiles:
#      - name: main
#        engine: ollama
#        gpus: {gpus}
"""


def written(box: Box, gpu_bytes: tuple[int, ...]) -> str:
    """`gpu_bytes`: the memory of each GPU of this box."""
    where = f" below {', '.join(box.folders)}" if box.folders else ""
    usable = [w for w in box.weights if not w.trouble]
    head = _HEAD.format(where=where, overhead=_gib(OVERHEAD_BYTES)) + _engines(box, usable)
    names: set[str] = set()
    named = [(_name(w, names), w) for w in usable]
    chats = [name for name, w in named if w.header and w.header.kind == "chat"]
    default = "" if "default" in names else next(iter(chats), "")
    models = "".join(
        _model(box, w, name, gpu_bytes, alias=_DEFAULT if name == default else "")
        for name, w in named
    )
    none = " {}" if all(line.startswith("  #") for line in models.splitlines()) else ""
    body = f"\nmodels:{none}\n{models}" if usable else _example(where, gpu_bytes)
    return f"{head}{body}{_ollama(box, gpu_bytes)}{_left_out(box)}"


def _example(where: str, gpu_bytes: tuple[int, ...]) -> str:
    args, memory = ("-c, 8192, -ngl, 99", _ON_GPU) if gpu_bytes else ("-c, 8192", _ON_CPU)
    return _EXAMPLE.format(where=where, args=args, memory=memory)


def _ollama(box: Box, gpu_bytes: tuple[int, ...]) -> str:
    program = box.programs.get("ollama")
    shown = _one_line(program or "")
    return _OLLAMA.format(program=shown, gpus=1 if gpu_bytes else 0) if program else ""


def _engines(box: Box, usable: list[Weights]) -> str:
    """Where the program is, also of one on the PATH: the agent's PATH may be another one."""
    wanted = {"llama.cpp" if w.header else "vllm" for w in usable} or {"llama.cpp"}
    parts = [_engine(e, box.programs[e]) for e in sorted(wanted & box.programs.keys())]
    if "llama.cpp" in wanted - box.programs.keys():
        parts.append(_NO_SERVER + _engine("llama.cpp", "/path/to/llama-server"))
    return (
        "\nengines:   # as they are built in, with the programs of this box\n" + "".join(parts)
        if parts
        else ""
    )


_NO_SERVER = """\
  # FILL IN: no llama-server was found, neither on the PATH nor where it usually lies. Install llama.cpp and write its
  # place here; or take this out once it is on the PATH of the agent.
"""


def _engine(name: str, program: str) -> str:
    words = [
        _word(program),
        *(f'"{w}"' if "$" in w else w for w in with_program(name, program)["command"][1:]),
    ]
    first, rest = ", ".join(words[:-2]), ", ".join(words[-2:])
    return f"  {name}:\n    command: [{first},\n              {rest}]\n"


def _name(weights: Weights, taken: set[str]) -> str:
    """Short, of small letters, without the quantisation; that stays where it tells two apart."""
    whole = _BAD.sub("-", weights.name.lower()).strip("-._")[:63] or "model"
    short = _BAD.sub("-", _QUANT.sub("", weights.name).lower()).strip("-._")[:63] or whole
    name, n = (short if short not in taken else whole), 2
    while name in taken:
        name, n = f"{whole[:58]}-{n}", n + 1
    taken.add(name)
    return name


def _model(box: Box, w: Weights, name: str, gpu_bytes: tuple[int, ...], *, alias: str) -> str:
    lines = [f"  {name}:"]
    if w.header is None:
        return _safetensors(box, w, lines, gpu_bytes)
    context = min(CONTEXT, w.header.trained_context or CONTEXT)
    cache = w.header.kv_bytes_per_token * context
    need = w.size_bytes + cache + OVERHEAD_BYTES
    says = f"{w.header.name or w.name}, {w.header.architecture}"
    trained = f", trained for {w.header.trained_context}" if w.header.trained_context else ""
    lines.append(
        f"    # {_one_line(says)}: {_gib(w.size_bytes)} of weights, {_gib(cache)} of cache{trained}"
    )
    if alias:
        lines.append(alias)
    if w.header.kind != "chat":
        lines.append(f"    kind: {w.header.kind}")
    lines += [
        f"    context: {context}",
        "    profiles:",
        "      - name: main",
        "        engine: llama.cpp",
    ]
    lines.append(f"        weights: {_word(w.path)}")
    memory = _memory(need, gpu_bytes)
    args = _args(w, context) + (["-ngl", "99"] if "gpus" in memory[0] else [])
    lines.append(f"        args: [{', '.join(args)}]")
    lines += memory
    return "\n".join(lines) + "\n"


def _args(w: Weights, context: int) -> list[str]:
    assert w.header is not None
    args = ["-c", str(context)]
    if w.projector:
        args += ["--mmproj", _word(w.projector)]
    if w.header.kind == "embed":
        args.append("--embeddings")
    if w.header.kind == "rerank":
        args.append("--reranking")
    return args


def _memory(need: int, gpu_bytes: tuple[int, ...]) -> list[str]:
    """One GPU where one is enough, as many as it takes, else the CPU."""
    if gpu_bytes and need <= max(gpu_bytes):
        return ["        gpus: 1", f"        gpu_memory: {_gib(need)}   # estimated"]
    if gpu_bytes and need <= sum(gpu_bytes):
        return [
            f"        gpus: {len(gpu_bytes)}   # estimated {_gib(need)}, more than one card has",
        ]
    why = f"more than the GPUs' {_gib(sum(gpu_bytes))}" if gpu_bytes else "no GPU was found"
    return [f"        host_memory: {_gib(need)}   # estimated; on the CPU, {why}"]


def _safetensors(box: Box, w: Weights, lines: list[str], gpu_bytes: tuple[int, ...]) -> str:
    """A card alone: vLLM plans its memory by a share of it."""
    lines.append(f"    # {_one_line(w.name)}: {_gib(w.size_bytes)} of safetensors")
    lines += [
        "    profiles:",
        "      - name: main",
        "        engine: vllm",
        f"        weights: {_word(w.path)}",
    ]
    lines.append(f"        args: [--max-model-len, {CONTEXT}]")
    gpus = max(len(gpu_bytes), 1) if gpu_bytes and w.size_bytes > max(gpu_bytes) else 1
    lines.append(
        f"        gpus: {gpus}   # whole: vLLM takes a share of each card, --gpu-memory-utilization"
    )
    if "vllm" in box.programs:
        return "\n".join(lines) + "\n"
    commented = "\n".join(f"  # {line[2:]}" for line in lines)
    return f"  # vllm was not found; install it and take the # away:\n{commented}\n"


def _left_out(box: Box) -> str:
    bad = [w for w in box.weights if w.trouble]
    lines = [f"# left out: {_one_line(w.path)}: {_one_line(w.trouble)}" for w in bad]
    return ("\n" + "\n".join(lines) + "\n") if lines else ""


def _gib(size: int) -> str:
    """Up to a tenth of a GiB, never down: a reservation that is too small is worse."""
    tenths = -(-size * 10 // GIB)
    return f"{tenths / 10:g}GiB"


def _one_line(text: str) -> str:
    """A header's text is anybody's: no line of ours may end in it."""
    return "".join(c if c.isprintable() else "?" for c in text)[:100]


def _word(text: str) -> str:
    """A path as a YAML scalar, whatever is in it; `$` would be a placeholder."""
    text = text.replace("$", "$$")
    plain = re.fullmatch(r"[A-Za-z0-9/._+-]+", text) and not text.startswith("-")
    return text if plain else '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'
