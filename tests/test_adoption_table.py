"""docs/adoption.md: every statement and failure mode has its rule in a line and a test that exists and names it."""

from __future__ import annotations

import ast
import gc
import re
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
TABLE = ROOT / "docs" / "adoption.md"
STATEMENTS = [f"A{n}" for n in range(1, 58)]
FAILURES = [f"F{n}" for n in (*range(1, 64), *range(74, 80), 81, 82)]

ROW = re.compile(r"\| (?P<number>[AF]\d+) \| (?P<rule>[^|]+) \| (?P<shown>[^|]+) \|")
REFERENCE = re.compile(r"`(tests/[^`:]+)(?:::(\w+))?`")


def rows() -> dict[str, tuple[str, str]]:
    found = {}
    for line in TABLE.read_text().splitlines():
        row = ROW.fullmatch(line)
        if row:
            assert row["number"] not in found, f"{row['number']} stands twice in {TABLE.name}"
            found[row["number"]] = (row["rule"].strip(), row["shown"].strip())
    return found


def named_by(path: Path, test: str) -> str:
    """What names a number: a script's text, or the name, decorators, docstring and comments of one test."""
    if not test:
        return path.read_text()
    found = parts_of(path)
    assert test in found, f"{path.relative_to(ROOT)} has no {test}"
    return found[test]


@cache
def parts_of(path: Path) -> dict[str, str]:
    """Its functions and classes. Without the collector: what it ends in the middle of a parse, CPython 3.11 takes for
    the parser's own (gh-106905)."""
    text = path.read_text()
    gc.disable()
    try:
        parsed = ast.parse(text)
    finally:
        gc.enable()
    found: dict[str, str] = {}
    for node in ast.walk(parsed):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            first = min([node.lineno, *(d.lineno for d in node.decorator_list)])
            found.setdefault(node.name, "\n".join(text.splitlines()[first - 1 : node.end_lineno]))
    return found


def names(text: str, number: str) -> bool:
    """As a word, or in the name of a test (`test_a17_...`), alone or within a list or range (A26-A28)."""
    if re.search(rf"(?<![a-z0-9]){number}(?![0-9])", text, re.IGNORECASE):
        return True
    spans = re.findall(rf"{number[0]}(\d+)-{number[0]}?(\d+)", text)
    return any(int(low) <= int(number[1:]) <= int(high) for low, high in spans)


def test_the_table_is_complete() -> None:
    assert [n for n in (*STATEMENTS, *FAILURES) if n not in rows()] == []
    assert [n for n in rows() if n not in {*STATEMENTS, *FAILURES}] == []


@pytest.mark.parametrize("number", [*STATEMENTS, *FAILURES])
def test_a_row_names_tests_that_exist_and_name_it(number: str) -> None:
    rule, shown = rows()[number]
    assert rule, f"{number} has no rule"
    references = REFERENCE.findall(shown)
    assert references, f"{number} names no test: {shown}"
    for path, test in references:
        assert (ROOT / path).exists(), f"{number}: there is no {path}"
        text = named_by(ROOT / path, test)
        assert names(text, number), f"{number} is not named in {path}::{test}"
