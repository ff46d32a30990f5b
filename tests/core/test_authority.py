"""Who has the last word about what runs: the fleet, and one exception (A4-A7); an alias that moved (F10)."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from llmgw.core.adopt.survey import survey
from llmgw.core.place import start_message
from llmgw.core.reconcile.decide import decide
from llmgw.core.reconcile.observe import observe
from llmgw.core.types.plan import Spot
from llmgw.core.types.state import NodeRegistered, Placed, ShardsChanged, State
from tests.core.world import (
    ONE,
    actions,
    catalog,
    model,
    node,
    plan_of,
    profile,
    replicas,
    running,
    shard,
    verdicts,
)


def placed(state: State, box: str) -> State:
    """alpha-1 of incarnation `ours`, on its way to `box`."""
    spots = (Spot(node=box, port=18000),)
    ((on, start),) = start_message(
        state, state.catalog.models["alpha"], ("main", spots), "alpha-1", "ours"
    )
    return observe(state, Placed(on, start), 1.0)


def test_a4_what_an_agent_reports_wins_over_what_was_merely_placed() -> None:
    state = placed(running(ONE, node("box1"), node("box2")), "box1")
    state = observe(state, NodeRegistered(node("box2", shard("alpha-1/0"))), 2.0)
    rows = {r.incarnation: r for r in survey(state).replicas}
    assert (rows["inc-alpha-1"].kept, rows["ours"].kept) == (True, False)
    (stop,) = decide(state, 2.0).actions
    assert [s.incarnation for s in stop.shards] == ["ours"]


def test_a5_a_copy_of_ours_that_has_come_up_stays_and_the_other_is_the_stray() -> None:
    state = placed(running(ONE, node("box1"), node("box2")), "box1")
    up = shard("alpha-1/0", incarnation="ours")
    state = observe(state, ShardsChanged("box1", (up,)), 2.0)
    state = replace(state, routed=frozenset({"ours"}))
    older = shard("alpha-1/0", started_at="2020-01-01T00:00:00Z")
    state = observe(state, NodeRegistered(node("box2", older)), 3.0)
    assert verdicts(decide(state, 3.0)) == {
        "box1:alpha-1/0": "keep",
        "box2:alpha-1/0": "stray duplicate_replica",
    }


def test_a6_it_cuts_both_ways() -> None:
    state = running(ONE, node("box1", shard("alpha-1/0")))
    state = observe(state, NodeRegistered(node("box1", shard("alpha-2/0"))), 1.0)
    assert verdicts(decide(state, 1.0)) == {
        "box1:alpha-1/0": "forget not_running",
        "box1:alpha-2/0": "adopt",
    }


def test_a7_the_same_facts_give_the_same_values_and_touch_none() -> None:
    before = running(ONE, node("box1"))
    report = NodeRegistered(node("box1", shard("alpha-2/0"), shard("gone-1/0", port=18001)))
    kept = replace(before)
    first, second = (observe(before, report, 1.0) for _ in range(2))
    assert (first, decide(first, 1.0)) == (second, decide(second, 1.0))
    assert before == kept


@pytest.mark.parametrize(
    ("ran", "verdict"),
    [("/m/a.gguf", "adopt"), ("", "adopt"), ("/m/old.gguf", "unclaimed artefact_mismatch")],
)
def test_f10_an_alias_that_moved_is_judged_by_the_weights_that_run(ran: str, verdict: str) -> None:
    moved = model("alpha", profile(weights={"default": "/m/a.gguf"}), aliases=("fast",))
    plan = plan_of(catalog(moved), node("box1", shard("fast-1/0", "fast", artefact=ran)))
    assert verdicts(plan) == {"box1:fast-1/0": verdict}
    assert [r.model for r in replicas(plan).values()] == (
        ["alpha"] if verdict == "adopt" else ["fast"]
    )
    assert actions(plan) == ([] if verdict == "adopt" else ["stop fast"])
