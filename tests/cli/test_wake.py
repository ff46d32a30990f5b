"""`llmgw wake`: what it sends, says and exits with (A64)."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.cli.say import llmgw
from tests.cli.stub import Stub, refused

Json = dict[str, Any]
PATH = "POST /api/v1/models/coder/wake"


def answer(state: str, why: str = "because", **more: Any) -> Json:
    said: Json = {"schema": "llmgw.wake/1", "model": "coder", "dry_run": False, "state": state}
    said |= {"why": why, "profile": "q4", "places": [], "evicts": [], "warning": None}
    return said | more


def place(node: str, *gpus: int) -> Json:
    return {
        "node": node,
        "rank": 0,
        "gpus": [{"uuid": f"GPU-{i}", "index": i} for i in gpus],
        "port": 1,
    }


@pytest.mark.parametrize(
    ("state", "code", "as_it_is", "as_it_would_be"),
    [
        ("ready", 0, "is up", "is up"),
        ("loading", 0, "is on its way", "is on its way"),
        ("starts", 0, "starts", "would start"),
        ("waits", 0, "waits", "would wait"),
        ("settling", 0, "waits", "would wait"),
        ("failed", 1, "is not started", "would not be started"),
        ("no_room", 1, "has no room", "would have no room"),
        ("of a later version", 0, "of a later version", "of a later version"),
    ],
)
def test_each_state_in_words_and_its_exit_code(
    stub: Stub, state: str, code: int, as_it_is: str, as_it_would_be: str
) -> None:
    stub.answers[PATH] = answer(state)
    said = llmgw("wake", "coder")
    assert (said.code, said.out) == (code, f"coder {as_it_is}: because\n")
    stub.answers[PATH] = answer(state, dry_run=True)
    said = llmgw("wake", "coder", "--dry-run")
    assert (said.code, said.out) == (code, f"coder {as_it_would_be}: because\n")
    assert stub.sent == [(PATH, {}), (PATH, {"dry_run": True})]


@pytest.mark.parametrize("state", ["starts", "loading", "waits", "settling"])
def test_what_is_not_up_yet_may_still_fail_so_it_says_how_to_know(stub: Stub, state: str) -> None:
    """Its agent may find the weights missing a moment later: the answer at once is no promise."""
    stub.answers[PATH] = answer(state)
    said = llmgw("wake", "coder")
    assert (said.code, len(said.out.splitlines())) == (0, 1)
    assert said.err == "llmgw: `llmgw wait coder` returns once it is up, or says why it is not\n"
    assert llmgw("wake", "coder", "-o", "json").err == ""
    stub.answers[PATH] = answer(state, dry_run=True)
    assert llmgw("wake", "coder", "--dry-run").err == ""


def test_a64_who_would_go_and_what_comes_then(stub: Stub) -> None:
    rows = [
        {"replica": "chat-1", "model": "chat", "when": "now", "why": "idle for 340 s"},
        {"replica": "draw-1", "model": "draw", "when": "ends", "why": "idle"},
        {"replica": "read-1", "model": "read", "when": "later", "why": "it is busy"},
    ]
    places = [place("box1", 0, 1), place("box2")]
    stub.answers[PATH] = answer("waits", "no room", dry_run=True, evicts=rows, places=places)
    assert llmgw("wake", "coder", "--dry-run").out == (
        "coder would wait: no room\n"
        "  chat-1 would be stopped: idle for 340 s\n"
        "  draw-1 is on its way out: idle\n"
        "  read-1 goes before it: it is busy\n"
        "  then q4 on box1 GPU 0, 1\n"
        "  then q4 on box2 cpu\n"
    )
    stub.answers[PATH] = answer("waits", "no room", evicts=rows[:1], places=places[:1])
    assert "  chat-1 is stopped: idle for 340 s\n" in llmgw("wake", "coder").out


def test_json_and_what_would_not_last(stub: Stub) -> None:
    stub.answers[PATH] = answer("starts", warning="history is not kept")
    said = llmgw("wake", "coder", "-o", "json")
    assert json.loads(said.out) == stub.answers[PATH]
    assert said.err == "llmgw: a restart of control would forget it: history is not kept\n"


def test_what_control_refuses_is_said(stub: Stub) -> None:
    stub.answers[PATH] = refused("there is no model called coder", "did you mean code?", 404)
    said = llmgw("wake", "coder")
    assert (said.code, said.out) == (1, "")
    assert said.err.startswith("llmgw: there is no model called coder")
    assert llmgw("wake", "").code == 2
