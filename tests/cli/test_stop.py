"""`llmgw stop` and `forget`: they name what goes and ask, and say what follows (A43, A47, A65)."""

from __future__ import annotations

from typing import Any

import pytest

from tests.cli.say import Said, llmgw
from tests.cli.stub import Stub, Terminal, refused

Json = dict[str, Any]


def replica(name: str, model: str, *nodes: str, state: str = "ready") -> Json:
    shards = [
        {"shard": f"{name}/{rank}", "node": node, "pid": 7, "state": "ready"}
        for rank, node in enumerate(nodes)
    ]
    about = {"replica": name, "incarnation": f"inc-{name}", "model": model, "state": state}
    return about | {"shards": shards}


@pytest.fixture
def fleet(stub: Stub) -> Stub:
    models = [
        {"name": "alpha", "aliases": ["first", "org/alpha"], "min": 2},
        {"name": "beta", "aliases": [], "min": 0},
    ]
    stub.answers["GET /api/v1/status"] = {
        "nodes": [
            {"node": "box1", "state": "ready"},
            {"node": "box2", "state": "unreachable"},
            {"node": "box3", "state": "unreachable"},
        ],
        "models": models,
        "replicas": [
            replica("alpha-1", "alpha", "box1"),
            replica("alpha-2", "alpha", "box1"),
            replica("alpha-3", "alpha", "box1"),
            replica("beta-1", "beta", "box1", "box2"),
            replica("gone-1", "gone", "box2"),
        ],
    }
    return stub


def answer(stub: Stub, path: str, *shards: Json, model: str = "beta", **more: Any) -> None:
    rows = [{"model": model, "shards": list(shards)}] if shards else []
    stub.answers[f"POST /api/v1/{path}/stop"] = {"stopping": rows, "wanted": {}} | more


def place(name: str, node: str = "box1", waits: str | None = None) -> Json:
    return {"shard": name, "node": node, "pid": 7, "waits": waits}


def typing(monkeypatch: pytest.MonkeyPatch, text: str, *words: str) -> Said:
    monkeypatch.setattr("sys.stdin", Terminal(text))
    return llmgw(*words)


@pytest.mark.parametrize(
    ("name", "what"),
    [
        (
            "alpha-1",
            "this stops 1 engine, once requests in flight are done: alpha-1/0 on box1 (pid 7)",
        ),
        (
            "beta-1/1",
            (
                "this stops 2 engines, once requests in flight are done: beta-1/0 on box1 (pid 7), "
                "beta-1/1 on box2 (pid 7)"
            ),
        ),
        (
            "first",
            (
                "this stops 3 engines, once requests in flight are done: alpha-1/0 on box1 (pid 7), "
                "alpha-2/0 on box1 (pid 7), alpha-3/0 on box1 (pid 7)\n"
                "the catalog wants min 2 of alpha: another one is started where there is room"
            ),
        ),
    ],
)
def test_through_a_pipe_it_names_them_and_refuses(fleet: Stub, name: str, what: str) -> None:
    said = llmgw("stop", name)
    assert (said.code, said.out) == (2, "")
    assert said.err == (
        f"llmgw: {what}; not asked, because stdin is not a terminal\nhint: add --yes to mean it\n"
    )
    assert fleet.sent == []


def test_on_a_terminal_it_asks(fleet: Stub, monkeypatch: pytest.MonkeyPatch) -> None:
    answer(fleet, "replicas/alpha-1", place("alpha-1/0"), model="alpha")
    said = typing(monkeypatch, "n\n", "stop", "alpha-1")
    assert said.code == 1
    assert said.err.endswith("llmgw: not confirmed, nothing was stopped\n")
    assert fleet.sent == []
    said = typing(monkeypatch, "y\n", "stop", "alpha-1")
    assert (said.code, said.out) == (
        0,
        "stopping alpha-1/0 on box1 (pid 7): requests in flight finish first\n",
    )
    assert fleet.sent == [("POST /api/v1/replicas/alpha-1/stop", {})]
    assert typing(monkeypatch, "", "stop", "alpha-1").code == 130


