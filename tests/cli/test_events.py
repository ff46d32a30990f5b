"""`llmgw events`: what each is about in columns of its own, which those that follow keep to."""

from __future__ import annotations

from typing import Any

import pytest

from llmgw.errors import EXIT_INTERRUPTED
from llmgw.render.look import style
from tests.cli.say import llmgw
from tests.cli.stub import Stub

AT = "2026-01-01T00:00:00.000Z"
FOUND: list[dict[str, Any]] = [
    {"id": 1, "at": AT, "kind": "leader", "why": "leads"},
    {"id": 2, "at": AT, "kind": "wake", "why": "asked", "model": "chat"},
    {"id": 3, "at": AT, "kind": "roll", "why": "new", "model": "chat", "replica": "chat-1", "node": "box1"},
    {"id": 4, "at": AT, "kind": "exit", "why": "ended", "replica": "chat-1", "shard": "chat-1/0"},
]  # fmt: skip


def test_what_it_is_about_and_where(stub: Stub) -> None:
    stub.answers["GET /api/v1/events"] = {"events": FOUND}
    assert llmgw("events").out.splitlines() == [
        "AT                        KIND    ABOUT     NODE  WHY",
        f"{AT}  leader  -         -     leads",
        f"{AT}  wake    chat      -     asked",
        f"{AT}  roll    chat-1    box1  new",
        f"{AT}  exit    chat-1/0  -     ended",
    ]


def test_those_that_follow_keep_to_the_columns(stub: Stub, monkeypatch: pytest.MonkeyPatch) -> None:
    def ended(_s: float) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("time.sleep", ended)
    stub.answers["GET /api/v1/events"] = {"events": FOUND[2:3]}
    stub.answers["GET /api/v1/events?follow=1&after=3"] = FOUND[3]
    said = llmgw("events", "-f")
    assert said.code == EXIT_INTERRUPTED
    assert said.out.splitlines()[1:] == [
        f"{AT}  roll  chat-1  box1  new",
        f"{AT}  exit  chat-1/0  -     ended",
    ]


def test_what_is_not_there_has_no_colour_however_wide_its_column() -> None:
    assert style("-") == style("-    ") == ""
