"""Control and agent die at every effect boundary of their code, and what runs is what should.

A part is started with `LLMGW_CRASH_AT` and dies by its own hand, in its next life at the second passing, then at the
third, and is started again without it. Truth is read from /proc after every step: each wanted engine runs once, the
others' processes are those of before, no port or GPU is held twice, an engine was started as often as the scenario
needs one and never more; journal, inventory, status and dry run agree with that. A point that nobody comes to fails.
"""

import random
from collections.abc import Iterator

import pytest

from llmgw.agent import crash as of_agent
from llmgw.control import crash as of_control
from tests.e2e.matrix import WAYS, Cell, Matrix, cell, passings
from tests.engines import fake_nvml

SEED, PAIRS = 57, 8


def pairs() -> list[Cell]:
    """Both sides in one history, at points that have nothing to do with each other."""
    rolled = random.Random(SEED)

    def one(part: str, names: tuple[str, ...]) -> tuple[str, tuple[str, ...]]:
        name = rolled.choice([n for n in names if n not in WAYS])
        return part, (f"{name}:{rolled.randint(1, passings(name))}",)

    both = (("control", of_control.CRASH_POINTS), ("agent", of_agent.DAY))
    return [Cell(tuple(one(*side) for side in both)) for _ in range(PAIRS)]


def cells(part: str, names: tuple[str, ...]) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("cell", [cell(part, name) for name in names], ids=names)


@pytest.fixture(scope="module")
def matrix(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Matrix]:
    """All cells that are asked for run beside each other from the first one on; each test waits for its own."""
    nvml = fake_nvml.build(tmp_path_factory.mktemp("nvml"))
    if nvml is None:
        pytest.skip(fake_nvml.why_not() or "")
    made = Matrix(tmp_path_factory.mktemp("matrix"), nvml)
    mine = [item for item in request.session.items if item.path == request.path]
    made.begin([item.callspec.params["cell"] for item in mine if hasattr(item, "callspec")])
    yield made
    made.close()


@cells("control", of_control.START)
def test_control_dies_while_it_starts(matrix: Matrix, cell: Cell) -> None:
    """A2, F6: what runs is adopted, by whoever comes up at last; a file moved aside (F14), restored (F16, F33), half
    made, or a lock that was removed (F17) changes nothing of that. One gateway, whoever had spawned it.
    """
    matrix.result(cell)


@cells("control", of_control.HEARD)
def test_control_dies_on_what_it_heard(matrix: Matrix, cell: Cell) -> None:
    """A8, A11, F58: a registration that was folded and never answered is told again. F3: what was acknowledged runs.
    A9, F12: a catalog is taken whole or not at all.
    """
    matrix.result(cell)


@cells("control", of_control.PASS)
def test_control_dies_between_deciding_and_telling(matrix: Matrix, cell: Cell) -> None:
    """F1: placed and never sent starts nothing twice. F2: sent and not acknowledged is adopted. F79: a stop that was
    lost is repeated. A50, A65: routes and drains go on from any table. A53: a dry run of what it left changes nothing.
    """
    matrix.result(cell)


@cells("control", of_control.END)
def test_control_dies_while_it_ends(matrix: Matrix, cell: Cell) -> None:
    """F3: the last picture is a convenience; without it the fleet tells the same."""
    matrix.result(cell)


@cells("agent", of_agent.START)
def test_agent_dies_while_it_reattaches(matrix: Matrix, cell: Cell) -> None:
    """F35, A13: half re-attached tells nobody anything, and the next one begins anew; nothing is signalled. F42: a
    record set aside costs its engine nothing; A39: one that tells of no process is held, and asked about again.
    """
    matrix.result(cell)


@cells("agent", of_agent.TALK)
def test_agent_dies_in_its_talk_with_control(matrix: Matrix, cell: Cell) -> None:
    """A42, F57: an order is journaled and reported, or of a session that is over and given again. F58: a lost answer.
    F21: an epoch is on disk before anything is obeyed under it.
    """
    matrix.result(cell)


@cells("agent", of_agent.STARTS)
def test_agent_dies_while_it_starts_an_engine(matrix: Matrix, cell: Cell) -> None:
    """F43: between exec and journal the engine is found by its markers. F44: after the intent alone there is none, and
    one is placed afresh. F42: a half written record is none. F49: engines write to files, also while one is rotated.
    """
    matrix.result(cell)


@cells("agent", of_agent.ENDS)
def test_agent_dies_while_an_engine_ends(matrix: Matrix, cell: Cell) -> None:
    """F79: a stop goes on after the agent's death, on its journal. A43: its port and GPU are nobody's before it is
    gone. F37: an end that nobody saw is control's to decide.
    """
    matrix.result(cell)


@cells("agent", of_agent.SWAP)
def test_agent_dies_between_an_end_and_the_start_that_waits_for_it(
    matrix: Matrix, cell: Cell
) -> None:
    """F1, A64: what it kept back is in no journal; control orders it again, and it is started once."""
    matrix.result(cell)


@pytest.mark.parametrize("cell", pairs(), ids=str)
def test_both_die(matrix: Matrix, cell: Cell) -> None:
    """F36: an agent that comes back while control is down keeps what runs, and control finds it so."""
    matrix.result(cell)
