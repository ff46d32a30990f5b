"""The arithmetic of bounded restarts (A67): at once after the first failure, then with back-off, then given up.

Story: 35 unbounded restarts hung a two-box cluster until a physical reset. May not start or stop anything.
"""

from __future__ import annotations

from llmgw.core.types.record import Record

#: Back-off doubles from `restart.backoff` up to this.
BACKOFF_MAX_S = 300.0


def with_failure(record: Record, now: float) -> tuple[float, ...]:
    """Failure times within the window, this one included."""
    since = now - record.start.restart.window_s
    return (*(t for t in record.failures if t > since), now)


def retry_s(record: Record) -> float:
    """When the next attempt is due; 0 for the first."""
    count = len(record.failures)
    if not count:
        return 0.0
    if count == 1:
        return record.failures[0]
    delay = record.start.restart.backoff_s * float(2 ** min(count - 2, 16))
    return record.failures[-1] + min(delay, BACKOFF_MAX_S)


def gave_up_words(record: Record, count: int, why: str) -> str:
    return f"gave up after {count} in {duration(record.start.restart.window_s)}: {why}"


def duration(seconds: float) -> str:
    """As a catalog would have it: 90s, 30m, 2h."""
    for unit, size in (("h", 3600), ("m", 60)):
        if seconds >= size and seconds % size == 0:
            return f"{seconds / size:g}{unit}"
    return f"{seconds:g}s"


def exit_words(code: int | None, last_line: str) -> str:
    """What an exit code says to a person, with the engine's own last words."""
    said = f": {last_line}" if last_line else ""
    if code is None:
        return f"exited, and nobody could observe its exit code{said}"
    if code >= 0:
        return f"exited with code {code}{said}"
    known = {
        -4: "SIGILL: the binary needs CPU features this node lacks",
        -6: "SIGABRT: it aborted",
        -9: "SIGKILL: out of memory, or somebody's kill",
        -11: "SIGSEGV: it crashed",
    }
    return f"killed by signal {-code}{f' ({known[code]})' if code in known else ''}{said}"
