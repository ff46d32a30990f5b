"""`llmgw import llama-swap`: the catalog on stdout, what became of each key on stderr; another file is an error."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.cli.say import llmgw


@pytest.fixture
def config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return Path("config.yaml")


def test_what_it_prints_is_a_catalog(config: Path) -> None:
    config.write_text("models:\n  a: {cmd: 'vllm serve /m --port ${PORT}', name: A}\n")
    said = llmgw("import", "llama-swap", config)
    assert said.code == 0
    Path("catalog.yaml").write_text(said.out)
    assert llmgw("catalog", "check").out == "ok: 1 model, 1 profile\n"
    assert said.err.splitlines()[-1] == (
        "llmgw: 3 keys taken over, 1 not; next: llmgw catalog check FILE"
    )
    assert "config.yaml:2: models.a.name not taken over" in said.err
    document = json.loads(llmgw("import", "llama-swap", config, "-o", "json").out)
    assert (document["catalog"], document["problems"]) == (said.out, [])


def test_a_catalog_of_ours_is_named_as_it_was_given(config: Path) -> None:
    config = config.absolute()
    config.write_text("models: {a: {profiles: [x]}}\n")
    said = llmgw("import", "llama-swap", config)
    assert said.code == 1
    assert f"it is a catalog of llmgw already: llmgw catalog check {config}\n" in said.err


@pytest.mark.parametrize("other", ["services: {web: {image: nginx}}\n", "", "[]"])
def test_another_file_is_an_error_and_prints_nothing(config: Path, other: str) -> None:
    config.write_text(other)
    for form in ("table", "json"):
        said = llmgw("import", "llama-swap", config, "-o", form)
        assert (said.code, said.out) == (1, "")
        assert said.err.startswith("llmgw: config.yaml")
