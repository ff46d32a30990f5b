"""`llmgw adopt` without a control: by which catalog it judges, and whom it says it has not asked (A54, A55, F11)."""

from __future__ import annotations

import json
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from llmgw import config
from llmgw.cli import survey
from llmgw.control.picture import Change, Picture
from llmgw.control.store import Store, moment
from llmgw.core.reconcile.fresh import Memory, after_settling
from llmgw.core.types.catalog import Catalog
from llmgw.core.types.messages import NodeReport, ShardReport
from llmgw.errors import LlmgwError, UnauthorisedError
from llmgw.wire import encode
from tests.cli.say import Said, llmgw
from tests.cli.stub import Stub, refused

GOOD = "version: 1\nmodels:\n  alpha:\n    profiles: [{name: main, command: [x]}]\n"
BROKEN = "version: 1\nmodel: {}\n"
SHARD = ShardReport(
    shard="alpha-1/0",
    replica="alpha-1",
    incarnation="i",
    model="alpha",
    profile="main",
    state="ready",
)
NODE = NodeReport(node="box1", node_id="id", shards=(SHARD,))


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An inventory that remembers the last good catalog, a broken one on disk, and a report."""
    monkeypatch.setenv("LLMGW_CATALOG", str(tmp_path / "catalog.yaml"))
    monkeypatch.setenv("LLMGW_STATE_DIR", str(tmp_path))
    (tmp_path / "catalog.yaml").write_text(BROKEN)
    (tmp_path / "report.json").write_bytes(encode(NODE))
    (tmp_path / "control").mkdir()
    store = Store(tmp_path / "control" / "inventory.db", warn=print)
    store.open()
    now = moment(0.0)
    picture = Picture(NODE, unreachable=False, heard_at=now.iso(0.0))
    store.save(Change(nodes={"box1": picture}, sources={"then.yaml": GOOD}), now)
    store.close()
    return tmp_path


def dry_run(here: Path, *words: object) -> tuple[Said, dict[str, Any]]:
    report = ["--report", here / "report.json"] if "--control" not in words else []
    said = llmgw("adopt", "--dry-run", "-o", "json", *report, *words)
    return said, json.loads(said.out) if said.out else {}


def test_f11_a_broken_catalog_is_judged_by_the_last_good_one(here: Path) -> None:
    before = {p: p.stat().st_mtime_ns for p in here.rglob("*")}
    said, document = dry_run(here)
    assert [s["verdict"] for s in document["shards"]] == ["adopt"]
    assert (said.code, document["exit_code"]) == (1, 1)
    (problem,) = document["problems"]
    assert problem.startswith(f"{here / 'catalog.yaml'}:2:1: ")
    why = "the catalog on disk is not valid, this is judged by the last good one"
    assert document["warnings"] == [f"{why}: {problem}"]
    assert {p: p.stat().st_mtime_ns for p in here.rglob("*")} == before
    (here / "catalog.yaml").write_text(GOOD)
    said, document = dry_run(here)
    assert (said.code, document["problems"], document["warnings"]) == (0, [], [])


def test_f11_the_same_where_the_agents_are_asked(here: Path, stub: Stub) -> None:
    stub.answers["GET /v1/inventory"] = json.loads(encode(NODE))
    said, document = dry_run(here, "--control", "http://127.0.0.1:9")
    assert said.code == 3  # no agent answers where this box's is
    assert [s["verdict"] for s in document["shards"]] == ["hold"]
    given = {"LLMGW_AGENT": stub.url}
    with pytest.MonkeyPatch.context() as patch:
        for name, value in given.items():
            patch.setenv(name, value)
        said, document = dry_run(here, "--control", "http://127.0.0.1:9")
    assert (said.code, document["source"]) == (1, "agents")
    assert [s["verdict"] for s in document["shards"]] == ["adopt"]
    assert "last good one" in document["warnings"][0]


def test_f11_a_catalog_that_was_named_is_what_is_asked_about(here: Path) -> None:
    said, _ = dry_run(here, "--catalog", here / "catalog.yaml")
    assert (said.code, said.out) == (1, "")
    assert "catalog.yaml:2:1" in said.err


@pytest.mark.parametrize("lost", ["catalog", "file"])
def test_f11_without_a_last_good_one_the_mistake_is_the_answer(here: Path, lost: str) -> None:
    path = here / "control" / "inventory.db"
    if lost == "file":
        path.unlink()
    else:
        with closing(sqlite3.connect(path)) as db, db:
            db.execute("UPDATE catalog SET source = 'models: ['")
    said, _ = dry_run(here)
    assert (said.code, said.out) == (1, "")
    assert "catalog.yaml:2:1" in said.err


def test_f7_engines_are_kept_as_control_would_keep_them(
    here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`--keep-unknown` changes what a restart does, so the dry run must know of it."""
    (here / "catalog.yaml").write_text(GOOD.replace("alpha", "beta"))
    assert [a["action"] for a in dry_run(here)[1]["actions"]] == ["stop"]
    monkeypatch.setenv("LLMGW_KEEP_UNKNOWN", "yes")
    assert dry_run(here)[1]["actions"] == []


