"""Adoption, second half: what control knew, rivals, what is forgotten or held; its laws (A10, A11, A35-A46)."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from llmgw.core.adopt.survey import survey
from llmgw.core.check import violations
from llmgw.core.place import start_message
from llmgw.core.reconcile.decide import decide
from llmgw.core.reconcile.fresh import Memory, after_settling
from llmgw.core.reconcile.observe import observe
from llmgw.core.types.catalog import Catalog
from llmgw.core.types.messages import NodeReport, Resources, ShardReport
from llmgw.core.types.plan import Plan, Spot
from llmgw.core.types.routes import Demand
from llmgw.core.types.state import (
    Demanded,
    NodeRegistered,
    Placed,
    Published,
    SessionLost,
    ShardsChanged,
    State,
)
from tests.core.world import (
    ALPHA,
    DEEP,
    ONE,
    actions,
    catalog,
    gpus,
    model,
    node,
    place_at,
    plan_of,
    replicas,
    running,
    settled,
    shard,
    verdicts,
    why,
)

# --- a replica control knows -----------------------------------------------------------------


def test_a35_a_reconnecting_agent_keeps_what_serves() -> None:
    report = node("box1", shard("alpha-1/0"))
    state = observe(running(ALPHA, report), NodeRegistered(report), 5.0)
    assert verdicts(decide(state, 5.0)) == {"box1:alpha-1/0": "keep"}


def placed(state: State, replica: str, name: str) -> State:
    spots = (Spot(node=name, port=18005),)
    wanted = state.catalog.models["alpha"]
    ((where, start),) = start_message(state, wanted, ("main", spots), replica, f"new-{replica}")
    return observe(state, Placed(where, start), 1.0)


def test_a36_the_fleets_copy_replaces_one_we_placed_that_never_came_up() -> None:
    state = placed(running(ALPHA, node("box1"), node("box2")), "alpha-1", "box1")
    state = observe(state, NodeRegistered(node("box2", shard("alpha-1/0"))), 2.0)
    plan = decide(state, 2.0)
    assert verdicts(plan) == {
        "box1:alpha-1/0": "stray duplicate_replica",
        "box2:alpha-1/0": "replace stale_incarnation",
    }
    assert why(plan, "alpha-1/0") == (
        "alpha-1 on box2 is kept as alpha-1: it is ready, the other starting"
    )
    assert actions(plan) == ["stop alpha"]


def test_a36_what_we_placed_is_kept_while_it_is_on_its_way() -> None:
    state = placed(running(ALPHA, node("box1")), "alpha-1", "box1")
    plan = decide(state, 2.0)
    assert verdicts(plan) == {"box1:alpha-1/0": "keep"}
    assert plan.actions == ()


def test_a37_a38_two_copies_of_one_id_the_longer_running_stays() -> None:
    young = shard("alpha-1/0", incarnation="younger", started_at="2026-01-02T00:00:00Z")
    old = shard("alpha-1/0", incarnation="older")
    plan = plan_of(ALPHA, node("box2", young), node("box1", old))
    assert verdicts(plan) == {
        "box1:alpha-1/0": "adopt",
        "box2:alpha-1/0": "stray duplicate_replica",
    }
    assert actions(plan) == ["drain alpha"]


@pytest.mark.parametrize(
    ("better", "because"),
    [
        ({"state": "ready"}, "it is ready, the other starting"),
        ({"fingerprint": "1:aaaa"}, "it has today's profile"),
        ({"started_at": "2025-01-01T00:00:00Z"}, "running since 2025-01-01T00:00:00Z"),
        ({"incarnation": "a"}, "it has served so far, or the lower id"),
        ({"desired": "running"}, "the other is draining"),
    ],
)
def test_a38_the_total_order(better: dict[str, str], because: str) -> None:
    worse = {
        "state": "loading" if "state" in better else "ready",
        "fingerprint": "1:bbbb" if "fingerprint" in better else "1:aaaa",
        "desired": "draining" if "desired" in better else "running",
    }
    one = shard("alpha-1/0", **({"incarnation": "b"} | better))
    two = shard("alpha-1/0", **({"incarnation": "c"} | worse))
    for first, second in ((one, two), (two, one)):
        plan = plan_of(ALPHA, node("box1", first), node("box2", second))
        kept = next(v for v in plan.verdicts if v.verdict == "adopt")
        lost = next(v for v in plan.verdicts if v.reason == "duplicate_replica")
        assert kept.shard.report is (
            one if kept.shard.node == ("box1" if first is one else "box2") else None
        )
        assert because in lost.why


def test_a38_requests_in_flight_count() -> None:
    state = settled(ALPHA, node("box1", shard("alpha-1/0")), node("box2", shard("alpha-2/0")))
    demand = Demand(gateway="g", n=1, in_flight={"alpha-2": 3})
    plan = decide(observe(state, Demanded(demand), 0.0), 0.0)
    assert verdicts(plan)["box1:alpha-1/0"] == "stray duplicate_replica"
    assert "it serves 3 requests, the other 0" in why(plan, "alpha-1/0")


def test_a35_after_settling_the_routed_one_stays() -> None:
    state = settled(ALPHA, node("box1", shard("alpha-1/0")), node("box2", shard("alpha-2/0")))
    state = observe(state, Published(1, frozenset({"inc-alpha-2"}), frozenset()), 0.0)
    assert verdicts(decide(state, 0.0))["box1:alpha-1/0"] == "stray duplicate_replica"


def test_a38_more_replicas_than_max() -> None:
    plan = plan_of(ALPHA, node("box1", shard("alpha-1/0")), node("box2", shard("alpha-2/0")))
    assert verdicts(plan)["box2:alpha-2/0"] == "stray duplicate_replica"
    assert why(plan, "alpha-2/0").startswith(
        "alpha runs 2 times, max is 1; alpha-1 on box1 is kept"
    )


def test_a38_the_loser_waits_for_the_kept_one_to_be_routable() -> None:
    plan = plan_of(
        ALPHA,
        node("box1", shard("alpha-1/0", state="unhealthy")),
        node("box2", shard("alpha-2/0", state="unhealthy")),
    )
    assert verdicts(plan)["box2:alpha-2/0"] == "conflict duplicate_replica"
    assert actions(plan) == []


def test_f70_two_engines_on_one_port_the_newcomer_loses() -> None:
    cat = catalog(model("alpha"), model("beta"))
    plan = plan_of(
        cat,
        node("box1", shard("alpha-1/0"), shard("beta-1/0", started_at="2026-02-01T00:00:00Z")),
    )
    assert verdicts(plan)["box1:beta-1/0"] == "conflict port_conflict"
    assert why(plan, "beta-1/0") == (
        "port 18000 of box1 is held by alpha-1/0 (pid unknown, since 2026-01-01T00:00:00Z, adopted); "
        "beta-1/0 (pid unknown, since 2026-02-01T00:00:00Z, adopted) has it too"
    )
    assert actions(plan) == ["drain beta"]


def test_a44_port_0_is_no_port() -> None:
    cat = catalog(model("alpha"), model("beta"))
    both = [shard("alpha-1/0", port=0), shard("beta-1/0", port=0)]
    assert set(verdicts(plan_of(cat, node("box1", *both))).values()) == {"adopt"}


def test_a3_f73_one_whole_gpu_given_to_two_engines_is_named_and_left_running() -> None:
    cat = catalog(model("alpha"), model("beta"))
    whole = shard("alpha-1/0", gpus=("box1-0",), resources=Resources(), pid=7)
    part = shard("beta-1/0", gpus=("box1-0",), port=18001, pid=8)
    plan = plan_of(cat, node("box1", whole, part))
    assert verdicts(plan)["box1:beta-1/0"] == "conflict gpu_conflict"
    assert why(plan, "beta-1/0") == (
        "GPU box1-0 of box1 has 24.0 GiB, of which alpha-1/0 (pid 7, since 2026-01-01T00:00:00Z, "
        "adopted) holds 24.0; beta-1/0 (pid 8, since 2026-01-01T00:00:00Z, adopted) has 10.0 there too"
    )
    assert actions(plan) == []
    assert replicas(plan)["beta-1"].kept


def test_a_gpu_is_shared_up_to_its_memory() -> None:
    cat = catalog(model("alpha"), model("beta"), model("gamma"))
    three = [shard(f"{m}-1/0", gpus=("box1-0",), port=18000 + i) for i, m in enumerate(cat.models)]
    plan = plan_of(cat, node("box1", *three))
    assert verdicts(plan) == {
        "box1:alpha-1/0": "adopt",
        "box1:beta-1/0": "adopt",
        "box1:gamma-1/0": "conflict gpu_conflict",
    }


def test_one_id_of_two_models_is_no_copy() -> None:
    cat = catalog(model("alpha", low=1), model("beta", low=1))
    one = shard("x-1/0", "alpha", incarnation="a")
    two = shard("x-1/0", "beta", incarnation="b")
    assert set(verdicts(plan_of(cat, node("box1", one), node("box2", two))).values()) == {"adopt"}


# --- forgetting, ended, held -----------------------------------------------------------------


def remembered(cat: Catalog, was: NodeReport, *now: NodeReport) -> Plan:
    return decide(after_settling(cat, Memory(nodes=((was, False),)), now), 0.0)


def test_a39_a41_what_the_complete_report_lacks_is_forgotten_and_replaced_at_once() -> None:
    plan = remembered(ALPHA, node("box1", shard("alpha-1/0")), node("box1"))
    assert verdicts(plan) == {"box1:alpha-1/0": "forget not_running"}
    assert why(plan, "alpha-1/0") == "we believed ready; the agent on box1 does not run it"
    assert actions(plan) == ["start alpha"]


def test_a36_f75_another_incarnation_of_what_we_believed_replaces_it() -> None:
    other = shard("alpha-1/0", incarnation="other", endpoint="http://h:9")
    plan = remembered(ALPHA, node("box1", shard("alpha-1/0")), node("box1", other))
    assert [v.verdict for v in plan.verdicts] == ["forget", "replace"]
    assert plan.verdicts[1].why == (
        "the fleet runs alpha-1 at http://h:9; nothing of it runs at http://h:18000, where we had it"
    )
    assert replicas(plan)["alpha-1"].endpoint == "http://h:9"
    assert plan.actions == ()


def test_a13_a_report_from_before_re_attach_was_over_says_nothing_yet() -> None:
    early = node("box1", reattached=False)
    plan = remembered(ALPHA, node("box1", shard("alpha-1/0")), early)
    assert (plan.complete, plan.nodes[0].error) == (False, "still re-attaching its engines")


def test_a39_an_unreadable_record_is_the_one_we_knew_and_is_held() -> None:
    torn = ShardReport(shard="alpha-1/0", replica="alpha-1", rank=0, state="unknown", error="torn")
    plan = remembered(ALPHA, node("box1", shard("alpha-1/0")), node("box1", torn))
    assert verdicts(plan) == {"box1:alpha-1/0": "hold"}
    assert why(plan, "alpha-1/0") == "cannot tell: torn"
    assert plan.actions == ()
    never_seen = plan_of(ALPHA, node("box1", torn))
    assert verdicts(never_seen) == {"box1:alpha-1/0": "hold"}


def test_a40_ended_shards_and_other_nodes_are_untouched() -> None:
    was = node("box1", shard("alpha-1/0", state="failed"))
    assert verdicts(remembered(ALPHA, was, node("box1"))) == {}
    away = node("box2", shard("alpha-1/0"))
    assert verdicts(remembered(ALPHA, away, node("box1"))) == {"box2:alpha-1/0": "hold node_silent"}


def test_a44_ended_shards_hold_nothing() -> None:
    plan = plan_of(ALPHA, node("box1", shard("alpha-1/0", state="failed", error="exit 1")))
    assert verdicts(plan) == {"box1:alpha-1/0": "terminal"}
    assert why(plan, "alpha-1/0") == "ended: exit 1"
    assert actions(plan) == ["start alpha"]


def test_f55_an_agent_below_the_floor_is_adopted_read_only() -> None:
    plan = plan_of(ALPHA, node("box1", shard("alpha-1/0"), protocol=0))
    assert verdicts(plan) == {"box1:alpha-1/0": "hold protocol_too_old"}
    assert plan.actions == ()


def test_f61_a_silent_node_holds_what_it_ran() -> None:
    state = observe(running(ALPHA, node("box1", shard("alpha-1/0"))), SessionLost("box1"), 9.0)
    plan = decide(state, 9.0)
    assert verdicts(plan) == {"box1:alpha-1/0": "hold node_silent"}
    assert replicas(plan)["alpha-1"].state == "degraded"
    assert plan.actions == ()


def test_a46_while_settling_the_silent_are_held_as_settling() -> None:
    memory = Memory(nodes=((node("box1", shard("alpha-1/0")), False),))
    state = replace(after_settling(ALPHA, memory, ()), settled_s=None, settle_timeout_s=60.0)
    assert verdicts(decide(state, 0.0)) == {"box1:alpha-1/0": "hold settling"}


# --- properties ------------------------------------------------------------------------------

NAMES = st.sampled_from(["alpha-1", "alpha-2", "deep-1", "gone-1"])
STATES = st.sampled_from(["ready", "loading", "failed", "unhealthy", "draining", "unknown"])


@st.composite
def fleets(draw: st.DrawFn) -> list[NodeReport]:
    out = []
    for i in range(draw(st.integers(1, 4))):
        shards = {}
        for _ in range(draw(st.integers(0, 4))):
            replica, rank = draw(NAMES), draw(st.integers(0, 1))
            report = shard(
                f"{replica}/{rank}",
                incarnation=f"{replica}-{draw(st.integers(0, 1))}",
                world_size=2 if replica == "deep-1" else 1,
                state=draw(STATES),
                port=draw(st.integers(18000, 18003)),
                gpus=draw(st.sampled_from([(), (f"box{i}-0",)])),
                started_at=draw(
                    st.sampled_from(["", "2026-01-01T00:00:00Z", "2026-01-02T00:00:00Z"])
                ),
            )
            shards[report.incarnation, rank] = report
        out.append(node(f"box{i}", *shards.values(), gpus=gpus(f"box{i}", 24)))
    return out


BOTH = catalog(*ALPHA.models.values(), *DEEP.models.values())


@given(fleets(), st.randoms(use_true_random=False))
def test_a10_any_order_of_nodes_and_shards_gives_the_same_plan(reports, random) -> None:  # type: ignore[no-untyped-def]
    want = plan_of(BOTH, *reports)
    shuffled = [
        replace(r, shards=tuple(random.sample(r.shards, len(r.shards))))
        for r in random.sample(reports, len(reports))
    ]
    assert plan_of(BOTH, *shuffled) == want


@given(fleets())
def test_a11_the_same_report_twice_changes_nothing_the_second_time(
    reports: list[NodeReport],
) -> None:
    once = running(BOTH, *reports)
    again = once
    for r in reports:
        again = observe(again, NodeRegistered(r), 0.0)
    assert again == once


@given(fleets())
def test_every_shard_gets_exactly_one_verdict_and_no_invariant_breaks(
    reports: list[NodeReport],
) -> None:
    state = settled(BOTH, *reports)
    found = survey(state)
    assert violations(state, found) == []
    assert len(found.verdicts) == sum(len(r.shards) for r in reports)


def test_a_late_copy_of_a_running_incarnation_does_not_take_its_place() -> None:
    """An incarnation is placed once: whoever tells of it later is a copy or a liar, whatever age it claims."""
    cat = catalog(model("alpha", low=1))
    ours = shard("alpha-1/0", started_at="2026-02-02T00:00:00Z")
    liar = shard("alpha-1/0", started_at="2020-01-01T00:00:00Z", endpoint="http://evil:1")
    state = running(cat, node("box2", ours))
    plan = decide(observe(state, NodeRegistered(node("box1", liar)), 9.0), 9.0)
    assert verdicts(plan) == {"box2:alpha-1/0": "keep", "box1:alpha-1/0": "stray duplicate_rank"}
    assert replicas(plan)["alpha-1"].endpoint == ours.endpoint


def test_f55_an_agent_that_leaves_the_incarnation_out_reports_what_was_placed() -> None:
    """Else the placed one and the reported one would both hold the port, and be rivals of each other."""
    state = place_at(running(ONE, node("box1")), "box1")
    told = shard("alpha-9/0", incarnation="")
    state = observe(state, ShardsChanged("box1", (told,)), 2.0)
    assert [s.report.incarnation for s in state.nodes["box1"].shards] == [""]
    assert verdicts(decide(state, 2.0)) == {"box1:alpha-9/0": "keep"}
    named = shard("alpha-9/0", incarnation="new")
    state = observe(state, ShardsChanged("box1", (named,)), 3.0)
    assert [s.report.incarnation for s in state.nodes["box1"].shards] == ["new"]
    assert verdicts(decide(state, 3.0)) == {"box1:alpha-9/0": "keep"}


def test_f55_nor_does_it_stand_for_one_that_has_ended() -> None:
    over = shard("alpha-9/0", incarnation="old", state="failed")
    state = running(ONE, node("box1", over))
    state = observe(state, ShardsChanged("box1", (shard("alpha-9/0", incarnation=""),)), 2.0)
    assert [s.report.incarnation for s in state.nodes["box1"].shards] == ["", "old"]
