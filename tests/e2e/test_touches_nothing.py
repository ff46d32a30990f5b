"""`llmgw adopt --dry-run` changes nothing anywhere, as the kernel sees it: from each source, call by call (A53).

No file is opened for writing, made, removed or locked, no socket is bound, nobody is asked but those it says it asks
(A54), no GPU is opened, and every folder is as it was. What running parts answer is read without a write as well.
"""

import json
import os
import shutil
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from scripts.fleet import Fleet
from tests.control.test_store import KILLED_WRITER
from tests.e2e.conftest import fake, model, write_catalog
from tests.e2e.traced import Traced, settled_down, snapshot, traced


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    """Control, agent and one engine; the tests below go on from what the one before left running."""
    folder = tmp_path_factory.mktemp("fleet")
    catalog = write_catalog(folder / "catalog.yaml", {"alpha": model(fake("--alias", "alpha"))})
    made = Fleet(folder, catalog)
    made.start("control", "agent")
    made.ready("alpha")
    settled_down(made)
    yield made
    made.close()


def look(fleet: Fleet, tmp_path: Path, *words: object) -> Traced:
    """The dry run under strace, with the folders of everybody looked at before and after."""
    home = tmp_path / "home"
    home.mkdir(exist_ok=True)
    env = fleet.env | {"HOME": str(home), "TMPDIR": str(tmp_path / "tmp")}
    (tmp_path / "tmp").mkdir(exist_ok=True)
    folders = (fleet.folder, home, tmp_path / "tmp")
    before = snapshot(*folders)
    said = traced(tmp_path, env, "adopt", "--dry-run", "-o", "json", *words)
    assert snapshot(*folders) == before
    assert said.changes == []
    gpu = ("/dev/nvidia", "/dev/dri", "/dev/kfd", "libnvidia", "libcuda")
    assert not [p for p in said.opened if any(word in p for word in gpu)]
    return said


def test_the_trace_shows_what_a_command_changes(tmp_path: Path) -> None:
    """Without --dry-run the same words write, so that an empty list of changes says something."""
    report = tmp_path / "report.json"
    report.write_text('{"node": "box1", "node_id": "id", "reattached": true}')
    catalog = write_catalog(tmp_path / "catalog.yaml", {})
    words = ["adopt", "--report", report, "--catalog", catalog, "--inventory", tmp_path / "i.db"]
    said = traced(tmp_path, dict(os.environ), *words)
    assert {c.partition("(")[0] for c in said.changes} >= {"openat", "flock", "pwrite64", "unlink"}


def source(said: Traced) -> tuple[int, str, list[str]]:
    document = json.loads(said.stdout)
    return said.returncode, document["source"], [s["verdict"] for s in document["shards"]]


def at(fleet: Fleet, *parts: str) -> list[str]:
    return [fleet.urls[part].removeprefix("http://") for part in parts]


def test_a53_a54_the_running_control_is_asked_and_nobody_else(fleet: Fleet, tmp_path: Path) -> None:
    said = look(fleet, tmp_path)
    assert source(said) == (0, "control", ["adopt"])
    assert said.peers == at(fleet, "control")
    edited = write_catalog(tmp_path / "edited.yaml", {"other": model(["/bin/true"], least=0)})
    said = look(fleet, tmp_path, "--catalog", edited)
    assert source(said) == (1, "control", ["unclaimed"])
    assert said.peers == at(fleet, "control")


def test_a53_a54_report_files_are_read_and_nobody_is_asked(fleet: Fleet, tmp_path: Path) -> None:
    report = tmp_path / "report.json"
    report.write_text(fleet.http.get(f"{fleet.urls['agent']}/v1/inventory").text)
    said = look(fleet, tmp_path, "--report", report)
    assert source(said) == (0, "file", ["adopt"])
    assert said.peers == []
    files = tmp_path / "files"
    files.mkdir()
    shutil.copy(fleet.inventory, files / "copy.db")
    shutil.copy(fleet.catalog, files / "catalog.yaml")
    before = snapshot(files)
    named = ["--inventory", files / "copy.db", "--catalog", files / "catalog.yaml"]
    said = look(fleet, tmp_path, "--report", report, *named)
    assert source(said) == (0, "file", ["adopt"])
    assert said.peers == []
    assert snapshot(files) == before


def test_a53_what_control_and_agent_answer_is_read_without_a_write(fleet: Fleet) -> None:
    """`GET plan` and `POST plan` of a running control, `GET /v1/inventory` of an agent, status and events of both."""
    before = snapshot(fleet.folder)
    content = fleet.inventory.read_bytes()
    control, agent = fleet.urls["control"], fleet.urls["agent"]
    for path in ("plan", "status", "leader", "events"):
        assert fleet.http.get(f"{control}/api/v1/{path}").status_code == 200, path
    body = {"catalog": {"catalog.yaml": "version: 1\nmodels: {}\n"}}
    plan = fleet.http.post(f"{control}/api/v1/plan", json=body).json()
    assert plan["disturbs"] == 1
    for path in ("inventory", "status"):
        assert fleet.http.get(f"{agent}/v1/{path}").status_code == 200, path
    assert snapshot(fleet.folder) == before
    assert fleet.inventory.read_bytes() == content


def test_a53_a54_with_control_away_its_agents_are_asked(fleet: Fleet, tmp_path: Path) -> None:
    """By the addresses in the inventory file, which is read beside whatever a killed control left there (F42)."""
    fleet.kill("control")
    killed = [sys.executable, "-c", KILLED_WRITER, str(fleet.inventory)]
    assert subprocess.run(killed, check=False).returncode == -signal.SIGKILL
    assert fleet.inventory.with_name("inventory.db-journal").exists()
    said = look(fleet, tmp_path)
    assert source(said) == (0, "agents", ["adopt"])
    assert said.peers == at(fleet, "control", "agent")

    with closing(sqlite3.connect(fleet.inventory, isolation_level=None)) as other:
        other.execute("BEGIN EXCLUSIVE")
        said = look(fleet, tmp_path)
        assert source(said) == (0, "agents", ["adopt"])
        other.execute("ROLLBACK")

    with closing(sqlite3.connect(fleet.inventory)) as other:
        other.execute("PRAGMA journal_mode=WAL")
    said = look(fleet, tmp_path)
    assert source(said) == (0, "agents", ["adopt"])

    fleet.inventory.write_bytes(os.urandom(20_000))
    said = look(fleet, tmp_path)
    assert said.returncode == 3
    assert "empty history" in said.stderr


def test_a53_a55_where_nothing_is_nothing_is_made(tmp_path: Path) -> None:
    """No control, no agent, no state dir: exit 3, and no folder for the next question either."""
    fleet = Fleet(tmp_path / "nowhere", tmp_path / "catalog.yaml")
    write_catalog(fleet.catalog, {"alpha": model(["/bin/true"])})
    (tmp_path / "home").mkdir()
    env = fleet.env | {"HOME": str(tmp_path / "home")}
    # Nor by Python: what it caches of modules at their first import it does not write again.
    env |= {"PYTHONDONTWRITEBYTECODE": "", "PYTHONPYCACHEPREFIX": str(tmp_path / "pycache")}
    traced(tmp_path, env, "adopt", "--dry-run")
    said = traced(tmp_path, env, "adopt", "--dry-run")
    assert said.returncode == 3
    assert said.changes == []
    assert not fleet.folder.exists()
    assert list((tmp_path / "home").iterdir()) == []
    fleet.http.close()
