"""API keys of clients, checked from the table in use, so that they hold with control away.

Answers for: who may ask for which model. Keys are random 256-bit values, so a plain SHA-256 is enough. It may not log
or keep what a client sent.
"""

from __future__ import annotations

import hashlib
import hmac
from fnmatch import fnmatchcase

from llmgw.core.types.routes import RouteKey
from llmgw.gateway.openai import ProblemError

HINT = "send `Authorization: Bearer KEY`"


class Keys:
    """`open_without`: where there are no keys, everybody may ask (loopback, or `--insecure`)."""

    def __init__(self, keys: tuple[RouteKey, ...], *, open_without: bool) -> None:
        self._keys = {key.sha256.lower(): key for key in keys}
        self.open = open_without and not keys

    def check(self, headers: dict[bytes, bytes]) -> RouteKey | None:
        """The key of a request, None where none is needed; `ProblemError` otherwise."""
        if self.open:
            return None
        if not self._keys:
            message = "no API key exists, and this gateway listens beyond loopback"
            raise ProblemError(
                401, "invalid_api_key", message, "start it with --insecure, or listen on 127.0.0.1"
            )
        sent = _sent(headers)
        if not sent:
            raise ProblemError(401, "invalid_api_key", "no API key was sent", HINT)
        digest = hashlib.sha256(sent).hexdigest()
        key = self._keys.get(digest)
        if key is None or not hmac.compare_digest(digest, key.sha256.lower()):
            raise ProblemError(401, "invalid_api_key", "the API key is not known here", HINT)
        return key


def _sent(headers: dict[bytes, bytes]) -> bytes:
    scheme, _, value = headers.get(b"authorization", b"").partition(b" ")
    if scheme.lower() == b"bearer":
        return value.strip()
    return headers.get(b"x-api-key") or headers.get(b"api-key") or b""


def allowed(key: RouteKey | None, model: str) -> bool:
    if key is None or key.models is None:
        return True
    return any(fnmatchcase(model, pattern) for pattern in key.models)
