"""How a text is shown in a message."""

from __future__ import annotations

from llmgw.catalog.words import nearest, quoted


def test_a_long_text_is_cut() -> None:
    assert quoted("short") == '"short"'
    assert len(quoted("x" * 500)) == 62


def test_nearest() -> None:
    assert nearest("idle_timout", ["idle_timeout", "min_up"]) == "idle_timeout"
    assert nearest("zzzz", ["idle_timeout", "min_up"]) == ""
    assert nearest("x" * 1_000_000, ["idle_timeout"]) == ""
