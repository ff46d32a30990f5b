"""Two controls on one host want one inventory: the second ends and says whose it is, by whatever name it comes (F17).

The kernel's locks go with the process that holds them, so after a kill -9 the next one starts at once.
"""

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from llmgw.control.lease import FileLease, Flock, LeaseLostError
from llmgw.control.store import Store, apply_reports, read_memory
from llmgw.core.types.messages import NodeReport
from llmgw.errors import LlmgwError
from scripts.ports import free_port
from tests.control.bench import Agent, engine
from tests.control.box import Box
from tests.control.mounts import also_at
from tests.control.test_crash import run
from tests.control.test_lease import Epochs

INVENTORY = "state/inventory.db"


def link(folder: Path, name: str, to: Path) -> Path:
    (folder / name).symlink_to(to)
    return folder / name


def hard_link(folder: Path) -> Path:
    (folder / "hard").mkdir()
    (folder / "hard/inv.db").hardlink_to(folder / INVENTORY)
    return folder / "hard/inv.db"


#: Other ways to the inventory of a control that runs on `state/inventory.db`.
WAYS: dict[str, Callable[[Path], Path]] = {
    "the same path": lambda folder: folder / INVENTORY,
    "a relative path": lambda folder: Path(os.path.relpath(folder / INVENTORY, Path.cwd())),
    "a path with dots": lambda folder: folder / "state/../state/inventory.db",
    "a symlink to the file": lambda folder: link(folder, "s.db", folder / INVENTORY),
    "a symlink to the folder": lambda folder: link(folder, "s", folder / "state") / "inventory.db",
    "a hard link": hard_link,
    "another name in the same state dir": lambda folder: folder / "state/other.db",
}


def second(box: Box, inventory: Path, log: Path) -> "subprocess.Popen[bytes]":
    """Everything else is its own."""
    words = ["control", "--catalog", str(box.catalog), "--inventory", str(inventory)]
    words += ["--listen", f"127.0.0.1:{free_port()}", "--gateway", "none"]
    with log.open("wb") as file:
        process = subprocess.Popen(
            [sys.executable, "-m", "llmgw", *words],
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=file,
        )
    box.processes.append(process)
    return process


@pytest.mark.parametrize("way", WAYS)
def test_f17_every_way_to_the_file_is_closed(way: str, tmp_path: Path) -> None:
    inventory = tmp_path / INVENTORY
    inventory.parent.mkdir()
    opened(inventory).close()
    held = FileLease(inventory, Epochs())
    path = WAYS[way](tmp_path)
    with pytest.raises(LlmgwError, match=f"in use by another control, pid {os.getpid()}$") as e:
        FileLease(path, Epochs())
    assert (e.value.code, e.value.exit_code) == ("locked", 1)
    assert "--inventory" in e.value.hint
    held.release()
    FileLease(path, Epochs()).release()


def test_f17_the_second_control_ends_and_the_next_one_after_a_kill_leads(tmp_path: Path) -> None:
    """It names the pid of the first, which goes on: its gateway, in the same folder, is not taken from it either."""
    names = ("the same path", "a hard link", "another name in the same state dir")

    async def story() -> None:
        async with Box(tmp_path) as box:
            first = box.start()
            await box.up()
            agent = Agent(box)
            agent.runs(engine())
            await agent.register()
            before = sorted(p.name for p in box.state.iterdir())
            ways = {name: WAYS[name](tmp_path) for name in names}
            logs = {name: tmp_path / f"{name}.log" for name in ways}
            tried = {name: second(box, path, logs[name]) for name, path in ways.items()}
            for name, process in tried.items():
                assert await box.ended(process) == 1, name
                said = logs[name].read_text()
                assert f"is in use by another control, pid {first.pid}\n" in said, (name, said)
                assert "hint: " in said
                assert "Traceback" not in said
            assert first.poll() is None
            assert (await box.get("/api/v1/leader"))["epoch"] == 1
            assert before == sorted(p.name for p in box.state.iterdir())

            first.kill()
            await box.ended(first)
            late = box.start("--inventory", str(ways["a hard link"]))
            await box.up()
            assert (await box.get("/api/v1/leader"))["epoch"] == 2
            assert await agent.register() == {"alpha-1/0": "adopt"}
            late.send_signal(signal.SIGTERM)
            assert await box.ended(late) == 0

    run(story)


def test_f17_of_many_that_start_at_once_one_leads(tmp_path: Path) -> None:
    async def story() -> None:
        async with Box(tmp_path) as box:
            logs = [tmp_path / f"{n}.log" for n in range(3)]
            tried = [second(box, tmp_path / INVENTORY, log) for log in logs]
            await box.until(lambda: sum(p.poll() is None for p in tried) == 1)
            (leads,) = [p for p in tried if p.poll() is None]
            for process, log in zip(tried, logs, strict=True):
                if process is not leads:
                    assert process.returncode == 1
                    # whoever was quickest: one that ended meanwhile may be named too
                    assert "is in use by another control, pid" in log.read_text()
            await box.until(lambda: read_memory(tmp_path / INVENTORY).epoch == 1)

    run(story)


