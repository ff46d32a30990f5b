"""What the workers of one gateway count together: a row for each thing counted, in memory that all of them see.

Answers for: a limit that holds over all of them (without it, N workers give N times what was granted). Each writes its
own column only, and nobody waits for a lock: a worker that was stopped or killed holds nobody up, and what it had is
out of the count once it has not been heard of for `ALIVE_S`. It may not know what is counted.
"""

from __future__ import annotations

import hashlib
import mmap
import os

#: Of API keys 1000 may exist (control.keys.KEYS_MAX), at a time; a row is never given back.
ROWS = 4096
#: A worker says each second that it lives.
ALIVE_S = 5.0
CELL = 8


class Common:
    """`index` is our column of `workers`. Alone, a gateway counts in memory of its own."""

    def __init__(self, memory: mmap.mmap | bytearray, index: int = 0, workers: int = 1) -> None:
        view = memoryview(memory)
        self.counts = view.cast("q")
        self.times = view.cast("d")  # the same cells; first when each worker last lived
        self.index = index
        self.workers = workers
        self._width = 2 + workers  # its name, a time, and the columns
        for row in range(ROWS):
            self.counts[self._at(row) + 2 + index] = 0  # of the one that had our place before

    def _at(self, row: int) -> int:
        return self.workers + row * self._width

    def alive(self, now: float) -> None:
        self.times[self.index] = now

    def row(self, *names: object) -> Row:
        """The same names, the same row. Two that come for a free one at the same moment see who wrote last."""
        digest = hashlib.blake2b(repr(names).encode(), digest_size=CELL).digest()
        name = int.from_bytes(digest, "little", signed=True) or 1
        for step in range(ROWS):
            at = self._at((name + step) % ROWS)
            if not self.counts[at]:
                self.counts[at] = name
            if self.counts[at] == name:
                return Row(self, at)
        return alone().row(*names)  # all are taken: each worker counts for itself


class Row:
    __slots__ = ("_at", "_common")

    def __init__(self, common: Common, at: int) -> None:
        self._common = common
        self._at = at

    def put(self, count: int) -> None:
        """How many are ours."""
        common = self._common
        common.counts[self._at + 2 + common.index] = count

    def others(self, now: float) -> int:
        """How many are those of the other workers, of such as live."""
        common, first = self._common, self._at + 2
        living = (
            common.counts[first + i]
            for i in range(common.workers)
            if i != common.index and now - common.times[i] < ALIVE_S
        )
        return sum(living)

    @property
    def until(self) -> float:
        """A time that all share; of two that set it at once one is lost."""
        return self._common.times[self._at + 1]

    @until.setter
    def until(self, at: float) -> None:
        self._common.times[self._at + 1] = at


def alone() -> Common:
    return Common(bytearray(size(1)))


def size(workers: int) -> int:
    return (workers + ROWS * (2 + workers)) * CELL


def memory(workers: int) -> int:
    """A descriptor, for all workers."""
    fd = os.memfd_create("llmgw-counts", os.MFD_CLOEXEC)
    os.ftruncate(fd, size(workers))
    return fd


def shared(fd: int, index: int, workers: int) -> Common:
    return Common(mmap.mmap(fd, size(workers)), index, workers)
