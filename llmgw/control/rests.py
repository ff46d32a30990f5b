"""Whether a gateway still leaves alone what it says it does: only where it was said a short while ago.

A message may be under way for as long as the network likes, and the gateway's promise is over after `REST_S`. Each
answer carries the time at which it was given, by this control's own clock, and comes back with the next demand: that
one was written later. May not judge by anybody else's clock.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from math import inf

from msgspec.structs import replace

from llmgw.clock import awake_s
from llmgw.core.types.routes import REST_TAKEN_S, Demand


class Rests:
    def __init__(self, clock: Callable[[], float] = awake_s) -> None:
        self._clock = clock
        self._mine = os.urandom(8).hex()  # another process may run by another clock
        self._until_s = inf

    def at(self) -> str:
        return f"{self._mine} {self._clock():.3f}"

    def taken(self, demand: Demand) -> Demand:
        """The demand, without what may be out of date by the time that an order arrives."""
        if not demand.resting:
            return demand
        until_s = self._said_s(demand.heard) + REST_TAKEN_S
        if not self._clock() <= until_s:
            return replace(demand, resting=())
        self._until_s = min(self._until_s, until_s)
        return demand

    @property
    def hold(self) -> bool:
        """All that was taken since `over` still holds: asked once more before an order goes out by it.

        A commit may wait for its disk, and a process be stopped, for longer than any gateway waits.
        """
        return self._clock() <= self._until_s

    def over(self) -> None:
        self._until_s = inf

    def _said_s(self, heard: str) -> float:
        whose, _, at_s = heard.partition(" ")
        try:
            return float(at_s) if whose == self._mine else -inf
        except ValueError:
            return -inf
