"""One thing told twice, and copies on their way up (A11, A25, A29, A38, A39)."""

from __future__ import annotations

from msgspec.structs import replace

from llmgw.core.reconcile.decide import decide
from llmgw.core.reconcile.observe import observe
from llmgw.core.types.state import ShardsChanged
from tests.core.world import (
    ALPHA,
    actions,
    node,
    plan_of,
    running,
    settled,
    shard,
    verdicts,
)


def test_a11_a29_one_process_listed_twice_is_one_shard() -> None:
    """Its copy would be a stray, and drained: by shard and incarnation that order means both."""
    one = shard("alpha-1/0", pid=7)
    plan = plan_of(ALPHA, node("box1", one, one))
    assert (verdicts(plan), actions(plan)) == ({"box1:alpha-1/0": "adopt"}, [])


def test_a38_of_two_processes_of_one_name_on_one_node_no_order_can_mean_one() -> None:
    one, other = shard("alpha-1/0", pid=7), shard("alpha-1/0", pid=8, port=18001)
    plan = plan_of(ALPHA, node("box1", one, other))
    assert sorted(v.verdict for v in plan.verdicts) == ["adopt", "conflict"]
    assert actions(plan) == []


def test_a38_a_loser_on_its_way_up_stays_until_the_kept_one_is_routable() -> None:
    """Both may fail to come up: the one that is stopped now may be the one that would have."""
    first, second = (shard("alpha-1/0", incarnation=i, state="loading") for i in ("a", "b"))
    state = settled(ALPHA, node("box1", first), node("box2", second))
    assert actions(decide(state, 0.0)) == []
    state = observe(state, ShardsChanged("box1", (replace(first, state="ready"),)), 1.0)
    (stop,) = decide(state, 1.0).actions
    assert [s.node for s in stop.shards] == ["box2"]


def test_a25_a38_times_are_compared_as_times() -> None:
    """As text "…:00.5Z" sorts before "…:00Z", and the younger one would be kept."""
    older = shard("alpha-1/0", incarnation="b", started_at="2026-01-01T00:00:00Z")
    younger = shard("alpha-1/0", incarnation="a", started_at="2026-01-01T00:00:00.5Z")
    plan = plan_of(ALPHA, node("box1", younger), node("box2", older))
    assert verdicts(plan) == {
        "box1:alpha-1/0": "stray duplicate_replica",
        "box2:alpha-1/0": "adopt",
    }


def test_a39_a_partly_legible_record_holds_what_it_and_we_know() -> None:
    before = shard("alpha-1/0", gpus=("box1-0",), port=18007)
    odd = replace(before, state="unknown", port=0, gpus=(), resources=None, endpoint="")
    state = observe(running(ALPHA, node("box1", before)), ShardsChanged("box1", (odd,)), 1.0)
    (held,) = state.nodes["box1"].shards
    assert (held.report.gpus, held.report.ports) == (("box1-0",), {"before": 18007})
    assert held.report.resources == before.resources
    assert actions(decide(state, 1.0)) == []
