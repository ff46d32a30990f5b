"""The built-in engines: one file of data each, in the catalog's own format (copy one under `engines:` to change it).

A profile that names one is fingerprinted by that name, so editing a file here rolls nobody's engines. Secrets go by
environment: `ps` shows arguments to every user of a box. Each file says where its facts are from; docs/engines.md is
for people. May hold no code of one engine: what reads their logs is in the agent.
"""

from __future__ import annotations

from functools import cache
from importlib.resources import files
from typing import Any

from llmgw.catalog import keys
from llmgw.catalog.read import Reader, Section
from llmgw.catalog.source import Problems, compose


@cache
def built_in() -> dict[str, Section]:
    """By name, read like any other part of a catalog."""
    problems = Problems()
    names = sorted(f.name for f in files(__name__).iterdir() if f.name.endswith(".yaml"))
    text = "".join(files(__name__).joinpath(name).read_text("utf-8") for name in names)
    node = compose(f"version: 1\nengines:\n{_indented(text)}", "built-in engines", problems)
    assert node is not None
    section = Reader(problems).section(node, keys.CatalogFile)
    assert not problems, problems.texts()
    engines: dict[str, Section] = section.values["engines"]
    return engines


def with_program(engine: str, program: str) -> dict[str, Any]:
    """A built-in engine's template as one of a catalog's own, for a program that lies elsewhere; defaults left out."""
    keys_of = {k: v for k, v in built_in()[engine].values.items() if k != "health"}
    return keys_of | {"command": [program, *keys_of["command"][1:]]}


def _indented(text: str) -> str:
    return "".join(f"  {line}\n" for line in text.splitlines())
