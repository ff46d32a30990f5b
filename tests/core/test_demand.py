"""How many replicas there should be, and whose turn it is (A63, A64): requests, queues, an operator's wish."""

from __future__ import annotations

import pytest

from llmgw.core import demand
from llmgw.core.adopt.survey import survey
from llmgw.core.reconcile.observe import REPLICAS_KEPT, observe
from llmgw.core.types.catalog import Model, Scaling
from llmgw.core.types.plan import Replica
from llmgw.core.types.routes import Demand
from llmgw.core.types.state import DrainBegun, NodeRegistered, State, Tick, Woken
from tests.core.world import at, catalog, model, node, running, shard
from tests.core.world import demand as said

BETA = model("beta", high=3)
GAMMA = model("gamma", scaling=Scaling(priority=1))
ALPHA = model("alpha", low=1)


def fleet(*names: str, met_s: float = 0.0, **k: str) -> State:
    """A control of three models that met these replicas at that time."""
    state = running(catalog(ALPHA, BETA, GAMMA), node("box1"))
    shards = [shard(f"{n}/0", port=18000 + i, **k) for i, n in enumerate(names)]
    return observe(state, NodeRegistered(node("box1", *shards)), met_s)


def kept(state: State, name: str) -> list[Replica]:
    return [r for r in survey(state).replicas if r.model == name and r.kept and not r.going]


def wanted(state: State, m: Model, now: float) -> demand.Wanted:
    return demand.wanted(state, m, kept(state, m.name), now)


def waits(state: State, now: float, n: int = 1, **waiting: int) -> State:
    return observe(state, said(n, waiting=waiting), now)


def test_a63_nobody_waits_nothing_is_wanted_beyond_min() -> None:
    state = fleet()
    assert wanted(state, BETA, 5.0) == demand.Wanted(0, "", 0)
    assert wanted(state, ALPHA, 5.0) == demand.Wanted(1, "min 1", 1)


def test_a63_the_first_request_wakes_one_whoever_else_waits() -> None:
    assert wanted(waits(fleet(), 5.0, beta=9), BETA, 5.0) == demand.Wanted(1, "9 waiting", 1)


@pytest.mark.parametrize("state_", ["pending", "starting", "loading"])
def test_a63_all_waiters_join_one_load(state_: str) -> None:
    state = waits(fleet("beta-1", state=state_), 5.0, beta=100)
    assert wanted(state, BETA, 500.0).count == 1


def test_a63_the_load_goes_on_if_the_requester_leaves() -> None:
    state = waits(waits(fleet("beta-1", state="loading"), 5.0, beta=1), 6.0, n=2)
    assert wanted(state, BETA, 7.0).count == 1


# --- a queue that lasts ----------------------------------------------------------------------


def test_one_replica_more_for_a_queue_that_lasts_and_it_may_make_nobody_go() -> None:
    state = waits(fleet("beta-1"), 100.0, beta=5)
    assert wanted(state, BETA, 109.9).count == 1
    said_ = wanted(state, BETA, 110.0)
    assert (said_.count, said_.first) == (2, 1)
    assert said_.why == "5 waiting for 10 s, more than 4 for each of 1"


@pytest.mark.parametrize(
    ("names", "waiting", "count"),
    [
        (("beta-1",), 4, 1),
        (("beta-1", "beta-2"), 8, 2),
        (("beta-1", "beta-2"), 9, 3),
        (("beta-1", "beta-2", "beta-3"), 99, 3),
    ],
)
def test_as_many_as_wait_for_each_and_never_beyond_max(
    names: tuple[str, ...], waiting: int, count: int
) -> None:
    state = waits(fleet(*names), 100.0, beta=waiting)
    assert wanted(state, BETA, 200.0).count == count


def test_a_further_one_has_the_time_to_take_its_share_first() -> None:
    state = waits(fleet("beta-1", met_s=100.0), 100.0, beta=50)
    assert wanted(state, BETA, 159.0).count == 1
    assert wanted(state, BETA, 160.0).count == 2


def test_not_while_another_is_on_its_way() -> None:
    state = fleet("beta-1")
    shards = (shard("beta-1/0"), shard("beta-2/0", port=18001, state="loading"))
    state = observe(state, NodeRegistered(node("box1", *shards)), 50.0)
    assert wanted(waits(state, 100.0, beta=50), BETA, 300.0).count == 2


# --- since when, and whose turn --------------------------------------------------------------


def test_a64_a_client_that_asks_again_keeps_its_models_place() -> None:
    state = waits(fleet(), 10.0, beta=1)
    state = waits(state, 20.0, n=2)
    state = waits(observe(state, Tick(), 29.0), 30.0, n=3, beta=1)
    assert demand.waited_s(state, "beta", 40.0) == 30.0


def test_a64_one_that_comes_back_after_longer_begins_anew() -> None:
    state = waits(fleet(), 10.0, beta=1)
    state = waits(state, 11.0, n=2)
    assert demand.waited_s(state, "beta", 20.1) == 0.0
    assert demand.waited_s(waits(state, 21.1, n=3, beta=1), "beta", 25.1) == 4.0
    quiet = observe(state, Tick(), 40.0)
    assert "beta" not in quiet.asked


