"""Named points at which control kills itself, for tests of crash-safety: `LLMGW_CRASH_AT=NAME` or `NAME:COUNT`.

Dies as `kill -9` does, after one line that says where: no clean-up, no flush. Without the variable every call is a look
into an empty dict. May not do anything else.
"""

from __future__ import annotations

import os
import signal

from llmgw.errors import UsageError

#: What a start takes: the lock, the inventory, the epoch, the gateway.
START = (
    "after_lock",
    "before_create",
    "after_set_aside",
    "before_epoch",
    "before_commit",
    "after_commit",
    "after_epoch",
    "after_handover",
    "after_bind",
    "before_spawn",
    "after_spawn",
    "after_watch",
    "epoch_raised",
    "lock_dropped",
)
#: What comes in.
HEARD = (
    "registration_folded",
    "before_register_answer",
    "before_events",
    "events_folded",
    "after_ack",
    "catalog_checked",
    "catalog_swapped",
    "before_catalog_kept",
    "after_catalog_kept",
)
#: What a pass makes of it; one point for each kind of order.
PASS = (
    "before_persist",
    "before_keep",
    "after_keep",
    "after_persist",
    *(f"after_send_{kind}" for kind in ("start", "drain", "stop", "forget", "report")),
    "after_send",
    "before_publish",
    "after_publish",
    "before_answer",
)
END = ("gateway_ended", "before_last_keep", "after_last_keep")
CRASH_POINTS = (*START, *HEARD, *PASS, *END)


def wanted(text: str) -> dict[str, int]:
    """The point and the passing at which to die; a name that nobody passes would test nothing, so it is refused."""
    name, colon, count = text.partition(":")
    if not name:
        return {}
    if name not in CRASH_POINTS:
        msg = f"LLMGW_CRASH_AT={text}: control has no such point"
        raise UsageError(msg, f"it has {', '.join(CRASH_POINTS)}")
    if colon and not (count.isdecimal() and int(count)):
        msg = f"LLMGW_CRASH_AT={text}: {count!r} is not a count of passings"
        raise UsageError(msg, f"write {name}:2 for the second")
    return {name: int(count or 1)}


_left = wanted(os.environ.get("LLMGW_CRASH_AT", ""))


def crash(point: str) -> None:
    """Die, if it is this point's turn."""
    if point in _left:
        _left[point] -= 1
        if not _left[point]:
            os.write(2, f"crash point {point}\n".encode())
            os.kill(os.getpid(), signal.SIGKILL)
