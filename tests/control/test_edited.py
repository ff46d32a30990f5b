"""A catalog that was edited and not applied is said by `status`: control goes on with the one it was told to use."""

from __future__ import annotations

import asyncio
import os
import signal
import threading
from pathlib import Path
from typing import Any

import pytest

from llmgw import catalog as catalogs
from llmgw.control import edited
from tests.control.bench import CATALOG, Agent, Bench, engine, scenario
from tests.control.box import Box

BROKEN = "version: 1\nmodels: {alpha: {scalling: {min: 1}}}\n"
OTHER = CATALOG.replace("[first]", "[first, second]")


async def warnings(bench: Bench) -> list[str]:
    bench.clock.now += edited.EVERY_S
    found: list[str] = (await bench.get("/api/v1/status"))["warnings"]
    return found


@scenario
async def test_an_edit_is_said_until_it_is_applied(bench: Bench) -> None:
    async with bench.running():
        agent = Agent(bench)
        agent.runs(engine())
        await agent.register()
        assert await warnings(bench) == []
        bench.catalog.write_text(OTHER)
        (said,) = await warnings(bench)
        assert said == (
            "the catalog was edited since it was applied, 1 change is not in use: `llmgw adopt --dry-run` shows "
            "what comes of it, `llmgw catalog apply` takes it, as a restart does"
        )
        await bench.post("/api/v1/catalog")
        assert (await bench.get("/api/v1/status"))["warnings"] == [], (
            "without a wait for the next look"
        )
        bench.catalog.write_text(f"# nothing else\n{OTHER}")
        assert await warnings(bench) == [], "what changes nothing is nothing to apply"
        answer = await bench.client.put("/api/v1/catalog", json={"catalog": CATALOG})
        assert answer.status_code == 200
        assert await warnings(bench) == [], "what control wrote itself"


@scenario
async def test_one_that_could_not_be_used_is_said_before_somebody_restarts(bench: Bench) -> None:
    async with bench.running():
        agent = Agent(bench)
        agent.runs(engine())
        await agent.register()
        bench.catalog.write_text(BROKEN)
        (said,) = await warnings(bench)
        assert "edited since it was applied, and cannot be used as it is: " in said
        assert '"profiles" is missing' in said
        assert said.endswith("; the one in use stays")
        await bench.post("/api/v1/catalog", status=400)
        assert await warnings(bench) == [], "it stands in catalog.error"
        bench.catalog.write_text(OTHER)
        (said,) = await warnings(bench)
        assert said.startswith(
            "the catalog was edited since it was refused, and can be used now: `"
        )
        bench.catalog.unlink()
        await bench.post("/api/v1/catalog", status=400)
        assert await warnings(bench) == []


@scenario
async def test_one_that_was_replaced_before_is_not_taken_by_a_start_of_several(
    bench: Bench,
) -> None:
    """As each host of several has a file of its own. Where that was said already, it is said once."""
    async with bench.running() as control:
        agent = Agent(bench)
        agent.runs(engine())
        await agent.register()
        await bench.client.put("/api/v1/catalog", json={"catalog": OTHER})
        bench.catalog.write_text(CATALOG)
        (said,) = await warnings(bench)
        assert said.endswith("`llmgw catalog apply` takes it")
        control.catalogs.error = "older than the catalog of the leader before"
        assert await warnings(bench) == []


@scenario
async def test_it_is_read_when_it_has_changed_and_not_when_somebody_looks(bench: Bench) -> None:
    read, reads = catalogs.read_source, [0]

    def counted(path: Any) -> Any:
        reads[0] += 1
        return read(path)

    with pytest.MonkeyPatch.context() as patch:
        async with bench.running():
            await Agent(bench).register()
            patch.setattr("llmgw.control.edited.catalogs.read_source", counted)
            for _ in range(5):
                await warnings(bench)
            assert reads == [1]
            bench.catalog.write_text(OTHER)
            for _ in range(5):
                await warnings(bench)
            assert reads == [2]


@scenario
async def test_a_disk_that_hangs_holds_up_nobody(bench: Bench) -> None:
    """One thread waits for it, whoever asks; what it finds is said later."""
    hangs, calls, stamps = threading.Event(), [0], edited._stamps

    def hung(path: Any) -> Any:
        calls[0] += 1
        assert hangs.wait(60)
        return stamps(path)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(edited, "_stamps", hung)
        patch.setattr(edited, "PATIENCE_S", 0.01)
        async with bench.running() as control:
            try:
                agent = Agent(bench)
                agent.runs(engine())
                await agent.register()
                bench.catalog.write_text(OTHER)
                for _ in range(3):
                    assert await warnings(bench) == []
                assert calls == [1]
            finally:
                hangs.set()
            assert control.edited._look is not None
            await control.edited._look
            assert len(await warnings(bench)) == 1


def test_a_disk_that_hangs_does_not_keep_control_from_its_end(tmp_path: Path) -> None:
    async def story() -> None:
        async with Box(tmp_path) as box:
            process = box.start()
            await box.up()
            box.catalog.unlink()
            os.mkfifo(
                box.catalog
            )  # whose reader waits for a writer, as on a disk that does not answer
            assert await box.get("/api/v1/status")
            process.send_signal(signal.SIGTERM)
            assert await box.ended(process) == 0

    asyncio.run(story())


@scenario
async def test_a_look_that_failed_is_not_the_last(bench: Bench) -> None:
    def failed(_: Any) -> Any:
        raise RecursionError

    async with bench.running() as control:
        await Agent(bench).register()
        bench.catalog.write_text(OTHER)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(edited, "_stamps", failed)
            with pytest.raises(RecursionError):
                await control.edited.look()
        assert len(await warnings(bench)) == 1
