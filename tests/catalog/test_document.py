"""`catalog show`: the contract's shape, everything merged, nothing secret."""

from __future__ import annotations

import json
from collections.abc import Callable

from llmgw import catalog
from llmgw.core.types.catalog import Catalog

TEXT = """\
version: 1
circuits: {office: {power_w: 1500}}
models:
  q:
    aliases: [r]
    profiles:
      - name: main
        engine: llama.cpp
        weights: {default: /a, box2: /b}
        args: [--hf-token, hf_secret]
        env: {HF_TOKEN: hf_secret, OTHER_KEY: "${env.OTHER}", PLAIN: 1}
        gpus: 1
"""


def test_show(loaded: Callable[[str], Catalog]) -> None:
    got = loaded(TEXT)
    shown = catalog.show(got)
    assert shown["schema"] == "llmgw.catalog/1"
    (model,) = shown["models"]
    assert (model["name"], model["aliases"]) == ("q", ["r"])
    assert model["scaling"]["idle_timeout_s"] == 600
    (profile,) = model["profiles"]
    assert (profile["name"], profile["gpu_memory_bytes"]) == ("main", None)
    assert profile["fingerprint"] == got.models["q"].profiles[0].fingerprint_on("anywhere")
    assert set(profile["fingerprints"]) == {"default", "box2"}
    assert profile["env"] == {
        "LLAMA_API_KEY": "${api_key}",
        "LLAMA_ARG_LOG_VERBOSITY": "4",
        "HF_TOKEN": "***",
        "OTHER_KEY": "${env.OTHER}",
        "PLAIN": "1",
    }
    assert profile["command"][-2:] == ["--hf-token", "***"]
    assert shown["circuits"] == {"office": 1500.0}
    assert "hf_secret" not in json.dumps(shown)
