"""The simulator bites: cores with one law taken out each are found within the seeds of CI, by the law they break."""

from __future__ import annotations

from collections import Counter

import pytest

from tests.sim.mutants import MUTANTS
from tests.sim.run import Failure, run_seed
from tests.sim.simulation import Core

#: Of the seeds of CI, from the first on.
SEEDS = 300
#: Where the later ones were found last; tried first, for the others before it take most of the time.
FOUND = {
    "drains end at once": 17,
    "known by name": 20,
    "liveness first": 12,
    "a pid is enough": 140,
    "ending holds nothing": 5,
    "unknown is different": 47,
    "renewed on merge": 26,
    "deaf to the operator": 34,
    "patient for ever": 9,
    "impatient": 30,
    "undrained": 58,
    "restarts alone": 10,
}


@pytest.mark.parametrize("name", MUTANTS)
def test_a_core_without_this_law_is_found(name: str) -> None:
    """Else nobody watches that law; the number of the statement is in the mutant's docstring."""
    mutant = MUTANTS[name]
    others: Counter[str] = Counter()
    for seed in (FOUND.get(name, 0), *range(SEEDS)):
        said = _failure(seed, mutant.core)
        if said is None:
            continue
        if said.invariant in mutant.found_by:
            return
        others[said.invariant] += 1
    pytest.fail(
        f"{SEEDS} histories, and none broke {mutant.found_by} for: {name}; others: {others}"
    )


def test_there_are_enough_of_them() -> None:
    assert len(MUTANTS) >= 10


def _failure(seed: int, core: Core) -> Failure | None:
    try:
        run_seed(seed, core)
    except Failure as e:
        return e
    return None
