"""Locks of the kernel's on the inventory: for one process at a time, by whatever name it comes to it (F17).

May not know what is decided by who holds them.
"""

from __future__ import annotations

import fcntl
import os
import struct
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import TracebackType
from typing import Self

from llmgw.errors import LlmgwError

#: `struct flock`: a write lock on one byte.
_FAR_BYTE = struct.pack("hhqqi4x", fcntl.F_WRLCK, os.SEEK_SET, 1 << 62, 1, 0)


class Lock:
    """One lock of the kernel's on one file, which ends with this process however that ends."""

    def __init__(self, path: Path, flags: int, lock: Callable[[int], None]) -> None:
        self.path = path
        self.fd = -1
        self._flags = flags | os.O_CLOEXEC
        self._lock = lock

    def take(self) -> None:
        """TakenError: somebody else has it. OSError: it cannot be had; what was held before stays held."""
        fd = os.open(self.path, self._flags, 0o600)
        try:
            self._lock(fd)
        except BlockingIOError as e:
            raise TakenError(fd) from e
        except OSError:
            os.close(fd)
            raise
        self.drop()
        self.fd = fd

    @property
    def ours(self) -> bool:
        """Held, and still on the file that another control would try: a removed one guards nothing."""
        try:
            there, mine = self.path.stat(), os.fstat(self.fd)
        except OSError:
            return False
        return (there.st_dev, there.st_ino) == (mine.st_dev, mine.st_ino)

    def drop(self) -> None:
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1


class TakenError(Exception):
    """Somebody else has it. Who, is looked up when it is asked: a standby that waits wants the lock, not a name."""

    def __init__(self, fd: int) -> None:
        super().__init__()
        self._fd = fd

    @property
    def pid(self) -> str:
        return _holder(self._fd)

    def __del__(self) -> None:
        os.close(self._fd)


def _flock(fd: int) -> None:
    fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)


def flock_folder(fd: int) -> None:
    with _where_supported():
        _flock(fd)


def _claim(fd: int) -> None:
    """A byte far behind those that SQLite locks, and of the open file, which SQLite's unlocking leaves alone."""
    with _where_supported():
        fcntl.fcntl(fd, fcntl.F_OFD_SETLK, _FAR_BYTE)


@contextmanager
def _where_supported() -> Iterator[None]:
    """Network file systems lack some kinds of locks. `FILE.lock` they have, or control does not start."""
    try:
        yield
    except BlockingIOError:
        raise
    except OSError:
        pass


def _holder(fd: int) -> str:
    """The pid of who has a lock on this file: as the kernel tells it, else as he wrote it there."""
    mine = os.fstat(fd)
    for info in Path("/proc").glob("[0-9]*/fdinfo/*"):
        try:
            if "lock:" not in info.read_text():
                continue
            there = (info.parents[1] / "fd" / info.name).stat()
        except OSError:
            continue
        if (there.st_dev, there.st_ino) == (mine.st_dev, mine.st_ino):
            return info.parts[2]
    try:
        said = os.pread(fd, 32, 0).decode(errors="replace")
    except OSError:
        return "unknown"
    return said.partition("\n")[0].strip() or "unknown"


class Flock:
    """One inventory, for one process at a time, by whatever name it comes to it (F17).

    `FILE.lock` lies beside the file itself, wherever symlinks lead; who has the file under another name altogether, a
    hard link or a mount, finds a byte of it claimed. There is no flock of the file: where that is a lock like SQLite's
    (NFS), the file would be locked for good; and closing any handle of it drops SQLite's locks, so ours is closed last.
    """

    def __init__(self, file: Path) -> None:
        self.file = file
        real = Path(os.path.realpath(file))
        self.path = real.with_name(f"{real.name}.lock")
        self._beside = Lock(self.path, os.O_RDWR | os.O_CREAT, _flock)
        self._within = Lock(real, os.O_RDWR, _claim)

    def grab(self) -> None:
        """What of it is not held, or not held any more. TakenError, OSError: it cannot be had."""
        try:
            if not self._beside.ours:
                self._beside.take()
                self.sign()
            if not self._within.ours:
                # One that is not there yet is claimed later; of one that cannot be had the store has to tell.
                with suppress(OSError):
                    self._within.take()
        except TakenError:
            self.drop()
            raise

    def take(self) -> None:
        """The same for people: LlmgwError, "locked" where somebody else has it."""
        try:
            self.grab()
        except TakenError as e:
            msg = f"{self.file} is in use by another control, pid {e.pid}"
            hint = "ask that one, end it first, or name another file: --inventory FILE"
            raise LlmgwError(msg, hint, code="locked", status=409) from e
        except OSError as e:
            msg = f"cannot lock the inventory: {self.path}: {e.strerror}"
            raise LlmgwError(msg, "check the folder, or name another file: --inventory FILE") from e

    def sign(self, *more: str) -> None:
        """Our pid and what else others may want to know of us, a line each, while it is ours."""
        lines = "".join(f"{line}\n" for line in (os.getpid(), *more)).encode()
        with suppress(OSError):  # on a full disk: it helps people, the lock holds without it
            os.ftruncate(self._beside.fd, os.pwrite(self._beside.fd, lines, 0))

    def signed(self) -> list[str]:
        """What its holder wrote there."""
        try:
            return self.path.read_text(errors="replace").splitlines()
        except OSError:
            return []

    @property
    def ours(self) -> bool:
        return self._beside.ours and (self._within.ours or not self._within.path.exists())

    def drop(self) -> None:
        self._within.drop()
        self._beside.drop()

    def __enter__(self) -> Self:
        self.take()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.drop()
