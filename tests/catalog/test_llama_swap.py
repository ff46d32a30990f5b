"""`llmgw import llama-swap`: what each key of another tool's file becomes, and that none is lost without a word."""

from __future__ import annotations

from typing import Any

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


def profile_of(cmd: str, **more: object) -> tuple[dict[str, Any], dict[str, Any]]:
    """The model and its profile, as the catalog that is written of it has them."""
    found = swap.converted({"models": {"m": {"cmd": cmd, **more}}}, {})
    loaded = catalogs.load_sources({"c.yaml": text.written(found.catalog, "made")})
    return catalogs.show(loaded)["models"][0], found.catalog["models"]["m"]["profiles"][0]


NAMED = ["--served-model-name", "${model}", "--host", "${host}", "--port", "${port}"]
LLAMA = [*NAMED[2:], "--alias", "${model}"]


@pytest.mark.parametrize(
    ("cmd", "engine", "weights", "command", "gpus"),
    [
        (
            "vllm serve Q/Qwen3 --port ${port} --served-model-name a b --api-key sk-hunter4 -tp 2 -pp=2 --x y",
            "vllm", "Q/Qwen3", ["vllm", "serve", "${weights}", *NAMED, "-tp", "2", "-pp=2", "--x", "y"], 4,
        ),
        (
            "/v/bin/python -m vllm.entrypoints.openai.api_server --model /m --port ${port}",
            "vllm", "/m",
            ["/v/bin/python", "-m", "vllm.entrypoints.openai.api_server", "--model", "${weights}", *NAMED], 1,
        ),
        (
            "uv run vllm serve /m --host=0.0.0.0 --device cpu",
            "vllm", "/m", ["uv", "run", "vllm", "serve", "${weights}", *NAMED, "--device", "cpu"], 0,
        ),
        (
            "python3 -m sglang.launch_server --model-path /m --port ${port} --tp 2 --dp 2",
            "sglang", "/m", ["python3", "-m", "sglang.launch_server", "--model-path", "${weights}", *NAMED,
                             "--tp", "2", "--dp", "2"], 4,
        ),
        ("llama-server -hf x/y -ts 3,1 -mg 1", "llama.cpp", None,
         ["llama-server", *LLAMA, "-hf", "x/y", "-ts", "3,1"], 2),
        ("llama-server -m /m --device none", "llama.cpp", "/m",
         ["llama-server", "--model", "${weights}", *LLAMA], 0),
        (
            "env A=1 CUDA_VISIBLE_DEVICES=1 numactl -N 0 llama-server -m /m",
            "llama.cpp", "/m", ["numactl", "-N", "0", "llama-server", "--model", "${weights}", *LLAMA], 1,
        ),
        (
            "docker run --runtime=nvidia -p ${port}:8000 vllm/vllm-openai:v1 --model Q/q --served-model-name a -tp 2",
            "vllm", None, ["--model", "Q/q", "-tp", "2", *NAMED], 2,
        ),
        (
            "podman run --device nvidia.com/gpu=0 x/llama.cpp:server -m /m --host 0.0.0.0 --port 8080",
            "llama.cpp", None, ["-m", "/m", *LLAMA], 1,
        ),
        ("docker run --device /dev/dri x/llama.cpp:server -m /m", "llama.cpp", None,
         ["-m", "/m", *LLAMA], 1),
        ("docker run ollama/ollama", None, None, ["--host", "${host}", "--port", "${port}"], 0),
        ("/opt/proxy llama-server --port 1", None, None, ["/opt/proxy", "llama-server", "--port", "${port}"], 0),
    ],
)  # fmt: skip
def test_engines_that_are_known_are_given_place_name_and_gpus(
    cmd: str, engine: str | None, weights: str | None, command: list[str], gpus: int
) -> None:
    """The gateway asks an engine for the model's own name, so that is what it must go by."""
    model, given = profile_of(cmd)
    (profile,) = model["profiles"]
    assert (given.get("engine"), given.get("weights")) == (engine, weights)
    assert (profile["command"], profile["gpus"]) == (command, gpus)
    assert "hunter" not in str(given)
    assert "CUDA_VISIBLE_DEVICES" not in profile["env"]


@pytest.mark.parametrize(
    ("cmd", "kind"),
    [("llama-server -m /m --embeddings", "embed"), ("llama-server -m /m --reranking", "rerank"),
     ("vllm serve /m --task embed", "embed"), ("/opt/whisper-server --port 1", "audio"),
     ("llama-server -m /m", "chat")],
)  # fmt: skip
def test_what_a_model_is_for(cmd: str, kind: str) -> None:
    assert profile_of(cmd)[0]["kind"] == kind


def test_gpus_that_are_hidden_are_none() -> None:
    assert profile_of("llama-server -m /m", env=["CUDA_VISIBLE_DEVICES=-1"])[1]["gpus"] == 0


def test_an_engine_that_is_not_known_may_use_a_gpu() -> None:
    found = swap.converted({"models": {"m": {"cmd": "/opt/tts --port ${PORT}"}}}, {})
    assert "add gpus: 1 if it does" in fate(found, "models.m.cmd").why + found.fates[-1].why


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


@pytest.mark.parametrize(
    ("other", "why"),
    [
        ("services: {a: {image: b}}", "it has no models (it has services) - name the file with models:"),
        ("{}", "it has no models (it has nothing) - "),
        ("models: {a: {ttl: 1}, b: }", "none of its 2 models has a cmd (it has models) - "),
        ("version: 1\nmodels: {a: {profiles: [x]}}", "a catalog of llmgw already: llmgw catalog check config.yaml"),
    ],
)  # fmt: skip
def test_another_file_is_not_an_empty_catalog(other: str, why: str) -> None:
    with pytest.raises(CatalogError) as e:
        text.read("config.yaml", other)
    (said,) = e.value.problems
    assert said.startswith("config.yaml: is no llama-swap configuration: ")
    assert why in said


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
