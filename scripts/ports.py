"""Free ports for tests and the demo, below those that the kernel gives to clients.

A port out of the kernel's own range may be some client's a moment later: an engine that restarts on it then fails, once
in a hundred runs. Each comes again only after all others; where it starts is random, so that two runs
rarely meet, and the lanes of one run (`scripts/test`) never do.
"""

from __future__ import annotations

import contextlib
import os
import socket
from collections.abc import Iterator
from itertools import cycle, islice

LANES, LANE = (int(os.environ.get(f"TEST_LANE{s}", d)) for s, d in (("S", "1"), ("", "0")))
RANGES = range(12000, 30000)
SINGLES = range(30000, 32768)


class _Ring:
    """Round and round, from somewhere."""

    def __init__(self, ports: range) -> None:
        start = int.from_bytes(os.urandom(2)) % len(ports)
        self._ports: Iterator[int] = cycle([*ports[start:], *ports[:start]])
        self._count = len(ports)

    def first(self, count: int) -> int | None:
        """The next from which so many are free; None where a whole round has none."""
        return next((p for p in islice(self._ports, self._count) if _free(p, count)), None)


_singles = _Ring(SINGLES[LANE::LANES])
_lows = _Ring(range(RANGES.start, RANGES.stop, 20)[LANE::LANES])


def free_port() -> int:
    port = _singles.first(1)
    if port is None:
        msg = f"no free port between {SINGLES.start} and {SINGLES.stop - 1} is left"
        raise OSError(msg)
    return port


def free_range(count: int = 20) -> tuple[int, int]:
    """At most 20 ports next to each other, for engines."""
    low = _lows.first(count)
    if low is None:
        msg = f"no {count} free ports between {RANGES.start} and {RANGES.stop - 1}"
        raise OSError(msg)
    return low, low + count - 1


def _free(low: int, count: int) -> bool:
    with contextlib.ExitStack() as stack:
        try:
            for port in range(low, low + count):
                stack.enter_context(socket.socket()).bind(("127.0.0.1", port))
        except OSError:
            return False
    return True
