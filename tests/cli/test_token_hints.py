"""Whoever is told to run something may run it: the hints of `llmgw token`, as a newcomer meets them one by one."""

from __future__ import annotations

from pathlib import Path

import pytest

from scripts.ports import free_port
from tests.cli.say import llmgw
from tests.cli.stub import Stub, refused
from tests.cli.test_token import MADE, PIN


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Of a box on which a control ran, and none does now."""
    monkeypatch.setenv("LLMGW_STATE_DIR", str(tmp_path))
    monkeypatch.delenv("LLMGW_CONTROL", raising=False)
    made = tmp_path / "control"
    made.mkdir()
    (made / "url").write_text(f"http://127.0.0.1:{free_port()}\n")
    return made


def test_with_control_down_its_files_are_found_as_control_finds_them(folder: Path) -> None:
    here = (folder / "url").read_text().strip()
    (folder / "url").write_text(f"{here}\nhttps://10.0.0.10:8801#{PIN}\n")
    said = llmgw("token")
    assert said.code == 0
    assert f"--control https://10.0.0.10:8801 --pin {PIN} " in said.out
    assert f"connection refused; going by its files in {folder}" in said.err
    assert llmgw("token", "list").out.split()[2] == "node-1"
    assert llmgw("token", "revoke", "node-1", "--yes").out == "revoked node-1\n"
    assert llmgw("token", "list").out == "no node token: `llmgw token` makes one\n"


def test_the_inventory_that_control_was_told_of(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = folder.parent / "other"
    monkeypatch.setenv("LLMGW_INVENTORY", str(other / "fleet.db"))
    assert llmgw("token", "new", "--operator").out == f"{other / 'token'}\n"
    other.joinpath("url").write_text(f"http://127.0.0.1:{free_port()}\n")
    said = llmgw("token", "new", "box2")
    assert said.code == 0
    assert (other / "node-token").exists()


def test_no_control_has_run_here_at_all(folder: Path) -> None:
    """The way is told whole, in the order in which it works."""
    (folder / "url").unlink()
    first = llmgw("token", "--control", f"http://127.0.0.1:{free_port()}")
    assert first.code == 3, "one that was named is not this box's"
    (folder / "url").write_text(f"http://127.0.0.1:{free_port()}\n")
    said = llmgw("token")
    assert (said.code, said.out) == (1, "")
    assert "`llmgw token new --operator`, then `llmgw control --listen 0.0.0.0:8801`" in said.err
    assert not (folder / "node-token").exists()
    assert llmgw("token", "new", "--operator").code == 0
    said = llmgw("token", "new", "--operator")
    assert f"`rm {folder / 'token'}` first" in said.err
    # From here on agents of this box want a token too, and get one.
    said = llmgw("token")
    assert said.code == 0
    assert said.out.endswith(f" llmgw agent --control {(folder / 'url').read_text()}")
    assert "for an agent on this box" in said.err
    port = (folder / "url").read_text().strip().rpartition(":")[2]
    assert f"`llmgw control --listen 0.0.0.0:{port}`" in said.err


def test_a_line_for_this_box_alone(stub: Stub) -> None:
    stub.answers["POST /api/v1/tokens"] = MADE | {"urls": ["http://127.0.0.1:8801"]}
    said = llmgw("token")
    assert said.out == (
        "LLMGW_NODE_TOKEN=llmgw-node-s3cret llmgw agent --control http://127.0.0.1:8801\n"
    )
    assert "for an agent on this box" in said.err
    assert "plain HTTP" not in said.err, "nobody reads along on loopback"


def test_an_operators_token_beside_a_control_that_runs(stub: Stub, folder: Path) -> None:
    """Lost, and made anew: the one that runs goes by the old one, and refuses every verb until it is restarted."""
    (folder / "url").write_text(f"{stub.url}\n")
    said = llmgw("token", "new", "--operator")
    assert said.code == 0
    assert "restart control now" in said.err
    assert "engines and the gateway keep running" in said.err


def test_what_an_environment_hides(
    stub: Stub, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An old LLMGW_TOKEN comes before the file that has the right one."""
    stub.answers["POST /api/v1/tokens"] = refused("the token is wrong", status=401)
    (folder / "url").write_text(f"{stub.url}\n")
    (folder / "token").write_text("right\n")
    monkeypatch.setenv("LLMGW_TOKEN", "old")
    said = llmgw("token")
    assert said.code == 4
    assert f"hint: `unset LLMGW_TOKEN`: {folder / 'token'} has another" in said.err
    monkeypatch.setenv("LLMGW_TOKEN", "right")
    assert "unset" not in llmgw("token").err
    monkeypatch.delenv("LLMGW_TOKEN")
    said = llmgw("token")
    assert f"{folder / 'token'} has another token than control was started with" in said.err
    assert "restart control" in said.err


def test_the_token_of_up_comes_back(stub: Stub) -> None:
    stub.answers["POST /api/v1/tokens/up/revoke"] = {"revoked": "up", "nodes": ["box1"]}
    said = llmgw("token", "revoke", "up", "--yes")
    assert "`llmgw up` makes another for its agent when it is started again" in said.err
    assert "llmgw forget" not in said.err
