"""When a drain is over: nobody can be on the replica any more, or its time is up (A65)."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from llmgw.core import drain
from llmgw.core.adopt.survey import survey
from llmgw.core.reconcile.observe import observe
from llmgw.core.types.plan import Replica
from llmgw.core.types.routes import GATEWAY_SILENT_S, Demand
from llmgw.core.types.state import (
    Answered,
    Demanded,
    DrainBegun,
    Draining,
    Ending,
    GatewayGone,
    Published,
    State,
)
from tests.core.world import at, catalog, model, node, running, shard

#: well after control's start: every gateway has had the time to speak
T = 1000.0
INC = "inc-alpha-1"
LIMIT_S = 120.0
DONE = "drained, nothing in flight"
OVER = "drained for 120 s, the limit"


def begun(*gateways: str, reason: str = "drift", table: int = 6) -> State:
    """A drain that began at T; the gateways have the table before it."""
    state = running(catalog(model("alpha", low=1)), node("box1", shard("alpha-1/0")))
    for name in gateways:
        state = said(state, T, name, n=1, table=table)
    return observe(state, DrainBegun(INC, reason, "it changed"), T)


def shown(*gateways: str, reason: str = "drift") -> State:
    """The same, with table 7 out: it shows the replica draining."""
    out = Published(7, frozenset({INC}), frozenset({INC}))
    return observe(begun(*gateways, reason=reason), out, T)


def said(state: State, now: float, gateway: str = "g", *, n: int = 2, **k: Any) -> State:
    return observe(state, Demanded(Demand(gateway=gateway, n=n, **k)), now)


def alpha(state: State) -> Replica:
    (only,) = survey(state).replicas
    return only


def over(state: State, now: float) -> str:
    return drain.finished(state, alpha(state), state.draining[INC], LIMIT_S, now)


# --- from when it counts ---------------------------------------------------------------------


def test_a65_a_drain_no_table_shows_yet_does_not_end_though_nothing_is_in_flight() -> None:
    state = said(begun("g"), T, table=99)
    assert over(state, T) == ""


def test_a65_it_ends_when_every_gateway_has_the_table_and_nothing_is_in_flight() -> None:
    state = shown("g1", "g2")
    assert over(state, T) == ""
    state = said(state, T + 1, "g1", table=7)
    assert over(state, T + 1) == ""
    state = said(state, T + 2, "g2", table=8)
    assert over(state, T + 2) == DONE


def test_a65_it_does_not_end_while_a_request_is_in_flight() -> None:
    state = said(shown("g"), T + 1, table=7, in_flight={"alpha-1": 1})
    assert over(state, T + 1) == ""
    assert over(said(state, T + 2, n=3, table=7), T + 2) == DONE


def test_requests_that_wait_for_the_model_do_not_keep_a_replica_that_is_going() -> None:
    state = said(shown("g"), T + 1, table=7, waiting={"alpha": 3})
    assert over(state, T + 1) == DONE


def test_what_its_end_waits_for_is_told() -> None:
    def waits(state: State, now: float) -> str:
        return drain.waits(state, alpha(state), state.draining[INC], now)

    assert waits(begun("g1", "g2"), T) == "no gateway was told yet"
    state = shown("g1", "g2")
    assert waits(state, T) == "gateway g1 may still send requests there"
    state = said(said(state, T + 1, "g1", table=7), T + 1, "g2", table=7, in_flight={"alpha-1": 2})
    assert waits(state, T + 1) == "2 in flight"
    assert waits(said(state, T + 2, "g2", n=3, table=7), T + 2) == ""
    state = said(shown("g", reason="operator"), T + 1, "g", table=7, in_flight={"alpha-1": 2})
    assert waits(state, T + 1) == "2 in flight"
    assert waits(said(state, T + 2, "g", n=3, table=7), T + 2) == ""


def test_a65_one_that_rests_by_the_word_of_every_gateway_ends_before_they_have_the_table() -> None:
    state = said(shown("g1", "g2"), T, "g1", table=6, resting=("alpha-1",))
    assert over(state, T) == "", "the other one may still send something there"
    state = said(state, T, "g2", table=6, resting=("beta-1", "alpha-1"))
    assert over(state, T) == DONE
    answered = observe(state, Answered(), T)
    assert over(answered, T) == "", "what they promised is over with the answer"
    assert observe(answered, Answered(), T) is answered
    unseen = said(begun("g1"), T, "g1", table=6, resting=("alpha-1",))
    assert over(unseen, T) == "", "no table shows it to anybody"


# --- gateways that are not heard -------------------------------------------------------------


def test_a_gateway_that_said_its_last_words_delays_nothing() -> None:
    """It has no table after its last: each upgrade of a gateway held every drain up for a minute."""
    state = said(shown("g1", "g2"), T + 1, "g1", table=7)
    assert over(state, T + 1) == ""
    state = said(state, T + 2, "g2", table=6, ended=True)
    assert over(state, T + 2) == DONE
    assert state.gateways.keys() == {"g1"}


@pytest.mark.parametrize(
    ("age_s", "ends"), [(9.9, True), (10.0, False), (59.9, False), (60.0, True)]
)
def test_a65_a_silent_gateway_delays_the_end_until_it_is_out_of_the_count(
    age_s: float, ends: bool
) -> None:
    state = said(shown("g1", "g2"), T + 1, "g1", table=7)
    state = said(state, T + 1 + age_s, "g2", table=7)
    assert over(state, T + 1 + age_s) == (DONE if ends else "")


def test_a65_the_operator_s_drain_cuts_nobody_of_whom_a_gateway_has_not_told_yet() -> None:
    """Control restarts with his drain under way, and agents are back before gateways: with none heard none was silent.

    Who has not spoken in the time after which a gateway counts as silent delays him no more than that one does.
    """
    before = shown(reason="operator")
    state = at(before, started_s=T, unheard=frozenset({"g1", "g2"}))
    assert over(state, T + 1) == ""
    assert over(state, T + GATEWAY_SILENT_S) == DONE
    assert over(said(state, T + 1, "g1", table=7), T + 1) == ""
    both = said(said(state, T + 1, "g1", table=7), T + 2, "g2", table=7)
    assert over(both, T + 2) == DONE
    ours = replace(alpha(state), members=tuple(replace(s, ours=True) for s in alpha(state).members))
    assert drain.waits(state, ours, state.draining[INC], T + 1) == "", "whoever is on it was heard"
    for known in (frozenset[str](), None):
        assert over(at(before, started_s=T, unheard=known), T + 1) == DONE, "none is known to lack"


@pytest.mark.parametrize("reason", ["cordon", "idle", "draining"])
def test_the_end_of_all_engines_is_a_word_for_drains_that_began_before_it(reason: str) -> None:
    """Else `llmgw down --engines` waited a minute for a gateway of before, on an engine that was idle."""
    before = at(shown(reason=reason), started_s=T, unheard=frozenset({"g1"}))
    assert over(before, T + GATEWAY_SILENT_S) == ""
    state = observe(before, Ending(), T + 1)
    waits = drain.waits(state, alpha(state), state.draining[INC], T + 1)
    assert waits.startswith("control started 1 s ago, gateway g1 has not said yet what it serves")
    assert over(state, T + 1) == ""
    assert over(state, T + GATEWAY_SILENT_S) == DONE
    late = observe(said(shown("g1", "g2", reason=reason), T + 11, "g1", table=7), Ending(), T + 11)
    assert over(late, T + 11) == DONE, "a gateway that fell silent delays it no longer either"


def test_a65_a_gateway_gone_for_60_s_need_not_have_the_table() -> None:
    state = said(shown("g1", "g2"), T + 59.9, "g1", table=7)
    assert over(state, T + 59.9) == ""
    assert over(said(state, T + 60, "g1", n=3, table=7), T + 60) == DONE


def test_a_gateway_whose_process_is_seen_dead_delays_nothing() -> None:
    state = observe(shown("g"), GatewayGone("g"), T + 1)
    assert over(state, T + 1) == DONE


def test_without_any_gateway_it_ends_once_control_is_up_long_enough_to_have_heard_one() -> None:
    state = running(catalog(model("alpha", low=1)), node("box1", shard("alpha-1/0")))
    state = observe(state, DrainBegun(INC, "drift", ""), 1.0)
    state = observe(state, Published(7, frozenset(), frozenset({INC})), 1.0)
    assert (over(state, 59.0), over(state, 60.0)) == ("", DONE)


def test_after_a_restart_of_control_a_drain_waits_for_gateways_that_have_not_spoken_yet() -> None:
    state = running(catalog(model("alpha", low=1)), node("box1", shard("alpha-1/0")))
    state = observe(state, DrainBegun(INC, "drift", ""), 1.0)
    state = observe(state, Published(7, frozenset(), frozenset({INC})), 1.0)
    state = said(state, 2.0, "g1", n=1, table=7)
    assert over(state, 2.0) == ""
    assert over(said(state, 59.0, "g1", n=2, table=7), 59.9) == ""
    assert over(said(state, 59.0, "g1", n=2, table=7), 60.0) == DONE


# --- the limit, and the operator -------------------------------------------------------------


def test_a65_the_limit_ends_it_whatever_is_in_flight() -> None:
    state = said(shown("g"), T + LIMIT_S, table=7, in_flight={"alpha-1": 2})
    assert over(state, T + LIMIT_S - 0.1) == ""
    assert over(state, T + LIMIT_S) == f"{OVER}, 2 in flight"


def test_a65_the_limit_too_counts_from_when_gateways_have_the_table() -> None:
    """Else a short drain is over while a gateway that missed the table still sends new requests there."""
    state = said(shown("g"), T + LIMIT_S - 30, table=6)
    assert over(state, T + LIMIT_S) == ""
    assert over(said(state, T + LIMIT_S + 1, n=3, table=7), T + LIMIT_S + 1) == OVER
    assert over(state, T + LIMIT_S + 30) == OVER


def test_a_gateway_that_never_takes_the_table_up_does_not_prevent_the_end() -> None:
    state = said(shown("g"), T + LIMIT_S + 59, table=6)
    assert over(state, T + LIMIT_S + 59.9) == ""
    assert over(state, T + LIMIT_S + 60) == OVER


def test_a65_a_silent_gateway_delays_the_operator_not_at_all() -> None:
    state = said(shown("g1", "g2", reason="ending"), T + 11, "g1", table=7)
    assert over(state, T + 9.9) == ""
    assert over(state, T + 11) == DONE


def test_a65_what_is_in_flight_may_finish_also_when_the_operator_asked() -> None:
    state = said(shown("g", reason="ending"), T + 1, table=7, in_flight={"alpha-1": 1})
    assert over(state, T + 1) == ""
    assert over(state, T + 20) == ""
    assert over(said(state, T + 21, n=3, table=7), T + 21) == DONE


GATEWAYS = st.lists(
    st.tuples(
        st.sampled_from(["g1", "g2", "g3"]),
        st.floats(0, 80),
        st.integers(5, 8),
        st.integers(0, 2),
    ),
    max_size=8,
)


@given(GATEWAYS, st.floats(0, 80))
def test_a65_no_drain_ends_before_its_limit_while_a_gateway_that_counts_may_use_the_replica(
    spoken: list[Any], later_s: float
) -> None:
    state, now = shown("g1"), T
    for n, (gateway, after_s, table, in_flight) in enumerate(spoken):
        now += after_s
        state = said(state, now, gateway, n=n + 2, table=table, in_flight={"alpha-1": in_flight})
    now += later_s
    why = over(state, now)
    counted = [g for g in state.gateways.values() if now - g.heard_s < 60]
    if now >= T + LIMIT_S + 60 or (
        now >= T + LIMIT_S and all(g.demand.table >= 7 for g in counted)
    ):
        assert why.startswith(OVER)
    elif why:
        assert why == DONE
        for g in state.gateways.values():
            if now - g.heard_s < 60:
                assert now - g.heard_s < 10
                assert g.demand.table >= 7
                assert not g.demand.in_flight["alpha-1"]


def test_a_drain_remembers_the_first_table_that_showed_it() -> None:
    state = observe(shown("g"), Published(9, frozenset({INC}), frozenset({INC})), T + 1)
    assert state.draining[INC] == Draining(T, "drift", "it changed", 7)
