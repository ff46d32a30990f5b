"""What is measured: each scenario of performance.md 2, in interleaved rounds, as medians of CPU per request.

Answers for: that all proxies of a scenario see the same load, turn by turn, in one run. Times of a shared machine are
noise; what a process used of a CPU for one request is not, so that is what is compared.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import msgspec

from bench.gateway.prototype import decode
from bench.gateway.proxies import BUILD, KEY, MODEL, Proxy, compiled

CONNECTIONS, STREAMS, LARGE_BYTES = 64, 1000, 1 << 20
#: Low load: one client that rests between its requests.
REST_US = 2000
#: One round is enough of these: they are two orders away.
SLOW = ("litellm",)
SHORT_TEXT = "Say something of about this length, please."


class FailedError(Exception):
    pass


@dataclass
class Plan:
    rounds: int
    seconds: float
    stream_rounds: int
    stream_s: float


SHORT = Plan(rounds=3, seconds=1.0, stream_rounds=3, stream_s=2.0)
LONG = Plan(rounds=15, seconds=2.0, stream_rounds=7, stream_s=6.0)


class Bench:
    """`say` is told of progress."""

    def __init__(self, plan: Plan, client_cpus: set[int], say: Callable[[str], None]) -> None:
        self.plan = plan
        self.say = say
        #: who did not keep up with what, and how that looked
        self.failed: dict[str, str] = {}
        self._cpus = ",".join(map(str, sorted(client_cpus)))
        self._load = compiled("load")
        (BUILD / "headers").write_bytes(b"authorization: Bearer %b\r\n" % KEY)

    def small(self, direct: Proxy, proxies: Iterable[Proxy]) -> dict[str, Any]:
        """P1: small JSON, 64 connections that ask again at once."""
        return self._rounds("small JSON", [direct, *proxies], _body(SHORT_TEXT), CONNECTIONS)

    def latency(self, direct: Proxy, proxies: Iterable[Proxy]) -> dict[str, Any]:
        """P2: one client at rest most of the time; what each adds to the engine's own answer."""
        parties = [direct, *proxies]
        found = self._rounds("low load", parties, _body(SHORT_TEXT), 1, rest_us=REST_US)
        for of in found.values():
            of["added_us"] = round(of["p50_us"] - found[direct.name]["p50_us"], 1)
        return found

    def streams(self, direct: Proxy, proxies: Iterable[Proxy]) -> dict[str, Any]:
        """P3: 1,000 streams of 20 events a second each."""
        body = _body(SHORT_TEXT, stream=True)
        return self._rounds("streams", [direct, *proxies], body, STREAMS, per="events")

    def large(self, proxies: Iterable[Proxy]) -> dict[str, Any]:
        """P4: a body of 1 MB, beside what decoding it takes by itself."""
        text = 'Words of a long document, "quoted" here and there.\n' * (LARGE_BYTES // 256)
        body = _body(*(text[: LARGE_BYTES // 4] for _ in range(4)))
        found = self._rounds("1 MB body", list(proxies), body, 4)
        found["decode"] = {"cpu_us": round(_decode_us(body), 1)}
        return found

    def _rounds(
        self,
        what: str,
        parties: list[Proxy],
        body: bytes,
        connections: int,
        *,
        rest_us: int = 0,
        per: str = "requests",
    ) -> dict[str, Any]:
        (BUILD / "body").write_bytes(body)
        plan = self.plan
        rounds, seconds = plan.rounds, plan.seconds
        if per == "events":
            rounds, seconds = plan.stream_rounds, plan.stream_s
        taken: dict[str, list[dict[str, float]]] = {p.name: [] for p in parties}
        for n in range(rounds):
            for proxy in parties:
                if proxy.name not in taken or (n and proxy.name in SLOW):
                    continue
                try:
                    taken[proxy.name].append(self._one(proxy, connections, seconds, rest_us, per))
                except FailedError as e:
                    self.failed[f"{proxy.name} with {what}"] = str(e)
                    del taken[proxy.name]
            now = ", ".join(f"{name} {of[-1]['cpu_us']:.1f}" for name, of in taken.items())
            self.say(f"{what} {n + 1}/{rounds}: {now} us")
        return {name: _medians(of) for name, of in taken.items()}

    def _one(
        self, proxy: Proxy, connections: int, seconds: float, rest_us: int, per: str
    ) -> dict[str, float]:
        words = [self._load, str(proxy.port), str(connections), str(seconds), str(BUILD / "body")]
        words += [str(BUILD / "headers"), str(rest_us)]
        if self._cpus:
            words = ["taskset", "-c", self._cpus, *words]
        with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as load:
            assert load.stdout is not None
            if load.stdout.readline() != "ready\n":
                why = f"{proxy.name}: not every client was answered"
                raise FailedError(why)
            before, began = proxy.cpu_s(), time.monotonic()
            rss_mb = 0.0
            if per == "events":
                time.sleep(seconds / 2)
                rss_mb = proxy.rss_mb()
            said = json.loads(load.stdout.readline())
            used, took = proxy.cpu_s() - before, time.monotonic() - began
        count = said[per]
        if not count or said["errors"]:
            why = f"{proxy.name} did not keep up: {said}"
            raise FailedError(why)
        return {
            "cpu_us": used / count * 1e6,
            "per_s": count / took,
            "p50_us": said["p50_us"],
            "p99_us": said["p99_us"],
            "rss_mb": rss_mb or proxy.rss_mb(),
        }


def _body(*texts: str, stream: bool = False) -> bytes:
    messages = [{"role": "user", "content": text} for text in texts]
    asked = {"model": MODEL, "messages": messages, "temperature": 0.7, "max_tokens": 256}
    return msgspec.json.encode(asked | {"stream": True} if stream else asked)


def _medians(of: list[dict[str, float]]) -> dict[str, Any]:
    medians: dict[str, Any] = {k: round(statistics.median(o[k] for o in of), 2) for k in of[0]}
    medians["cpu_us_rounds"] = [round(o["cpu_us"], 2) for o in of]
    return medians


def _decode_us(body: bytes) -> float:
    times = []
    for _ in range(51):
        began = time.thread_time()
        decode(body)
        times.append(time.thread_time() - began)
    return statistics.median(times) * 1e6
