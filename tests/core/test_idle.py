"""Wanted, busy, idle: who may be asleep, and from when the clock runs (A22-A24, A63, F81)."""

from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from llmgw.core import idle
from llmgw.core.adopt.survey import survey
from llmgw.core.reconcile.observe import observe
from llmgw.core.types.catalog import Model, Scaling
from llmgw.core.types.messages import ShardReport
from llmgw.core.types.plan import Replica
from llmgw.core.types.routes import Demand
from llmgw.core.types.state import Demanded, GatewayGone, NodeRegistered, State, Tick
from tests.core.world import at, catalog, model, node, place_at, running, shard

BETA = model("beta", scaling=Scaling(idle_timeout_s=600.0, min_up_s=120.0))
#: of a gateway that may be there
UNSAID = "a gateway may not have said yet what it serves"
#: well after control's start: every gateway has had the time to speak
LATER = 1000.0


def up(now: float = 0.0, m: Model = BETA, **k: Any) -> State:
    """A control that started at 0 and met beta-1 ready at `now`."""
    state = running(catalog(m), node("box1"))
    return observe(state, NodeRegistered(node("box1", shard("beta-1/0", **k))), now)


def heard(state: State, now: float, gateway: str = "g", n: int = 1, **k: Any) -> State:
    return observe(state, Demanded(Demand(gateway=gateway, n=n, **k)), now)


def beta(state: State) -> Replica:
    (only,) = survey(state).replicas
    return only


# --- what gateways say -----------------------------------------------------------------------


def test_the_latest_of_each_gateway_is_summed() -> None:
    state = heard(up(), 1.0, "g1", in_flight={"beta-1": 1}, waiting={"beta": 2})
    state = heard(state, 2.0, "g2", in_flight={"beta-1": 3}, waiting={"beta": 1, "x": 9})
    assert (idle.in_flight(state, "beta-1"), idle.waiting(state, "beta")) == (4, 3)
    state = heard(state, 3.0, "g2", n=2)
    assert (idle.in_flight(state, "beta-1"), idle.waiting(state, "beta")) == (1, 2)
    assert (idle.in_flight(state, "x"), idle.waiting(state, "nobody")) == (0, 0)


@pytest.mark.parametrize(
    ("age_s", "silent"), [(0.0, False), (9.9, False), (10.0, True), (59.9, True), (60.0, False)]
)
def test_a_gateway_is_silent_from_10_s_on_and_out_of_the_count_after_60(
    age_s: float, silent: bool
) -> None:
    view = heard(up(), LATER).gateways["g"]
    assert idle.silent(view, LATER + age_s) is silent


def test_one_that_said_its_last_words_serves_nobody_and_is_not_waited_for() -> None:
    """When its replicas were used last stays known."""
    state = heard(up(), LATER, last_byte={"beta-1": 5.0})
    state = heard(state, LATER + 1.0, n=2, last_byte={"beta-1": 0.5}, ended=True)
    assert not state.gateways
    assert idle.idle_since_s(state, beta(state)) == LATER + 0.5
    state = heard(again("g", "g2"), 501.0, "g", ended=True)
    assert idle.gateways(state) == frozenset({"g2"})


# --- may serve, busy -------------------------------------------------------------------------


def test_a63_busy_is_waiting_then_loading_then_in_flight() -> None:
    state = heard(up(state="loading"), LATER, in_flight={"beta-1": 2}, waiting={"beta": 3})
    assert idle.busy(state, beta(state), LATER) == "3 waiting"
    state = heard(state, LATER, n=2, in_flight={"beta-1": 2})
    assert idle.busy(state, beta(state), LATER) == "loading"
    state = heard(up(), LATER, in_flight={"beta-1": 2})
    assert idle.busy(state, beta(state), LATER) == "2 in flight"
    state = heard(up(), LATER, in_flight={"gamma-1": 2}, waiting={"gamma": 3})
    assert idle.busy(state, beta(state), LATER) == ""


@pytest.mark.parametrize("state_", ["pending", "starting", "loading"])
def test_a63_a_load_is_never_idle(state_: str) -> None:
    state = heard(up(state=state_), LATER)
    assert idle.busy(state, beta(state), LATER) == "loading"


def test_a63_a_silent_gateway_may_still_be_serving_until_it_is_out_of_the_count() -> None:
    state = heard(heard(up(), LATER, "0123456789ab"), LATER + 12.0, "g2")
    r = beta(state)
    assert idle.may_serve(state, r, LATER + 5.0) == ""
    assert idle.may_serve(state, r, LATER + 12.0) == "gateway 01234567 has been silent for 12 s"
    assert idle.busy(state, r, LATER + 12.0) == idle.may_serve(state, r, LATER + 12.0)
    state = heard(state, LATER + 60.0, "g2", n=2)
    assert idle.may_serve(state, r, LATER + 60.0) == ""


