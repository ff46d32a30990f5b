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
        assert (
            error["message"]
            == f"model '{name}' cannot start: model file {lacks} does not exist on box1"
        )
        assert error["hint"] == f"put it there, then `llmgw clear {name}`"
        woken = fleet.llmgw("wake", name)
        assert woken.returncode == 1
        assert woken.stdout.startswith(f"{name} is not started: ")
        assert woken.stdout.endswith(f"at once after llmgw clear {name}\n")
    assert "nothing of alpha runs" in fleet.llmgw("logs", "alpha").stderr
    events = fleet.http.get(f"{fleet.urls['control']}/api/v1/events?after=0").json()["events"]
    assert {e["kind"] for e in events}.isdisjoint({"failed", "terminal"})
    assert fleet.engines() == {}
    shutil.copy(there, lacks)
    assert fleet.llmgw("clear", "alpha").returncode == 0
    assert answer(fleet, "alpha") == " hello from alpha."


def test_a64_the_minute_of_one_refusal_is_nobody_else_s_wait(make: Make, tmp_path: Path) -> None:
    """What fits on no node, or on none that takes work, is told so at once, whatever else was refused just before."""
    broken = [str(tmp_path / "no.gguf") if w.endswith(".gguf") else w for w in tiny("broken")]
    fleet = make(
        {
            "broken": model(broken, least=0),
            "many": model(tiny("many"), least=0, cpu_cores=4096),
            "beta": model(tiny("beta"), least=0),
        }
    )
    served(fleet)
    assert ask(fleet, "broken").json()["error"]["message"].startswith("model 'broken' cannot start")
    said = fleet.llmgw("wake", "many")
    assert (said.returncode, said.stderr) == (1, "")
    assert said.stdout.startswith("many has no room: ")
    assert fleet.llmgw("drain", "box1", "--yes").returncode == 0
    said = fleet.llmgw("wake", "beta")
    assert (said.returncode, said.stderr) == (1, "")
    assert said.stdout.startswith("beta has no room: ")
    assert "box1: is drained since" in said.stdout
