"""The inventory file: made whole, kept small, read without a trace, and never a reason for control not to go on."""

import os
import shutil
import signal
import sqlite3
import stat
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest

from llmgw.control.lease import Flock
from llmgw.control.picture import Change, Moment, Picture
from llmgw.control.rows import MIGRATIONS
from llmgw.control.store import (
    EVENTS_KEPT,
    Store,
    StoreError,
    apply_reports,
    moment,
    read_memory,
    read_sources,
)
from llmgw.core.types.messages import NodeReport, SendReport
from llmgw.core.types.state import Draining, Failure
from llmgw.errors import LlmgwError
from tests.control.bench import Agent, Bench, engine, scenario


def opened(path: Path, warnings: list[str] | None = None) -> Store:
    store = Store(path, warn=(warnings if warnings is not None else []).append)
    store.open()
    return store


def report(node: str = "box1", **changes: object) -> NodeReport:
    return NodeReport(node=node, node_id=f"id-{node}", shards=(engine(),), **changes)  # type: ignore[arg-type]


def filled(path: Path) -> None:
    store = opened(path)
    now = moment(50.0)
    store.write_epoch(7, "leader")
    store.save(
        Change(
            nodes={"box1": Picture(report(), unreachable=False, heard_at=now.iso(50.0))},
            draining={"inc-1": Draining(20.0, "idle", "idle for 600 s")},
            failures={"alpha": (Failure("inc-0", "main", 40.0, "exit 1", gave_up=True),)},
            sources={"c.yaml": "version: 1\n"},
            paused="since noon",
            confirmed=frozenset({"inc-2", "inc-1"}),
            events=({"id": 1, "at": "2026-01-01T00:00:00Z", "kind": "start", "why": "min 1"},),
        ),
        now,
    )
    store.close()


def files(folder: Path) -> list[str]:
    return sorted(p.name for p in folder.iterdir())


def test_what_is_saved_comes_back_in_the_readers_seconds(tmp_path: Path) -> None:
    path = tmp_path / "i.db"
    filled(path)
    store = opened(path)
    memory = store.memory(moment(1000.0))
    assert memory.epoch == 7
    ((node, unreachable),) = memory.nodes
    assert (node.node, unreachable, node.shards[0].shard) == ("box1", False, "alpha-1/0")
    assert memory.draining["inc-1"].since_s == pytest.approx(970.0, abs=5)
    assert memory.failures["alpha"][0].at_s == pytest.approx(990.0, abs=5)
    assert memory.failures["alpha"][0].gave_up
    assert memory.paused == "since noon"
    assert memory.confirmed == frozenset({"inc-1", "inc-2"})
    assert store.sources() == {"c.yaml": "version: 1\n"} == read_sources(path)
    assert [e["why"] for e in store.events(10)] == ["min 1"]
    store.close()


def test_it_is_one_private_file(tmp_path: Path) -> None:
    path = tmp_path / "i.db"
    filled(path)
    assert files(tmp_path) == ["i.db"]
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    with closing(sqlite3.connect(path)) as db:
        assert db.execute("PRAGMA journal_mode").fetchone() == ("delete",)
        assert db.execute("PRAGMA user_version").fetchone() == (len(MIGRATIONS),)


def test_old_events_go(tmp_path: Path) -> None:
    store = opened(tmp_path / "i.db")
    for n in (1, 2, EVENTS_KEPT + 1):
        store.save(Change(events=({"id": n, "at": "", "kind": "x", "why": ""},)), moment(0.0))
    assert [e["id"] for e in store.events(10)] == [2, EVENTS_KEPT + 1]
    store.close()


def test_f26_a_clock_set_back_gives_no_time_in_the_future() -> None:
    now = Moment(100.0, 1_000_000.0)
    assert now.seconds(now.iso(90.0)) == pytest.approx(90.0, abs=0.01)
    assert now.seconds(now.iso(500.0)) == 100.0
    assert now.seconds("never") == 100.0


def test_f14_a_broken_file_is_moved_aside(tmp_path: Path) -> None:
    path = tmp_path / "i.db"
    filled(path)
    data = bytearray(path.read_bytes())
    data[4096:8192] = os.urandom(4096)
    for bad in (b"this is no database at all" * 100, bytes(data)):
        path.write_bytes(bad)
        warnings: list[str] = []
        store = opened(path, warnings)
        assert store.epoch() == 0
        store.close()
        assert "empty history" in warnings[0]
        (aside,) = tmp_path.glob("i.db.corrupt-*")
        assert aside.read_bytes() == bad
        aside.unlink()


def test_an_empty_file_is_a_new_one(tmp_path: Path) -> None:
    path = tmp_path / "i.db"
    path.touch()
    store = opened(path)
    store.write_epoch(3, "l")
    assert store.epoch() == 3
    store.close()


