"""The built-in templates: data that must load, and the facts that were measured on the real servers."""

from __future__ import annotations

import re
from collections.abc import Callable
from importlib.resources import files
from pathlib import Path

import pytest

from llmgw.catalog.engines import built_in
from llmgw.core.types.catalog import Catalog, Profile

NAMES = ["llama.cpp", "ollama", "rpc", "sglang", "tabbyapi", "vllm"]
PAGE = Path(__file__).resolve().parents[2] / "docs" / "engines.md"


def data(name: str) -> str:
    return files("llmgw.catalog.engines").joinpath(f"{name}.yaml").read_text("utf-8")


def section(name: str) -> str:
    """Of docs/engines.md, without its heading."""
    found = re.search(
        rf"^## {re.escape(name)}\b.*?\n(.*?)(?=^## |\Z)", PAGE.read_text(), re.MULTILINE | re.DOTALL
    )
    assert found, f"docs/engines.md has no section on {name}"
    return found[1]


def test_the_names() -> None:
    assert sorted(built_in()) == NAMES


@pytest.mark.parametrize("name", NAMES)
def test_each_loads_by_its_name(name: str, profile: Callable[..., Profile]) -> None:
    nodes = "\nnodes: 2" if name == "rpc" else ""
    got = profile(f"engine: {name}\nweights: /models/m{nodes}")
    assert got.engine == name
    assert got.command
    assert got.health.startswith("/")
    assert got.upstream_key == ("${api_key}" in got.env.values())


@pytest.mark.parametrize("name", NAMES)
def test_each_is_one_file_that_can_be_copied(name: str, loaded: Callable[[str], Catalog]) -> None:
    """With where its facts are from before it, and under `engines:` as it stands."""
    text = data(name)
    assert text.startswith("# ")
    assert re.search(r"\b[Tt]ried\b", text), "does it say what was tried?"
    copied = "".join(f"  {line}\n" for line in text.splitlines())
    loaded(f"version: 1\nengines:\n{copied}models: {{}}\n")


@pytest.mark.parametrize("name", NAMES)
def test_the_page_says_what_is_set(name: str) -> None:
    """docs/engines.md names every variable, the health path and the reader that a template has."""
    engine, page = built_in()[name].values, section(name)
    for word in (*engine.get("env", {}), engine["health"], engine.get("compute", "")):
        assert word in page, f"docs/engines.md says nothing of {word} of {name}"


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
    assert got.env == {"LLAMA_API_KEY": "${api_key}", "LLAMA_ARG_LOG_VERBOSITY": "4"}
    assert (got.health, got.compute, got.upstream_key) == ("/health", "llama.cpp", True)


def test_vllm(profile: Callable[..., Profile]) -> None:
    got = profile("engine: vllm\nweights: /m")
    assert got.command[:3] == ("vllm", "serve", "${weights}")
    assert got.env == {"VLLM_API_KEY": "${api_key}"}
    assert got.compute == "vllm"


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


def test_sglang_is_not_asked_for_a_token_with_every_probe(profile: Callable[..., Profile]) -> None:
    """Its /health generates one, and looks only once a second whether it came: slower than a probe waits."""
    got = profile("engine: sglang\nweights: /m")
    assert got.env["SGLANG_ENABLE_HEALTH_ENDPOINT_GENERATION"] == "false"


def test_ollama_never_unloads_by_itself(profile: Callable[..., Profile]) -> None:
    got = profile("engine: ollama")
    assert (got.env["OLLAMA_KEEP_ALIVE"], got.compute) == ("-1", "ollama")
