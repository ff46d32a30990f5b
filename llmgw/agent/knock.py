"""Plain HTTP towards control: no token goes to a port that speaks TLS, and whoever wrote http:// for https:// is told.

Answers for: a question without the token before the first one with it. May not send a token.
"""

from __future__ import annotations

import asyncio
from urllib.parse import urlsplit

from llmgw import tls
from llmgw.agent.calls import Caller, NoAnswerError

HINT = "`llmgw token` on control's box prints the URL and the --pin to use"


async def knock(calls: Caller, limit_s: float) -> None:
    """OSError where nobody answers in HTTP: what went in clear was worth nothing."""
    if calls.in_clear:
        await calls.call("GET", "/healthz", b"", limit_s, shy=True)


async def trouble(url: str, error: Exception) -> tuple[str, str]:
    """As `tls.trouble`; of plain HTTP, whether it is TLS that is wanted there."""
    place = urlsplit(url)
    if place.scheme != "http" or not isinstance(error, NoAnswerError):
        return tls.trouble(error)
    if not await asyncio.to_thread(tls.speaks, place.hostname or "", place.port or 80):
        return "", ""
    return f"it speaks TLS: use https://{place.netloc}", HINT
