"""The parent of several processes that accept on one socket: it holds their place and starts a dead one again.

One socket, no SO_REUSEPORT: a killed worker would reset the connections in its own queue. Answers for: as many workers
as were asked for, and their common end. It serves nobody itself, and its death ends none of them (`worker`).
"""

from __future__ import annotations

import asyncio
import os
import socket
import subprocess
import sys
import uuid
from contextlib import suppress
from math import inf
from typing import Any

import msgspec
import structlog

from llmgw import __version__
from llmgw.errors import LlmgwError
from llmgw.gateway import common, kin
from llmgw.gateway.door import Door
from llmgw.gateway.kin import Birth
from llmgw.gateway.place import Place, occupied, spelled
from llmgw.gateway.process import SWEEP_S, Stop, ended
from llmgw.gateway.settings import GatewaySettings
from llmgw.gateway.worker import GIVE_WAY, STOP, command
from llmgw.handover import Hello
from llmgw.systemd import Service

#: One that ends sooner died at its start: the next waits longer each time.
FAST_DEATH_S = 10.0
BACKOFF_S, BACKOFF_CAP_S = 0.1, 10.0
#: A worker that does not end by itself, its drain limit included, is killed after this.
GRACE_S = 10.0


class Parent:
    def __init__(self, settings: GatewaySettings, place: Place, service: Service) -> None:
        self._settings = settings
        self._place = place
        self._service = service
        self._where = spelled(place.listener)
        self._log: Any = structlog.get_logger()
        self._stop = Stop()
        self._stop.hear(self._log)
        self._id = str(uuid.uuid4())
        self._slots = kin.slots(settings.workers)
        self._counts = common.memory(settings.workers)
        self._lines: dict[int, socket.socket] = {}
        self._last_word = STOP
        place.state_dir.family = self._id[:8]
        if place.old is None:
            place.state_dir.sign()

    async def run(self) -> int:
        await ended(self._serve)
        return self._stop.exit_code

    async def _serve(self, group: asyncio.TaskGroup) -> None:
        keepers: list[asyncio.Task[None]] = []
        door: Door | None = None
        try:
            keepers, door = await occupied(
                self._place, self, lambda: self._started(group), self._log
            )
            self._log.info("serving", listen=self._where, gateway=self._id, pid=os.getpid())
            self._service.ready(f"serving {self._where} with {self._settings.workers} workers")
            group.create_task(self._alive())
            await self._stop.asked.wait()
            self._service.stopping("ends after the requests in flight")
        finally:
            self._log.info("stopping", workers=len(self._lines))
            if door is not None:
                door.close()
            self._place.listener.close()
            self._place.state_dir.release()
            self._say(self._last_word)
        await self._finish(keepers)
        self._log.info("stopped")

    async def _started(self, group: asyncio.TaskGroup) -> list[asyncio.Task[None]]:
        """Once all accept; `LlmgwError` where one does not come up."""
        ready = [asyncio.get_running_loop().create_future() for _ in self._slots]
        keepers = [group.create_task(self._keep(i, first)) for i, first in enumerate(ready)]
        await asyncio.gather(*ready)
        return keepers

    async def _keep(self, index: int, first: asyncio.Future[None]) -> None:
        loop = asyncio.get_running_loop()
        quick = 0
        while not self._stop.asked.is_set():
            began_s = loop.time()
            code = await self._life(index, first)
            if not first.done():
                message = f"worker {index} ended before it served, exit code {code}"
                first.set_exception(LlmgwError(message, "its own words are in the lines above"))
                return
            if self._stop.asked.is_set():
                return
            quick = quick + 1 if loop.time() - began_s < FAST_DEATH_S else 0
            pause_s = min(BACKOFF_S * 2.0**quick, BACKOFF_CAP_S) if quick > 1 else 0.0
            self._log.warning("a worker ended", worker=index, code=code, again_s=pause_s)
            with suppress(TimeoutError):
                async with asyncio.timeout(pause_s):
                    await self._stop.asked.wait()

    async def _life(self, index: int, first: asyncio.Future[None]) -> int | str:
        """One process from its start to its end: the exit code, or why there is none."""
        ours, its = socket.socketpair()
        ours.setblocking(False)  # noqa: FBT003 - the standard library's own signature
        listener = self._place.listener.fileno()
        birth = Birth(self._settings, index, self._id[:8], listener, self._slots, self._counts)
        ours.send(msgspec.json.encode(birth, enc_hook=str) + b"\n")
        try:
            process = await asyncio.create_subprocess_exec(
                *command(sys.executable, its.fileno(), self._settings.state_dir),
                stdin=subprocess.DEVNULL,
                pass_fds=(its.fileno(), listener, *self._slots, self._counts),
                start_new_session=True,  # Ctrl-C is the parent's to hear
            )
        except OSError as e:  # no memory, no process: another time
            ours.close()
            return str(e)
        finally:
            its.close()
        self._lines[index] = ours
        try:
            with suppress(OSError):
                said = await asyncio.get_running_loop().sock_recv(ours, 1)
                if said and not first.done():
                    first.set_result(None)
            return await process.wait()
        except asyncio.CancelledError:
            process.kill()
            raise
        finally:
            del self._lines[index]
            ours.close()

    def _say(self, word: bytes) -> None:
        for line in self._lines.values():
            with suppress(OSError):
                line.send(word)

    async def _finish(self, keepers: list[asyncio.Task[None]]) -> None:
        """Whatever is left after the limit, or after a second request to end, goes with our task group."""
        limit_s = self._settings.drain_timeout_s if self._last_word is STOP else inf
        deadline = asyncio.get_running_loop().time() + limit_s + GRACE_S
        told = False
        while not all(keeper.done() for keeper in keepers):
            await asyncio.wait(keepers, timeout=SWEEP_S / 10)
            if self._stop.again.is_set() and not told:
                told = True
                self._say(STOP)
            if asyncio.get_running_loop().time() > deadline:
                return

    async def _alive(self) -> None:
        while True:
            await asyncio.sleep(SWEEP_S)
            self._service.alive()

    # -- for the door

    def stop(self) -> None:
        self._stop.ask()

    def give_way(self) -> None:
        if not self._stop.asked.is_set():
            self._last_word = GIVE_WAY
            self._stop.ask()

    def hello(self) -> Hello:
        """The tables are the workers' own."""
        return Hello(
            pid=os.getpid(),
            gateway=self._id,
            version=__version__,
            listen=self._where,
            controls=self._settings.controls,
        )