@pytest.mark.parametrize(
    ("gateways", "now", "said"),
    [
        ((), 0.0, f"control started 0 s ago, {UNSAID} (at most 60 s more)"),
        ((), 59.9, f"control started 60 s ago, {UNSAID} (at most 1 s more)"),
        ((), 60.0, ""),
        (("g",), 59.0, f"control started 59 s ago, {UNSAID} (at most 1 s more)"),
        (("g",), 60.0, ""),
    ],
)
def test_after_a_restart_of_control_a_gateway_not_heard_yet_may_be_serving(
    gateways: tuple[str, ...], now: float, said: str
) -> None:
    """Else the end of a drain that was under way cuts the streams of whoever speaks a moment later."""
    state = at(up(), started_s=500.0)
    for name in gateways:
        state = heard(state, 500.0 + now, name)
    assert idle.may_serve(state, beta(state), 500.0 + now) == said


def again(*gateways: str) -> State:
    """A control that started at 500 on an inventory which has these gateways, and met beta-1 ready."""
    return at(up(), started_s=500.0, unheard=frozenset(gateways))


@pytest.mark.parametrize("spoke_s", [0.5, 4.0, 30.0])
def test_it_waits_for_those_that_the_control_before_knew_and_no_longer(spoke_s: float) -> None:
    """They have said what they serve: nobody else can be in the middle of a stream."""
    state = heard(again("0123456789ab", "bb"), 500.0 + spoke_s, "bb")
    who = "gateway 01234567 has not said yet what it serves"
    just = idle.may_serve(state, beta(state), 500.0 + spoke_s)
    assert (
        just
        == f"control started {spoke_s:.0f} s ago, {who} (at most {math.ceil(60 - spoke_s)} s more)"
    )
    state = heard(state, 500.0 + spoke_s, "0123456789ab", in_flight={"beta-1": 1})
    assert idle.may_serve(state, beta(state), 500.0 + spoke_s) == "1 in flight"
    state = heard(state, max(500.0 + spoke_s, 510.0), "0123456789ab", n=2)
    state = heard(state, max(500.0 + spoke_s, 510.0), "bb", n=2)
    assert idle.may_serve(state, beta(state), max(500.0 + spoke_s, 510.0)) == ""


@pytest.mark.parametrize("known", [(), ("g",)])
def test_one_that_began_while_no_control_was_there_has_the_time_to_speak(
    known: tuple[str, ...],
) -> None:
    """It serves from the table on its disk, and no inventory has it; it finds control within seconds (`feed`)."""
    state = heard(again(*known), 500.0, "g")
    said = f"control started 9 s ago, {UNSAID} (at most 1 s more)"
    assert idle.may_serve(state, beta(state), 509.4) == said
    state = heard(state, 509.9, "g", n=2)
    assert idle.may_serve(state, beta(state), 510.0) == ""


def test_one_whose_process_is_seen_dead_is_not_waited_for() -> None:
    state = observe(again("g", "gone"), GatewayGone("gone"), 501.0)
    state = heard(state, 509.0, "g")
    assert idle.may_serve(state, beta(state), 511.0) == ""
    assert idle.gateways(state) == frozenset({"g"})


def test_what_the_next_control_is_to_wait_for() -> None:
    state = heard(again("old"), 501.0, "new")
    assert idle.gateways(state) == frozenset({"old", "new"})
    assert idle.gateways(observe(state, Tick(), 559.9)) == frozenset({"old", "new"})
    state = observe(heard(state, 559.0, "new", n=2), Tick(), 560.0)
    assert idle.gateways(state) == frozenset({"new"}), (
        "out of the count, as any that was silent for so long"
    )


def test_where_nobody_can_tell_which_there_were_neither_can_the_next_until_the_time_is_over() -> (
    None
):
    """Two restarts in a row, on a file that does not say: the second knows no more than the first."""
    state = heard(at(up(), started_s=500.0), 501.0, "g")
    assert idle.gateways(observe(state, Tick(), 559.0)) is None
    assert idle.gateways(observe(heard(state, 559.0, n=2), Tick(), 560.0)) == frozenset({"g"})


def test_what_this_control_started_itself_nobody_served_before_it_did() -> None:
    state = place_at(running(catalog(BETA), node("box1")), "box1", incarnation="inc-beta-1")
    state = observe(state, NodeRegistered(node("box1", shard("beta-1/0"))), 5.0)
    assert idle.may_serve(state, beta(state), 6.0) == ""
    state = heard(state, 6.0, in_flight={"beta-1": 1})
    assert idle.may_serve(state, beta(state), 7.0) == "1 in flight"


def test_of_several_silent_gateways_the_first_by_name_is_named_whoever_spoke_first() -> None:
    state = heard(heard(up(), LATER, "zz"), LATER + 1.0, "aa")
    said = idle.may_serve(state, beta(state), LATER + 12.0)
    assert said == "gateway aa has been silent for 11 s"


def two_ranks(*states: str) -> tuple[ShardReport, ...]:
    return tuple(
        shard(f"beta-1/{n}", state=state, world_size=2, port=18000 + n)
        for n, state in enumerate(states)
    )


def test_a63_one_rank_that_loads_makes_the_replica_busy() -> None:
    state = running(catalog(BETA), node("box1", *two_ranks("ready", "loading")))
    assert idle.busy(state, beta(state), LATER) == "loading"


