"""One replica: what the table says of it, and what this process has seen of it.

Answers for: its counters, and what is read off them. It may not know sockets or the clock: `now` is an argument.
"""

from __future__ import annotations

import ssl
from collections import deque
from typing import Protocol
from urllib.parse import urlsplit

from llmgw.core.types.routes import RouteReplica
from llmgw.gateway.breaker import Breaker
from llmgw.gateway.reply import Seen
from llmgw.gateway.word import ALWAYS

READY = "ready"
#: So many answers are kept to tell how fast it is.
WINDOW = 32


class Closable(Protocol):
    """An idle upstream connection."""

    idle_since: float

    def close(self) -> None: ...


class Endpoint:
    """One replica: what the table says of it, and what this process has seen of it."""

    __slots__ = (
        "answered_at",
        "answering",
        "authority",
        "authorization",
        "breaker",
        "draining",
        "firsts",
        "gone",
        "heard_at",
        "host",
        "idle",
        "in_flight",
        "last_byte",
        "leaving",
        "name",
        "port",
        "profile",
        "replica",
        "resting",
        "seen",
        "slow",
        "tls",
        "tunnels",
        "upstream_model",
        "weight",
        "word",
    )  # fmt: skip

    def __init__(self, route: RouteReplica) -> None:
        url = urlsplit(route.endpoint)
        self.replica = route.replica
        self.name = route.replica.encode()
        self.host = url.hostname or ""
        self.port = url.port or (443 if url.scheme == "https" else 80)
        #: of a control; engines speak plain HTTP
        self.tls: ssl.SSLContext | None = None
        self.authority = url.netloc.encode()
        self.gone = False
        self.in_flight = 0
        self.tunnels = 0  # of those, WebSockets: nobody owes a byte there
        self.last_byte: float | None = None
        #: bytes of a good answer have come since `demand` last looked, and when that last was so
        self.answering = False
        self.answered_at: float | None = None
        #: nothing was in flight then, or it said no; see `quiet_s`
        self.heard_at: float | None = None
        self.breaker = Breaker()
        #: for how long it may be asked: `Fleet` gives its own to what may be put to sleep
        self.word = ALWAYS
        #: control chooses just now whether it is to end
        self.resting = False
        self.seen = Seen()
        #: (when, seconds to the first byte) of its last answers, and what `outlier` makes of them
        self.firsts: deque[tuple[float, float]] = deque(maxlen=WINDOW)
        self.slow = False
        self.idle: list[Closable] = []
        self.update(route)

    def update(self, route: RouteReplica, *, resting: bool = False) -> None:
        self.profile = route.profile
        self.weight = route.weight
        self.leaving = route.state != READY
        self.rests(resting)
        self.upstream_model = route.upstream_model
        key = route.api_key.encode()
        self.authorization = b"authorization: Bearer %b\r\n" % key if key else b""

    def rests(self, on: bool) -> None:  # noqa: FBT001 - what it is called with is its name
        self.resting = on
        self.draining = self.leaving or on

    @property
    def usable(self) -> bool:
        """The table offers it, and control's word holds for it."""
        return not (self.draining or self.word.lapsed)

    def left(self, now: float) -> bool:
        """One request less; True when control waits to hear of it: nothing is left here."""
        self.in_flight -= 1
        self.last_byte = now
        return not self.in_flight and (self.gone or self.draining)

    def quiet_s(self, now: float) -> float:
        """For how long requests have been in flight here without a byte from the engine; asked once a second."""
        if self.answering:
            self.answered_at, self.answering = now, False
        if self.in_flight == self.tunnels or self.heard_at is None:
            self.heard_at = now
        return now - max(self.heard_at, self.answered_at or 0.0)
