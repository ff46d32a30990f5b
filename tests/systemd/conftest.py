"""One booted machine with one fleet in it, for all tests that need a real systemd."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.systemd.fleet import UnitFleet


@pytest.fixture(scope="module")
def booted(tmp_path_factory: pytest.TempPathFactory) -> Iterator[UnitFleet]:
    fleet = UnitFleet(tmp_path_factory.mktemp("systemd"))
    try:
        fleet.boot()
        yield fleet
    finally:
        fleet.close()


@pytest.fixture
def fleet(booted: UnitFleet) -> UnitFleet:
    """As every test finds it: all units run, both engines are ready."""
    booted.whole()
    return booted
