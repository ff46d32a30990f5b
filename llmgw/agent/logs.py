"""Engines' log files: where they are, the attempt before kept, the last line, and a bound on their size.

`0.log` is what the engine writes now, `0.log.1` the whole attempt before. Of a log that grew too long the earlier part
is in `0.log.cut`, until the attempt is over and both become `0.log.1`. An engine writes to a file, never to a pipe of
ours: a pipe would kill it with SIGPIPE when the agent dies (F49). May not interpret what is in them.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
from pathlib import Path
from typing import Literal

from llmgw.agent import crash
from llmgw.core.types.record import Key, Record

#: Past this size a log is moved into `.cut` by copying; the engine goes on writing to the emptied file (it appends).
LOG_MAX_BYTES = 64 << 20
#: All logs of a node together: where engines are many each may write less, and of what is gone less is kept.
LOGS_MAX_BYTES = 4 << 30
#: Of a flood so small a part of that is kept with each cut.
FLOOD_PARTS = 8
#: Of what is written while a log is copied so much is kept too, so often.
MEANWHILE_BYTES, CATCH_UP = 64 << 10, 4
#: What an engine can have of that: its log, the part that was cut, and both of the attempt before.
PARTS = 4
LAST_LINE_CHARS = 300
#: Logs of engines that are forgotten stay for people to read, so many of them.
KEPT_REPLICAS = 20
_ESCAPES = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")


class Logs:
    def __init__(self, state_dir: Path) -> None:
        self.folder = state_dir / "logs"
        self.folder.mkdir(mode=0o700, exist_ok=True)
        self._root = self.folder.resolve()
        #: at the last look
        self._sizes: dict[Path, int] = {}

    def path(self, shard: str) -> Path:
        """`shard` is a checked name, or one that came in by URL: it stays below the folder."""
        path = Path(os.path.normpath(self._root / f"{shard}.log"))
        if "\0" in shard or not path.is_relative_to(self._root):
            msg = f"{shard!r} is no shard's name"
            raise ValueError(msg)
        return path

    def previous(self, shard: str) -> Path:
        return Path(f"{self.path(shard)}.1")

    def open_for_attempt(self, shard: str) -> int:
        """A descriptor to append to; what the attempt before said is kept as `.1`."""
        path = self.path(shard)
        path.parent.mkdir(mode=0o700, exist_ok=True)
        if path.exists() and path.stat().st_size:
            cut, long = _cut(path), path.stat().st_size > LOG_MAX_BYTES
            if long or cut.exists():
                _move_end(path, cut, "wb" if long else "ab", LOG_MAX_BYTES)
                cut.replace(path)
            path.replace(self.previous(shard))
            crash.here("log-moved")
        return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)

    def note(self, shard: str, line: str) -> None:
        """What is said of an engine whose output is not here, once."""
        path = self.path(shard)
        if not path.exists():
            path.parent.mkdir(mode=0o700, exist_ok=True)
            path.write_text(f"{line}\n")

    def tail(self, shard: str, size_bytes: int, *, previous: bool = False) -> str:
        path = self.previous(shard) if previous else self.path(shard)
        raw, left_out = _end(path, size_bytes)
        if not (previous or left_out):
            before, left_out = _end(_cut(path), size_bytes - len(raw))
            raw = before + raw
        text = raw.decode(errors="replace")
        return text.partition("\n")[2] if left_out else text

    def head(self, shard: str, size_bytes: int) -> str:
        path = self.path(shard)
        if not path.exists():
            return ""
        with path.open("rb") as file:
            return file.read(size_bytes).decode(errors="replace")

    def since(self, shard: str, offset: int) -> bytes:
        with self.path(shard).open("rb") as file:
            file.seek(offset)
            return file.read(1 << 20)

    def end(self, shard: str, size_bytes: int) -> str:
        """The end of it, without its colours."""
        return _ESCAPES.sub("", self.tail(shard, size_bytes))

    def last_line(self, shard: str) -> str:
        """The engine's own last words, for errors."""
        lines = [line.strip() for line in self.end(shard, 8192).splitlines()]
        said = [line for line in lines if line]
        return said[-1][-LAST_LINE_CHARS:] if said else ""

    def bound(self, records: dict[Key, Record]) -> bool:
        """Copy and empty logs that grew too long: what is written in between is lost, the engine notices nothing.

        Whether one of them grows so fast that it is to be looked at again soon. Of such a flood less is kept: a copy
        takes the longer, and with it the flood has the disk, the faster it comes.
        """
        # Names of records are checked.
        paths = {self.folder / f"{shard}.log" for shard, _ in records}
        most = min(LOG_MAX_BYTES, LOGS_MAX_BYTES // (PARTS * max(len(paths), 1)))
        before, self._sizes = self._sizes, {path: _length(path) for path in paths}
        long = [path for path, size in self._sizes.items() if size > most]
        fast = [p for p, size in self._sizes.items() if size - before.get(p, size) > most // 4]
        for path in long:
            _move_end(path, _cut(path), "wb", most // FLOOD_PARTS if path in fast else most)
            crash.here("log-copied")
            os.truncate(path, 0)
            self._sizes[path] = 0
        if long:
            self.prune(records)
        return bool(long or fast)

    def prune(self, records: dict[Key, Record]) -> None:
        """Delete the oldest logs of replicas that are gone: beyond a number, and while all are too much together."""
        live = {shard.partition("/")[0] for shard, _ in records}
        gone = [p for p in self.folder.iterdir() if p.is_dir() and p.name not in live]
        gone.sort(key=lambda p: p.stat().st_mtime)
        over = _size(self.folder) - LOGS_MAX_BYTES
        for left, path in zip(range(len(gone), 0, -1), gone, strict=True):
            if left > KEPT_REPLICAS or over > 0:
                over -= _size(path)
                shutil.rmtree(path, ignore_errors=True)


def _cut(path: Path) -> Path:
    return Path(f"{path}.cut")


def _length(path: Path) -> int:
    """Of one that is not there: nothing."""
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return 0


def _size(folder: Path) -> int:
    """What its files take of the disk; one that goes meanwhile takes nothing."""
    found = 0
    for path in folder.rglob("*"):
        with contextlib.suppress(FileNotFoundError):
            found += path.stat().st_blocks * 512
    return found


def _end(path: Path, size_bytes: int) -> tuple[bytes, bool]:
    """The end of a file, and whether there is more before it."""
    if not path.exists():
        return b"", False
    with path.open("rb") as file:
        start = max(path.stat().st_size - size_bytes, 0)
        file.seek(start)
        return file.read(size_bytes), bool(start)


def _move_end(path: Path, to: Path, mode: Literal["wb", "ab"], left: int) -> None:
    """Only the end of it: a flood writes gigabytes between two looks, and the loop waits for the copy.

    What is written meanwhile comes after it, its end at least: who falls silent then has said his last words.
    """
    with path.open("rb") as log, to.open(mode) as kept:
        log.seek(max(path.stat().st_size - left, 0))
        while left and (part := log.read(min(left, 1 << 20))):
            left -= kept.write(part)
        kept.flush()
        for _ in range(
            CATCH_UP
        ):  # until nothing came: who falls silent is read to his end before the log is emptied
            size = path.stat().st_size
            if log.tell() >= size:
                break
            log.seek(max(log.tell(), size - MEANWHILE_BYTES))
            kept.write(log.read(MEANWHILE_BYTES))
