"""Figures of a real GPU for docs/gpu-notes.md, through the agent's own reader. No part of the product.

    .venv/bin/python scripts/gpu_facts.py read              what is read, and what a reading costs
    .venv/bin/python scripts/gpu_facts.py kill UUID -- CMD…  CMD on that GPU alone; once its memory is steady, SIGKILL;
                                                            where it computed, and when the driver forgot it

Nothing else may start or end on the GPU meanwhile. May not signal anything but what it started.
"""

from __future__ import annotations

import json
import os
import signal
import statistics
import subprocess
import sys
import time

import msgspec

from llmgw.agent.gpu import Gpus, Reading
from llmgw.agent.gpu.visible import environment

MIB = 1 << 20
#: A sample each, and how many alike are steady; what counts as having grown, and as being back.
SAMPLE_S, STEADY, GREW_BYTES, BACK_BYTES = 0.05, 40, 64 * MIB, 16 * MIB
LIMIT_S = 600.0


def read() -> int:
    gpus = Gpus("auto")
    began = time.perf_counter()
    reading = gpus.read()
    first_ms = (time.perf_counter() - began) * 1e3
    costs = []
    for _ in range(50):
        began = time.perf_counter()
        gpus.read()
        costs.append((time.perf_counter() - began) * 1e3)
    print(
        json.dumps(
            msgspec.to_builtins(reading._asdict() | {"blind": sorted(reading.blind)}), indent=1
        )
    )
    spread = f"{min(costs):.2f} / {statistics.median(costs):.2f} / {max(costs):.2f}"
    print(f"first reading {first_ms:.1f} ms; 50 more, min / median / max: {spread} ms")
    return 0 if reading.gpus else 1


def used(reading: Reading, uuid: str) -> int:
    found = [g.memory_used_bytes for g in reading.gpus or () if g.uuid == uuid]
    if not found:
        sys.exit(f"there is no GPU {uuid} here: {reading.error or 'see read'}")
    return found[0]


def grown(gpus: Gpus, uuid: str, before: int, child: subprocess.Popen[bytes]) -> int:
    """Its memory, once it has grown and then stayed alike."""
    last, alike, end = before, 0, time.monotonic() + LIMIT_S
    while alike < STEADY:
        time.sleep(SAMPLE_S)
        now = used(gpus.read(), uuid)
        alike = alike + 1 if now == last and now - before > GREW_BYTES else 0
        last = now
        if child.poll() is not None:
            sys.exit(f"it ended by itself with {child.returncode}")
        if time.monotonic() > end:
            sys.exit(f"its memory did not grow and settle within {LIMIT_S:g} s")
    return last


def back(gpus: Gpus, uuid: str, before: int, pids: set[int]) -> tuple[float, float]:
    """Seconds from the signal until none of the pids is listed, and until the memory is as before."""
    began, unlisted_s, free_s = time.monotonic(), 0.0, 0.0
    while not (unlisted_s and free_s):
        reading = gpus.read()
        now = time.monotonic() - began
        if not unlisted_s and not pids & {u.pid for u in reading.uses}:
            unlisted_s = now
        if not free_s and used(reading, uuid) - before < BACK_BYTES:
            free_s = now
        if now > LIMIT_S:
            sys.exit(f"its memory was not back after {LIMIT_S:g} s")
    return unlisted_s, free_s


def kill(uuid: str, command: list[str]) -> int:
    gpus = Gpus("auto")
    first = gpus.read()
    before, known = used(first, uuid), {u.pid for u in first.uses}
    env = {**os.environ, **environment((uuid,), first.gpus or ())}
    with subprocess.Popen(command, env=env, start_new_session=True) as child:
        try:
            most = grown(gpus, uuid, before, child)
            uses = [u for u in gpus.read().uses if u.pid not in known]
        finally:
            os.killpg(child.pid, signal.SIGKILL)
        unlisted_s, free_s = back(gpus, uuid, before, {u.pid for u in uses})
    for use in uses:
        print(f"pid {use.pid} held {use.memory_bytes / MIB:.0f} MiB of {use.gpu}")
    print(f"GPU {uuid}: {before / MIB:.0f} MiB in use before, {most / MIB:.0f} MiB at the most")
    print(f"after SIGKILL: not listed any more {unlisted_s:.3f} s, memory back {free_s:.3f} s")
    pinned = {u.gpu for u in uses} == {uuid}
    print(f"pinned by its uuid: {'yes' if pinned else 'NO'}")
    return 0 if pinned else 1


def main(words: list[str]) -> int:
    match words:
        case ["read"]:
            return read()
        case ["kill", uuid, "--", *command] if command:
            return kill(uuid, command)
        case _:
            print(__doc__)
            return 2


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
