"""`llmgw down`: what it asks, and waits that end."""

import os

import pytest

from llmgw.cli import box
from tests.cli.say import Said, llmgw
from tests.cli.stub import Json, Stub, Terminal


@pytest.fixture
def control(stub: Stub) -> Stub:
    shards = [
        {"shard": f"alpha-{n}/0", "node": n, "pid": 7, "state": "ready"} for n in ("box1", "box2")
    ]
    nodes = [{"node": "box1", "state": "ready"}, {"node": "box2", "state": "unreachable"}]
    status: Json = {"nodes": nodes, "replicas": [{"shards": shards}]}
    stub.answers["GET /api/v1/status"] = status
    return stub


def down(*words: str) -> Said:
    return llmgw("down", "--engines", *words)


def test_no_is_an_answer(control: Stub, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdin", Terminal("n\n"))
    said = down()
    assert said.code == 1
    assert "this ends 2 engines: alpha-box1/0 on box1 (pid 7)" in said.err
    assert "llmgw: not confirmed, nothing was ended\n" in said.err
    assert control.sent == []


def test_a_node_that_does_not_answer_is_not_waited_for(control: Stub) -> None:
    control.answers["GET /api/v1/status"]["replicas"][0]["shards"].pop(0)
    said = down("--yes")
    assert said.code == 3
    assert said.err == (
        "llmgw: cannot be ended, box2 does not answer: alpha-box2/0 on box2 (pid 7)\n"
        "hint: start the agent there and try again; `llmgw down` ends control and leaves them running\n"
    )
    assert control.sent == [("POST /api/v1/end", {})]


def test_nobody_is_there_to_end_the_engines() -> None:
    """They are not forgotten, and nothing else is ended in their place."""
    said = llmgw("down", "--engines", "--yes", "--control", "http://127.0.0.1:9")
    assert said.code == 3
    assert said.err.splitlines()[0] == (
        "llmgw: no control at 127.0.0.1:9: connection refused: it is control that ends engines; "
        "nothing was ended"
    )
    assert "`llmgw up` finds all that runs" in said.err


def test_a_gateway_that_goes_on_is_not_called_ended(
    control: Stub, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It holds a request that waits for a start, and ends after that."""
    control.answers["POST /api/v1/shutdown"] = {"pid": 0, "gateway_pid": 4711}
    monkeypatch.setattr(box, "_wait_gone", lambda _peer, _pid: None)
    monkeypatch.setattr(box, "_here", lambda _peer, _pid: os.getpid())
    monkeypatch.setattr(box, "END_S", 0.0)
    said = llmgw("down")
    assert said.code == 0
    assert f"llmgw: the gateway (pid {os.getpid()}) still has requests" in said.err
    assert "llmgw: control has ended\n" in said.err
    assert "the gateway have ended" not in said.err
