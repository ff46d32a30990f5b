"""Ranks of one placement: two of one rank, worlds that disagree, one whose agent cannot tell (A17, A20, A27, A38)."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
from msgspec.structs import replace

from llmgw.core.reconcile.decide import decide
from llmgw.core.types.messages import ShardReport
from llmgw.core.types.plan import DrainReplica, Plan
from tests.core.world import (
    ALPHA,
    DEEP,
    actions,
    half,
    node,
    plan_of,
    replicas,
    running,
    shard,
    verdicts,
    why,
)


def in_any_order(*shards: ShardReport) -> Plan:
    """One box each; the same plan whichever of them registers first (A10)."""
    boxes = [node(f"box{n}", s) for n, s in enumerate(shards, 1)]
    plans = [plan_of(DEEP, *order) for order in itertools.permutations(boxes)]
    assert all(p == plans[0] for p in plans)
    return plans[0]


@pytest.mark.parametrize("rank", [0, 1])
@pytest.mark.parametrize(
    ("better", "worse"),
    [
        ({"state": "ready"}, {"state": "loading"}),
        ({"state": "ready"}, {"state": "unhealthy"}),
        ({"state": "unhealthy"}, {"state": "loading"}),
        ({"started_at": "2026-01-02T00:00:00Z"}, {"fingerprint": "1:bbbb"}),
        ({"fingerprint": ""}, {"fingerprint": "1:bbbb"}),
        ({"state": "ready", "fingerprint": "1:bbbb"}, {"state": "unhealthy"}),
        ({}, {"started_at": "2026-01-02T00:00:00Z"}),
        ({}, {"started_at": ""}),
        ({"state": "ready", "started_at": "2026-01-02T00:00:00Z"}, {"state": "loading"}),
    ],
)
def test_a38_of_two_shards_of_any_rank_the_same_order_keeps_one(
    rank: int, better: dict[str, Any], worse: dict[str, Any]
) -> None:
    first, second = half(rank, **better), half(rank, **worse)
    for pair, (kept, lost) in (((first, second), (2, 3)), ((second, first), (3, 2))):
        plan = in_any_order(half(1 - rank), *pair)
        deep = replicas(plan)["deep-1"]
        assert (deep.have, [s.rank for s in deep.members]) == (2, [0, 1])
        assert deep.members[rank].node == f"box{kept}"
        assert verdicts(plan)[f"box{lost}:deep-1/{rank}"].endswith(" duplicate_rank")
        assert f"rank {rank} of deep-1 is on box{kept}" in {v.why for v in plan.verdicts}


def test_a38_two_that_differ_in_nothing_are_told_apart_by_the_name_of_the_node() -> None:
    plan = in_any_order(half(0), half(1), half(1))
    assert [s.node for s in replicas(plan)["deep-1"].members] == ["box1", "box2"]


def test_a38_the_second_of_a_rank_goes_when_the_one_that_counts_is_up_and_not_before() -> None:
    for state, gone in (("ready", ["drain deep"]), ("loading", [])):
        lone = [half(0, state=state), half(1, state=state)]
        boxes = [node(f"box{n}", s) for n, s in enumerate((*lone, half(1, state=state)), 1)]
        plan = decide(running(DEEP, *boxes), 1.0)
        assert actions(plan) == gone
        for a in plan.actions:
            assert isinstance(a, DrainReplica)
            assert ([s.node for s in a.shards], a.whole) == (["box3"], False)


def test_a20_where_worlds_disagree_that_of_the_lowest_rank_counts() -> None:
    plan = in_any_order(half(0), replace(half(1), world_size=3))
    assert (replicas(plan)["deep-1"].want, replicas(plan)["deep-1"].state) == (2, "ready")
    plan = in_any_order(replace(half(0), world_size=1), half(1))
    assert verdicts(plan)["box2:deep-1/1"] == "conflict duplicate_rank"
    assert why(plan, "deep-1/1") == "rank 1 of deep-1 is not one of the 1 wanted"
    plan = in_any_order(replace(half(0), world_size=None), half(1))
    assert replicas(plan)["deep-1"].want == 2


@pytest.mark.parametrize("drifted", ["ready", "loading"])
def test_a38_the_only_one_that_serves_is_kept_in_the_middle_of_a_roll(drifted: str) -> None:
    """Today's profile is asked only of those that are equally far: else nobody would serve."""
    old = shard("alpha-1/0", incarnation="old", fingerprint="1:bbbb", state=drifted)
    new = shard("alpha-1/0", incarnation="new", state="loading")
    plan = plan_of(ALPHA, node("box1", old), node("box2", new))
    kept = {r.incarnation: r.kept for r in plan.replicas}
    assert kept == {"old": drifted == "ready", "new": drifted != "ready"}


def test_a32_members_stand_by_rank_whichever_came_first_and_one_row_says_it_all() -> None:
    for reports in itertools.permutations([node("box1", half(1)), node("box2", half(0))]):
        (row,) = plan_of(DEEP, *reports).replicas
        assert [(s.rank, s.node) for s in row.members] == [(0, "box2"), (1, "box1")]
        said = (row.replica, row.model, row.have, row.want, row.state)
        assert said == ("deep-1", "deep", 2, 2, "ready")
