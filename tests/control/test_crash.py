"""Control killed around everything that others see: the next one converges, and an engine is started once (F1-F3)."""

import asyncio
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import httpx
import pytest

from llmgw.core.types.messages import ForgetShard, Start
from tests.control.bench import SOON_S, Agent, started
from tests.control.box import Box

POINTS = (
    "before_epoch",
    "after_epoch",
    "before_persist",
    "after_persist",
    "after_send",
    "before_publish:2",
    "after_publish:2",
    "before_answer:2",
    "before_answer:3",
)


def run(story: Callable[[], Coroutine[Any, Any, None]]) -> None:
    async def bounded() -> None:
        async with asyncio.timeout(2 * SOON_S):
            await story()

    asyncio.run(bounded())


class Node:
    """An agent with a journal: what it was told to start runs, whatever becomes of control."""

    def __init__(self, box: Box) -> None:
        self.agent = Agent(box)
        self.starts: list[Start] = []

    async def lives(self) -> None:
        """Register, obey, report; until its model is loaded or control is gone (TransportError)."""
        await self.agent.register()
        while not await self._loaded():
            for command in await self.agent.poll():
                if isinstance(command, Start):
                    self.starts.append(command)
                    self.agent.runs(started(command))
                    await self.agent.tell(started(command))
                elif isinstance(command, ForgetShard):
                    await self.agent.tell(gone=((command.shard, command.incarnation),))

    async def _loaded(self) -> bool:
        status = (await self.agent.bench.client.get("/api/v1/status")).json()
        return bool(status["models"][0]["ready"])


@pytest.mark.parametrize("point", POINTS)
def test_killed_at(point: str, tmp_path: Path) -> None:
    async def story() -> None:
        async with Box(tmp_path) as box:
            node = Node(box)
            process = box.start(crash=point)
            try:
                await box.until(lambda: process.poll() is not None or box.get("/healthz"))
                await node.lives()
            except httpx.TransportError:
                pass
            assert await box.ended(process) == -9, box.said()
            box.start()
            await box.up()
            await node.lives()
            status = await box.get("/api/v1/status")
            assert [r["state"] for r in status["replicas"]] == ["ready"], status
            assert len(node.starts) == 1, box.said()
            assert (await box.get("/api/v1/plan"))["exit_code"] == 0

    run(story)


def test_f6_ten_kills_in_a_row_start_nothing_twice(tmp_path: Path) -> None:
    async def story() -> None:
        async with Box(tmp_path) as box:
            node = Node(box)
            process = box.start()
            await box.up()
            await node.lives()
            epochs = []
            for _ in range(10):
                process.kill()
                await box.ended(process)
                process = box.start()
                await box.up()
                assert await node.agent.register() == {node.starts[0].shard: "adopt"}
                epochs.append(node.agent.said.epoch)
            assert epochs == sorted(set(epochs))
            assert len(node.starts) == 1
            await node.agent.tell()
            assert (await box.get("/api/v1/plan"))["exit_code"] == 0

    run(story)
