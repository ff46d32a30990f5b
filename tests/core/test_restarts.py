"""Control killed at any moment, nodes that vanish and come back, clocks that jump (F1-F12, F26, F41, F58-F63, F82).

And what a restart may not get wrong on the way: A1, A9, A19, A35, A40, A42, A46.
"""

from __future__ import annotations

from itertools import pairwise

import pytest
from msgspec.structs import replace

from llmgw.core import route
from llmgw.core.adopt.survey import survey
from llmgw.core.capacity import holdings
from llmgw.core.place import start_message
from llmgw.core.reconcile.decide import decide
from llmgw.core.reconcile.fresh import Memory, started
from llmgw.core.reconcile.observe import observe
from llmgw.core.supervise.report import node_report
from llmgw.core.types.catalog import Catalog, Scaling
from llmgw.core.types.messages import NodeReport, ShardReport
from llmgw.core.types.node import SessionLost as AgentSessionLost
from llmgw.core.types.node import Spawn
from llmgw.core.types.plan import DrainReplica, RollReplica, Spot, StopReplica
from llmgw.core.types.state import (
    CatalogLoaded,
    Event,
    NodeRegistered,
    Placed,
    Published,
    SessionLost,
    ShardsChanged,
    State,
    Tick,
)
from tests.core.agent_bench import C1, Bench
from tests.core.world import (
    ALPHA,
    DEEP,
    GIB,
    ONE,
    SLEEPY,
    actions,
    begun,
    catalog,
    demand,
    half,
    model,
    node,
    plan_of,
    profile,
    replicas,
    running,
    shard,
    verdicts,
)

ON = ("box1-0",)


def fold(state: State, *events: Event, now: float) -> State:
    for event in (*events, Tick()):
        state = observe(state, event, now)
    return state


# --- control is killed around an order (F1-F4, F6) -------------------------------------------


def ordered() -> tuple[NodeReport, ShardReport]:
    """What control had written down when it died, having placed alpha on box1; and that shard."""
    state = running(ALPHA, node("box1"))
    spots = (Spot(node="box1", gpus=ON, port=18000),)
    wanted = state.catalog.models["alpha"]
    ((where, order),) = start_message(state, wanted, ("main", spots), "alpha-1", "inc-1")
    state = observe(state, Placed(where, order), 1.0)
    (placed,) = state.nodes["box1"].shards
    return node("box1", placed.report), placed.report


def test_f1_killed_between_placing_and_sending_nothing_is_left_of_it() -> None:
    """The new one learns that nothing runs and places afresh, after settling; nothing is held, nothing has failed."""
    written, _ = ordered()
    state = fold(begun(ALPHA, written), now=1.0)
    assert decide(state, 1.0).actions == ()
    state = fold(state, NodeRegistered(node("box1")), now=2.0)
    plan = decide(state, 2.0)
    assert (actions(plan), state.failures, holdings(state)["box1"].gpus) == (
        ["start alpha"],
        {},
        {},
    )


@pytest.mark.parametrize("written", [True, False])
@pytest.mark.parametrize("came", ["pending", "starting", "loading", "ready"])
def test_f2_f3_killed_after_sending_it_is_adopted_as_far_as_it_came(
    written: bool, came: str
) -> None:
    picture, report = ordered()
    now_runs = node("box1", replace(report, state=came), epoch_seen=3)
    state = begun(ALPHA, *([picture] if written else []))
    state = fold(fold(state, NodeRegistered(now_runs), now=1.0), now=20.0)
    plan = decide(state, 20.0)
    assert (verdicts(plan), plan.actions) == ({"box1:alpha-1/0": "adopt"}, ())
    assert replicas(plan)["alpha-1"].state == ("ready" if came == "ready" else "starting")
    assert holdings(state)["box1"].gpus["box1-0"].by == ("alpha-1/0",)


def test_a1_f4_what_runs_on_a_node_is_in_the_picture_before_anything_is_placed_there() -> None:
    """Not even when settling ended without that node: it is placed on from its registration on, with all it holds."""
    big = catalog(model("alpha", profile(gpus=1, gpu_memory_bytes=20 * GIB), low=1))
    state = fold(begun(big, node("box1"), timeout_s=10.0), now=10.0)
    assert not state.settling
    (wait,) = decide(state, 10.0).actions
    assert wait.why == "min 1, 0 running; box1 is not connected"
    stranger = shard("gone-1/0", gpus=ON, port=18000)
    state = fold(state, NodeRegistered(node("box1", stranger)), now=11.0)
    assert actions(decide(state, 11.0)) == ["stop gone", "wait alpha"]
    ours = NodeRegistered(node("box1", shard("alpha-1/0", gpus=ON)))
    assert decide(fold(state, ours, now=11.0), 11.0).actions == ()


