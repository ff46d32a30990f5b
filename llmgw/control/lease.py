"""Who leads: the right to decide and to command, held under a new epoch at every acquisition (F33, design.md 5).

`file` is a flock beside the inventory and the epoch in it: one host, one control. A lease for several hosts has the
same verbs. May not decide what a leader does; one that cannot be had is an error, one that is lost ends the process.
"""

from __future__ import annotations

import fcntl
import os
import struct
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import TracebackType
from typing import Protocol, Self

from llmgw.control.crash import crash
from llmgw.errors import LlmgwError

#: `struct flock`: a write lock on one byte.
_FAR_BYTE = struct.pack("hhqqi4x", fcntl.F_WRLCK, os.SEEK_SET, 1 << 62, 1, 0)


class LeaseLostError(LlmgwError):
    """Somebody else may lead now: stop at once, a fresh process starts anew (F25)."""

    code = "lease_lost"


class Epochs(Protocol):
    """The durable memory of the highest epoch used here."""

    def epoch(self) -> int: ...
    def write_epoch(self, epoch: int, leader_uuid: str) -> None: ...


class Lease(Protocol):
    """`problem`: why it cannot be made sure of right now, for `status`; "" while all is well."""

    name: str
    problem: str

    def acquire(self, leader_uuid: str, above: int) -> int:
        """A new epoch, higher than any used here and than `above`, durable before it is returned."""

    def renew(self) -> None:
        """LeaseLostError when it is not ours any more."""

    def deadline(self, now: float) -> float | None:
        """Monotonic time to stop acting at; None where holding on is enough."""

    def release(self) -> None: ...


class _Lock:
    """One lock of the kernel's on one file, which ends with this process however that ends."""

    def __init__(self, path: Path, flags: int, lock: Callable[[int], None]) -> None:
        self.path = path
        self.fd = -1
        self._flags = flags | os.O_CLOEXEC
        self._lock = lock

    def take(self) -> None:
        """_TakenError: somebody else has it. OSError: it cannot be had; what was held before stays held."""
        fd = os.open(self.path, self._flags, 0o600)
        try:
            self._lock(fd)
        except OSError as e:
            holder = _holder(fd)
            os.close(fd)
            raise (_TakenError(holder) if isinstance(e, BlockingIOError) else e) from e
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


class _TakenError(Exception):
    """By the process of this pid."""

    def __init__(self, pid: str) -> None:
        super().__init__(pid)
        self.pid = pid


def _flock(fd: int) -> None:
    fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)


def _flock_folder(fd: int) -> None:
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
        return os.pread(fd, 32, 0).decode(errors="replace").strip() or "unknown"
    except OSError:
        return "unknown"


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
        self._beside = _Lock(self.path, os.O_RDWR | os.O_CREAT, _flock)
        self._within = _Lock(real, os.O_RDWR, _claim)

    def take(self) -> None:
        """What of it is not held, or not held any more. LlmgwError: "locked", or it cannot be had."""
        try:
            if not self._beside.ours:
                self._beside.take()
                self._sign()
            if not self._within.ours:
                # One that is not there yet is claimed later; of one that cannot be had the store has to tell.
                with suppress(OSError):
                    self._within.take()
        except _TakenError as e:
            self.drop()
            msg = f"{self.file} is in use by another control, pid {e.pid}"
            hint = "ask that one, end it first, or name another file: --inventory FILE"
            raise LlmgwError(msg, hint, code="locked", status=409) from e
        except OSError as e:
            msg = f"cannot lock the inventory: {self.path}: {e.strerror}"
            raise LlmgwError(msg, "check the folder, or name another file: --inventory FILE") from e

    def _sign(self) -> None:
        with suppress(OSError):  # on a full disk: the pid helps people, the lock holds without it
            os.ftruncate(
                self._beside.fd, os.pwrite(self._beside.fd, f"{os.getpid()}\n".encode(), 0)
            )

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


class FileLease:
    """Taken when made; an epoch only when asked for. The folder too is for one control: its gateway lives there."""

    name = "file"

    def __init__(self, inventory: Path, epochs: Epochs) -> None:
        self.problem = ""
        self._inventory = Flock(inventory)
        self._folder = _Lock(inventory.parent, os.O_RDONLY | os.O_DIRECTORY, _flock_folder)
        self._epochs = epochs
        try:
            self._take()
        except LlmgwError:
            self.release()
            raise
        crash("after_lock")

    def _take(self) -> None:
        try:
            if not self._folder.ours:
                with suppress(OSError):
                    self._folder.take()
        except _TakenError as e:
            msg = f"the folder {self._folder.path} is in use by another control, pid {e.pid}"
            hint = "end that one first, or give this one a folder of its own: --inventory DIR/FILE"
            raise LlmgwError(msg, hint, code="locked", status=409) from e
        self._inventory.take()

    def acquire(self, leader_uuid: str, above: int) -> int:
        epoch = 1 + max(self._epochs.epoch(), above)
        self._epochs.write_epoch(epoch, leader_uuid)
        return epoch

    def renew(self) -> None:
        """Somebody may have removed what we hold, or its folder. Ours again if nobody was quicker (F17).

        Where it cannot be had by anybody, on a disk that is full or read-only, what we hold is still the only one:
        losing the files ends no control. Agents obey the higher epoch, should there ever be two.
        """
        if self._inventory.ours and self._folder.ours:
            self.problem = ""
            return
        crash("lock_dropped")
        try:
            self._folder.path.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._take()
        except LlmgwError as e:
            if e.code == "locked":
                msg = f"the lease is lost: {e.message}"
                raise LeaseLostError(msg, e.hint) from e
            self.problem = f"{e.message}; {e.hint}"
        except OSError as e:
            self.problem = (
                f"cannot lock the inventory: {self._folder.path}: {e.strerror}; check the folder"
            )
        else:
            self.problem = ""

    def deadline(self, now: float) -> float | None:  # noqa: ARG002 - a flock does not lapse
        return None

    def release(self) -> None:
        self._inventory.drop()
        self._folder.drop()


def lease(spec: str, inventory: Path, epochs: Epochs) -> Lease:
    """`file`; `etcd://…` is refused until it is there."""
    if spec == "file":
        return FileLease(inventory, epochs)
    if spec.startswith("etcd://"):
        msg = f"--lease {spec}: not supported yet"
        raise LlmgwError(msg, "use --lease file: one control on one host")
    msg = f"--lease {spec}: is neither file nor etcd://HOST:PORT"
    raise LlmgwError(msg, "use --lease file", code="usage")
