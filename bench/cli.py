"""How long a command line takes beside a bare interpreter: --version, --help, status, a dry run, completions (P10).

    python -m bench.cli [ROUNDS]

Interleaved, so that a busy machine is as unfair to one as to the other; medians and their ratios. Control is a stub of
one answer a path, over real HTTP: what a control needs to answer is not what is measured here. May not judge: what is
allowed stands in performance.md, and the import-set tests (tests/cli/test_door.py) hold it down.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from scripts.ports import free_port
from tests.cli.stub import serving

ROUNDS = 25
LLMGW = [sys.executable, "-m", "llmgw"]
#: What is measured -> its words, and the ratio that P10 allows; None where it names none.
LINES: dict[str, tuple[list[str], float | None]] = {
    "bare interpreter": ([sys.executable, "-c", "pass"], None),
    "--version": ([*LLMGW, "--version"], 2.0),
    "--help": ([*LLMGW, "--help"], None),
    "status --help": ([*LLMGW, "status", "--help"], None),
    "status": ([*LLMGW, "status"], 8.0),
    "status, nobody there": ([*LLMGW, "status"], 8.0),
    "adopt --dry-run": ([*LLMGW, "adopt", "--dry-run"], None),
    "completion of a verb": (LLMGW, 7.0),
    "completion of a model": (LLMGW, 7.0),
}
STATUS: dict[str, Any] = {
    "nodes": [], "models": [], "replicas": [], "stops_pending": [], "warnings": [], "settling": None,
    "blocked": None, "catalog": None,
}  # fmt: skip
PLAN: dict[str, Any] = {
    "shards": [], "nodes": [], "actions": [], "complete": True, "disturbs": 0, "digest": "sha256:0", "exit_code": 0,
}  # fmt: skip


def environment(name: str, url: str, folder: Path) -> dict[str, str]:
    env = {k: v for k, v in os.environ.items() if not k.startswith(("LLMGW_", "PYTHON"))}
    nobody = f"http://127.0.0.1:{free_port()}"
    env |= {
        "LLMGW_CONTROL": nobody if "nobody" in name else url,
        "LLMGW_AGENT": nobody,
        "LLMGW_STATE_DIR": str(folder),
    }
    if name.startswith("completion"):
        line = "llmgw sta" if "verb" in name else "llmgw wake al"
        env |= {
            "_LLMGW_COMPLETE": "complete_bash",
            "COMP_WORDS": line,
            "COMP_CWORD": str(line.count(" ")),
        }
    return env


def main(rounds: int) -> None:
    took: dict[str, list[float]] = {name: [] for name in LINES}
    with serving() as stub, tempfile.TemporaryDirectory() as folder:
        stub.answers["GET /api/v1/status"] = STATUS
        stub.answers["GET /api/v1/plan"] = PLAN
        envs = {name: environment(name, stub.url, Path(folder)) for name in LINES}
        for turn in range(rounds + 1):
            for name, (words, _) in LINES.items():
                began = time.perf_counter()
                subprocess.run(words, env=envs[name], capture_output=True, check=False)
                if turn:  # the first fills caches
                    took[name].append(time.perf_counter() - began)
    bare = statistics.median(took["bare interpreter"])
    print(f"{'':24}  median ms    x bare  allowed")
    for name, (_, allowed) in LINES.items():
        median = statistics.median(took[name])
        limit = f"{allowed:g}x" if allowed else "-"
        print(f"{name:24}  {median * 1000:9.1f}  {median / bare:7.2f}x  {limit}")


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else ROUNDS)
