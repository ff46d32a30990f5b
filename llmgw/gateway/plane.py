"""One control plane as a gateway sees it: where it is, whom to believe there, and what it answered last.

Answers for: facts alone, which `feed` writes down and acts upon. May not call anybody.
"""

from __future__ import annotations

import asyncio

from llmgw import tls
from llmgw.config import Address, Trust
from llmgw.core.types.routes import RouteReplica
from llmgw.gateway.endpoint import Endpoint

#: A table that control tells of comes by the poll it holds in a moment; after so long it is asked for anew.
OWED_S = 2.0


class Control:
    def __init__(self, url: str, trust: Trust) -> None:
        self.url = url
        self.trust = trust
        self.endpoint = Endpoint(RouteReplica(replica=self.url, endpoint=self.url))
        if self.url.startswith("https:"):
            self.endpoint.tls = tls.client(trust)
        self.changed = asyncio.Event()
        #: one post at a time
        self.turn = asyncio.Lock()
        #: it was told of this process, or does not answer
        self.tried = asyncio.Event()
        self.up: bool | None = None
        #: nothing listens there, by what was tried last
        self.none = False
        #: it decides nothing, by what it answered last
        self.still = False
        self.away = asyncio.Event()
        #: when it last answered, in its own words; and the models it knows by now that nobody serves and some wait for
        self.heard = ""
        self.knows: frozenset[str] = frozenset()
        #: nothing rests for it before then
        self.spared_until = 0.0
        self._owes_since: float | None = None

    def owes(self, newer: bool, now: float) -> bool:  # noqa: FBT001 - of a comparison
        """A newer table, that it has told of for a while: its poll is dead, whatever the connection says."""
        if not newer:
            self._owes_since = None
        elif self._owes_since is None:
            self._owes_since = now
        elif now - self._owes_since >= OWED_S:
            self._owes_since = now
            return True
        return False

    @property
    def in_clear(self) -> bool:
        """What it is told may be read on its way."""
        return self.endpoint.tls is None and not Address(self.endpoint.host, 0).loopback
