"""Who may command: a flock that the kernel frees, or a lease in a store, which lapses and may be away (F28-F31)."""

from __future__ import annotations

from tests.sim.clock import Act, Clock

#: A dead leader's lease in a store ends so much later.
TTL_S = 10.0
#: One that was renewed just before its store went away may act for so long.
LEFT_S = TTL_S * 2 / 3


class Lease:
    """`waiting`: standbys, each with what starts it; the first in line gets it."""

    def __init__(self, clock: Clock) -> None:
        self.clock = clock
        self.kind = "file"
        self.holder = ""
        #: the store answers nobody, since when
        self.away = False
        self._away_s = 0.0
        self.waiting: dict[str, Act] = {}
        #: the highest that anybody led with; a store keeps it for all, a file is its control's own
        self.epoch = 0
        #: those that the last leader counted, as it left them in a store
        self.gateways: frozenset[str] | None = None
        #: how often it was taken: a later life of the same control is another holder (F32, F33)
        self._tenure = 0

    def take(self, url: str, then: Act) -> bool:
        """Its own now; else `then` once it is free."""
        if self.away or self.holder:
            self.waiting[url] = then
            return False
        self.holder = url
        self._tenure += 1
        self.waiting.pop(url, None)
        return True

    def died(self, url: str) -> None:
        """Its holder ended: a flock is free at once."""
        if self.holder != url:
            return
        mine = self._tenure
        if self.kind == "file":
            self._free(mine)
        else:
            self.clock.after(TTL_S, lambda: self._free(mine))

    def _free(self, tenure: int) -> None:
        if self._tenure == tenure and self.holder:
            self.holder = ""
            self.next()

    def next(self) -> None:
        if self.waiting and not self.holder and not self.away:
            url = next(iter(self.waiting))
            self.waiting.pop(url)()

    def moves(self, url: str) -> None:
        """Lapsed while its holder slept, and taken by another that waited."""
        self.holder = ""
        self.waiting.pop(url)()

    def lost(self) -> None:
        """The store is away: who led acts to the end of its time, and nobody can lead."""
        if not self.away:
            self.away, self._away_s = True, self.clock.now

    def back(self) -> None:
        self.away = False
        self.next()

    def holds(self, url: str) -> bool:
        in_time = not self.away or self.clock.now < self._away_s + LEFT_S
        return self.holder == url and in_time
