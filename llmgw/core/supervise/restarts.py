"""The arithmetic of bounded restarts (A67): at once after the first failure, then with back-off, then given up.

Story: 35 unbounded restarts hung a two-box cluster until a physical reset. May not start or stop anything.
"""

from __future__ import annotations

from llmgw.core.types.record import Record

#: signal(7): those that end a process, by the numbers that x86 and ARM give them.
SIGNALS = {
    1: "SIGHUP",
    2: "SIGINT",
    3: "SIGQUIT",
    4: "SIGILL",
    5: "SIGTRAP",
    6: "SIGABRT",
    7: "SIGBUS",
    8: "SIGFPE",
    9: "SIGKILL",
    10: "SIGUSR1",
    11: "SIGSEGV",
    12: "SIGUSR2",
    13: "SIGPIPE",
    14: "SIGALRM",
    15: "SIGTERM",
    24: "SIGXCPU",
    25: "SIGXFSZ",
    31: "SIGSYS",
}
MEANINGS = {
    "SIGABRT": "it aborted",
    "SIGBUS": "a file that it has mapped, such as its weights, was cut short or cannot be read",
    "SIGSEGV": "it crashed",
}
#: By whether the kernel ended some process for want of memory just then.
KILLED = {
    True: "out of memory by all appearances, the kernel ended a process for it just then",
    False: "somebody's kill, the kernel ended nothing for want of memory",
    None: "out of memory, or somebody's kill",
}
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


def exit_words(code: int | None, last_line: str, *, out_of_memory: bool | None = None) -> str:
    """What an exit code says to a person, with the engine's own last words."""
    said = f": {last_line}" if last_line else ""
    if code is None:
        return f"exited, and nobody could observe its exit code{said}"
    if code >= 0:
        return f"exited with code {code}{said}"
    if -code not in SIGNALS:
        return f"killed by signal {-code}{said}"
    name = SIGNALS[-code]
    meaning = KILLED[out_of_memory] if name == "SIGKILL" else MEANINGS.get(name, "")
    return f"killed by signal {-code} ({name}{f': {meaning}' if meaning else ''}){said}"
