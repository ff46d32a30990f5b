"""Adoption, statement by statement (acceptance.md A1-A45): what each report leads to, and why."""

from __future__ import annotations

import itertools

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
from llmgw.core.types.state import Demanded, NodeRegistered, Placed, Published, SessionLost, State
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
    settled,
    shard,
    verdicts,
)

ALPHA = catalog(model("alpha", profile(gpus=1, gpu_memory_bytes=10 * GIB), low=1))
DEEP = catalog(model("deep", profile(nodes=2, gpus=1, gpu_memory_bytes=20 * GIB), low=1))


def why(plan: Plan, shard_name: str) -> str:
    return next(v.why for v in plan.verdicts if v.shard.report.shard == shard_name)


def half(rank: int, **k: object) -> ShardReport:
    return shard(f"deep-1/{rank}", "deep", world_size=2, gpus=(f"box{rank + 1}-0",), **k)


# --- a replica control does not know ---------------------------------------------------------


def test_a2_restart_with_healthy_engines_adopts_all_and_does_nothing() -> None:
    cat = catalog(model("alpha", low=1), model("beta"), model("gamma", low=1, high=2))
    plan = plan_of(
        cat,
        node("box1", shard("alpha-1/0"), shard("beta-1/0", port=18001)),
        node("box2", shard("gamma-1/0")),
    )
    assert set(verdicts(plan).values()) == {"adopt"}
    assert plan.actions == ()
    assert why(plan, "alpha-1/0") == "running since 2026-01-01T00:00:00Z, matches main"


def test_a12_a_shard_naming_another_node_is_refused_with_the_reason() -> None:
    plan = plan_of(ALPHA, node("box1", shard("alpha-1/0", node="box9")))
    assert verdicts(plan) == {"box1:alpha-1/0": "conflict wrong_node"}
    assert why(plan, "alpha-1/0") == "it names node box9, but box1 reported it"


def test_a14_an_alias_is_adopted_under_the_canonical_name() -> None:
    cat = catalog(model("alpha", aliases=("old", "claude-*"), low=1))
    for name in ("old", "claude-4"):
        plan = plan_of(cat, node("box1", shard("x-1/0", name)))
        assert verdicts(plan) == {"box1:x-1/0": "adopt"}
        assert replicas(plan)["x-1"].model == "alpha"
        assert why(plan, "x-1/0").endswith(f"matches main, {name} is alpha today")


@pytest.mark.parametrize(
    ("ran", "today", "verdict"),
    [
        ("/m/old.gguf", "/m/new.gguf", "unclaimed artefact_mismatch"),
        ("/m/new.gguf", "/m/new.gguf", "adopt"),
        ("", "/m/new.gguf", "adopt"),
        ("/m/old.gguf", "", "adopt"),
        ("/m/old.gguf", "${env.MODELS}/new.gguf", "adopt"),
    ],
)
def test_a14_an_alias_that_moved_to_another_model(ran: str, today: str, verdict: str) -> None:
    weights = {"default": today} if today else {}
    cat = catalog(model("alpha", profile(weights=weights), aliases=("old",)))
    plan = plan_of(cat, node("box1", shard("old-1/0", "old", artefact=ran)))
    assert verdicts(plan) == {"box1:old-1/0": verdict}


def test_a15_unknown_model_or_profile_leaves_the_whole_group_unclaimed() -> None:
    cat = catalog(model("deep", profile("new", fingerprints={"default": "1:bbbb"})))
    for name, reason in (("gone", "model_removed"), ("deep", "profile_removed")):
        shards = [
            shard(f"{name}-1/{r}", name, world_size=2, gpus=(f"box{r + 1}-0",)) for r in (0, 1)
        ]
        plan = plan_of(cat, node("box1", shards[0]), node("box2", shards[1]))
        assert set(verdicts(plan).values()) == {f"unclaimed {reason}"}
        assert not [r for r in plan.replicas if r.claimed]
        assert actions(plan) == [f"stop {name}"]


