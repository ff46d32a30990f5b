"""Settling, starting, stopping, sleeping: what one pass over the whole decides, and what each fact changes."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from llmgw.core.check import plan_violations
from llmgw.core.place import start_message
from llmgw.core.reconcile.decide import acknowledged, decide
from llmgw.core.reconcile.fresh import Memory, after_settling, started
from llmgw.core.reconcile.observe import observe, waiting_for
from llmgw.core.types.catalog import Catalog, Restart, Scaling
from llmgw.core.types.messages import Capacity, Compute, Foreign, NodeReport, Refusal, ShardReport
from llmgw.core.types.plan import DrainReplica, Spot, StartReplica, StopReplica, Wait
from llmgw.core.types.routes import Demand
from llmgw.core.types.state import (
    Announced,
    CatalogLoaded,
    Cleared,
    Demanded,
    DrainBegun,
    Ending,
    GatewayGone,
    NodeForgotten,
    NodeRegistered,
    Placed,
    Published,
    SessionLost,
    ShardsChanged,
    State,
    Tick,
)
from tests.core.world import (
    GIB,
    actions,
    catalog,
    gpus,
    model,
    node,
    plan_of,
    profile,
    replicas,
    running,
    shard,
    verdicts,
)

ONE = catalog(model("alpha", low=1))
SLEEPY = catalog(model("beta"))
IDLE_S = 600.0


def begun(cat: Catalog, *remembered: NodeReport, timeout_s: float = 60.0) -> State:
    memory = Memory(nodes=tuple((r, False) for r in remembered), epoch=3)
    return started(cat, memory, now=0.0, settle_timeout_s=timeout_s, keep_unknown=False)


def demand(n: int = 1, gateway: str = "g", **k: object) -> Demanded:
    return Demanded(Demand(gateway=gateway, n=n, **k))  # type: ignore[arg-type]


def place_at(state: State, name: str, incarnation: str = "new", port: int = 18000) -> State:
    wanted = next(iter(state.catalog.models.values()))
    spots = (Spot(node=name, port=port),)
    ((where, start),) = start_message(state, wanted, ("main", spots), "alpha-9", incarnation)
    return observe(state, Placed(where, start), 1.0)


# --- settling (A46, A47, A51) ----------------------------------------------------------------


def test_a46_nothing_is_decided_until_every_expected_node_has_settled() -> None:
    state = begun(ONE, node("box1"), node("box2"))
    state = observe(state, NodeRegistered(node("box1", shard("gone-1/0"))), 1.0)
    plan = decide(state, 1.0)
    assert (plan.actions, plan.settling_for) == ((), ("box2",))
    assert plan_violations(state, plan) == []
    state = observe(state, NodeRegistered(node("box2")), 2.0)
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
    state = observe(state, NodeRegistered(node("box1")), 1.0)
    assert state.settled_s == 1.0
    assert verdicts(decide(state, 1.0)) == {"box2:alpha-1/0": "hold node_silent"}


def test_a47_with_none_expected_new_agents_settle_at_once() -> None:
    state = begun(ONE)
    assert waiting_for(state, 0.0) == ("any node",)
    assert observe(state, NodeRegistered(node("box1", epoch_seen=0)), 1.0).settled_s == 1.0


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


def test_multi_node_starts_wait() -> None:
    cat = catalog(model("deep", profile(nodes=2), low=1))
    plan = plan_of(cat, node("box1"), node("box2"))
    assert actions(plan) == ["wait deep"]
    assert "needs 2 nodes, multi-node starts are not supported yet" in plan.actions[0].why


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


def test_a_refusal_without_a_resource_rests_the_node() -> None:
    state = place_at(running(ONE, node("box1")), "box1")
    no = Refusal(seq=1, shard="alpha-9/0", incarnation="new", reason="bad_id", why="bad id")
    state = observe(state, ShardsChanged("box1", refused=(no,)), 2.0)
    (wait,) = decide(state, 2.0).actions
    assert isinstance(wait, Wait)
    assert wait.why == "min 1, 0 running; box1: bad id"


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
    for n in range(3, 6):
        state = observe(state, ShardsChanged("box1", shards=(failed(f"i{n}"),)), 60.0)
    assert decide(state, 900.0).actions[0].why == (
        "min 1, 0 running; failed (gave up after 6 failures in 30 min: exit 1); "
        "llmgw clear alpha lets it start again"
    )
    assert actions(decide(observe(state, Cleared("alpha"), 901.0), 901.0)) == ["start alpha"]
    assert actions(decide(state, 2000.0)) == ["start alpha"]


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


# --- what must go ----------------------------------------------------------------------------


def test_a48_unclaimed_waits_for_the_grace_then_drains_then_stops() -> None:
    state = running(SLEEPY, node("box1", shard("gone-1/0")))
    (stop,) = decide(state, 0.0).actions
    assert isinstance(stop, StopReplica)
    assert (stop.due_s, stop.disturbs, stop.reason) == (60.0, True, "model_removed")
    (drain,) = decide(state, 60.0).actions
    assert isinstance(drain, DrainReplica)
    state = observe(state, DrainBegun("inc-gone-1", drain.reason, drain.why), 60.0)
    assert observe(state, DrainBegun("inc-gone-1", "again", ""), 61.0) == state
    state = observe(state, Published(5, frozenset(), frozenset()), 60.0)
    (stop,) = decide(state, 61.0).actions
    assert isinstance(stop, StopReplica)
    assert (stop.due_s, stop.drained) == (0.0, True)
    assert stop.why.endswith("; drained, nothing in flight")


def test_a48_a_model_removed_by_a_reload_has_its_grace_from_there() -> None:
    state = running(ONE, node("box1", shard("alpha-1/0")))
    (stop,) = decide(observe(state, CatalogLoaded(SLEEPY), 500.0), 510.0).actions
    assert isinstance(stop, StopReplica)
    assert stop.due_s == 50.0


def test_an_unclaimed_one_that_never_came_up_is_stopped_after_the_grace() -> None:
    state = running(SLEEPY, node("box1", shard("gone-1/0", state="loading")))
    (stop,) = decide(state, 60.0).actions
    assert isinstance(stop, StopReplica)
    assert (stop.due_s, stop.disturbs) == (0.0, False)


@pytest.mark.parametrize("where", ["flag", "catalog"])
def test_keep_unknown_holds_what_nothing_claims(where: str) -> None:
    cat = catalog(model("beta"), keep_unknown=where == "catalog")
    plan = plan_of(cat, node("box1", shard("gone-1/0")), keep_unknown=where == "flag")
    assert verdicts(plan) == {"box1:gone-1/0": "unclaimed model_removed"}
    assert plan.actions == ()


def test_a27_a_second_shard_of_a_rank_is_drained_for_the_whole_time_then_stopped() -> None:
    cat = catalog(model("deep", profile(nodes=2), low=1))
    ranks = [shard(f"deep-1/{r}", world_size=2) for r in (0, 1)]
    again = replace(ranks[1], desired="draining")
    first = [node("box1", ranks[0]), node("box2", ranks[1])]
    (drain,) = decide(running(cat, *first, node("box3", ranks[1])), 0.0).actions
    assert isinstance(drain, DrainReplica)
    assert ([s.node for s in drain.shards], drain.whole) == (["box3"], False)
    state = running(cat, *first, node("box3", again))
    for now, left in ((20.0, 100.0), (120.0, 0.0)):
        (stop,) = decide(state, now).actions
        assert isinstance(stop, StopReplica)
        assert (stop.due_s, stop.disturbs, len(stop.shards)) == (left, False, 1)


def test_a_stop_the_agent_works_on_is_not_ordered_again() -> None:
    for k in ({"desired": "stopped"}, {"state": "stopping"}):
        assert plan_of(SLEEPY, node("box1", shard("gone-1/0", **k))).actions == ()


def test_a65_a_drain_only_the_agents_journal_remembers_goes_on_after_a_restart() -> None:
    state = running(ONE, node("box1", shard("alpha-1/0", state="draining")))
    assert replicas(decide(state, 0.0))["alpha-1"].state == "draining"
    assert actions(decide(state, 59.0)) == ["start alpha"]
    stop = decide(state, 61.0).actions[0]
    assert isinstance(stop, StopReplica)
    assert (stop.due_s, stop.disturbs) == (0.0, False)
    assert stop.why == "was draining before; drained, nothing in flight"
    other = observe(state, demand(table=0), 61.0)
    assert actions(decide(other, 61.0)) == ["start alpha"]
    assert actions(decide(other, 120.0)) == ["stop alpha", "start alpha"]


def test_a_drain_of_a_profile_nobody_knows_ends_by_the_default() -> None:
    state = running(SLEEPY, node("box1", shard("gone-1/0", state="draining")))
    state = observe(state, demand(in_flight={"gone-1": 1}, table=9), 119.0)
    assert decide(state, 119.0).actions == ()
    assert decide(state, 120.0).actions[0].why.endswith("; drained for 120 s, the limit")


def test_ending_drains_everything_even_what_nothing_claims_and_starts_nothing() -> None:
    state = running(ONE, node("box1", shard("alpha-1/0"), shard("gone-1/0", port=18001)))
    plan = decide(observe(state, Ending(), 1.0), 1.0)
    assert actions(plan) == ["drain alpha", "drain gone"]
    assert plan.actions[0].why == "the operator asked for all engines to end"
    assert decide(observe(running(ONE, node("box1")), Ending(), 1.0), 1.0).actions == ()


def test_a38_the_loser_of_a_kept_one_that_is_ready_is_drained_once() -> None:
    state = running(ONE, node("box1", shard("alpha-1/0")), node("box2", shard("alpha-2/0")))
    (drain,) = decide(state, 0.0).actions
    assert isinstance(drain, DrainReplica)
    state = observe(state, DrainBegun(drain.incarnation, drain.reason, drain.why), 0.0)
    assert decide(state, 0.0).actions == ()
    (stop,) = decide(state, 120.0).actions
    assert isinstance(stop, StopReplica)
    assert stop.reason == "duplicate_replica"


def test_a66_roll_a_surge_then_the_old_one_goes() -> None:
    changed = catalog(model("alpha", profile(fingerprints={"default": "1:bbbb"}), low=1))
    old = shard("alpha-1/0")
    assert actions(plan_of(changed, node("box1", old))) == ["roll alpha"]
    coming = shard("alpha-2/0", fingerprint="1:bbbb", state="loading", port=18001)
    assert plan_of(changed, node("box1", old, coming)).actions == ()
    ready = replace(coming, state="ready")
    plan = plan_of(changed, node("box1", old, ready))
    assert (actions(plan), verdicts(plan)["box1:alpha-1/0"]) == (
        ["drain alpha"],
        "stray duplicate_replica",
    )


def test_a66_roll_where_max_would_keep_both() -> None:
    wide = catalog(model("alpha", profile(fingerprints={"default": "1:bbbb"}), low=1, high=2))
    old = shard("alpha-1/0")
    ready = shard("alpha-2/0", fingerprint="1:bbbb", port=18001)
    (drain,) = plan_of(wide, node("box1", old, ready)).actions
    assert isinstance(drain, DrainReplica)
    assert (drain.replica, drain.reason) == ("alpha-1", "drift")


# --- on demand -------------------------------------------------------------------------------


def test_a63_a_waiting_request_wakes_the_model_and_one_load_serves_all() -> None:
    state = observe(running(SLEEPY, node("box1")), demand(waiting={"beta": 3, "x": 1}), 5.0)
    (start,) = decide(state, 5.0).actions
    assert start.why.startswith("3 waiting, 0 running; ")
    loading = shard("beta-1/0", state="loading")
    state = observe(state, ShardsChanged("box1", shards=(loading,)), 6.0)
    assert decide(state, 6.0).actions == ()
    assert observe(state, demand(n=1), 7.0) == state
    gone = observe(state, demand(n=2), 7.0)
    assert (decide(gone, 700.0).actions, gone.wanted_s) == ((), {"beta": 5.0})


def test_a_waiting_model_that_does_not_run_stays_wanted_until_nobody_waits() -> None:
    state = observe(running(SLEEPY, node("box1")), demand(waiting={"beta": 1}), 5.0)
    assert observe(state, CatalogLoaded(SLEEPY), 6.0).wanted_s == {"beta": 5.0}
    gone = observe(state, demand(n=2), 7.0)
    assert observe(gone, CatalogLoaded(SLEEPY), 8.0).wanted_s == {}


def test_a22_a23_a24_adoption_gives_one_whole_idle_timeout_once() -> None:
    report = node("box1", shard("beta-1/0", last_request_age_s=5000.0))
    state = observe(begun(SLEEPY), NodeRegistered(report), 100.0)
    assert state.wanted_s == {"beta": 100.0}
    state = observe(state, NodeRegistered(report), 500.0)
    assert state.wanted_s == {"beta": 100.0}
    assert decide(state, 100.0 + IDLE_S - 0.1).actions == ()
    (drain,) = decide(state, 100.0 + IDLE_S).actions
    assert isinstance(drain, DrainReplica)
    assert (drain.idle, drain.disturbs) == (True, False)
    assert drain.why == "idle for 600 s, idle_timeout is 600 s"


def test_a22_an_always_on_model_gets_no_entry() -> None:
    assert running(ONE, node("box1", shard("alpha-1/0"))).wanted_s == {}


def test_a63_in_flight_and_a_silent_gateway_keep_it_up() -> None:
    state = running(SLEEPY, node("box1", shard("beta-1/0")))
    busy = observe(state, demand(in_flight={"beta-1": 1}), 590.0)
    assert decide(busy, 599.0).actions == ()
    assert decide(busy, 645.0).actions == ()  # silent since 55 s: may still be serving
    heard = observe(busy, demand(n=2, last_byte={"beta-1": 10.0}), 700.0)
    assert decide(heard, 700.0 + IDLE_S - 10.1).actions == ()
    quiet = observe(heard, demand(n=3, in_flight={"beta-1": 0}), 800.0)
    assert quiet.gateways["g"].last_byte_s == {"beta-1": 690.0}
    gone = observe(heard, GatewayGone("g"), 701.0)
    assert gone.gateways == {}


def test_never_means_never() -> None:
    cat = catalog(model("beta", scaling=Scaling(idle_timeout_s=None)))
    assert decide(running(cat, node("box1", shard("beta-1/0"))), 1e6).actions == ()


def test_beyond_min_the_longest_idle_goes_first() -> None:
    cat = catalog(model("gamma", low=1, high=2))
    state = running(cat, node("box1", shard("gamma-1/0")), node("box2", shard("gamma-2/0")))
    state = observe(state, demand(last_byte={"gamma-1": 0.0}), 100.0)
    (drain,) = decide(state, 1000.0).actions
    assert isinstance(drain, DrainReplica)
    assert drain.replica == "gamma-2"


# --- other facts -----------------------------------------------------------------------------


def test_a8_placed_but_never_reported_is_dropped_and_not_a_failure() -> None:
    state = place_at(running(ONE, node("box1")), "box1")
    state = observe(state, NodeRegistered(node("box1")), 2.0)
    assert (state.nodes["box1"].shards, state.failures) == ((), {})


def test_a39_missing_is_announced_once() -> None:
    state = running(ONE, node("box1", shard("alpha-1/0")))
    state = observe(state, DrainBegun("inc-alpha-1", "idle", ""), 1.0)
    state = observe(state, NodeRegistered(node("box1")), 2.0)
    assert verdicts(decide(state, 2.0)) == {"box1:alpha-1/0": "forget not_running"}
    assert observe(state, NodeRegistered(node("box1")), 3.0).nodes["box1"].shards
    state = observe(state, Announced(frozenset({"inc-alpha-1"})), 4.0)
    assert (verdicts(decide(state, 4.0)), state.draining) == ({}, {})


def test_events_of_a_node_that_has_not_registered_are_ignored() -> None:
    state = begun(ONE, node("box1"))
    assert observe(state, ShardsChanged("box1", shards=(shard("alpha-1/0"),)), 1.0) == state
    assert observe(state, SessionLost("box1"), 1.0) == state
    assert observe(state, SessionLost("nobody"), 1.0) == state


def test_a29_a_missing_compute_or_key_is_filled_in_a_known_one_stays() -> None:
    told = Compute(device="cuda", layers_gpu=49)
    full = shard("alpha-1/0", compute=told, api_key="k", served_name="a")
    state = running(ONE, node("box1", full))
    state = observe(state, NodeRegistered(node("box1", shard("alpha-1/0"))), 1.0)
    report = state.nodes["box1"].shards[0].report
    assert (report.compute, report.api_key, report.served_name) == (told, "k", "a")


def test_devices_and_foreign_processes_follow_the_events() -> None:
    state = running(ONE, node("box1"))
    seen = ShardsChanged("box1", gpus=gpus("box1", 8), foreign=(Foreign(pid=1, port=18000),))
    state = observe(state, seen, 1.0)
    assert state.nodes["box1"].report.gpus == gpus("box1", 8)
    (start,) = decide(state, 1.0).actions
    assert isinstance(start, StartReplica)
    assert start.spots[0].port == 18001


def test_a_drain_counts_from_the_first_table_that_shows_it() -> None:
    state = running(ONE, node("box1", shard("alpha-1/0")))
    state = observe(state, DrainBegun("inc-alpha-1", "drift", ""), 1.0)
    state = observe(state, Published(7, frozenset({"inc-alpha-1"}), frozenset()), 1.0)
    assert state.draining["inc-alpha-1"].version == 0
    state = observe(state, Published(8, frozenset(), frozenset({"inc-alpha-1"})), 2.0)
    state = observe(state, Published(9, frozenset(), frozenset({"inc-alpha-1"})), 3.0)
    assert state.draining["inc-alpha-1"].version == 8


def test_forgetting_a_node_removes_it_for_good() -> None:
    state = observe(begun(ONE, node("box1"), node("box2")), NodeForgotten("box2"), 1.0)
    assert list(state.nodes) == ["box1"]


def test_a_lost_session_keeps_the_picture() -> None:
    state = observe(running(ONE, node("box1", shard("alpha-1/0"))), SessionLost("box1"), 9.0)
    assert observe(state, SessionLost("box1"), 10.0) == state
    assert state.nodes["box1"].lost_s == 9.0


def test_no_node_at_all_is_said() -> None:
    state = observe(begun(ONE, timeout_s=1.0), Tick(), 2.0)
    assert decide(state, 2.0).actions[0].why == ("min 1, 0 running; no node is registered")


def test_a52_the_dry_run_is_what_the_first_pass_decides() -> None:
    cat = catalog(model("alpha", low=1), model("beta"))
    was = node("box1", shard("alpha-1/0"))
    now = [node("box1", shard("gone-1/0")), node("box2", shard("beta-1/0"))]
    plan = decide(after_settling(cat, Memory(nodes=((was, False),)), now), 0.0)
    live = begun(cat, was)
    for report in (now[1], now[0]):
        live = observe(live, NodeRegistered(report), 0.0)
    assert decide(live, 0.0) == plan


def test_capacity_limits_of_a_node_that_says_nothing_are_none() -> None:
    cat = catalog(model("alpha", profile(cpu_cores=99, host_memory_bytes=GIB, power_w=9e9), low=1))
    assert actions(plan_of(cat, node("box1", capacity=Capacity()))) == ["start alpha"]


def test_restart_policy_of_the_catalog_counts() -> None:
    cat = catalog(model("alpha", profile(restart=Restart(max=1)), low=1))
    state = running(cat, node("box1"))
    for n in range(2):
        state = observe(state, ShardsChanged("box1", shards=(failed(f"i{n}"),)), 1.0)
    assert "gave up after 2 failures in 30 min" in decide(state, 1.0).actions[0].why
