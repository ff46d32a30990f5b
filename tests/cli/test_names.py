"""Names of models, replicas and nodes are completed out of a running control; silently nothing without one."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest

from llmgw.cli import names
from scripts.ports import free_port

STATUS: dict[str, Any] = {
    "models": [{"name": "chat", "aliases": ["gpt-*", "default"]}, {"name": "coder", "aliases": []}],
    "replicas": [{"replica": "chat-7k2"}],
    "nodes": [{"node": "box1", "gpus": [{"index": 0}, {"index": 1}]}, {"node": "cube", "gpus": []}],
    "confirm": "sha256:9f",
}


@pytest.fixture
def answered(monkeypatch: pytest.MonkeyPatch) -> None:
    documents = {"/api/v1/status": STATUS, "/api/v1/keys": {"keys": [{"id": "open-webui"}]}}
    monkeypatch.setattr("llmgw.cli.ask.get", lambda _peer, path, **_: documents[path])


@pytest.mark.usefixtures("answered")
@pytest.mark.parametrize(
    ("complete", "typed", "found"),
    [
        (names.models, "", ["chat", "coder", "default"]),
        (names.models, "c", ["chat", "coder"]),
        (names.running, "ch", ["chat", "chat-7k2"]),
        (names.replicas, "", ["chat-7k2"]),
        (names.anything, "c", ["chat", "chat-7k2", "coder", "cube"]),
        (names.nodes, "", ["box1", "cube"]),
        (names.places, "b", ["box1"]),
        (names.places, "box1/", ["box1/0", "box1/1"]),
        (names.digest, "", ["sha256:9f"]),
        (names.keys, "o", ["open-webui"]),
        (names.keys, "x", []),
    ],
)
def test_what_begins_so_is_offered(
    complete: Callable[[str], list[str]], typed: str, found: list[str]
) -> None:
    assert complete(typed) == found


@pytest.mark.parametrize("answer", [None, [], {"models": []}, {}])
def test_another_answer_is_none(monkeypatch: pytest.MonkeyPatch, answer: object) -> None:
    monkeypatch.setattr("llmgw.cli.ask.get", lambda *_, **__: answer)
    assert names.anything("") == []


@pytest.mark.parametrize(
    "verb", ["status", "stop", "wake", "wait", "logs", "drain", "undrain", "forget", "clear"]
)
def test_a_shell_hears_nothing_when_control_is_down(verb: str) -> None:
    line = f"llmgw {verb} x"
    env = os.environ | {
        "LLMGW_CONTROL": f"http://127.0.0.1:{free_port()}", "_LLMGW_COMPLETE": "complete_bash", "COMP_WORDS": line,
        "COMP_CWORD": "2",
    }  # fmt: skip
    said = subprocess.run(
        [sys.executable, "-m", "llmgw"],
        env=env,
        capture_output=True,
        text=True,
        timeout=20,
        check=False,
    )
    assert (said.returncode, said.stdout.strip(), said.stderr) == (0, "", "")
