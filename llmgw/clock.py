"""A clock for what others grant for a time: a lease, and a gateway's word. May not be shown to people."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from math import inf


def awake_s() -> float:
    """Monotonic, and counts the time in which the host was suspended: what was granted lapsed meanwhile."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


class Stamps:
    """Moments by the clock of this very process, as texts that others keep and give back; nobody else reads them."""

    def __init__(self, clock: Callable[[], float] = awake_s) -> None:
        self.clock = clock
        self._mine = os.urandom(8).hex()  # another process may run by another clock

    def now(self) -> str:
        return f"{self._mine} {self.clock():.3f}"

    def at_s(self, stamp: str) -> float:
        """When that was; for ever ago where it is not one of ours."""
        whose, _, at_s = stamp.partition(" ")
        try:
            return float(at_s) if whose == self._mine else -inf
        except ValueError:
            return -inf


def later(stamp: str, seconds: float) -> str:
    """Another process's moment and so much more, "" for what is none."""
    whose, _, at_s = stamp.partition(" ")
    try:
        return f"{whose} {float(at_s) + seconds:.3f}"
    except ValueError:
        return ""
