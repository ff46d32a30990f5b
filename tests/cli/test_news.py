"""What an end waits for is said when it changes, whatever it counts down."""

from __future__ import annotations

import pytest

from llmgw.cli.news import News, about, held_up


def test_news_is_what_was_not_said_just_before(capsys: pytest.CaptureFixture[str]) -> None:
    news = News()
    for text in ("in 9 s", "in 8 s", "2 in flight", "1 in flight", "", "1 in flight"):
        news.say(text)
    assert capsys.readouterr().err.splitlines() == [
        "llmgw: in 9 s",
        "llmgw: 2 in flight",
        "llmgw: 1 in flight",
        "llmgw: 1 in flight",
    ]


def test_each_reason_is_named_once_and_of_these_shards_alone() -> None:
    stops = [{"shard": f"a-{i}/0", "waits": why} for i, why in enumerate(("x", "x", None, "y"))]
    status = {"stops_pending": [*stops, {}]}
    assert held_up(status) == "; x; y"
    assert held_up(status, frozenset({"a-3/0"})) == "; y"
    assert held_up({}) == ""


def test_seconds_are_no_news_and_a_count_is() -> None:
    assert about("woken 8 s ago") == about("woken 10 s ago") != about("2 waiting, woken 10 s ago")
