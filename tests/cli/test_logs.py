"""`llmgw logs` of what has none: what was probably meant, by control's picture and in the words of its agent."""

from __future__ import annotations

import pytest

from tests.cli.say import llmgw
from tests.cli.stub import Stub

STATUS = {
    "models": [{"name": "default", "aliases": ["chat"], "state": "ready", "why": ""}],
    "replicas": [{"replica": "default-1", "model": "default"}],
}
ASK = "previous=0&tail=65536"


def error(code: str, message: str, status: int) -> tuple[int, dict[str, object]]:
    return status, {"error": {"message": message, "code": code, "hint": "the agent's own"}}


@pytest.fixture
def box(stub: Stub, monkeypatch: pytest.MonkeyPatch) -> Stub:
    """Control that cannot ask the agent, and the agent: at one address."""
    monkeypatch.setenv("LLMGW_AGENT", stub.url)
    stub.answers["GET /api/v1/status"] = STATUS
    for name in ("nope", "defualt", "default-1"):
        for path in (f"{name}/0?{ASK}", f"{name}/0?previous=1&tail=65536"):
            stub.answers[f"GET /api/v1/logs/{path}"] = error("no_log_here", "loopback", 503)
    return stub


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("nope", "`llmgw status` shows what there is, `llmgw events` names those that ended"),
        ("defualt", "did you mean default?"),
    ],
)
def test_a_name_that_nobody_knows(box: Stub, name: str, hint: str) -> None:
    box.answers[f"GET /v1/logs/{name}/0?{ASK}"] = error("not_found", "not here", 404)
    said = llmgw("logs", name)
    assert said.code == 1
    assert said.err == f"llmgw: there is no model or replica called {name}\nhint: {hint}\n"


def test_of_one_that_is_known_the_agent_speaks(box: Stub) -> None:
    asked = "GET /v1/logs/default-1/0?previous=1&tail=65536"
    box.answers[asked] = error("no_log_here", "default-1/0 has no attempt before this one", 404)
    said = llmgw("logs", "default", "--previous")
    assert said.err.startswith("llmgw: default-1/0 has no attempt before this one\n")


def test_an_agent_that_knows_one_that_control_does_not_is_believed(box: Stub) -> None:
    """It ended, and is out of the picture."""
    box.answers[f"GET /v1/logs/nope/0?{ASK}"] = error("no_log_here", "no attempt before", 404)
    assert "no attempt before" in llmgw("logs", "nope").err
