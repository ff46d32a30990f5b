"""Named points at which the agent kills itself, for tests of crash-safety: `LLMGW_CRASH_AT=NAME` or `NAME:COUNT`.

Dies as `kill -9` does: no clean-up, no flush. Without the variable every call is a look into an empty dict.
"""

from __future__ import annotations

import os
import signal

#: Before and after each effect, and where the order of two steps matters besides.
EFFECTS = ("StoreToken", "WriteRecord", "DeleteRecord", "Spawn", "Signal", "Look", "Measure")
POINTS = (
    *(f"{when}-{effect}" for effect in EFFECTS for when in ("before", "after")),
    "journal-before-rename",
    "before-register",
    "before-applied",
)


def _wanted() -> dict[str, int]:
    name, _, count = os.environ.get("LLMGW_CRASH_AT", "").partition(":")
    if name and name not in POINTS:
        msg = f"LLMGW_CRASH_AT={name}: no such point; there are {', '.join(POINTS)}"
        raise SystemExit(msg)
    return {name: int(count or 1)} if name else {}


_left = _wanted()


def here(point: str) -> None:
    """Die, if it is this point's turn."""
    if point in _left:
        _left[point] -= 1
        if not _left[point]:
            os.kill(os.getpid(), signal.SIGKILL)
