"""A control as a process of its own, over real HTTP, that a test may kill and start again.

Answers for: ports, waiting for what must come, and leaving no process behind.
"""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, Self

import httpx

from llmgw import handover
from llmgw.errors import LlmgwError
from scripts.ports import free_port
from tests.control.bench import CATALOG, SOON_S

ROOT = Path(__file__).resolve().parents[2]


class Box:
    """`client` speaks to control; `log` is what it said over all its lives."""

    def __init__(self, folder: Path, *, gateway: bool = False) -> None:
        self.folder = folder
        self.catalog = folder / "catalog.yaml"
        if not self.catalog.exists():
            self.catalog.write_text(CATALOG)
        self.state = folder / "state"
        self.port = free_port()
        self.gateway_port = free_port() if gateway else 0
        self.log = folder / "control.log"
        self.processes: list[subprocess.Popen[bytes]] = []
        self.client = httpx.AsyncClient(
            base_url=f"http://127.0.0.1:{self.port}", timeout=SOON_S, trust_env=False
        )

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.client.aclose()
        for process in self.processes:
            if process.poll() is None:
                process.kill()
            process.wait()
        try:
            pid = handover.hello(self.state / "gateway").pid
        except LlmgwError:
            return
        os.kill(pid, signal.SIGKILL)

    def start(self, *more: str, crash: str = "", **env: str) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-m", "llmgw", "control", "--catalog", str(self.catalog)]
        command += ["--inventory", str(self.state / "inventory.db"), "--settle-timeout", "20s"]
        command += ["--listen", f"127.0.0.1:{self.port}", "--gateway"]
        command += [f"127.0.0.1:{self.gateway_port}" if self.gateway_port else "none", *more]
        env = {**os.environ, "LLMGW_CRASH_AT": crash, **env}
        with self.log.open("ab") as log:
            process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=env, cwd=ROOT
            )
        self.processes.append(process)
        return process

    async def up(self) -> None:
        """Until control answers."""
        await self.until(lambda: self.get("/readyz"))

    async def get(self, path: str) -> Any:
        try:
            answer = await self.client.get(path)
        except httpx.TransportError:
            return None
        return answer.json() if answer.status_code == 200 else None

    async def until(self, look: Callable[[], Any]) -> Any:
        """Ask again until there is an answer."""
        async with asyncio.timeout(SOON_S):
            while True:
                found = look()
                if asyncio.iscoroutine(found):
                    found = await found
                if found:
                    return found
                await asyncio.sleep(0.05)

    async def ended(self, process: subprocess.Popen[bytes]) -> int:
        return await asyncio.to_thread(process.wait, SOON_S)

    def said(self) -> str:
        return self.log.read_text()
