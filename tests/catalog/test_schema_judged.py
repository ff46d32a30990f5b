"""The shipped schemas, judged by a validator that is not ours; what an editor underlines is what the reader refuses.

The validator is in an environment of its own (build/schemas, `make schemas`).
"""

from __future__ import annotations

import ast
import json
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from llmgw import catalog
from llmgw.errors import CatalogError
from scripts.generated import ROOT
from tests.catalog.conftest import one

PYTHON = ROOT / "build" / "schemas" / "bin" / "python"
JUDGE = Path(__file__).with_name("judge.py")
needs_validator = pytest.mark.skipif(
    not PYTHON.exists(), reason="jsonschema is not installed (make schemas)"
)
#: What is wrong by form alone: an editor can tell.
WRONG = {
    "no version": "models: {}\n",
    "another version": "version: 2\nmodels: {}\n",
    "a key that is not known": "version: 1\nmodles: {}\n",
    "a key of a profile that is not known": one("engine: vllm\ngpu: 1"),
    "a name with a blank": "version: 1\nmodels: {'a b': {profiles: [{name: p, command: [x]}]}}\n",
    "a size without a unit": one("command: [x]\nhost_memory: lots"),
    "a duration of nothing": one("command: [x]\nstart_timeout: soon"),
    "a list that is a text": one("command: [x]\nargs: --a b"),
    "a word that is none of them": one("engine: vllm\nlauncher: kubernetes"),
    "profiles that are no list": "version: 1\nmodels: {q: {profiles: {name: p}}}\n",
    "a negative count": one("command: [x]\ngpus: -1"),
}


def judged(schema: Any, documents: list[Any]) -> list[str | None]:
    done = subprocess.run(
        [PYTHON, JUDGE],
        input=json.dumps({"schema": schema, "documents": documents}),
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    errors: list[str | None] = json.loads(done.stdout)
    return errors


def texts() -> dict[str, str]:
    """Every catalog that stands in a test as a text and that the reader takes; and the example."""
    found = {"catalog.example.yaml": (ROOT / "catalog.example.yaml").read_text()}
    for file in sorted((ROOT / "tests").rglob("*.py")):
        source = file.read_text()
        for node in ast.walk(ast.parse(source)) if "version: 1" in source else ():
            text = node.value if isinstance(node, ast.Constant) else None
            if isinstance(text, str) and text.lstrip().startswith("version: 1\n") and loads(text):
                found[f"{file.relative_to(ROOT)}:{node.lineno}"] = text  # type: ignore[attr-defined]
    return found


def said(value: Any) -> Any:
    """Without keys that have nothing behind them: the reader takes them as not said, an editor underlines them."""
    if isinstance(value, dict):
        return {k: said(v) for k, v in value.items() if v is not None}
    if isinstance(value, list):
        return [said(v) for v in value]
    return value


def loads(text: str) -> bool:
    try:
        catalog.loads(text, "c.yaml")
    except CatalogError:
        return False
    return True


@needs_validator
def test_what_the_reader_takes_the_schema_takes() -> None:
    known = texts()
    assert len(known) > 20
    errors = judged(catalog.schema(), [said(yaml.safe_load(t)) for t in known.values()])
    assert {n: e for n, e in zip(known, errors, strict=True) if e is not None} == {}


@needs_validator
def test_what_is_wrong_by_form_both_refuse() -> None:
    assert not any(map(loads, WRONG.values()))
    errors = judged(catalog.schema(), [yaml.safe_load(t) for t in WRONG.values()])
    assert [n for n, e in zip(WRONG, errors, strict=True) if e is None] == []


@needs_validator
@pytest.mark.parametrize(
    "file", sorted((ROOT / "docs/schemas").glob("*.json")), ids=lambda f: f.stem
)
def test_the_schemas_of_documents_are_schemas(file: Path) -> None:
    """And none of them takes an empty document."""
    (error,) = judged(json.loads(file.read_text()), [{}])
    assert error is not None
