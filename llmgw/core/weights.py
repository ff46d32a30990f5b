"""Which words of an engine's command name files that it loads, so that an absent one is found before the start.

Of known programs alone: the same word of a program that starts another elsewhere (docker, ssh) names no file of this
node. May not look at a disk.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from llmgw.core import match

#: The word of the refusal.
NO_WEIGHTS = "no_weights"
#: Options whose value is loaded, by program; "" stands for plain arguments. llama.cpp tools/server/README.md; `vllm
#: serve --help=all`; SGLang "Server Arguments".
_VLLM = ("", "--model", "--tokenizer")
_SGLANG = ("--model-path", "--tokenizer-path")
_LOADED: dict[str, tuple[str, ...]] = {
    "llama-server": ("--model", "--mmproj", "--model-draft"),
    "vllm": _VLLM,
    "vllm.entrypoints.openai.api_server": _VLLM,
    "sglang": _SGLANG,
    "sglang.launch_server": _SGLANG,
}
#: With one of these the engine fetches its model, and a path says where to.
_FETCHED = ("--hf-repo", "--hf-file", "--model-url", "-mu", "--docker-repo", "-dr")
_FETCHED_ENV = ("LLAMA_ARG_HF_REPO", "LLAMA_ARG_MODEL_URL", "LLAMA_ARG_DOCKER_REPO")


def named(command: Sequence[str], env: Mapping[str, str]) -> Iterator[str]:
    """As they are written, placeholders and all; what is not a file's path among them is for the caller to see."""
    line = match.line(command)
    fetched = any(o in line.options for o in _FETCHED) or any(name in env for name in _FETCHED_ENV)
    if fetched:
        return
    for option in _LOADED.get(line.program, ()):
        if not option:
            yield from line.words
        yield from (o.value for o in line.options.get(option, ()) if o.value)


def absent(path: str, node: str, profile: str) -> str:
    """The sentence, the same wherever it is found out."""
    return (
        f"model file {path} does not exist on {node}; put it there, or set another one in profile "
        f"{profile} of the catalog"
    )
