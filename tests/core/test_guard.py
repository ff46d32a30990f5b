"""The blast radius (A49): what of a plan nobody asked for, how much of it one pass may do, and what is held back."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from llmgw.core.reconcile.decide import decide
from llmgw.core.reconcile.observe import observe
from llmgw.core.types.catalog import Catalog, Model
from llmgw.core.types.messages import ShardReport
from llmgw.core.types.plan import (
    Action,
    Blocked,
    DrainReplica,
    RollReplica,
    StartReplica,
    StopReplica,
    Wait,
)
from llmgw.core.types.state import (
    Confirmed,
    DrainBegun,
    Ending,
    NodeRegistered,
    Paused,
    Published,
    State,
)
from tests.core.ends import box, engine, held, incarnations, mixed
from tests.core.world import FP, begun, catalog, model, node, profile, running, shard

GRACE_S = 60.0
IDLE_S = 600.0
PAUSED = Paused("since 12:00 by ann")


# --- the blast radius (A49) ------------------------------------------------------------------


@pytest.mark.parametrize(
    ("gone", "kept", "limit"),
    [(1, 0, 0), (2, 0, 0), (3, 0, 2), (3, 6, 2), (3, 7, 0), (4, 6, 3), (6, 14, 0), (7, 13, 6)],
)
def test_a49_more_than_two_and_than_30_percent_of_what_runs_is_held(
    gone: int, kept: int, limit: int
) -> None:
    plan = decide(box(gone=gone, kept=kept), 0.0)
    if not limit:
        assert plan.blocked is None
        assert set(held(plan).values()) == {""}
        return
    why = (
        f"would end {gone} of {gone + kept} running replicas in one pass, which nobody asked for "
        f"(limit {limit}): gone"
    )
    assert plan.blocked == Blocked(incarnations=incarnations("gone", *range(gone)), why=why)
    assert len(plan.actions) == gone
    assert set(held(plan).values()) == {why}


def test_a49_it_is_held_from_the_announcement_on_and_when_it_is_due() -> None:
    """The grace is there for somebody to see it coming, and to confirm it or not."""
    state = box(gone=3)
    first, due = decide(state, 0.0), decide(state, GRACE_S)
    assert [a.due_s for a in first.actions if isinstance(a, StopReplica)] == [GRACE_S] * 3
    assert [type(a) for a in due.actions] == [DrainReplica] * 3
    assert first.blocked == due.blocked
    assert first.blocked
    assert set(held(due).values()) == {first.blocked.why}


def test_a49_the_sentence_names_five_models_at_most() -> None:
    engines = [engine(n, f"m{n}") for n in range(7)]
    plan = decide(running(catalog(), node("box1", *engines)), 0.0)
    assert plan.blocked
    assert plan.blocked.why.endswith("(limit 2): m0, m1, m2, m3, m4")


def test_a49_ends_of_every_kind_count_together_and_are_held_together_and_starts_go_on() -> None:
    plan = decide(mixed(), 200.0)
    assert plan.blocked
    assert plan.blocked.why.startswith("would end 5 of 6 running replicas in one pass")
    assert plan.blocked.incarnations == incarnations("alpha", 2) | incarnations(
        "gone", 9
    ) | incarnations("short", 1) | incarnations("wide", 1) | incarnations("drifted", 4)
    assert {word: bool(why) for word, why in held(plan).items()} == {
        "drain alpha alpha-2": True,
        "drain gone gone-9": True,
        "stop deep short-1": True,
        "drain wide wide-1": True,
        "roll drifted drifted-4": True,
        "start missing": False,
    }


def test_a49_what_never_came_up_and_what_is_dead_does_not_count() -> None:
    loading = decide(box(gone=5, state="loading"), 0.0)
    assert loading.blocked is None
    assert set(held(loading).values()) == {""}
    cat = catalog(model("alpha", low=5, high=5, on_change="keep"))
    dead = [engine(n, "alpha", state="failed") for n in range(5)]
    plan = decide(running(cat, node("box1", *dead)), 0.0)
    assert plan.blocked is None
    assert not [a for a in plan.actions if not isinstance(a, StartReplica | Wait)]


def test_a49_what_is_left_of_broken_groups_is_over_with_what_died() -> None:
    """A34: three groups lose a rank each with one box; what they left behind serves nobody."""
    cat = catalog(*(model(f"m{n}", profile(nodes=2), low=1) for n in range(3)))
    ranks = [[engine_of_group(n, rank) for n in range(3)] for rank in (0, 1)]
    state = running(cat, node("box1", *ranks[0]), node("box2", *ranks[1]))
    plan = decide(observe(state, NodeRegistered(node("box2")), 5.0), 5.0)
    stops = [a for a in plan.actions if isinstance(a, StopReplica)]
    assert [(a.reason, a.withheld) for a in stops] == [("not_running", "")] * 3
    assert plan.blocked is None


def engine_of_group(n: int, rank: int) -> ShardReport:
    return shard(f"m{n}-1/{rank}", f"m{n}", world_size=2, port=18000 + n)


def test_a49_the_dead_do_not_make_the_fleet_look_larger() -> None:
    """Three of ten would pass; seven of the ten are over, so it is three of three."""
    dead = [engine(10 + n, "alpha", state="failed") for n in range(7)]
    engines = [engine(n, "gone") for n in range(3)]
    plan = decide(running(catalog(), node("box1", *engines, *dead)), 0.0)
    assert plan.blocked
    assert "would end 3 of 3 running replicas" in plan.blocked.why


def test_a49_a_replica_counts_once_and_as_running_when_any_of_its_shards_has_come_up() -> None:
    def halves(n: int, *states: str) -> list[ShardReport]:
        return [shard(f"gone-{n}/{r}", state=s, world_size=2, port=0) for r, s in enumerate(states)]

    fleet = [
        halves(0, "ready", "loading"),
        halves(1, "loading", "ready"),
        halves(2, *["ready"] * 2),
    ]
    coming = [engine(10 + n, "alpha", state="loading") for n in range(7)]
    cat = catalog(model("alpha", low=7, high=7))
    plan = decide(running(cat, node("box1", *coming, *(s for two in fleet for s in two))), 0.0)
    assert plan.blocked
    assert "would end 3 of 3 running replicas" in plan.blocked.why


def test_a49_models_going_to_sleep_are_no_accident() -> None:
    sleepy = [model(f"m{n}") for n in range(5)]
    state = running(catalog(*sleepy), node("box1", *(engine(n, f"m{n}") for n in range(5))))
    plan = decide(state, IDLE_S)
    assert len(plan.actions) == 5
    assert plan.blocked is None
    assert set(held(plan).values()) == {""}


@pytest.mark.parametrize("reason", ["operator", "ending"])
def test_a49_what_the_operator_asked_for_is_not_counted(reason: str) -> None:
    state = box(gone=5)
    for n in range(3):
        state = observe(state, DrainBegun(f"inc-gone-{n}", reason, "because"), 1.0)
    state = observe(state, Published(state.first_version, frozenset(), frozenset()), 2.0)
    plan = decide(state, 100.0)
    assert [type(a) for a in plan.actions] == [StopReplica] * 3 + [DrainReplica] * 2
    assert plan.blocked is None
    everything = decide(observe(box(gone=5), Ending(), 1.0), 1.0)
    assert (len(everything.actions), everything.blocked) == (5, None)


def test_a49_a_drain_under_way_is_not_counted_again() -> None:
    state = box(gone=4)
    for n in range(2):
        state = observe(state, DrainBegun(f"inc-gone-{n}", "model_removed", ""), 60.0)
    plan = decide(state, 200.0)
    assert [type(a).__name__ for a in plan.actions] == ["StopReplica"] * 2 + ["DrainReplica"] * 2
    assert set(held(plan).values()) == {""}


def test_a49_what_was_confirmed_goes_on_and_what_comes_after_it_is_asked_anew() -> None:
    state = box(gone=3)
    blocked = decide(state, 0.0).blocked
    assert blocked
    state = observe(state, Confirmed(blocked.incarnations), 5.0)
    plan = decide(state, GRACE_S)
    assert (plan.blocked, set(held(plan).values())) == (None, {""})
    more = [engine(n, "gone") for n in range(6)]
    state = observe(state, NodeRegistered(node("box1", *more)), 10.0)
    plan = decide(state, 10.0)
    assert plan.blocked
    assert plan.blocked.incarnations == incarnations("gone", 3, 4, 5)
    assert sorted(bool(why) for why in held(plan).values()) == [False] * 3 + [True] * 3


def test_a49_two_more_than_what_was_confirmed_are_within_the_limit() -> None:
    state = observe(box(gone=5), Confirmed(incarnations("gone", 0, 1, 2)), 1.0)
    assert decide(state, 1.0).blocked is None


def rolling(models: int, copies: int) -> State:
    """So many models of so many replicas each, all of them started with another profile than today's."""

    def drifted(name: str) -> Model:
        new = profile(fingerprints={"default": "1:bbbb"})
        return model(name, new, low=copies, high=copies)

    names = [f"m{n}" for n in range(models)]
    engines = [engine(10 * i + n, name) for i, name in enumerate(names) for n in range(copies)]
    cat = catalog(*(drifted(name) for name in names), start_limit=models)
    return running(cat, node("box1", *engines))


