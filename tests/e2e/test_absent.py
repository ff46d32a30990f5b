"""A model file that is not there: who asks is told at once, nothing fails in a loop, and once it is there it starts."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.e2e.conftest import Make, model, tiny
from tests.e2e.test_swap import answer, ask, served

pytestmark = pytest.mark.e2e


def test_a67_an_absent_model_file(make: Make, tmp_path: Path) -> None:
    command = tiny("alpha")
    there = next(word for word in command if word.endswith(".gguf"))
    lacks = tmp_path / "to-be-fetched.gguf"
    by_command = [str(lacks) if word == there else word for word in command]
    by_weights = ["${weights}" if word == there else word for word in command]
    fleet = make(
        {
            "alpha": model(by_weights, least=0, weights=str(lacks)),
            "beta": model(by_command, least=0),
        }
    )
    served(fleet)
    for name in ("alpha", "beta"):
        refused = ask(fleet, name)
        error = refused.json()["error"]
        assert (refused.status_code, error["code"]) == (503, "model_no_room")
        assert f"model file {lacks} does not exist on box1; put it there" in error["message"]
        assert error["message"].endswith(f"at once after llmgw clear {name}")
    assert "nothing of alpha runs" in fleet.llmgw("logs", "alpha").stderr
    events = fleet.http.get(f"{fleet.urls['control']}/api/v1/events?after=0").json()["events"]
    assert {e["kind"] for e in events}.isdisjoint({"failed", "terminal"})
    assert fleet.engines() == {}
    shutil.copy(there, lacks)
    assert fleet.llmgw("clear", "alpha").returncode == 0
    assert answer(fleet, "alpha") == " hello from alpha."
