"""`llmgw init`: a file that can be used at once or says what to fill in, with the schema that its first line names."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.catalog.test_first import program, weights
from tests.cli.say import llmgw

HINT = "was to be filled in - write your own path or value in its place"


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A box that has nothing but what a test puts there."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("llmgw.catalog.first.look.usual", lambda: [Path("bin")])
    Path("models").mkdir()


def init(*words: str) -> tuple[int, str, list[str]]:
    said = llmgw("init", "--models", "models", "--gpus", "none", *words)
    return said.code, said.out, said.err.splitlines()


def test_a_path_holds_for_an_agent_in_another_folder(tmp_path: Path) -> None:
    weights(Path("models"), "m.gguf")
    _, out, _ = init()
    assert f"        weights: {tmp_path}/models/m.gguf\n" in out


def test_what_is_there_becomes_a_catalog_with_its_schema_beside_it() -> None:
    server = program(Path("bin/llama-server-cuda")).absolute()
    weights(Path("models"), "m.gguf")
    code, out, err = init("catalog.yaml")
    assert (code, out) == (0, "")
    assert err == [
        f"llmgw: found llama.cpp ({server}); 1 model",
        "llmgw: wrote catalog.yaml and catalog.schema.json (for editors)",
        "llmgw: next: llmgw up --catalog catalog.yaml",
    ]
    assert llmgw("catalog", "check").out == "ok: 1 model, 1 profile\n"
    named = Path("catalog.yaml").read_text().splitlines()[0].partition("$schema=")[2]
    assert json.loads(Path(named).read_text()) == json.loads(llmgw("catalog", "schema").out)


def test_what_is_not_there_is_said_with_its_line() -> None:
    code, out, err = init("catalog.yaml")
    assert (code, out, err[0]) == (0, "", "llmgw: found no engine; 0 models")
    assert err[-1] == "llmgw: next: fill in these, then llmgw catalog check catalog.yaml"
    checked = llmgw("catalog", "check")
    assert checked.code == 1
    assert [f"llmgw: {line}" for line in checked.out.splitlines()] == err[2:-1]
    assert [line.partition('"')[2] for line in checked.out.splitlines()] == [
        f'/path/to/llama-server" {HINT}',
        f'/path/to/model.gguf" {HINT}',
    ]


def test_no_file_is_replaced() -> None:
    Path("catalog.schema.json").write_text("mine")
    code, _, err = init("catalog.yaml")
    assert (code, err[1]) == (0, "llmgw: wrote catalog.yaml")
    assert Path("catalog.schema.json").read_text() == "mine"
    kept = Path("catalog.yaml").read_text()
    code, _, err = init("catalog.yaml")
    assert (code, err[0]) == (1, "llmgw: catalog.yaml is there already")
    assert Path("catalog.yaml").read_text() == kept


def test_without_a_file_it_is_printed_and_nothing_is_written() -> None:
    code, out, err = init()
    assert (code, err[-1]) == (0, "llmgw: next: fill in these, then llmgw catalog check FILE")
    assert out.startswith("# yaml-language-server: $schema=./catalog.schema.json\n")
    assert not list(Path().glob("catalog*"))
