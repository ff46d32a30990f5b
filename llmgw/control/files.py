"""The inventory as a file among files: there or not, looked at in memory, moved aside when it is broken.

Answers for: an error with a hint where the file cannot be had, and whether it is still the one that was left there. It
may not know what is in it.
"""

from __future__ import annotations

import os
import time
from pathlib import Path
from stat import S_ISDIR

from llmgw.control.rollback import belongs, rolled_back
from llmgw.errors import LlmgwError

#: Where a SQLite file says how it is written: a rollback journal is 1, a write-ahead log 2.
_MODE = slice(18, 20)
#: and how its tables are, 4 being the last so far
_FORMAT, _LAST_FORMAT = slice(44, 48), b"\0\0\0\4"
#: A file that is being written is taken again, so often.
TRIES = 5
ASK = "ask as the user that control runs as"

#: Device, inode, size and time of the last write.
Stamp = tuple[int, int, int, int]


class StoreError(LlmgwError):
    """The inventory cannot be read or written now; `busy`: somebody has it locked; `corrupt`: not ever again."""

    code = "inventory"
    status = 503

    def __init__(
        self, message: str, hint: str = "", *, busy: bool = False, corrupt: bool = False
    ) -> None:
        super().__init__(message, hint)
        self.busy = busy
        self.corrupt = corrupt


def real(path: Path) -> Path:
    """Where the file is, by whatever name it was given: a symlink is followed, never replaced (F17)."""
    return Path(os.path.realpath(path))


def there(path: Path) -> bool:
    """Whether there is a file; StoreError where that cannot be told, or something else has its name."""
    try:
        folder = S_ISDIR(path.stat().st_mode)
    except FileNotFoundError:
        return False
    except OSError as e:
        msg = f"{path} cannot be read: {e.strerror}"
        raise StoreError(msg, "check the path and its permissions") from e
    if folder:
        msg = f"{path} cannot be read: it is a folder"
        raise StoreError(msg, "move it away, or name another file: --inventory FILE")
    return True


def stamp(path: Path) -> Stamp | None:
    """Another one after anybody has removed, replaced or written the file; None while it cannot be seen."""
    try:
        now = path.stat()
    except OSError:
        return None
    return now.st_dev, now.st_ino, now.st_size, now.st_mtime_ns


def beside(path: Path, suffix: str) -> Path:
    return path.with_name(f"{path.name}-{suffix}")


def only_in_memory(path: Path) -> bool:
    """Whether SQLite would write even to read: a journal was left there, or a write-ahead log is on."""
    return _head(path)[_MODE] == b"\2\2" or beside(path, "journal").exists()


def odd(path: Path) -> bool:
    """Numbers of formats that do not exist: SQLite takes the file for one of the future, or for read-only."""
    head = _head(path)
    return bool(head) and not (set(head[_MODE]) <= {1, 2} and head[_FORMAT] <= _LAST_FORMAT)


def _head(path: Path) -> bytes:
    try:
        with path.open("rb") as file:
            return file.read(_FORMAT.stop)
    except OSError as e:
        msg = f"{path} cannot be read: {e.strerror}"
        raise StoreError(msg, ASK) from e


def content(path: Path) -> bytes:
    """The file as SQLite would first make it, taken without a trace (A53).

    File first, then journal: a page is in the journal before it changes.
    """
    data = journal = b""
    try:
        for _ in range(TRIES):
            before = stamp(path)
            data, journal = path.read_bytes(), _or_nothing(beside(path, "journal"))
            if before == stamp(path):
                break
        log = _or_nothing(beside(path, "wal"))
    except OSError as e:
        msg = f"{path} cannot be read: {e.strerror}"
        raise StoreError(msg, ASK) from e
    if belongs(data, journal):
        data = rolled_back(data, journal)
    if data[_MODE] != b"\2\2":
        return data
    if log:
        msg = f"{path} cannot be read without writing: another program gave it a write-ahead log"
        raise StoreError(msg, f"start control, or: sqlite3 {path} 'PRAGMA journal_mode=DELETE'")
    return data[: _MODE.start] + b"\1\1" + data[_MODE.stop :]


def _or_nothing(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except FileNotFoundError:
        return b""


def moved_aside(path: Path) -> Path:
    """Out of the way with what belongs to it; nothing is ever removed."""
    aside = _free(path)
    try:
        path.rename(aside)
        if beside(path, "journal").exists():
            beside(path, "journal").rename(beside(aside, "journal"))
    except OSError as e:
        msg = f"{path} is broken and cannot be moved aside: {e.strerror}"
        raise StoreError(msg, "move it away by hand") from e
    return aside


def strange_journal(path: Path) -> Path | None:
    """Move a journal aside that SQLite would roll back into a file it is not of; gives where it is now.

    A killed control leaves one, and then somebody removes the file or puts a backup in its place (F16).
    """
    journal = beside(path, "journal")
    try:
        if belongs(_or_nothing(path), _or_nothing(journal)):
            return None
        aside = beside(_free(path), "journal")
        journal.rename(aside)
    except OSError as e:
        msg = f"{journal}, which is not of this file, cannot be moved aside: {e.strerror}"
        raise StoreError(msg, "move it away by hand") from e
    return aside


def _free(path: Path) -> Path:
    """A name that nothing has yet, also where a file breaks twice in one second."""
    free = path.with_name(f"{path.name}.corrupt-{time.strftime('%Y%m%dT%H%M%S', time.gmtime())}")
    while free.exists() or beside(free, "journal").exists():
        free = free.with_name(f"{free.name}+")
    return free
