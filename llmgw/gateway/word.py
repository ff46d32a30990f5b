"""For how long this gateway may go by what it knows of replicas that may be put to sleep: a lease, renewed by control.

Control waits for the gateways it counts before it puts one to sleep, and counts none for long that it does not hear
(`GATEWAY_GONE_S`). Answers for: a gateway that is cut off stops asking such replicas before that, and begins again only
with a table that has all that was put to sleep meanwhile. It may not know sockets or the clock: `now` is an argument.
"""

from __future__ import annotations

from math import inf

from msgspec.structs import replace

from llmgw.core.types.routes import GATEWAY_WORD_S, Heard, RouteTable


class Word:
    """One gateway's. `until`: nothing new goes there from then on; `lapsed`: that was so when `look` was called last.

    A process that has just started has none: what its last table says may be of any age.
    """

    __slots__ = ("_owed", "_promised", "_since", "_told", "lapsed", "until")

    def __init__(self, since: float = 0.0, until: float = -inf) -> None:
        self.until = until
        self.lapsed = until < inf
        self._since = since  # the last good word was asked for then, or else this process began
        self._promised = until
        self._told = False
        self._owed: int | None = None

    def heard(self, began: float, said: Heard, version: int, now: float) -> None:
        """An answer to what was sent at `began`; `version` is that of the table in use.

        Who stands by puts nothing to sleep, and does not tell the one that does of us. Its tables are older than those
        of whoever leads, also where it cannot say whether somebody does.
        """
        if not said.leader or said.version < version:
            return
        self._told = True
        self._since = max(self._since, began)
        self._promised = max(self._promised, began + GATEWAY_WORD_S)
        if now < self.until:
            self.until = self._promised
        else:  # what went to sleep before control heard us is in its table as of now, if not in ours
            self._owed = said.version
            self.uses(version)
        self.look(now)

    def alone(self, began: float, now: float) -> None:
        """Since `began` no control runs, so none puts anything to sleep; one that starts waits for those it remembers.

        Engines are served with control down (F19), also by a process that starts then: its table on disk is what the
        one before it went by. Not after a silence, in which one may have.
        """
        if now < self.until or not self._told:
            self._since = max(self._since, began)
            self.until = self._promised = max(self._promised, began + GATEWAY_WORD_S)
        self.look(now)

    def uses(self, version: int) -> None:
        """A table is in use from here on."""
        if self._owed is not None and version >= self._owed:
            self.until, self._owed = self._promised, None

    def look(self, now: float) -> None:
        self.lapsed = now >= self.until

    def silent_s(self, now: float) -> float:
        return now - self._since

    def remembered(self, table: RouteTable, now: float) -> RouteTable:
        """What of the table in use may be gone by beside another: without a word, nothing of what may sleep by now."""
        return table if now < self.until else _awake(table)


#: Of what never sleeps.
ALWAYS = Word(until=inf)


def _awake(table: RouteTable) -> RouteTable:
    models = {
        name: replace(route, replicas=tuple(r for r in route.replicas if not r.sleeps))
        if any(r.sleeps for r in route.replicas)
        else route
        for name, route in table.models.items()
    }
    return replace(table, models=models)
