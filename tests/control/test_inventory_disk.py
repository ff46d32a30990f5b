"""The disk under the inventory is full, or read-only: at the start, in the middle, at the very write of an epoch (F15).

F13, F15. On a small disk of its own, which takes root; `test_store` has what a size limit shows without it.
"""

import errno
import os
import shutil
import signal
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path

import pytest

from llmgw.control.keep import PAUSE_S
from llmgw.control.lease import FileLease
from llmgw.control.store import Store, read_memory
from llmgw.errors import LlmgwError
from tests.control.bench import Agent, Bench, engine, scenario
from tests.control.box import Box
from tests.control.mounts import disk, full, read_only
from tests.control.test_crash import run
from tests.control.test_inventory import Fleet
from tests.control.test_main import gateway_pid, models
from tests.control.test_store import opened

Trouble = Callable[[Path], AbstractContextManager[None]]
TROUBLES: dict[str, tuple[Trouble, str]] = {
    "full": (full, "full"),
    "read-only": (read_only, "read-only|readonly|unable to open"),
}


@pytest.mark.parametrize("trouble", TROUBLES)
def test_f13_f15_in_the_middle_it_costs_history_only(trouble: str, tmp_path: Path) -> None:
    spoiled, words = TROUBLES[trouble]

    @scenario
    async def story(bench: Bench) -> None:
        fleet = Fleet(bench)
        state = bench.inventory.parent
        with disk(state):
            async with bench.running(crash=True) as control:
                await fleet.begins()
                with spoiled(state):
                    await fleet.goes_on()
                    await bench.passes(3 * PAUSE_S, fleet.box1, fleet.box2)
                    said, *_ = await fleet.warnings()
                    assert "history is not kept" in said
                    assert any(w in said for w in words.split("|"))
                    assert bench.events("inventory")[0]["hint"] in said
                    assert len(bench.events("inventory")) == 1
                    assert bench.leading()
                await bench.passes(2 * PAUSE_S, fleet.box1, fleet.box2)
                await fleet.is_whole()
                epoch = control.state.epoch
            await fleet.another_control_finds_it_all(epoch)

    story(tmp_path)


@pytest.mark.parametrize("trouble", TROUBLES)
def test_f15_an_epoch_that_cannot_be_raised_ends_the_lead_until_it_can(
    trouble: str, tmp_path: Path
) -> None:
    """Exactly at the write: an agent obeyed a higher one, ours cannot rise above it. Routes stay, nothing is sent."""
    spoiled, _ = TROUBLES[trouble]

    @scenario
    async def story(bench: Bench) -> None:
        fleet = Fleet(bench)
        state = bench.inventory.parent
        with disk(state):
            async with bench.running() as control:
                await fleet.begins()
                with spoiled(state):
                    stranger = Agent(bench, "box3", epoch_seen=41, leader_uuid="another")
                    await stranger.register()
                    assert not stranger.said.leader
                    for _ in range(3):
                        await bench.passes(PAUSE_S, fleet.box1, stranger)
                    blocked = (await bench.get("/api/v1/status"))["blocked"]
                    assert "no epoch can be stored" in blocked
                    assert await fleet.routed() == ["alpha-1"]
                    assert bench.orders(stranger) == bench.orders(fleet.box1) == []
                await bench.later(2)
                assert bench.leading()
                assert control.state.epoch == 42
                assert await fleet.box1.register() == {"alpha-1/0": "adopt"}
                assert read_memory(bench.inventory).epoch == 42

    story(tmp_path)


def test_f15_started_on_a_full_disk_it_leads_as_soon_as_there_is_room(tmp_path: Path) -> None:
    """Also where there is no inventory yet: not even an empty one is left half made."""

    @scenario
    async def story(bench: Bench) -> None:
        state = (bench.folder / "state").resolve()
        bench.inventory = state / "inventory.db"
        for known in (False, True):
            with disk(state):
                if known:
                    opened(bench.inventory).close()
                with full(state):
                    agent = Agent(bench)
                    agent.runs(engine())
                    async with bench.running(crash=True):
                        await agent.register()
                        await bench.passes(3, agent)
                        assert not agent.said.leader
                        blocked = (await bench.get("/api/v1/status"))["blocked"]
                        assert "no epoch can be stored" in blocked
                        assert "full" in blocked or os.strerror(errno.ENOSPC) in blocked
                        left = {p.name for p in state.iterdir()} - {"ballast"}
                        assert left == {"inventory.db.lock", *(["inventory.db"] if known else [])}
                async with bench.running(crash=True) as control:
                    assert control.state.epoch == 1
                    assert await agent.register() == {"alpha-1/0": "adopt"}

    story(tmp_path)


