"""`llmgw token`: the line for the next box, node tokens, the operators' own; with no control running too."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from llmgw.control.node_tokens import NodeTokens
from tests.cli.say import llmgw
from tests.cli.stub import Stub, refused

PIN = f"sha256:{'ab' * 32}"
MADE: dict[str, Any] = {
    "name": "node-1",
    "token": "llmgw-node-s3cret",
    "urls": [f"https://10.0.0.10:8801#{PIN}", f"https://10.1.0.10:8801#{PIN}"],
}
LINE = (
    "LLMGW_NODE_TOKEN=llmgw-node-s3cret llmgw agent --control https://10.0.0.10:8801 "
    f"--pin {PIN} --address auto"
)


def test_only_the_line_is_on_stdout(stub: Stub) -> None:
    stub.answers["POST /api/v1/tokens"] = MADE
    said = llmgw("token")
    assert (said.code, said.out) == (0, f"{LINE}\n")
    assert "https://10.1.0.10:8801 too" in said.err
    assert "token node-1 becomes the next node's own" in said.err
    assert llmgw("token", "new", "box2").code == llmgw("token", "new").code == 0
    assert [body for _, body in stub.sent] == [
        {"name": None, "new": False},
        {"name": "box2", "new": True},
        {"name": None, "new": True},
    ]
    assert json.loads(llmgw("token", "-o", "json").out) == {
        "schema": "llmgw.token/1",
        "name": "node-1",
        "token": "llmgw-node-s3cret",
        "urls": ["https://10.0.0.10:8801", "https://10.1.0.10:8801"],
        "pin": PIN,
        "line": LINE,
    }
    stub.answers["POST /api/v1/tokens"] = MADE | {"urls": ["http://10.0.0.10:8801"]}
    said = llmgw("token")
    assert "--pin" not in said.out
    assert "control speaks plain HTTP" in said.err
    stub.answers["POST /api/v1/tokens"] = refused("control listens on 127.0.0.1:8801, which")
    assert llmgw("token").code == 1
    assert llmgw("token", "new", " ").code == 2


def test_a_list_and_an_end(stub: Stub) -> None:
    one = {"name": "node-1", "node": "box2", "node_id": "77", "shared": False}
    two = {"name": "node-2", "node": None, "node_id": None, "shared": False}
    stub.answers["GET /api/v1/tokens"] = {"tokens": [one, two]}
    assert [line.split(maxsplit=1) for line in llmgw("token", "list").out.splitlines()] == [
        ["TOKEN", "NODE"],
        ["node-1", "box2"],
        ["node-2", "(not used yet)"],
    ]
    said = json.loads(llmgw("token", "list", "-o", "json").out)
    assert said == {"schema": "llmgw.tokens/1", "tokens": [one, two]}
    stub.answers["POST /api/v1/tokens/node-1/revoke"] = {"revoked": "node-1", "nodes": ["box2"]}
    asked = llmgw("token", "revoke", "node-1")
    assert (asked.code, stub.sent) == (2, [])
    assert "its engines keep running; not asked" in asked.err
    said = llmgw("token", "revoke", "node-1", "--yes")
    assert (said.code, said.out) == (0, "revoked node-1\n")
    assert "`llmgw forget box2`" in said.err


def test_one_that_is_not_there_is_not_asked_about(stub: Stub, tmp_path: Path) -> None:
    """A question of what becomes of a node, and then that there is none, is one question too many."""
    stub.answers["GET /api/v1/tokens"] = {"tokens": [{"name": "node-1"}]}
    stub.answers["POST /api/v1/tokens/nod-1/revoke"] = refused(
        "no node token is called nod-1, did you mean node-1?"
    )
    here = llmgw("token", "revoke", "nod-1")
    away = llmgw("token", "revoke", "nod-1", "--inventory", tmp_path / "inventory.db")
    for said in (here, away):
        assert (said.code, said.out) == (1, "")
        assert "not asked" not in said.err
    assert here.err == "llmgw: no node token is called nod-1, did you mean node-1?\n"


def test_with_no_control_running(tmp_path: Path) -> None:
    inventory = ("--inventory", tmp_path / "inventory.db")
    said = llmgw("token", *inventory)
    assert (said.code, said.out) == (1, "")
    assert "no control that other boxes can reach" in said.err
    (tmp_path / "url").write_text(f"https://127.0.0.1:8801#{PIN}\nhttps://10.0.0.10:8801#{PIN}\n")
    out = llmgw("token", *inventory).out
    assert f"--control https://10.0.0.10:8801 --pin {PIN} " in out
    assert llmgw("token", *inventory).out == out
    assert llmgw("token", "new", *inventory).out != out
    tokens = NodeTokens(tmp_path)
    (word,) = [t.token for t in tokens.now().values() if t.name == "node-1"]
    assert out.startswith(f"LLMGW_NODE_TOKEN={word} ")
    assert llmgw("token", "revoke", "node-1", "--yes", *inventory).out == "revoked node-1\n"
    assert [line.split()[0] for line in llmgw("token", "list", *inventory).out.splitlines()] == [
        "TOKEN",
        "node-2",
    ]
    assert llmgw("token", "revoke", "node-1", "--yes", *inventory).code == 1


def test_with_no_control_of_several_running_it_says_how_long_it_counts(tmp_path: Path) -> None:
    """Another control that leads meanwhile goes by its own tokens, and so does whoever leads after it."""
    inventory = ("--inventory", tmp_path / "inventory.db")
    (tmp_path / "url").write_text(f"https://127.0.0.1:8801#{PIN}\nhttps://10.0.0.10:8801#{PIN}\n")
    (tmp_path / "inventory.db.lease").write_text("etcd\n")
    said = llmgw("token", "new", *inventory)
    assert said.code == 0
    warning = "warning: it counts only if no other control of the same etcd leads before this box's"
    assert warning in said.err
    assert warning not in llmgw("token", *inventory).err, "nothing was written"
    said = llmgw("token", "revoke", "node-1", "--yes", *inventory)
    assert (said.code, warning in said.err) == (0, True)


def test_the_operators_own_is_made_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LLMGW_STATE_DIR", str(tmp_path))
    file = tmp_path / "control" / "token"
    assert llmgw("token", "new", "--operator").out == f"{file}\n"
    word = file.read_text()
    assert (len(word), file.stat().st_mode & 0o777) == (44, 0o600)
    said = llmgw("token", "new", "--operator")
    assert (said.code, file.read_text()) == (2, word)
    assert "there is an operators' token in" in said.err
