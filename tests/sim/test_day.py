"""Days of traffic: nothing in use is ever evicted, and nobody starves (A63, A64; issue "Done when").

DAY_SEEDS=N runs more of them, DAY_FIRST=N others.
"""

from __future__ import annotations

import os
import sys

import pytest
from msgspec.structs import replace

from llmgw.core.adopt.survey import Survey
from llmgw.core.reconcile.decide import decide
from llmgw.core.types.plan import Plan
from llmgw.core.types.state import State
from tests.sim.day import BETWEEN_S, DRAIN_S, LOAD_S, MIN_UP_S, YIELD_S, Day, Figures
from tests.sim.simulation import Broken, Core

FIRST = int(os.environ.get("DAY_FIRST", "0"))
COUNT = int(os.environ.get("DAY_SEEDS", "6"))
CHUNK = 12
DAY_S = 1500.0


def chunks() -> list[range]:
    return [range(i, min(i + CHUNK, FIRST + COUNT)) for i in range(FIRST, FIRST + COUNT, CHUNK)]


@pytest.mark.parametrize("seeds", chunks(), ids=lambda r: f"{r.start}-{r.stop - 1}")
def test_a64_one_model_too_many_waits_for_its_load_yield_after_and_one_drain_at_most(
    seeds: range, capsys: pytest.CaptureFixture[str]
) -> None:
    total = Figures()
    for seed in seeds:
        cards = 1 + seed % 3
        day = Day(seed, cards, cards + 1)
        figures = day.run(DAY_S)
        told = f"seed {seed}, {cards} cards: {figures}"
        assert (figures.in_use, figures.cut, figures.left, figures.refused) == (0, 0, 0, 0), told
        for name, waits in day.gateway.waited.items():
            limit_s = day.load_s[name] + YIELD_S + DRAIN_S + BETWEEN_S
            assert max(waits) <= limit_s, f"{name} waited {max(waits):.1f} s; {told}"
        total.add(figures)
    with capsys.disabled():
        sys.stdout.write(f"\n{total}\n")
    assert total.evicted
    assert total.yielded


@pytest.mark.parametrize("seeds", chunks(), ids=lambda r: f"{r.start}-{r.stop - 1}")
def test_a63_while_control_and_agents_die_and_come_back_nothing_in_use_goes_either(
    seeds: range,
) -> None:
    """Each start of control begins the waiting anew, and it takes a minute for idle; so no limit for the waits here."""
    total = Figures()
    for seed in seeds:
        day = Day(seed, 1 + seed % 2, 3)
        figures = day.run(DAY_S / 2, faults=True)
        told = f"seed {seed}: {figures}"
        assert (figures.in_use, figures.cut, figures.left, figures.refused) == (0, 0, 0, 0), told
        total.add(figures)
    assert total.evicted + total.yielded


@pytest.mark.parametrize("seeds", chunks(), ids=lambda r: f"{r.start}-{r.stop - 1}")
def test_a64_of_many_too_many_each_has_its_turn(
    seeds: range, capsys: pytest.CaptureFixture[str]
) -> None:
    """Twice and three times as many models as cards: behind each that waits already a whole turn more."""
    total = Figures()
    turn_s = LOAD_S[1] + max(YIELD_S, MIN_UP_S) + DRAIN_S + BETWEEN_S
    for seed in seeds:
        cards = 1 + seed % 2
        models = cards * (2 + seed % 3 // 2)
        day = Day(seed, cards, models)
        figures = day.run(DAY_S / 2)
        told = f"seed {seed}, {models} models on {cards} cards: {figures}"
        assert (figures.in_use, figures.cut, figures.left, figures.refused) == (0, 0, 0, 0), told
        assert max(figures.waits_s) <= turn_s * (models - cards + 1), told
        total.add(figures)
    with capsys.disabled():
        sys.stdout.write(f"\n{total}\n")
    assert total.yielded


def blind_to_who_serves(state: State, now: float, found: Survey) -> Plan:
    """Whatever generates is taken for idle."""
    deaf = {
        k: replace(g, demand=replace(g.demand, in_flight={})) for k, g in state.gateways.items()
    }
    return decide(replace(state, gateways=deaf), now, found)


def nobody_yields(state: State, now: float, found: Survey) -> Plan:
    """Nobody is known to have waited."""
    return decide(replace(state, asked={}), now, found)


def test_the_judge_sees_an_eviction_of_what_is_in_use() -> None:
    with pytest.raises(Broken, match=r"nobody is evicted who may not go|no stream is cut"):
        Day(1, 1, 2, Core(decide=blind_to_who_serves)).run(DAY_S)


def test_the_figures_see_who_starves() -> None:
    assert Day(0, 1, 2, Core(decide=nobody_yields)).run(DAY_S).share > 1.5
