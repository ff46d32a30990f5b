"""Replicas that this gateway leaves alone for a moment: until control has answered what it was just told.

With the first demand for a model that nobody serves it names what is idle here, and sends nothing there before it uses
the table that the answer tells of. So control may end one of them for that model in the very turn in which it hears of
it, instead of telling every gateway and waiting for its word. Answers for: which replicas rest, and until when. It may
not know sockets or the clock: `now` is an argument.
"""

from __future__ import annotations

from llmgw.core.types.routes import GATEWAY_GONE_S, REST_S


class Rest:
    """One promise. `version`: of the table with which it is over, None while there is no answer."""

    __slots__ = ("began", "replicas", "version")

    def __init__(self, replicas: frozenset[str], began: float) -> None:
        self.replicas = replicas
        self.began = began
        self.version: int | None = None

    @property
    def until(self) -> float:
        return self.began + (REST_S if self.version is None else GATEWAY_GONE_S)


class Rests:
    def __init__(self) -> None:
        self.replicas: frozenset[str] = frozenset()
        self._all: list[Rest] = []

    def begin(self, replicas: frozenset[str], now: float) -> Rest:
        rest = Rest(replicas, now)
        self._all.append(rest)
        self.replicas |= replicas
        return rest

    def uses(self, version: int) -> bool:
        """That table is in use: in it is what came of the promises answered with it, or before it.

        Whether any is over, as of `look`.
        """
        return self._keep([r for r in self._all if r.version is None or r.version > version])

    def look(self, now: float) -> bool:
        """Without an answer it is over as well: nothing that control orders by it is obeyed any more.

        An answered one waits for its table, as what is left of the old one may be on its way out; not for ever.
        """
        return self._keep([r for r in self._all if now < r.until])

    def _keep(self, rests: list[Rest]) -> bool:
        if len(rests) == len(self._all):
            return False
        self._all = rests
        self.replicas = frozenset().union(*(r.replicas for r in rests))
        return True