def test_f6_ten_restarts_in_a_minute_drain_nothing_and_double_nothing() -> None:
    cat = catalog(model("alpha", low=1), model("beta", scaling=Scaling(idle_timeout_s=30.0)))
    report = node("box1", shard("alpha-1/0"), shard("beta-1/0", port=18001), epoch_seen=3)
    state = running(cat, report)
    for n in range(1, 11):
        memory = Memory(nodes=((report, False),), epoch=3)
        now = 6.0 * n
        state = started(cat, memory, now=now, settle_timeout_s=60.0, keep_unknown=False)
        assert decide(state, now).actions == ()
        state = fold(state, NodeRegistered(report), now=now + 1.0)
        plan = decide(state, now + 5.9)
        assert (set(verdicts(plan).values()), plan.actions) == ({"adopt"}, ())
    assert decide(state, 61.0 + 29.9).actions == ()


# --- the catalog changes meanwhile (F7-F10, F12) ---------------------------------------------


def test_f7_a_model_removed_while_control_was_down_is_announced_then_drained() -> None:
    was = node("box1", shard("alpha-1/0"))
    state = fold(begun(SLEEPY, was), NodeRegistered(was), now=5.0)
    plan = decide(state, 5.0)
    assert verdicts(plan) == {"box1:alpha-1/0": "unclaimed model_removed"}
    assert (actions(plan), getattr(plan.actions[0], "due_s", 0.0)) == (["stop alpha"], 60.0)
    (drain,) = decide(state, 65.0).actions
    assert isinstance(drain, DrainReplica)


def test_f8_a_renamed_profile_is_adopted_under_its_new_name_and_said() -> None:
    was = node("box1", shard("alpha-1/0"))
    cat = catalog(model("alpha", profile("fast"), low=1))
    plan = decide(fold(begun(cat, was), NodeRegistered(was), now=5.0), 5.0)
    assert plan.actions == ()
    assert (plan.verdicts[0].verdict, plan.verdicts[0].profile) == ("adopt", "fast")
    assert plan.verdicts[0].why.endswith("was main, has the fingerprint of fast")


def test_f9_changed_arguments_are_adopted_marked_and_rolled_once_settled() -> None:
    was, other = node("box1", shard("alpha-1/0")), node("box2")
    cat = catalog(model("alpha", profile(fingerprints={"default": "1:bbbb"}), low=1))
    state = fold(begun(cat, was, other), NodeRegistered(was), now=5.0)
    plan = decide(state, 5.0)
    assert (verdicts(plan), plan.actions) == ({"box1:alpha-1/0": "adopt drift"}, ())
    (roll,) = decide(fold(state, NodeRegistered(other), now=6.0), 6.0).actions
    assert isinstance(roll, RollReplica)


def test_a9_f12_a_reload_between_two_registrations_leaves_no_mixture() -> None:
    """All that is known is judged by the one catalog of today, whenever it was heard."""
    fleet = [
        node(f"box{n}", shard(f"old-{n}/0", "old", port=18000 + n), shard(f"alpha-{n}/0"))
        for n in (1, 2)
    ]
    before = catalog(model("alpha", low=2, high=2), model("old", low=2, high=2))
    after: Catalog = catalog(model("alpha", low=2, high=2))
    state = begun(before, *fleet)
    for event in (NodeRegistered(fleet[0]), CatalogLoaded(after), NodeRegistered(fleet[1])):
        state = fold(state, event, now=5.0)
    kinds = {v.shard.report.model: v.verdict for v in decide(state, 5.0).verdicts}
    assert kinds == {"alpha": "adopt", "old": "unclaimed"}
    assert len({v.verdict for v in decide(state, 5.0).verdicts}) == 2
    assert actions(decide(state, 5.0)) == ["stop old", "stop old"]


# --- clocks (F26, F41) -----------------------------------------------------------------------


@pytest.mark.parametrize("at", ["1970-01-01T00:00:00Z", "2099-01-01T00:00:00Z", "", "yesterday"])
def test_f26_a_clock_that_jumps_on_one_box_changes_no_decision(at: str) -> None:
    """Wall time is for people: it orders rivals (A38), and no window or timeout is measured by it."""
    odd = (shard("alpha-1/0", started_at=at), shard("gone-1/0", port=18001, started_at=at))
    state, usual = (
        running(ONE, node("box1", *shards))
        for shards in (odd, (shard("alpha-1/0"), shard("gone-1/0", port=18001)))
    )
    for now in (0.0, 59.9, 60.0, 1e6):
        ours, theirs = decide(state, now).actions, decide(usual, now).actions
        assert [(type(a), a.why) for a in ours] == [(type(a), a.why) for a in theirs]


