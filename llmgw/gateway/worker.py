"""One of several processes that accept on one socket. Its parent holds their place; when that dies, one of them does.

Answers for: serving on without a parent, until the next gateway takes over from whichever worker has the door. They
find each other by the lock's file: who holds it, and of which family. It may not start a process.
"""

from __future__ import annotations

import asyncio
import os
import signal
import socket
from collections import Counter
from contextlib import suppress
from pathlib import Path

import msgspec
from typing_extensions import override

from llmgw.errors import LlmgwError
from llmgw.gateway import common, kin, shared
from llmgw.gateway.door import Door, InUseError, StateDir, holder
from llmgw.gateway.feed import Feed
from llmgw.gateway.kin import Birth
from llmgw.gateway.place import Place
from llmgw.gateway.process import Process, kept, known
from llmgw.handover import Hello
from llmgw.systemd import Service

#: What the parent says on its line, one byte each; and what a worker says once it accepts.
STOP, GIVE_WAY, READY = b"s", b"w", b"r"
#: How often an orphan looks whether the place is free, or somebody else's.
LOOK_S = 0.3


def started(fd: int) -> tuple[Birth, socket.socket]:
    """Reads what the parent says first."""
    line = socket.socket(fileno=fd)
    said = b""
    while not said.endswith(b"\n"):
        said += line.recv(4096)
    birth = msgspec.json.decode(said, type=Birth, dec_hook=lambda kind, value: kind(value))
    for inherited in (fd, birth.listener, *birth.slots, birth.counts):
        os.set_inheritable(inherited, False)  # noqa: FBT003 - that is its signature
    line.setblocking(False)  # noqa: FBT003 - as above
    return birth, line


class Worker(Process):
    def __init__(self, birth: Birth, line: socket.socket) -> None:
        super().__init__(birth.settings, socket.socket(fileno=birth.listener), Service())
        self._birth = birth
        self._line = line
        self._asked: Counter[str] = Counter()
        loop = asyncio.get_running_loop()
        loop.add_signal_handler(signal.SIGTERM, self._ask, "signal")
        self._log = self._log.bind(worker=birth.index)
        self._gateway.scraped = self._merged
        self._gateway.count_with(common.shared(birth.counts, birth.index, len(birth.slots)))

    @override
    async def _opened(self, group: asyncio.TaskGroup, feed: Feed) -> asyncio.Server:
        await known(feed)
        server = await self._accepting(feed)
        with suppress(OSError):  # a dead parent is heard of below
            self._line.send(READY)
        asyncio.get_running_loop().add_reader(self._line, self._told, group)
        group.create_task(kept(self._look, self._log))
        return server

    async def _look(self) -> None:
        while True:
            await asyncio.sleep(shared.LOOK_S)
            self._gateway.look()

    def _told(self, group: asyncio.TaskGroup) -> None:
        try:
            said = self._line.recv(16)
        except OSError:
            said = b""
        if not said:
            asyncio.get_running_loop().remove_reader(self._line)
            group.create_task(self._orphaned())
        for word in said:
            if bytes([word]) == GIVE_WAY:
                self.give_way()
            self._ask("word")

    def _ask(self, by: str) -> None:
        """A service manager's TERM to all of us and the parent's word are one request; two of a kind cut."""
        self._asked[by] += 1
        if self._asked[by] > 1 or not self._stop.asked.is_set():
            self.stop()

    async def _orphaned(self) -> None:
        """Serve on, and see to it that one of us holds the place until somebody else wants it."""
        self._log.warning("the parent is gone: serving on")
        folder, family = self._settings.state_dir, self._birth.family
        while not self._stop.asked.is_set():
            try:
                state_dir = StateDir(folder, family=family, signs=False)
            except InUseError:
                held = holder(folder)
                if held == ("0", family):
                    self.stop()
                elif held[1] != family:
                    self._log.info("another gateway serves here: giving way")
                    self.give_way()
            except LlmgwError as e:
                self._log.warning("the place cannot be held", why=e.message)
            else:
                self._hold(state_dir)
                return
            await asyncio.sleep(LOOK_S)

    def _hold(self, state_dir: StateDir) -> None:
        pid, family = state_dir.before
        if pid == "0" or family != self._birth.family:
            # One of us was stopped, or another gateway had taken our place, and has ended since: then it is its own
            # workers' to hold, who go by what stands there.
            state_dir.release()
            self.stop()
            return
        state_dir.sign()
        token = self._settings.token
        self._place = Place(state_dir, self._listener, token)
        self._door = Door(state_dir, self._listener, self, token)
        self._log.info("holds the parent's place", pid=os.getpid())

    @override
    def hello(self) -> Hello:
        said = super().hello()
        said.orphan = True  # nobody else has a door
        return said

    @override
    def _leave(self) -> None:
        if self._place is not None and not self._gateway.handed_over:
            self._place.state_dir.sign(0)  # stopped, not replaced: the others end too
        super()._leave()

    @override
    def _swept(self) -> None:
        kin.publish(self._birth.slots[self._birth.index], self._gateway.exposition())

    def _merged(self, own: bytes) -> bytes:
        kin.publish(self._birth.slots[self._birth.index], own)
        return kin.merged(map(kin.published, self._birth.slots))


def command(python: str, line: int, state_dir: Path) -> list[str]:
    """The folder is for `ps`, and for whoever looks there for gateways of a folder."""
    words = [python, "-m", "llmgw", "gateway", "--worker", str(line)]
    return [*words, "--state-dir", str(state_dir)]
