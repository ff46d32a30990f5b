"""A rig for every test that wants one."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.agent.rig import Rig


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[Rig]:
    rig = Rig(tmp_path)
    yield rig
    rig.close()