@pytest.mark.parametrize("what", [INVENTORY, "state"])
def test_f17_a_mount_of_its_own_is_another_way_to_the_same_file(what: str, tmp_path: Path) -> None:
    """As two containers have it, each with the inventory, or the state dir, mounted somewhere else."""
    inventory = tmp_path / INVENTORY
    inventory.parent.mkdir()
    opened(inventory).close()
    held = FileLease(inventory, Epochs())
    elsewhere = tmp_path / "elsewhere" / Path(what).name
    elsewhere.parent.mkdir()
    with also_at(tmp_path / what, elsewhere):
        path = elsewhere if what == INVENTORY else elsewhere / "inventory.db"
        with pytest.raises(LlmgwError, match=f"another control, pid {os.getpid()}"):
            FileLease(path, Epochs())
    held.release()


def test_f17_offline_adopt_keeps_out_of_a_file_that_a_control_has_by_another_name(
    tmp_path: Path,
) -> None:
    inventory = tmp_path / INVENTORY
    inventory.parent.mkdir()
    opened(inventory).close()
    held = FileLease(inventory, Epochs())
    with pytest.raises(LlmgwError, match=f"another control, pid {os.getpid()}"):
        apply_reports(hard_link(tmp_path), [NodeReport(node="box1")])
    held.release()
    apply_reports(tmp_path / "hard/inv.db", [NodeReport(node="box1")])
    assert [n.node for n, _ in read_memory(inventory).nodes] == ["box1"]


def test_f17_the_lock_on_the_file_leaves_sqlites_own_alone(tmp_path: Path) -> None:
    """SQLite unlocks the whole file at the end of each transaction, and by closing it: neither may drop ours."""
    inventory = tmp_path / "a/i.db"
    inventory.parent.mkdir()
    store = opened(inventory)
    held = FileLease(inventory, store)
    for epoch in range(1, 4):
        assert held.acquire("l", 0) == epoch
    store.close()
    store = opened(inventory)
    other = Path(f"{tmp_path}/b.db")
    other.hardlink_to(inventory)
    with pytest.raises(LlmgwError, match="in use by another control"):
        Flock(other).take()
    assert held.acquire("l", 0) == 4
    store.close()
    held.release()
    with Flock(other):
        pass


def test_f17_a_file_made_anew_is_claimed_with_the_next_renewal(tmp_path: Path) -> None:
    """A broken or deleted inventory is another file from then on, and the first to claim it keeps it."""
    inventory = tmp_path / "a/i.db"
    inventory.parent.mkdir()
    held = FileLease(inventory, Epochs())
    opened(inventory).close()
    held.renew()
    other = tmp_path / "b.db"
    other.hardlink_to(inventory)
    with pytest.raises(LlmgwError, match="in use by another control"):
        Flock(other).take()
    inventory.unlink()
    opened(inventory).close()
    third = tmp_path / "c.db"
    third.hardlink_to(inventory)
    with Flock(third), pytest.raises(LeaseLostError, match="in use by another control"):
        held.renew()
    held.release()


def test_f17_a_folder_that_went_is_made_again_and_kept_from_others(tmp_path: Path) -> None:
    inventory = tmp_path / "a/i.db"
    inventory.parent.mkdir()
    held = FileLease(inventory, Epochs())
    (tmp_path / "a/i.db.lock").unlink()
    inventory.parent.rmdir()
    held.renew()
    assert held.problem == ""
    with pytest.raises(LlmgwError, match="in use by another control"):
        FileLease(tmp_path / "a/other.db", Epochs())
    inventory.parent.rename(tmp_path / "b")
    inventory.parent.touch()
    held.renew()
    assert "Not a directory" in held.problem or "File exists" in held.problem
    inventory.parent.unlink()
    (tmp_path / "b").rename(inventory.parent)
    held.renew()
    assert held.problem == ""
    held.release()


def test_f17_a_lock_that_nobody_can_have_is_not_a_lost_one(tmp_path: Path) -> None:
    """Ours went, and its name cannot be opened by anybody: control goes on, and says what is in the way (F15)."""
    held = FileLease(tmp_path / "i.db", Epochs())
    lock = tmp_path / "i.db.lock"
    lock.unlink()
    lock.mkdir()
    held.renew()
    assert held.problem.startswith(f"cannot lock the inventory: {lock}: Is a directory; check")
    lock.rmdir()
    held.renew()
    assert held.problem == ""
    with pytest.raises(LlmgwError, match="in use by another control"):
        Flock(tmp_path / "i.db").take()
    held.release()


def opened(path: Path) -> Store:
    store = Store(path, warn=print)
    store.open()
    return store
