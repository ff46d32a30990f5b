"""Controls of several hosts go by one set of node tokens: the leader's, as they do with API keys (contract/http.md)."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import msgspec
import pytest

from llmgw.control import intent, peers
from llmgw.control.node_tokens import FILE, NodeToken, NodeTokens, added, without
from llmgw.control.picture import Moment
from llmgw.core.types.messages import NodeReport
from llmgw.core.types.state import State
from tests.control.bench import Agent, Bench, scenario
from tests.control.test_standby import with_lease

ONE = NodeToken(name="one", token="llmgw-node-1", node_id="id-box1", node="box1")
TWO = NodeToken(name="two", token="llmgw-node-2")
TOLD = {"name": "b:2", "url": "http://b:8801", "version": "1", "nodes": [], "catalog": "x"}


def other(bench: Bench, left: bytes) -> Bench:
    """A control of another host that is to lead."""
    (bench.folder / "other").mkdir()
    made = Bench(bench.folder / "other", token="op")
    hand = with_lease(made, held=True)
    hand.intent, hand.epochs = left, [9]
    return made


@scenario
async def test_the_next_leader_takes_those_of_the_one_before(bench: Bench) -> None:
    """Made, claimed and revoked there; what its own file had from before is over."""
    hand = with_lease(bench, held=True)
    bench.settings = msgspec.structs.replace(bench.settings, token="op")
    async with bench.running() as control:
        control.node_tokens.urls = ("https://10.0.0.1:8801",)
        bench.client.headers["authorization"] = "Bearer op"
        words = {}
        for name in ("one", "two"):
            words[name] = (await bench.post("/api/v1/tokens", {"name": name, "new": True}))["token"]
            assert words[name].encode() in hand.intent
            assert hand.waited == len(hand.intent), "it is told when it is left, not before"
        bench.client.headers["authorization"] = f"Bearer {words['one']}"
        await Agent(bench).register()
        await bench.later(1)
        bench.client.headers["authorization"] = "Bearer op"
        await bench.post("/api/v1/tokens/two/revoke")
        assert words["two"].encode() not in hand.intent
    second = other(bench, hand.intent)
    NodeTokens(second.folder).edit(lambda there: (there | {"two": TWO}, None))
    async with second.running() as control:
        assert control.node_tokens.known(words["one"]) == "one"
        assert control.node_tokens.known(TWO.token) == ""
        second.client.headers["authorization"] = f"Bearer {words['one']}"
        await Agent(second).register()
        said = await Agent(second, "evil").register(409)
        assert "its token one belongs to box1" in said["message"]
        (event,) = second.events("tokens")
        assert "one comes, two goes" in event["why"]
    assert NodeTokens(second.folder).known(words["one"]) == "one", "over its restart too"
    assert (second.folder / FILE).stat().st_mode & 0o777 == 0o600


@scenario
async def test_what_was_written_while_nobody_led_is_the_last_word(bench: Bench) -> None:
    """`llmgw token` with control down: one that was revoked so came back, and a new one was lost."""
    hand = with_lease(bench, held=True)
    async with bench.running() as control:
        control.node_tokens.edit(lambda there: added(there, "one"))
    files = NodeTokens(bench.folder)
    files.edit(lambda there: (without(there, "one") | {"two": TWO}, None))
    hand.epochs = [9]
    async with bench.running() as control:
        assert set(control.node_tokens.now()) == {"two"}
    files.edit(lambda there: (without(there, "two"), None))
    hand.epochs = [11]
    async with bench.running() as control:
        assert set(control.node_tokens.now()) == {"two"}, "another one led meanwhile"


@scenario
async def test_a_standby_has_them_before_it_leads(bench: Bench) -> None:
    """Agents register with it too; a word that was written there by hand is that host's own setting, and stays."""
    with_lease(bench, held=True)
    async with bench.running() as control:
        control.node_tokens.edit(lambda there: added(there, "one"))
        said = await bench.post("/api/v1/standbys", TOLD)
        ours = control.node_tokens.now()
        assert [t["name"] for t in said["tokens"]] == ["one"]
    (bench.folder / "standby").mkdir()
    standby = NodeTokens(bench.folder / "standby")
    standby.path.write_text("by-hand\n")
    answer = msgspec.json.decode(msgspec.json.encode(said), type=peers.Answer)
    assert answer.tokens is not None
    assert standby.adopt(answer.tokens) == "one comes"
    assert standby.known(ours["one"].token) == "one"
    assert standby.known("by-hand") == "shared"
    assert standby.adopt(answer.tokens) == ""


@scenario
async def test_those_of_one_file_have_one_file(bench: Bench) -> None:
    """A standby of the same inventory reads it for itself: what it heard two seconds ago may be revoked by now."""
    async with bench.running() as control:
        control.node_tokens.edit(lambda there: added(there, "one"))
        said = await bench.post("/api/v1/standbys", TOLD)
        assert said["tokens"] is None


def test_an_older_leader_says_nothing_of_them_and_ends_none() -> None:
    now = Moment(1.0, 1.0)
    left = intent.read(intent.written(State(), {}, now), now, print)
    assert left is not None
    assert left.tokens is None
    assert msgspec.json.decode(b"{}", type=peers.Answer).tokens is None
    none = intent.read(intent.written(State(), {}, now, tokens=()), now, print)
    assert none is not None
    assert none.tokens == ()


def test_with_a_disk_that_cannot_be_written_they_count_all_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ours = NodeTokens(tmp_path)
    monkeypatch.setattr(NodeTokens, "_write", partial(_full))
    assert ours.adopt((ONE,)).startswith("one comes; over a restart they are lost: ")
    assert ours.known(ONE.token) == "one"
    assert ours.present
    assert ours.adopt((ONE,)) == "", "said once"
    monkeypatch.undo()
    ours.edit(lambda there: (without(there, "one"), None))
    assert ours.known(ONE.token) == ""


def _full(*_: object) -> None:
    raise OSError(28, "No space left on device")


def test_what_cannot_be_read_is_not_said_to_be_none(tmp_path: Path) -> None:
    ours = NodeTokens(tmp_path)
    (tmp_path / FILE).write_bytes(b'{"tokens": 7}')
    assert ours.own() is None
    (tmp_path / FILE).write_text("by-hand\n")
    assert ours.own() == ()
    ours.claim("", NodeReport(node="box1", node_id="id-box1"))
    assert ours.own() == ()
