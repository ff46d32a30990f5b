"""A clock for what others grant for a time: a lease, and a gateway's word. May not be shown to people."""

from __future__ import annotations

import time


def awake_s() -> float:
    """Monotonic, and counts the time in which the host was suspended: what was granted lapsed meanwhile."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)
