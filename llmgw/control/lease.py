"""Who leads: the right to decide and to command, held under a new epoch at every acquisition (F33, design.md 5).

`file` is a flock beside the inventory and the epoch in it: one host, one control. A lease for several hosts has the
same verbs. May not decide what a leader does; one that cannot be had is an error, one that is lost ends the process.
"""

from __future__ import annotations

import fcntl
import os
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Protocol, Self

from llmgw.errors import LlmgwError


class LeaseLostError(LlmgwError):
    """Somebody else may lead now: stop at once, a fresh process starts anew (F25)."""

    code = "lease_lost"


class Epochs(Protocol):
    """The durable memory of the highest epoch used here."""

    def epoch(self) -> int: ...
    def write_epoch(self, epoch: int, leader_uuid: str) -> None: ...


class Lease(Protocol):
    name: str

    def acquire(self, leader_uuid: str, above: int) -> int:
        """A new epoch, higher than any used here and than `above`, durable before it is returned."""

    def renew(self) -> None:
        """LeaseLostError when it is not ours any more."""

    def deadline(self, now: float) -> float | None:
        """Monotonic time to stop acting at; None where holding on is enough."""

    def release(self) -> None: ...


class Flock:
    """`FILE.lock`, never the file itself: closing any handle of a file drops the locks that SQLite has on it."""

    def __init__(self, file: Path) -> None:
        self.file = file
        self.path = file.with_name(f"{file.name}.lock")
        self._fd = -1

    def take(self) -> None:
        try:
            fd = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as e:
            msg = f"cannot lock the inventory: {self.path}: {e.strerror}"
            raise LlmgwError(msg, "check the folder, or name another file: --inventory FILE") from e
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as e:
            holder = os.pread(fd, 32, 0).decode(errors="replace").strip() or "unknown"
            os.close(fd)
            msg = f"{self.file} is in use by another control, pid {holder}"
            hint = "ask that one, end it first, or name another file: --inventory FILE"
            raise LlmgwError(msg, hint, code="locked", status=409) from e
        self._fd = fd
        with suppress(OSError):  # on a full disk: the pid helps people, the lock holds without it
            os.ftruncate(fd, os.pwrite(fd, f"{os.getpid()}\n".encode(), 0))

    @property
    def ours(self) -> bool:
        """Held, and still the file that another control would try: a removed lock file guards nothing."""
        try:
            there, mine = self.path.stat(), os.fstat(self._fd)
        except OSError:
            return False
        return (there.st_dev, there.st_ino) == (mine.st_dev, mine.st_ino)

    def drop(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

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


class FileLease:
    """Taken when made; an epoch only when asked for."""

    name = "file"

    def __init__(self, inventory: Path, epochs: Epochs) -> None:
        self._lock = Flock(inventory)
        self._epochs = epochs
        self._lock.take()

    def acquire(self, leader_uuid: str, above: int) -> int:
        epoch = 1 + max(self._epochs.epoch(), above)
        self._epochs.write_epoch(epoch, leader_uuid)
        return epoch

    def renew(self) -> None:
        if self._lock.ours:
            return
        # Somebody removed the lock file. Ours again if nobody was quicker; else there are two, and this one ends.
        self._lock.drop()
        try:
            self._lock.take()
        except LlmgwError as e:
            msg = f"the lease is lost: {e.message}"
            raise LeaseLostError(msg, e.hint) from e

    def deadline(self, now: float) -> float | None:  # noqa: ARG002 - a flock does not lapse
        return None

    def release(self) -> None:
        self._lock.drop()


def lease(spec: str, inventory: Path, epochs: Epochs) -> Lease:
    """`file`; `etcd://…` is refused until it is there."""
    if spec == "file":
        return FileLease(inventory, epochs)
    if spec.startswith("etcd://"):
        msg = f"--lease {spec}: not supported yet"
        raise LlmgwError(msg, "use --lease file: one control on one host")
    msg = f"--lease {spec}: is neither file nor etcd://HOST:PORT"
    raise LlmgwError(msg, "use --lease file", code="usage")
