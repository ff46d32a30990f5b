"""The only time there is: a queue of things to come. What is due at one moment happens in the order of asking."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from heapq import heappop, heappush

Act = Callable[[], None]
BEGAN = datetime(2026, 1, 1, tzinfo=UTC)


class Clock:
    def __init__(self) -> None:
        self.now = 0.0
        self.steps = 0
        self._queue: list[tuple[float, int, Act]] = []
        self._count = 0

    def at(self, due_s: float, act: Act) -> None:
        self._count += 1
        heappush(self._queue, (max(due_s, self.now), self._count, act))

    def after(self, delay_s: float, act: Act) -> None:
        self._count += 1
        heappush(self._queue, (self.now + delay_s, self._count, act))

    def run_until(self, end_s: float) -> None:
        """Everything that is due up to then, one step after another."""
        queue = self._queue
        while queue and queue[0][0] <= end_s:
            self.now, _, act = heappop(queue)
            self.steps += 1
            act()
        self.now = max(end_s, self.now)


def iso(wall_s: float) -> str:
    """Wall time for people, as the agents write it."""
    return (BEGAN + timedelta(seconds=int(wall_s))).isoformat().replace("+00:00", "Z")
