"""The inventory as a file: damaged in any place, left half written, in somebody else's hands, under another name.

F14, F16, F20, F42, A53. A control must be able to start on whatever is there, or say why it will not touch it; a dry
run sees what control would see, and leaves no trace of having looked.
"""

import os
import random
import shutil
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Callable
from contextlib import closing, suppress
from pathlib import Path

import pytest

from llmgw.catalog import load_sources
from llmgw.control.files import content
from llmgw.control.lease import FileLease
from llmgw.control.rollback import belongs, rolled_back
from llmgw.control.rows import MIGRATIONS
from llmgw.control.store import Store, StoreError, moment, read_memory, read_sources
from llmgw.core.types.messages import EPOCH_END
from llmgw.errors import CatalogError
from tests.control.bench import Agent, Bench, engine, scenario
from tests.control.test_store import KILLED_WRITER, files, filled, opened


def snapshot(folder: Path) -> dict[str, tuple[bytes, int]]:
    return {p.name: (p.read_bytes(), p.stat().st_mtime_ns) for p in sorted(folder.iterdir())}


def killed_writer(path: Path) -> None:
    """Ends in the middle of a transaction, with some of it in the file already."""
    done = subprocess.run([sys.executable, "-c", KILLED_WRITER, str(path)], check=False)
    assert done.returncode == -signal.SIGKILL


@pytest.mark.parametrize("seed", range(8))
def test_f14_f20_no_damage_keeps_control_from_starting(seed: int, tmp_path: Path) -> None:
    """A few bytes changed anywhere but in the format's number: at worst a record, or the history, is lost."""
    dice = random.Random(seed)
    whole = tmp_path / "whole.db"
    filled(whole)
    sound = whole.read_bytes()
    for n in range(25):
        folder = tmp_path / str(n)
        folder.mkdir()
        path = folder / "i.db"
        damaged = bytearray(sound)
        # some of it aimed at the rows: most of a small file is empty
        where = dice.choice((range(len(sound)), [i for i, b in enumerate(sound) if b]))
        for at in dice.choices(where, k=dice.randint(1, 9)):
            damaged[at] = dice.randrange(256)
        damaged[60:64] = sound[60:64]
        path.write_bytes(damaged)
        warnings: list[str] = []
        looked = read_memory(path, warn=warnings.append)
        assert path.read_bytes() == damaged
        assert files(folder) == ["i.db"]
        store = opened(path, warnings)
        assert store.memory(moment(0.0)).nodes == looked.nodes
        store.events(10)
        with suppress(CatalogError):
            load_sources(store.sources())
        epoch = 1 + store.epoch()
        store.write_epoch(epoch, "leader")
        assert store.epoch() == epoch
        store.close()
        if any("empty history" in w for w in warnings):
            (aside,) = folder.glob("i.db.corrupt-*")
            assert aside.read_bytes() == damaged


@pytest.mark.parametrize("at", [18, 19, 47])
def test_f14_a_header_of_the_future_is_a_broken_one(at: int, tmp_path: Path) -> None:
    """SQLite takes it for a format it does not know, or for read-only: control would never lead again."""
    path = tmp_path / "i.db"
    filled(path)
    data = bytearray(path.read_bytes())
    data[at] = 9
    path.write_bytes(data)
    warnings: list[str] = []
    assert read_memory(path, warn=warnings.append).nodes == ()
    store = opened(path, warnings)
    store.write_epoch(1, "leader")
    store.close()
    assert ["empty history" in w for w in warnings] == [True, True]


@pytest.mark.parametrize("stored", ["-5", "x", "", str(EPOCH_END), "1e9", "9" * 400])
def test_f16_an_epoch_that_no_control_can_have_led_with_is_as_a_lost_one(
    stored: str, tmp_path: Path
) -> None:
    """Agents refuse what is out of range: a control that led with it would command nobody, start after start."""
    path = tmp_path / "i.db"
    filled(path)
    with closing(sqlite3.connect(path)) as db, db:
        db.execute("UPDATE meta SET value = ? WHERE key = 'epoch'", (stored,))
    store = opened(path)
    assert store.epoch() == read_memory(path).epoch == 0
    assert FileLease(path, store).acquire("leader", 8) == 9
    store.close()


def test_f14_what_breaks_twice_in_a_second_is_kept_twice(tmp_path: Path) -> None:
    path = tmp_path / "i.db"
    for n in range(3):
        path.write_bytes(b"no database %d" % n * 1000)
        opened(path).close()
    kept = {p.read_bytes() for p in tmp_path.glob("i.db.corrupt-*")}
    assert kept == {b"no database %d" % n * 1000 for n in range(3)}


