"""Models and replicas as one of several workers sees them: limits hold over all of them together.

Answers for: no more requests at a replica, and no more that wait, than one process alone would allow; and a fair turn
for those that wait in another worker. It may not wait for anybody: what the others have is read from `common`.
"""

from __future__ import annotations

from typing_extensions import override

from llmgw.core.types.routes import RouteReplica
from llmgw.gateway.balance import Fleet, Target
from llmgw.gateway.common import Common, Row
from llmgw.gateway.endpoint import Endpoint
from llmgw.gateway.queue import Queue, Waiter

#: While requests wait in several workers, each of them looks so often whether a place is free.
LOOK_S = 0.05


class SharedEndpoint(Endpoint):
    __slots__ = ("row",)

    def __init__(self, route: RouteReplica, common: Common) -> None:
        super().__init__(route)
        # As `Fleet` tells them apart: another engine at the same address begins at nothing.
        self.row = common.row("replica", route.replica, route.incarnation, route.endpoint)

    @override
    def left(self, now: float) -> bool:
        emptied = super().left(now)
        self.row.put(self.in_flight)
        return emptied


class SharedQueue(Queue):
    __slots__ = ("row",)

    def __init__(self, row: Row) -> None:
        super().__init__()
        self.row = row

    @override
    def add(self, waiter: Waiter, *, again: bool = False) -> None:
        super().add(waiter, again=again)
        self.row.put(self.size)

    @override
    def remove(self, waiter: Waiter) -> None:
        super().remove(waiter)
        self.row.put(self.size)


class SharedTarget(Target):
    __slots__ = ("_now", "_row", "_turn_is_ours")

    def __init__(self, name: str, common: Common) -> None:
        super().__init__(name)
        self._row = common.row("model", name)
        self.waiting = SharedQueue(self._row)
        self._now = 0.0
        self._turn_is_ours = False

    @property
    @override
    def room(self) -> int:
        return super().room - self._row.others(self._now)

    @override
    def choose(
        self, now: float, tried: tuple[Endpoint, ...] = (), prefix: int | None = None
    ) -> Endpoint | None:
        self._now = now
        if self._row.others(now) and not self._turn_is_ours:
            return None  # whoever waits elsewhere was here before
        limit = self.route.max_in_flight
        shared = [e for e in self.endpoints if isinstance(e, SharedEndpoint)]
        full = tuple(e for e in shared if e.in_flight + e.row.others(now) >= limit)
        while isinstance(found := super().choose(now, tried + full, prefix), SharedEndpoint):
            # Of two workers that come at the same moment one has the last place: not both, and not neither.
            if found.row.claim(found.in_flight + 1, limit, now):
                break  # whoever asks for a choice takes it
            full = (*full, found)
        return found

    def look(self, now: float) -> None:
        """Those that wait here may have what is free, though others wait elsewhere: they look as often."""
        self._turn_is_ours = True
        self.pump(now)
        self._turn_is_ours = False


def share(fleet: Fleet, common: Common) -> None:
    """Before its first table."""
    fleet.make_target = lambda name: SharedTarget(name, common)
    fleet.make_endpoint = lambda route: SharedEndpoint(route, common)
