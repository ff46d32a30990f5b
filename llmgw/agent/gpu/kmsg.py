"""The kernel's log, for what a driver writes there and nowhere else: read without waiting, from where it was last read.

Answers for: a log that may not be read, or is not there, is empty. Every reader has a place of its own in it, so nobody
loses a line to us (kernel: Documentation/ABI/testing/dev-kmsg). May not know what a line means.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

import structlog

log = structlog.get_logger()
#: The longest record, as the kernel gives one with each read.
RECORD_BYTES = 8192
#: So many a look; a flood is read on at the next one.
RECORDS = 100_000


class KernelLog:
    def __init__(self, path: Path) -> None:
        self.path = path
        self._fd: int | None = None
        self._refused = ""

    def new(self) -> Iterator[tuple[str, float]]:
        """Lines that were not read yet and their times by the monotonic clock; at first all since `dmesg --clear`."""
        if self._fd is None:
            self._fd = self._open()
        if self._fd is None:
            return
        for _ in range(RECORDS):
            try:
                raw = os.read(self._fd, RECORD_BYTES)
            except (
                BrokenPipeError
            ):  # written over before it was read: the next read goes on after the gap
                continue
            except OSError:  # nothing more for now, mostly
                return
            if not raw:
                return
            for line in raw.decode(errors="replace").splitlines():
                head, there, text = line.partition(";")
                since_boot = head.split(",")[2:3]
                if there and since_boot and since_boot[0].isdecimal():
                    yield text, int(since_boot[0]) / 1e6

    def _open(self) -> int | None:
        try:
            fd = os.open(self.path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        except OSError as e:
            why = e.strerror or str(e)
            if why != self._refused:
                log.info("the kernel's log cannot be read", path=str(self.path), why=why)
                self._refused = why
            return None
        with contextlib.suppress(OSError):
            os.lseek(fd, 0, os.SEEK_DATA)
        return fd

    def close(self) -> None:
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None
