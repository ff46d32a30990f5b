"""`llmgw key add|list|revoke`: what they send, print and refuse; with no control running too."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

from llmgw.control.store import edit_keys
from tests.cli.say import llmgw
from tests.cli.stub import Stub, refused

Json = dict[str, Any]
ANN: Json = {
    "id": "ann",
    "created_at": "2026-11-30T21:00:00Z",
    "models": ["alpha", "qwen*"],
    "limits": {"in_flight": 4},
    "rights": ["upstream"],
}
BOB: Json = {"id": "bob", "created_at": "", "models": None, "limits": {}, "rights": []}


def test_only_the_key_is_on_stdout(stub: Stub) -> None:
    stub.answers["POST /api/v1/keys"] = {"name": "ann", "key": "llmgw-s3cret", "unmatched": []}
    said = llmgw("key", "add", "ann")
    assert (said.code, said.out) == (0, "llmgw-s3cret\n")
    assert said.err.startswith("llmgw: key ann is shown this once")
    assert "from the first key on every client needs one, on loopback too" in said.err
    limits = ("--in-flight", "4", "--per-minute", "60")
    stub.answers["POST /api/v1/keys"] |= {"unmatched": ["qwne*"], "warning": "the disk is full"}
    said = llmgw("key", "add", "bob", "--model", "a", "--model", "qwne*", "--upstream", *limits)
    assert "no model of the catalog is called qwne*" in said.err
    assert "a restart of control would forget it: the disk is full" in said.err
    plain: Json = {"name": "ann", "models": None, "limits": {}, "rights": []}
    more = {
        "name": "bob",
        "models": ["a", "qwne*"],
        "limits": {"in_flight": 4, "per_minute": 60},
        "rights": ["upstream"],
    }
    assert stub.sent == [("POST /api/v1/keys", plain), ("POST /api/v1/keys", more)]
    said = llmgw("key", "add", "ann", "-o", "json")
    assert json.loads(said.out) == {"schema": "llmgw.key/1", "name": "ann", "key": "llmgw-s3cret"}
    stub.answers["POST /api/v1/keys"] = refused("there is a key called ann already")
    assert (llmgw("key", "add", "ann").code, llmgw("key", "add", "x", "--in-flight", "0").code) == (
        1,
        2,
    )


def test_a_list_through_a_pipe(stub: Stub) -> None:
    stub.answers["GET /api/v1/keys"] = {"keys": [ANN, BOB]}
    assert [line.split() for line in llmgw("key", "list").out.splitlines()[1:]] == [
        ["ann", "alpha,qwen*", "4", "-", "upstream", "2026-11-30T21:00:00Z"],
        ["bob", "all", "-", "-", "-", "-"],
    ]
    said = json.loads(llmgw("key", "list", "-o", "json").out)
    assert said == {"schema": "llmgw.keys/1", "keys": [ANN, BOB]}
    stub.answers["GET /api/v1/keys"] = {"keys": []}
    assert llmgw("key", "list").out == "no API key: `llmgw key add NAME` makes one\n"


def test_a_revocation_wants_a_yes_and_says_what_follows(stub: Stub) -> None:
    """The last key is not like the others: with none left a gateway may serve everybody."""
    stub.answers["GET /api/v1/keys"] = {"keys": [ANN, BOB]}
    said = llmgw("key", "revoke", "ann")
    assert said.code == 2
    assert "clients that use the API key ann will be refused; not asked" in said.err
    stub.answers["GET /api/v1/keys"] = {"keys": [ANN]}
    said = llmgw("key", "revoke", "ann")
    assert said.code == 2
    assert "it is the last one: with none left everybody may ask on loopback" in said.err
    assert stub.sent == []
    stub.answers["POST /api/v1/keys/ann/revoke"] = {"revoked": "ann", "left": 0, "warning": None}
    said = llmgw("key", "revoke", "ann", "--yes")
    assert (said.code, said.out) == (0, "revoked ann\n")
    assert "it was the last one" in said.err
    assert stub.sent == [("POST /api/v1/keys/ann/revoke", {"last": True})]
    stub.answers["POST /api/v1/keys/ann/revoke"]["left"] = 1
    assert llmgw("key", "revoke", "ann", "--yes").err == ""
    assert llmgw("key", "revoke", " ", "--yes").code == 2


def test_a_key_that_nobody_has_is_not_asked_about(stub: Stub) -> None:
    stub.answers["GET /api/v1/keys"] = {"keys": [ANN]}
    stub.answers["POST /api/v1/keys/anne/revoke"] = refused(
        "there is no API key called anne", "did you mean ann?", 404
    )
    said = llmgw("key", "revoke", "anne")
    assert (said.code, said.out) == (1, "")
    assert said.err == "llmgw: there is no API key called anne\nhint: did you mean ann?\n"


def test_the_first_key_is_made_before_control_starts(tmp_path: Path) -> None:
    """A gateway beyond loopback starts with a key only, so there must be a way to make one."""
    file = str(tmp_path / "inventory.db")
    said = llmgw("key", "add", "ann", "--inventory", file)
    assert said.code == 0
    (key,) = edit_keys(tmp_path / "inventory.db", lambda there, _: (there, list(there.values())))
    assert key.sha256 == hashlib.sha256(said.out.strip().encode()).hexdigest()
    assert llmgw("key", "list", "--inventory", file).out.splitlines()[1].split()[:2] == [
        "ann",
        "all",
    ]
    again = llmgw("key", "add", "ann", "--inventory", file)
    assert (again.code, again.out) == (1, "")
    assert "there is a key called ann already" in again.err
    wrong = llmgw("key", "revoke", "anne", "--inventory", file, "--yes")
    assert (wrong.code, "did you mean ann?" in wrong.err) == (1, True)
    assert llmgw("key", "revoke", "ann", "--inventory", file, "--yes").out == "revoked ann\n"
    assert (
        llmgw("key", "list", "--inventory", file).out
        == "no API key: `llmgw key add NAME` makes one\n"
    )
