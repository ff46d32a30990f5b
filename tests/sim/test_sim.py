"""Random histories of a whole fleet, replayed by their seed (design.md 9 "Simulator").

SIM_SEEDS=N runs more of them, SIM_FIRST=N others; `python -m tests.sim --soak MINUTES` as many as go into the time.
A failure prints the whole trace, the invariant and how to replay it.
"""

from __future__ import annotations

import os
import sys
from collections import Counter

import pytest

from tests.sim.mutants import MUTANTS
from tests.sim.run import Failure, Total, run_seed
from tests.sim.simulation import Core

FIRST = int(os.environ.get("SIM_FIRST", "0"))
COUNT = int(os.environ.get("SIM_SEEDS", "500"))
CHUNK = 25
CHUNKS = [range(i, min(i + CHUNK, FIRST + COUNT)) for i in range(FIRST, FIRST + COUNT, CHUNK)]

#: Judged often enough to mean something; the figures are of 500 histories, and far above these.
WATCHED = (
    "freed means no process",
    "no byte of GPU memory twice",
    "no effect of a lower epoch",
    "no port twice",
    "no stream is cut",
    "no whole GPU twice",
    "nothing is started or disturbed while settling",
    "nothing is started twice",
    "nothing not ours is signalled",
    "one incarnation",
    "one tree a shard",
    "every running engine is owned, stopping or quarantined",
)


class Sum:
    total = Total()


def words(chunk: range) -> str:
    return f"{chunk.start}-{chunk.stop - 1}"


@pytest.mark.parametrize("chunk", CHUNKS, ids=words)
def test_no_history_breaks_an_invariant(chunk: range) -> None:
    for seed in chunk:
        try:
            Sum.total.add(run_seed(seed))
        except Failure as e:
            pytest.fail(str(e), pytrace=False)


def test_nothing_was_restarted_that_need_not_have_been(capsys: pytest.CaptureFixture[str]) -> None:
    """The headline figure, and that the histories had something in them."""
    if not Sum.total.seeds:
        Sum.total.add(run_seed(FIRST))
    total = Sum.total
    with capsys.disabled():
        sys.stdout.write(f"\n{total}\n")
    assert total.needless == 0
    assert total.spawned > 2 * total.seeds
    if total.seeds >= 100:
        unwatched = [name for name in WATCHED if total.checks[name] < 50]
        assert not unwatched, f"{unwatched} were hardly judged: {Counter(total.checks)}"


def test_a_seed_is_one_history() -> None:
    assert run_seed(FIRST).story() == run_seed(FIRST).story()


@pytest.mark.parametrize("name", MUTANTS)
def test_the_simulator_bites(name: str) -> None:
    """A core with one law taken out breaks an invariant within the seeds of CI; else nobody watches that law."""
    mutant = MUTANTS[name]
    others: Counter[str] = Counter()
    for seed in range(500):
        said = _failure(seed, mutant.core)
        if said is None:
            continue
        if said.invariant in mutant.found_by:
            return
        others[said.invariant] += 1
    pytest.fail(f"500 histories, and none broke {mutant.found_by} for: {name}; others: {others}")


def _failure(seed: int, core: Core) -> Failure | None:
    try:
        run_seed(seed, core)
    except Failure as e:
        return e
    return None
