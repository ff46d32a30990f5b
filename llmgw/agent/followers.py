"""Copies of docker's logs in our log files: one `docker logs --follow` an engine, which outlives the agent.

podman's engines write into the file themselves; docker keeps their words, so a follower copies them. It is found again
by its environment; where it is gone the next one goes on from its last words, a second of which may come twice. May
not read a log.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
from typing import NamedTuple

import structlog

from llmgw.agent import process
from llmgw.agent.logs import Logs
from llmgw.agent.runtime import Box, Runtime
from llmgw.core.types.record import Key

log = structlog.get_logger()
#: In a follower's environment: the container that it copies.
FOLLOWS = "LLMGW_FOLLOWS"
#: After the end of its container a follower may still have something to write.
LAST_WORDS_S = 2.0
#: What was said before the last write into our file is in it, but for what was on its way.
OVERLAP_S = 1.0


class _Follower(NamedTuple):
    box: Box
    pid: int
    ticks: int
    child: subprocess.Popen[bytes] | None

    @property
    def live(self) -> bool:
        if self.child is not None and self.child.poll() is not None:
            return False
        stat = process.read_stat(self.pid)
        return stat is not None and stat.live and stat.ticks == self.ticks

    def end(self) -> None:
        """One that waits for a container that is not there any more would wait for ever."""
        with contextlib.suppress(OSError):
            process.send(self.pid, self.ticks, signal.SIGKILL)
        if self.child is not None:
            self.child.poll()


class Followers:
    def __init__(self, logs: Logs) -> None:
        self.logs = logs
        self.of: dict[Key, _Follower] = {}

    def keep(self, key: Key, box: Box, *, fresh: bool = False) -> None:
        """The one that is there, or a new one."""
        if box.kind != "docker":
            return
        try:
            self.of[key] = (None if fresh else _found(box)) or self._made(key, box, fresh=fresh)
        except OSError as e:
            log.warning("its log is not copied", shard=key[0], error=e.strerror)

    def mend(self) -> None:
        for key, follower in list(self.of.items()):
            if not follower.live:
                self.keep(key, follower.box)

    async def done(self, key: Key) -> None:
        """Wait for the last words of an ended container."""
        follower = self.of.pop(key, None)
        waited_s = 0.0
        while follower is not None and follower.live and waited_s < LAST_WORDS_S:
            await asyncio.sleep(0.05)
            waited_s += 0.05
        if follower is not None:
            follower.end()

    def forget(self, key: Key) -> None:
        follower = self.of.pop(key, None)
        if follower is not None:
            follower.end()

    def _made(self, key: Key, box: Box, *, fresh: bool) -> _Follower:
        fd = os.open(self.logs.path(key[0]), os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        try:
            since_s = 0.0 if fresh else os.fstat(fd).st_mtime - OVERLAP_S
            child = Runtime(box.kind).follow(box, fd, since_s, {FOLLOWS: box.id})
        finally:
            os.close(fd)
        stat = process.read_stat(child.pid)
        return _Follower(box, child.pid, stat.ticks if stat else 0, child)


def _found(box: Box) -> _Follower | None:
    for stat in process.all_stats().values():
        if stat.live and process.environ(stat.pid).get(FOLLOWS) == box.id:
            return _Follower(box, stat.pid, stat.ticks, None)
    return None
