"""Control of a new version beside a gateway of the old one: it takes over, and the old one finishes what it has."""

import asyncio
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from llmgw import __version__, handover
from llmgw.errors import UnreachableError
from tests.control.bench import Agent, engine
from tests.control.box import ROOT, Box
from tests.control.test_crash import run
from tests.control.test_main import gateway_pid, models, status

OLD = "0.0.9"
#: The gateway as another version, started as its own control had done it.
GATEWAY = f"""
import runpy, sys, llmgw
llmgw.__version__ = {OLD!r}
from llmgw.gateway.door import Door
if REFUSES:
    whole = Door._answer
    Door._answer = lambda self, conn, line: whole(self, conn, line.replace(b"takeover", b"dance"))
runpy.run_module("llmgw", run_name="__main__")
"""


def old_gateway(box: Box, *, refuses: bool = False) -> subprocess.Popen[bytes]:
    code = f"REFUSES = {refuses}\n{GATEWAY}"
    command = [sys.executable, "-c", code, "gateway", "--control", f"http://127.0.0.1:{box.port}"]
    command += ["--listen", f"127.0.0.1:{box.gateway_port}"]
    process = subprocess.Popen([*command, "--state-dir", str(box.state / "gateway")], cwd=ROOT)
    box.processes.append(process)
    return process


def version(box: Box) -> str:
    """ "" for the moment in which a killed gateway has no successor."""
    try:
        return handover.hello(box.state / "gateway").version
    except UnreachableError:
        return ""


def gateway(box: Box) -> int:
    try:
        return handover.hello(box.state / "gateway").pid
    except UnreachableError:
        return 0


def lasting(box: Box) -> int:
    """The gateway at the door, unless that is a worker whose parent died."""
    try:
        said = handover.hello(box.state / "gateway")
    except UnreachableError:
        return 0
    return 0 if said.orphan else said.pid


async def warned(box: Box) -> str:
    found = await box.get("/api/v1/status")
    return "\n".join(w for w in found["warnings"] if "gateway" in w)


async def lists_alpha(box: Box) -> bool:
    """Its table comes a moment after its door."""
    return bool(await models(box) == ["alpha"])


async def half_a_request(box: Box) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    reader, writer = await asyncio.open_connection("127.0.0.1", box.gateway_port)
    writer.write(b"GET /v1/models HTTP/1.1\r\n")
    await writer.drain()
    return reader, writer


@pytest.mark.parametrize("killed", ["", "after_spawn"])
def test_an_upgrade_at_night(tmp_path: Path, killed: str) -> None:
    """Nobody has to know of `--takeover`: a restart of control is enough, also one that is killed in the middle."""

    async def story() -> None:
        async with Box(tmp_path, gateway=True) as box:
            old = old_gateway(box)
            assert await gateway_pid(box) == old.pid
            await box.until(lambda: status(box))
            reader, writer = await half_a_request(box)
            if killed:
                assert await box.ended(box.start(crash=killed)) == -signal.SIGKILL
            box.start()
            await box.up()
            agent = Agent(box)
            agent.runs(engine())
            await agent.register()
            await box.until(lambda: version(box) == __version__)
            await box.until(lambda: lists_alpha(box))
            assert old.poll() is None
            writer.write(b"host: x\r\nconnection: close\r\n\r\n")
            assert (await reader.read()).startswith(b"HTTP/1.1 200 ")
            writer.close()
            assert await box.ended(old) == 0
            await box.until(lambda: version(box) == __version__)
            if not killed:
                took = f"version {__version__}, took over from pid {old.pid}, version {OLD}"
                await box.until(lambda: took in box.said())
                assert not await warned(box)

    run(story)


def test_one_that_does_not_hand_over_serves_on_and_status_says_so(tmp_path: Path) -> None:
    async def story() -> None:
        async with Box(tmp_path, gateway=True) as box:
            old = old_gateway(box, refuses=True)
            await gateway_pid(box)
            box.start()
            await box.up()
            said = await box.until(lambda: warned(box))
            assert f"(pid {old.pid}) of version {OLD} serves on" in said
            assert "refuses takeover: unknown request" in said
            assert status(box) == 200
            os.kill(old.pid, signal.SIGKILL)
            await box.ended(old)
            await box.until(lambda: version(box) == __version__)
            assert not await warned(box)

    run(story)


def test_a_killed_parent_of_workers_is_replaced_and_they_finish_what_they_have(
    tmp_path: Path,
) -> None:
    """With control up, and with control killed too: the next one finds the workers by their door."""

    async def story() -> None:
        async with Box(tmp_path, gateway=True) as box:
            process = box.start("--workers", "2")
            await box.up()
            first = await gateway_pid(box)
            reader, writer = await half_a_request(box)
            os.kill(first, signal.SIGKILL)
            await box.until(lambda: gateway(box) not in (0, first))
            second = await box.until(lambda: lasting(box))
            assert status(box) == 200
            process.kill()
            await box.ended(process)
            os.kill(second, signal.SIGKILL)
            await box.until(lambda: gateway(box) not in (0, second))
            assert not lasting(box)
            box.start("--workers", "2")
            await box.up()
            third = await box.until(lambda: lasting(box))
            assert third not in (first, second)
            writer.write(b"host: x\r\nconnection: close\r\n\r\n")
            assert (await reader.read()).startswith(b"HTTP/1.1 200 ")
            writer.close()

    run(story)
