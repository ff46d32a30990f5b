"""`llmgw status --watch` while control is away, and `status NAME` of what this box alone cannot know."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from llmgw.cli import door
from llmgw.errors import EXIT_DIFFERENCE, EXIT_INTERRUPTED, EXIT_UNKNOWN, EXIT_USAGE
from tests.cli.say import llmgw
from tests.cli.stub import Stub, Terminal

Json = dict[str, Any]
NOBODY = "http://127.0.0.1:1"
STATUS: Json = {
    "schema": "llmgw.status/1", "leader": None, "settling": None, "blocked": None, "nodes": [],
    "models": [], "replicas": [], "stops_pending": [], "warnings": [],
}  # fmt: skip
FRAME = "\x1b[H\x1b[J"


@pytest.fixture
def at(stub: Stub, monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """What becomes of control while the watch sleeps, pause by pause; then somebody types Ctrl-C."""
    monkeypatch.setenv("LLMGW_AGENT", NOBODY)
    stub.answers["GET /api/v1/status"] = STATUS

    def scripted(*urls: str) -> None:
        left = list(urls)

        def sleep(_s: float) -> None:
            if not left:
                raise KeyboardInterrupt
            monkeypatch.setenv("LLMGW_CONTROL", left.pop(0))

        monkeypatch.setattr("time.sleep", sleep)

    return scripted


def test_on_a_terminal_an_old_picture_is_said_to_be_old(
    stub: Stub, at: Callable[..., None]
) -> None:
    """Below the picture, and on stdout: what stands before it is wiped with the next one."""
    at(NOBODY, NOBODY, stub.url)
    screen = Terminal()
    with contextlib.redirect_stdout(screen):
        assert door.run(["status", "--watch", "--color", "never"]) == EXIT_INTERRUPTED
    first, *away, back = screen.getvalue().split(FRAME)[1:]
    assert len(away) == 2
    for frame in away:
        assert frame.startswith("no node has registered\n")
        assert frame.splitlines()[-1].startswith("llmgw: no control at 127.0.0.1:1: ")
        assert frame.endswith("s old\n")
    assert first == back == "no node has registered\n"


def test_through_a_pipe_it_is_said_once_and_nothing_old_is_shown_again(
    stub: Stub, at: Callable[..., None]
) -> None:
    at(NOBODY, NOBODY, stub.url, NOBODY)
    said = llmgw("status", "--watch", "-o", "json")
    assert said.code == EXIT_INTERRUPTED
    assert [json.loads(line) for line in said.out.splitlines()] == [STATUS, STATUS]
    assert said.err.count("going on when it answers\n") == len(said.err.splitlines()) == 2


def test_through_a_pipe_a_reason_that_counts_seconds_is_no_row_of_its_own(
    stub: Stub, at: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A model that waits for room was a line every 2 s, for as long as it waited."""
    at()
    reasons = ["woken 2 s ago, 0 running", "woken 4 s ago, 0 running", "2 waiting"]

    def sleep(_s: float) -> None:
        reasons.pop(0)
        if not reasons:
            raise KeyboardInterrupt
        stub.answers["GET /api/v1/status"] = STATUS | {"warnings": reasons[:1]}

    monkeypatch.setattr("time.sleep", sleep)
    stub.answers["GET /api/v1/status"] = STATUS | {"warnings": reasons[:1]}
    assert llmgw("status", "--watch").out.splitlines() == [
        "no node has registered",
        "warning: woken 2 s ago, 0 running",
        "warning: 2 waiting",
    ]


def test_this_box_alone_cannot_tell_that_there_is_none(
    stub: Stub, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its agent knows its own engines: no model that sleeps, and no other box."""
    monkeypatch.setenv("LLMGW_CONTROL", NOBODY)
    monkeypatch.setenv("LLMGW_AGENT", stub.url)
    stub.answers["GET /v1/inventory"] = {"node": "box1", "shards": [], "gpus": []}
    assert llmgw("status", "box1").code == EXIT_UNKNOWN
    said = llmgw("status", "chat")
    assert (said.code, said.out) == (EXIT_UNKNOWN, "")
    assert said.err.startswith("llmgw: no control at 127.0.0.1:1: ")
    assert "; box1 runs nothing called 'chat'\n" in said.err


def test_a_check_of_one_model_is_about_that_one(
    stub: Stub, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LLMGW_AGENT", NOBODY)
    about: Json = {"min": 1, "max": 1, "why": "", "waiting": 0, "idle_until": None}
    models = [
        {"name": "well", "aliases": ["default"], "state": "ready", "ready": 1, **about},
        {"name": "ill", "aliases": [], "state": "failed", "ready": 0, **about},
    ]
    found = STATUS | {"models": models, "catalog": {"path": "c", "version": "1", "error": None}}
    for name in ("well", "default", "ill", "none"):
        stub.answers[f"GET /api/v1/status?places={name}"] = found
    assert (
        llmgw("status", "well", "--check") == llmgw("status", "default", "--check") == (0, "", "")
    )
    ill = llmgw("status", "ill", "--check")
    assert ill.code == EXIT_DIFFERENCE
    assert ill.out.startswith("degraded: model ill is failed")
    assert "called none\n" in llmgw("status", "none", "--check").err


def test_a_check_that_would_go_on_is_refused() -> None:
    assert llmgw("status", "--check", "--watch").code == EXIT_USAGE


def test_who_has_a_catalog_is_not_told_to_write_a_first_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Wherever it is, as `up` finds it."""
    monkeypatch.setenv("LLMGW_CONTROL", NOBODY)
    monkeypatch.setenv("LLMGW_AGENT", NOBODY)
    monkeypatch.setenv("LLMGW_CATALOG", str(tmp_path / "mine.yaml"))
    assert "`llmgw init` writes a first catalog" in llmgw("status").err
    (tmp_path / "mine.yaml").touch()
    assert "hint: engines go on without them; " in llmgw("status").err
