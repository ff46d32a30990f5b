"""The clock that facts are dated with: it stands while control itself does (F22).

Agents, gateways and windows are judged by the time in which they could have been heard. Else a control that was paused,
or swapped out, or took long over a pass, wakes up and calls the whole fleet silent, ends settling with nobody heard, or
takes a gateway in the middle of a stream for gone. It may not decide what follows; the lease has the true clock.
"""

from __future__ import annotations

from collections.abc import Callable

#: Of the time between two turns no more than this counts: what was not listened to was not silent.
STALL_S = 5.0


class Awake:
    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._turned_s: float | None = None
        self._stood_s = 0.0

    def now_s(self) -> float:
        return self._clock() - self._stood_s

    def turn(self) -> float:
        """To be called at the begin of each turn. How long nothing came through before it, 0 for not worth a word."""
        began = self._clock()
        gap = 0.0 if self._turned_s is None else began - self._turned_s
        self._turned_s = began
        if gap <= STALL_S:
            return 0.0
        self._stood_s += gap - STALL_S
        return gap
