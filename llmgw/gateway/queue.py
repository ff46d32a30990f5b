"""Requests that wait for a replica of one model, and whose turn it is.

Answers for: turns that go round over the clients that wait, first come first served within each; and that no client
fills the queue alone. It may not know what a request is.

One client, by API key or else by address, may hold all places but a few: a quarter of them, `KEPT` at most, stay for
others. Without that whoever asks most would shut everybody else out, whatever the turns.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator
from typing import Protocol

from llmgw.gateway.endpoint import Endpoint

KEPT = 8


class Waiter(Protocol):
    """A request that waits. `who`: its client; `prefix`: what its prompt begins with, as a number."""

    who: str
    prefix: int | None

    def assign(self, endpoint: Endpoint) -> None: ...

    def tick(self, now: float) -> None: ...


class Queue:
    """Every step costs the same however many wait (`OrderedDict`: the first of a plain dict gets slow to find)."""

    __slots__ = ("_lanes", "size")

    def __init__(self) -> None:
        #: client -> its requests; the first client is next
        self._lanes: OrderedDict[str, OrderedDict[Waiter, None]] = OrderedDict()
        self.size = 0

    def __len__(self) -> int:
        return self.size

    def __iter__(self) -> Iterator[Waiter]:
        for lane in self._lanes.values():
            yield from lane

    def __contains__(self, waiter: Waiter) -> bool:
        return waiter in self._lanes.get(waiter.who, ())

    def held(self, who: str) -> int:
        return len(self._lanes.get(who, ()))

    def add(self, waiter: Waiter, *, again: bool = False) -> None:
        """At the end of its client's line; `again`: it had a place and lost it, so it goes to the front."""
        lane = self._lanes.setdefault(waiter.who, OrderedDict())
        lane[waiter] = None
        if again:
            lane.move_to_end(waiter, last=False)
        self.size += 1

    def remove(self, waiter: Waiter) -> None:
        lane = self._lanes[waiter.who]
        del lane[waiter]
        self.size -= 1
        if not lane:
            del self._lanes[waiter.who]

    def first(self) -> Waiter:
        """Whose turn it is."""
        return next(iter(next(iter(self._lanes.values()))))

    def take(self) -> Waiter:
        """The same, out of the queue; the next turn is another client's."""
        waiter = self.first()
        self.remove(waiter)
        if waiter.who in self._lanes:
            self._lanes.move_to_end(waiter.who)
        return waiter


def share(room: int) -> int:
    """How many of `room` places one client may hold."""
    return room - min(room // 4, KEPT)
