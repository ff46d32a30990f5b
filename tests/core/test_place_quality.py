"""Placement against an exhaustive search on small random worlds, and what a pass costs as fleets grow (P12).

Fewer worlds than `bench.place` and `bench.decide` look at; shares and counts of calls, never seconds.
"""

from __future__ import annotations

import sys
from types import FrameType

import pytest

from bench.decide import MOMENTS, settled
from bench.place import by_moving, without_moving
from llmgw.core import roll
from llmgw.core.reconcile.decide import decide
from llmgw.core.types.plan import Wait
from llmgw.core.types.state import State


def test_a62_what_can_be_placed_without_moving_anything_is() -> None:
    found = without_moving(3, 600)
    assert found["possible"] > 100
    assert found["share"] >= 0.99


def test_a64_room_that_idle_replicas_can_make_is_found_and_what_is_said_of_it_is_true() -> None:
    found = by_moving(3, 600)
    assert found["possible"] > 50
    assert found["share"] >= 0.95
    assert found["smallest"] >= 0.95
    assert not found["wrong"]


def calls(state: State) -> int:
    """How many Python functions one pass calls: the same on every machine."""
    count = 0

    def seen(frame: FrameType, event: str, arg: object) -> None:  # noqa: ARG001 - a profiler's form
        nonlocal count
        count += event == "call"

    before = sys.getprofile()
    sys.setprofile(seen)
    try:
        decide(state, 1e6)
    finally:
        sys.setprofile(before)
    return count


def test_a66_of_very_many_rolls_some_are_looked_at_in_one_pass_and_all_count_for_the_guard() -> (
    None
):
    plan = decide(settled(roll.LOOKS // 2 + 50, "edited"), 1e6)
    many = [a for a in plan.actions if isinstance(a, Wait) and "others come first" in a.why]
    assert len(many) == 100
    assert many[0].why.startswith("roll: 500 others come first in this pass, ")
    assert plan.blocked is not None
    assert len(plan.blocked.incarnations) == 2 * (roll.LOOKS // 2 + 50)


@pytest.mark.parametrize("moment", MOMENTS)
def test_p12_ten_times_the_nodes_and_models_cost_no_more_than_twelve_times(moment: str) -> None:
    # Fifty nodes have every kind of model there is.
    small, large = (calls(settled(nodes, moment)) for nodes in (50, 500))
    assert large <= 12 * small
