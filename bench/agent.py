"""What an agent costs that owns fifty engines: memory, CPU while nothing changes, and its re-attachment after a kill.

`python -m bench.agent [ENGINES]` prints figures and a JSON result. Real agent (`llmgw agent`), real engine processes
(the fake one), a control that only listens. Re-attachment is from exec to the registration that names every engine; it
is set against an interpreter that reads stat, environ and cmdline of the same processes: a bare one, and one that
imports the agent's modules, as P7 has it; medians of interleaved rounds. Measures only: it asserts nothing.
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
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from typing_extensions import override

from scripts.ports import free_port
from tests.agent.rig import ROOT, Rig, until

#: What any agent must read of its engines to know them again.
READS = "stat", "environ", "cmdline"
BARE = "import sys; [open(f'/proc/{p}/{n}','rb').read() for p in sys.argv[1:] for n in %r]"
#: Two heartbeats: what a start leaves to do is done.
SETTLED_S = 10.0
WITH_MODULES = (
    "from llmgw import lean; lean.load(); "
    "import llmgw.cli.daemons, llmgw.cli.log, llmgw.agent.run; "
)


class Bench(Rig):
    """A rig whose agent is the real command."""

    @override
    def start_agent(self, crash_at: str = "", wrap: Sequence[str] = (), **env: str) -> Rig:
        del crash_at, wrap, env  # a plain agent, as anybody starts it
        self.logs += 1
        given = {"control": self.control.url, "node": "box1", "state-dir": str(self.state_dir)}
        given |= {"listen": self.settings["listen"], "gpus": "none"}
        words = [w for name, value in given.items() for w in (f"--{name}", value)]
        with self.log_path().open("w") as log:
            self.agent = subprocess.Popen(
                [sys.executable, "-m", "llmgw", "agent", *words],
                cwd=ROOT,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                text=True,
            )
        return self

    def pid(self) -> int:
        assert self.agent is not None
        return self.agent.pid


def cpu_s(pid: int) -> float:
    """What it used so far, in user and system time."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def rss_mib(pid: int) -> float:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    kib = next(line.split()[1] for line in lines if line.startswith("VmRSS:"))
    return int(kib) / 1024


def all_ready(rig: Rig, engines: int) -> None:
    def there() -> bool:
        states = [s["state"] for s in rig.control.shards.values()]
        return states.count("ready") == engines

    rig.control.wait(there, f"{engines} engines ready", timeout_s=300)


def idle(rig: Bench, seconds: float) -> dict[str, float]:
    """Nothing changes: heartbeats, health probes and looks at /proc only."""
    began, used = time.monotonic(), cpu_s(rig.pid())
    time.sleep(seconds)
    percent = 100 * (cpu_s(rig.pid()) - used) / (time.monotonic() - began)
    return {"rss_mib": round(rss_mib(rig.pid()), 1), "idle_cpu_percent": round(percent, 2)}


def again(rig: Bench) -> float:
    """From exec to the registration with every engine in it, all of them the same processes."""
    before = {s["shard"]: s["pid"] for s in rig.control.shards.values()}
    count = len(rig.control.registers) + 1
    rig.kill9()
    began = time.monotonic()
    rig.start_agent().registered(count)
    took = time.monotonic() - began
    after = {s["shard"]: s["pid"] for s in rig.control.registers[-1]["shards"]}
    assert after == before, "an engine was lost or doubled: the figure would mean nothing"
    return took


def reads(pids: list[int], first: str) -> float:
    began = time.monotonic()
    code = first + BARE % (READS,)
    subprocess.run([sys.executable, "-c", code, *map(str, pids)], cwd=ROOT, check=True)
    return time.monotonic() - began


def reattach(rig: Bench, rounds: int) -> dict[str, float]:
    pids = [s["pid"] for s in rig.control.shards.values()]
    times: dict[str, list[float]] = {"agent": [], "bare": [], "modules": []}
    for _ in range(rounds):
        times["agent"].append(again(rig))
        times["bare"].append(reads(pids, ""))
        times["modules"].append(reads(pids, WITH_MODULES))
    agent, bare, modules = (statistics.median(times[k]) for k in ("agent", "bare", "modules"))
    return {
        "reattach_ms": round(agent * 1000),
        "bare_reads_ms": round(bare * 1000),
        "modules_reads_ms": round(modules * 1000),
        "ratio_bare": round(agent / bare, 2),
        "ratio_modules": round(agent / modules, 2),
    }


def measure(folder: Path, engines: int, seconds: float, rounds: int) -> dict[str, Any]:
    rig = Bench(folder)
    try:
        rig.start_agent().registered()
        began = time.monotonic()
        for n in range(engines):
            rig.start(n, port=free_port())
        all_ready(rig, engines)
        found: dict[str, Any] = {
            "engines": engines,
            "start_all_s": round(time.monotonic() - began, 1),
        }
        time.sleep(SETTLED_S)
        found |= idle(rig, seconds)
        found |= reattach(rig, rounds)
        time.sleep(SETTLED_S)
        return found | {f"adopted_{k}": v for k, v in idle(rig, seconds).items()}
    finally:
        pids = rig.engine_pids()
        rig.close()
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        until(lambda: not rig.engine_pids(), "the engines' end")


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.agent")
    parser.add_argument("engines", nargs="?", type=int, default=50)
    parser.add_argument("--seconds", type=float, default=20.0)
    parser.add_argument("--rounds", type=int, default=7)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        found = measure(Path(folder), args.engines, args.seconds, args.rounds)
    sys.stderr.write("".join(f"{name:24} {value}\n" for name, value in found.items()))
    sys.stdout.write(json.dumps({"agent": found}) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
