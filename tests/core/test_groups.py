"""Replicas over several nodes, when one of their ranks ends (A34, F76-F78)."""

from __future__ import annotations

from typing import Any

import pytest

from llmgw.core.reconcile.decide import acknowledged, decide
from llmgw.core.reconcile.observe import observe
from llmgw.core.types.messages import ShardReport
from llmgw.core.types.plan import StopReplica, Wait
from llmgw.core.types.state import Announced, NodeRegistered, ShardsChanged, State
from tests.core.world import DEEP, actions, half, node, running


def pair(**k: Any) -> State:
    return running(DEEP, node("box1", half(0)), node("box2", half(1, **k)))


def ended(**k: Any) -> ShardReport:
    return half(1, state="failed", error="exited with code 1", **k)


def changed(state: State, box: str, report: ShardReport) -> State:
    return observe(state, ShardsChanged(box, (report,)), 9.0)


def test_a34_f77_one_rank_ends_and_the_whole_group_goes_at_once() -> None:
    """Not after the assembly window: what is left of it serves nobody."""
    state = changed(pair(), "box2", ended())
    stop, wait = decide(state, 9.0).actions
    assert isinstance(stop, StopReplica)
    assert isinstance(wait, Wait)  # for another one, of which this one's room is half
    assert ([s.report.shard for s in stop.shards], stop.due_s) == (["deep-1/0"], 0.0)
    assert (stop.reason, stop.disturbs, stop.withheld) == ("not_running", True, "")
    assert stop.why == ("rank 1 on box2 is gone (exited with code 1); the group restarts together")


def test_a34_f78_not_while_another_member_is_still_starting() -> None:
    state = running(DEEP, node("box1", half(0, state="loading")), node("box2", half(1)))
    state = changed(state, "box2", ended())
    assert decide(state, 9.0).actions == ()
    state = changed(state, "box1", half(0))
    assert actions(decide(state, 9.0)) == ["stop deep", "wait deep"]


def test_a34_a_stop_that_was_lost_is_ordered_again() -> None:
    """The ended record is kept at its agent until the rest has ended too: it is why the rest must go."""
    state = changed(pair(), "box2", ended())
    assert acknowledged(state) == ()
    over = changed(state, "box1", half(0, state="stopped"))
    assert [s.report.shard for s in acknowledged(over)] == ["deep-1/0", "deep-1/1"]


@pytest.mark.parametrize("rank", [0, 1])
def test_a34_a_rank_that_its_agent_does_not_run_counts_like_one_that_ended(rank: int) -> None:
    lost, other = f"box{rank + 1}", f"deep-1/{1 - rank}"
    state = observe(pair(), NodeRegistered(node(lost)), 9.0)
    (stop,) = decide(state, 9.0).actions
    assert isinstance(stop, StopReplica)
    assert [s.report.shard for s in stop.shards] == [other]
    assert f"rank {rank} on {lost} is gone (the agent does not run it)" in stop.why


def test_a33_f76_what_was_never_heard_has_the_assembly_window_first() -> None:
    state = observe(pair(), NodeRegistered(node("box2")), 9.0)
    state = observe(state, Announced(frozenset({"inc-deep-1"})), 9.0)
    (stop,) = decide(state, 9.0).actions
    assert isinstance(stop, StopReplica)
    assert (stop.reason, stop.due_s > 0) == ("short_after_window", True)


def test_a34_it_is_bounded_each_group_counts_once() -> None:
    """A67: both ranks of one incarnation are one failure of the model."""
    state = changed(pair(), "box2", ended())
    state = changed(state, "box1", half(0, state="failed", error="lost its peer"))
    assert len(state.failures["deep"]) == 1


def test_a_second_shard_of_a_rank_that_ended_is_no_loss_to_the_group() -> None:
    """A38: it was the stray of rank 0; rank 1 has simply not been heard yet."""
    state = running(DEEP, node("box1", half(0)), node("box2", half(0, state="stopped")))
    (stop,) = decide(state, 9.0).actions
    assert isinstance(stop, StopReplica)
    assert (stop.reason, [s.node for s in stop.shards]) == ("short_after_window", ["box1"])
    assert [s.node for s in acknowledged(state)] == ["box2"]


def test_a34_a_broken_group_is_not_counted_on_again_while_it_ends() -> None:
    """Its last rank gone, what was started in its place would be one too many, and be stopped."""
    state = changed(pair(state="stopping", desired="stopped"), "box2", ended())
    (row,) = [r for r in decide(state, 9.0).replicas if r.incarnation == "inc-deep-1"]
    assert (row.state, row.going) == ("failed", True)
