"""Named points at which the agent kills itself, for tests of crash-safety: `LLMGW_CRASH_AT=NAME` or `NAME:COUNT`.

Dies as `kill -9` does, after one line that says where: no clean-up, no flush. Without the variable every call is a look
into an empty dict. May not do anything else.
"""

from __future__ import annotations

import os
import signal

from llmgw.core.types.node import Effect, Signal, WriteRecord
from llmgw.errors import UsageError

#: What a journal write is about, and which signal is sent: each of these is a boundary of its own.
WRITES = ("intent", "started", "change", "exit")
SIGNALS = ("TERM", "KILL")


def _around(*effects: str) -> tuple[str, ...]:
    return tuple(f"{when}-{effect}" for effect in effects for when in ("before", "after"))


#: The state dir, the identity, the journal, re-attach.
START = (
    "after-lock",
    *_around("identity"),
    "record-set-aside",
    "after-load",
    "reattach-half",
    "after-reattach",
    "after-boot",
    *_around("Identify"),
)
#: Between control's word and the journal, and back.
TALK = (
    *_around("register", "StoreToken"),
    "ports-looked-at",
    "before-order",
    *_around("applied", "told"),
)
#: An engine's start, and every journal write.
STARTS = (
    *_around("WriteRecord", *(f"WriteRecord-{kind}" for kind in WRITES)),
    "journal-before-rename",
    *_around("Spawn"),
    "log-moved",
    "log-copied",
)
#: An engine's end.
ENDS = (
    *_around("Signal", *(f"Signal-{name}" for name in SIGNALS)),
    *_around("Look", "Measure", "DeleteRecord"),
    "after-reap",
)
#: Of a start that came together with a stop.
SWAP = ("start-kept", "start-due")
#: What every agent comes to in a day.
DAY = (*START, *TALK, *STARTS, *ENDS)
POINTS = (*DAY, *SWAP)


def wanted(text: str) -> dict[str, int]:
    """The point and the passing at which to die; a name that nobody passes would test nothing, so it is refused."""
    name, colon, count = text.partition(":")
    if not name:
        return {}
    if name not in POINTS:
        msg = f"LLMGW_CRASH_AT={text}: the agent has no such point"
        raise UsageError(msg, f"it has {', '.join(POINTS)}")
    if colon and not (count.isdecimal() and int(count)):
        msg = f"LLMGW_CRASH_AT={text}: {count!r} is not a count of passings"
        raise UsageError(msg, f"write {name}:2 for the second")
    return {name: int(count or 1)}


_left = wanted(os.environ.get("LLMGW_CRASH_AT", ""))


def here(point: str) -> None:
    """Die, if it is this point's turn."""
    if point in _left:
        _left[point] -= 1
        if not _left[point]:
            os.write(2, f"crash point {point}\n".encode())
            os.kill(os.getpid(), signal.SIGKILL)


def around(when: str, effect: Effect) -> None:
    """`here` of the effect's kind, and of what it is about."""
    if _left:
        name = type(effect).__name__
        here(f"{when}-{name}")
        match effect:
            case WriteRecord():
                here(f"{when}-{name}-{kind_of(effect)}")
            case Signal():
                here(f"{when}-{name}-{effect.name}")
            case _:
                pass


def kind_of(effect: WriteRecord) -> str:
    """An attempt about to be spawned, one just spawned, one that is over (or its tear-down begun), or anything else."""
    record = effect.record
    if record.intent:
        return "intent"
    if record.ended or record.ending:
        return "exit"
    return "started" if record.state == "starting" else "change"