def test_a15_resources_of_the_unclaimed_stay_quarantined() -> None:
    plan = plan_of(
        catalog(model("alpha", profile(gpus=1, gpu_memory_bytes=20 * GIB), low=1)),
        node("box1", shard("old-1/0", gpus=("box1-0",))),
    )
    assert actions(plan) == ["stop old", "wait alpha"]
    assert "GPU 0 has 14.0 of 24.0 GiB free, 20.0 needed (held by old-1/0)" in plan.actions[1].why


def test_a16_a_renamed_profile_is_known_by_its_fingerprint() -> None:
    cat = catalog(model("alpha", profile("new")))
    plan = plan_of(cat, node("box1", shard("alpha-1/0")))
    assert verdicts(plan) == {"box1:alpha-1/0": "adopt"}
    assert why(plan, "alpha-1/0").endswith("was main, has the fingerprint of new")


def test_a16_a_fingerprint_of_another_kind_matches_nothing() -> None:
    cat = catalog(model("alpha", profile("new", fingerprints={"default": "9:aaaa"})))
    plan = plan_of(cat, node("box1", shard("alpha-1/0", fingerprint="9:aaaa")))
    assert verdicts(plan) == {"box1:alpha-1/0": "unclaimed profile_removed"}


def test_a17_disagreeing_fabrics_are_a_reported_conflict() -> None:
    plan = plan_of(DEEP, node("box1", half(0, fabric="ib0")), node("box2", half(1, fabric="ib1")))
    assert verdicts(plan)["box2:deep-1/1"] == "conflict fabric_conflict"
    assert why(plan, "deep-1/1") == "it is on fabric ib1, the replica on ib0"
    assert actions(plan) == []


def test_a17_disagreeing_pools_are_a_warning() -> None:
    plan = plan_of(DEEP, node("box1", half(0, pool="a")), node("box2", half(1, pool="b")))
    assert plan.warnings == ("deep-1: its shards name pools a, b",)


def test_a18_an_empty_fingerprint_is_unknown_and_never_rolls() -> None:
    bare = ShardReport(shard="alpha-1/0", replica="alpha-1", rank=0, model="alpha", state="ready")
    plan = plan_of(ALPHA, node("box1", bare))
    assert verdicts(plan) == {"box1:alpha-1/0": "adopt"}
    assert plan.actions == ()
    assert why(plan, "alpha-1/0") == "running, matches main"


def test_a20_wanted_is_what_it_was_started_with_not_what_is_reported() -> None:
    shrunk = catalog(model("deep", profile(nodes=1), low=1, on_change="keep"))
    plan = plan_of(shrunk, node("box1", half(0)), node("box2", half(1)))
    assert verdicts(plan) == {"box1:deep-1/0": "adopt", "box2:deep-1/1": "join"}
    assert (replicas(plan)["deep-1"].have, replicas(plan)["deep-1"].want) == (2, 2)
    short = plan_of(DEEP, node("box1", replace(half(0), world_size=None)), node("box2"))
    assert replicas(short)["deep-1"].want == 2


def test_a20_a_rank_beyond_the_world_is_not_counted() -> None:
    plan = plan_of(ALPHA, node("box1", shard("alpha-1/0"), shard("alpha-1/1", port=18001)))
    assert verdicts(plan)["box1:alpha-1/1"] == "conflict duplicate_rank"
    assert why(plan, "alpha-1/1") == "rank 1 of alpha-1 is not one of the 1 wanted"
    assert replicas(plan)["alpha-1"].have == 1


def test_a25_age_is_the_earliest_start_and_unknown_sorts_youngest() -> None:
    plan = plan_of(
        DEEP,
        node("box1", half(0, started_at="2026-01-03T00:00:00Z")),
        node("box2", half(1, started_at="2026-01-02T00:00:00Z")),
    )
    assert replicas(plan)["deep-1"].started_at == "2026-01-02T00:00:00Z"


