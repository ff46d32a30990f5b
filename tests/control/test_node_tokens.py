"""Node tokens: each is one node's, from its first registration on; revoked it is worth nothing at once (http.md)."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest

from llmgw.control import node_tokens
from llmgw.control.guard import Tokens
from llmgw.control.node_tokens import ANYONE, NodeToken, NodeTokens, added, claimed, without
from llmgw.core.types.messages import NodeReport
from llmgw.errors import LlmgwError, UnauthorisedError, UsageError

AGENT, OPERATOR = "/agent/v1/register", "/api/v1/status"


def report(node: str, node_id: str) -> NodeReport:
    return NodeReport(node=node, node_id=node_id)


def made(folder: Path, *names: str) -> tuple[NodeTokens, dict[str, str]]:
    tokens = NodeTokens(folder)
    return tokens, {name: tokens.edit(partial(_added, name)).token for name in names}


def _added(name: str, there: node_tokens.Tokens) -> tuple[node_tokens.Tokens, NodeToken]:
    return added(there, name)


def test_the_next_box_gets_the_one_that_nobody_has_used() -> None:
    tokens, first = added({}, None)
    assert first.name == "node-1"
    assert added(tokens, None) == (tokens, first)
    tokens = claimed(tokens, "node-1", report("box2", "id2"))
    tokens, second = added(tokens, None)
    assert second.name == "node-2"
    assert second.token != first.token
    tokens, third = added(tokens, None, new=True)
    assert third.name == "node-3"
    with pytest.raises(LlmgwError, match="a node token called node-3 already"):
        added(tokens, "node-3")
    for wrong in ("", "a b", "shared", "-x"):
        with pytest.raises(UsageError, match="no name for a node token"):
            added(tokens, wrong)
    with pytest.raises(LlmgwError, match="no node token called node-4") as e:
        without(tokens, "node-4")
    assert "did you mean node-" in e.value.hint


def test_a_node_does_not_pose_as_another() -> None:
    """By another node's id, by its name, with its own token, with a fresh one and with the shared one."""
    tokens, _ = added({}, "one")
    tokens, _ = added(tokens, "two")
    tokens, _ = added(tokens, "fresh")
    tokens = claimed(tokens, "one", report("box1", "id1"))
    tokens = claimed(tokens, "two", report("box2", "id2"))
    assert claimed(tokens, "one", report("box1", "id1")) is tokens
    with pytest.raises(LlmgwError, match="box1 refused: its token two belongs to box2") as e:
        claimed(tokens, "two", report("box1", "id1"))
    assert (e.value.status, e.value.code) == (409, "not_your_token")
    for used in ("fresh", ""):
        with pytest.raises(
            LlmgwError, match="its node id belongs to box1, which joined with the token one"
        ):
            claimed(tokens, used, report("evil", "id1"))
        with pytest.raises(LlmgwError, match="its name belongs to box1"):
            claimed(tokens, used, report("box1", "id9"))
    with pytest.raises(LlmgwError, match="its name belongs to box1"):
        claimed(tokens, "two", report("box1", "id2"))
    # Its own name may change, and revoking is the way to set a box up anew.
    tokens = claimed(tokens, "one", report("renamed", "id1"))
    assert tokens["one"].node == "renamed"
    assert claimed(without(tokens, "one"), "fresh", report("box1", "id1"))["fresh"].node == "box1"
    assert claimed(tokens, "", report("box7", "id7")) is tokens


