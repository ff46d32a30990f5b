"""Settling, starting, stopping, sleeping: what one pass over the whole decides, and what each fact changes."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from llmgw.core.check import plan_violations
from llmgw.core.reconcile.decide import acknowledged, decide
from llmgw.core.reconcile.fresh import Memory, started
from llmgw.core.reconcile.observe import observe
from llmgw.core.reconcile.settle import waiting_for
from llmgw.core.types.catalog import Restart
from llmgw.core.types.messages import Refusal, ShardReport
from llmgw.core.types.plan import Spot, StartReplica, Wait
from llmgw.core.types.state import (
    Cleared,
    Draining,
    Failure,
    NodeRegistered,
    SessionLost,
    ShardsChanged,
    Tick,
)
from tests.core.world import (
    GIB,
    ONE,
    actions,
    begun,
    catalog,
    demand,
    gpus,
    model,
    node,
    place_at,
    plan_of,
    profile,
    running,
    shard,
    verdicts,
)

# --- settling (A46, A47, A51) ----------------------------------------------------------------


def test_a46_nothing_is_decided_until_every_expected_node_has_settled() -> None:
    state = begun(ONE, node("box1"), node("box2"))
    state = observe(state, NodeRegistered(node("box1", shard("gone-1/0"))), 1.0)
    plan = decide(state, 1.0)
    assert (plan.actions, plan.settling_for) == ((), ("box2",))
    assert plan_violations(state, plan) == []
    state = observe(observe(state, NodeRegistered(node("box2")), 2.0), Tick(), 2.0)
    assert state.settled_s == 2.0
    assert actions(decide(state, 2.0)) == ["stop gone", "start alpha"]


def test_a46_settle_timeout_ends_it() -> None:
    state = observe(begun(ONE, node("box1"), node("box2")), NodeRegistered(node("box1")), 1.0)
    assert observe(state, Tick(), 59.9).settling
    state = observe(state, Tick(), 60.0)
    assert actions(decide(state, 60.0)) == ["start alpha"]
    assert observe(state, Tick(), 99.0).settled_s == 60.0


def test_a47_a_node_unreachable_before_is_not_waited_for_and_its_shards_stay_held() -> None:
    memory = Memory(nodes=((node("box1"), False), (node("box2", shard("alpha-1/0")), True)))
    state = started(ONE, memory, now=0.0, settle_timeout_s=60.0, keep_unknown=False)
    state = observe(observe(state, NodeRegistered(node("box1")), 1.0), Tick(), 1.0)
    assert state.settled_s == 1.0
    assert verdicts(decide(state, 1.0)) == {"box2:alpha-1/0": "hold node_silent"}


def test_a47_with_none_expected_new_agents_settle_at_once() -> None:
    state = begun(ONE)
    assert waiting_for(state, 0.0) == ("any node",)
    state = observe(state, NodeRegistered(node("box1", epoch_seen=0)), 1.0)
    assert observe(state, Tick(), 1.0).settled_s == 1.0


def test_a47_a_deleted_inventory_waits_for_other_boxes_still_registering() -> None:
    state = observe(begun(ONE), NodeRegistered(node("box1", epoch_seen=7)), 1.0)
    assert observe(state, Tick(), 15.9).settling
    again = observe(state, NodeRegistered(node("box1", epoch_seen=7)), 14.0)
    assert observe(again, Tick(), 16.0).settled_s == 16.0
    more = observe(state, NodeRegistered(node("box2", shard("alpha-1/0"), epoch_seen=7)), 12.0)
    assert observe(more, Tick(), 16.0).settling
    done = observe(more, Tick(), 27.0)
    assert decide(done, 27.0).actions == ()


def test_all_nodes_unreachable_before_counts_as_none_expected() -> None:
    memory = Memory(nodes=((node("box1"), True),))
    state = started(ONE, memory, now=0.0, settle_timeout_s=60.0, keep_unknown=False)
    assert waiting_for(state, 0.0) == ("any node",)


def test_f16_nodes_of_a_restored_backup_are_not_all_there_are() -> None:
    """An agent obeyed a later control than the file's: the others are waited for as if there were no file (A47)."""
    memory = Memory(nodes=((node("box1"), False),), epoch=3)
    state = started(ONE, memory, now=0.0, settle_timeout_s=60.0, keep_unknown=False)
    state = replace(state, epoch=4, leader_uuid="we")
    before = node("box1", epoch_seen=3, leader_uuid="before")
    assert observe(observe(state, NodeRegistered(before), 1.0), Tick(), 1.0).settled_s == 1.0
    ours = node("box1", epoch_seen=4, leader_uuid="we")
    assert observe(observe(state, NodeRegistered(ours), 1.0), Tick(), 1.0).settled_s == 1.0
    later = node("box1", epoch_seen=9, leader_uuid="before")
    state = observe(observe(state, NodeRegistered(later), 1.0), Tick(), 1.0)
    assert state.settling
    assert actions(decide(state, 1.0)) == []
    state = observe(state, NodeRegistered(replace(ours, epoch_seen=10)), 2.0)
    assert observe(state, Tick(), 15.9).settling
    assert actions(decide(observe(state, Tick(), 16.0), 16.0)) == ["start alpha"]
    both = observe(state, NodeRegistered(node("box2", shard("alpha-1/0"), epoch_seen=9)), 12.0)
    assert decide(observe(both, Tick(), 27.0), 27.0).actions == ()


