"""What is written down of a request once it has ended: counters, and its line in the log.

Answers for: all of that behind the answer's last byte, not before it: a loop may send at its end what was written in a
round, so whatever is done in the same round delays the client; and lines that hold neither prompts nor keys. They are
written by hand: through structlog a line costs more than all other accounting of its request. It may not decide.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from datetime import UTC, datetime

import msgspec

from llmgw.gateway.answer import Answer
from llmgw.gateway.http1 import Request
from llmgw.gateway.meter import Meter

WORD = re.compile(r"[A-Za-z0-9_./:@+,%#-]+")
SERVER_ERROR = 500
LINES_MAX = 200
#: By `%`, which writes a float in half the time that an f-string takes.
LINE = (
    "%s %s request  id=%s %s status=%d model=%s replica=%s key=%s bytes=%d ms=%.1f first_ms=%.1f "
    "waited_ms=%.0f end=%s%s\n"
)


class Ended(msgspec.Struct, gc=False):
    """`tail`: the last bytes of a good answer; `wait_s`: None where it did not wait; `gap_s`: between pieces, a mean.

    Names of model, replica and key are empty where there was none.
    """

    request: Request
    answer: Answer
    model: str
    replica: str
    key: str
    seconds: float
    first_s: float
    end: str
    why: str
    tail: bytes
    wait_s: float | None
    gap_s: float | None


class Access:
    """One line per request, in the form of the daemons' log, to `write` in one go each second.

    `wall` is the wall clock, for people.
    """

    def __init__(self, write: Callable[[bytes], object], wall: Callable[[], float]) -> None:
        self._write = write
        self._wall = wall
        self._second = 0
        self._stamp = ""
        self._lines: list[str] = []

    def _timestamp(self) -> str:
        second = int(self._wall())
        if second != self._second:
            self._second = second
            self._stamp = datetime.fromtimestamp(second, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        return self._stamp

    def flush(self) -> None:
        if self._lines:
            self._write("".join(self._lines).encode())
            self._lines.clear()

    def requests(self, all_ended: list[Ended]) -> None:
        """Those of one moment."""
        at = self._timestamp()
        for e in all_ended:
            answer = e.answer
            bad = e.end == "broken" or answer.status >= SERVER_ERROR
            derived = e.request.derived
            asked = derived.words if derived is not None else ""
            self._lines.append(
                LINE
                % (
                    at,
                    "warning" if bad else "info   ",
                    answer.request_id.decode(),
                    asked or _asked(e.request),
                    answer.status,
                    e.model or "-",
                    e.replica or "-",
                    e.key or "-",
                    answer.sent,
                    e.seconds * 1000,
                    e.first_s * 1000,
                    (e.wait_s or 0.0) * 1000,
                    e.end,
                    f" why={_plain(e.why)}" if e.why else "",
                )
            )
        if len(self._lines) >= LINES_MAX:
            self.flush()


def _asked(request: Request) -> str:
    """Without the query: some clients put keys there."""
    path = _plain(request.path[:200].decode(errors="replace"))
    words = f"method={request.method.decode()} path={path}"
    if request.derived is not None:
        request.derived.words = words
    return words


def _plain(text: str) -> str:
    """As it is, or quoted where it would not be one word."""
    return text if WORD.fullmatch(text) else json.dumps(text, ensure_ascii=False)


def write_down(all_ended: list[Ended], meter: Meter, access: Access | None) -> None:
    for e in all_ended:
        out = e.answer
        of = meter.request(e.model, out.status, e.seconds, e.first_s, out.sent)
        if e.wait_s is not None:
            of.wait.add(e.wait_s)
        if e.gap_s is not None:
            of.gap.add(e.gap_s)
        if e.tail:
            of.said(e.tail)
    if access is not None:
        access.requests(all_ended)
