"""The gateway's keeper by itself: who died is told, and one that dies at once is not started in a frenzy."""

import asyncio
import os
import signal
from collections.abc import Callable
from pathlib import Path

from llmgw.config import Address
from llmgw.control.guard import Tokens
from llmgw.control.picture import Moment
from llmgw.control.settings import ControlSettings
from llmgw.control.spawn import Gateway
from llmgw.control.story import Story
from scripts.ports import free_port
from tests.control.bench import SOON_S


def made(folder: Path, *, token: str = "") -> Gateway:
    settings = ControlSettings(
        catalog=folder,
        state_dir=folder,
        gateway=Address("127.0.0.1", free_port()),
        node_token=token,
    )
    story = Story()
    story.begin(Moment(0.0, 0.0))
    return Gateway(settings, story, Tokens("", [token]))


async def until(look: Callable[[], object]) -> None:
    async with asyncio.timeout(SOON_S):
        while not look():  # noqa: ASYNC110 - another process changes it
            await asyncio.sleep(0.02)


def proc(pid: int, name: str) -> bytes:
    return Path(f"/proc/{pid}/{name}").read_bytes()


def test_the_id_of_a_dead_gateway_is_told(tmp_path: Path) -> None:
    async def story() -> None:
        gateway = made(tmp_path, token="secret")
        gone: list[str] = []

        async def on_gone(name: str) -> None:
            gone.append(name)

        await gateway.prepare()
        async with asyncio.TaskGroup() as group:
            keeping = group.create_task(gateway.run("http://127.0.0.1:9", on_gone))
            await until(lambda: gateway.gateway)
            first, pid = gateway.gateway, gateway.pid
            assert b"secret" not in proc(pid, "cmdline")  # `ps` shows arguments to everybody
            assert b"LLMGW_NODE_TOKEN=secret" in proc(pid, "environ")
            os.kill(pid, signal.SIGKILL)
            await until(lambda: gone)
            assert gone == [first]
            await until(lambda: gateway.gateway)
            assert gateway.pid != pid
            gateway.end()
            await keeping
        assert gone[1:]
        gateway.let_go()

    asyncio.run(story())


def test_one_that_dies_at_once_is_tried_less_and_less_often(tmp_path: Path) -> None:
    """A folder that is a file: every gateway ends with that error, which status shows."""

    async def story() -> None:
        gateway = made(tmp_path)
        await gateway.prepare()
        (tmp_path / "gateway" / "gateway.lock").mkdir()

        async def nobody(_: str) -> None:
            return

        async with asyncio.TaskGroup() as group:
            keeping = group.create_task(gateway.run("http://127.0.0.1:9", nobody))
            await until(gateway.said)
            assert "state dir" in gateway.said()
            keeping.cancel()
        gateway.let_go()

    asyncio.run(story())
