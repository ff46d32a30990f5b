"""Counters of this process, written out for Prometheus.

Answers for: cheap counting. It may not decide.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable

from llmgw.gateway.balance import Fleet
from llmgw.gateway.breaker import CLOSED, HALF_OPEN, OPEN
from llmgw.gateway.usage import tokens

BUCKETS = (0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0)
GAPS = (0.005, 0.01, 0.02, 0.03, 0.05, 0.1, 0.2, 0.5, 1.0, 5.0)
COUNTERS = {
    "retries": "Attempts repeated on another replica or a fresh connection.",
    "clients_left": "Requests whose client left before their end.",
    "broken": "Answers that an engine broke off after they had begun.",
    "refused": "Requests refused for their framing.",
    "breaker_opened": "Times that a replica was left alone because it failed.",
}
#: name, field of `ModelMeter`, text
HISTOGRAMS = (
    ("request_seconds", "seconds", "From a whole request to its last byte."),
    ("first_byte_seconds", "first", "From a whole request to the first byte of an engine."),
    ("chunk_gap_seconds", "gap", "Mean time between the pieces of a stream, one value per stream."),
    ("wait_seconds", "wait", "Waits of those requests that had to wait for a replica."),
)
MODEL_COUNTERS = (
    ("wakeups_total", "wakeups", "Requests that found no replica ready."),
    ("prompt_tokens_total", "prompt", "Tokens of prompts, where the engine says so."),
    ("completion_tokens_total", "completion", "Tokens of answers, where the engine says so."),
)
BREAKER = {CLOSED: 0, HALF_OPEN: 1, OPEN: 2}


class Histogram:
    __slots__ = ("bounds", "counts", "sum")

    def __init__(self, bounds: tuple[float, ...] = BUCKETS) -> None:
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.sum = 0.0

    def add(self, seconds: float) -> None:
        self.counts[bisect_left(self.bounds, seconds)] += 1
        self.sum += seconds


class ModelMeter:
    """What is counted for one model. `gap`: the mean time between the pieces of a stream, once per stream."""

    __slots__ = ("codes", "completion", "first", "gap", "prompt", "seconds", "wait", "wakeups")

    def __init__(self) -> None:
        self.codes: dict[int, int] = {}
        self.seconds = Histogram()
        self.first = Histogram()
        self.gap = Histogram(GAPS)
        self.wait = Histogram()
        self.wakeups = 0
        self.prompt = 0
        self.completion = 0

    def said(self, tail: bytes) -> None:
        """`tail`: the last bytes of a good answer."""
        prompt, completion = tokens(tail)
        self.prompt += prompt
        self.completion += completion


class Meter:
    """Counts since the start. Models are canonical names only: what clients make up is no label."""

    def __init__(self) -> None:
        self.models: dict[str, ModelMeter] = {}
        self.sent_bytes = 0
        self.counts = dict.fromkeys(COUNTERS, 0)
        self.refusals: dict[str, int] = {}
        self.control_up: dict[str, bool] = {}

    def count(self, name: str) -> None:
        self.counts[name] += 1

    def refusal(self, code: str) -> None:
        self.refusals[code] = self.refusals.get(code, 0) + 1

    def model(self, name: str) -> ModelMeter:
        found = self.models.get(name)
        if found is None:
            found = self.models[name] = ModelMeter()
        return found

    def request(
        self, model: str, status: int, seconds: float, first: float, size: int
    ) -> ModelMeter:
        """`model` is empty where a request named none that exists."""
        of = self.models.get(model) or self.model(model)
        of.codes[status] = of.codes.get(status, 0) + 1
        self.sent_bytes += size
        if model:
            whole = of.seconds  # `Histogram.add` in place: this is for every request
            whole.counts[bisect_left(BUCKETS, seconds)] += 1
            whole.sum += seconds
            if first:
                begun = of.first
                begun.counts[bisect_left(BUCKETS, first)] += 1
                begun.sum += first
        return of

    def exposition(self, fleet: Fleet, connections: int) -> bytes:
        """Prometheus' text format 0.0.4."""
        blocks = [
            *self._requests(),
            _family(
                "sent_bytes_total", "counter", "Bytes sent to clients.", [("", self.sent_bytes)]
            ),
            *(
                _family(f"{name}_total", "counter", text, [("", self.counts[name])])
                for name, text in COUNTERS.items()
            ),
            _family(
                "refusals_total",
                "counter",
                "Requests that the gateway itself answered with an error, by its code.",
                [(_labels(reason=code), n) for code, n in self.refusals.items()],
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

    def _requests(self) -> list[str]:
        codes = [
            (_labels(model=name, code=str(code)), n)
            for name, of in self.models.items()
            for code, n in of.codes.items()
        ]
        named = {name: of for name, of in self.models.items() if name}
        return [
            _family("requests_total", "counter", "Finished requests.", codes),
            *(
                _histograms(name, text, {m: getattr(of, field) for m, of in named.items()})
                for name, field, text in HISTOGRAMS
            ),
            *(
                _family(
                    name,
                    "counter",
                    text,
                    [(_labels(model=m), getattr(of, field)) for m, of in named.items()],
                )
                for name, field, text in MODEL_COUNTERS
            ),
        ]


def _fleet(fleet: Fleet) -> list[str]:
    targets = fleet.targets.values()
    of = [
        (_labels(model=t.name, replica=e.replica), e, t.slow and e.slow)
        for t in targets
        for e in t.endpoints
    ]
    version = fleet.table.version if fleet.table else 0
    waiting = [(_labels(model=t.name), len(t.waiting)) for t in targets]
    in_flight = [(k, e.in_flight) for k, e, _ in of]
    breaker = [(k, BREAKER[e.breaker.state]) for k, e, _ in of]
    slow = [(k, int(slow)) for k, _, slow in of]
    return [
        _family("table_version", "gauge", "Route table in use.", [("", version)]),
        _family("waiting", "gauge", "Requests waiting for a replica.", waiting),
        _family("in_flight", "gauge", "Requests on a replica.", in_flight),
        _family(
            "breaker",
            "gauge",
            "Whether a replica may have requests: 0 closed, 1 half-open, 2 open.",
            breaker,
        ),
        _family("slow", "gauge", "Replicas passed over as slower than their siblings.", slow),
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
        for bound, count in zip((*histogram.bounds, "+Inf"), histogram.counts, strict=True):
            total += count
            lines.append(f"{full}_bucket{_labels(model=model, le=str(bound))} {total}\n")
        lines.append(f"{full}_sum{_labels(model=model)} {histogram.sum}\n")
        lines.append(f"{full}_count{_labels(model=model)} {total}\n")
    return f"# HELP {full} {text}\n# TYPE {full} histogram\n{''.join(lines)}" if lines else ""