def test_f41_a_clock_corrected_after_boot_changes_no_identity() -> None:
    """Ticks since boot and the boot's id tell the process; when it says it started is for people."""
    bench = Bench().ready()
    (record,) = bench.journaled().values()
    for started_at in ("1970-01-01T00:00:00Z", "2099-01-01T00:00:00Z"):
        again = Bench(replace(record, started_at=started_at), heard=False)
        again.identified(leader="same")
        assert (again.record.state, again.record.pid) == ("ready", 4711)
        assert again.record.started_at == started_at


# --- repeats, nodes that vanish and come back (F58-F63) --------------------------------------


def test_f58_a_registration_whose_answer_was_lost_comes_again_and_changes_nothing() -> None:
    report = node("box1", shard("alpha-1/0"), shard("gone-1/0", port=18001))
    once = running(ONE, report)
    state = once
    for now in (1.0, 30.0, 60.0):
        state = observe(state, NodeRegistered(report), now)
        box = state.nodes["box1"]
        assert replace(box, heard_s=0.0, registered_s=0.0) == once.nodes["box1"]
        assert replace(state, nodes=once.nodes) == once
    assert decide(state, 60.0) == decide(once, 60.0)


def test_f59_running_shards_are_left_alone_while_the_driver_is_not_up() -> None:
    """Devices unknown is not devices gone: what runs is adopted and holds, and nothing new is placed there."""
    cat = catalog(model("alpha", profile(gpus=1), low=1), model("beta", profile(gpus=1), low=1))
    plan = plan_of(cat, node("box1", shard("alpha-1/0", gpus=ON), gpus=None))
    assert verdicts(plan) == {"box1:alpha-1/0": "adopt"}
    assert actions(plan) == ["wait beta"]
    assert "its GPUs are not known (driver not up?)" in plan.actions[0].why


def test_f62_a_node_that_comes_back_after_it_was_replaced() -> None:
    """The one that serves by now stays, though the returned one is older; that one is drained and not killed."""
    old = node("box1", shard("alpha-1/0"))
    new = shard("alpha-2/0", started_at="2026-03-01T00:00:00Z", state="loading")
    state = fold(running(ONE, node("box2", new)), NodeRegistered(old), now=5.0)
    loading = decide(state, 5.0)
    assert replicas(loading)["alpha-1"].kept
    (stop,) = loading.actions
    assert isinstance(stop, StopReplica), "it never came up, so there is nothing to drain"
    assert stop.replica == "alpha-2"
    served = observe(
        running(ONE, node("box2", replace(new, state="ready"))), NodeRegistered(old), 5.0
    )
    served = replace(served, routed=frozenset({"inc-alpha-2"}))
    (drain,) = decide(served, 5.0).actions
    assert isinstance(drain, DrainReplica)
    assert (drain.replica, drain.reason) == ("alpha-1", "duplicate_replica")


def test_f63_when_all_nodes_vanish_at_once_it_is_us_and_nothing_is_ended() -> None:
    cat = catalog(model("alpha", low=3, high=3), model("deep", profile(nodes=2), low=1))
    halves = [shard(f"deep-1/{r}", world_size=2, port=18009) for r in (0, 1)]
    gone = shard("gone-1/0", port=18008)
    fleet = [
        node(f"box{n}", shard(f"alpha-{n}/0"), *extra)
        for n, extra in enumerate(((halves[0],), (halves[1],), (gone,)), 1)
    ]
    state = running(cat, *fleet)
    assert actions(decide(state, 100.0)) == ["drain gone"]
    state = fold(state, *(SessionLost(r.node) for r in fleet), now=100.0)
    for now in (101.0, 1e3, 1e6):
        plan = decide(fold(state, now=now), now)
        assert plan.actions == ()
        assert set(verdicts(plan).values()) == {"hold node_silent"}


# --- wake-ups while control settles (F82) ----------------------------------------------------


def test_f82_a_wake_up_while_settling_waits_and_starts_only_what_was_not_adopted() -> None:
    report = node("box1", shard("beta-1/0"))
    for found, wanted in ((node("box1"), ["start beta"]), (report, [])):
        state = fold(begun(SLEEPY, report), demand(waiting={"beta": 2}), now=1.0)
        assert decide(state, 1.0).actions == ()
        state = fold(state, NodeRegistered(found), now=2.0)
        assert actions(decide(state, 2.0)) == wanted
    state = fold(begun(SLEEPY, node("box1")), demand(waiting={"beta": 2}), now=1.0)
    state = fold(state, demand(n=2), NodeRegistered(node("box1")), now=2.0)
    assert actions(decide(state, 2.0)) == [], "nobody waits any more"


