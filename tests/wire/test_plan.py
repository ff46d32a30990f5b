"""The plan document: exit codes, digest and counts of contract/cli.md."""

from __future__ import annotations

import hashlib
import json
from typing import Any

from msgspec.structs import replace

from llmgw.core.reconcile.decide import decide
from llmgw.core.types.plan import Plan
from llmgw.wire.plan import blocked_digest, exit_code, plan_document
from tests.core.world import at, catalog, model, node, plan_of, profile, running, settled, shard

CAT = catalog(model("alpha", low=1), model("beta"))
QUIET = plan_of(CAT, node("box1", shard("alpha-1/0"), shard("beta-1/0", port=18001)))
REMOVED = plan_of(CAT, node("box1", shard("alpha-1/0"), shard("gone-1/0", port=18001)))


def document(plan: Plan, **k: Any) -> dict[str, Any]:
    return plan_document(plan, source="file", generated_at="2026-01-01T00:00:00Z", **k)


def test_nothing_to_do_is_0() -> None:
    doc = document(QUIET)
    assert (doc["schema"], doc["complete"], doc["exit_code"], doc["disturbs"]) == (
        "llmgw.plan/1",
        True,
        0,
        0,
    )
    assert doc["summary"]["adopt"] == 2
    assert list(doc["summary"]) == [
        *("adopt", "join", "keep", "replace", "stray", "unclaimed", "conflict", "forget"),
        *("terminal", "hold", "start", "stop", "drain", "roll", "wait", "wake"),
    ]


def test_a_row_of_a_node_is_what_the_contract_says() -> None:
    state = running(CAT, node("box1", shard("alpha-1/0")))
    doc = document(decide(state, 0.0), nodes=state.nodes)
    assert doc["nodes"] == [{"node": "box1", "answered": True, "shards": 1, "error": None}]
    assert doc["gpus"] == [{"node": "box1", "uuid": "box1-0", "index": 0, "name": ""}]


def test_a_difference_is_1_and_disturbs_counts_running_engines() -> None:
    doc = document(REMOVED)
    assert (doc["exit_code"], doc["disturbs"]) == (1, 1)
    (stop,) = doc["actions"]
    assert (stop["action"], stop["node"], stop["due_s"], stop["disturbs"]) == (
        "stop",
        "box1",
        60.0,
        True,
    )


def test_incomplete_is_3_and_wins_unless_partial_is_allowed() -> None:
    silent = replace(REMOVED, nodes=tuple(replace(n, answered=False) for n in REMOVED.nodes))
    assert exit_code(silent) == 3
    assert exit_code(silent, allow_partial=True) == 1


def test_a_wait_alone_is_no_difference() -> None:
    deep = catalog(model("deep", profile(nodes=2), low=1))
    doc = document(plan_of(deep, node("box1")))
    assert ([a["action"] for a in doc["actions"]], doc["exit_code"]) == (["wait"], 0)


def test_idle_drains_are_not_listed() -> None:
    plan = decide(
        running(CAT, node("box1", shard("alpha-1/0"), shard("beta-1/0", port=18001))), 1e4
    )
    assert len(plan.actions) == 1
    doc = document(plan)
    assert (doc["actions"], doc["exit_code"], doc["disturbs"]) == ([], 0, 0)


def test_a_start_and_a_roll_have_their_rows() -> None:
    new = catalog(
        model("alpha", profile(fingerprints={"default": "1:bbbb"}), low=1), model("c", low=1)
    )
    doc = document(plan_of(new, node("box1", shard("alpha-1/0")), node("box2")))
    rows = {a["action"]: a for a in doc["actions"]}
    assert rows["start"]["replica"] is None
    assert rows["start"]["node"] == "box2"
    assert (rows["roll"]["replica"], rows["roll"]["disturbs"]) == ("alpha-1", True)
    assert doc["disturbs"] == 1


def test_a_roll_that_waits_for_other_starts_is_marked_like_one() -> None:
    new = catalog(
        model("alpha", profile(fingerprints={"default": "1:bbbb"}), low=1), model("c", low=1)
    )
    doc = document(plan_of(new, node("box1", shard("alpha-1/0"))))
    rows = {a["action"]: a for a in doc["actions"]}
    assert (rows["wait"]["model"], rows["wait"]["disturbs"], doc["disturbs"]) == ("alpha", True, 1)


