"""`status NAME`: what is about that name and nothing else; and since when a node is silent, as far as it is known."""

from __future__ import annotations

from typing import Any

import pytest

from llmgw.render import status
from tests.cli.test_render import GPU, NODE, NOW_S, REPLICA, SHARD, fleet, text

OTHER_SHARD = {**SHARD, "shard": "other-1/0", "node": "box2"}
OTHER = {**REPLICA, "replica": "other-1", "incarnation": "j", "model": "other"}
OTHER |= {"shards": [OTHER_SHARD]}


def stop(shard: str, node: str) -> dict[str, Any]:
    return {"shard": shard, "node": node, "reason": "drift", "why": "w", "at": None}


def foreign(pid: int, shard: str | None = None) -> dict[str, Any]:
    row = {"pid": pid, "gpu": GPU["uuid"], "memory": 1 << 30, "command": f"program{pid}"}
    return row | {"port": None, "shard": shard, "why": None}


@pytest.mark.parametrize("name", ["coder", "default", "coder-7k2", "coder-7k2/0", "box1"])
def test_a_stop_that_is_pending_is_shown_where_it_belongs(name: str) -> None:
    stops = [stop("coder-7k2/0", "box1"), stop("other-1/0", "box2")]
    lines = text(fleet(replicas=[REPLICA, OTHER], stops_pending=stops), name=name)
    assert [line.split()[2] for line in lines if line.startswith("stop pending")] == [
        "coder-7k2/0,"
    ]


def test_of_a_node_all_that_is_on_its_gpus_of_a_model_what_is_its_own() -> None:
    """What a shard of it holds beyond what it was given is its own; a desktop on the same card is not."""
    rows = [foreign(1), foreign(2, "coder-7k2/0"), foreign(3, "other-1/0")]
    document = fleet(nodes=[{**NODE, "foreign": rows}], replicas=[REPLICA, OTHER])

    def programs(name: str) -> list[str]:
        lines = text(document, name=name, wide=True)
        return [word for line in lines for word in line.split() if word.startswith("program")]

    assert programs("box1") == ["program1", "program2", "program3"]
    assert programs("coder") == ["program2"]
    assert text(document, wide=True), "the whole document is left as it was"
    assert len(document["nodes"][0]["foreign"]) == 3


def test_a_node_that_a_control_has_not_heard_since_it_started() -> None:
    """How long it was silent before nobody can tell: at least as long as this control knows."""
    node = {**NODE, "state": "unreachable", "since": None}
    document = fleet(nodes=[node], started_at="2025-12-31T23:59:20Z")
    assert text(document)[1].startswith("box1  unreachable >40s  ")
    (said,) = status.complaints(document)
    at = status.clock("2025-12-31T23:59:20Z")
    assert said == (f"warning: node box1 is unreachable, not heard since control started at {at}")
    assert text(fleet(nodes=[{**node, "since": "2025-12-31T23:59:50Z"}]))[1].startswith(
        "box1  unreachable 10s  "
    )
    expected = fleet(nodes=[{**node, "state": "expected"}], started_at="2025-12-31T23:59:20Z")
    assert text(expected)[1].startswith("box1  expected >40s  ")
    assert text(fleet(nodes=[node]))[1].startswith("box1  unreachable  "), "of an older control"
    assert NOW_S
