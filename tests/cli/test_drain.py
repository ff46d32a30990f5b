"""`llmgw drain NODE[/GPU]` and `undrain`: they name what leaves and ask, send the place, and say what follows (A65)."""

from __future__ import annotations

from typing import Any

import pytest

from tests.cli.say import Said, llmgw
from tests.cli.stub import Stub, Terminal, refused

Json = dict[str, Any]
SINCE = "since 2026-01-01T00:00:00Z by the operator"


def shard(name: str, node: str, gpu: str, state: str = "ready") -> Json:
    return {"shard": name, "node": node, "pid": 7, "state": state, "gpus": [gpu]}


@pytest.fixture
def fleet(stub: Stub) -> Stub:
    gpus = [{"uuid": "GPU-a", "index": 0}, {"uuid": "GPU-b", "index": 1}]
    stub.answers["GET /api/v1/status"] = {
        "nodes": [{"node": "box1", "gpus": gpus}, {"node": "box2", "gpus": None}],
        "models": [{"name": "alpha", "min": 1}, {"name": "deep", "min": 0}],
        "replicas": [
            {
                "model": "alpha",
                "incarnation": "i1",
                "shards": [shard("alpha-1/0", "box1", "GPU-a")],
            },
            {
                "model": "deep",
                "incarnation": "i2",
                "shards": [shard("deep-1/0", "box1", "GPU-b"), shard("deep-1/1", "box2", "GPU-x")],
            },
            {
                "model": "old",
                "incarnation": "i3",
                "shards": [shard("old-1/0", "box1", "GPU-b", "failed")],
            },
        ],
    }
    answer(stub, "box1")
    return stub


def answer(stub: Stub, node: str, *leaves: Json, gpu: str | None = None, **more: Any) -> None:
    about = {"node": node, "gpu": gpu, "where": f"GPU 1 of {node}" if gpu else node}
    stub.answers[f"POST /api/v1/nodes/{node}/drain"] = (
        about | {"drained": SINCE, "leaves": list(leaves), "warning": None} | more
    )


def typing(monkeypatch: pytest.MonkeyPatch, text: str, *words: str) -> Said:
    monkeypatch.setattr("sys.stdin", Terminal(text))
    return llmgw(*words)


@pytest.mark.parametrize(
    ("place", "what"),
    [
        (
            "box1/0",
            (
                "this stops 1 engine to free box1/0, once requests in flight are done: "
                "alpha-1/0 on box1 (pid 7); alpha starts elsewhere first where there is room"
            ),
        ),
        (
            "box1/gpu1",
            (
                "this stops 2 engines to free box1/gpu1, once requests in flight are done: "
                "deep-1/0 on box1 (pid 7), deep-1/1 on box2 (pid 7)"
            ),
        ),
        ("box1/GPU-B", "this stops 2 engines to free box1/GPU-B, "),
        ("box1", "this stops 3 engines to free box1, "),
    ],
)
def test_it_names_what_goes_and_without_a_terminal_it_does_not_ask(
    fleet: Stub, place: str, what: str
) -> None:
    said = llmgw("drain", place)
    assert said.code == 2
    assert said.err.startswith(f"llmgw: {what}")
    assert said.err.endswith(
        "not asked, because stdin is not a terminal\nhint: add --yes to mean it\n"
    )
    assert fleet.sent == []


def test_a_no_changes_nothing(fleet: Stub, monkeypatch: pytest.MonkeyPatch) -> None:
    said = typing(monkeypatch, "n\n", "drain", "box1")
    assert said.err.endswith("llmgw: not confirmed, box1 is used on\n")
    assert fleet.sent == []


def test_a_yes_is_sent_and_what_follows_is_said(
    fleet: Stub, monkeypatch: pytest.MonkeyPatch
) -> None:
    row = {"shard": "deep-1/0", "pid": 7, "what": "requests in flight finish, then it is stopped"}
    answer(fleet, "box1", row, gpu="GPU-b", warning="disk full")
    said = typing(monkeypatch, "y\n", "drain", "box1/gpu1")
    assert (said.code, said.out.splitlines()) == (
        0,
        [
            f"GPU 1 of box1 is drained {SINCE}",
            "deep-1/0 (pid 7): requests in flight finish, then it is stopped",
            "`llmgw status box1` shows when it is free; llmgw undrain box1/gpu1 gives it back",
        ],
    )
    assert said.err.endswith("llmgw: a restart of control would forget it: disk full\n")
    assert fleet.sent == [("POST /api/v1/nodes/box1/drain", {"gpu": "gpu1"})]


def test_what_runs_nothing_of_ours_is_not_asked_about(fleet: Stub) -> None:
    answer(fleet, "box3")
    said = llmgw("drain", "box3")
    assert (said.code, said.out.splitlines()) == (
        0,
        [f"box3 is drained {SINCE}", "llmgw undrain box3 gives it back"],
    )
    assert fleet.sent == [("POST /api/v1/nodes/box3/drain", {})]


