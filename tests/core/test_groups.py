"""Replicas over several nodes, when one of their ranks ends (A34, F76-F78)."""

from __future__ import annotations

from typing import Any

import pytest

from llmgw.core.place import start_message
from llmgw.core.reconcile.decide import acknowledged, decide
from llmgw.core.reconcile.observe import observe
from llmgw.core.types.messages import Refusal, ShardReport
from llmgw.core.types.plan import Spot, StopReplica, Wait
from llmgw.core.types.state import Announced, NodeRegistered, Placed, ShardsChanged, State
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


def test_a34_a_leader_that_waits_for_a_worker_that_ended_is_no_reason_to_wait() -> None:
    """F78 spares what is loading; this one has no process yet, and would wait for its whole start_timeout."""
    waits = half(0, state="pending", error="waits for its workers: rank 1 on box2: refused")
    state = running(DEEP, node("box1", waits), node("box2", half(1)))
    state = changed(state, "box2", ended())
    stop, _ = decide(state, 9.0).actions
    assert isinstance(stop, StopReplica)
    assert ([s.report.shard for s in stop.shards], stop.reason) == (["deep-1/0"], "not_running")


def test_a33_a_leader_that_waits_for_its_workers_is_not_short_of_them() -> None:
    """A34, A36: all orders went out together; a restart of control in between finds the whole group."""
    waits = half(0, state="pending")
    state = running(DEEP, node("box1", waits), node("box2", half(1, state="loading")))
    (row,) = decide(state, 9.0).replicas
    assert (row.state, row.have, row.want) == ("starting", 2, 2)
    assert decide(state, 1e5).actions == ()


def test_a34_a_rank_that_its_agent_refuses_ends_its_group_at_once() -> None:
    """Not after the assembly window: the others would hold what they were given and wait for nobody."""
    spots = tuple(
        Spot(node=f"box{n + 1}", rank=n, gpus=(f"box{n + 1}-0",), port=18000) for n in (0, 1)
    )
    state = running(DEEP, node("box1"), node("box2"))
    deep = state.catalog.models["deep"]
    for name, start in start_message(state, deep, ("main", spots), "deep-1", "inc-deep-1"):
        state = observe(state, Placed(name, start), 1.0)
    state = changed(state, "box2", half(1, state="starting"))
    no = Refusal(
        seq=1, shard="deep-1/0", incarnation="inc-deep-1", reason="port_in_use", why="taken"
    )
    state = observe(state, ShardsChanged("box1", refused=(no,)), 2.0)
    assert not any(isinstance(a, StopReplica) for a in decide(state, 2.0).actions)  # F78
    state = changed(state, "box2", half(1))
    stop, *_ = decide(state, 3.0).actions
    assert isinstance(stop, StopReplica)
    assert [s.report.shard for s in stop.shards] == ["deep-1/1"]
    assert stop.why == "rank 0 on box1 is gone (refused: taken); the group restarts together"
    assert "deep" not in state.failures  # a no is no failure of the engine (A67)
    assert acknowledged(state) == ()
    state = changed(state, "box2", half(1, state="stopped"))
    assert len(acknowledged(state)) == 2


def test_a34_f78_a_rank_that_is_torn_down_is_lost_and_nothing_is_drained_for_it() -> None:
    """It held on for a moment, its memory not back yet: the others were stopped as if somebody had drained them."""
    dying = half(1, state="stopping", error="exited with code 1")
    loads = running(DEEP, node("box1", half(0, state="loading")), node("box2", dying))
    assert decide(loads, 1e4).actions == ()
    assert decide(loads, 1e4).replicas[0].state == "starting"
    state = changed(loads, "box1", half(0))
    stop, _ = decide(state, 1e4).actions
    assert isinstance(stop, StopReplica)
    assert ([s.report.shard for s in stop.shards], stop.reason) == (["deep-1/0"], "not_running")
    assert stop.why == "rank 1 on box2 is gone (exited with code 1); the group restarts together"
    drained = changed(loads, "box1", half(0, state="draining", desired="draining"))
    assert decide(drained, 1e4).replicas[0].state == "draining"