def test_what_follows_is_said(fleet: Stub) -> None:
    away = place("beta-1/1", "box2", "box2 does not answer")
    answer(fleet, "models/beta", place("beta-1/0"), away, warning="disk full")
    said = llmgw("stop", "beta", "--yes")
    assert (said.code, said.out.splitlines()) == (
        0,
        [
            "stopping beta-1/0 on box1 (pid 7): requests in flight finish first",
            "stopping beta-1/1 on box2 (pid 7): box2 does not answer",
            "beta is on demand: the next request wakes it again",
        ],
    )
    assert said.err == "llmgw: a restart of control would forget it: disk full\n"
    answer(fleet, "models/alpha", place("alpha-1/0"), model="alpha", wanted={"alpha": 2})
    assert llmgw("stop", "org/alpha", "--yes").out.splitlines() == [
        "stopping alpha-1/0 on box1 (pid 7): requests in flight finish first",
        "the catalog wants min 2 of alpha: another one is started where there is room",
    ]
    answer(fleet, "models/alpha")
    fleet.answers["GET /api/v1/status"]["replicas"] = []
    assert llmgw("stop", "alpha").out == "nothing of alpha runs\n"


def test_a_model_that_the_catalog_lost_has_its_name_still(fleet: Stub) -> None:
    answer(fleet, "models/gone", place("gone-1/0", "box2"), model="gone")
    assert llmgw("stop", "gone", "--yes").code == 0
    assert fleet.sent[0][0] == "POST /api/v1/models/gone/stop"


@pytest.mark.parametrize(
    ("words", "sent"),
    [
        (["alhpa"], ("alhpa", {})),
        (["--force", "alhpa"], ("alhpa", {})),
        (["--force", "alpha-9/3"], ("alpha-9", {"force": True, "rank": 3})),
        (["a/b"], ("a%2Fb", {})),
        (["../.."], ("..%2F..", {})),
        (["alpha-1/5"], ("alpha-1", {"rank": 5})),  # not its replica
        (["alpha-1/00"], ("alpha-1%2F00", {})),
    ],
)
def test_an_unknown_name_is_controls_to_refuse(
    fleet: Stub, words: list[str], sent: tuple[str, Json]
) -> None:
    path = f"POST /api/v1/replicas/{sent[0]}/stop"
    fleet.answers[path] = refused("there is none", "did you mean alpha?", 404)
    said = llmgw("stop", *words)
    assert (said.code, said.err) == (1, "llmgw: there is none\nhint: did you mean alpha?\n")
    assert fleet.sent == [(path, sent[1])]


def test_a43_force_is_for_one_shard_and_says_what_it_risks(fleet: Stub) -> None:
    for name in ("alpha", "alpha-1"):
        said = llmgw("stop", "--force", name, "--yes")
        assert said.code == 2
        assert "name the shard: llmgw stop --force alpha-1/0" in said.err
    said = llmgw("stop", "--force", "beta-1/1")
    assert said.code == 2
    assert "this stops beta-1/1 on box2 (pid 7) at once" in said.err
    assert "are given out all the same" in said.err
    assert fleet.sent == []
    path = "POST /api/v1/replicas/beta-1/stop"
    for sent, word in ((True, "sent to"), (False, "is under way already at")):
        fleet.answers[path] = {"forced": place("beta-1/1", "box2"), "sent": sent}
        said = llmgw("stop", "--force", "beta-1/1", "--yes")
        assert said.code == 0
        assert said.out.startswith(f"the order to stop beta-1/1 on box2 (pid 7) {word} its agent")
    assert fleet.sent == [(path, {"force": True, "rank": 1})] * 2


def test_a43_two_of_one_name_are_told_apart_by_their_incarnation(fleet: Stub) -> None:
    path = "POST /api/v1/replicas/inc-alpha-2/stop"
    fleet.answers[path] = {"forced": place("alpha-2/0"), "sent": True}
    assert llmgw("stop", "--force", "inc-alpha-2/0", "--yes").code == 0
    assert fleet.sent == [(path, {"force": True, "rank": 0})]