def nodes(*names: str, inspect: str = "") -> Memory:
    picture = tuple(
        (
            NodeReport(
                node=n,
                node_id=f"id-{n}",
                inspect=inspect,
                shards=(ShardReport(shard=f"{n}-1/0", replica=f"{n}-1", model="m", state="ready"),),
            ),
            False,
        )
        for n in names
    )
    return Memory(nodes=picture)


def test_a55_a_node_whose_address_is_not_known_was_not_asked(stub: Stub) -> None:
    """Of two agents on the loopback of one box one answers; the other is not silent, nobody spoke to it."""
    memory = nodes("box1", "box2")
    stub.answers["GET /v1/inventory"] = json.loads(encode(memory.nodes[0][0]))
    found = survey.from_agents(memory, stub.url)
    assert found.unasked == {"box2"}
    state = after_settling(Catalog(), memory, found.reports)
    document = survey.plan(state, found, source="agents", allow_partial=False)
    assert {n["node"]: n["error"] for n in document["nodes"]} == {
        "box1": None,
        "box2": "not asked: its agent gave no address to ask at (`inspect` is empty)",
    }
    held = next(s for s in document["shards"] if s["node"] == "box2")
    assert (held["verdict"], held["why"]) == ("hold", "box2 was not asked; it is left alone")
    assert (document["complete"], document["exit_code"]) == (False, 3)


def test_a55_a_node_that_was_asked_does_not_answer(stub: Stub) -> None:
    away = nodes("box2", inspect="http://127.0.0.1:9")
    memory = Memory(nodes=(*nodes("box1").nodes, *away.nodes))
    stub.answers["GET /v1/inventory"] = json.loads(encode(memory.nodes[0][0]))
    found = survey.from_agents(memory, stub.url)
    assert found.unasked == frozenset()
    assert "connection refused" in found.notes[0]
    with pytest.raises(LlmgwError, match="no agent at 127"):
        survey.from_agents(Memory(), "http://127.0.0.1:9")


def test_a55_nobody_answers_and_the_last_picture_is_held(here: Path) -> None:
    """Exit 3 for what was found is no error: the document is whole, as of a list of no reports."""
    (here / "catalog.yaml").write_text(GOOD)
    (here / "report.json").write_text("[]")
    said, document = dry_run(here, "--control", "http://127.0.0.1:9")
    _, none = dry_run(here)
    assert (said.code, document["complete"], document["source"]) == (3, False, "agents")
    assert (document["shards"], document["digest"]) == (none["shards"], none["digest"])
    assert [s["verdict"] for s in document["shards"]] == ["hold"]
    assert "no agent at 127.0.0.1:8802" in said.err
    table = llmgw("adopt", "--dry-run", "--control", "http://127.0.0.1:9")
    assert (table.code, "1 held" in table.out) == (3, True)
    for looked in (said, table):
        assert looked.err.endswith(
            f"llmgw: nobody answered: this is the last picture, as {config.inventory_path()} has it, and all of "
            "it is held\n"
            "hint: start the agents with `llmgw up` or `llmgw agent` and ask again; or judge what agents saved: "
            "--report FILE\n"
        )


def test_nobody_answers_and_nothing_is_remembered(here: Path) -> None:
    """It says what it looked at, and both things to try."""
    (here / "catalog.yaml").write_text(GOOD)
    nope = here / "nope.db"
    said = llmgw("adopt", "--dry-run", "--control", "http://127.0.0.1:9", "--inventory", nope)
    assert said.code == 3
    assert "no control at 127.0.0.1:9: connection refused; no agent at 127.0.0.1:8802" in said.err
    assert f"; {nope} remembers no node" in said.err
    assert "hint: start one with `llmgw up` or `llmgw control`; " in said.err
    assert said.err.endswith("or judge what agents saved: --report FILE\n")


def test_a_token_that_is_refused_is_no_silence(stub: Stub) -> None:
    stub.answers["GET /v1/inventory"] = refused("the token is wrong", status=401)
    with pytest.raises(UnauthorisedError):
        survey.from_agents(nodes("box1"), stub.url)


def test_an_inventory_that_was_named_and_is_not_there(here: Path) -> None:
    (here / "catalog.yaml").write_text(GOOD)
    nope = here / "nope.db"
    said, _ = dry_run(here, "--inventory", nope)
    assert not said.err  # with reports a new file is usual: it is where they will be kept
    for words in [("--control", "http://127.0.0.1:9")]:
        said, _ = dry_run(here, "--inventory", nope, *words)
        assert f"there is no inventory {nope}: nothing is remembered" in said.err
    assert not nope.exists()
