"""Adoption, statement by statement (acceptance.md A1-A45): what each report leads to, and why."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from llmgw.core.adopt.group import Gatherer
from llmgw.core.reconcile.decide import decide
from llmgw.core.reconcile.observe import observe
from llmgw.core.types.messages import SHARD_STATES, ShardReport
from llmgw.core.types.routes import Demand
from llmgw.core.types.state import Demanded, Draining, NodeRegistered, SessionLost, Shard, State
from tests.core.world import (
    ALPHA,
    DEEP,
    FP,
    GIB,
    actions,
    catalog,
    half,
    model,
    node,
    plan_of,
    profile,
    replicas,
    running,
    settled,
    shard,
    verdicts,
    why,
)

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
    cat = catalog(model("alpha", aliases=("old", "gpt-*"), low=1))
    for name in ("old", "gpt-4"):
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


# --- what is done faster is the same --------------------------------------------------------

ODD = catalog(
    model("alpha", profile(), profile("other", fingerprints={"default": "1:b", "box2": "1:c"})),
    model("deep", profile(nodes=2), aliases=("old-*",)),
)


@given(
    st.fixed_dictionaries(
        {
            "model": st.sampled_from(["alpha", "deep", "old-deep", "gone", ""]),
            "profile": st.sampled_from(["main", "other", "gone", ""]),
            "fingerprint": st.sampled_from(["", FP, "1:b", "1:c", "0:x"]),
            "artefact": st.sampled_from(["", "/w"]),
            "state": st.sampled_from(SHARD_STATES),
            "desired": st.sampled_from(["running", "draining", "stopped"]),
            "world_size": st.sampled_from([None, 1, 2]),
            "rank": st.sampled_from([None, 0, 1]),
        }
    ),
    st.sampled_from(["box1", "box2"]),
)
def test_one_shard_alone_is_what_a_group_of_one_is(told: dict[str, Any], on: str) -> None:
    one = Shard(node=on, report=replace(shard("x-1/0"), **told))
    served = Demanded(Demand(gateway="g", n=1, in_flight={"x-1": 2, "y": 1}))
    for picture in (State(catalog=ODD), observe(State(catalog=ODD), served, 1.0)):
        for drains in ({}, {"inc-x-1": Draining(0.0, "idle", "")}):
            gatherer = Gatherer(replace(picture, draining=drains))
            assert gatherer.one("inc-x-1", one) == gatherer.several("inc-x-1", [one], ())
