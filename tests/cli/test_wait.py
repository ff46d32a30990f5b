"""`llmgw wait` and `llmgw logs` name the verb that helps in the state that they meet."""

from __future__ import annotations

from typing import Any

import pytest

from tests.cli.say import llmgw
from tests.cli.stub import Stub

Json = dict[str, Any]


def fleet(state: str, why: str = "", *replicas: str, **more: Any) -> Json:
    model = {"name": "chat", "aliases": ["c"], "state": state, "why": why or None}
    rows = [{"replica": f"chat-{n}", "model": "chat", "state": s} for n, s in enumerate(replicas)]
    return {"models": [model], "replicas": rows, "paused": None, "confirm": None, **more}


CASES: list[tuple[Json, str]] = [
    (fleet("failed", "gave up after 5"), "`llmgw clear chat` lets it start again"),
    (fleet("waiting", "failed (x); llmgw clear chat lets it start again"), "lets it start again"),
    (fleet("waiting", "box1: is drained since noon"), "`llmgw undrain box1` gives it back"),
    (fleet("waiting", "box1: no room"), "`llmgw status chat` says what is in the way"),
    (fleet("waiting", "held back", confirm="sha256:9f"), "`llmgw confirm sha256:9f` lets what is "),
    (fleet("waiting", "no room", paused="since noon"), "`llmgw resume` ends the pause, "),
    (fleet("unloaded"), "`llmgw wake chat` or a request starts it"),
    (fleet("loading", "", "loading"), "it goes on; `llmgw status chat` shows how far it is"),
]


@pytest.mark.parametrize(("status", "hint"), CASES)
def test_wait_for_ready(stub: Stub, status: Json, hint: str) -> None:
    stub.answers["GET /api/v1/status"] = status
    said = llmgw("wait", "c", "--timeout", "0.2s")
    assert said.code == 1
    assert hint in said.err
    assert said.err.count("llmgw clear") <= 1


@pytest.mark.parametrize(("status", "hint"), [case for case in CASES if not case[0]["replicas"]])
def test_logs_of_a_model_of_which_nothing_runs(stub: Stub, status: Json, hint: str) -> None:
    stub.answers["GET /api/v1/status"] = status
    said = llmgw("logs", "chat")
    assert said.code == 1
    assert hint in said.err
    assert "`llmgw events` names those that ended" in said.err


def test_logs_of_a_model_with_several(stub: Stub) -> None:
    stub.answers["GET /api/v1/status"] = fleet("loaded", "", "ready", "ready")
    said = llmgw("logs", "chat")
    assert "hint: name one: chat-0, chat-1; `llmgw events` names those that ended" in said.err


@pytest.mark.parametrize(
    ("status", "hint"),
    [
        (fleet("loaded", "", "ready"), "chat-0 is ready; `llmgw stop chat` ends it"),
        (fleet("loaded", "", "draining"), "`llmgw status chat` says what that waits for"),
    ],
)
def test_wait_for_stopped(stub: Stub, status: Json, hint: str) -> None:
    stub.answers["GET /api/v1/status"] = status
    said = llmgw("wait", "chat", "--for", "stopped", "--timeout", "0.2s")
    assert said.code == 1
    assert hint in said.err


def test_wait_for_a_replica(stub: Stub) -> None:
    stub.answers["GET /api/v1/status"] = fleet("loaded", "", "loading")
    assert (
        "`llmgw status chat-0` shows how far it is"
        in llmgw("wait", "chat-0", "--timeout", "0.2s").err
    )
