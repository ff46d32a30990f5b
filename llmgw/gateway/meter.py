"""Counters of this process, written out for Prometheus, and one structured line per request.

Answers for: cheap counting, and lines that hold neither prompts nor keys. Both are written by hand: a line through
structlog costs five times the rest of the accounting, once per request. It may not decide.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable
from datetime import UTC, datetime

import msgspec

from llmgw.gateway.answer import Answer
from llmgw.gateway.balance import Fleet
from llmgw.gateway.http1 import Request

BUCKETS = (0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0)
THOUSANDTHS = [f"{i:03d}Z" for i in range(1000)]
LINES_MAX = 200
COUNTERS = {
    "retries": "Attempts repeated on another replica or a fresh connection.",
    "clients_left": "Requests whose client left before their end.",
    "broken": "Answers that an engine broke off after they had begun.",
    "refused": "Requests refused for their framing.",
}


class Line(msgspec.Struct):
    """One finished request, as it stands in the log."""

    timestamp: str
    id: str
    method: str
    path: str
    status: int
    model: str
    replica: str
    key: str
    bytes: int
    ms: float
    first_ms: float
    waited_ms: float
    end: str
    why: str
    event: str = "request"
    level: str = "info"


class Access:
    """Writes a `Line` per request to `write`, in one go each second; `wall` is the wall clock, for people."""

    def __init__(self, write: Callable[[bytes], object], wall: Callable[[], float]) -> None:
        self._write = write
        self._wall = wall
        self._second = 0
        self._stamp = ""
        self._encode = msgspec.json.Encoder().encode
        self._lines: list[bytes] = []

    def _timestamp(self) -> str:
        now = self._wall()
        second = int(now)
        if second != self._second:
            self._second = second
            self._stamp = datetime.fromtimestamp(second, UTC).strftime("%Y-%m-%dT%H:%M:%S.")
        return self._stamp + THOUSANDTHS[int((now - second) * 1000)]

    def flush(self) -> None:
        if self._lines:
            self._lines.append(b"")
            self._write(b"\n".join(self._lines))
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
        line = Line(
            timestamp=self._timestamp(),
            id=answer.request_id.decode(),
            method=request.method.decode(),
            path=request.path[:200].decode(errors="replace"),
            status=answer.status,
            model=model,
            replica=replica,
            key=key,
            bytes=answer.sent,
            ms=round(seconds * 1000, 2),
            first_ms=round(first_s * 1000, 2),
            waited_ms=round(waited_s * 1000, 2),
            end=end,
            why=why,
        )
        self._lines.append(self._encode(line))
        if len(self._lines) >= LINES_MAX:
            self.flush()


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
