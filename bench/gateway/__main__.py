"""What the gateway costs, beside other proxies, in one run: `python -m bench.gateway [--short] [--out FOLDER]`.

HAProxy that picks by the model in the body, nginx that does not look, a bare prototype, an aiohttp pair, LiteLLM, and
llmgw with everything on, all before one engine stub of ours and under one load client of ours. Prints ratios, writes
one JSON file and the charts. Who is not installed is left out, with a word. Measures only: it asserts nothing.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import platform
import resource
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from bench.gateway import chart, proxies
from bench.gateway.proxies import BUILD, OTHERS, Proxy
from bench.gateway.scenarios import LONG, SHORT, Bench

ALL = (proxies.haproxy, proxies.nginx, proxies.prototype, proxies.aiohttp_pair, proxies.litellm)
#: Two workers, the engine and the clients: with fewer cores than that they would share.
CORES_FOR_TWO = 4
IDLE_S = 3.0


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.gateway", description=__doc__)
    parser.add_argument("--short", action="store_true", help="under three minutes")
    parser.add_argument("--only", default="", help="these alone, of P1,P2,P3,P4,P5,P11")
    parser.add_argument("--against", default="", help="names of proxies: these alone")
    parser.add_argument("--out", type=Path, default=BUILD, help="folder of the result")
    parser.add_argument("--charts", type=Path, help="folder to draw into, e.g. docs/bench")
    parser.add_argument("--install", action="store_true", help="aiohttp and LiteLLM, into build/")
    args = parser.parse_args()
    BUILD.mkdir(parents=True, exist_ok=True)
    if args.install:
        return _install()
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))  # for those that do not raise it
    began = time.monotonic()
    result = _run(args)
    result["ratios"] = ratios(result)
    result["took_s"] = round(time.monotonic() - began)
    (args.out / "gateway.json").write_text(json.dumps(result, indent=1) + "\n")
    if args.charts:
        args.charts.mkdir(parents=True, exist_ok=True)
        for name, svg in charts(result).items():
            (args.charts / name).write_text(svg)
    print(_table(result))
    return 0


def _install() -> int:
    pip = [str(OTHERS / "bin" / "pip"), "-q", "--disable-pip-version-check", "install"]
    subprocess.run([sys.executable, "-m", "venv", OTHERS], check=True)
    for what in (["aiohttp", "uvloop"], ["litellm[proxy]"]):
        if subprocess.run([*pip, *what], check=False).returncode:
            say(f"{' '.join(what)} could not be installed; it is left out")
    return 0


def _run(args: argparse.Namespace) -> dict[str, Any]:
    cpus = sorted(os.sched_getaffinity(0))
    ours, theirs = ({cpus[1]}, {cpus[0]}) if len(cpus) > 1 else (set(cpus), set(cpus))
    bench = Bench(SHORT if args.short else LONG, theirs, say)
    only = set(args.only.split(",")) - {""}
    result: dict[str, Any] = {
        "python": platform.python_version(),
        "cores": len(cpus),
        "short": args.short,
        "left_out": {},
    }
    with contextlib.ExitStack() as stack:
        stub = proxies.engine(theirs)
        stack.callback(stub.stop)
        stub.name = "direct"
        running = {p.name: p for p in _started(stub.port, ours, args.against, stack, result)}
        if "llmgw" not in running:
            raise SystemExit(result["left_out"]["llmgw"])
        idle = running["llmgw"]
        wanted = lambda name: not only or name in only  # noqa: E731

        def some(*names: str) -> list[Proxy]:
            return [running[n] for n in names if n in running]

        if wanted("P11"):
            before = idle.cpu_s()
            time.sleep(IDLE_S)
            used = (idle.cpu_s() - before) / IDLE_S
            result["P11"] = {"rss_mb": round(idle.rss_mb(), 1), "idle_cpu": round(used, 5)}
        if wanted("P1"):
            names = ("haproxy", "nginx", "prototype", "aiohttp", "litellm", "llmgw")
            result["P1"] = bench.small(stub, some(*names))
        if wanted("P2"):
            result["P2"] = bench.latency(stub, some("haproxy", "nginx", "prototype", "llmgw"))
        if wanted("P4"):
            result["P4"] = bench.large(some("nginx", "prototype", "llmgw"))
        if wanted("P3"):
            names = ("haproxy", "nginx", "prototype", "aiohttp", "llmgw")
            result["P3"] = bench.streams(stub, some(*names))
        if wanted("P5"):
            result["P5"] = _two(bench, stub, stack, cpus, result)
    result["left_out"] |= bench.failed
    return result


def _started(
    engine: int, cpus: set[int], against: str, stack: contextlib.ExitStack, result: dict[str, Any]
) -> Iterator[Proxy]:
    chosen = set(against.split(",")) - {""}
    for make in (*ALL, proxies.llmgw):
        if chosen and make is not proxies.llmgw and make.__name__ not in chosen:
            continue
        try:
            made = make(engine, cpus)
        except proxies.NotStartedError as e:
            made = str(e)
        if isinstance(made, str):
            say(f"left out: {made}")
            result["left_out"][make.__name__] = made
            continue
        stack.callback(made.stop)
        yield made


def _two(
    bench: Bench,
    stub: Proxy,
    stack: contextlib.ExitStack,
    cpus: list[int],
    result: dict[str, Any],
) -> dict[str, Any]:
    """P5: throughput of two workers over that of one; on too few cores only what each request costs them."""
    free = len(cpus) >= CORES_FOR_TWO
    on = set(cpus[1:3]) if free else set()
    pair = [proxies.llmgw(stub.port, on, workers) for workers in (1, 2)]
    both = [p for p in pair if isinstance(p, Proxy)]
    both[0].name = "llmgw-1"
    for proxy in both:
        stack.callback(proxy.stop)
    found = bench.small(stub, both)
    if not free:
        why = f"{len(cpus)} cores are too few for two workers, the engine and the clients"
        result["left_out"]["P5"] = f"{why}: only CPU per request is compared"
        say(f"left out: P5's throughput: {why}")
    return found


def ratios(result: dict[str, Any]) -> dict[str, float]:
    """Goals of performance.md, as they are worded there: what is there to be compared."""
    found: dict[str, float] = {}

    def cpu(goal: str, name: str, field: str = "cpu_us") -> float | None:
        value: float | None = result.get(goal, {}).get(name, {}).get(field)
        return value

    def ratio(name: str, over: float | None, under: float | None) -> None:
        if over is not None and under:
            found[name] = round(over / under, 3)

    for other in ("haproxy", "prototype", "aiohttp", "litellm"):
        ratio(f"P1 requests per CPU second, llmgw / {other}", cpu("P1", other), cpu("P1", "llmgw"))
    for other in ("nginx", "haproxy", "prototype"):
        added = cpu("P2", other, "added_us")
        ratio(f"P2 added latency, llmgw / {other}", cpu("P2", "llmgw", "added_us"), added)
        ratio(f"P3 CPU per event, llmgw / {other}", cpu("P3", "llmgw"), cpu("P3", other))
    ratio("P4 CPU of 1 MB, llmgw / prototype", cpu("P4", "llmgw"), cpu("P4", "prototype"))
    ratio("P4 CPU of 1 MB, llmgw / bare decode", cpu("P4", "llmgw"), cpu("P4", "decode"))
    if result["cores"] >= CORES_FOR_TWO:
        two, one = cpu("P5", "llmgw-2", "per_s"), cpu("P5", "llmgw-1", "per_s")
        ratio("P5 requests per second, two workers / one", two, one)
    ratio("P5 CPU per request, two workers / one", cpu("P5", "llmgw-2"), cpu("P5", "llmgw-1"))
    if cpu("P3", "llmgw") is not None:
        found["P3 RSS with 1,000 streams, MB"] = result["P3"]["llmgw"]["rss_mb"]
    if "P11" in result:
        found["P11 idle RSS, MB"] = result["P11"]["rss_mb"]
        found["P11 idle CPU, of a core"] = result["P11"]["idle_cpu"]
    return found


def charts(result: dict[str, Any]) -> dict[str, str]:
    drawn = {
        "P1": ("small.svg", "CPU per small JSON request, 64 connections", "cpu_us", "µs"),
        "P2": ("latency.svg", "Added latency at low load, median", "added_us", "µs"),
        "P3": ("streams.svg", "CPU per event, 1,000 streams of 20 a second", "cpu_us", "µs"),
        "P4": ("large.svg", "CPU per request with a body of 1 MB", "cpu_us", "µs"),
    }
    out = {}
    for goal, (file, title, field, unit) in drawn.items():
        of = {n: v[field] for n, v in result.get(goal, {}).items() if n != "direct"}
        of.pop("litellm", None)  # three hundred times as long: its bar would be all there is
        if of:
            out[file] = chart.bars(title, unit, sorted(of.items(), key=lambda row: row[1]))
    return out


def _table(result: dict[str, Any]) -> str:
    lines = []
    for goal in ("P1", "P2", "P3", "P4", "P5"):
        for name, of in result.get(goal, {}).items():
            facts = "  ".join(f"{k}={v}" for k, v in of.items() if not isinstance(v, list))
            lines.append(f"{goal} {name:<10} {facts}")
    lines += [f"{value:>8}  {name}" for name, value in result["ratios"].items()]
    lines += [f"left out: {why}" for why in result["left_out"].values()]
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
