"""The agent's memory on disk."""

from __future__ import annotations

import json
import os
import socket
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from msgspec.structs import replace

from llmgw.agent.journal import MAX_BYTES, Journal, JournalError
from llmgw.core.supervise.claims import ID, SHARD
from llmgw.core.types.messages import Compute, Resources, Start, Token
from llmgw.core.types.record import Record, Watch

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


def synced(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What is waited for on the disk, by name, from now on."""
    names: list[str] = []
    fsync = os.fsync

    def noted(fd: int) -> None:
        names.append(Path(f"/proc/self/fd/{fd}").readlink().name)
        fsync(fd)

    monkeypatch.setattr(os, "fsync", noted)
    return names


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


def fifo(path: Path) -> None:
    os.mkfifo(path)


def link_to_nowhere(path: Path) -> None:
    path.symlink_to(path.with_name("nowhere"))


def endless(path: Path) -> None:
    path.symlink_to("/dev/zero")


def huge(path: Path) -> None:
    with path.open("wb") as file:
        file.truncate(MAX_BYTES + 1)  # a sparse one


def full_folder(path: Path) -> None:
    path.mkdir()
    (path / "inside").touch()


def socket_file(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as here:
        here.bind(os.path.relpath(path))


@pytest.mark.parametrize(
    "strange", [fifo, link_to_nowhere, endless, huge, full_folder, socket_file]
)
def test_what_stands_in_a_records_place_ends_no_agent_and_is_held(
    journal: Journal, strange: Callable[[Path], None]
) -> None:
    """F42, A39: a FIFO would be waited for, /dev/zero has no end. With its shard it goes, whatever it was."""
    other = replace(RECORD, start=replace(START, incarnation="0199.b"))
    journal.write(other)
    strange(file_of(journal))
    for _ in range(2):
        good, bad = journal.load("boot-0").records
        assert (good.key, bad.key, bad.state) == (other.key, RECORD.key, "unknown")
    strange(journal.token_path)
    strange(journal.folder / "x@0@y.released")
    assert journal.load().token is None
    assert journal.released("boot") == frozenset()
    journal.store_token(Token(3, "L1"))
    assert journal.load().token == Token(3, "L1")
    journal.delete(RECORD.key)
    assert [r.key for r in journal.load().records] == [other.key]


def test_what_cannot_be_set_aside_is_held_where_it_is(journal: Journal) -> None:
    file_of(journal).write_bytes(b"{")
    full_folder(file_of(journal).with_suffix(".unreadable"))
    assert {r.key for r in journal.load().records} == {RECORD.key}
    journal.write(RECORD)
    assert [r.partial for r in journal.load().records] == [False]


def test_a_folder_that_cannot_be_read_is_not_an_empty_one(tmp_path: Path) -> None:
    """Started without its records an agent would report to run nothing."""
    journal = Journal(tmp_path)
    journal.folder.rmdir()
    with pytest.raises(JournalError, match="records: the journal cannot be used: No such file"):
        journal.load()
    journal.folder.touch()
    with pytest.raises(JournalError, match="the journal cannot be used: File exists"):
        Journal(tmp_path)


def test_many_records_take_time_in_proportion(tmp_path: Path) -> None:
    """100,000 of them, by a twentieth: nothing is looked up by walking all the others."""
    journal = Journal(tmp_path)
    journal.write(RECORD)
    text = file_of(journal).read_text()
    for n in range(5000):
        name = f"0199.{n}"
        path = journal.folder / f"alpha-7k2@0@{name}.json"
        path.write_text(text.replace('"0199.a"', f'"{name}"'))
    began = time.process_time()
    assert len(journal.load().records) == 5001
    assert time.process_time() - began < 30.0


def test_what_was_never_moved_into_place_is_not_there(journal: Journal) -> None:
    """F42: the agent died before the rename; nothing was done on its strength, and it does not lie there for ever."""
    journal.write(RECORD)
    whole = next(journal.folder.iterdir())
    whole.rename(whole.with_name(f"{whole.name}.new"))
    (journal.folder / "no-file.json.new").mkdir()
    assert journal.load().records == ()
    assert [p.name for p in journal.folder.iterdir()] == ["no-file.json.new"]


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


@pytest.mark.parametrize("epoch", [-1, 1 << 48, 10**30])
def test_an_epoch_that_nobody_can_have_had_is_none(journal: Journal, epoch: int) -> None:
    """Kept, it would have every control refused, or be outbid for ever."""
    journal.store_token(Token(epoch, "L1"))
    assert journal.load().token is None


def test_a_folder_in_the_place_of_the_token_ends_nothing(journal: Journal) -> None:
    journal.token_path.mkdir()
    journal.token_path.with_suffix(".unreadable").write_text("an older one")
    assert journal.load().token is None


@pytest.mark.parametrize(
    "name", [b"@@@.json", b"..@0@i.json", b"-x@0@i.json", b"a@0@..json", b"\xff\xfe.json"]
)
def test_a_file_with_no_name_of_ours_gets_one(journal: Journal, name: bytes) -> None:
    """Its name would become a path, and a word of the next registration."""
    Path(os.fsdecode(bytes(journal.folder) + b"/" + name)).write_text("{}")
    for _ in range(2):
        (bad,) = journal.load().records
        assert ID.fullmatch(bad.start.replica)
        assert bad.start.shard == f"{bad.start.replica}/{bad.start.rank}"
        str(bad.error).encode()


@pytest.mark.parametrize(
    "shard", ["../../x/0", "x/-1", "x/00", "x/\u0663", "x/10000", "x\0/0", "caf\u00e9/0", "/0", "x"]
)
def test_a_record_whose_shard_is_no_name_is_not_believed(journal: Journal, shard: str) -> None:
    """Names become paths (contract/catalog.md)."""
    journal.write(RECORD)
    plain = json.loads(file_of(journal).read_text())
    plain["start"] |= {"shard": shard, "replica": shard.rpartition("/")[0]}
    plain["start"]["rank"] = int(rank) if (rank := shard.rpartition("/")[2]).isdecimal() else 0
    name = shard.replace("/", "@").replace("\0", "0")
    file_of(journal).rename(journal.folder / f"{name}@i.json")
    (journal.folder / f"{name}@i.json").write_text(json.dumps(plain))
    (bad,) = journal.load().records
    assert bad.partial
    assert SHARD.fullmatch(bad.start.shard)


@pytest.mark.parametrize(
    "name",
    [
        b"@@@.json",
        b"notes.json",
        b"alpha-7k2@007@i.json",
        b"alpha-7k2@\xd9\xa3@i.json",
        b"alpha-7k2@" + b"9" * 200 + b".json",
        b"a@0@i@j.json",
        b"\xff\xfe.json",
    ],
    ids=ascii,
)
def test_a_file_with_any_name_is_deleted_with_its_shard(journal: Journal, name: bytes) -> None:
    """Left there it would come back as an unknown shard with every agent, whatever the operator orders."""
    Path(os.fsdecode(bytes(journal.folder) + b"/" + name)).write_text("{}")
    journal.load()
    again = Journal(journal.folder.parent)
    (bad,) = again.load().records
    assert SHARD.fullmatch(bad.start.shard)
    again.write(bad)  # what became of it
    again.delete(bad.key)
    assert again.load().records == ()
    assert list(again.folder.iterdir()) == []


def test_what_was_released_is_remembered_for_this_boot_only(journal: Journal) -> None:
    """A43: its processes may be there as long as the boot lasts, and carry our markers."""
    before = replace(RECORD, boot_id="boot-1", state="stopped", force=True)
    journal.write(before)
    journal.delete(RECORD.key, released=True)
    journal.delete(RECORD.key)  # forget is repeated
    for again in (journal, Journal(journal.folder.parent)):
        assert again.load().records == ()
        assert again.released("boot-1") == {RECORD.key}
    assert journal.released("boot-2") == frozenset()
    assert journal.released("boot-1") == frozenset()
    journal.delete(RECORD.key, released=True)  # nothing to keep
    (journal.folder / "x.released").write_text("{")
    assert journal.released("boot-1") == frozenset()
    journal.write(before)
    journal.delete(RECORD.key)
    assert journal.released("boot-1") == frozenset()


def test_only_what_is_about_to_be_spawned_is_waited_for(
    journal: Journal, monkeypatch: pytest.MonkeyPatch
) -> None:
    """F42, P9: an intent and its name are on the disk before the exec, what follows by `settle`; all is whole."""
    names, name = synced(monkeypatch), file_of(journal).name
    intent = replace(RECORD, state="pending", intent=True, pid=None)
    journal.write(intent)
    assert names == [f"{name}.new", "records"]
    journal.write(RECORD)
    journal.write(replace(RECORD, state="draining"))
    assert names[2:] == []
    again = Journal(journal.folder.parent)  # a killed agent's successor
    assert [r.state for r in again.load().records] == ["draining"]
    names.clear()
    journal.settle()
    assert names == [name, "records"]
    journal.write(replace(intent, attempt=2))
    journal.settle()
    assert names[2:] == [f"{name}.new", "records"]


def test_what_was_written_ahead_needs_its_name_only_if_it_is_still_so(
    journal: Journal, monkeypatch: pytest.MonkeyPatch
) -> None:
    """P9; and whoever loads the journal before finds nothing of it."""
    names, path = synced(monkeypatch), file_of(journal)
    new = f"{path.name}.new"
    intent = replace(RECORD, state="pending", intent=True, pid=None)
    journal.ahead(intent)
    assert (names, path.exists()) == ([new], False)
    journal.write(intent)
    assert names == [new, "records"]
    assert json.loads(path.read_text())["intent"] is True
    names.clear()
    journal.ahead(intent)
    journal.write(replace(intent, attempt=2))  # it is another by now
    assert names == [new, new, "records"]
    assert json.loads(path.read_text())["attempt"] == 2
    names.clear()
    journal.ahead(intent)
    journal.delete(RECORD.key)
    journal.write(intent)
    assert names == [new, "records", new, "records"]
    journal.delete(RECORD.key)
    journal.ahead(intent)
    assert Journal(journal.folder.parent).load().records == ()
    assert list(journal.folder.iterdir()) == []


def test_what_was_written_ahead_for_nothing_is_removed(journal: Journal) -> None:
    intent = replace(RECORD, state="pending", intent=True, pid=None)
    new = file_of(journal).with_name(f"{file_of(journal).name}.new")
    journal.ahead(intent)
    journal.tidy({RECORD.key})
    assert new.exists()
    journal.tidy(())
    assert not new.exists()
    journal.write(intent)
    assert [r.key for r in journal.load().records] == [RECORD.key]
    journal.ahead(intent)
    new.unlink()
    journal.tidy(())


def test_what_cannot_be_settled_is_tried_again_and_what_is_deleted_is_not(
    journal: Journal, monkeypatch: pytest.MonkeyPatch
) -> None:
    for state in ("starting", "ready"):
        journal.write(replace(RECORD, state=state))
    with monkeypatch.context() as broken:
        broken.setattr(os, "fsync", lambda _: (_ for _ in ()).throw(OSError(5, "I/O error")))
        journal.settle()
    names = synced(monkeypatch)
    journal.settle()
    assert names == [file_of(journal).name, "records"]
    journal.write(RECORD)
    journal.delete(RECORD.key)
    names.clear()
    journal.settle()
    assert names == ["records"]