def test_a64_whoever_waits_at_a_silent_gateway_waits_on() -> None:
    state = observe(waits(fleet(), 10.0, beta=1), Tick(), 50.0)
    assert demand.waited_s(state, "beta", 50.0) == 40.0
    state = observe(state, said(1, gateway="g2", waiting={"beta": 1, "nobody": 4}), 55.0)
    assert demand.waited_s(state, "beta", 60.0) == 50.0
    assert set(state.asked) == {"beta"}


def test_a64_whose_replica_goes_waits_from_then_on() -> None:
    """Else a model with a long queue would take back the room that it has just been made to leave."""
    state = waits(fleet("beta-1"), 10.0, beta=1, gamma=1)
    state = observe(state, DrainBegun("inc-beta-1", "evict", ""), 40.0)
    assert demand.waited_s(state, "beta", 50.0) == 10.0
    assert demand.waited_s(state, "gamma", 50.0) == 40.0
    assert observe(state, DrainBegun("inc-nobody", "evict", ""), 60.0).asked == state.asked


def test_a64_turns_go_by_priority_then_always_on_then_who_waited_longest() -> None:
    zeta = model("zeta")
    state = at(fleet(), catalog=catalog(ALPHA, BETA, GAMMA, zeta))
    state = waits(waits(state, 10.0, zeta=1), 20.0, n=2, zeta=1, beta=1, gamma=1)
    models = sorted(state.catalog.models.values(), key=lambda m: demand.turn(state, m))
    assert [m.name for m in models] == ["gamma", "alpha", "zeta", "beta"]


# --- llmgw wake ------------------------------------------------------------------------------


def test_a_wish_waits_as_long_as_a_request_would_and_renews_wanted() -> None:
    state = observe(fleet(), Woken("beta"), 100.0)
    assert state.wanted_s["beta"] == 100.0
    assert wanted(state, BETA, 130.0) == demand.Wanted(1, "woken 30 s ago", 1)
    assert wanted(state, BETA, 400.0).count == 0
    assert observe(state, Tick(), 399.0).woken_s == {"beta": 100.0}
    assert observe(state, Tick(), 400.0).woken_s == {}


def test_a_wish_is_over_once_the_model_is_up_else_it_would_come_back_when_evicted() -> None:
    state = observe(fleet("alpha-1", "beta-1", state="loading"), Woken("beta"), 100.0)
    assert observe(state, Tick(), 110.0).woken_s == {"beta": 100.0}
    state = observe(state, NodeRegistered(node("box1", shard("beta-1/0"))), 120.0)
    assert observe(state, Tick(), 121.0).woken_s == {}


def test_an_operator_who_stops_it_takes_his_wish_back() -> None:
    state = observe(fleet(), Woken("beta"), 100.0)
    assert observe(state, Woken("beta", over=True), 101.0).woken_s == {}


def test_waking_what_is_always_on_or_unknown_changes_nothing() -> None:
    state = fleet()
    assert observe(state, Woken("alpha"), 100.0) == state
    assert observe(state, Woken("nobody"), 100.0) == state


def test_a_wish_for_a_model_that_left_the_catalog_is_dropped() -> None:
    state = at(observe(fleet(), Woken("beta"), 100.0), catalog=catalog(ALPHA))
    assert observe(state, Tick(), 101.0).woken_s == {}


def test_an_empty_demand_is_no_demand() -> None:
    state = observe(fleet(), said(1, waiting={"beta": 0}), 5.0)
    assert state.asked == {}
    assert Demand(gateway="g", n=1).waiting == {}


def test_a64_a_control_that_starts_knows_who_has_waited_longest() -> None:
    """Each restart made them equal, and by their names: the room that was made for gamma was beta's."""
    state = observe(fleet(), said(1, waiting={"beta": 1, "gamma": 1}, waited={"gamma": 30.0}), 50.0)
    assert demand.waited_s(state, "gamma", 51.0) == 31.0
    assert demand.waited_s(state, "beta", 51.0) == 1.0
    later = observe(state, said(2, waiting={"gamma": 1}, waited={"gamma": 99.0}), 52.0)
    assert demand.waited_s(later, "gamma", 52.0) == 32.0, "its own count goes on"
    odd = observe(fleet(), said(1, waiting={"beta": 1}, waited={"beta": -5.0}), 50.0)
    assert demand.waited_s(odd, "beta", 50.0) == 0.0


def test_a_gateway_that_stays_for_months_is_no_list_of_all_that_ever_ran() -> None:
    """Each placement has a name of its own; what is there still is known by its last byte."""
    state = running(catalog(ALPHA), node("box1", shard("alpha-1/0")))
    for n in range(1, 4):
        ages = {f"alpha-{n}-{i}": 1.0 for i in range(REPLICAS_KEPT)} | {"alpha-1": 2.0}
        state = observe(state, said(n, last_byte=ages, answered=ages), 50.0)
    view = state.gateways["g"]
    assert view.last_byte_s == view.answered_s == {"alpha-1": 48.0}
