"""A rig for every test that wants one, made-up GPUs, and a performer alone."""

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from llmgw.agent import process
from llmgw.core.types.record import Record
from tests.agent.cards import Cards
from tests.agent.perform_rig import Bench, running
from tests.agent.rig import Rig
from tests.engines import fake_nvml


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[Rig]:
    rig = Rig(tmp_path)
    yield rig
    rig.close()


@pytest.fixture(scope="session")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the fake libnvidia-ml.so.1."""
    why = fake_nvml.why_not()
    if why:
        pytest.skip(why)
    folder = fake_nvml.build(tmp_path_factory.mktemp("nvml"))
    assert folder is not None
    return folder


@pytest.fixture
def cards(tmp_path: Path, library: Path) -> Cards:
    return Cards(tmp_path / "gpus.json", library)


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return Bench(tmp_path)


@pytest.fixture
def engine() -> Iterator[Record]:
    """A running process and the record of it."""
    child = subprocess.Popen(["sleep", "60"], start_new_session=True)
    stat = process.read_stat(child.pid)
    assert stat is not None
    yield running(child.pid, stat.ticks)
    child.kill()
    child.wait()
