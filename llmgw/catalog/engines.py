"""The built-in engines: command templates in the catalog's own format, and nothing else (copy one to change it).

A profile that names one is fingerprinted by that name, so editing a template here rolls nobody's engines. Secrets go
by environment: `ps` shows arguments to every user of a box.
"""

from __future__ import annotations

from functools import cache

from llmgw.catalog import keys
from llmgw.catalog.read import Reader, Section
from llmgw.catalog.source import Problems, compose

TEMPLATES = """
# llama-server, tried (b10434). /health is open with a key set, 503 while loading.
llama.cpp:
  command: [llama-server, --model, "${weights}", --host, "${host}", --port, "${port}", --alias, "${model}"]
  env: {LLAMA_API_KEY: "${api_key}"}
  health: /health
  compute: llama.cpp
  upstream_key: true

# llama-server with its layers spread over ggml-rpc-server workers, tried (b10434). The workers know no
# key at all, so they listen on the fabric's address; the head waits for them in vain unless they are up first.
rpc:
  command: [llama-server, --model, "${weights}", --host, "${host}", --port, "${port}", --alias, "${model}",
            --rpc, "${workers}"]
  worker_command: [ggml-rpc-server, --host, "${fabric_addr}", --port, "${port}"]
  start_order: workers_first
  env: {LLAMA_API_KEY: "${api_key}"}
  health: /health
  compute: llama.cpp
  upstream_key: true

# vLLM, tried on CPU (0.32). Refuses connections until it is ready; /health is open with a key set. Over
# several nodes give --nnodes, --node-rank, --master-addr, --master-port in args and --headless in worker_args.
vllm:
  command: [vllm, serve, "${weights}", --served-model-name, "${model}", --host, "${host}", --port, "${port}"]
  env: {VLLM_API_KEY: "${api_key}"}
  health: /health
  upstream_key: true

# SGLang, by its documentation ("SGLang Native APIs", "Server Arguments"), not tried. It takes a key only as an
# argument, so it gets none: beyond loopback its profile needs insecure: true.
sglang:
  command: [sglang, serve, --model-path, "${weights}", --served-model-name, "${model}",
            --host, "${host}", --port, "${port}"]
  health: /health

# Ollama, by its FAQ and envconfig/config.go, not tried. It serves what was pulled into its own store, so the model's
# name in the catalog must be Ollama's. It must not unload by itself: that is decided here. It knows no key.
ollama:
  command: [ollama, serve]
  env: {OLLAMA_HOST: "${host}:${port}", OLLAMA_KEEP_ALIVE: "-1"}
  health: /api/version

# TabbyAPI, by its config_sample.yml and common/args.py, not tried. It has no program to install: TABBYAPI_HOME is
# its checkout. Its keys live in a file of its own, so it runs without: beyond loopback insecure: true.
tabbyapi:
  command: [python3, "${env.TABBYAPI_HOME}/main.py", --host, "${host}", --port, "${port}",
            --model-name, "${weights}", --disable-auth, "true"]
  health: /health
"""


@cache
def built_in() -> dict[str, Section]:
    """By name, read like any other part of a catalog."""
    problems = Problems()
    node = compose(f"version: 1\nengines:\n{_indented(TEMPLATES)}", "built-in engines", problems)
    assert node is not None
    section = Reader(problems).section(node, keys.CatalogFile)
    assert not problems, problems.texts()
    engines: dict[str, Section] = section.values["engines"]
    return engines


def _indented(text: str) -> str:
    return "".join(f"  {line}\n" for line in text.splitlines())
