"""A failing history becomes a script for tests/scripts: smaller, and it fails for the same reason."""

from __future__ import annotations

from functools import cache

import pytest

from tests.sim.mutants import MUTANTS
from tests.sim.run import Failure, run_seed
from tests.sim.script import parse, played
from tests.sim.shrink import REPLAYS, Outcome, Shrinker, broken_by, outcome, script

#: Found early, and hanging on a fault or two.
NAME = "restarts alone"


@cache
def failure() -> Failure:
    core = MUTANTS[NAME].core
    for seed in range(100):
        try:
            run_seed(seed, core)
        except Failure as e:
            return e
    pytest.fail(f"no history broke an invariant for: {NAME}")


def test_a_script_of_it_fails_with_the_broken_core_and_passes_with_the_real_one() -> None:
    core = MUTANTS[NAME].core
    found = failure()
    text = script(found, core)
    assert broken_by(text, core).invariant == found.invariant
    assert broken_by(text) == Outcome()
    prose, blocks = parse(text)
    assert found.invariant in prose
    lines = [line for block in blocks for line in block.commands]
    assert len(lines) < len(found.lines)
    assert len("".join(lines)) < len("".join(found.lines)) / 2
    # What `--rewrite` makes of it is a story like the others.
    assert parse(played(text))[1][-1].expected


def test_its_replays_are_bounded() -> None:
    core = MUTANTS[NAME].core
    shrinker = Shrinker(failure(), core)
    shrinker.left = 3
    shrinker.smallest()
    assert shrinker.left == 0


def test_a_history_replays_from_its_lines_as_it_went() -> None:
    found = failure()
    lines = (*found.lines, f"at {found.at_s + 1.0:.2f}")
    assert outcome(lines, MUTANTS[NAME].core) == (found.invariant, found.said, found.at_s)
    assert REPLAYS > 100
