"""Free ports for tests and the demo, below those that the kernel gives to clients.

A port out of the kernel's own range may be some client's a moment later: an engine that restarts on it then fails, once
in a hundred runs. Each is handed out once a process; where it starts is random, so that two runs rarely meet, and the
lanes of one run (`scripts/test`) never do.
"""

from __future__ import annotations

import contextlib
import os
import socket
from collections.abc import Iterator
from itertools import chain

LANES, LANE = (int(os.environ.get(f"TEST_LANE{s}", d)) for s, d in (("S", "1"), ("", "0")))
RANGES = range(20000, 30000)
SINGLES = range(30000, 32768)


def _from_somewhere(ports: range) -> Iterator[int]:
    start = int.from_bytes(os.urandom(2)) % len(ports)
    return chain(ports[start:], ports[:start])


_singles = _from_somewhere(SINGLES[LANE::LANES])
_lows = _from_somewhere(range(RANGES.start, RANGES.stop, 20)[LANE::LANES])


def free_port() -> int:
    for port in _singles:
        if _free(port, 1):
            return port
    msg = f"no free port between {SINGLES.start} and {SINGLES.stop - 1} is left"
    raise OSError(msg)


def free_range(count: int = 20) -> tuple[int, int]:
    """At most 20 ports next to each other, for engines."""
    for low in _lows:
        if _free(low, count):
            return low, low + count - 1
    msg = f"no {count} free ports between {RANGES.start} and {RANGES.stop - 1}"
    raise OSError(msg)


def _free(low: int, count: int) -> bool:
    with contextlib.ExitStack() as stack:
        try:
            for port in range(low, low + count):
                stack.enter_context(socket.socket()).bind(("127.0.0.1", port))
        except OSError:
            return False
    return True
