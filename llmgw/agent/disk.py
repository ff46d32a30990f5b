"""Files that survive a power cut: temp file, fsync, rename, fsync of the directory (F42).

Answers for: whatever stands in a file's place, reading it ends. May not know what is in them.
"""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path

from llmgw.agent import crash


def read_bounded(path: Path, most_bytes: int) -> bytes:
    """Raises OSError for what is no plain file (a FIFO would be waited for, a device has no end) or has grown mad."""
    fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    with os.fdopen(fd, "rb") as file:
        found = os.fstat(fd)
        if not stat.S_ISREG(found.st_mode):
            raise OSError(errno.EINVAL, "it is no plain file", str(path))
        if found.st_size > most_bytes:
            raise OSError(errno.EFBIG, f"it has {found.st_size} bytes", str(path))
        return file.read(most_bytes)


def write_durably(path: Path, data: bytes, *, at_once: bool = True) -> None:
    """Replace the file as a whole, readable for its owner only; before it returns the new one is on the disk.

    Not `at_once`: whoever reads it finds the new one, a killed writer's successor too; what a power cut leaves of it is
    not known until `settle`.
    """
    write_ahead(path, data, at_once=at_once)
    put_in_place(path, at_once=at_once)


def write_ahead(path: Path, data: bytes, *, at_once: bool = True) -> None:
    """The half of it that changes nothing yet."""
    fd = os.open(ahead_of(path), os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(fd, "wb") as file:
        file.write(data)
        file.flush()
        if at_once:
            os.fsync(file.fileno())


def put_in_place(path: Path, *, at_once: bool = True) -> None:
    crash.here("journal-before-rename")
    ahead_of(path).replace(path)
    if at_once:
        sync_dir(path.parent)


def ahead_of(path: Path) -> Path:
    return path.with_name(f"{path.name}.new")


def settle(path: Path) -> None:
    """On the disk, what was not written there at once; its folder is another matter (`sync_dir`)."""
    fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def remove_durably(path: Path) -> None:
    path.unlink(missing_ok=True)
    sync_dir(path.parent)


def sync_dir(path: Path) -> None:
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
