"""Who could go for a model that waits: in what order, and who stays for now or for good (A63, A64)."""

from __future__ import annotations

from typing import Any

import pytest

from llmgw.core import evict
from llmgw.core.reconcile.decide import decide
from llmgw.core.reconcile.observe import observe
from llmgw.core.types.routes import Demand
from llmgw.core.types.sleep import Asleep
from llmgw.core.types.state import (
    Demanded,
    NodeRegistered,
    Woken,
)
from llmgw.core.yields import load_s
from tests.core.crowded import (
    BIG,
    LATER,
    THREE,
    B,
    C,
    both,
    box,
    drains,
    fleet,
    said,
    sized,
    up,
    used,
    waits,
)
from tests.core.world import GIB, at, catalog, running

# --- idle ones go ----------------------------------------------------------------------------
# --- who goes first -----------------------------------------------------------------------------


def test_a64_of_two_last_used_together_the_cheaper_one_goes() -> None:
    dear = sized("a", 10, cost=50.0)
    cat = catalog(dear, sized("b", 10, cost=20.0), C)
    state = fleet(cat, box(up("a-1", 10), up("b-1", 10, port=18001)))
    state = said(state, LATER + 1, waiting={"c": 1})
    assert set(drains(decide(state, LATER + 1))) == {"b-1"}
    cheap = at(state, catalog=catalog(sized("a", 10, cost=1.0), sized("b", 10, cost=20.0), C))
    assert set(drains(decide(cheap, LATER + 1))) == {"a-1"}


def test_a64_the_cost_that_nobody_declared_is_the_load_that_was_measured() -> None:
    state = running(THREE, box(up("a-1", 10, state="loading"), up("b-1", 10, port=18001)))
    state = observe(state, NodeRegistered(box(up("a-1", 10), up("b-1", 10, port=18001))), 45.0)
    by = {r.replica: r for r in decide(state, 46.0).replicas}
    assert (load_s(by["a-1"]), load_s(by["b-1"])) == (45.0, 0.0)
    wanted = at(state, wanted_s={"a": 500.0, "b": 500.0})
    wanted = said(said(wanted, LATER), LATER + 1, waiting={"c": 1})
    assert set(drains(decide(wanted, LATER + 1))) == {"b-1"}


def test_a22_ages_that_agents_tell_order_evictions_and_nothing_else() -> None:
    shards = (up("a-1", 10, last_request_age_s=5.0), up("b-1", 10, port=18001))
    state = said(fleet(THREE, box(*shards)), LATER + 1, waiting={"c": 1})
    assert set(drains(decide(state, LATER + 1))) == {"a-1"}
    shards = (up("a-1", 10), up("b-1", 10, port=18001, last_request_age_s=900.0))
    state = said(fleet(THREE, box(*shards)), LATER + 1, waiting={"c": 1})
    assert set(drains(decide(state, LATER + 1))) == {"b-1"}


def test_a_model_that_was_woken_by_hand_counts_as_used_then() -> None:
    state = observe(used(both(), LATER, a_1=30.0, b_1=40.0), Woken("b"), LATER)
    state = said(state, LATER + 1, waiting={"c": 1})
    assert set(drains(decide(state, LATER + 1))) == {"a-1"}


def test_lower_priority_goes_first_whoever_was_used_last() -> None:
    cat = catalog(sized("a", 10, priority=1), B, C)
    state = fleet(cat, box(up("a-1", 10), up("b-1", 10, port=18001)))
    state = used(state, LATER, a_1=500.0, b_1=5.0)
    state = said(state, LATER + 1, waiting={"c": 1})
    assert set(drains(decide(state, LATER + 1))) == {"b-1"}


def test_an_idle_one_of_higher_priority_goes_all_the_same_idle_is_idle() -> None:
    cat = catalog(sized("a", 24, priority=9), BIG)
    state = said(fleet(cat, box(up("a-1", 24))), LATER + 1, waiting={"big": 1})
    assert set(drains(decide(state, LATER + 1))) == {"a-1"}


# --- who never goes --------------------------------------------------------------------------


@pytest.mark.parametrize("state_", ["pending", "starting", "loading"])
def test_a63_what_loads_is_never_evicted_however_long_others_wait(state_: str) -> None:
    state = fleet(THREE, box(up("big-1", 24, state=state_)))
    for now in (LATER + 1, LATER + 500):
        state = said(state, now, waiting={"c": 1})
        plan = decide(state, now)
        assert drains(plan) == {}
        assert waits(plan, "c").why.endswith("; big-1 loads")


@pytest.mark.parametrize("told", [{"in_flight": {"big-1": 1}}, {"waiting": {"big": 1, "c": 1}}])
def test_a63_what_serves_or_is_waited_for_is_not_evicted_at_once(told: dict[str, Any]) -> None:
    told = {"waiting": {"c": 1}} | told
    state = said(fleet(THREE, box(up("big-1", 24))), LATER + 1, **told)
    plan = decide(state, LATER + 60)
    assert drains(plan) == {}
    busy = "1 in flight" if "in_flight" in told else "1 waiting"
    assert waits(plan, "c").why.endswith(f"; big-1 is busy ({busy}) and yields in 61 s")


def test_a63_a_silent_gateway_makes_all_of_its_replicas_busy() -> None:
    state = fleet(THREE, box(up("big-1", 24)))
    state = observe(state, Demanded(Demand(gateway="h", n=1, waiting={"c": 1})), LATER + 20)
    plan = decide(state, LATER + 20)
    assert drains(plan) == {}
    assert "gateway g has been silent for 25 s" in waits(plan, "c").why


