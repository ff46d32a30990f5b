"""`llmgw import llama-swap`: what each key of another tool's file becomes, and that none is lost without a word."""

from __future__ import annotations

import pytest

from llmgw import catalog as catalogs
from llmgw.catalog import llama_swap as swap
from llmgw.catalog.llama_swap import text
from llmgw.errors import CatalogError

WHOLE = """
healthCheckTimeout: 5
logLevel: info
globalTTL: 300
macros:
  "server": >
    /opt/llama/llama-server-b1
    --port ${PORT}
  ctx: 4096
  home: "${env.HOME}/models"
apiKeys: [sk-hunter2]
models:
  chat:
    macros: {ctx: 16384}
    cmd: |
      # a comment
      ${server}
      --model ${home}/chat.gguf --api-key sk-hunter3
      --ctx-size ${ctx}
    env: ["CUDA_VISIBLE_DEVICES=0,1", "FOO=bar=baz", "CUDA_DEVICE_ORDER=PCI_BUS_ID"]
    aliases: [gpt-4o-mini]
    checkEndpoint: /v1/models
    ttl: 60
    filters: {stripParams: temperature}
    concurrencyLimit: 4
    capabilities: {context: 32000, in: [text]}
  "a/b:7b": {cmd: "llama-server --port ${PORT} -m b.gguf -ngl 0", unlisted: true}
  hub: {cmd: "llama-server --port ${PORT} -hf x/y-GGUF", ttl: 0, unloadTimeout: 9}
  boxed:
    cmd: >
      docker run --rm --name ${MODEL_ID} --gpus all -p ${PORT}:8080 -v /m:/models -e A=1
      ghcr.io/x/y:server --model /models/q.gguf --port 8080
    cmdStop: docker stop ${MODEL_ID}
  other: {cmd: "/opt/tts --listen ${PORT}", checkEndpoint: none}
  broken: {cmd: "llama-server 'unclosed"}
  mystery: {cmd: "llama-server -m ${nosuch} --port ${PORT}", wings: 2}
groups:
  forever: {persistent: true, members: [hub]}
  rest: {members: [chat]}
hooks: {on_startup: {preload: [chat]}}
routing: {scheduler: {settings: {fifo: {priority: {chat: 7}}}}}
peers: {far: {proxy: "http://x", models: [y]}}
"""


@pytest.fixture(scope="module")
def found() -> swap.Found:
    return swap.converted(*text.read("config.yaml", WHOLE))


def fate(found: swap.Found, key: str) -> swap.Fate:
    return next(f for f in found.fates if f.key == key)


def test_a_llama_server_becomes_an_engine_weights_and_arguments(found: swap.Found) -> None:
    engine = found.catalog["engines"]["llama-server-b1"]
    assert engine["command"][0] == "/opt/llama/llama-server-b1"
    profile = found.catalog["models"]["chat"]["profiles"][0]
    assert profile["engine"] == "llama-server-b1"
    assert profile["weights"] == "${env.HOME}/models/chat.gguf"
    assert profile["args"] == ["--ctx-size", "16384"], (
        "the model's own macro wins; host, port and key are ours"
    )
    assert (profile["gpus"], profile["env"]) == (2, {"FOO": "bar=baz"})
    assert profile["health"] == "/v1/models"


def test_how_long_a_model_stays(found: swap.Found) -> None:
    models = found.catalog["models"]
    assert models["chat"]["scaling"]["idle_timeout"] == "60s"
    assert models["hub"]["scaling"]["idle_timeout"] == "never", "ttl 0 is never"
    assert models["a-b-7b"]["scaling"]["idle_timeout"] == "300s", "the file's globalTTL"


def test_a_name_that_is_no_path_stays_as_an_alias(found: swap.Found) -> None:
    model = found.catalog["models"]["a-b-7b"]
    assert model["aliases"] == ["a/b:7b"]
    assert model["listed"] is False
    assert "gpus" not in model["profiles"][0], "-ngl 0 is the CPU"


def test_a_container_listens_where_it_is_told(found: swap.Found) -> None:
    profile = found.catalog["models"]["boxed"]["profiles"][0]
    assert (profile["launcher"], profile["image"]) == ("docker", "ghcr.io/x/y:server")
    assert profile["command"] == ["--model", "/models/q.gguf", "--port", "${port}"]
    assert (profile["mounts"], profile["env"], profile["gpus"]) == (["/m:/models"], {"A": "1"}, 1)


def test_groups_hooks_and_priorities(found: swap.Found) -> None:
    models = found.catalog["models"]
    assert models["hub"]["scaling"]["min"] == 1
    assert models["chat"]["scaling"]["min"] == 1
    assert models["chat"]["scaling"]["priority"] == 7
    assert fate(found, "groups.rest").became == ""


def test_every_key_is_named_with_its_line_and_a_reason(found: swap.Found) -> None:
    assert all(f.why for f in found.fates if not f.became)
    assert (
        fate(found, "models.chat.filters").line
        == WHOLE.splitlines().index("    filters: {stripParams: temperature}") + 1
    )
    for key in ("logLevel", "apiKeys", "peers", "models.mystery.wings", "models.boxed.cmdStop"):
        assert fate(found, key).became == "", key
    assert "wings" not in str(found.catalog)
    given = text.read("c", WHOLE)[0]
    named = {f.key for f in found.fates}
    for key in given:
        assert key == "models" or any(n == key or n.startswith(f"{key}.") for n in named), key
    for name, model in given["models"].items():
        for key in model:
            if key != "macros":
                assert any(n.startswith(f"models.{name}.{key}") for n in named), (name, key)


def test_what_cannot_be_started_is_left_out_and_said(found: swap.Found) -> None:
    assert "broken" not in found.catalog["models"]
    assert "No closing quotation" in fate(found, "models.broken.cmd").why
    assert any("${nosuch} is no macro" in f.why for f in found.fates)


def test_no_secret_is_told(found: swap.Found) -> None:
    assert "hunter" not in str(found.catalog) + str(found.fates)


def test_it_is_a_catalog(found: swap.Found) -> None:
    del found.catalog["models"]["mystery"]
    loaded = catalogs.load_sources({"c.yaml": text.written(found.catalog, "made")})
    assert set(loaded.models) == {"chat", "a-b-7b", "hub", "boxed", "other"}


@pytest.mark.parametrize("bad", ["[1, 2]", "a: [", "", "models: {a: {cmd: &x [*x]}}"])
def test_what_is_no_configuration_is_said(bad: str) -> None:
    with pytest.raises(CatalogError, match=r"config\.yaml"):
        swap.converted(*text.read("config.yaml", bad))


@pytest.mark.parametrize(
    "bad",
    ["models: 7", "models: {a: 7}", "models: {a: {cmd: x, ttl: soon}}", "groups: [1]", "macros: 3"],
)
def test_another_shape_is_an_error_not_a_crash(bad: str) -> None:
    with pytest.raises(CatalogError):
        swap.converted(*text.read("config.yaml", bad))


def test_a_macro_that_names_itself_ends() -> None:
    given = 'macros: {a: "${a} ${a}"}\nmodels: {m: {cmd: "x ${a} --port ${PORT}"}}\n'
    found = swap.converted(*text.read("c", given))
    assert len(str(found.catalog)) < 1_000_000
