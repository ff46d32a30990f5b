"""API keys of clients, checked from the table in use, so that they hold with control away.

Answers for: who may ask for which model, and how much. Keys are random 256-bit values, so a plain SHA-256 is enough.
Limits hold over all workers of one gateway; two gateways give a key its limit each. It may not log or keep what a
client sent.
"""

from __future__ import annotations

import hashlib
import hmac
from fnmatch import fnmatchcase
from math import ceil

from llmgw.core.types.routes import RouteKey
from llmgw.gateway.common import Common, Row, alone
from llmgw.gateway.memo import Derived
from llmgw.gateway.openai import ProblemError

HINT = "send `Authorization: Bearer KEY`"
MINUTE_S = 60.0
ROUNDING_S = 1e-6


class Use:
    """What one key has in use in this process; it outlives tables. `row`: what all workers have."""

    __slots__ = ("_allowed", "in_flight", "key", "limited", "row")

    def __init__(self, key: RouteKey, row: Row) -> None:
        self.in_flight = 0
        self.row = row
        self.follow(key)

    def follow(self, key: RouteKey) -> None:
        """What the table in use says of it."""
        self.key = key
        self.limited = bool(key.limits)
        self._allowed: dict[str, bool] = {}  # models of the catalog only, so it stays small

    def allows(self, model: str) -> bool:
        known = self._allowed.get(model)
        if known is None:
            known = self._allowed[model] = allowed(self.key, model)
        return known

    def begin(self, now: float) -> None:
        """One request more, ended by `end`; `ProblemError` 429 where that is one too many."""
        self.in_flight += 1
        if not self.limited:
            return
        limits = self.key.limits
        most = limits.get("in_flight")
        # Of two workers that take the last place at once one has it.
        if most is not None and not self.row.claim(self.in_flight, most, now):
            before = self.in_flight - 1 + self.row.others(now)
            self.end()
            why = f"{before} requests in flight, and {most:g} is its limit"
            raise self._refused(why, 1)
        rate = limits.get("per_minute")
        if rate is not None:
            # Each request takes its share of a minute, from now or from where the last one's ends (GCRA, as in ATM).
            until = max(self.row.until, now) + MINUTE_S / rate
            wait_s = until - now - MINUTE_S
            if wait_s > ROUNDING_S:
                self.end()
                why = f"its {rate:g} requests a minute are used up"
                raise self._refused(why, ceil(wait_s))
            self.row.until = until

    def end(self) -> None:
        self.in_flight -= 1
        if self.limited and "in_flight" in self.key.limits:
            self.row.put(self.in_flight)

    def _refused(self, why: str, wait_s: int) -> ProblemError:
        message = f"API key {self.key.id!r}: {why}"
        return ProblemError(429, "rate_limit_exceeded", message, retry_after_s=wait_s)


class Keys:
    """`open_without`: where there are no keys, everybody may ask (loopback, or `--insecure`)."""

    def __init__(
        self, keys: tuple[RouteKey, ...], *, open_without: bool, common: Common | None = None
    ) -> None:
        self._common = common or alone()
        self._keys = {key.sha256.lower(): key for key in keys}
        self._uses: dict[str, Use] = {}
        self.open = open_without and not keys

    def following(self, before: Keys) -> Keys:
        """What is in use goes on being counted over a new table; a limit that was changed begins anew."""
        for digest, use in before._uses.items():
            key = self._keys.get(digest)
            if key is not None and key.limits == use.key.limits:
                use.follow(key)
                self._uses[digest] = use
        return self

    def check(self, headers: dict[bytes, bytes]) -> RouteKey | None:
        """The key of a request, None where none is needed; `ProblemError` otherwise."""
        return None if self.open else self._known(headers)[1]

    def begin(
        self, headers: dict[bytes, bytes], now: float, derived: Derived | None = None
    ) -> Use | None:
        """The same for what counts: one request of this key begins. `derived`: what is known of the same headers."""
        if self.open:
            return None
        if derived is not None and derived.keys is self:
            known: Use = derived.use
            if known.limited:
                known.begin(now)
            else:
                known.in_flight += 1
            return known
        digest, key = self._known(headers)
        use = self._uses.get(digest)
        if use is None:
            row = self._common.row("key", digest, sorted(key.limits.items()))
            use = self._uses[digest] = Use(key, row)
        if derived is not None:
            derived.keys, derived.use = self, use
        use.begin(now)
        return use

    def _known(self, headers: dict[bytes, bytes]) -> tuple[str, RouteKey]:
        if not self._keys:
            message = "no API key exists, and this gateway listens beyond loopback"
            hint = "`llmgw key add NAME` makes one; or listen on 127.0.0.1, or mean it: --insecure"
            raise ProblemError(401, "invalid_api_key", message, hint)
        sent = _sent(headers)
        if not sent:
            raise ProblemError(401, "invalid_api_key", "no API key was sent", HINT)
        digest = hashlib.sha256(sent).hexdigest()
        key = self._keys.get(digest)
        if key is None or not hmac.compare_digest(digest, key.sha256.lower()):
            raise ProblemError(401, "invalid_api_key", "the API key is not known here", HINT)
        return digest, key


def _sent(headers: dict[bytes, bytes]) -> bytes:
    scheme, _, value = headers.get(b"authorization", b"").partition(b" ")
    if scheme.lower() == b"bearer":
        return value.strip()
    return headers.get(b"x-api-key") or headers.get(b"api-key") or b""


def allowed(key: RouteKey | None, model: str) -> bool:
    if key is None or key.models is None:
        return True
    return any(fnmatchcase(model, pattern) for pattern in key.models)
