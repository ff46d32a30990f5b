"""The runbooks of docs/operations.md "Disasters" that no other test has, on a fleet of real processes."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from llmgw.agent.process import environ
from scripts.fleet import Fleet, wait_for
from scripts.generated import ROOT
from tests.e2e.conftest import Make, counted, fake, model


@pytest.fixture
def fleet(make: Make, tmp_path: Path) -> Fleet:
    starts = tmp_path / "fleet0" / "starts"
    one = make({"alpha": model(counted(fake("--alias", "alpha"), starts))})
    one.start("control", "agent")
    one.ready("alpha")
    return one


def pid(fleet: Fleet) -> int:
    return int(fleet.ready("alpha")["shards"][0]["pid"])


def started(fleet: Fleet) -> int:
    return (fleet.folder / "starts").read_text().count("start")


def test_the_agents_folder_is_lost(fleet: Fleet) -> None:
    """A1, A2: the new one is who the engines say that it is; 0 starts, 0 stops."""
    engine, starts = pid(fleet), started(fleet)
    fleet.kill("agent")
    shutil.rmtree(fleet.folder / "agent")
    fleet.start("agent")
    fleet.back("agent", None)
    assert pid(fleet) == engine
    assert list(fleet.engines()) == [engine]
    assert started(fleet) == starts
    assert "takes the id that its engines carry" in fleet.log("agent").read_text()


def test_the_agents_folder_and_controls_inventory_are_lost_at_once(fleet: Fleet) -> None:
    """A1, A13: nobody remembers anything, and the engine is adopted."""
    engine, starts = pid(fleet), started(fleet)
    fleet.kill("agent")
    fleet.kill("control")
    shutil.rmtree(fleet.folder / "agent")
    for file in fleet.inventory.parent.glob("inventory.db*"):
        file.unlink()
    fleet.start("agent", "control")
    assert pid(fleet) == engine
    assert list(fleet.engines()) == [engine]
    assert started(fleet) == starts


def test_where_it_cannot_know_which_node_it_is_the_page_says_what_to_do(fleet: Fleet) -> None:
    """Another node's id on an engine of the same name: refused with both; the page's lines choose one."""
    engine = pid(fleet)
    before = dict(environ(engine))
    other = subprocess.Popen(
        ["sleep", "600"],
        env={**before, "LLMGW_NODE_ID": "another", "LLMGW_SHARD": "old-1/0"},
        start_new_session=True,
    )
    try:
        fleet.kill("agent")
        folder = fleet.folder / "agent"
        shutil.rmtree(folder)
        fleet.start("agent")
        assert fleet.processes.pop("agent").wait(60)
        said = fleet.log("agent").read_text()
        assert "another (" in said
        assert before["LLMGW_NODE_ID"] in said
        page = (ROOT / "docs/operations.md").read_text()
        lines = re.search(r"```\n(PID=.*?)```", page, re.DOTALL)
        assert lines is not None
        shell = lines[1].replace("/var/lib/llmgw/agent", str(folder)).replace("4711", str(engine))
        subprocess.run(["sh", "-ec", shell.partition("systemctl")[0]], check=True)
        fleet.start("agent")
        fleet.back("agent", None)
        assert pid(fleet) == engine
        assert other.poll() is None
    finally:
        other.kill()
        other.wait()


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
    fleet.processes.pop("control").wait(60)
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