def test_a49_rolls_bring_all_replicas_of_their_models_before_the_operator_at_once() -> None:
    """A roll goes one replica at a time: confirmed one by one, it would ask again at each."""
    plan = decide(rolling(3, 2), 0.0)
    assert [type(a) for a in plan.actions] == [RollReplica] * 3
    assert plan.blocked
    assert len(plan.blocked.incarnations) == 6
    assert plan.blocked.why.startswith("would end 3 of 6 running replicas in one pass")
    state = observe(rolling(3, 2), Confirmed(plan.blocked.incarnations), 1.0)
    plan = decide(state, 1.0)
    assert (plan.blocked, set(held(plan).values())) == (None, {""})
    news = [engine(50 + i, f"m{i}", fingerprint="1:bbbb") for i in range(3)]
    olds = [engine(10 * i + 1, f"m{i}") for i in range(3)]
    plan = decide(observe(state, NodeRegistered(node("box1", *olds, *news)), 2.0), 2.0)
    assert [type(a) for a in plan.actions] == [RollReplica] * 3
    assert plan.blocked is None


def test_a49_a_roll_brings_neither_todays_replicas_nor_those_of_models_that_do_not_roll() -> None:
    old, new = {"default": FP}, {"default": "1:bbbb"}
    keeps = model("keeps", profile(fingerprints=new), low=1, on_change="keep")
    rolls = [model(f"m{n}", profile(fingerprints=new), low=2, high=2) for n in range(3)]
    steady = model("steady", profile(fingerprints=old), low=1)
    engines = [engine(0, "keeps"), engine(1, "steady")]
    engines += [engine(10 * n + 2, f"m{n}") for n in range(3)]
    engines += [engine(10 * n + 3, f"m{n}", fingerprint="1:bbbb") for n in range(3)]
    cat = catalog(keeps, steady, *rolls, start_limit=3)
    plan = decide(running(cat, node("box1", *engines)), 0.0)
    assert plan.blocked
    assert plan.blocked.incarnations == {"inc-m0-2", "inc-m1-12", "inc-m2-22"}


