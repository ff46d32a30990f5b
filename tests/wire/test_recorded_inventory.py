"""The inventory file of every version: what a later control remembers out of it, and keeps (F55, F56)."""

from __future__ import annotations

import json
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from llmgw.control.picture import Change, Moment, Picture
from llmgw.control.store import Store, read_memory
from tests.wire import samples
from tests.wire.record import FOLDER, WALL_S
from tests.wire.recordings import VERSIONS, lost

NOW = Moment(0.0, WALL_S)


def database(version: str, folder: Path) -> Path:
    path = folder / "inventory.db"
    with closing(sqlite3.connect(path)) as db:
        db.executescript((FOLDER / version / "inventory.sql").read_text())
    return path


def rows(path: Path, query: str) -> list[tuple[str, ...]]:
    with closing(sqlite3.connect(path)) as db:
        return db.execute(query).fetchall()


@pytest.mark.parametrize("version", VERSIONS)
def test_it_remembers_what_was_written(version: str, tmp_path: Path) -> None:
    said: list[str] = []
    store = Store(database(version, tmp_path), warn=said.append)
    store.open()
    memory = store.memory(NOW)
    ((report, silent),) = memory.nodes
    assert (report, silent) == (samples.REPORT, True)
    assert memory.epoch == store.epoch() == 12
    (failure,) = memory.failures["alpha"]
    assert (failure.incarnation, failure.gave_up, failure.at_s) == ("inc-old", True, -60.0)
    drain = memory.draining["inc-delta"]
    assert (drain.reason, drain.since_s) == ("operator", -30.0)
    assert memory.confirmed == {"inc-gone"}
    assert memory.paused.endswith("by an operator")
    assert store.sources() == {"catalog.yaml": "version: 1\nmodels: {}\n"}
    (event,) = store.events(10)
    assert (event["id"], event["kind"], event["node"]) == (41, "adopt", "box1")
    store.close()
    assert said == []
    assert read_memory(tmp_path / "inventory.db").epoch == 12


@pytest.mark.parametrize("version", VERSIONS)
def test_nothing_is_lost_when_it_is_written_again(version: str, tmp_path: Path) -> None:
    """Also fields of a node and of its shards that only a newer version knows."""
    path = database(version, tmp_path)
    ((text,),) = rows(path, "SELECT report FROM nodes")
    newer = json.loads(text) | {"novelty": 1}
    newer["shards"][0]["novelty"] = {"a": [1]}
    with closing(sqlite3.connect(path)) as db:
        db.execute("UPDATE nodes SET report = ?", (json.dumps(newer),))
        db.commit()
    store = Store(path, warn=print)
    store.open()
    memory = store.memory(NOW)
    nodes = {r.node: Picture(r, unreachable=s, heard_at="") for r, s in memory.nodes}
    kept = Change(nodes=nodes, failures=memory.failures, draining=memory.draining, durable=True)
    before = {table: rows(path, f"SELECT * FROM {table}") for table in ("failures", "meta")}
    store.save(kept, NOW)
    store.close()
    ((again,),) = rows(path, "SELECT report FROM nodes")
    assert lost(newer, json.loads(again)) == []
    assert before == {table: rows(path, f"SELECT * FROM {table}") for table in before}


@pytest.mark.parametrize("version", VERSIONS)
def test_f55_a_row_with_a_field_less_costs_no_other_row(version: str, tmp_path: Path) -> None:
    path = database(version, tmp_path)
    ((text,),) = rows(path, "SELECT failure FROM failures")
    for name in json.loads(text):
        older = {k: v for k, v in json.loads(text).items() if k != name}
        with closing(sqlite3.connect(path)) as db:
            db.execute("UPDATE failures SET failure = ?", (json.dumps(older),))
            db.commit()
        memory = read_memory(path)
        assert len(memory.nodes) == 1
        assert "inc-delta" in memory.draining
