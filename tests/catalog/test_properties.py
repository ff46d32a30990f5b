"""Whatever happens to a catalog's text, it loads or is refused with positions; what does not matter changes nothing."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import yaml
from hypothesis import given
from hypothesis import strategies as st

from llmgw import catalog
from llmgw.errors import CatalogError

EXAMPLE = (Path(__file__).parents[2] / "catalog.example.yaml").read_text()
LINES = EXAMPLE.splitlines(keepends=True)
PROBLEM = re.compile(r"c\.yaml:([1-9][0-9]*):([1-9][0-9]*): \S.*")
#: Pieces that mean something to YAML or to the reader.
PIECES = st.sampled_from(
    [
        *[
            "&a",
            "*a",
            "!!int",
            "!x",
            "|",
            ">",
            "-",
            ":",
            "{",
            "}",
            "[",
            "]",
            ",",
            "'",
            '"',
            "#",
            "---",
            "${",
            "${port}",
            "$$",
            "never",
            "10",
            "-1",
            "1GiB",
            "null",
            "~",
            "yes",
            "\\",
            "%",
            "@",
            "é",
        ],
        *("<<: *a", "- ", ": ", "\t", "\n", "version: 1", "\x00", "\ufeff", "\u2028"),
    ]
)


def check(text: str) -> None:
    try:
        got = catalog.loads(text, "c.yaml")
    except CatalogError as error:
        well_formed(error.problems, len(text.splitlines()) + 1)
        return
    shown = catalog.show(got)
    assert json.loads(json.dumps(shown)) == shown
    assert catalog.show(catalog.loads(text)) == shown
    assert catalog.diff(got, got) == []


def well_formed(problems: tuple[str, ...], last_line: int) -> None:
    assert problems
    for problem in problems:
        found = PROBLEM.fullmatch(problem)
        assert found, problem
        assert int(found[1]) <= last_line, problem


@given(st.integers(0, len(EXAMPLE)), st.integers(0, 30), PIECES | st.text(max_size=5))
def test_characters_deleted_or_put_in(at: int, cut: int, piece: str) -> None:
    check(EXAMPLE[:at] + piece + EXAMPLE[at + cut :])


@given(
    st.lists(
        st.tuples(st.integers(0, len(LINES) - 1), st.integers(0, 8), PIECES), min_size=1, max_size=4
    )
)
def test_lines_deleted_doubled_or_indented(edits: list[tuple[int, int, str]]) -> None:
    lines = list(LINES)
    for i, what, piece in edits:
        line = lines[i % len(lines)]
        if what < 2:
            lines[i % len(lines)] = ""
        elif what < 4:
            lines.insert(i % len(lines), line)
        elif what < 6:
            lines[i % len(lines)] = " " * (what - 3) + line
        elif what < 7:
            lines[i % len(lines)] = line.removeprefix("  ")
        else:
            lines.insert(i % len(lines), piece + "\n")
    check("".join(lines))


@given(st.text(max_size=200))
def test_any_text(text: str) -> None:
    check(text)


VALUES: Any = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8) | PIECES,
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.text(max_size=8) | PIECES, inner, max_size=3)
    ),
    max_leaves=8,
)
KEYS = st.sampled_from(
    [
        "version",
        "defaults",
        "models",
        "engines",
        "circuits",
        "q",
        "profiles",
        "name",
        "scaling",
        "min",
        "weights",
        "env",
        "command",
        "args",
        "gpus",
        "stop",
        "restart",
        "ready",
        "aliases",
        "gpu_memory",
        "nodes",
        "select",
        "sticky",
    ]
)
DOCUMENTS: Any = st.recursive(
    VALUES,
    lambda inner: st.dictionaries(KEYS, inner, max_size=5) | st.lists(inner, max_size=3),
    max_leaves=30,
)


@given(st.dictionaries(KEYS, DOCUMENTS, max_size=5))
def test_known_keys_with_any_value_anywhere(document: dict[str, Any]) -> None:
    check(yaml.safe_dump({"version": 1, **document}, sort_keys=False, allow_unicode=True))


def shuffled(value: Any, draw: Any) -> Any:
    """The same document with the keys of every mapping in another order."""
    if isinstance(value, dict):
        return {key: shuffled(value[key], draw) for key in draw(st.permutations(list(value)))}
    return [shuffled(item, draw) for item in value] if isinstance(value, list) else value


@given(st.data())
def test_fingerprints_do_not_depend_on_the_order_of_keys(data: st.DataObject) -> None:
    document = yaml.safe_load(EXAMPLE)
    text = yaml.safe_dump(shuffled(document, data.draw), sort_keys=False)
    got, want = catalog.loads(text), catalog.loads(EXAMPLE)
    for name, model in want.models.items():
        assert [p.fingerprints for p in got.models[name].profiles] == [
            p.fingerprints for p in model.profiles
        ]


def test_the_fleet_s_own_writer_of_catalogs_changes_nothing() -> None:
    """Scripts write catalogs with PyYAML: quotes and styles differ, the meaning does not."""
    again = yaml.safe_dump(yaml.safe_load(EXAMPLE), sort_keys=False)
    assert catalog.diff(catalog.loads(EXAMPLE), catalog.loads(again)) == []