# --- assembling ------------------------------------------------------------------------------


@pytest.mark.parametrize("order", list(itertools.permutations((0, 1))))
def test_a26_halves_assemble_in_any_order_and_are_never_torn_apart(order: tuple[int, ...]) -> None:
    reports = [node("box1", half(0)), node("box2", half(1))]
    state = replace(settled(DEEP), settled_s=None, settle_timeout_s=60.0)
    for i, which in enumerate(order):
        state = observe(state, NodeRegistered(reports[which]), float(i))
        plan = decide(state, float(i))
        assert not [v for v in plan.verdicts if v.verdict not in ("adopt", "join", "keep")]
        assert replicas(plan)["deep-1"].state == ("assembling" if i == 0 else "ready")
    assert plan_of(DEEP, *[reports[i] for i in order]) == plan_of(DEEP, *reports)


def test_a27_a_repeated_rank_never_carries_a_replica_past_its_count() -> None:
    twice = shard("deep-1/0", "deep", world_size=2, gpus=("box2-0",))
    plan = plan_of(DEEP, node("box1", half(0)), node("box2", twice))
    assert verdicts(plan) == {
        "box1:deep-1/0": "adopt",
        "box2:deep-1/0": "stray duplicate_rank",
    }
    deep = replicas(plan)["deep-1"]
    assert (deep.have, deep.want, deep.state) == (1, 2, "assembling")
    assert actions(plan) == ["stop deep", "drain deep"]


def test_a27_second_shards_of_an_unclaimed_group_are_unclaimed_too() -> None:
    twin = [node(f"box{i}", shard("old-1/0", gpus=(f"box{i}-0",))) for i in (1, 2)]
    assert set(verdicts(plan_of(ALPHA, *twin)).values()) == {"unclaimed model_removed"}


def test_a28_identity_before_liveness_two_starting_shards_and_a_blip() -> None:
    a, b = node("box1", half(0, state="loading")), node("box2", half(1, state="loading"))
    state = observe(running(DEEP, a, b), SessionLost("box2"), 1.0)
    state = observe(state, NodeRegistered(b), 2.0)
    plan = decide(state, 2.0)
    assert set(verdicts(plan).values()) == {"keep"}
    assert (replicas(plan)["deep-1"].have, replicas(plan)["deep-1"].state) == (2, "starting")
    assert plan.actions == ()


def test_a31_endpoint_comes_from_rank_0_only() -> None:
    lead = half(0, endpoint="http://h:1")
    plan = plan_of(DEEP, node("box1", lead), node("box2", half(1, endpoint="http://x:9")))
    assert replicas(plan)["deep-1"].endpoint == "http://h:1"
    alone = plan_of(DEEP, node("box2", half(1, endpoint="http://x:9")))
    assert replicas(alone)["deep-1"].endpoint == ""


def test_a33_short_after_the_window_is_announced_then_stopped() -> None:
    state = settled(DEEP, node("box1", half(0)), node("box2"))
    plan = decide(state, 0.0)
    assert (actions(plan), plan.actions[0].due_s) == (["stop deep"], 180.0)
    later = decide(state, 180.0)
    assert later.actions[0].due_s == 0.0
    assert later.actions[0].reason == "short_after_window"


def test_a61_states_are_derived() -> None:
    def state_of(*states: str) -> str:
        shards = [half(r, state=s) for r, s in enumerate(states)]
        plan = plan_of(DEEP, *[node(f"box{r + 1}", s) for r, s in enumerate(shards)])
        return replicas(plan)["deep-1"].state

    assert state_of("ready", "ready") == "ready"
    assert state_of("ready", "loading") == "starting"
    assert state_of("ready", "unhealthy") == "degraded"
    assert state_of("ready", "draining") == "draining"
    assert state_of("ready") == "assembling"
    assert state_of("failed", "failed") == "failed"
    assert state_of("stopped", "stopped") == "stopped"


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
