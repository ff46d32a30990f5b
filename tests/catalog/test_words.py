"""How a text is shown in a message."""

from __future__ import annotations

from llmgw.catalog.words import quoted


def test_a_long_text_is_cut() -> None:
    assert quoted("short") == '"short"'
    assert len(quoted("x" * 500)) == 62
