"""What the operator holds back (A48, A56): `llmgw pause`, a world that `--require-plan` did not see."""

from __future__ import annotations

import pytest

from llmgw.core.reconcile.decide import decide
from llmgw.core.reconcile.fresh import Memory, started
from llmgw.core.reconcile.observe import observe
from llmgw.core.types.plan import Wait
from llmgw.core.types.state import (
    Announced,
    Confirmed,
    DrainBegun,
    Draining,
    Ending,
    NodeRegistered,
    Paused,
    Published,
    Tick,
    Withheld,
)
from tests.core.ends import PAUSED, box, engine, held, incarnations, mixed
from tests.core.world import catalog, model, node, profile, running

IDLE_S = 600.0

# --- pause (A48) -----------------------------------------------------------------------------


def test_a48_pause_holds_every_end_and_lets_starts_and_drains_under_way_go_on() -> None:
    state = observe(mixed(), DrainBegun("inc-alpha-1", "drift", "was begun before"), 1.0)
    plan = decide(observe(state, PAUSED, 2.0), 200.0)
    why = "paused since 12:00 by ann"
    assert held(plan) == {
        "stop alpha alpha-1": "",
        "drain gone gone-9": why,
        "stop deep short-1": why,
        "drain wide wide-1": why,
        "roll drifted drifted-4": why,
        "start missing": "",
    }


def test_a48_pause_holds_what_would_go_to_sleep() -> None:
    state = observe(running(catalog(model("m0")), node("box1", engine(0, "m0"))), PAUSED, 1.0)
    assert set(held(decide(state, IDLE_S)).values()) == {"paused since 12:00 by ann"}


def test_a48_pause_does_not_hold_what_the_operator_asks_for() -> None:
    state = observe(observe(box(gone=1, kept=1), PAUSED, 1.0), Ending(), 2.0)
    assert held(decide(state, 2.0)) == {"drain alpha alpha-1": "", "drain gone gone-0": ""}


def test_a48_resume_takes_the_hold_away_and_a_pause_twice_is_one() -> None:
    state = box(gone=1)
    paused = observe(state, PAUSED, 1.0)
    assert observe(paused, PAUSED, 2.0) == paused
    assert observe(paused, Paused(""), 3.0) == state


def test_a48_pause_and_what_was_confirmed_survive_a_restart_of_control() -> None:
    engines = [engine(n, "gone") for n in range(3)]
    memory = Memory(
        nodes=((node("box1", *engines), False),),
        paused="since 12:00 by ann",
        confirmed=incarnations("gone", 0, 1, 2),
    )
    state = started(catalog(), memory, now=0.0, settle_timeout_s=60.0, keep_unknown=False)
    state = observe(observe(state, NodeRegistered(node("box1", *engines)), 1.0), Tick(), 1.0)
    plan = decide(state, 100.0)
    assert set(held(plan).values()) == {"paused since 12:00 by ann"}
    plan = decide(observe(state, Paused(""), 101.0), 101.0)
    assert (plan.blocked, set(held(plan).values())) == (None, {""})


# --- another world than the digest that was demanded (A56) -----------------------------------


def test_a56_withheld_holds_everything_but_what_the_operator_asks_for() -> None:
    why = "the world is not that of sha256:9f"
    state = observe(mixed(), DrainBegun("inc-alpha-1", "drift", ""), 1.0)
    state = observe(state, DrainBegun("inc-gone-9", "operator", "asked"), 1.0)
    plan = decide(observe(state, Withheld(why), 2.0), 300.0)
    assert {word for word, said in held(plan).items() if said == why} == {
        "stop alpha alpha-1",
        "stop deep short-1",
        "drain wide wide-1",
        "roll drifted drifted-4",
        "start missing",
    }
    assert {word for word, said in held(plan).items() if not said} == {"stop gone gone-9"}
    assert decide(observe(state, Withheld(""), 3.0), 300.0).actions == decide(state, 300.0).actions


def test_a56_withheld_is_said_before_pause_and_pause_before_the_blast_radius() -> None:
    state = box(gone=3)
    blocked = decide(state, 0.0).blocked
    assert blocked
    state = observe(state, PAUSED, 1.0)
    plan = decide(state, 1.0)
    assert (set(held(plan).values()), plan.blocked) == ({"paused since 12:00 by ann"}, blocked)
    plan = decide(observe(state, Withheld("another world"), 2.0), 2.0)
    assert (set(held(plan).values()), plan.blocked) == ({"another world"}, blocked)


def test_waits_are_never_held_for_they_do_nothing() -> None:
    state = running(catalog(model("alpha", profile(gpus=9), low=1)), node("box1"))
    state = observe(observe(state, PAUSED, 1.0), Withheld("another world"), 1.0)
    assert [type(a) for a in decide(state, 1.0).actions] == [Wait]


# --- facts -----------------------------------------------------------------------------------


def test_a49_a_confirmation_lasts_as_long_as_the_engine_it_is_about() -> None:
    state = observe(box(gone=3), Confirmed(incarnations("gone", 0, 1)), 1.0)
    state = observe(state, Confirmed(incarnations("gone", 1, 2)), 2.0)
    assert state.confirmed == incarnations("gone", 0, 1, 2)
    state = observe(state, NodeRegistered(node("box1", engine(1, "gone"))), 3.0)
    state = observe(state, Announced(incarnations("gone", 0, 2)), 4.0)
    assert state.confirmed == incarnations("gone", 1)


@pytest.mark.parametrize("reason", ["operator", "ending"])
def test_a65_the_operators_word_makes_anothers_drain_his_own_and_keeps_its_clock(
    reason: str,
) -> None:
    state = observe(box(gone=1), DrainBegun("inc-gone-0", "idle", "slept"), 10.0)
    state = observe(state, Published(7, frozenset(), frozenset({"inc-gone-0"})), 11.0)
    asked = observe(state, DrainBegun("inc-gone-0", reason, "ann asked"), 50.0)
    assert asked.draining["inc-gone-0"] == Draining(10.0, reason, "ann asked", 7)
    assert observe(asked, DrainBegun("inc-gone-0", "idle", "slept"), 60.0) == asked
    assert observe(asked, DrainBegun("inc-gone-0", "operator", "bob asked"), 60.0) == asked
