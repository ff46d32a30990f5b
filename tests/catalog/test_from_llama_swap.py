"""The page for users of llama-swap says what the importer does, for every key that it knows."""

from __future__ import annotations

import re
from pathlib import Path

from llmgw.catalog.llama_swap import convert
from scripts import llama_swap
from scripts.generated import stale


def test_the_page_is_what_the_importer_does() -> None:
    assert not stale(llama_swap.files()), "run 'make docs'"


def test_every_key_that_is_known_is_in_it() -> None:
    """Keys that became something are named by the converter's own `case`s."""
    table = "\n".join(llama_swap.rows())
    for key in convert._FILE:
        assert f"| `{key}` |" in table, key
    for key in convert._MODEL:
        assert f"| `models.NAME.{key}` |" in table, key
    taken = set(re.findall(r'case "(\w+)"', Path(convert.__file__).read_text()))
    assert "aliases" in taken
    for key in taken:
        assert re.search(rf"`models\.NAME\.{key}[.`]", table), key
    assert "not known" not in table
