"""`llmgw logs` of what has none: what was probably meant, by control's picture and in the words of its agent."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import NoReturn

import pytest

from llmgw.errors import EXIT_INTERRUPTED, EXIT_UNKNOWN, UnreachableError
from tests.cli.say import llmgw
from tests.cli.stub import Stub

STATUS = {
    "models": [{"name": "default", "aliases": ["chat"], "state": "ready", "why": ""}],
    "replicas": [{"replica": "default-1", "model": "default"}],
}
RUN = "`llmgw status` shows what there is; `llmgw events` names those that ended"
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
        ("nope", f"known: default, chat, default-1; {RUN}"),
        ("defualt", f"did you mean default? {RUN}"),
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


def test_what_it_wrote_as_json(stub: Stub) -> None:
    """One document; with -f a line each, as every stream (contract/cli.md)."""
    stub.answers["GET /api/v1/status"] = STATUS
    stub.answers[f"GET /api/v1/logs/default-1/0?{ASK}"] = "said \x1b[31mred"
    said = llmgw("logs", "default", "-o", "json")
    assert said.code == 0
    lines = [json.dumps("said \x1b[31mred")]  # the stub's answer is JSON, and so the log's one line
    assert json.loads(said.out) == {
        "schema": "llmgw.logs/1",
        "shard": "default-1/0",
        "lines": lines,
    }


def test_this_box_alone_cannot_tell_that_nobody_has_it(
    stub: Stub, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LLMGW_CONTROL", "http://127.0.0.1:1")
    monkeypatch.setenv("LLMGW_AGENT", stub.url)
    stub.answers[f"GET /v1/logs/away/0?{ASK}"] = error("not_found", "no replica away here", 404)
    said = llmgw("logs", "away")
    assert said.code == EXIT_UNKNOWN
    assert said.err.startswith("llmgw: no control at 127.0.0.1:1: ")
    assert "; no replica away here\n" in said.err


def test_followed_before_its_first_line_it_waits_for_a_control_that_went(
    stub: Stub, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An engine is silent while it imports; and one outage is said once, not with each try."""
    tries = [(True, ""), (False, ""), (False, ""), (True, "1")]

    def lines(_: object, path: str, *, heard: Callable[[], None], **_more: object) -> Iterator[str]:
        if path.startswith("/api/"):
            if not tries:
                raise KeyboardInterrupt
            answers, line = tries.pop(0)
            if answers:
                heard()
            yield from [line] if line else []
        message = "no control"
        raise UnreachableError(message)

    monkeypatch.setattr("time.sleep", lambda _s: None)
    monkeypatch.setattr("llmgw.cli.stream.lines", lines)
    stub.answers["GET /api/v1/status"] = STATUS
    said = llmgw("logs", "default", "-f", "-o", "json")
    assert said.code == EXIT_INTERRUPTED
    assert json.loads(said.out) == {"shard": "default-1/0", "line": "1"}
    assert said.err.count("no control; going on when it answers\n") == 2


def test_followed_by_a_models_name_this_boxes_agent_goes_on_alone(
    stub: Stub, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Which replica it was is known from before: the agent knows no models."""
    asked: list[str] = []

    def lines(_: object, path: str, *, heard: Callable[[], None], **_more: object) -> Iterator[str]:
        asked.append(path.partition("?")[0])
        if len(asked) > 1 and path.startswith("/v1/"):
            raise KeyboardInterrupt
        heard()
        yield from ()
        message = "broke off"
        raise UnreachableError(message)

    def gone(*_: object, **_more: object) -> NoReturn:
        message = "no control"
        raise UnreachableError(message)

    def sleep(_s: float) -> None:
        monkeypatch.setattr("llmgw.cli.ask.get", gone)

    monkeypatch.setattr("time.sleep", sleep)
    monkeypatch.setattr("llmgw.cli.stream.lines", lines)
    stub.answers["GET /api/v1/status"] = STATUS
    assert llmgw("logs", "default", "-f").code == EXIT_INTERRUPTED
    assert asked[-1] == "/v1/logs/default-1/0"
