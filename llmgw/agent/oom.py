"""Was the kernel out of memory just now? `oom_kill` of /proc/vmstat counts its kills, by any limit or none (F80).

It counts for the whole host and names nobody, so it can acquit the kernel, and make it a suspect. Its log would name
the process, to agents that may read that; this needs no rights. May not say what became of an engine.
"""

from __future__ import annotations

import time
from collections import deque
from pathlib import Path

VMSTAT = Path("/proc/vmstat")
#: A big process takes seconds to end after its kill.
RECENT_S = 60.0


class Ooms:
    def __init__(self) -> None:
        self._counts: deque[tuple[float, int]] = deque()
        self.note()

    def note(self) -> None:
        """Once a heartbeat, so that there is a count of before."""
        count = _count()
        if count is None:
            return
        now = time.monotonic()
        while len(self._counts) > 1 and self._counts[1][0] < now - RECENT_S:
            self._counts.popleft()
        self._counts.append((now, count))

    def recent(self) -> bool | None:
        """Whether it killed anybody in the last minute; None where it does not tell."""
        count = _count()
        return None if count is None or not self._counts else count > self._counts[0][1]


def _count() -> int | None:
    try:
        lines = VMSTAT.read_text().splitlines()
    except OSError:
        return None
    return next((int(x.split()[1]) for x in lines if x.startswith("oom_kill ")), None)