def changed(name: str, copies: int = 1, **k: Any) -> Model:
    return model(name, profile(fingerprints={"default": "1:bbbb"}, **k), low=copies, high=copies)


def test_a49_rolls_that_only_wait_for_each_other_count_at_once() -> None:
    """One start at a time: a change of every profile would go by as one roll a pass, each within the limit."""
    names = ["m0", "m1", "m2"]
    state = running(
        catalog(*(changed(name) for name in names)),
        node("box1", *(engine(n, name) for n, name in enumerate(names))),
    )
    plan = decide(state, 0.0)
    assert [type(a) for a in plan.actions] == [RollReplica, Wait, Wait]
    assert plan.blocked
    assert plan.blocked.incarnations == {"inc-m0-0", "inc-m1-1", "inc-m2-2"}
    assert plan.blocked.why.startswith("would end 3 of 3 running replicas in one pass")
    assert plan.blocked.why.endswith("(limit 2): m0, m1, m2")
    state = observe(state, Confirmed(plan.blocked.incarnations), 1.0)
    gone = [engine(7, "gone"), engine(8, "gone")]
    olds = [engine(n, name) for n, name in enumerate(names)]
    plan = decide(observe(state, NodeRegistered(node("box1", *olds, *gone)), 2.0), 2.0)
    assert (plan.blocked, set(held(plan).values())) == (None, {""}), "two more are within it"


