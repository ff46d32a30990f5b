"""A newcomer's walk from no token at all to a fleet with tokens, with a control that runs: each hint is followed."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from pathlib import Path

from tests.control.bench import Agent
from tests.control.box import ROOT, Box, Process
from tests.control.test_crash import run
from tests.control.test_tls import Wide


async def llmgw(box: Box, *words: str, **env: str) -> subprocess.CompletedProcess[str]:
    own = {k: v for k, v in os.environ.items() if not k.startswith("LLMGW_")}
    own |= {"LLMGW_INVENTORY": str(box.state / "inventory.db")} | env
    command = [sys.executable, "-m", "llmgw", *words]
    return await asyncio.to_thread(
        subprocess.run, command, env=own, cwd=ROOT, capture_output=True, text=True, check=False
    )


def test_from_loopback_to_the_next_box(tmp_path: Path) -> None:
    async def story() -> None:
        async with Wide(tmp_path) as box:
            control = box.start()
            await Box.up(box)
            await box.until((box.state / "url").exists)
            await operators(box)
            await again(box, control)
            word = (box.state / "token").read_text().strip()
            box.client.headers["authorization"] = f"Bearer {word}"
            await Box.up(box)
            await this_box(box)
            box.processes[-1].terminate()
            await box.ended(box.processes[-1])
            await by_files(box)
            (box.state / "url").unlink()
            box.start("--listen", f"0.0.0.0:{box.port}")
            await box.until((box.state / "url").exists)
            line = (await llmgw(box, "token")).stdout.split()
            assert "--pin" in line
            assert line[-2:] == ["--address", "auto"]
            lost = await llmgw(box, "status", LLMGW_TOKEN="wrong")
            assert lost.returncode == 4
            assert f"`unset LLMGW_TOKEN`: {box.state / 'token'} has another" in lost.stderr

    run(story)


async def operators(box: Box) -> None:
    said = await llmgw(box, "token")
    assert said.returncode == 1
    assert "`llmgw token new --operator`, then end this control" in said.stderr
    said = await llmgw(box, "token", "new", "--operator")
    assert (said.returncode, said.stdout) == (0, f"{box.state / 'token'}\n")
    assert "restart control now" in said.stderr
    said = await llmgw(box, "token")
    assert said.returncode == 1, "it goes by what it was started with"
    assert "hint: end this control (engines and the gateway keep running) and start" in said.stderr
    assert "token new" not in said.stderr, "there is one"


async def again(box: Box, control: Process) -> None:
    control.terminate()
    await box.ended(control)
    box.start()


async def this_box(box: Box) -> None:
    """Its agent is refused and named; the line that it is told of works."""
    del box.client.headers["authorization"]
    box.client.headers["x-llmgw-node"] = "box1"
    hint = (await Agent(box).register(401))["hint"]
    assert "`llmgw token` on control's box" in hint
    status = await llmgw(box, "status", "-o", "json")
    assert "node box1 at 127.0.0.1 is refused: it sent no token" in status.stdout
    line = (await llmgw(box, "token")).stdout.split()
    assert line[1:] == ["llmgw", "agent", "--control", f"http://127.0.0.1:{box.port}"]
    given = line[0].removeprefix("LLMGW_NODE_TOKEN=")
    box.client.headers["authorization"] = f"Bearer {given}"
    await Agent(box).register()


async def by_files(box: Box) -> None:
    """With control down."""
    listed = await llmgw(box, "token", "list")
    assert listed.stdout.split()[2:] == ["node-1", "box1"]
    assert (await llmgw(box, "token", "revoke", "node-1", "--yes")).returncode == 0