def test_wait_returns_once_it_is_free(fleet: Stub, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also when control restarts meanwhile: what leaves is no business of this process."""
    status = fleet.answers["GET /api/v1/status"]
    looks = [refused("control is on its way out", status=503), status, status | {"replicas": []}]

    def pause(_: float) -> None:
        fleet.answers["GET /api/v1/status"] = looks.pop(0)

    monkeypatch.setattr("llmgw.cli.drain.time.sleep", pause)
    row = {"shard": "alpha-1/0", "pid": 7, "what": "it goes"}
    answer(fleet, "box1", row)
    said = llmgw("drain", "box1", "--yes", "--wait")
    assert said.code == 0
    assert said.out.splitlines()[-1] == "box1 is free"
    assert said.err == "llmgw: control is on its way out\n"
    assert looks == []


def test_a_wait_says_what_is_new_and_nothing_twice(
    fleet: Stub, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A control that is away for a minute was a hundred lines in the log of a cron job."""
    status: Json = fleet.answers["GET /api/v1/status"]
    away = refused("control is on its way out", status=503)

    def held(*waits: str) -> Json:
        rows = [{"shard": "alpha-1/0", "waits": why} for why in waits]
        other = {"shard": "elsewhere-1/0", "waits": "nobody's business"}
        return status | {"stops_pending": [*rows, other, {}]}

    silent = status | {"nodes": [{"node": "box1", "state": "unreachable", "gpus": []}]}
    looks = [away, away, held("at most 9 s more"), held("at most 8 s more"), away, away]
    looks += [silent, silent, status, status | {"replicas": []}]
    monkeypatch.setattr(
        "llmgw.cli.drain.time.sleep",
        lambda _: fleet.answers.update({"GET /api/v1/status": looks.pop(0)}),
    )
    answer(fleet, "box1")
    said = llmgw("drain", "box1", "--yes", "--wait")
    assert (said.code, looks) == (0, [])
    there = "llmgw: still there: alpha-1/0, deep-1/0; "
    assert said.err.splitlines() == [
        "llmgw: control is on its way out",
        f"{there}at most 9 s more",
        "llmgw: control is on its way out",
        f"{there}box1 does not answer, and nobody but its agent can end them",
    ]


def test_a_wait_ends_where_it_may_not_ask(fleet: Stub, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "llmgw.cli.drain.time.sleep",
        lambda _: fleet.answers.update({"GET /api/v1/status": refused("no", status=401)}),
    )
    answer(fleet, "box1")
    assert llmgw("drain", "box1", "--yes", "--wait").code == 4


def test_undrain_says_since_when_it_was_and_what_is_still(fleet: Stub) -> None:
    path = "POST /api/v1/nodes/box1/undrain"
    fleet.answers[path] = {
        "where": "box1",
        "was": SINCE,
        "still": ["GPU 1 of box1"],
        "leaves": [{"shard": "a-1/0", "pid": 9, "what": "it is still stopped"}],
        "warning": None,
    }
    assert llmgw("undrain", "box1").out.splitlines() == [
        f"box1 may be used again; it had been drained {SINCE}",
        "a-1/0 (pid 9): it is still stopped",
        "still drained: GPU 1 of box1",
    ]
    fleet.answers[path] = {"where": "box1", "was": None, "still": [], "warning": None}
    assert llmgw("undrain", "box1/1").out == "box1 was not drained\n"
    assert fleet.sent == [(path, {}), (path, {"gpu": "1"})]


@pytest.mark.parametrize("verb", ["drain", "undrain"])
def test_an_unknown_node_is_controls_to_refuse_and_an_empty_name_is_nobodys(
    fleet: Stub, verb: str
) -> None:
    path = f"POST /api/v1/nodes/bxo1/{verb}"
    fleet.answers[path] = refused("there is no node called bxo1", "did you mean box1?", 404)
    said = llmgw(verb, "bxo1")
    assert (said.code, said.err) == (
        1,
        "llmgw: there is no node called bxo1\nhint: did you mean box1?\n",
    )
    assert llmgw(verb, " ").code == 2


@pytest.mark.parametrize("verb", ["drain", "undrain"])
def test_a_slash_with_no_gpu_behind_it_is_not_the_whole_node(fleet: Stub, verb: str) -> None:
    """A script's `box1/$GPU` whose variable is empty."""
    said = llmgw(verb, "box1/", *(["--yes"] if verb == "drain" else []))
    assert said.code == 2
    assert said.err == (
        "llmgw: box1/ names no GPU behind the slash\n"
        "hint: write box1 for the whole node, or a GPU of it like box1/0\n"
    )
    assert not fleet.sent