@pytest.mark.parametrize("known", [0, 1, 99])
def test_a_database_of_another_program_is_refused_and_left_alone(
    known: int, tmp_path: Path
) -> None:
    """`--inventory` with the wrong file: neither our tables in it, nor it out of the way of its owner."""
    path = tmp_path / "photos.db"
    with closing(sqlite3.connect(path)) as db, db:
        db.execute("CREATE TABLE photos (name TEXT)")
        db.execute("CREATE TABLE events (id INTEGER)")
        db.execute(f"PRAGMA user_version={known}")
    before = snapshot(tmp_path)
    with pytest.raises(StoreError, match=r"not an inventory of llmgw|newer llmgw") as refused:
        opened(path)
    assert "--inventory FILE" in refused.value.hint
    with pytest.raises(StoreError, match=r"not an inventory of llmgw|newer llmgw") as unknown:
        read_memory(path)
    assert unknown.value.exit_code == 3
    assert snapshot(tmp_path) == before


def test_a_file_of_a_newer_version_makes_the_dry_run_say_that_it_cannot_tell(
    tmp_path: Path,
) -> None:
    """After a downgrade: neither moved aside as broken nor read as empty (exit 3); control says the same and waits."""
    path = tmp_path / "i.db"
    filled(path)
    with closing(sqlite3.connect(path)) as db, db:
        db.execute(f"PRAGMA user_version={len(MIGRATIONS) + 1}")
    before = snapshot(tmp_path)
    for look in (read_memory, read_sources):
        with pytest.raises(StoreError, match="newer llmgw") as unknown:
            look(path)
        assert unknown.value.exit_code == 3
    assert snapshot(tmp_path) == before


@pytest.mark.parametrize("page_bytes", [512, 4096, 65536])
def test_f42_a_half_done_transaction_is_undone_as_sqlite_does_it(
    page_bytes: int, tmp_path: Path
) -> None:
    """Byte for byte what the next opening makes of the file, without writing to it (A53)."""
    path = tmp_path / "i.db"
    with closing(sqlite3.connect(path)) as db:
        db.execute(f"PRAGMA page_size={page_bytes}")
        db.execute("VACUUM")
    filled(path)
    killed_writer(path)
    before = snapshot(tmp_path)
    data = content(path)
    assert data != path.read_bytes()
    assert snapshot(tmp_path) == before
    with closing(sqlite3.connect(path)) as db:
        assert db.execute("SELECT count(*) FROM nodes").fetchone() == (1,)
    assert path.read_bytes() == data


def test_f42_a_journal_cut_anywhere_never_makes_more_of_the_file_than_there_was(
    tmp_path: Path,
) -> None:
    """A power cut leaves a journal that ends in the middle of a record, or one of zeros: both are read to their end."""
    path = tmp_path / "i.db"
    filled(path)
    killed_writer(path)
    data, journal = path.read_bytes(), (tmp_path / "i.db-journal").read_bytes()
    whole = rolled_back(data, journal)
    dice = random.Random(1)
    for length in (0, 7, 8, 27, 28, 511, 512, *dice.sample(range(len(journal)), 30)):
        assert len(rolled_back(data, journal[:length])) in (len(whole), len(data))
    assert rolled_back(data, bytes(len(journal))) == data
    spoiled = bytearray(journal)
    spoiled[512 + 4 + 4096 - 200] ^= (
        1  # the first record's checksum does not fit: nothing after it counts
    )
    assert rolled_back(data, bytes(spoiled)) == data[: len(whole)]


def test_f16_a_backup_put_beside_a_killed_writers_journal_is_not_spoiled_by_it(
    tmp_path: Path,
) -> None:
    """SQLite would roll pages of the lost file into the backup without a word: nodes mixed, or a broken file."""
    path = tmp_path / "i.db"
    filled(path)
    shutil.copy(path, tmp_path / "backup")
    store = opened(path)
    for epoch in range(8, 12):
        store.write_epoch(epoch, "leader")
    store.close()
    killed_writer(path)
    shutil.copy(tmp_path / "backup", path)
    assert read_memory(path).epoch == 7  # what the dry run sees is what control will
    warnings: list[str] = []
    store = opened(path, warnings)
    assert store.epoch() == 7
    assert [n.node for n, _ in store.memory(moment(0.0)).nodes] == ["box1"]
    store.close()
    assert "had the journal of another file" in warnings[0]
    (kept,) = tmp_path.glob("i.db.corrupt-*-journal")
    assert not belongs(path.read_bytes(), kept.read_bytes())


