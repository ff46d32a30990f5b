"""`llmgw down`: what it asks, and waits that end."""

import pytest

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
