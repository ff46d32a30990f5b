"""The inventory file goes away, breaks or cannot be written while control runs: the fleet notices nothing.

F13, F14, F15, F16, A51. For each trouble with the file: adoption, routes and dispatch go on, nothing is stopped,
`status` and the events say what is wrong and what to try, the file is whole again by itself once it can be, and the
epoch only rises. A real disk that is full or read-only: `test_inventory_disk`; two controls: `test_inventory_two`.
"""

import os
import shutil
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, closing, contextmanager
from pathlib import Path

import pytest
from msgspec.structs import replace

from llmgw.control.keep import PAUSE_S
from llmgw.control.picture import Change, Picture
from llmgw.control.store import Store, moment, read_memory
from llmgw.core.types.messages import NodeReport, Resources, Start
from tests.control.bench import CATALOG, Agent, Bench, engine, scenario, started

BETA = CATALOG.replace("alpha:", "beta:").replace("first", "second").split("models:\n")[1]


def pages_broken(path: Path) -> None:
    """The header is right, what follows is not: only a check finds it."""
    data = bytearray(path.read_bytes())
    data[4096:] = os.urandom(len(data) - 4096)
    path.write_bytes(bytes(data))


def written(path: Path, data: bytes) -> None:
    path.write_bytes(data)


def cut(path: Path) -> None:
    os.truncate(path, path.stat().st_size // 2)


def folder_deleted(path: Path) -> None:
    shutil.rmtree(path.parent)


def tables_gone(path: Path) -> None:
    with closing(sqlite3.connect(path)) as db, db:
        db.execute("DROP TABLE nodes")


def replaced_by_an_empty_one(path: Path) -> None:
    path.unlink()
    path.touch()


def a_backup(path: Path) -> bytes:
    """Of long ago, with a node that an operator had control forget since, and an epoch that is over."""
    backup = path.with_name("backup.db")
    store = Store(backup, warn=print)
    store.open()
    old = Picture(NodeReport(node="box9", node_id="id-box9"), unreachable=False, heard_at="")
    store.save(Change(nodes={"box9": old}, sources={"c.yaml": "version: 1\n"}), moment(0.0))
    store.close()
    data = backup.read_bytes()
    backup.unlink()
    return data


def a_backup_moved_in(path: Path) -> None:
    other = path.with_name("other.db")
    other.write_bytes(a_backup(path))
    other.rename(path)


#: What control mends without anybody's help: by a new file, and what it knows goes into it.
MENDED: dict[str, Callable[[Path], None]] = {
    "deleted": Path.unlink,
    "folder deleted": folder_deleted,
    "zero bytes": lambda path: os.truncate(path, 0),
    "an empty file": replaced_by_an_empty_one,
    "random bytes": lambda path: written(path, os.urandom(20_000)),
    "cut in the middle": cut,
    "pages broken": pages_broken,
    "a table is missing": tables_gone,
    "a backup copied in": lambda path: written(path, a_backup(path)),
    "a backup moved in": a_backup_moved_in,
}


@contextmanager
def locked(path: Path) -> Iterator[None]:
    with closing(sqlite3.connect(path, isolation_level=None)) as other:
        other.execute("BEGIN EXCLUSIVE")
        yield
        other.execute("ROLLBACK")


@contextmanager
def away(path: Path, instead: Callable[[Path], None]) -> Iterator[None]:
    """The file is somewhere else, and something that cannot be used has its name."""
    kept = path.with_name("kept")
    path.rename(kept)
    instead(path)
    yield
    path.rmdir() if path.is_dir() else path.unlink()
    kept.rename(path)


def newer(path: Path) -> None:
    with closing(sqlite3.connect(path)) as db, db:
        db.execute("PRAGMA user_version=99")


def a_stranger(path: Path) -> None:
    with closing(sqlite3.connect(path)) as db, db:
        db.execute("CREATE TABLE photos (name TEXT)")


@contextmanager
def folder_is_a_file(path: Path) -> Iterator[None]:
    kept = path.parent.with_name("elsewhere")
    path.parent.rename(kept)
    path.parent.touch()
    yield
    path.parent.unlink()
    kept.rename(path.parent)


#: What needs somebody else: control says so, goes on, and uses the file again when it can.
LASTING: dict[str, tuple[Callable[[Path], AbstractContextManager[None]], str]] = {
    "locked": (locked, "locked by another program"),
    "a directory": (lambda path: away(path, Path.mkdir), "is a folder"),
    "a symlink loop": (lambda path: away(path, lambda p: p.symlink_to(p)), "levels of symbolic"),
    "of a newer version": (lambda path: away(path, newer), "newer llmgw (format 99"),
    "of another program": (lambda path: away(path, a_stranger), "not an inventory"),
    "folder is a file": (folder_is_a_file, "Not a directory"),
}


class Fleet:
    """Two nodes: box1 runs alpha from before; box2 comes while the file is in trouble."""

    def __init__(self, bench: Bench) -> None:
        bench.inventory = bench.folder / "state" / "inventory.db"
        bench.inventory.parent.mkdir()
        self.bench = bench
        self.box1 = Agent(bench)
        self.box1.runs(engine())
        self.box2 = Agent(bench, "box2")
        self.starts: list[Start] = []

    async def begins(self) -> None:
        await self.box1.register()
        await self.bench.later(1)
        assert await self.routed() == ["alpha-1"]

    async def goes_on(self) -> None:
        """Adoption, routes and dispatch, while the file cannot be used."""
        bench = self.bench
        before = bench.control.routes.version
        assert await self.box2.register() == {}
        bench.catalog.write_text(CATALOG + BETA)
        await bench.post("/api/v1/catalog")
        for agent in (self.box1, self.box2):
            self.starts += [c for c in await self.now(agent) if isinstance(c, Start)]
            for start in self.starts:
                if not self.ran(start):
                    await agent.tell(started(start))
        assert [s.model for s in self.starts] == ["beta"]
        await bench.later(1)
        assert await self.routed() == ["alpha-1", self.starts[0].replica]
        assert bench.control.routes.version > before
        assert bench.leading()
        assert {o for a in (self.box1, self.box2) for o in bench.orders(a)} <= {"start", "report"}

    def ran(self, start: Start) -> bool:
        return any(start.incarnation == i for a in (self.box1, self.box2) for _, i in a.shards)

    async def now(self, agent: Agent) -> tuple[object, ...]:
        """What is queued for it; a long poll would wait where nothing is."""
        return await agent.poll() if self.bench.orders(agent) else ()

    async def routed(self) -> list[str]:
        table = await self.bench.get("/gateway/v1/routes?version=0")
        found = [r for m in table["models"].values() for r in m["replicas"]]
        return sorted(r["replica"] for r in found if r["state"] == "ready")

    async def warnings(self) -> list[str]:
        return list((await self.bench.get("/api/v1/status"))["warnings"])

    async def is_whole(self) -> None:
        """Nothing is complained of, and the file has all that a later control needs."""
        assert await self.warnings() == []
        control = self.bench.control
        assert control.store.epoch() == control.state.epoch
        memory = read_memory(self.bench.inventory)
        believed = [(n.node, [s.replica for s in n.shards]) for n, _ in memory.nodes]
        on = {a.report.node: [s.replica for s in a.shards.values()] for a in (self.box1, self.box2)}
        assert believed == sorted(on.items())
        assert control.store.sources() == control.catalogs.sources

    async def another_control_finds_it_all(self, epoch: int) -> None:
        async with self.bench.running() as control:
            assert control.state.epoch > epoch
            assert sorted(control.state.nodes) == ["box1", "box2"]
            verdicts = await self.box1.register() | await self.box2.register()
            assert set(verdicts.values()) == {"adopt"}
            await self.bench.passes(30, self.box1, self.box2)
            assert self.bench.orders(self.box1) == self.bench.orders(self.box2) == []
            assert (await self.bench.get("/api/v1/plan"))["exit_code"] == 0


@pytest.mark.parametrize("trouble", MENDED)
def test_f14_what_control_mends_by_itself(trouble: str, tmp_path: Path) -> None:
    """A51 too: the file may go while control runs as well as while it is down. Nothing it knows is lost with it."""

    @scenario
    async def story(bench: Bench) -> None:
        fleet = Fleet(bench)
        async with bench.running(crash=True) as control:
            await fleet.begins()
            MENDED[trouble](bench.inventory)
            await fleet.goes_on()
            await bench.passes(2 * PAUSE_S, fleet.box1, fleet.box2)
            await fleet.is_whole()
            assert [e for e in bench.events("inventory") if e.get("hint") or "moved to" in e["why"]]
            kept = [e["id"] for e in control.store.events(1000)]
            assert kept == [e["id"] for e in control.story.events]  # history too
            epoch = control.state.epoch
        await fleet.another_control_finds_it_all(epoch)

    story(tmp_path)


@pytest.mark.parametrize("trouble", MENDED)
def test_f16_an_epoch_is_raised_in_the_file_that_is_there_now(trouble: str, tmp_path: Path) -> None:
    """The first to find the file gone may be the write of an epoch: it must not cost the lead for good."""

    @scenario
    async def story(bench: Bench) -> None:
        fleet = Fleet(bench)
        async with bench.running(crash=True) as control:
            await fleet.begins()
            MENDED[trouble](bench.inventory)
            fleet.box2.report = replace(fleet.box2.report, epoch_seen=41, leader_uuid="another")
            await fleet.box2.register()
            assert (fleet.box2.said.leader, fleet.box2.said.epoch) == (True, 42)
            assert await fleet.routed() == ["alpha-1"]
            assert bench.leading()
            await bench.passes(2 * PAUSE_S, fleet.box1, fleet.box2)
            await fleet.is_whole()
            assert read_memory(bench.inventory).epoch == control.state.epoch == 42

    story(tmp_path)


@pytest.mark.parametrize("trouble", LASTING)
def test_f13_f15_what_lasts_is_said_and_holds_up_nobody(trouble: str, tmp_path: Path) -> None:
    """The epoch is on the disk already, so this control leads on: F15 forbids a new lead, not an old one."""
    spoiled, words = LASTING[trouble]

    @scenario
    async def story(bench: Bench) -> None:
        fleet = Fleet(bench)
        async with bench.running(crash=True) as control:
            await fleet.begins()
            with spoiled(bench.inventory):
                await fleet.goes_on()
                await bench.passes(2 * PAUSE_S, fleet.box1, fleet.box2)
                said, *_ = await fleet.warnings()
                assert "history is not kept" in said
                assert words in said
                (told,) = bench.events("inventory")  # once, however long it lasts
                assert words in told["why"]
                assert told["hint"] in said
                assert bench.leading()
            await bench.passes(2 * PAUSE_S, fleet.box1, fleet.box2)
            await fleet.is_whole()
            assert bench.events("inventory")[-1]["why"].endswith("is written again")
            epoch = control.state.epoch
        await fleet.another_control_finds_it_all(epoch)

    story(tmp_path)


@pytest.mark.parametrize("trouble", [name for name in LASTING if name != "folder is a file"])
def test_f15_what_lasts_at_the_start_means_not_to_lead_until_it_is_over(
    trouble: str, tmp_path: Path
) -> None:
    """No epoch on the disk: nothing is decided, the gateway keeps its table; nobody has to start control again."""
    spoiled, words = LASTING[trouble]

    @scenario
    async def story(bench: Bench) -> None:
        fleet = Fleet(bench)
        async with bench.running(crash=True) as control:
            await fleet.begins()
            epoch = control.state.epoch
        with spoiled(bench.inventory):
            async with bench.running(crash=True) as control:
                assert await fleet.box1.register() == {"alpha-1/0": "adopt"}
                assert not fleet.box1.said.leader
                await bench.passes(2 * PAUSE_S, fleet.box1)
                blocked = (await bench.get("/api/v1/status"))["blocked"]
                assert "no epoch can be stored" in blocked
                assert words in blocked
                (told,) = bench.events("blocked")
                assert told["hint"] in blocked
                await bench.get("/gateway/v1/routes?version=0", status=503)
                assert bench.orders(fleet.box1) == []
        kept = bench.inventory.read_bytes()
        with spoiled(bench.inventory):
            async with bench.running(crash=True):
                pass
        assert bench.inventory.read_bytes() == kept
        async with bench.running(crash=True) as control:
            assert control.state.epoch == epoch + 1
            assert await fleet.box1.register() == {"alpha-1/0": "adopt"}

    story(tmp_path)


@scenario
async def test_a62_what_an_engine_held_at_most_is_known_after_a_restart(bench: Bench) -> None:
    async with bench.running():
        agent = Agent(bench)
        need = Resources(gpu_memory_bytes=1 << 30)
        shard = engine(fingerprint="2:x", resources=need, gpu_peak_bytes=3 << 30)
        agent.runs(shard)
        await agent.register()
        await bench.passes(2.0, agent)
    assert read_memory(bench.inventory).learned == {shard.fingerprint: 3 << 30}
    async with bench.running() as control:
        assert control.state.learned == {shard.fingerprint: 3 << 30}


def test_a_figure_that_makes_no_sense_is_measured_anew(tmp_path: Path) -> None:
    store = Store(tmp_path / "inventory.db", warn=print)
    store.open()
    store.save(Change(learned={"1:a": 5, "1:b": 7}), moment(0.0))
    store.close()
    with closing(sqlite3.connect(tmp_path / "inventory.db")) as db, db:
        db.execute("UPDATE learned SET gpu_bytes = 'much' WHERE fingerprint = '1:a'")
    assert read_memory(tmp_path / "inventory.db").learned == {"1:b": 7}
