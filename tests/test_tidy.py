"""The house rules that no tool has: sizes, words, and a test file for every decision file.

Answers for: each rule with the reason in its message. It may not know what any module does.
"""

import ast
import re
from collections.abc import Iterator
from itertools import chain
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
FOLDERS = ("llmgw", "tests", "scripts", "bench")
SOURCES = sorted(chain.from_iterable((ROOT / folder).rglob("*.py") for folder in FOLDERS))
PRODUCT = [path for path in SOURCES if path.is_relative_to(ROOT / "llmgw")]
PURE = [
    path
    for path in SOURCES
    if path.is_relative_to(ROOT / "tests/core") or path.is_relative_to(ROOT / "tests/sim")
]
CORE = sorted(
    path
    for path in (ROOT / "llmgw/core").glob("*")
    if not path.name.startswith("_")
    and (path.suffix == ".py" or path.joinpath("__init__.py").exists())
)

IMPURE = re.compile(r"\bmock\b|\bMagicMock\b|\bmonkeypatch\b|\bsleep\(|\btmp_path\b")
LEFTOVER = re.compile(r"\b(TODO|FIXME|XXX|NotImplementedError)\b|pragma: no cover")


def name(path: Path) -> str:
    return str(path.relative_to(ROOT))


def hits(pattern: re.Pattern[str], path: Path) -> Iterator[str]:
    for number, line in enumerate(path.read_text().splitlines(), 1):
        if found := pattern.search(line):
            yield f"{name(path)}:{number} has {found[0]!r}"


@pytest.mark.parametrize("path", SOURCES, ids=name)
def test_sizes(path: Path) -> None:
    text = path.read_text()
    count = len(text.splitlines())
    assert count <= 400, f"{name(path)} has {count} lines: past 400 nobody reads a file whole"
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            size = (node.end_lineno or node.lineno) - node.lineno + 1
            where = f"{name(path)}:{node.lineno} {node.name}"
            assert size < 70, f"{where} has {size} lines: a function is seen at one glance"


@pytest.mark.parametrize("path", PRODUCT, ids=name)
def test_the_file_says_what_it_answers_for(path: Path) -> None:
    reason = "the first thing read is what the file answers for and what it may not do"
    assert ast.get_docstring(ast.parse(path.read_text())), (
        f"{name(path)} has no docstring: {reason}"
    )


def test_nothing_is_left_for_later() -> None:
    found = [hit for path in PRODUCT for hit in hits(LEFTOVER, path)]
    assert not found, f"{found}: what is missing is an issue, not a note in the code"


def test_decisions_are_tested_without_the_world() -> None:
    found = [hit for path in PURE for hit in hits(IMPURE, path)]
    assert not found, f"{found}: the core and the simulator need no mock, sleep or file"


@pytest.mark.parametrize("path", CORE, ids=name)
def test_every_core_module_has_its_test_file(path: Path) -> None:
    test = ROOT / "tests/core" / f"test_{path.stem}.py"
    assert test.exists(), f"{name(test)} is missing: each decision file is covered by its own tests"
