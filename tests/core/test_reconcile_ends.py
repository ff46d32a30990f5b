"""Control's passes, second half: what must go, what may sleep, and the facts that come in between (A22-A66)."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from llmgw.core.reconcile.decide import decide
from llmgw.core.reconcile.fresh import Memory, after_settling
from llmgw.core.reconcile.observe import observe
from llmgw.core.types.catalog import Scaling
from llmgw.core.types.messages import Capacity, Compute, Foreign
from llmgw.core.types.plan import DrainReplica, RollReplica, StartReplica, StopReplica
from llmgw.core.types.state import (
    Announced,
    CatalogLoaded,
    DrainBegun,
    Ending,
    GatewayGone,
    NodeForgotten,
    NodeRegistered,
    Published,
    SessionLost,
    ShardsChanged,
    Tick,
)
from tests.core.world import (
    GIB,
    ONE,
    SLEEPY,
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
    replicas,
    running,
    shard,
    verdicts,
)

IDLE_S = 600.0


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
    assert actions(decide(other, 120.0)) == ["start alpha"]
    assert actions(decide(other, 121.0)) == ["stop alpha", "start alpha"]


def test_a65_f26_what_an_older_agent_renames_while_it_drains_gets_a_whole_limit() -> None:
    """Known by another incarnation from one registration to the next: its drain must not count from settling."""
    state = running(ONE, node("box1", shard("alpha-1/0")))
    older = node("box1", shard("alpha-1/0", state="draining", incarnation=""))
    state = observe(state, NodeRegistered(older), 500.0)
    state = observe(state, demand(table=1 << 40, in_flight={"alpha-1": 1}), 501.0)
    assert "stop alpha" not in actions(decide(state, 502.0))
    state = observe(state, demand(n=2, table=1 << 40, in_flight={"alpha-1": 1}), 619.0)
    assert "stop alpha" not in actions(decide(state, 619.0))
    assert "stop alpha" in actions(decide(state, 620.0))


def test_a_drain_of_a_profile_nobody_knows_ends_by_the_default() -> None:
    state = running(SLEEPY, node("box1", shard("gone-1/0", state="draining")))
    state = observe(state, demand(in_flight={"gone-1": 1}, table=9), 119.0)
    assert decide(state, 119.0).actions == ()
    assert (
        decide(state, 120.0).actions[0].why.endswith("; drained for 120 s, the limit, 1 in flight")
    )


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


def test_a66_two_models_that_roll_in_one_pass_are_not_given_the_same_port() -> None:
    new = profile(fingerprints={"default": "1:bbbb"})
    both = (model("alpha", new, low=1), model("beta", new, low=1))
    box = node("box1", shard("alpha-1/0"), shard("beta-1/0", port=18001))
    plan = plan_of(catalog(*both, start_limit=2), box)
    assert [a.spots[0].port for a in plan.actions if isinstance(a, RollReplica)] == [18002, 18003]
    assert actions(plan_of(catalog(*both), box)) == ["roll alpha", "wait beta"]


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
    assert decide(observe(live, Tick(), 0.0), 0.0) == plan


def test_capacity_limits_of_a_node_that_says_nothing_are_none() -> None:
    cat = catalog(model("alpha", profile(cpu_cores=99, host_memory_bytes=GIB, power_w=9e9), low=1))
    assert actions(plan_of(cat, node("box1", capacity=Capacity()))) == ["start alpha"]


def test_one_that_is_not_ready_is_not_the_one_that_stays_awake() -> None:
    cat = catalog(model("gamma", low=1, high=2))
    state = running(cat, node("box1", shard("gamma-1/0")), node("box2", shard("gamma-2/0")))
    sick = shard("gamma-2/0", state="unhealthy")
    state = observe(state, ShardsChanged("box2", (sick,)), 8990.0)
    assert decide(state, 9000.0).actions == ()
