"""Named places where a test may end this process as a power cut would: around everything that others come to see.

`LLMGW_CRASH_AT=name` kills it there. May not do anything else.
"""

from __future__ import annotations

import os
import signal

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


def crash(point: str) -> None:
    assert point in CRASH_POINTS
    if os.environ.get("LLMGW_CRASH_AT") == point:
        os.kill(os.getpid(), signal.SIGKILL)
