"""Was the kernel out of memory just now: /proc/vmstat, as it is and as it might be."""

from __future__ import annotations

from pathlib import Path

import pytest

from llmgw.agent import oom
from llmgw.agent.oom import Ooms


def test_a_kill_is_recent_for_a_minute(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """F80: the count of before is that of a minute ago, for a big process takes its time to end."""
    vmstat, now = tmp_path / "vmstat", [100.0]
    monkeypatch.setattr(oom, "VMSTAT", vmstat)
    monkeypatch.setattr("time.monotonic", lambda: now[0])

    def count(kills: int) -> None:
        vmstat.write_text(f"pgfault 5\noom_kill {kills}\noom_kill_x 9\n")

    count(3)
    ooms = Ooms()
    assert ooms.recent() is False
    count(4)
    assert ooms.recent() is True
    for _ in range(11):
        now[0] += 5.0
        ooms.note()
    assert ooms.recent() is True
    for _ in range(3):
        now[0] += 5.0
        ooms.note()
    assert ooms.recent() is False


@pytest.mark.parametrize("text", [None, "pgfault 5\n"], ids=["no file", "an old kernel"])
def test_where_the_kernel_does_not_tell(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str | None
) -> None:
    monkeypatch.setattr(oom, "VMSTAT", tmp_path / "vmstat")
    if text:
        (tmp_path / "vmstat").write_text(text)
    ooms = Ooms()
    ooms.note()
    assert ooms.recent() is None


def test_this_kernel_tells() -> None:
    """Since Linux 4.13."""
    assert Ooms().recent() is False
