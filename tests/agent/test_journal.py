"""The agent's memory on disk."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from msgspec.structs import replace

from llmgw.agent.journal import Journal
from llmgw.core.types.messages import Compute, Resources, Start, Token
from llmgw.core.types.node import Record, Watch

START = Start(
    shard="alpha-7k2/0",
    replica="alpha-7k2",
    incarnation="0199.a",
    model="alpha",
    profile="main",
    command=("engine", "${port}"),
    port=18000,
    resources=Resources(gpu_memory_bytes=10),
)
RECORD = Record(
    start=START,
    state="ready",
    pid=4711,
    start_ticks=99,
    api_key="secret",
    failures=(1.5,),
    compute=Compute(layers_gpu=3),
    watch=Watch(verified=True, due_s=5.0),
)


@pytest.fixture
def journal(tmp_path: Path) -> Journal:
    return Journal(tmp_path)


def file_of(journal: Journal) -> Path:
    return journal.folder / "alpha-7k2@0@0199.a.json"


def test_what_is_written_is_read_without_the_watch(journal: Journal) -> None:
    journal.write(RECORD)
    journal.store_token(Token(3, "L1"))
    loaded = journal.load()
    assert loaded.records == (replace(RECORD, watch=Watch()),)
    assert loaded.token == Token(3, "L1")
    assert file_of(journal).stat().st_mode & 0o777 == 0o600
    assert json.loads(file_of(journal).read_text())["format"] == 1
    journal.delete(RECORD.key)
    journal.delete(RECORD.key)
    assert journal.load().records == ()


def test_fields_of_a_newer_agent_stay(journal: Journal) -> None:
    """F56."""
    journal.write(RECORD)
    plain = json.loads(file_of(journal).read_text())
    file_of(journal).write_text(json.dumps({**plain, "mood": {"of": "the engine"}}))
    read = journal.load().records[0]
    assert read.extra == {"mood": {"of": "the engine"}}
    journal.write(replace(read, state="draining"))
    plain = json.loads(file_of(journal).read_text())
    assert (plain["mood"], plain["state"]) == ({"of": "the engine"}, "draining")


@pytest.mark.parametrize(
    "damage",
    [
        b"",
        b"\0" * 64,
        b'{"format": 1}',
        b'{"format": 2, "start": {}}',
        b"[]",
        b"\xff\xfe",
        b"[" * 5000,
    ],
)
def test_an_unreadable_file_is_kept_aside_and_reported(journal: Journal, damage: bytes) -> None:
    """F42, A39; the others are read."""
    other = replace(RECORD, start=replace(START, incarnation="0199.b"))
    journal.write(RECORD)
    journal.write(other)
    file_of(journal).write_bytes(damage)
    for _ in range(2):
        good, bad = journal.load("boot-0").records
        assert good.key == other.key
        assert bad.key == RECORD.key
        assert (bad.state, bad.partial, bad.boot_id) == ("unknown", True, "boot-0")
        assert "cannot be read; the file is kept" in str(bad.error)
    assert file_of(journal).with_suffix(".unreadable").read_bytes() == damage
    journal.write(RECORD)
    assert [r.partial for r in journal.load().records] == [False, False]
    journal.delete(RECORD.key)
    assert [r.key for r in journal.load().records] == [other.key]


def test_a_file_about_another_shard_is_not_believed(journal: Journal) -> None:
    journal.write(RECORD)
    file_of(journal).rename(journal.folder / "beta-1@1@x.json")
    (bad,) = journal.load().records
    assert (bad.start.shard, bad.start.incarnation, bad.state) == ("beta-1/1", "x", "unknown")


def test_a_strange_file_does_not_stop_the_agent(journal: Journal) -> None:
    (journal.folder / "notes.json").write_text("x")
    (bad,) = journal.load().records
    assert bad.start.shard == "notes/0"


def test_a_torn_token_is_none(journal: Journal) -> None:
    assert journal.load().token is None
    journal.token_path.write_bytes(b"{")
    assert journal.load().token is None
    assert journal.token_path.with_suffix(".unreadable").exists()