def test_f15_a_broken_file_on_a_full_disk_is_moved_aside_and_then_waits_for_room(
    tmp_path: Path,
) -> None:
    state = tmp_path / "state"
    with disk(state):
        path = state / "inventory.db"
        path.write_bytes(b"no database" * 1000)
        store = Store(path, warn=print)
        with full(state):
            with pytest.raises(LlmgwError, match=r"cannot create the inventory|disk is full"):
                store.open()
            assert len(list(state.glob("inventory.db.corrupt-*"))) == 1
        store.open()
        assert store.epoch() == 0
        store.close()


def test_f15_a_read_only_disk_at_the_start_is_one_clear_error(tmp_path: Path) -> None:
    """Without the lock nobody knows whether it is alone: it ends, and whoever starts it again finds it mended."""
    state = tmp_path / "state"
    with disk(state):
        opened(state / "inventory.db").close()
        held = FileLease(state / "inventory.db", Store(state / "inventory.db", warn=print))
        held.release()
        before = (state / "inventory.db").read_bytes()

        async def story() -> None:
            async with Box(tmp_path) as box:
                with read_only(state):
                    process = box.start()
                    assert await box.ended(process) == 1
                    said = box.said()
                    assert os.strerror(errno.EROFS).lower() in said.lower()
                    assert "hint: " in said
                    assert "Traceback" not in said
                    assert (state / "inventory.db").read_bytes() == before
                process = box.start()
                await box.up()
                process.send_signal(signal.SIGTERM)
                assert await box.ended(process) == 0

        run(story)


def test_f14_the_state_dir_removed_under_control_and_gateway_costs_nothing(tmp_path: Path) -> None:
    """Inventory, lock and the gateway's folder: control keeps its lead, a gateway that dies is started again, and the
    next control adopts what runs, under a higher epoch.
    """

    async def story() -> None:
        async with Box(tmp_path, gateway=True) as box:
            process = box.start()
            await box.up()
            agent = Agent(box)
            agent.runs(engine())
            await agent.register()
            first = await gateway_pid(box)
            shutil.rmtree(box.state, ignore_errors=True)
            await box.until((box.state / "inventory.db").exists)
            assert await models(box) == ["alpha"]
            os.kill(first, signal.SIGKILL)
            assert await models(box) == ["alpha"]
            second = await gateway_pid(box)
            assert process.poll() is None
            await box.until(lambda: read_memory(box.state / "inventory.db").nodes)
            process.kill()
            await box.ended(process)
            box.start()
            await box.up()
            assert await gateway_pid(box) == second
            assert await agent.register() == {"alpha-1/0": "adopt"}
            assert agent.said.epoch == 2
            assert await models(box) == ["alpha"]

    run(story)


def test_f15_a_full_disk_and_kill_9_again_and_again_lose_no_epoch(tmp_path: Path) -> None:
    """Real processes: an epoch that was told to an agent was on the disk first, so each life's is above the last."""
    state = tmp_path / "state"

    async def story() -> None:
        async with Box(tmp_path) as box:
            agent = Agent(box)
            epochs = [0]
            for fills in (False, True, False):
                process = box.start()
                await box.up()
                await agent.register()
                epochs.append(agent.said.epoch)
                if fills:
                    with full(state):
                        process.kill()
                        await box.ended(process)
                        blocked = box.start()
                        status = await box.until(lambda: box.get("/api/v1/status"))
                        assert "no epoch can be stored" in status["blocked"]
                        await agent.register()
                        assert not agent.said.leader
                        blocked.kill()
                        await box.ended(blocked)
                else:
                    process.kill()
                    await box.ended(process)
            assert epochs == sorted(set(epochs))

    with disk(state):
        run(story)
