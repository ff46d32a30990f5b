"""`llmgw catalog check|schema|show`, as people and scripts call them."""

import json
from pathlib import Path

import pytest

from tests.cli.say import llmgw

GOOD = """\
version: 1
models:
  chat:
    aliases: [default]
    scaling: {min: 1, max: 2}
    profiles:
      - {name: big, engine: llama.cpp, weights: /m/chat.gguf, gpus: 2, gpu_memory: 18GiB}
      - {name: small, command: [/bin/serve], host_memory: 2GiB, env: {API_KEY: hunter2}}
"""
BAD = "version: 1\nmodels:\n  chat:\n    profils: []\n    profiles: [{name: a, command: [x], gpu: 1}]\n"


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path / "catalog.yaml"


def test_a_good_one(here: Path) -> None:
    here.write_text(GOOD)
    said = llmgw("catalog", "check", here)
    assert (said.code, said.out, said.err) == (0, "ok: 1 model, 2 profiles\n", "")


def test_all_problems_at_once_are_the_answer(here: Path) -> None:
    here.write_text(BAD)
    said = llmgw("catalog", "check", here)
    assert (said.code, said.err) == (1, "")
    assert [line.partition(" ")[0] for line in said.out.splitlines()] == [
        f"{here}:4:5:",
        f"{here}:5:40:",
    ]
    document = json.loads(llmgw("catalog", "check", here, "-o", "json").out)
    assert document["schema"] == "llmgw.catalog-check/1"
    assert document["valid"] is False
    assert document["problems"] == said.out.splitlines()


def test_other_verbs_say_it_as_their_error(here: Path) -> None:
    here.write_text(BAD)
    said = llmgw("catalog", "show", here)
    assert (said.code, said.out) == (1, "")
    assert said.err.startswith(f"llmgw: {here}:4:5: ")


def test_show(here: Path) -> None:
    here.write_text(GOOD)
    assert llmgw("catalog", "show", here).out.splitlines() == [
        "MODEL  PROFILE  REPLICAS  IDLE  NODES  GPUS  MEMORY    ENGINE      WEIGHTS       ALIASES",
        "chat   big      1-2       10m   1      2     18.0 GiB  llama.cpp   /m/chat.gguf  default",
        "chat   small    1-2       10m   1      cpu   2.0 GiB   /bin/serve  -             default",
    ]
    document = json.loads(llmgw("catalog", "show", here, "-o", "json").out)
    assert document["schema"] == "llmgw.catalog/1"
    chat = document["models"][0]
    assert [p["name"] for p in chat["profiles"]] == ["big", "small"]
    assert all(p["fingerprint"].startswith("1:") for p in chat["profiles"])
    assert "hunter2" not in json.dumps(document)


def test_the_default_is_where_the_contract_says(
    here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("llmgw.config.SYSTEM_CATALOG", here.with_name("system.yaml"))
    said = llmgw("catalog", "check")
    assert "catalog.yaml: no such file" in said.out
    here.write_text(GOOD)
    assert llmgw("catalog", "check").code == 0
    here.with_name("system.yaml").write_text(BAD)
    assert "system.yaml:4:5:" in llmgw("catalog", "check").out
    monkeypatch.setenv("LLMGW_CATALOG", str(here))
    assert llmgw("catalog", "check").code == 0


def test_the_schema_is_one_document() -> None:
    assert json.loads(llmgw("catalog", "schema").out)["title"] == "llmgw catalog"
