"""What the gateway that control started wrote: kept small, and its last complaint where it ended.

May not watch a process: how it ended is given.
"""

from __future__ import annotations

import os
import re
from contextlib import suppress
from pathlib import Path
from shutil import copyfile

#: Past the size it becomes `gateway.log.1`.
LOG_BYTES = 32 << 20
#: A line that complains of nothing (`cli/log.py`).
AT_WORK = re.compile(r"\S+Z (?:info|debug) ")


def rotate(path: Path) -> None:
    """The gateway writes on at the end, wherever that is: its file is opened for appending."""
    with suppress(OSError):
        if path.stat().st_size > LOG_BYTES:
            copyfile(path, path.with_name(f"{path.name}.1"))
            os.truncate(path, 0)


def how(code: int | None, log: Path) -> str:
    """How it ended, and what it complained of last: a line that says that all is well is no reason."""
    word = _complaint(log)
    if code is not None and code >= 0:
        return f"ended (exit code {code})" + (f": {word}" if word else "")
    how = "ended" if code is None else f"was killed (signal {-code})"
    return f"{how}; it said last: {word}" if word else how + ("" if code else " without a word")


def _complaint(path: Path) -> str:
    """Its last line, unless that is one of a log at work."""
    try:
        with path.open("rb") as file:
            file.seek(max(path.stat().st_size - 2000, 0))
            lines = file.read().decode(errors="replace").split("\n")
    except OSError:
        return ""
    words = (line.strip() for line in reversed(lines) if not line.startswith("hint:"))
    last = next((w for w in words if w), "")
    return "" if AT_WORK.match(last) else last
