"""Which words of a command name files that the engine loads."""

from __future__ import annotations

import pytest

from llmgw.core import weights

LLAMA = ("/opt/llama-server", "--host", "${host}")


@pytest.mark.parametrize(
    ("command", "named"),
    [
        ((*LLAMA, "--model", "/m/a.gguf"), ["/m/a.gguf"]),
        ((*LLAMA, "-m", "/m/a.gguf", "-mm", "/m/p.gguf"), ["/m/a.gguf", "/m/p.gguf"]),
        ((*LLAMA, "--model=/m/a.gguf", "-md", "/m/d.gguf"), ["/m/a.gguf", "/m/d.gguf"]),
        ((*LLAMA, "--model", "${weights}"), ["${weights}"]),
        ((*LLAMA, "-m"), []),
        ((*LLAMA, "-hf", "org/repo", "-m", "/m/to.gguf"), []),
        ((*LLAMA, "--model-url", "https://x/a.gguf", "-m", "/m/to.gguf"), []),
        (("vllm", "serve", "/m/big", "--port", "1"), ["serve", "/m/big"]),
        (("vllm", "serve", "org/big", "--tokenizer", "/m/t"), ["serve", "org/big", "/m/t"]),
        (("python3", "-m", "vllm.entrypoints.openai.api_server", "--model", "/m/b"), ["/m/b"]),
        (("sglang", "serve", "--model-path", "/m/s"), ["/m/s"]),
        (("docker", "run", "llama.cpp", "--model", "/models/a.gguf"), []),
        (("ssh", "box9", "llama-server", "-m", "/m/a.gguf"), []),
        ((), []),
    ],
)
def test_what_a_known_program_loads(command: tuple[str, ...], named: list[str]) -> None:
    assert list(weights.named(command, {})) == named


def test_where_it_is_fetched_to_may_be_told_by_the_environment() -> None:
    command = (*LLAMA, "-m", "/m/to.gguf")
    assert list(weights.named(command, {"LLAMA_ARG_HF_REPO": "org/repo"})) == []


def test_the_sentence_says_where_it_is_not_and_what_to_try() -> None:
    assert weights.absent("/m/a.gguf", "box1", "q4") == (
        "model file /m/a.gguf does not exist on box1; put it there, or set another one in profile "
        "q4 of the catalog"
    )