@given(st.lists(st.sampled_from(["box1", "box2", "box3"]), max_size=6), st.floats(0, 59))
def test_nothing_destructive_while_settling(order: list[str], now: float) -> None:
    state = begun(ONE, node("box1"), node("box2"), node("box3"))
    for name in order:
        state = observe(state, NodeRegistered(node(name, shard("gone-1/0"))), now)
    assert plan_violations(state, decide(state, now)) == []


# --- starts ----------------------------------------------------------------------------------


def test_start_names_node_gpu_and_why() -> None:
    cat = catalog(model("alpha", profile(gpus=1, gpu_memory_bytes=10 * GIB), low=1))
    (start,) = plan_of(cat, node("box1", gpus=gpus("box1", 24, 12))).actions
    assert isinstance(start, StartReplica)
    assert start.spots == (Spot(node="box1", gpus=("box1-1",), port=18000),)
    assert start.why == "min 1, 0 running; fits box1 GPU 1, 2.0 GiB left there"


def test_a62_one_start_at_a_time_per_node_and_the_next_waits() -> None:
    cat = catalog(model("alpha", low=1), model("beta", low=1))
    plan = plan_of(cat, node("box1"))
    assert actions(plan) == ["start alpha", "wait beta"]
    assert plan.actions[1].why == (
        "min 1, 0 running; box1: alpha (just placed) is still starting there, 1 start at a time"
    )
    both = plan_of(cat, node("box1"), node("box2"))
    assert actions(both) == ["start alpha", "start beta"]


def test_min_2_starts_two_where_two_nodes_can() -> None:
    plan = plan_of(catalog(model("alpha", low=2, high=2)), node("box1"), node("box2"))
    assert actions(plan) == ["start alpha", "start alpha"]
    assert plan.actions[1].why.startswith("min 2, 1 running; ")


def test_a_group_is_one_start() -> None:
    cat = catalog(model("deep", profile(nodes=2), low=1))
    (start,) = plan_of(cat, node("box1"), node("box2")).actions
    assert isinstance(start, StartReplica)
    assert [(s.rank, s.node) for s in start.spots] == [(0, "box1"), (1, "box2")]


def test_work_in_flight_is_held_and_not_started_twice() -> None:
    state = place_at(running(ONE, node("box1")), "box1")
    assert decide(state, 1.0).actions == ()
    assert place_at(state, "box1") == state