# --- the clock -------------------------------------------------------------------------------


def test_a22_adoption_gives_one_whole_timeout_whatever_age_the_agent_reports() -> None:
    state = up(50.0, last_request_age_s=5000.0)
    assert idle.idle_since_s(state, beta(state)) == 50.0
    assert idle.idle_until_s(state, BETA, beta(state)) == 650.0


def test_a63_the_clock_starts_at_the_last_byte_of_any_gateway() -> None:
    state = heard(up(50.0), 400.0, "g1", last_byte={"beta-1": 100.0, "gamma-1": 0.0})
    assert idle.idle_since_s(state, beta(state)) == 300.0
    state = heard(state, 400.0, "g2", last_byte={"beta-1": 5.0})
    assert idle.idle_since_s(state, beta(state)) == 395.0
    state = heard(state, 500.0, "g1", n=2, in_flight={"beta-1": 1})
    assert idle.idle_until_s(state, BETA, beta(state)) == 1100.0


def test_min_up_protects_what_has_just_loaded() -> None:
    m = model("beta", scaling=Scaling(idle_timeout_s=30.0, min_up_s=120.0))
    state = up(50.0, m)
    assert idle.idle_until_s(state, m, beta(state)) == 170.0
    later = heard(state, 300.0, last_byte={"beta-1": 0.0})
    assert idle.idle_until_s(later, m, beta(later)) == 330.0


def test_min_up_counts_from_the_last_rank_that_came_up() -> None:
    m = model("beta", scaling=Scaling(idle_timeout_s=30.0, min_up_s=120.0))
    state = running(catalog(m), node("box1", *two_ranks("ready", "loading")))
    state = observe(state, NodeRegistered(node("box1", *two_ranks("ready", "ready"))), 90.0)
    assert [s.ready_s for s in beta(state).members] == [0.0, 90.0]
    assert idle.idle_until_s(state, m, beta(state)) == 210.0


def test_one_that_is_not_ready_yet_has_a_clock_all_the_same() -> None:
    state = up(50.0, state="loading")
    assert beta(state).members[0].ready_s is None
    assert idle.idle_since_s(state, beta(state)) == 50.0
    assert idle.idle_until_s(state, BETA, beta(state)) == 650.0


def test_coming_up_starts_the_clock_for_a_load_takes_its_time() -> None:
    state = up(50.0, state="loading")
    state = observe(state, NodeRegistered(node("box1", shard("beta-1/0"))), 400.0)
    assert idle.idle_since_s(state, beta(state)) == 400.0


@pytest.mark.parametrize(
    "scaling", [Scaling(idle_timeout_s=None), Scaling(min=1, max=1, idle_timeout_s=1.0)]
)
def test_never_and_always_on_have_no_end(scaling: Scaling) -> None:
    m = model("beta", scaling=scaling)
    state = up(0.0, m)
    assert idle.idle_until_s(state, m, beta(state)) is None


AGES = st.dictionaries(st.sampled_from(["beta-1", "gamma-1"]), st.floats(0, 1e6))
SAID = st.lists(
    st.tuples(
        st.sampled_from(["g1", "g2"]),
        st.floats(0, 100),
        AGES,
        st.dictionaries(st.just("beta-1"), st.integers(0, 2)),
        st.dictionaries(st.just("beta"), st.integers(0, 2)),
    ),
    max_size=6,
)


@given(SAID, st.floats(0, 1e4), st.none() | st.floats(0, 1e6))
def test_a22_f81_no_reported_age_ever_shortens_the_clock(
    said: list[Any], met_s: float, age_s: float | None
) -> None:
    state = up(met_s, last_request_age_s=age_s)
    now, since = met_s, idle.idle_since_s(state, beta(state))
    assert since == met_s
    for n, (gateway, later_s, ages, in_flight, waiting) in enumerate(said):
        now += later_s
        state = heard(
            state, now, gateway, n=n + 1, last_byte=ages, in_flight=in_flight, waiting=waiting
        )
        before, since = since, idle.idle_since_s(state, beta(state))
        assert before <= since <= now


@given(SAID, st.floats(0, 100))
def test_a63_whatever_the_gateways_said_busy_gives_a_reason_while_any_of_them_serves(
    said: list[Any], later_s: float
) -> None:
    state, now = up(), LATER
    for n, (gateway, after_s, ages, in_flight, waiting) in enumerate(said):
        now += after_s
        state = heard(
            state, now, gateway, n=n + 1, last_byte=ages, in_flight=in_flight, waiting=waiting
        )
    serving = any(g.demand.in_flight.get("beta-1") for g in state.gateways.values())
    asked = any(g.demand.waiting.get("beta") for g in state.gateways.values())
    quiet = [g for g in state.gateways.values() if 10 <= now + later_s - g.heard_s < 60]
    why = idle.busy(state, beta(state), now + later_s)
    assert bool(why) is bool(serving or asked or quiet)


def test_a24_wanted_moves_the_clock_of_every_replica_of_the_model() -> None:
    state = at(up(0.0), wanted_s={"beta": 700.0})
    assert idle.idle_since_s(state, beta(state)) == 700.0