def test_f5_a_wake_up_that_waited_through_hours_without_control_is_served_once() -> None:
    state = fold(begun(SLEEPY, node("box1")), NodeRegistered(node("box1")), now=1.0)
    state = fold(state, demand(waiting={"beta": 9}), now=2.0)
    (start,) = decide(state, 2.0).actions
    assert start.why.startswith("9 waiting, 0 running; ")
    coming = shard("beta-1/0", state="pending")
    state = fold(state, ShardsChanged("box1", (coming,)), now=3.0)
    assert decide(state, 3.0).actions == ()


def test_a46_settling_is_one_way_and_each_restart_has_its_own() -> None:
    starts = [begun(ONE, node("box1"), timeout_s=t) for t in (10.0, 60.0)]
    ends = []
    for state in starts:
        now = next(t for t in range(100) if not fold(state, now=float(t)).settling)
        ends.append(now)
    assert ends == [10, 60]
    over = fold(starts[0], now=10.0)
    later = [fold(over, SessionLost("box1"), now=11.0), fold(over, CatalogLoaded(ONE), now=12.0)]
    assert all(s.settled_s == 10.0 for s in later)
    assert all(a.settled_s == b.settled_s for a, b in pairwise(later))


def test_a40_what_had_ended_is_not_forgotten_when_its_record_goes() -> None:
    state = running(ONE, node("box1", shard("alpha-1/0", state="failed"), shard("alpha-2/0")))
    state = fold(state, NodeRegistered(node("box1", shard("alpha-2/0"))), now=1.0)
    assert verdicts(decide(state, 1.0)) == {"box1:alpha-2/0": "keep"}


def test_a35_while_settling_the_route_of_yesterday_decides_nothing() -> None:
    """Among copies met while settling A38 decides: the longer running stays."""
    younger = node("box1", shard("alpha-1/0", started_at="2026-03-01T00:00:00Z"))
    older = node("box2", shard("alpha-2/0"))
    state = begun(ONE, younger, node("box3"))
    state = observe(state, Published(7, frozenset({"inc-alpha-1"}), frozenset()), 0.0)
    state = fold(state, NodeRegistered(younger), NodeRegistered(older), now=1.0)
    assert state.settling
    kept = {r.replica: r.kept for r in decide(state, 1.0).replicas}
    assert kept == {"alpha-1": False, "alpha-2": True}


def test_a19_what_does_not_change_the_process_rolls_nothing_and_counts_at_once() -> None:
    """The fingerprint is that of the process (tests/catalog/test_fingerprint); a weight, a timeout, an alias is not."""
    report = node("box1", shard("alpha-1/0"))
    state = running(ONE, report)
    edits = profile(weight=7, drain_timeout_s=9.0, start_timeout_s=5.0)
    lazy = Scaling(min=0, max=2, idle_timeout_s=50.0, min_up_s=0.0, priority=9)
    cat = catalog(model("alpha", edits, scaling=lazy, aliases=("fast",), wait_timeout_s=1.0))
    state = fold(state, CatalogLoaded(cat), now=100.0)
    plan = decide(state, 149.0)
    assert (verdicts(plan), plan.actions) == ({"box1:alpha-1/0": "keep"}, ())
    routed = route.table(state, survey(state), 1).models["alpha"]
    assert (routed.replicas[0].weight, routed.aliases) == (7, ("fast",))
    assert actions(decide(state, 150.0)) == ["drain alpha"], (
        "a whole timeout from when it may sleep"
    )


def test_a42_what_an_older_session_ordered_is_refused_and_does_not_run_unreported() -> None:
    """The intake closes before the snapshot: what came before it is in the report, what comes after it is refused."""
    bench = Bench().start(1)
    bench(AgentSessionLost(C1))
    snapshot = node_report(bench.state, for_register=True)
    assert [s.shard for s in snapshot.shards] == ["alpha-1/0"]
    bench.start(2)
    assert bench.refusal()[0] == "other_session"
    assert node_report(bench.state, for_register=True) == snapshot
    bench.session(C1, "s2", "L1")
    bench.start(2)
    assert bench.refusal()[0] == "other_session", "still of the session that is over"
    assert bench.start(2, session="s2").of(Spawn)


def test_a33_a48_windows_count_from_the_end_of_settling_not_from_what_was_seen_before() -> None:
    """Nothing could be done before, and nobody could see it coming: the grace and the assembly window are whole."""
    early = node("box1", shard("gone-1/0"), half(0, port=18001))
    state = fold(begun(DEEP, early, node("box2")), NodeRegistered(early), now=1.0)
    state = fold(state, now=60.0)
    due = {a.model: a.due_s for a in decide(state, 60.0).actions if isinstance(a, StopReplica)}
    assert due == {"gone": 60.0, "deep": 180.0}