@pytest.mark.parametrize(
    "scaling", [{"min": 1, "max": 1}, {"min": 1, "max": 2}, {"idle_timeout_s": None}]
)
def test_what_is_pinned_stays_and_who_asks_is_told_at_once(scaling: dict[str, Any]) -> None:
    cat = catalog(sized("pinned", 24, **scaling), C)
    state = said(fleet(cat, box(up("pinned-1", 24))), LATER + 1, waiting={"c": 1})
    plan = decide(state, LATER + 1)
    assert drains(plan) == {}
    assert waits(plan, "c").hopeless
    assert evict.unplaceable(plan) == {"c": waits(plan, "c").why}
    assert "GPU 0 has 0.0 of 24.0 GiB free, 10.0 needed" in waits(plan, "c").why


def test_of_more_than_min_only_the_surplus_goes_the_least_used_of_it() -> None:
    cat = catalog(sized("a", 10, min=1, max=2), BIG, C)
    state = fleet(cat, box(up("a-1", 10), up("a-2", 10, port=18001)))
    state = used(state, LATER, a_1=5.0, a_2=50.0)
    state = said(state, LATER + 1, waiting={"c": 1})
    assert set(drains(decide(state, LATER + 1))) == {"a-2"}
    state = said(state, LATER + 2, waiting={"big": 1})
    plan = decide(state, LATER + 2)
    assert drains(plan) == {}
    assert waits(plan, "big").hopeless


def test_a_model_just_loaded_is_protected_for_min_up() -> None:
    cat = catalog(sized("a", 24, min_up_s=120.0), C)
    state = running(cat, box(up("a-1", 24, state="loading")))
    state = observe(state, NodeRegistered(box(up("a-1", 24))), LATER)
    state = said(state, LATER + 1, waiting={"c": 1})
    plan = decide(state, LATER + 119)
    assert drains(plan) == {}
    assert waits(plan, "c").why.endswith(
        "a-1 came up a short while ago and stays 1 s more (min_up)"
    )
    state = said(state, LATER + 120, waiting={"c": 1})
    assert set(drains(decide(state, LATER + 120))) == {"a-1"}


def test_a64_who_waited_for_it_has_the_time_to_reach_it() -> None:
    """No `min_up` was asked for: a load that is thrown away before its first request helps nobody all the same."""
    cat = catalog(sized("a", 24, yield_after_s=10.0), C)
    state = running(cat, box(up("a-1", 24, state="loading")))
    both_wait = {"a": 1, "c": 1}
    state = said(said(state, LATER - 50, waiting=both_wait), LATER - 1, waiting=both_wait)
    state = observe(state, NodeRegistered(box(up("a-1", 24))), LATER)
    plan = decide(state, LATER + 1)
    assert drains(plan) == {}
    assert waits(plan, "c").why.endswith("; a-1 has just come up, 1 waiting for it")
    served = said(state, LATER + 1, waiting={"c": 1}, in_flight={"a-1": 1})
    assert set(drains(decide(served, LATER + 1))) == {"a-1"}
    full = said(state, LATER + 10, waiting=both_wait, in_flight={"a-1": 9})
    assert set(drains(decide(full, LATER + 10))) == {"a-1"}


def test_one_that_was_restarted_in_its_place_has_just_loaded() -> None:
    cat = catalog(sized("a", 24, min_up_s=120.0), C)
    state = fleet(cat, box(up("a-1", 24)))
    for now, told in ((LATER, "starting"), (LATER + 9, "ready")):
        state = observe(state, NodeRegistered(box(up("a-1", 24, state=told, attempt=2))), now)
    state = said(state, LATER + 10, waiting={"c": 1})
    assert drains(decide(state, LATER + 128)) == {}


def test_one_that_was_up_when_control_met_it_is_not_taken_for_just_loaded() -> None:
    cat = catalog(sized("a", 24, min_up_s=5000.0), C)
    state = said(fleet(cat, box(up("a-1", 24))), LATER + 1, waiting={"c": 1})
    assert set(drains(decide(state, LATER + 1))) == {"a-1"}


def test_one_that_sleeps_may_go_at_once_whatever_its_min_up() -> None:
    """What it holds still is the measured rest; the newcomer needs that as well."""
    cat = catalog(sized("a", 24, min_up_s=5000.0), sized("new", 24))
    rest = Asleep(verified=True, rest_bytes=2 * GIB)
    sleeper = up("a-1", 24, state="asleep", sleep=1, asleep=rest)
    state = running(cat, box(up("a-1", 24, state="loading")))
    state = observe(state, NodeRegistered(box(sleeper)), LATER)
    plan = decide(said(state, LATER + 100, waiting={"new": 1}), LATER + 100)
    assert set(drains(plan)) == {"a-1"}


def test_what_is_unhealthy_is_left_to_who_looks_after_it() -> None:
    state = observe(
        fleet(THREE, box(up("big-1", 24))),
        NodeRegistered(box(up("big-1", 24, state="unhealthy"))),
        LATER,
    )
    plan = decide(said(state, LATER + 1, waiting={"c": 1}), LATER + 1)
    assert drains(plan) == {}
    assert waits(plan, "c").why.endswith("; big-1 is degraded")
