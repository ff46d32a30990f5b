"""A control as a process of its own, over real HTTP, that a test may kill and start again.

Answers for: ports, waiting for what must come, and leaving no process behind.
"""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, Self

import httpx

from scripts.fleet import spawned
from scripts.ports import free_port
from tests.control.bench import CATALOG, SOON_S
from tests.nursery import Child, nursery

ROOT = Path(__file__).resolve().parents[2]
Process = subprocess.Popen[bytes] | Child


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
        self.processes: list[Process] = []
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
        # By their command line: one that has only just begun, or is an orphaned worker, answers nobody.
        while pids := list(spawned(str(self.state / "gateway"))):
            for pid in pids:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            await asyncio.sleep(0.02)

    def start(self, *more: str, crash: str = "", **env: str) -> Child:
        command = ["control", "--catalog", str(self.catalog)]
        command += ["--inventory", str(self.state / "inventory.db"), "--settle-timeout", "20s"]
        command += ["--listen", f"127.0.0.1:{self.port}", "--gateway"]
        command += [f"127.0.0.1:{self.gateway_port}" if self.gateway_port else "none", *more]
        process = nursery().start(command, {**os.environ, "LLMGW_CRASH_AT": crash, **env}, self.log)
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

    async def ended(self, process: Process) -> int:
        return await asyncio.to_thread(process.wait, SOON_S)

    def said(self) -> str:
        return self.log.read_text()
