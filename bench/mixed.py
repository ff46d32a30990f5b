"""Hours of everything at once: every kind of client, while parts are killed and replaced.

    python -m bench.mixed [MINUTES] [--workers N]        60 minutes and one gateway process by default

Control is killed every 20 s, with a longer life now and then; the gateway upgraded every minute (`--takeover`); an
engine killed every 45 s; two models swap for one place; all over real processes with fake engines. Prints one JSON
document; the exit code is 0 where no request failed but those of killed engines, nothing stayed in flight, nothing was
left open, and memory stayed flat. It may not judge by anything that a client cannot see.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import random
import sys
import tempfile
from pathlib import Path
from typing import Any

import yaml

from bench.mixed_clients import TOKENS, Load, Tally
from bench.mixed_parts import Census, Json, Trouble, census, left
from scripts.fleet import Fleet, wait_for
from tests.engines.running import FAKE

CONTROL_S, GATEWAY_S, ENGINE_S = (20.0, 20.0, 20.0, 80.0), (60.0,), (45.0,)
LOOK_S = (5.0,)
WORKERS, LONG_SOCKETS, SWAPS = 12, 3, 2
#: Idle clients of a gateway that was replaced are let go after 20 s.
REST_S = 60.0
MODELS = ("steady", "calm")


def catalog(path: Path) -> Path:
    def model(least: int, most: int, *flags: str, cores: float = 0, **scaling: Any) -> Json:
        command = [*FAKE, "--port", "${port}", "--tokens", str(TOKENS), *flags]
        profile: Json = {"name": "main", "command": command, "host_memory": "64MiB"}
        if cores:
            profile["cpu_cores"] = cores
        more = {"min": least, "max": most, **scaling}
        return {"scaling": more, "profiles": [profile]}

    every_core = float(os.cpu_count() or 1)
    swapped = {"min_up": "0s", "idle_timeout": "1h", "yield_after": "2s"}
    models = {
        "steady": model(2, 2, "--token-interval-s", "0.02"),
        "calm": model(1, 1),
        "asleep": model(0, 1, "--load-s", "0.5", idle_timeout="3s", min_up="1s"),
        "left": model(0, 1, "--load-s", "0.3", cores=every_core, **swapped),
        "right": model(0, 1, "--load-s", "0.3", cores=every_core, **swapped),
    }
    # Its engines are killed all the time: none is to be given up for that, nor waited for. With half an hour to look
    # back over, each kill doubles the pause, and after twenty minutes neither replica was there.
    defaults = {"restart": {"max": 10_000, "window": "1m", "backoff": "0.2s"}}
    path.write_text(yaml.safe_dump({"version": 1, "defaults": defaults, "models": models}))
    return path


async def storm(fleet: Fleet, minutes: float, tally: Tally, trouble: Trouble) -> None:
    port = int(fleet.urls["gateway"].rpartition(":")[2])
    loads = [Load(port, tally, random.Random(n)) for n in range(WORKERS + LONG_SOCKETS + SWAPS)]
    async with asyncio.TaskGroup() as group:
        works = [load.run() for load in loads[:WORKERS]]
        works += [load.long_sockets() for load in loads[WORKERS : WORKERS + LONG_SOCKETS]]
        works += [load.swaps() for load in loads[WORKERS + LONG_SOCKETS :]]
        running = [group.create_task(work) for work in works]
        troubles = [
            group.create_task(trouble.every(CONTROL_S, trouble.control)),
            group.create_task(trouble.every(GATEWAY_S, trouble.gateway)),
            group.create_task(trouble.every(ENGINE_S, trouble.engine)),
            group.create_task(trouble.every(LOOK_S, trouble.look)),
        ]
        await asyncio.sleep(minutes * 60)
        for task in troubles:
            task.cancel()
        for load in loads:
            load.over = True
        await asyncio.wait(running)


def at_rest(fleet: Fleet, first: Census, workers: int) -> list[str]:
    """What is still left a while after the last request."""
    if "control" not in fleet.processes:  # it was between two lives
        fleet.start("control")
    with contextlib.suppress(TimeoutError):
        wait_for(lambda: not left(fleet, first, workers), "nothing left", REST_S)
    return left(fleet, first, workers)


def measured(minutes: float, workers: int, folder: Path) -> Json:
    fleet = Fleet(folder, catalog(folder / "catalog.yaml"), settle_timeout="5s")
    fleet.more["control"] = ["--workers", str(workers)]
    tally = Tally()
    trouble = Trouble(fleet, tally, random.Random(1), workers)
    try:
        fleet.start("control", "agent")
        for name in MODELS:
            fleet.ready(name)
            fleet.served(name)
        first = census(fleet)
        asyncio.run(storm(fleet, minutes, tally, trouble))
        over = at_rest(fleet, first, workers)
        last = census(fleet)
        flat, memory = trouble.flat()
    finally:
        fleet.close()
        for old in trouble.gateways:
            if old.poll() is None:
                old.kill()
            old.wait()
    return {
        "minutes": minutes,
        "workers": workers,
        "requests": sum(tally.done.values()),
        "of": dict(tally.done),
        "failed": len(tally.failed),
        "failures": tally.failed[:20],
        "of_killed_engines": len(tally.excused),
        "excused": tally.excused[:20],
        "left": over,
        "trouble": dict(trouble.count),
        "memory": memory,
        "open": {name: [first.get(name), held] for name, held in last.items()},
        "ok": not tally.failed and not over and flat,
    }


def main() -> int:
    parser = argparse.ArgumentParser(prog="bench.mixed")
    parser.add_argument("minutes", nargs="?", type=float, default=60.0)
    parser.add_argument("--workers", type=int, default=1, help="gateway processes")
    parser.add_argument("--keep", type=Path, help="folder for the logs, kept")
    given = parser.parse_args()
    with contextlib.ExitStack() as stack:
        folder = given.keep or Path(stack.enter_context(tempfile.TemporaryDirectory()))
        folder.mkdir(parents=True, exist_ok=True)
        found = measured(given.minutes, given.workers, folder)
    print(json.dumps(found, indent=2))
    return 0 if found["ok"] else 1


if __name__ == "__main__":
    sys.exit(main())
