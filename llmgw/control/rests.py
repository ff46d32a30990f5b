"""Whether a gateway still leaves alone what it says it does: only where it was said a short while ago.

A message may be under way for as long as the network likes, and the gateway's promise is over after `REST_S`. Each
answer carries the time at which it was given, by this control's own clock, and comes back with the next demand: that
one was written later. What is ordered by it has an end of its own, by the clock of the agent that obeys (`Events.at`).
"""

from __future__ import annotations

from collections.abc import Callable
from math import inf
from typing import TypeGuard

from msgspec.structs import replace

from llmgw.clock import Stamps, awake_s, later
from llmgw.core.types.messages import StopShard
from llmgw.core.types.routes import REST_OBEYED_S, REST_TAKEN_S, Demand


class Rests:
    """Of one turn: `over` ends what was taken in it."""

    def __init__(self, clock: Callable[[], float] = awake_s) -> None:
        self._stamps = Stamps(clock)
        self._said_s = inf
        self._resting: frozenset[str] = frozenset()

    def at(self) -> str:
        return self._stamps.now()

    def clock(self) -> float:
        return self._stamps.clock()

    def taken(self, demand: Demand) -> Demand:
        """The demand, without what may be out of date by the time that an order arrives."""
        if not demand.resting:
            return demand
        said_s = self._stamps.at_s(demand.heard)
        if not self.clock() - said_s <= REST_TAKEN_S:
            return replace(demand, resting=())
        self._said_s = min(self._said_s, said_s)
        self._resting |= frozenset(demand.resting)
        return demand

    @property
    def any(self) -> bool:
        """Something was taken."""
        return bool(self._resting)

    def over(self) -> None:
        self._said_s, self._resting = inf, frozenset()

    def ends(self, order: object) -> TypeGuard[StopShard]:
        """It may be one that no gateway's word allows but what was taken in this turn."""
        if not isinstance(order, StopShard) or order.force:
            return False
        return order.shard.rpartition("/")[0] in self._resting

    def bound(self, order: StopShard, agent_at: str, heard_s: float) -> StopShard | None:
        """The order, to be obeyed before a gateway may ask again what it left alone; None where that is not sure.

        `agent_at`: a moment by the agent's clock, heard at `heard_s` by ours; "" of an older one, which obeys whenever.
        A commit may wait for its disk, and a process be stopped, for longer than any gateway waits.
        """
        if self.clock() - self._said_s > REST_TAKEN_S:
            return None
        until = later(agent_at, self._said_s + REST_OBEYED_S - heard_s)
        return replace(order, not_after=until) if until else None
