"""The runbooks of docs/operations.md "Disasters" that no other test has, on a fleet of real processes."""

from __future__ import annotations

import re
import shutil
import subprocess

import pytest

from scripts.fleet import Fleet, wait_for
from scripts.generated import ROOT
from tests.e2e.conftest import Make, fake, model


@pytest.fixture
def fleet(make: Make) -> Fleet:
    one = make({"alpha": model(fake("--alias", "alpha"))})
    one.start("control", "agent")
    one.ready("alpha")
    return one


def pid(fleet: Fleet) -> int:
    return int(fleet.ready("alpha")["shards"][0]["pid"])


def test_the_agents_folder_is_lost(fleet: Fleet) -> None:
    """The page's own lines give the new one the old node's id, out of an engine's environment: it is found by that."""
    engine = pid(fleet)
    fleet.kill("agent")
    folder = fleet.folder / "agent"
    shutil.rmtree(folder)
    lines = re.search(r"```\n(PID=.*?)```", (ROOT / "docs/operations.md").read_text(), re.DOTALL)
    assert lines is not None
    shell = lines[1].replace("/var/lib/llmgw/agent", str(folder)).replace("4711", str(engine))
    subprocess.run(["sh", "-ec", shell.partition("systemctl")[0]], check=True)
    old = fleet.life("agent")
    fleet.start("agent")
    fleet.back("agent", old)
    assert pid(fleet) == engine
    assert list(fleet.engines()) == [engine]


def test_controls_folder_is_lost(fleet: Fleet) -> None:
    engine = pid(fleet)
    gateway = fleet.gateway_pid()
    assert gateway is not None
    fleet.kill("control")
    fleet.kill_pid(gateway)
    shutil.rmtree(fleet.folder / "control")
    fleet.start("control")
    assert pid(fleet) == engine
    assert list(fleet.engines()) == [engine]


def test_an_old_backup_is_put_back(fleet: Fleet) -> None:
    """Its epoch and its picture are old: the agents' word counts."""
    engine = pid(fleet)
    backup = fleet.folder / "backup.db"
    assert fleet.llmgw("down").returncode == 0
    shutil.copy(fleet.inventory, backup)
    fleet.processes.pop("control").wait(20)
    for _ in range(2):  # epochs go on after the backup
        fleet.start("control")
        fleet.ready("alpha")
        fleet.kill("control")
    for file in fleet.inventory.parent.glob("inventory.db*"):
        file.unlink()
    shutil.copy(backup, fleet.inventory)
    fleet.start("control")
    assert pid(fleet) == engine
    assert list(fleet.engines()) == [engine]
    found = wait_for(lambda: (fleet.status() or {}).get("leader"), "a leader")
    assert found["epoch"] > 3
