"""What is news to somebody who waits or watches: what changed since the last look, and not what counts seconds.

Answers for: what an end waits for, on stderr, of `down --engines` and `drain --wait`; on a terminal and through a pipe
alike. It may not wait by itself.
"""

from __future__ import annotations

import re
from typing import Any

from llmgw.cli.sure import say

#: What counts, up or down.
_FIGURES = re.compile(r"\d+ s\b")


def about(text: str) -> str:
    """What two texts have in common that differ in their seconds only."""
    return _FIGURES.sub("", text)


class News:
    """Of one wait."""

    def __init__(self) -> None:
        self._last = ""

    def say(self, text: str) -> None:
        """`""`: there is nothing to say now, so that the next thing is news again."""
        if text and about(text) != self._last:
            say(text)
        self._last = about(text)


def held_up(status: Any, shards: frozenset[str] | None = None) -> str:
    """What the end of these shards waits for, or of any, each reason once."""
    waits = (
        stop.get("waits")
        for stop in status.get("stops_pending") or ()
        if shards is None or stop.get("shard") in shards
    )
    return "".join(f"; {why}" for why in dict.fromkeys(filter(None, waits)))