def test_a_file_of_a_newer_version_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "i.db"
    filled(path)
    with closing(sqlite3.connect(path)) as db:
        db.execute("PRAGMA user_version=99")
    before = path.read_bytes()
    with pytest.raises(StoreError, match="newer llmgw"):
        opened(path)
    assert path.read_bytes() == before


def test_f20_a_record_that_cannot_be_read_is_set_aside_alone(tmp_path: Path) -> None:
    path = tmp_path / "i.db"
    filled(path)
    with closing(sqlite3.connect(path)) as db, db:
        db.execute("INSERT INTO nodes VALUES ('box2', 0, '', '{\"node\": 5}')")
    warnings: list[str] = []
    memory = read_memory(path, warn=warnings.append)
    assert [n.node for n, _ in memory.nodes] == ["box1"]
    assert "box2" in warnings[0]


def test_f13_a_locked_file_is_said_and_not_waited_for(tmp_path: Path) -> None:
    path = tmp_path / "i.db"
    filled(path)
    store = opened(path)
    with closing(sqlite3.connect(path, isolation_level=None)) as other:
        other.execute("BEGIN EXCLUSIVE")
        with pytest.raises(StoreError, match="locked by another program") as caught:
            store.write_epoch(8, "l")
        assert caught.value.busy
        other.execute("ROLLBACK")
    store.write_epoch(8, "l")
    store.close()


def test_a53_reading_leaves_no_trace(tmp_path: Path) -> None:
    path = tmp_path / "i.db"
    assert read_memory(path).nodes == ()
    assert files(tmp_path) == []
    filled(path)
    before = (path.read_bytes(), path.stat().st_mtime_ns)
    assert read_memory(path).epoch == 7
    assert (path.read_bytes(), path.stat().st_mtime_ns) == before
    assert files(tmp_path) == ["i.db"]


def test_a53_reading_a_locked_file_waits_for_nobody(tmp_path: Path) -> None:
    path = tmp_path / "i.db"
    filled(path)
    with closing(sqlite3.connect(path, isolation_level=None)) as other:
        other.execute("BEGIN EXCLUSIVE")
        other.execute("DELETE FROM nodes")
        assert [n.node for n, _ in read_memory(path).nodes] == ["box1"]