def test_a_refused_start_is_tried_elsewhere_and_the_resource_counts_as_foreign_for_60_s() -> None:
    state = place_at(running(ONE, node("box1")), "box1")
    refusal = Refusal(
        seq=1, shard="alpha-9/0", incarnation="new", reason="port_in_use", resource="port 18000"
    )
    state = observe(state, ShardsChanged("box1", refused=(refusal,)), 2.0)
    assert state.nodes["box1"].shards == ()
    (start,) = decide(state, 2.0).actions
    assert isinstance(start, StartReplica)
    assert start.spots[0].port == 18001
    assert observe(state, Tick(), 61.9).refused
    assert observe(state, Tick(), 62.0).refused == ()
    assert observe(state, NodeRegistered(node("box1")), 3.0).refused == ()


def test_a_refusal_without_a_resource_rests_that_profile_there_and_nothing_else() -> None:
    """Its other models run well: resting the node would hold them up again and again."""
    two = catalog(model("alpha", low=1), model("other", profile(fingerprints={"default": "1:o"})))
    state = place_at(running(two, node("box1")), "box1")
    no = Refusal(seq=1, shard="alpha-9/0", incarnation="new", reason="bad_command", why="bad")
    state = observe(state, ShardsChanged("box1", refused=(no,)), 2.0)
    (wait,) = decide(state, 2.0).actions
    assert isinstance(wait, Wait)
    assert wait.why == "min 1, 0 running; box1: bad"
    state = observe(state, demand(waiting={"other": 1}), 3.0)
    assert "start other" in actions(decide(state, 3.0))


@pytest.mark.parametrize(
    ("reason", "resource", "others"),
    [("insufficient_memory", "host memory", "start other"), ("disk_low", "node", "wait other")],
)
def test_no_memory_rests_what_asks_for_it_and_a_full_disk_the_node(
    reason: str, resource: str, others: str
) -> None:
    hungry = model("alpha", profile(host_memory_bytes=GIB), low=1)
    two = catalog(hungry, model("other", profile(fingerprints={"default": "1:o"})))
    state = place_at(running(two, node("box1")), "box1")
    no = Refusal(
        seq=1, shard="alpha-9/0", incarnation="new", reason=reason, resource=resource, why="0 free"
    )
    state = observe(state, ShardsChanged("box1", refused=(no,)), 2.0)
    state = observe(state, demand(waiting={"other": 1}), 3.0)
    plan = decide(state, 3.0)
    assert actions(plan) == ["wait alpha", others]
    assert "0 free" in plan.actions[0].why
    assert actions(decide(observe(state, Tick(), 62.0), 62.0))[0] == "start alpha"


@pytest.mark.parametrize(
    "reason",
    ["lower_epoch", "other_leader", "two_leaders", "other_session", "shard_held", "attempt_held"],
)
def test_a_refusal_of_the_fence_rests_nothing(reason: str) -> None:
    """F21: it is about who may command; the next pass asks again, under the epoch of then."""
    state = place_at(running(ONE, node("box1")), "box1")
    no = Refusal(seq=1, shard="alpha-9/0", incarnation="new", reason=reason)
    assert observe(state, ShardsChanged("box1", refused=(no,)), 2.0).refused == ()


@pytest.mark.parametrize(("reason", "rests"), [("still_running", False), ("cannot_journal", True)])
def test_only_a_node_that_can_take_nothing_rests_for_a_refused_stop(
    reason: str, rests: bool
) -> None:
    """F13, F15: what else it says no to is about that one shard."""
    state = running(ONE, node("box1", shard("gone-1/0")))
    no = Refusal(seq=1, shard="gone-1/0", incarnation="inc-gone-1", reason=reason)
    assert bool(observe(state, ShardsChanged("box1", refused=(no,)), 2.0).refused) is rests


def failed(incarnation: str, **k: Any) -> ShardReport:
    return shard(
        f"alpha-{incarnation}/0", incarnation=incarnation, state="failed", error="exit 1", **k
    )


