"""Files, directories, stored texts; the example that newcomers copy."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from llmgw import catalog
from llmgw.errors import EXIT_DIFFERENCE, CatalogError

ROOT = Path(__file__).parents[2]
PROFILES = "profiles: [{name: p, command: [x]}]"


def problems(path: Path) -> tuple[str, ...]:
    with pytest.raises(CatalogError) as caught:
        catalog.load(path)
    assert caught.value.exit_code == EXIT_DIFFERENCE
    return tuple(problem.replace(f"{path.parent}/", "") for problem in caught.value.problems)


def test_a_file(tmp_path: Path) -> None:
    file = tmp_path / "c.yaml"
    file.write_text("version: 1\nmodels: {q: {profiles: [{name: p, command: [x]}]}}\n")
    assert list(catalog.load(file).models) == ["q"]
    file.write_text("version: 1\nmodel: 1\n")
    assert problems(file) == ('c.yaml:2:1: unknown key "model" - did you mean "models"?',)


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    assert problems(tmp_path / "c.yaml") == (
        "c.yaml: no such file or directory - check the path, or let `llmgw init` write a first one",
    )


def test_a_path_through_a_file(tmp_path: Path) -> None:
    (tmp_path / "f").write_text("")
    (only,) = problems(tmp_path / "f" / "c.yaml")
    assert only == "c.yaml: not a directory - check the path and the disk"


def test_bytes_that_are_no_text(tmp_path: Path) -> None:
    file = tmp_path / "c.yaml"
    file.write_bytes("version: 1\n# naïve: é\n# na".encode() + b"\xefve\n")
    assert problems(file) == ("c.yaml:3:5: byte 0xef is not UTF-8 - save the file as UTF-8",)
    file.write_bytes("version: 1\n".encode("utf-16"))
    assert problems(file) == ("c.yaml:1:1: byte 0xff is not UTF-8 - save the file as UTF-8",)
    file.write_bytes("\ufeffversion: 1\r\nmodels: {}\r\n".encode())
    assert catalog.load(file).models == {}


def test_a_model_by_mistake(tmp_path: Path) -> None:
    file = tmp_path / "c.yaml"
    with file.open("wb") as stream:
        stream.truncate(10 << 30)  # sparse: takes no room, and is not read
    assert problems(file) == ("c.yaml:1:1: more than 4194304 bytes - is this a catalog at all?",)


def test_a_directory_is_merged_in_name_order(tmp_path: Path) -> None:
    (tmp_path / "10-b.yaml").write_text(
        f"version: 1\nmodels: {{b: {{{PROFILES}}}}}\ndefaults: {{start_limit: 2}}\n"
    )
    (tmp_path / "05-a.yaml").write_text(
        f"version: 1\nmodels: {{a: {{{PROFILES}}}}}\ndefaults: {{wait_timeout: 1m}}\n"
    )
    (tmp_path / "20-e.yaml").write_text(
        "version: 1\nengines: {mine: {command: [y]}}\ncircuits: {c: {power_w: 1}}\n"
    )
    (tmp_path / "30-m.yaml").write_text(
        "version: 1\nmodels: {m: {profiles: [{name: p, engine: mine}]}}\n"
    )
    for ignored in (".hidden.yaml", "README.md", "c.yaml~", "c.yaml.bak"):
        (tmp_path / ignored).write_text("nonsense: [")
    (tmp_path / "dir.yaml").mkdir()
    got = catalog.load(tmp_path)
    assert list(got.models) == ["a", "b", "m"]
    assert got.models["b"].wait_timeout_s == 60
    assert got.start_limit == 2
    assert got.models["m"].profiles[0].command == ("y",)
    assert got.circuits == {"c": 1.0}


def test_nothing_is_said_in_two_files(tmp_path: Path) -> None:
    text = f"version: 1\ndefaults: {{start_limit: 2}}\nmodels:\n  q: {{{PROFILES}}}\nengines: {{e: {{command: [x]}}}}\n"
    (tmp_path / "a.yaml").write_text(text)
    (tmp_path / "b.yaml").write_text(text)
    a = tmp_path / "a.yaml"
    assert [problem.split("b.yaml:")[1] for problem in problems(tmp_path)] == [
        f"2:12: defaults.start_limit is in two files - the other is {a}:2:12: take one out".replace(
            f"{tmp_path.parent}/", ""
        ),
        f'4:3: model "q" is in two files - the other is {a}:4:3: take one out'.replace(
            f"{tmp_path.parent}/", ""
        ),
        f'5:11: engine "e" is in two files - the other is {a}:5:11: take one out'.replace(
            f"{tmp_path.parent}/", ""
        ),
    ]


def test_aliases_collide_over_files(tmp_path: Path) -> None:
    for name in "ab":
        (tmp_path / f"{name}.yaml").write_text(
            f"version: 1\nmodels: {{{name}: {{aliases: [x], {PROFILES}}}}}\n"
        )
    (only,) = problems(tmp_path)
    assert 'b.yaml:2:24: models.b.aliases: "x" is also an alias of a' in only


def test_every_file_says_its_version_and_every_problem_is_told(tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text("models: {}\n")
    (tmp_path / "b.yaml").write_text("version: 2\n")
    (tmp_path / "c.yaml").write_text("version: [\n")
    (tmp_path / "d.yaml").write_text(
        "version: 1\nmodels: {q: {profiles: [{name: p, engine: from-c}]}}\nx: 1\n"
    )
    told = [problem.partition(f"{tmp_path.name}/")[2] for problem in problems(tmp_path)]
    assert [problem.split(": ")[0] for problem in told] == [
        "a.yaml:1:1",
        "b.yaml:1:10",
        "c.yaml:2:1",
        "d.yaml:3:1",
    ]


@pytest.mark.parametrize(
    ("names", "problem"),
    [
        ([], "no *.yaml in this directory - put a catalog there, or name a file"),
        (["c.yml"], "not read, its name ends in .yml - rename it to .yaml"),
        (["a.yaml", "c.yml"], "not read, its name ends in .yml - rename it to .yaml"),
    ],
)
def test_an_empty_directory_is_no_empty_catalog(
    names: list[str], problem: str, tmp_path: Path
) -> None:
    """It would stop every engine."""
    for name in names:
        (tmp_path / name).write_text("version: 1\n")
    (only,) = problems(tmp_path)
    assert only.endswith(problem)


def test_what_was_read_can_be_stored_and_read_again(tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text(f"version: 1\nmodels: {{a: {{{PROFILES}}}}}\n")
    (tmp_path / "b.yaml").write_text(f"version: 1\nmodels: {{b: {{{PROFILES}}}}}\n")
    sources = catalog.read_source(tmp_path)
    assert list(sources) == [str(tmp_path / "a.yaml"), str(tmp_path / "b.yaml")]
    turned = dict(reversed(sources.items()))
    assert catalog.load_sources(sources) == catalog.load_sources(turned) == catalog.load(tmp_path)


def test_nothing_stored_is_no_catalog() -> None:
    with pytest.raises(CatalogError, match="nothing to read"):
        catalog.load_sources({})


def test_the_example() -> None:
    text = (ROOT / "catalog.example.yaml").read_text()
    assert text.splitlines()[0] == "# yaml-language-server: $schema=./catalog.schema.json"
    got = catalog.load(ROOT / "catalog.example.yaml")
    assert list(got.models) == ["smollm2", "qwen3-coder", "embed"]
    # Its defaults section only says aloud what is built in.
    without = re.sub(r"\ndefaults:\n(  .*\n)+", "\n", text)
    assert "defaults:" not in without
    assert catalog.show(catalog.loads(without))["models"] == catalog.show(got)["models"]