KILLED_WRITER = """
import os, signal, sqlite3, sys
db = sqlite3.connect(sys.argv[1], isolation_level=None)
db.execute("PRAGMA cache_size=5")
db.execute("BEGIN IMMEDIATE")
db.execute("DELETE FROM nodes")
for n in range(3000):
    db.execute("INSERT INTO events VALUES (?, '', ?)", (n + 10, "x" * 500))
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_a53_a_journal_left_by_a_killed_writer_is_read_over_and_left(tmp_path: Path) -> None:
    path = tmp_path / "i.db"
    filled(path)
    killed = subprocess.run([sys.executable, "-c", KILLED_WRITER, str(path)], check=False)
    assert killed.returncode == -signal.SIGKILL
    assert files(tmp_path) == ["i.db", "i.db-journal"]
    before = {p.name: p.read_bytes() for p in tmp_path.iterdir()}
    assert [n.node for n, _ in read_memory(path).nodes] == ["box1"]
    assert {p.name: p.read_bytes() for p in tmp_path.iterdir()} == before
    store = opened(path)
    assert [n.node for n, _ in store.memory(moment(0.0)).nodes] == ["box1"]
    store.close()
    assert files(tmp_path) == ["i.db"]


def test_a_broken_file_reads_as_no_history(tmp_path: Path) -> None:
    path = tmp_path / "i.db"
    path.write_bytes(b"no database" * 1000)
    warnings: list[str] = []
    assert read_memory(path, warn=warnings.append).nodes == ()
    assert "empty history" in warnings[0]
    assert files(tmp_path) == ["i.db"]


def test_an_inventory_that_cannot_be_read_is_no_empty_one(tmp_path: Path) -> None:
    """Whoever lacks the right to it must not be told that nothing is remembered (A55): exit 3."""
    (tmp_path / "folder").mkdir()
    (tmp_path / "file").touch()
    for path in (tmp_path / "folder", tmp_path / "file" / "inventory.db"):
        with pytest.raises(StoreError, match="cannot be read") as e:
            read_memory(path)
        assert e.value.exit_code == 3


def test_offline_adopt_writes_the_picture_and_nothing_else(tmp_path: Path) -> None:
    path = tmp_path / "i.db"
    filled(path)
    two = report("box2", epoch_seen=9)
    apply_reports(path, [NodeReport(node="box1", shards=(engine("other-1"),)), two])
    memory = read_memory(path)
    assert [(n.node, n.shards[0].replica) for n, _ in memory.nodes] == [
        ("box1", "other-1"),
        ("box2", "alpha-1"),
    ]
    assert memory.epoch == 7


def test_offline_adopt_keeps_out_of_a_running_controls_file(tmp_path: Path) -> None:
    path = tmp_path / "i.db"
    with (
        Flock(path),
        pytest.raises(LlmgwError, match=f"in use by another control, pid {os.getpid()}"),
    ):
        apply_reports(path, [report()])


@scenario
async def test_a51_without_its_inventory_control_adopts_all_the_same(bench: Bench) -> None:
    agent = Agent(bench)
    agent.runs(engine())
    async with bench.running():
        await agent.register()
    bench.inventory.unlink()
    async with bench.running() as control:
        assert await agent.register() == {"alpha-1/0": "adopt"}
        assert bench.settling()  # other boxes may still be registering (A47)
        await bench.passes(20, agent)
        assert not bench.settling()
        assert bench.orders(agent) == []
        assert control.state.epoch == 2  # the agent had obeyed epoch 1


@scenario
async def test_f13_a_locked_inventory_holds_up_nobody(bench: Bench) -> None:
    async with bench.running() as control:
        with closing(sqlite3.connect(bench.inventory, isolation_level=None)) as other:
            other.execute("BEGIN EXCLUSIVE")
            agent = Agent(bench)
            await agent.register()
            shard = await agent.start_one()
            (warning,) = (await bench.get("/api/v1/status"))["warnings"]
            assert "history is not kept" in warning
            assert "locked by another program" in warning
            other.execute("ROLLBACK")
        await bench.later(6)
        assert (await bench.get("/api/v1/status"))["warnings"] == []
        ((node, _),) = control.store.memory(bench.clock.moment(0.0)).nodes
        assert [s.shard for s in node.shards] == [shard.shard]


@scenario
async def test_f15_without_an_epoch_on_the_disk_control_does_not_lead(bench: Bench) -> None:
    async with bench.running():
        pass
    with closing(sqlite3.connect(bench.inventory, isolation_level=None)) as other:
        other.execute("BEGIN EXCLUSIVE")
        async with bench.running():
            agent = Agent(bench)
            await agent.register()
            assert (agent.said.leader, agent.said.epoch) == (False, 0)
            assert "no epoch can be stored" in (await bench.get("/api/v1/status"))["blocked"]
            await bench.get("/readyz", status=503)
            await bench.get("/gateway/v1/routes?version=0", status=503)
            other.execute("ROLLBACK")
            await bench.later(2)
            assert bench.leading()
            (
                order,
            ) = await agent.poll()  # asked for a report under the new epoch: that is the fence
            assert (type(order), order.epoch) == (SendReport, 2)
            await agent.register()
            assert (agent.said.leader, agent.said.epoch) == (True, 2)


@scenario
async def test_an_inventory_removed_or_broken_in_use_is_written_again(bench: Bench) -> None:
    async with bench.running() as control:
        agent = Agent(bench)
        await agent.register()
        for spoil in (bench.inventory.unlink, lambda: bench.inventory.write_bytes(b"x" * 9000)):
            spoil()
            for _ in range(3):
                await agent.tell(engine(f"alpha-{bench.clock.now:.0f}", port=18100))
                await bench.later(6)
            assert control.keeper.problem == ""
            memory = read_memory(bench.inventory)
            assert memory.epoch == control.state.epoch
            assert [n.node for n, _ in memory.nodes] == ["box1"]
            await agent.register()


@scenario
async def test_a_copy_taken_in_use_is_a_backup(bench: Bench) -> None:
    async with bench.running():
        agent = Agent(bench)
        agent.runs(engine())
        await agent.register()
        shutil.copy(bench.inventory, bench.folder / "copy.db")
    assert [n.node for n, _ in read_memory(bench.folder / "copy.db").nodes] == ["box1"]


FULL_DISK = """
import resource, sys
from pathlib import Path
from llmgw.control.lease import FileLease
from llmgw.control.store import Store, StoreError
path = Path(sys.argv[1])
store = Store(path, warn=print)
store.open()
resource.setrlimit(resource.RLIMIT_FSIZE, (100, 100))
try:
    FileLease(path, store).acquire("l", 0)
except StoreError as e:
    print(e.message)
    sys.exit(3)
"""


def test_f15_a_full_disk_gives_no_epoch(tmp_path: Path) -> None:
    path = tmp_path / "i.db"
    filled(path)
    done = subprocess.run(
        [sys.executable, "-c", FULL_DISK, str(path)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 3, done.stderr
    assert read_memory(path).epoch == 7


def test_values_that_make_no_sense_are_as_lost_ones(tmp_path: Path) -> None:
    """The agents' epoch is above whatever it was (F16); control must not fail to start over a row."""
    path = tmp_path / "i.db"
    filled(path)
    with closing(sqlite3.connect(path)) as db:
        db.execute("UPDATE meta SET value = 'x'")
        db.execute("INSERT OR REPLACE INTO meta VALUES ('confirmed', '[')")
        db.execute("UPDATE events SET event = '[]'")
        db.commit()
    store = opened(path)
    assert store.epoch() == 0
    assert store.memory(moment(0.0)).confirmed == frozenset()
    assert store.events(5) == [{"id": 1}]
    store.close()
