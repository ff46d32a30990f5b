"""What happened, said once: one log line and one event each, when it changes and not every second.

Answers for: telling people (log, `GET events`). May not decide, and nothing reads it back to decide.
"""

from __future__ import annotations

import asyncio
import re
from collections import deque
from collections.abc import Hashable, Iterable
from typing import Any

import structlog

from llmgw.control.picture import Moment

#: Events kept in memory for `GET events`; the inventory keeps more.
KEPT = 1000
_FIGURES = re.compile(r"\d+(\.\d+)?")


class Story:
    def __init__(self) -> None:
        self.log = structlog.get_logger()
        self.events: deque[dict[str, Any]] = deque(maxlen=KEPT)
        self.unsaved: deque[dict[str, Any]] = deque(maxlen=KEPT)
        self.more = asyncio.Event()
        self._now = Moment(0.0, 0.0)
        self._last: dict[Hashable, str] = {}
        self._repeated: set[Hashable] = set()
        self._next = 1

    def begin(self, now: Moment) -> None:
        self._now = now

    def recall(self, events: Iterable[dict[str, Any]]) -> None:
        """Go on after what an earlier control recorded; what was told since this one started comes behind it."""
        told = list(self.events)
        self.events = deque(events, maxlen=KEPT)
        last = self.events[-1]["id"] if self.events else 0
        for event in told:
            event["id"] += last
        self.events.extend(told)
        self._next += last

    def at(self, due_s: float) -> str:
        """The time so many seconds from this pass, for events that announce something."""
        return self._now.iso(self._now.mono + due_s)

    def tell(self, kind: str, why: str, *, level: str = "info", **ids: Any) -> None:
        """Log it and record it as an event. `kind` is a word for machines, `why` the sentence for people."""
        known = {k: v for k, v in ids.items() if v not in (None, "")}
        getattr(self.log, level)(why, kind=kind, **known)
        event = {
            "id": self._next,
            "at": self._now.iso(self._now.mono),
            "kind": kind,
            "why": why,
            **known,
        }
        self._next += 1
        self.events.append(event)
        self.unsaved.append(event)
        self.more.set()
        self.more = asyncio.Event()

    def once(
        self,
        key: Hashable,
        kind: str,
        why: str,
        *,
        level: str = "info",
        exact: bool = False,
        news: str = "",
        **ids: Any,
    ) -> None:
        """Tell it unless it was told in the last pass too; figures that tick along are no news (unless `exact`).

        `news`: what of it must differ to be worth a line; the sentence by default.
        """
        news = why if exact else _FIGURES.sub("#", news or why)
        self._repeated.add(key)
        if self._last.get(key) != news:
            self._last[key] = news
            self.tell(kind, why, level=level, **ids)

    def end_pass(self) -> None:
        """What was not repeated in this pass is news when it comes again."""
        self._last = {k: v for k, v in self._last.items() if k in self._repeated}
        self._repeated = set()

    def after(self, event_id: int) -> list[dict[str, Any]]:
        return [e for e in self.events if e["id"] > event_id]