def test_a47_a_node_is_forgotten_with_what_it_ran(
    fleet: Stub, monkeypatch: pytest.MonkeyPatch
) -> None:
    said = llmgw("forget", "box2")
    assert said.code == 2
    assert said.err.startswith(
        "llmgw: this forgets node box2 and what it is believed to run: beta-1/1 on box2 (pid 7), "
        "gone-1/0 on box2 (pid 7); if that still runs, others may be started beside it; not asked"
    )
    assert fleet.sent == []
    said = typing(monkeypatch, "n\n", "forget", "box3")
    assert "this forgets node box3, which is not known to run anything" in said.err
    assert said.err.endswith("llmgw: not confirmed, box3 is kept\n")
    said = llmgw("forget", "box2", "--yes")
    assert (said.code, said.out) == (0, "box2 is forgotten\n")
    assert fleet.sent == [("POST /api/v1/nodes/box2/forget", {})]


def test_a47_a_connected_node_is_not_forgotten_whatever_is_said(fleet: Stub) -> None:
    """It would be back at once, and meanwhile others would be started beside its engines."""
    for words in ([], ["--yes"]):
        said = llmgw("forget", "box1", *words)
        assert (said.code, said.err) == (
            1,
            "llmgw: node box1 is connected and would be back at once\nhint: stop its agent first\n",
        )
    assert fleet.sent == []


def test_a_node_that_is_unknown_is_controls_to_refuse(fleet: Stub) -> None:
    path = "POST /api/v1/nodes/bxo1/forget"
    fleet.answers[path] = refused("there is no node called bxo1", "did you mean box1?", 404)
    said = llmgw("forget", "bxo1")
    assert (said.code, said.err.splitlines()[1]) == (1, "hint: did you mean box1?")


def test_a_shard_stands_for_its_replica_and_is_sent_as_one(fleet: Stub) -> None:
    """Control refuses the rank where it is gone by then; one that has ended is asked about all the same."""
    answer(fleet, "replicas/beta-1", place("beta-1/0"))
    assert llmgw("stop", "beta-1/1", "--yes").code == 0
    fleet.answers["GET /api/v1/status"]["replicas"][3]["shards"][1]["state"] = "failed"
    said = llmgw("stop", "beta-1/1")
    assert (said.code, "this stops 2 engines" in said.err) == (2, True)
    assert fleet.sent == [("POST /api/v1/replicas/beta-1/stop", {"rank": 1})]


@pytest.mark.parametrize("verb", ["stop", "forget", "clear"])
def test_an_empty_name_is_nobodys(fleet: Stub, verb: str) -> None:
    for name in ("", " "):
        said = llmgw(verb, name)
        assert (said.code, said.out, "is empty" in said.err) == (2, "", True)
    assert fleet.sent == []


def test_clear_says_when_there_was_nothing_to_clear(fleet: Stub) -> None:
    path = "POST /api/v1/replicas/alpha/clear"
    for failures, learned, out in (
        (0, {}, "alpha had no failures\n"),  # an older control has learned nothing
        (0, {"learned": 0}, "alpha had no failures\n"),
        (
            0,
            {"learned": 30 << 30},
            "alpha had no failures; forgot that it held 30.0 GiB of a GPU\n",
        ),
        (2, {"learned": 30 << 30}, "cleared alpha: it may start again\n"),
        (2, {"in_catalog": False}, "alpha is not in the catalog any more; forgotten\n"),
        (0, {"in_catalog": False}, "alpha is not in the catalog any more; it had no failures\n"),
    ):
        fleet.answers[path] = {"model": "alpha", "failures": failures, **learned}
        assert llmgw("clear", "alpha").out == out


def test_a_rank_of_a_model_is_no_shard_and_is_said_as_it_was_typed(fleet: Stub) -> None:
    said = llmgw("stop", "beta/0", "--yes")
    assert said.code == 1
    assert "there is no model, replica or shard called beta/0\n" in said.err
    assert "beta-1/0" in said.err
    assert not fleet.sent
