"""Engines' log files: where they are, the attempt before kept, the last line, and a bound on their size.

An engine writes to a file, never to a pipe of ours: a pipe would kill it with SIGPIPE when the agent dies (F49). May
not interpret what is in them.
"""

from __future__ import annotations

import os
import re
import shutil
from pathlib import Path

from llmgw.agent import crash
from llmgw.core.types.record import Key, Record

#: Past this size a log is moved into `.1` by copying; the engine goes on writing to the emptied file (it appends).
LOG_MAX_BYTES = 64 << 20
LAST_LINE_CHARS = 300
#: Logs of engines that are forgotten stay for people to read, so many of them.
KEPT_REPLICAS = 20
_ESCAPES = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")


class Logs:
    def __init__(self, state_dir: Path) -> None:
        self.folder = state_dir / "logs"
        self.folder.mkdir(mode=0o700, exist_ok=True)

    def path(self, shard: str) -> Path:
        """`shard` is a checked name, or one that came in by URL: it stays below the folder."""
        path = (self.folder / f"{shard}.log").resolve()
        if not path.is_relative_to(self.folder.resolve()):
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
            path.replace(self.previous(shard))
            crash.here("log-moved")
        return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)

    def tail(self, shard: str, size_bytes: int, *, previous: bool = False) -> str:
        path = self.previous(shard) if previous else self.path(shard)
        if not path.exists():
            return ""
        with path.open("rb") as file:
            start = max(path.stat().st_size - size_bytes, 0)
            file.seek(start)
            text = file.read(size_bytes).decode(errors="replace")
        return text.partition("\n")[2] if start else text

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

    def last_line(self, shard: str) -> str:
        """The engine's own last words, for errors."""
        lines = [line.strip() for line in _ESCAPES.sub("", self.tail(shard, 8192)).splitlines()]
        said = [line for line in lines if line]
        return said[-1][-LAST_LINE_CHARS:] if said else ""

    def bound(self, records: dict[Key, Record]) -> None:
        """Copy and empty logs that grew too long: what is written in between is lost, the engine notices nothing."""
        for shard, _ in records:
            path = self.path(shard)
            if path.exists() and path.stat().st_size > LOG_MAX_BYTES:
                # The end of it: a flood writes gigabytes between two looks, and the loop waits for the copy.
                with path.open("rb") as log, self.previous(shard).open("wb") as kept:
                    log.seek(-LOG_MAX_BYTES, os.SEEK_END)
                    left = LOG_MAX_BYTES
                    while left and (size := os.sendfile(kept.fileno(), log.fileno(), None, left)):
                        left -= size
                crash.here("log-copied")
                os.truncate(path, 0)

    def prune(self, records: dict[Key, Record]) -> None:
        """Delete the oldest logs of replicas that are gone."""
        live = {shard.partition("/")[0] for shard, _ in records}
        gone = [p for p in self.folder.iterdir() if p.is_dir() and p.name not in live]
        for path in sorted(gone, key=lambda p: p.stat().st_mtime)[:-KEPT_REPLICAS]:
            shutil.rmtree(path, ignore_errors=True)