def test_a67_the_first_failure_restarts_at_once_then_back_off_then_give_up() -> None:
    state = running(ONE, node("box1"))
    for n, (now, wanted) in enumerate(
        [(10.0, "start alpha"), (20.0, "wait alpha"), (40.0, "wait alpha")]
    ):
        state = observe(state, ShardsChanged("box1", shards=(failed(f"i{n}"),)), now)
        assert actions(decide(state, now)) == [wanted]
    assert decide(state, 41.0).actions[0].why == (
        "min 1, 0 running; backing off 9 s after 3 failures: exit 1"
    )
    assert actions(decide(state, 50.0)) == ["start alpha"]
    for n in range(3, 5):
        state = observe(state, ShardsChanged("box1", shards=(failed(f"i{n}"),)), 60.0)
    assert decide(state, 900.0).actions[0].why == (
        "min 1, 0 running; failed (gave up after 5 failures in 30 min: exit 1); "
        "llmgw clear alpha lets it start again"
    )
    assert actions(decide(observe(state, Cleared("alpha"), 901.0), 901.0)) == ["start alpha"]
    assert actions(decide(state, 9000.0)) == ["wait alpha"]


def test_a67_an_agent_that_gave_up_is_believed_at_once() -> None:
    gone = failed("i1", gave_up=True)
    state = observe(running(ONE, node("box1")), ShardsChanged("box1", shards=(gone, gone)), 1.0)
    assert len(state.failures["alpha"]) == 1
    assert actions(decide(state, 1.0)) == ["wait alpha"]
    assert acknowledged(state) == ()
    assert [s.incarnation for s in acknowledged(observe(state, Cleared("alpha"), 2.0))] == ["i1"]


def test_ended_records_are_acknowledged_once_recorded() -> None:
    state = observe(running(ONE, node("box1")), ShardsChanged("box1", shards=(failed("i1"),)), 1.0)
    assert [s.incarnation for s in acknowledged(state)] == ["i1"]
    state = observe(state, ShardsChanged("box1", gone=(("alpha-i1/0", "i1"),)), 2.0)
    assert state.nodes["box1"].shards == ()
    assert acknowledged(observe(state, SessionLost("box1"), 3.0)) == ()


def test_failures_of_models_nobody_knows_are_not_counted() -> None:
    state = running(catalog(), node("box1", shard("x-1/0", state="failed")))
    assert state.failures == {}


def test_restart_policy_of_the_catalog_counts() -> None:
    cat = catalog(model("alpha", profile(restart=Restart(max=2)), low=1))
    state = running(cat, node("box1"))
    for n in range(2):
        state = observe(state, ShardsChanged("box1", shards=(failed(f"i{n}"),)), 1.0)
    assert "gave up after 2 failures in 30 min" in decide(state, 1.0).actions[0].why


# --- what was dated by a clock on the wall (F26) --------------------------------------------


def test_f26_a_drain_that_is_remembered_has_its_whole_limit_from_here_on() -> None:
    """The clock may have been set an hour ahead meanwhile: the stream on it would be cut."""
    memory = Memory(draining={"inc-alpha-1": Draining(-3600.0, "operator", "asked")})
    state = started(ONE, memory, now=5.0, settle_timeout_s=60.0, keep_unknown=False)
    assert state.draining["inc-alpha-1"].since_s == 5.0


@pytest.mark.parametrize(("at_s", "counts_from"), [(-30.0, -30.0), (3600.0, 5.0)])
def test_f26_no_failure_lies_ahead(at_s: float, counts_from: float) -> None:
    """A clock that was set back would hold up the next start for as long."""
    memory = Memory(failures={"alpha": (Failure("i1", "main", at_s, "exit 1"),)})
    state = started(ONE, memory, now=5.0, settle_timeout_s=60.0, keep_unknown=False)
    assert [f.at_s for f in state.failures["alpha"]] == [counts_from]
