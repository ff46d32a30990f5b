"""Counters of this process, written out for Prometheus, and one structured line per request.

Answers for: cheap counting, and lines that hold neither prompts nor keys. They are written by hand: through structlog
a line costs more than all other accounting of its request. It may not decide.
"""

from __future__ import annotations

import json
import re
from bisect import bisect_left
from collections.abc import Callable, Iterable
from datetime import UTC, datetime

from llmgw.gateway.answer import Answer
from llmgw.gateway.balance import Fleet
from llmgw.gateway.http1 import Request

BUCKETS = (0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0)
WORD = re.compile(r"[A-Za-z0-9_./:@+,%#-]+")
SERVER_ERROR = 500
LINES_MAX = 200
COUNTERS = {
    "retries": "Attempts repeated on another replica or a fresh connection.",
    "clients_left": "Requests whose client left before their end.",
    "broken": "Answers that an engine broke off after they had begun.",
    "refused": "Requests refused for their framing.",
}


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

    def request(
        self,
        request: Request,
        answer: Answer,
        *,
        model: str,
        replica: str,
        key: str,
        seconds: float,
        first_s: float,
        waited_s: float,
        end: str,
        why: str,
    ) -> None:
        """Without the query: some clients put keys there."""
        level = "warning" if end == "broken" or answer.status >= SERVER_ERROR else "info   "
        self._lines.append(
            f"{self._timestamp()} {level} request  id={answer.request_id.decode()} "
            f"method={request.method.decode()} path={_plain(request.path[:200].decode(errors='replace'))} "
            f"status={answer.status} model={model or '-'} replica={replica or '-'} key={key or '-'} "
            f"bytes={answer.sent} ms={seconds * 1000:.1f} first_ms={first_s * 1000:.1f} "
            f"waited_ms={waited_s * 1000:.0f} end={end}{f' why={_plain(why)}' if why else ''}\n"
        )
        if len(self._lines) >= LINES_MAX:
            self.flush()


def _plain(text: str) -> str:
    """As it is, or quoted where it would not be one word."""
    return text if WORD.fullmatch(text) else json.dumps(text, ensure_ascii=False)


class Histogram:
    __slots__ = ("counts", "sum")

    def __init__(self) -> None:
        self.counts = [0] * (len(BUCKETS) + 1)
        self.sum = 0.0

    def add(self, seconds: float) -> None:
        self.counts[bisect_left(BUCKETS, seconds)] += 1
        self.sum += seconds


class Meter:
    """Counts since the start. Models are canonical names only: what clients make up is no label."""

    def __init__(self) -> None:
        self.requests: dict[tuple[str, int], int] = {}
        self.seconds: dict[str, Histogram] = {}
        self.first: dict[str, Histogram] = {}
        self.sent_bytes = 0
        self.counts = dict.fromkeys(COUNTERS, 0)
        self.control_up: dict[str, bool] = {}

    def count(self, name: str) -> None:
        self.counts[name] += 1

    def request(self, model: str, status: int, seconds: float, first: float, size: int) -> None:
        key = (model, status)
        self.requests[key] = self.requests.get(key, 0) + 1
        self.sent_bytes += size
        if model:
            if model not in self.seconds:
                self.seconds[model], self.first[model] = Histogram(), Histogram()
            self.seconds[model].add(seconds)
            if first:
                self.first[model].add(first)

    def exposition(self, fleet: Fleet, connections: int) -> bytes:
        """Prometheus' text format 0.0.4."""
        blocks = [
            _family("requests_total", "counter", "Finished requests.", self._requests()),
            _histograms("request_seconds", "From a whole request to its last byte.", self.seconds),
            _histograms(
                "first_byte_seconds", "From a whole request to its first byte.", self.first
            ),
            _family(
                "sent_bytes_total", "counter", "Bytes sent to clients.", [("", self.sent_bytes)]
            ),
            *(
                _family(f"{name}_total", "counter", text, [("", self.counts[name])])
                for name, text in COUNTERS.items()
            ),
            _family("connections", "gauge", "Open client connections.", [("", connections)]),
            *_fleet(fleet),
            _family(
                "control_up",
                "gauge",
                "Whether the last call to a control was answered.",
                [(_labels(control=c), int(up)) for c, up in self.control_up.items()],
            ),
        ]
        return "".join(blocks).encode()

    def _requests(self) -> Iterable[tuple[str, float]]:
        return [(_labels(model=m, code=str(s)), n) for (m, s), n in self.requests.items()]


def _fleet(fleet: Fleet) -> list[str]:
    targets = fleet.targets.values()
    of = [(_labels(model=t.name, replica=e.replica), e) for t in targets for e in t.endpoints]
    version = fleet.table.version if fleet.table else 0
    waiting = [(_labels(model=t.name), len(t.waiting)) for t in targets]
    return [
        _family("table_version", "gauge", "Route table in use.", [("", version)]),
        _family("waiting", "gauge", "Requests waiting for a replica.", waiting),
        _family("in_flight", "gauge", "Requests on a replica.", [(k, e.in_flight) for k, e in of]),
        _family(
            "failing", "gauge", "Replicas that failed last.", [(k, int(e.fails > 0)) for k, e in of]
        ),
    ]


def _labels(**labels: str) -> str:
    return "{" + ",".join(f'{name}="{_quoted(value)}"' for name, value in labels.items()) + "}"


def _quoted(value: str) -> str:
    return value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


def _family(name: str, kind: str, text: str, samples: Iterable[tuple[str, float]]) -> str:
    full = f"llmgw_gateway_{name}"
    lines = [f"{full}{labels} {value}\n" for labels, value in samples]
    return f"# HELP {full} {text}\n# TYPE {full} {kind}\n{''.join(lines)}" if lines else ""


def _histograms(name: str, text: str, histograms: dict[str, Histogram]) -> str:
    full = f"llmgw_gateway_{name}"
    lines = []
    for model, histogram in histograms.items():
        total = 0
        for bound, count in zip((*BUCKETS, "+Inf"), histogram.counts, strict=True):
            total += count
            lines.append(f"{full}_bucket{_labels(model=model, le=str(bound))} {total}\n")
        lines.append(f"{full}_sum{_labels(model=model)} {histogram.sum}\n")
        lines.append(f"{full}_count{_labels(model=model)} {total}\n")
    return f"# HELP {full} {text}\n# TYPE {full} histogram\n{''.join(lines)}" if lines else ""
