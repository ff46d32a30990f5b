"""`llmgw undrain`: a drain that has begun is not undone, and what is said of it stays true (A65)."""

from __future__ import annotations

import pytest

from llmgw.core.reconcile.observe import observe
from llmgw.core.types.state import Cordoned, DrainBegun, State
from tests.core.test_cordon import LAZY, SAID, engine, told
from tests.core.world import catalog, node, running


def leaving(why: str, *places: tuple[str, str]) -> State:
    """alpha-1 on GPU 0 of box1, which began to leave while these places were drained."""
    state = running(catalog(LAZY), node("box1", engine()))
    for place in places:
        state = told(state, *place)
    return observe(state, DrainBegun("inc-alpha-1", "cordon", why), 1.0)


@pytest.mark.parametrize(("gpu", "where"), [("", "box1"), ("box1-0", "GPU 0 of box1")])
def test_a65_what_began_to_leave_is_said_to_have_though_the_drain_has_ended(
    gpu: str, where: str
) -> None:
    """It is stopped all the same; that its place is drained would be untrue, and untrue after a restart."""
    state = leaving(f"{where} is drained {SAID}; it is on demand", ("box1", gpu))
    state = observe(state, Cordoned("box1", gpu, "", "at one"), 2.0)
    why = f"it began to leave while {where} was drained ({SAID}, ended at one)"
    assert state.draining["inc-alpha-1"].why == why
    again = observe(told(state, "box1", gpu, "again"), Cordoned("box9", "", ""), 3.0)
    assert again.draining["inc-alpha-1"].why == why


def test_what_another_word_keeps_away_leaves_for_that() -> None:
    state = leaving(f"box1 is drained {SAID}", ("box1", ""), ("box1", "box1-0"))
    state = observe(state, Cordoned("box1", "", "", "at one"), 2.0)
    assert state.draining["inc-alpha-1"].why == f"GPU 0 of box1 is drained {SAID}"


def test_the_end_of_a_drain_rewords_no_other_end() -> None:
    state = running(catalog(LAZY), node("box1", engine(), engine("alpha-2", gpu="box1-1")))
    state = told(observe(state, DrainBegun("inc-alpha-1", "operator", "his word"), 1.0), "box1")
    state = observe(state, Cordoned("box1", "", "", "at one"), 2.0)
    assert state.draining["inc-alpha-1"].why == "his word"