def test_a49_a_model_that_waits_for_something_else_does_not_roll() -> None:
    """m2 is short of a replica that finds no room: its old one is not rolled, and is not counted."""
    cat = catalog(changed("m0"), changed("m1"), changed("m2", 2, cpu_cores=99), start_limit=3)
    engines = [engine(n, name) for n, name in enumerate(("m0", "m1", "m2"))]
    plan = decide(running(cat, node("box1", *engines)), 0.0)
    assert [type(a) for a in plan.actions] == [Wait, RollReplica, RollReplica]
    assert (plan.blocked, set(held(plan).values())) == (None, {""})


def test_a49_two_models_may_roll_without_asking() -> None:
    plan = decide(rolling(2, 3), 0.0)
    assert (plan.blocked, set(held(plan).values())) == (None, {""})


def test_a49_nothing_is_blocked_while_settling_for_nothing_is_decided() -> None:
    engines = [engine(n, "gone") for n in range(5)]
    state = begun(catalog(), node("box1"), node("box2"))
    state = observe(state, NodeRegistered(node("box1", *engines)), 1.0)
    plan = decide(state, 1.0)
    assert (plan.actions, plan.blocked) == ((), None)


# --- the law ---------------------------------------------------------------------------------


def unasked(state: State, action: Action) -> bool:
    """In the words of A49, not of the code."""
    if isinstance(action, StartReplica | Wait) or action.incarnation in state.confirmed:
        return False
    if isinstance(action, RollReplica):
        return True
    finishing = isinstance(action, StopReplica) and action.drained
    asked = action.reason in ("operator", "ending", "idle", "not_running")
    return any(s.was_live for s in action.shards) and not finishing and not asked


def withheld(action: Action) -> str:
    return "" if isinstance(action, Wait) else action.withheld


CAT: Catalog = catalog(
    model("alpha", low=1, high=2),
    model("beta"),
    model("drifted", profile(fingerprints={"default": "1:bbbb"}), low=2, high=2),
    start_limit=9,
)


@given(
    st.lists(
        st.tuples(
            st.sampled_from(["alpha", "beta", "drifted", "gone"]),
            st.sampled_from(["ready", "ready", "ready", "loading", "failed"]),
            st.sampled_from(["", "", "", "operator", "drift"]),
        ),
        max_size=14,
    ),
    st.sets(st.integers(0, 13)),
    st.sampled_from([0.0, 100.0, 700.0]),
)
def test_a49_never_more_than_the_limit_is_carried_out_unasked(
    engines: list[tuple[str, str, str]], confirmed: set[int], now: float
) -> None:
    reports = [engine(n, name, state=s) for n, (name, s, _) in enumerate(engines)]
    state = running(CAT, node("box1", *reports))
    for n, (name, _, drain) in enumerate(engines):
        if drain:
            state = observe(state, DrainBegun(f"inc-{name}-{n}", drain, ""), 0.0)
        if n in confirmed:
            state = observe(state, Confirmed(frozenset({f"inc-{name}-{n}"})), 0.0)
    plan = decide(state, now)
    running_now = sum(s == "ready" for _, s, _ in engines)
    ends = [a for a in plan.actions if unasked(state, a)]
    carried_out = [a for a in ends if not withheld(a)]
    assert len(carried_out) <= max(2, 0.3 * running_now)
    assert len(carried_out) in (0, len(ends)), "all of them or none"
    assert (plan.blocked is not None) == (len(carried_out) < len(ends))
    assert not [a for a in plan.actions if a not in ends and withheld(a)]
