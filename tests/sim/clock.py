"""The only time there is: a queue of things to come. What is due at one moment happens in the order of asking."""

from __future__ import annotations

from collections.abc import Callable
from heapq import heappop, heappush

Act = Callable[[], None]


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
        self.at(self.now + delay_s, act)

    def run_until(self, end_s: float) -> None:
        """Everything that is due up to then, one step after another."""
        while self._queue and self._queue[0][0] <= end_s:
            self.now, _, act = heappop(self._queue)
            self.steps += 1
            act()
        self.now = end_s


def iso(now_s: float) -> str:
    """Wall time for people, as the agents write it."""
    minutes, seconds = divmod(now_s, 60)
    hours, minutes = divmod(int(minutes), 60)
    return f"2026-01-01T{hours:02}:{minutes:02}:{int(seconds):02}Z"
