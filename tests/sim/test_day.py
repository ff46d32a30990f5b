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
from tests.sim.day import BETWEEN_S, DRAIN_S, MIN_UP_S, YIELD_S, Day, Figures
from tests.sim.simulation import Broken, Core

FIRST = int(os.environ.get("DAY_FIRST", "0"))
COUNT = int(os.environ.get("DAY_SEEDS", "4"))
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


def bound_s(day: Day, name: str, cards: int) -> float:
    """What nobody waits longer than: its load, `yield_after` and one drain, and a turn for each round before its own.

    Whoever waits longer comes first, as many in a round as there are cards; who made room is behind all who wait. Of
    those that have just come up each has its load and `min_up` first, where that is more than `yield_after`.
    """
    before = len(day.load_s) - cards - 1
    most_s = max(day.load_s.values())
    turn_s = most_s + MIN_UP_S + DRAIN_S + BETWEEN_S
    first_s = max(YIELD_S, most_s + MIN_UP_S) + DRAIN_S + BETWEEN_S
    return day.load_s[name] + first_s + turn_s * (before // cards)


def too_long(day: Day, cards: int) -> dict[str, float]:
    """By model, how long somebody waited for it over the bound."""
    waited = {name: max(waits) for name, waits in day.gateway.waited.items() if waits}
    return {n: w for n, w in waited.items() if w > bound_s(day, n, cards)}


@pytest.mark.parametrize("seeds", chunks(), ids=lambda r: f"{r.start}-{r.stop - 1}")
def test_a64_of_many_too_many_each_has_its_turn(
    seeds: range, capsys: pytest.CaptureFixture[str]
) -> None:
    """Twice, three and four times as many models as cards: as many rounds before one's own, and no more."""
    total = Figures()
    for seed in seeds:
        cards = 1 + seed % 2
        models = cards * (2 + seed % 3)
        day = Day(seed, cards, models)
        figures = day.run(DAY_S / 2, pressed=bool(seed % 4 // 2))
        told = f"seed {seed}, {models} models on {cards} cards: {figures}"
        assert (figures.in_use, figures.cut, figures.left, figures.refused) == (0, 0, 0, 0), told
        assert not too_long(day, cards), told
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


def the_first_of_the_alphabet(state: State, now: float, found: Survey) -> Plan:
    """All who have waited long enough have waited as long."""
    asked = {m: replace(a, since_s=max(a.since_s, now - YIELD_S)) for m, a in state.asked.items()}
    return decide(replace(state, asked=asked), now, found)


def test_the_bound_is_broken_where_the_longest_wait_is_not_the_first_turn() -> None:
    day = Day(2, 1, 4, Core(decide=the_first_of_the_alphabet))
    day.run(DAY_S, pressed=True)
    assert too_long(day, 1)