def test_an_adopted_engine_says_at_its_own_row_that_it_will_be_replaced() -> None:
    """At once, in its turn, or once a start that is under way is over: all that `disturbs` counts."""
    changed = profile(fingerprints={"default": "1:bbbb"})
    new = catalog(model("alpha", changed, low=2, high=2), model("beta"))
    olds = (shard(f"alpha-{n}/0", port=18000 + n) for n in (1, 2))
    doc = document(plan_of(new, node("box1", *olds, shard("beta-1/0", port=18000))))
    assert (doc["summary"]["adopt"], doc["summary"]["roll"], doc["disturbs"]) == (3, 1, 2)
    drift = "profile main changed since it was started (1:aaaa -> 1:bbbb)"
    then = {"action": "roll", "why": drift, "withheld": None}
    assert [s["then"] for s in doc["shards"]] == [then, then, None]


def test_a57_a_roll_that_only_waits_for_a_start_that_is_under_way_is_a_difference() -> None:
    """`llmgw adopt --dry-run && systemctl restart llmgw-control` has to stop at what is going to be replaced."""
    new = catalog(model("alpha", profile(fingerprints={"default": "1:bbbb"}), low=1), model("beta"))
    rising = shard("beta-1/0", port=18001, state="loading")
    doc = document(plan_of(new, node("box1", shard("alpha-1/0"), rising)))
    assert [a["action"] for a in doc["actions"]] == ["wait"]
    assert (doc["disturbs"], doc["exit_code"]) == (1, 1)
    assert doc["shards"][0]["then"]["action"] == "roll"


def test_what_is_held_back_is_said_at_the_row_too() -> None:
    low = catalog(model("alpha", profile(fingerprints={"default": "1:bbbb"}), low=1))
    state = replace(running(low, node("box1", shard("alpha-1/0"))), paused="since noon")
    (row,) = document(decide(state, 0.0))["shards"]
    assert (row["verdict"], row["then"]["withheld"]) == ("keep", "paused since noon")


def test_the_digest_covers_what_would_change_and_nothing_else() -> None:
    other = plan_of(CAT, node("box9", shard("alpha-7/0")))
    assert document(QUIET)["digest"] == document(other)["digest"]
    assert document(REMOVED)["digest"] != document(QUIET)["digest"]


GONE = node("box1", *(shard(f"gone-{n}/0", port=18000 + n) for n in range(4)))


def test_a49_what_is_held_back_is_marked_and_can_be_named() -> None:
    """The digest covers the engines and not the sentence: what was shown is what is confirmed."""
    plan = plan_of(CAT, GONE)
    doc = document(plan)
    assert plan.blocked
    names = [f"gone-{n}" for n in range(4)]
    text = json.dumps([f"inc-{n}" for n in names], separators=(",", ":"))
    assert doc["blocked"] == {
        "digest": f"sha256:{hashlib.sha256(text.encode()).hexdigest()}",
        "why": plan.blocked.why,
        "engines": names,
    }
    assert blocked_digest(replace(plan.blocked, why="other")) == doc["blocked"]["digest"]
    assert {a["action"]: a["withheld"] for a in doc["actions"]} == {
        "start": None,
        "stop": plan.blocked.why,
    }
    assert (doc["exit_code"], doc["disturbs"]) == (1, 4)
    assert document(REMOVED)["blocked"] is None


def test_a48_a_pause_marks_what_it_holds_and_leaves_digest_and_exit_code() -> None:
    gone = node("box1", shard("alpha-1/0"), shard("gone-1/0", port=18001))
    doc = document(decide(at(settled(CAT, gone), paused="since noon"), 0.0))
    assert [a["withheld"] for a in doc["actions"]] == ["paused since noon"]
    free = document(REMOVED)
    assert (doc["digest"], doc["exit_code"]) == (free["digest"], free["exit_code"])


def test_a_wait_is_never_held_back() -> None:
    deep = catalog(model("deep", profile(nodes=2), low=1))
    doc = document(decide(at(settled(deep, node("box1")), withheld="no"), 0.0))
    assert [(a["action"], a["withheld"]) for a in doc["actions"]] == [("wait", None)]
