"""`llmgw adopt NODE:PID --as MODEL/PROFILE` as it is typed and read, and strangers in the dry run (A70, A71)."""

from __future__ import annotations

import json
from typing import Any

import pytest

from llmgw.render import page, plan, takeover
from tests.cli.say import llmgw
from tests.cli.stub import Stub

GIB = 1 << 30
FACTS = [
    {"what": "program", "wanted": "llama-server", "runs": "llama-server", "same": True},
    {"what": "-c", "wanted": "32768", "runs": "16384", "same": False},
]
DONE: dict[str, Any] = {
    "schema": "llmgw.takeover/1",
    "node": "box2",
    "pid": 4242,
    "model": "qwen",
    "profile": "q4",
    "facts": FACTS[:1],
    "taken": True,
    "already": False,
    "shard": "qwen-7k2m/0",
    "state": "ready",
    "why": None,
    "hint": None,
    "exit_code": 0,
}
REFUSED = DONE | {
    "facts": FACTS,
    "taken": False,
    "shard": None,
    "why": "it is not what qwen/q4 starts: -c 16384 instead of 32768",
    "hint": "stop it",
    "exit_code": 1,
}


def shown(document: dict[str, Any]) -> list[str]:
    return [" ".join(x.split()) for x in page.plain(takeover.page(document)).splitlines()]


def test_a71_each_fact_on_a_line_then_what_became_of_it() -> None:
    assert shown(DONE) == [
        "FACT WANTED RUNS WITH",
        "program llama-server llama-server = same",
        (
            "pid 4242 on box2 is qwen-7k2m/0 now, ready; nothing was restarted, and from here on it is "
            "started, drained and stopped like any other"
        ),
    ]
    assert shown(REFUSED)[2:] == ["-c 32768 16384 ! differs"]
    dry = DONE | {"taken": False}
    assert shown(dry)[-1] == "pid 4242 on box2 would be taken over as qwen/q4"
    failed = DONE | {"state": "failed", "why": "nobody saw it exit"}
    assert "is qwen-7k2m/0 now, failed: nobody saw it exit;" in shown(failed)[-1]
    again = DONE | {"already": True, "facts": [], "why": "pid 4242 on box2 is qwen-1/0 already"}
    assert shown(again) == ["pid 4242 on box2 is qwen-1/0 already: nothing was done"]


def test_a71_asked_of_control_with_its_exit_code(stub: Stub) -> None:
    stub.answers["POST /api/v1/adopt"] = REFUSED
    said = llmgw("adopt", "box2:4242", "--as", "qwen/q4", "--control", stub.url)
    assert (said.code, said.out.splitlines()[0].split()[0]) == (1, "FACT")
    assert said.err == (
        "llmgw: pid 4242 on box2 was not taken over as qwen/q4: it is not what qwen/q4 starts: -c 16384 "
        "instead of 32768\nhint: stop it\n"
    )
    asked = {"node": "box2", "pid": 4242, "as": "qwen/q4", "dry_run": False}
    assert stub.sent == [("POST /api/v1/adopt", asked)]
    stub.answers["POST /api/v1/adopt"] = DONE
    words = ("adopt", "box2:4242", "--as", "qwen", "--dry-run", "-o", "json")
    said = llmgw(*words, "--control", stub.url)
    assert (said.code, json.loads(said.out)) == (0, DONE)
    assert stub.sent[1][1]["dry_run"]


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (["box2", "--as", "q"], "'box2' is not NODE:PID"),
        (["box2:x", "--as", "q"], "'box2:x' is not NODE:PID"),
        ([":7", "--as", "q"], "':7' is not NODE:PID"),
        (["--as", "q"], "--as says what, and not which engine"),
        (
            ["box2:7"],
            "what box2:7 is to be taken over as is not said\nhint: llmgw adopt box2:7 --as ",
        ),
        (["box2:7", "--as", "q", "--catalog", "c.yaml"], "taken over by the running control"),
    ],
)
def test_a71_half_said_is_refused(words: list[str], why: str) -> None:
    said = llmgw("adopt", *words)
    assert said.code == 2
    assert why in said.err
    assert "hint:" in said.err


def row(pid: int, gpu: str, gib: int, **more: Any) -> dict[str, Any]:
    command = "/opt/llama-server -m x" if pid == 4242 else "Xorg"
    about = {"node": "box2", "pid": pid, "gpu": gpu, "memory": gib * GIB, "command": command}
    none: dict[str, Any] = {
        "port": None,
        "engine": None,
        "matches": None,
        "nearest": None,
        "differs": [],
    }
    return about | none | {"adopt": None} | more


def strangers(*rows: dict[str, Any]) -> list[str]:
    document = {
        "shards": [],
        "nodes": [],
        "actions": [],
        "gpus": [{"uuid": "GPU-1", "index": 1}, {"uuid": "GPU-0", "index": 0}],
        "foreign": list(rows),
        "complete": True,
        "disturbs": 0,
        "digest": "sha256:0",
    }
    lines = page.plain(plan.page(document)).splitlines()[1:-1]
    return [" ".join(x.split()) for x in lines]


def test_a70_an_engine_of_a_person_is_one_line_with_what_to_do() -> None:
    """contract/cli.md `? foreign`: its GPUs and memory together, and the command that takes it over."""
    line = "llmgw adopt box2:4242 --as qwen/q4"
    like = {"engine": 4242, "matches": "qwen/q4", "nearest": "qwen/q4", "adopt": line}
    assert strangers(
        row(4242, "GPU-1", 18, port=8080, **like),
        row(4243, "GPU-0", 2, **like),
        row(9, "GPU-0", 1),
    ) == [
        "? foreign llama-server pid 4242 box2 0,1 8080 - holds 20.0 GiB, matches q4",
        "? foreign Xorg pid 9 box2 0 - - holds 1.0 GiB; not ours, left alone",
        f"take over: {line}",
    ]


def test_a71_one_too_many_is_not_offered_for_it_would_be_refused() -> None:
    why = "qwen has 1 of max 1 replicas: qwen-1 (ready)"
    like = {"engine": 4242, "matches": "qwen/q4", "nearest": "qwen/q4", "in_the_way": why}
    assert strangers(row(4242, "GPU-1", 18, port=8080, **like)) == [
        f"? foreign llama-server pid 4242 box2 1 8080 - holds 18.0 GiB, matches q4; {why}"
    ]


def test_a70_an_engine_of_a_node_that_is_no_more_says_whose_it_is() -> None:
    assert strangers(row(4242, "", 0, port=8080, why="carries the marks of node old")) == [
        "? foreign llama-server pid 4242 box2 - 8080 - listens; carries the marks of node old"
    ]


def test_a70_what_is_not_quite_it_says_why() -> None:
    differs = [{"what": "-c", "wanted": "32768", "runs": "16384"}]
    like = {"engine": 4242, "nearest": "qwen/q4", "differs": differs, "port": 8080}
    assert strangers(row(4242, "", 0, **like)) == [
        (
            "? foreign llama-server pid 4242 box2 - 8080 - listens, is not quite qwen/q4: -c 16384 "
            "instead of 32768; left alone"
        )
    ]
