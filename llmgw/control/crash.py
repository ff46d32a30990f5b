"""Named places where a test may end this process as a power cut would: around everything that others come to see.

`LLMGW_CRASH_AT=name` kills it there, `name:3` the third time. May not do anything else.
"""

from __future__ import annotations

import os
import signal
from collections import Counter

CRASH_POINTS = (
    "before_epoch",
    "after_epoch",
    "before_persist",
    "after_persist",
    "after_send",
    "before_publish",
    "after_publish",
    "before_answer",
    "before_spawn",
    "after_spawn",
)


_passed: Counter[str] = Counter()


def crash(point: str) -> None:
    assert point in CRASH_POINTS
    wanted, _, times = os.environ.get("LLMGW_CRASH_AT", "").partition(":")
    if wanted != point:
        return
    _passed[point] += 1
    if _passed[point] == int(times or 1):
        os.kill(os.getpid(), signal.SIGKILL)
