"""Whether a replica may have requests, as those that it had went (A68).

Closed: it may. Open: it failed, and nothing goes there for a while, longer after each failure in a row. Half-open: the
while is over and one request was let through, the probe; its answer closes the breaker, its failure opens it again. The
whiles are jittered, or all gateways would probe at once. A probe may be one that takes minutes: where no other replica
can serve, one that has not failed for `PROBE_S` is answer enough. It may not know the clock: `now` is an argument.

What opens it:
- A connection refused, reset or not made in time, 502 and 503, an answer that breaks off: at once, also where the
  replica is the only one of its model; it then gets its probes, and requests wait for those.
- `ERRORS_MAX` other answers of 5xx in a row, and not a byte for `SILENT_S` with requests in flight: only where another
  replica can serve. Some prompts are an error or take minutes with every engine, and a bad one is better than none.
"""

from __future__ import annotations

from math import inf
from random import uniform

#: How long a replica that failed is left alone, doubling from the first to the second figure.
SKIP_S, SKIP_MAX_S = 0.5, 4.0
#: It is this much of that at least.
JITTER = 0.75
ERRORS_MAX = 5
SILENT_S = 120.0
#: Longer than a connection may take to be made (`upstream.CONNECT_S`).
PROBE_S = 5.0

OPEN, HALF_OPEN, CLOSED = "open", "half-open", "closed"


class Breaker:
    """`until`: no request before it, `inf` while the probe is out. `fails`: in a row, no whole answer between."""

    __slots__ = ("fails", "open", "probe", "probed_at", "until", "why")

    def __init__(self) -> None:
        self.open = False  # half-open as well
        self.until = 0.0
        self.probe: object = None
        self.probed_at = 0.0
        self.fails = 0
        self.why = ""

    @property
    def state(self) -> str:
        if not self.open:
            return CLOSED
        return OPEN if self.probe is None else HALF_OPEN

    def failed(self, why: str, now: float) -> bool:
        """Opens it, and says whether it was closed. Failures of one and the same moment count once."""
        self.why = why
        if now < self.until and self.probe is None:
            return False
        self.fails += 1
        skip_s = min(SKIP_S * 2 ** (min(self.fails, 10) - 1), SKIP_MAX_S)
        return self._skip(now + skip_s * uniform(JITTER, 1.0))  # noqa: S311 - not for secrets

    def erred(self, why: str, now: float, *, others: bool) -> bool:
        """An answer of 5xx, to its end; `others`: another replica can serve."""
        if others and (self.open or self.fails + 1 >= ERRORS_MAX):
            return self.failed(why, now)
        self.fails += 1
        if self.open:
            self.worked()
        return False

    def silent(self, why: str, now: float) -> bool:
        """Nothing came for long; said again and again as long as that is so, and nothing is asked of it meanwhile."""
        self.why = why
        self.fails = max(self.fails, 1)
        return self._skip(now + SKIP_MAX_S)

    def _skip(self, until: float) -> bool:
        was_open, self.open = self.open, True
        self.until = until
        self.probe = None
        return not was_open

    def let_through(self, request: object, now: float) -> None:
        """`request` is the probe: nobody else comes through before it has ended."""
        self.probe = request
        self.probed_at = now
        self.until = inf

    def probed_long(self, now: float) -> bool:
        return self.probe is not None and now - self.probed_at > PROBE_S

    def no_answer(self, request: object, now: float) -> None:
        """`request` ended, its client gone: where it was the probe, the next one is."""
        if self.probe is request:
            self.probe = None
            self.until = now

    def worked(self) -> None:
        """An answer has begun. Failures are not forgotten yet: it may break off like the last one."""
        self.open = False
        self.until = 0.0
        self.probe = None

    def whole(self) -> None:
        """A good answer came to its end."""
        self.fails = 0
