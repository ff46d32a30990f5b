"""The built-in templates: data that must load, and the facts that were measured on the real servers."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from llmgw.catalog.engines import built_in
from llmgw.core.types.catalog import Profile


def test_the_names() -> None:
    assert sorted(built_in()) == ["llama.cpp", "ollama", "rpc", "sglang", "tabbyapi", "vllm"]


@pytest.mark.parametrize("name", sorted(built_in()))
def test_each_loads_by_its_name(name: str, profile: Callable[..., Profile]) -> None:
    nodes = "\nnodes: 2" if name == "rpc" else ""
    got = profile(f"engine: {name}\nweights: /models/m{nodes}")
    assert got.engine == name
    assert got.command
    assert got.health.startswith("/")
    assert got.upstream_key == ("${api_key}" in got.env.values())


def test_llama_cpp(profile: Callable[..., Profile]) -> None:
    got = profile("engine: llama.cpp\nweights: /m.gguf\nargs: [-c, 4096]")
    assert got.command == (
        *(
            "llama-server",
            "--model",
            "${weights}",
            "--host",
            "${host}",
            "--port",
            "${port}",
            "--alias",
            "${model}",
        ),
        *("-c", "4096"),
    )
    assert got.env == {"LLAMA_API_KEY": "${api_key}"}
    assert (got.health, got.compute, got.upstream_key) == ("/health", "llama.cpp", True)


def test_vllm(profile: Callable[..., Profile]) -> None:
    got = profile("engine: vllm\nweights: /m")
    assert got.command[:3] == ("vllm", "serve", "${weights}")
    assert got.env == {"VLLM_API_KEY": "${api_key}"}


def test_rpc_workers_are_up_first_and_on_the_fabric(profile: Callable[..., Profile]) -> None:
    got = profile("engine: rpc\nweights: /m\nnodes: 2")
    assert got.start_order == "workers_first"
    assert got.worker_command == (
        "ggml-rpc-server",
        "--host",
        "${fabric_addr}",
        "--port",
        "${port}",
    )
    assert got.command[-2:] == ("--rpc", "${workers}")
