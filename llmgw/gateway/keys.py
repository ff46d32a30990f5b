"""API keys of clients, checked from the table in use, so that they hold with control away.

Answers for: who may ask for which model, and how much. Keys are random 256-bit values, so a plain SHA-256 is enough.
Limits are this process's own: two gateways give a key its limit each. It may not log or keep what a client sent.
"""

from __future__ import annotations

import hashlib
import hmac
from fnmatch import fnmatchcase
from math import ceil

from llmgw.core.types.routes import RouteKey
from llmgw.gateway.openai import ProblemError

HINT = "send `Authorization: Bearer KEY`"
MINUTE_S = 60.0


class Use:
    """What one key has in use; it outlives tables. `allowance`: requests that it may begin at once, as of `since`."""

    __slots__ = ("allowance", "in_flight", "key", "since")

    def __init__(self, key: RouteKey, now: float) -> None:
        self.key = key
        self.in_flight = 0
        self.allowance = key.limits.get("per_minute", 0.0)
        self.since = now

    def begin(self, now: float) -> None:
        """One request more, ended by `end`; `ProblemError` 429 where that is one too many."""
        limits = self.key.limits
        most = limits.get("in_flight")
        if most is not None and self.in_flight >= most:
            why = f"{self.in_flight} requests in flight, and {most:g} is its limit"
            raise self._refused(why, 1)
        rate = limits.get("per_minute")
        if rate is not None:
            gained = (now - self.since) * rate / MINUTE_S
            self.allowance = min(rate, self.allowance + gained)
            self.since = now
            if self.allowance < 1:
                wait_s = ceil((1 - self.allowance) * MINUTE_S / rate)
                why = f"its {rate:g} requests a minute are used up"
                raise self._refused(why, wait_s)
            self.allowance -= 1
        self.in_flight += 1

    def end(self) -> None:
        self.in_flight -= 1

    def _refused(self, why: str, wait_s: int) -> ProblemError:
        message = f"API key {self.key.id!r}: {why}"
        return ProblemError(429, "rate_limit_exceeded", message, retry_after_s=wait_s)


class Keys:
    """`open_without`: where there are no keys, everybody may ask (loopback, or `--insecure`)."""

    def __init__(self, keys: tuple[RouteKey, ...], *, open_without: bool) -> None:
        self._keys = {key.sha256.lower(): key for key in keys}
        self._uses: dict[str, Use] = {}
        self.open = open_without and not keys

    def following(self, before: Keys) -> Keys:
        """What is in use goes on being counted over a new table; a limit that was changed begins anew."""
        for digest, use in before._uses.items():
            key = self._keys.get(digest)
            if key is not None and key.limits == use.key.limits:
                use.key = key
                self._uses[digest] = use
        return self

    def check(self, headers: dict[bytes, bytes]) -> RouteKey | None:
        """The key of a request, None where none is needed; `ProblemError` otherwise."""
        return None if self.open else self._known(headers)[1]

    def begin(self, headers: dict[bytes, bytes], now: float) -> Use | None:
        """The same for what counts: one request of this key begins."""
        if self.open:
            return None
        digest, key = self._known(headers)
        use = self._uses.get(digest)
        if use is None:
            use = self._uses[digest] = Use(key, now)
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