def test_a51_a_file_deleted_from_under_its_journal_is_begun_anew(tmp_path: Path) -> None:
    path = tmp_path / "i.db"
    filled(path)
    killed_writer(path)
    path.unlink()
    assert read_memory(path).nodes == ()
    store = opened(path)
    assert (store.epoch(), store.memory(moment(0.0)).nodes) == (0, ())
    store.write_epoch(3, "leader")
    store.close()
    assert read_memory(path).epoch == 3


def test_f1_what_a_killed_start_left_does_not_stop_the_next(tmp_path: Path) -> None:
    """In a container the next control has the same pid, and met its own half-made file."""
    path = tmp_path / "i.db"
    for left in (f"i.db.new-{os.getpid()}", "i.db.new-1", "i.db.new-1-journal"):
        (tmp_path / left).write_bytes(b"half")
    opened(path).close()
    assert files(tmp_path) == ["i.db"]


def test_a_symlink_is_followed_and_stays(tmp_path: Path) -> None:
    """Made anew or moved aside is the file, not the link to it; one that leads nowhere is filled, not replaced."""
    disk = tmp_path / "disk"
    disk.mkdir()
    link = tmp_path / "i.db"
    link.symlink_to(disk / "real.db")
    for spoil in (None, disk.joinpath("real.db").unlink, lambda: link.write_bytes(b"x" * 9000)):
        if spoil:
            spoil()
        store = opened(link)
        store.write_epoch(3, "leader")
        store.close()
        assert link.is_symlink()
        assert read_memory(link).epoch == 3
        assert files(tmp_path) == ["disk", "i.db"]
    assert len(list(disk.glob("real.db.corrupt-*"))) == 1
    killed_writer(link)  # its journal is beside the file, too
    before = snapshot(disk)
    assert read_memory(link).epoch == 3
    assert snapshot(disk) == before


@pytest.mark.parametrize("left", ["none", "log", "log and index"])
def test_a53_a_write_ahead_log_that_somebody_turned_on_is_not_made_by_looking(
    left: str, tmp_path: Path
) -> None:
    """SQLite makes -wal and -shm even for a reader; where a log has rows that the file lacks it is said, exit 3."""
    path = tmp_path / "i.db"
    filled(path)
    with closing(sqlite3.connect(path)) as db:
        db.execute("PRAGMA journal_mode=WAL")
        if left != "none":
            db.execute("INSERT INTO meta VALUES ('more', '1')")
            db.commit()
            for name in ("i.db", "i.db-wal", "i.db-shm")[: 2 if left == "log" else 3]:
                shutil.copy(tmp_path / name, tmp_path / f"kept{name}")
    if left != "none":
        for kept in tmp_path.glob("kept*"):
            kept.rename(tmp_path / kept.name.removeprefix("kept"))
    before = snapshot(tmp_path)
    if left == "none":
        assert read_memory(path).epoch == 7
    else:
        with pytest.raises(StoreError, match="write-ahead log") as unknown:
            read_memory(path)
        assert unknown.value.exit_code == 3
    assert snapshot(tmp_path) == before
    store = opened(path)
    assert store.epoch() == 7
    store.close()
    assert files(tmp_path) == ["i.db"]
    assert read_memory(path).epoch == 7


def test_a53_nothing_is_copied_to_anywhere_to_be_looked_at(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path / "tmp"))
    (tmp_path / "tmp").mkdir()
    path = tmp_path / "i.db"
    filled(path)
    killed_writer(path)
    looked: Callable[[], object] = lambda: read_memory(path)  # noqa: E731 - once locked, once not
    assert looked()
    with closing(sqlite3.connect(path, isolation_level=None)) as other:
        other.execute("BEGIN EXCLUSIVE")
        assert looked()
    assert not list((tmp_path / "tmp").iterdir())


@scenario
async def test_f42_control_starts_on_what_a_killed_one_left(bench: Bench) -> None:
    """With a journal to roll back, and beside one that is not of this file: adopted, nothing started or stopped."""
    agent = Agent(bench)
    agent.runs(engine())
    async with bench.running(crash=True):
        await agent.register()
        await bench.later(1)
        shutil.copy(bench.inventory, bench.folder / "backup")
    killed_writer(bench.inventory)
    async with bench.running(crash=True) as control:
        assert list(control.state.nodes) == ["box1"]
        assert await agent.register() == {"alpha-1/0": "adopt"}
        epoch = control.state.epoch
    killed_writer(bench.inventory)
    shutil.copy(bench.folder / "backup", bench.inventory)
    async with bench.running() as control:
        assert "had the journal of another file" in bench.warnings[0]
        assert list(control.state.nodes) == ["box1"]
        assert await agent.register() == {"alpha-1/0": "adopt"}
        assert control.state.epoch == epoch + 1
        assert bench.orders(agent) == []
        assert isinstance(control.store, Store)
