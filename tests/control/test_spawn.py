"""The gateway's keeper by itself: who died is told, and one that dies at once is not started in a frenzy."""

import asyncio
import os
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from llmgw.config import Address
from llmgw.control import gateway_log
from llmgw.control.guard import Tokens
from llmgw.control.picture import Moment
from llmgw.control.settings import ControlSettings
from llmgw.control.spawn import Gateway
from llmgw.control.story import Story
from scripts.ports import free_port
from tests.control.bench import SOON_S

INFO = "2026-01-01T00:00:00Z info    route table  version=7"
WARNING = "2026-01-01T00:00:00Z warning control does not answer"


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


def told(gateway: Gateway) -> str:
    return "\n".join(entry["why"] for entry in gateway._story.after(0))


@pytest.mark.parametrize(
    ("code", "last", "said"),
    [
        (-9, INFO, "was killed (signal 9)"),
        (-9, WARNING, f"was killed (signal 9); it said last: {WARNING}"),
        (None, INFO, "ended without a word"),
        (None, "", "ended without a word"),
        (None, WARNING, f"ended; it said last: {WARNING}"),
        (0, INFO, "ended (exit code 0)"),
        (1, "llmgw: no\nhint: try", "ended (exit code 1): llmgw: no"),
    ],
)
def test_how_it_ended_is_no_line_of_a_log_at_work(
    tmp_path: Path, code: int | None, last: str, said: str
) -> None:
    log = tmp_path / "gateway.log"
    assert gateway_log.how(-9, log) == "was killed (signal 9)"
    log.write_text(f"{WARNING}\n{INFO}\n{last}\n" if last else "")
    assert gateway_log.how(code, log) == said


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
            assert f"(pid {pid}) was killed (signal 9)" in told(gateway)
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
