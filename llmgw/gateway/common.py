"""What the workers of one gateway count together: a row for each thing counted, in memory that all of them see.

Answers for: a limit that holds over all of them (without it, N workers give N times what was granted). Each writes its
own column only, and nobody waits for a lock: a worker that was stopped or killed holds nobody up, and what it had is
out of the count once it has not been heard of for `ALIVE_S`. It may not know what is counted.

A limit is kept by asking before looking: of two that do so at once one at least sees the other. That one of them has
the last place, and not neither, is by their order: the first keeps it, once the other has stepped back. Nobody can be
made to do so without a lock, thus it is waited for a few looks long and no longer.

A row is free again when no worker that lives holds it, and its time is over. Of two that take one at the same moment
the name of one is lost: whoever misses its own, at the next second, moves.
"""

from __future__ import annotations

import hashlib
import mmap
import os

#: API keys (1000 at most: control.keys.KEYS_MAX), models, and replicas that run.
ROWS = 4096
#: A name is in one of so many rows, or in none.
STEPS = 256
#: So often is looked whether another one, asked at the same moment, steps back: some tenths of a millisecond.
LOOKS = 50
#: A worker says each second that it lives.
ALIVE_S = 5.0
CELL = 8
#: What a row has before the columns: its name and a time. A column is 0 where its worker does not hold the row; else
#: one more than its count, below 0 while the last of it is asked for and not had yet.
HEAD = 2


class Cell:
    """A row as one process holds it, for as many as count there."""

    __slots__ = ("asks", "at", "common", "holders", "name", "total")

    def __init__(self, common: Common, name: int) -> None:
        self.name = name
        self.asks = False
        self.holders = 0
        self.total = 0
        self.settle(common)

    def settle(self, common: Common) -> None:
        """Where all rows are taken, each worker counts for itself."""
        at = common.find(self.name)
        self.common, self.at = (common, at) if at >= 0 else _lonely(self.name)
        self.write()
        self.common.counts[self.at] = self.name

    def write(self) -> None:
        common, count = self.common, self.total + 1
        common.counts[self.at + HEAD + common.index] = -count if self.asks else count

    def leave(self) -> None:
        common = self.common
        common.counts[self.at + HEAD + common.index] = 0


class Common:
    """`index` is our column of `workers`. Alone, a gateway counts in memory of its own."""

    def __init__(self, memory: mmap.mmap | bytearray, index: int = 0, workers: int = 1) -> None:
        view = memoryview(memory)
        self.counts = view.cast("q")
        self.times = view.cast("d")  # the same cells; first when each worker last lived
        self.index = index
        self.workers = workers
        self._width = HEAD + workers
        self._cells: dict[int, Cell] = {}
        for row in range(ROWS):
            self.counts[self._at(row) + HEAD + index] = 0  # of the one that had our place before

    def _at(self, row: int) -> int:
        return self.workers + row * self._width

    def alive(self, now: float) -> None:
        """Each second. What others took for free, while we were stopped or at the same moment, is theirs."""
        moved = [cell for cell in self._cells.values() if self._misplaced(cell)]
        for cell in moved:
            cell.leave()
        for cell in moved:
            cell.settle(self)
        self.times[self.index] = now

    def _misplaced(self, cell: Cell) -> bool:
        at = self.find(cell.name)
        return at != cell.at if cell.common is self else at >= 0

    def find(self, name: int) -> int:
        """Where its row is, or the first that is free; -1 where there is neither. No name is ever wiped out."""
        free = -1
        for step in range(STEPS):
            at = self._at((name + step) % ROWS)
            there = self.counts[at]
            if there == name:
                return at
            if free < 0 and self._free(at):
                free = at
            if not there:
                break
        return free

    def _free(self, at: int) -> bool:
        now = self.times[self.index]
        held = any(
            self.counts[at + HEAD + i] and (i == self.index or now - self.times[i] < ALIVE_S)
            for i in range(self.workers)
        )
        return not held and self.times[at + 1] <= now

    def row(self, *names: object) -> Row:
        """The same names, the same row, for as long as anybody keeps one of them."""
        digest = hashlib.blake2b(repr(names).encode(), digest_size=CELL).digest()
        name = int.from_bytes(digest, "little", signed=True) or 1
        cell = self._cells.get(name)
        if cell is None:
            cell = self._cells[name] = Cell(self, name)
        return Row(self, cell)

    def left(self, cell: Cell) -> None:
        if not cell.holders:
            cell.leave()
            del self._cells[cell.name]


class Row:
    """One that counts: of several with the same names in one process all are in the count."""

    __slots__ = ("_cell", "_common", "_mine")

    def __init__(self, common: Common, cell: Cell) -> None:
        self._common = common
        self._cell = cell
        self._mine = 0
        cell.holders += 1

    def __del__(self) -> None:
        self.put(0)
        self._cell.holders -= 1
        self._common.left(self._cell)

    def put(self, count: int) -> None:
        """How many are ours."""
        self._say(count, asks=False)

    def claim(self, count: int, limit: float, now: float) -> bool:
        """One more is ours, `count` then, where all together stay within the limit; else it is as it was."""
        self.ask(count)
        said = None
        for _ in range(LOOKS):
            said = self.answer(limit, now)
            if said is not None:
                break
            os.sched_yield()  # who steps back may need our core for it
        self.put(count if said else count - 1)
        return bool(said)

    def ask(self, count: int) -> None:
        """Said before it is looked at: whoever comes later sees it."""
        self._say(count, asks=True)

    def _say(self, count: int, *, asks: bool) -> None:
        cell = self._cell
        cell.asks = asks
        cell.total += count - self._mine
        self._mine = count
        cell.write()

    def answer(self, limit: float, now: float) -> bool | None:
        """Whether what was asked for is ours; None: it depends on one that asks as well.

        One before us in the order has what it asks for, as far as we are concerned. One behind us sees us and steps
        back, or had looked before we asked and has it: that is seen as soon as it asks no longer.
        """
        common, first = self._cell.common, self._cell.at + HEAD
        taken = behind = 0
        for i in range(common.workers):
            count = common.counts[first + i]
            if count and i != common.index and now - common.times[i] < ALIVE_S:
                asks = count < 0 and i > common.index
                taken += abs(count) - 1 - asks
                behind += asks
        total = self._cell.total
        if total + taken > limit:
            return False
        return True if total + taken + behind <= limit else None

    def others(self, now: float) -> int:
        """How many are those of the other workers, of such as live; asked for is as good as had."""
        common, first = self._cell.common, self._cell.at + HEAD
        total = 0
        for i in range(common.workers):
            count = abs(common.counts[first + i])
            if count > 1 and i != common.index and now - common.times[i] < ALIVE_S:
                total += count - 1
        return total

    @property
    def until(self) -> float:
        """A time that all share; of two that set it at once one is lost."""
        return self._cell.common.times[self._cell.at + 1]

    @until.setter
    def until(self, at: float) -> None:
        self._cell.common.times[self._cell.at + 1] = at


def _lonely(name: int) -> tuple[Common, int]:
    common = alone()
    return common, common.find(name)


def alone() -> Common:
    return Common(bytearray(size(1)))


def size(workers: int) -> int:
    return (workers + ROWS * (HEAD + workers)) * CELL


def memory(workers: int) -> int:
    """A descriptor, for all workers."""
    fd = os.memfd_create("llmgw-counts", os.MFD_CLOEXEC)
    os.ftruncate(fd, size(workers))
    return fd


def shared(fd: int, index: int, workers: int) -> Common:
    return Common(mmap.mmap(fd, size(workers)), index, workers)