def test_up_has_one_for_its_own_agent() -> None:
    """The one that it has, or that is its node's; else a new one in place of its last, which nobody else has."""
    tokens, first = node_tokens.for_up({}, "", "")
    assert (first.name, first.node_id) == ("up", "")
    assert node_tokens.for_up(tokens, first.token, "id1") == (tokens, first)
    tokens = claimed(tokens, "up", report("box1", "id1"))
    assert node_tokens.for_up(tokens, first.token, "id1")[0] is tokens
    # Its word was lost, and its identity is the same: what is bound to that counts.
    assert node_tokens.for_up(tokens, "", "id1")[1].token == first.token
    # Its folder is new, or the token was revoked: another, and no node is shut out by what is left of the old one.
    for there, word, node_id in (
        (tokens, "", ""),
        (tokens, first.token, "id2"),
        ({}, first.token, ""),
    ):
        now, other = node_tokens.for_up(there, word, node_id)
        assert other.token != first.token
        assert list(now) == ["up"]
        assert claimed(now, "up", report("box1", "id2"))["up"].node_id == "id2"
    # It joined this control by a line before, as agents do.
    named, line = added({}, "box1")
    named = claimed(named, "box1", report("box1", "id1"))
    assert node_tokens.for_up(named, "other", "id1")[1].token == line.token
    shared = {"shared": NodeToken(name="shared", token="by-hand", shared=True)}
    assert node_tokens.for_up(shared, "by-hand", "id1")[1].name == "shared"
    with pytest.raises(UsageError, match="no name for a node token"):
        added({}, "up")


def test_the_file_is_read_again_when_it_is_another_and_survives_nonsense(tmp_path: Path) -> None:
    ours, words = made(tmp_path, "one")
    theirs = NodeTokens(tmp_path)
    assert theirs.known(words["one"]) == "one"
    ours.edit(lambda there: (without(there, "one"), None))
    assert theirs.known(words["one"]) == ""
    assert theirs.present
    assert (tmp_path / "node-token").stat().st_mode & 0o777 == 0o600
    ours.edit(lambda there: added(there, "two"))
    known = theirs.now()
    (tmp_path / "node-token").write_bytes(b'{"tokens": 7}')
    assert theirs.now() == known, "who was let in before still is"
    with pytest.raises(UsageError, match=r"node tokens in .* cannot be read"):
        NodeTokens(tmp_path).now()
    (tmp_path / "node-token").unlink()
    assert not theirs.present


def test_one_word_by_hand_is_everybodys_and_stays_so(tmp_path: Path) -> None:
    (tmp_path / "node-token").write_text("s3cret\n")
    assert node_tokens.shared(tmp_path) == "s3cret"
    tokens, words = made(tmp_path, "box2")
    assert node_tokens.shared(tmp_path) == "s3cret"
    assert [t["name"] for t in node_tokens.shown(tokens.now())] == ["shared", "box2"]
    tokens.claim("", report("box1", "id1"))
    tokens.claim("box2", report("box2", "id2"))
    assert (tokens.of("id1"), tokens.of("id2")) == ("", words["box2"])
    assert NodeTokens(tmp_path).now()["box2"].node == "box2"


def test_who_may_ask(tmp_path: Path) -> None:
    named, words = made(tmp_path, "one")
    wide = Tokens("op", ["env"], named, wide=True)
    assert wide.check(AGENT, words["one"]) == "one"
    assert wide.check(AGENT, "env") == ""
    assert wide.check(AGENT, "op") == wide.check(OPERATOR, "op") == ANYONE
    for path, given in ((AGENT, ""), (AGENT, "no"), (OPERATOR, words["one"]), (OPERATOR, "env")):
        with pytest.raises(UnauthorisedError):
            wide.check(path, given)
    named.edit(lambda there: (without(there, "one"), None))
    with pytest.raises(UnauthorisedError, match="the token is wrong"):
        wide.check(AGENT, words["one"])
    # With --insecure and nothing else: once there were node tokens, none at all is not everybody.
    bare = Tokens("", [], named, wide=True)
    with pytest.raises(UnauthorisedError, match="none was sent"):
        bare.check(AGENT, "")
    assert bare.check(OPERATOR, "") == ANYONE
    # On loopback without tokens making one for another box locks nobody out of this one.
    assert Tokens("", [], named).check(AGENT, "") == ANYONE
