"""Who goes so that a model which is wanted finds room, and who never does (A63, A64)."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from llmgw.core.reconcile.decide import decide
from llmgw.core.reconcile.observe import observe
from llmgw.core.types.catalog import Scaling
from llmgw.core.types.plan import DrainReplica, Wait
from llmgw.core.types.record import REBOOTED
from llmgw.core.types.state import (
    Failure,
    NodeRegistered,
    Woken,
)
from tests.core.crowded import (
    LATER,
    THREE,
    A,
    B,
    C,
    both,
    box,
    drains,
    fleet,
    said,
    sized,
    starts,
    up,
    used,
    waits,
)
from tests.core.world import at, catalog, model, profile, running

# --- idle ones go ----------------------------------------------------------------------------


def test_a64_the_least_recently_used_idle_one_goes_and_no_other() -> None:
    state = used(both(), LATER, a_1=30.0, b_1=40.0)
    state = said(state, LATER + 1, waiting={"c": 2})
    plan = decide(state, LATER + 1)
    assert drains(plan) == {"b-1": "makes room for c; idle for 41 s"}
    (drain,) = [a for a in plan.actions if isinstance(a, DrainReplica)]
    assert (drain.reason, drain.idle, drain.disturbs) == ("evict", False, True)
    wait = waits(plan, "c")
    assert wait.why == (
        "2 waiting, 0 running; box1: GPU 0 has 4.0 of 24.0 GiB free, 10.0 needed (held by a-1/0, b-1/0); "
        "b-1 (idle for 41 s) makes room"
    )
    assert (wait.first, [s.node for s in wait.spots], wait.hopeless) == (("b-1",), ["box1"], False)


def test_a64_as_few_as_possible_even_where_an_older_pair_would_do() -> None:
    cat = catalog(A, B, sized("d", 20), sized("new", 20))
    one = box(up("a-1", 10), up("b-1", 10, port=18001))
    two = box(up("d-1", 20, "box2-0"), name="box2")
    state = used(fleet(cat, one, two), LATER, a_1=900.0, b_1=800.0, d_1=5.0)
    assert set(drains(decide(said(state, LATER + 1, waiting={"new": 1}), LATER + 1))) == {"d-1"}


def test_a64_several_go_where_one_is_not_enough() -> None:
    state = said(both(), LATER + 1, waiting={"big": 1})
    assert set(drains(decide(state, LATER + 1))) == {"a-1", "b-1"}


def test_a64_of_very_many_the_least_recently_used_go_and_no_more_than_needed() -> None:
    """More sets than a pass may look at."""
    small = [sized(f"s{i}", 20) for i in range(16)]
    wide = model("wide", profile(gpus=9), scaling=Scaling())
    shards = [up(f"s{i}-1", 20, f"box1-{i}", 18000 + i) for i in range(16)]
    state = fleet(catalog(*small, wide), box(*shards, cards=16))
    state = used(state, LATER, **{f"s{i}_1": 10.0 + i for i in range(16)})
    plan = decide(said(state, LATER + 1, waiting={"wide": 1}), LATER + 1)
    assert set(drains(plan)) == {f"s{i}-1" for i in range(7, 16)}


def test_a64_nobody_goes_while_there_is_room() -> None:
    state = fleet(THREE, box(up("a-1", 10)))
    plan = decide(said(state, LATER + 1, waiting={"c": 1}), LATER + 1)
    assert (drains(plan), starts(plan)) == ({}, ["c"])


# --- who asks --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("errors", "goes"),
    [((REBOOTED,), True), ((REBOOTED, REBOOTED), False), (("exit 1", REBOOTED), False)],
)
def test_a62_one_reboot_of_its_host_is_no_crash_loop(errors: tuple[str, ...], goes: bool) -> None:
    """After a power cut what should always run waited half an hour behind what somebody had asked for once."""
    now = LATER + 2000
    seen = tuple(Failure(f"i{n}", "main", now - 900 + 400 * n, e) for n, e in enumerate(errors))
    state = at(said(both(), now, waiting={"c": 1}), failures={"c": seen})
    assert bool(drains(decide(state, now))) is goes
    lapsed = replace(seen[0], at_s=now - 1801)
    state = at(state, failures={"c": (lapsed, *seen[1:])})
    assert bool(drains(decide(state, now)))


@pytest.mark.parametrize("ago_s", [0.0, 100.0, 1799.0])
def test_a67_a_model_that_failed_lately_makes_nobody_go(ago_s: float) -> None:
    """Each try of a crash loop would cost another model its place."""
    now = LATER + 2000
    failure = Failure("i", "main", now - ago_s, "exit 1")
    state = at(said(both(), now, waiting={"c": 1}), failures={"c": (failure,)})
    plan = decide(state, now)
    assert drains(plan) == {}
    assert waits(plan, "c").why.endswith(
        f"nobody goes for it: it failed {ago_s:.0f} s ago (exit 1); llmgw clear c lets it"
    )


def test_a67_once_its_failures_are_over_it_may_again() -> None:
    now = LATER + 2000
    failure = Failure("i", "main", now - 1800, "exit 1")
    state = at(said(both(), now, waiting={"c": 1}), failures={"c": (failure,)})
    assert len(drains(decide(state, now))) == 1


@pytest.mark.parametrize("error", ["exit 1", "gave up"])
def test_a67_in_back_off_and_given_up_it_does_not_even_ask(error: str) -> None:
    failures = tuple(Failure(f"i{n}", "main", LATER, error) for n in range(2 + 3 * (error > "f")))
    state = at(said(both(), LATER + 1, waiting={"c": 1}), failures={"c": failures})
    assert drains(decide(state, LATER + 1)) == {}


def test_a_further_replica_for_speed_makes_nobody_go() -> None:
    cat = catalog(sized("a", 10, max=3), B)
    state = fleet(cat, box(up("a-1", 10), up("b-1", 10, port=18001)))
    state = said(state, LATER, waiting={"a": 50})
    state = said(state, LATER + 100, waiting={"a": 50})
    plan = decide(state, LATER + 100)
    assert drains(plan) == {}
    assert waits(plan, "a").why.startswith("50 waiting for 100 s, more than 4 for each of 1")


def test_a_model_below_its_min_makes_idle_ones_go_and_busy_ones_stay() -> None:
    cat = catalog(sized("always", 24, min=1), C)
    state = fleet(cat, box(up("c-1", 10)))
    assert set(drains(decide(state, LATER + 1))) == {"c-1"}
    state = said(state, LATER + 500, in_flight={"c-1": 1})
    assert drains(decide(state, LATER + 500)) == {}


def test_what_an_operator_wakes_makes_idle_ones_go() -> None:
    state = observe(both(), Woken("c"), LATER + 1)
    plan = decide(state, LATER + 1)
    assert len(drains(plan)) == 1
    assert waits(plan, "c").why.startswith("woken 0 s ago, 0 running; ")


# --- properties ------------------------------------------------------------------------------

NAMES = ("m0", "m1", "m2", "m3", "m4", "m5")


@given(st.data())
def test_a63_a64_whatever_the_fleet_looks_like_nobody_who_may_not_go_does(data: Any) -> None:
    """Loading, in flight or waited for within yield_after, pinned, just loaded: never; and no more than needed."""
    draw = data.draw
    models, shards, loads = [], [], []
    for i, name in enumerate(NAMES):
        scaling = {
            "min_up_s": draw(st.sampled_from([0.0, 5000.0])),
            "priority": draw(st.integers(0, 1)),
            "idle_timeout_s": draw(st.sampled_from([None, 5000.0, 5000.0])),
        }
        gib = draw(st.sampled_from([6, 10, 20]))
        models.append(sized(name, gib, **scaling))
        if draw(st.booleans()):
            gpu = f"box1-{draw(st.integers(0, 1))}"
            state_ = draw(st.sampled_from(["ready", "ready", "loading"]))
            shards.append(up(f"{name}-1", gib, gpu, 18000 + i, state="loading"))
            loads.append(replace(shards[-1], state=state_))
    cat = catalog(*models)
    state = running(cat, box(*shards, cards=2))
    state = observe(state, NodeRegistered(box(*loads, cards=2)), 900.0)
    there = {s.replica.rpartition("-")[0] for s in loads}
    asks = draw(st.dictionaries(st.sampled_from(NAMES), st.integers(1, 3), max_size=3))
    flying = draw(st.dictionaries(st.sampled_from([f"{n}-1" for n in NAMES]), st.just(1)))
    long_s = draw(st.sampled_from([0.0, 119.0, 200.0]))
    state = said(state, LATER, waiting=asks, in_flight=flying)
    now = LATER + long_s
    if long_s:
        state = said(state, now, waiting=asks, in_flight=flying)
    plan = decide(state, now)
    going = [a for a in plan.actions if isinstance(a, DrainReplica)]
    for a in going:
        m = cat.models[a.model]
        assert a.reason == "evict"
        assert all(s.report.state == "ready" for s in a.shards), "A63: it loads"
        assert m.scaling.idle_timeout_s is not None, "pinned"
        assert m.scaling.min_up_s == 0.0, "min_up"
        busy = a.replica in flying or asks.get(a.model)
        assert not busy or long_s >= m.scaling.yield_after_s, "A64: yield_after"
    if going:
        served = [w for w in plan.actions if isinstance(w, Wait) and w.spots]
        assert {a.replica for a in going} == {n for w in served for n in w.first}
        assert all(w.model not in there for w in served)
