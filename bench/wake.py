"""From request to first token on a model that sleeps, and on one that has to make another go (P9).

`python -m bench.wake [ROUNDS] [--json FILE]`: real control, gateway, agent and llama-server. Against it stands what the
engine takes by itself: the same command spawned here, asked as soon as it is ready, to its first token; and for a swap
the other one ended first, as one does it by hand. Interleaved rounds of one run, medians. Measures only: it asserts
nothing.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import httpx

from scripts import engine
from scripts.fleet import Fleet, wait_for
from scripts.ports import free_port
from tests.engines.tiny_gguf import write

#: How often an engine that was spawned by hand is asked whether it is ready.
ASK_S = 0.005
#: After its start on an inventory that is new control takes every replica for busy so long (`core.idle.unsure`).
QUIET_S = 62.0
#: How long one that was told to end is waited for.
PATIENCE_S = 5.0
ARGS = ["-t", "1", "-np", "1", "-c", "1024", "--no-warmup"]
Json = dict[str, Any]


class Model(NamedTuple):
    name: str
    weights: Path


def command(model: Model, host: str, port: str) -> list[str]:
    base = engine.llama_server_command()
    return [*base, "--model", str(model.weights), "--host", host, "--port", port, *ARGS]


def catalog(path: Path, models: list[Model]) -> Path:
    """Each takes all cores of the box, so that no two fit together."""
    cores = os.cpu_count() or 1
    lines = ["version: 1", "models:"]
    for m in models:
        words = json.dumps(command(m, "${host}", "${port}"))
        profile = f"{{name: cpu, command: {words}, cpu_cores: {cores}}}"
        scaling = "{min: 0, idle_timeout: 1h, min_up: 0s}"
        lines.append(f"  {m.name}: {{scaling: {scaling}, profiles: [{profile}]}}")
    path.write_text("\n".join(lines) + "\n")
    return path


def first_token_s(http: httpx.Client, url: str, model: str) -> float:
    """When the first piece of an answer was there, on the clock of `time.monotonic`."""
    body = {
        "model": model,
        "messages": [{"role": "user", "content": "count"}],
        "stream": True,
        "max_tokens": 4,
    }
    with http.stream("POST", f"{url}/v1/chat/completions", json=body) as answer:
        answer.raise_for_status()
        for line in answer.iter_lines():
            if line.startswith("data: {") and '"content":"' in line.replace(" ", ""):
                return time.monotonic()
            if "error" in line:
                raise RuntimeError(line)
    message = f"{model} answered nothing"
    raise RuntimeError(message)


class ByHand:
    """Engines started here, one at a time."""

    def __init__(self, http: httpx.Client) -> None:
        self.http = http
        self.process: subprocess.Popen[bytes] | None = None

    def start(self, model: Model) -> float:
        """Seconds from the spawn to the first token."""
        port = free_port()
        url, began = f"http://127.0.0.1:{port}", time.monotonic()
        self.process = subprocess.Popen(
            command(model, "127.0.0.1", str(port)),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        while not self._ready(url):
            time.sleep(ASK_S)
        return first_token_s(self.http, url, model.name) - began

    def _ready(self, url: str) -> bool:
        with contextlib.suppress(httpx.HTTPError):
            return self.http.get(f"{url}/health", timeout=2).status_code == httpx.codes.OK
        return False

    def stop(self) -> None:
        if self.process is not None:
            self.process.send_signal(signal.SIGTERM)
            try:
                self.process.wait(PATIENCE_S)
            except subprocess.TimeoutExpired:  # now and then one hears it and never ends
                self.process.kill()
                self.process.wait()
            self.process = None

    def swap(self, model: Model) -> float:
        began = time.monotonic()
        self.stop()
        return time.monotonic() - began + self.start(model)


class Woken:
    """The same by llmgw."""

    def __init__(self, fleet: Fleet, http: httpx.Client) -> None:
        self.fleet = fleet
        self.http = http

    def ask(self, model: Model) -> float:
        began = time.monotonic()
        return first_token_s(self.http, self.fleet.urls["gateway"], model.name) - began

    def stop(self, model: Model) -> None:
        url = f"{self.fleet.urls['control']}/api/v1/models/{model.name}/stop"
        self.http.post(url, json={}).raise_for_status()
        wait_for(lambda: not self.fleet.engines(), f"the end of {model.name}")
        wait_for(lambda: not (self.fleet.status() or {"replicas": [1]})["replicas"], "its record")


def wakes(models: list[Model], hand: ByHand, woken: Woken, rounds: int) -> Json:
    found: Json = {}
    for model in models:
        alone, through = [], []
        for _ in range(rounds + 1):
            alone.append(hand.start(model))
            hand.stop()
            through.append(woken.ask(model))
            woken.stop(model)
        found[f"wake {model.name}"] = compared(alone[1:], through[1:])  # the first one fills caches
    return found


def swaps(pairs: list[tuple[Model, Model]], hand: ByHand, woken: Woken, rounds: int) -> Json:
    found: Json = {}
    for one, other in pairs:
        alone, through = [], []
        for _ in range(rounds):
            hand.start(one)
            alone.append(hand.swap(other))
            hand.stop()
            woken.ask(one)
            through.append(woken.ask(other))
            woken.stop(other)
        found[f"swap {one.name} for {other.name}"] = compared(alone, through)
    return found


def compared(alone: list[float], through: list[float]) -> Json:
    by_hand, by_llmgw = statistics.median(alone), statistics.median(through)
    return {
        "by_hand_s": round(by_hand, 4),
        "llmgw_s": round(by_llmgw, 4),
        "ratio": round(by_llmgw / by_hand, 3),
        "rounds": len(alone),
    }


def models_in(folder: Path) -> list[Model]:
    found = [Model(n, write(folder / f"{n}.gguf", n)) for n in ("tiny-a", "tiny-b")]
    with contextlib.suppress(FileNotFoundError):
        found.append(Model("smollm2", engine.model_path()))
    return found


def measured(folder: Path, rounds: int) -> Json:
    models = models_in(folder)
    fleet = Fleet(folder, catalog(folder / "catalog.yaml", models), settle_timeout="1s")
    http = httpx.Client(timeout=120, trust_env=False)
    hand, woken = ByHand(http), Woken(fleet, http)
    try:
        fleet.start("control", "agent")
        wait_for(lambda: fleet.gateway_pid() and (fleet.status() or {}).get("nodes"), "a fleet")
        began = time.monotonic()
        for m in models:
            wait_for(lambda m=m: _known(fleet, m.name), m.name)  # type: ignore[misc]
        found = wakes([models[0], *models[2:]], hand, woken, rounds)
        time.sleep(max(QUIET_S - (time.monotonic() - began), 0.0))
        pairs = [(models[0], models[1]), *((m, models[0]) for m in models[2:])]
        pairs += [(b, a) for a, b in pairs[1:]]
        return found | swaps(pairs, hand, woken, rounds)
    finally:
        hand.stop()
        fleet.close()
        http.close()


def _known(fleet: Fleet, model: str) -> bool:
    with contextlib.suppress(httpx.HTTPError):
        return (
            fleet.http.get(f"{fleet.urls['gateway']}/v1/models/{model}").status_code
            == httpx.codes.OK
        )
    return False


def main(words: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="bench.wake", description=__doc__)
    parser.add_argument("rounds", nargs="?", type=int, default=5)
    parser.add_argument("--json", type=Path, help="write the result there too")
    given = parser.parse_args(words)
    call: Callable[[Path, int], Json] = measured
    with tempfile.TemporaryDirectory(prefix="llmgw-wake-") as folder:
        found = call(Path(folder), given.rounds)
    for what, row in found.items():
        print(
            f"{what:<24} by hand {row['by_hand_s']:.3f} s, llmgw {row['llmgw_s']:.3f} s: "
            f"{row['ratio']:.2f}x (goal 1.10x, {row['rounds']} rounds)"
        )
    text = json.dumps(
        {"schema": "llmgw.bench.wake/1", "engine": engine.llama_server().why, **found}
    )
    print(text)
    if given.json:
        given.json.write_text(text + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
