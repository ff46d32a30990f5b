"""What engines' processes leave behind: the agent becomes its parent (PR_SET_CHILD_SUBREAPER, prctl(2)) and reaps it.

In a container without an init nobody else would reap it. And once a child of ours is dead, whoever descends from it is
a child of ours, or below one: where there is none, nothing is left of it, whoever else lives on this host (P9). It ends
with this process and is not inherited: after an agent's death its engines and their orphans are init's, and the next
agent's are its own again. May not signal anybody.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
from collections.abc import Container

import structlog

from llmgw.agent import process
from llmgw.agent.process import Pids
from llmgw.core.types.node import TreeSeen
from llmgw.core.types.record import Record

log = structlog.get_logger()
PR_SET_CHILD_SUBREAPER = 36


class Orphans:
    """Those of one agent process; `adopts`: whether it is the parent of what is left behind."""

    def __init__(self, *, adopts: bool = False) -> None:
        self.adopts = adopts
        self._dead: frozenset[int] = frozenset()

    def gone(self, record: Record, known: Pids, leaders: Container[int]) -> TreeSeen | None:
        """That all of a child's tree is gone, which is dead itself; None where only a look at everybody tells.

        When it was told to end there was one: `known` are those of its tree that were seen then, whosesoever children.
        `leaders`: our children that lead engines, it among them. Any other child of ours may be one that it left.
        """
        if not (self.adopts and record.signalled and process.lists_children()):
            return None
        try:
            others = (pid for pid in process.children(os.getpid()) if pid not in leaders)
            if next(others, None) is not None or any(_lives(*one) for one in known.items()):
                return None
        except OSError:
            return None
        return TreeSeen(key=record.key, attempt=record.attempt)

    def reap(self, leaders: Container[int]) -> None:
        """Not what is waited for in another place, which loses its exit code when we wait first.

        Only who was a zombie at the last heartbeat already is nobody's.
        """
        try:
            dead = frozenset(pid for pid in process.dead_children() if pid not in leaders)
        except OSError as e:
            log.warning("cannot look for dead orphans", error=str(e))
            return
        for pid in dead & self._dead:
            with contextlib.suppress(ChildProcessError):
                _, status = os.waitpid(pid, os.WNOHANG)
                code = os.waitstatus_to_exitcode(status)
                log.info("an orphan of an engine had ended", pid=pid, code=code)
        self._dead = dead


def adopt() -> str:
    """Become the parent of what is left behind; "" or why not."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) == 0:
        return ""
    return os.strerror(ctypes.get_errno())


def _lives(pid: int, ticks: int) -> bool:
    stat = process.read_stat(pid)
    return stat is not None and stat.ticks == ticks and stat.live
