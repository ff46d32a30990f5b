"""Made-up NVIDIA cards in a file, and what a process with the fake library reads of them.

Answers for: the file's words, and readings one after another in one process. It may not check.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.agent.rig import ROOT

GIB = 1 << 30
UUIDS = ("GPU-aaaa", "GPU-bbbb")
PROGRAM = """
import sys
from pathlib import Path
import msgspec
import structlog
from llmgw.agent.gpu import Gpus
structlog.configure(logger_factory=structlog.PrintLoggerFactory(sys.stderr))
limit = float(sys.argv[2]) if len(sys.argv) > 2 else None
gpus = Gpus("auto", Path(sys.argv[1]), power_limit_w=limit)
for line in sys.stdin:
    print(msgspec.json.encode(msgspec.to_builtins(gpus.read()._asdict())).decode(), flush=True)
"""


class Cards:
    """Two 24 GiB cards in a file that the fake library reads again when it changes."""

    def __init__(self, path: Path, library: Path) -> None:
        self.path = path
        self.env = {"LD_LIBRARY_PATH": str(library), "FAKE_NVML_JSON": str(path)}
        self.gpus: list[dict[str, Any]] = [
            {"uuid": uuid, "mem_total": 24 * GIB, "mem_used": 0, "limit_mw": 300000, "procs": []}
            for uuid in UUIDS
        ]
        self.xids: list[tuple[int, int]] = []
        self.write()

    def write(self, **top: Any) -> None:
        new = self.path.with_suffix(".new")
        new.write_text(json.dumps({"gpus": self.gpus, "xids": self.xids, **top}))
        new.rename(self.path)

    def use(self, index: int, used: int, *procs: tuple[int, int]) -> None:
        self.gpus[index]["mem_used"] = used
        self.gpus[index]["procs"] = [{"pid": pid, "mem": mem} for pid, mem in procs]
        self.write()

    def set(self, *indexes: int, **facts: Any) -> None:
        """All of them at one moment; `None` takes a key out."""
        for index in indexes:
            card = self.gpus[index] | facts
            self.gpus[index] = {k: v for k, v in card.items() if v is not None}
        self.write()

    def lose(self, index: int = 1) -> None:
        self.set(index, error=15)

    def find(self, index: int = 1) -> None:
        self.set(index, error=None)

    def xid(self, index: int, code: int) -> None:
        """As NVML's event set tells it."""
        self.xids.append((index, code))
        self.write()

    def read(
        self,
        *steps: Callable[[], object],
        root: Path = Path("/none"),
        limit_w: float | None = None,
    ) -> list[Any]:
        """The first reading, and one after each step, all in one process."""
        env = {**os.environ, **self.env, "PYTHONPATH": str(ROOT)}
        with subprocess.Popen(
            [
                sys.executable,
                "-c",
                PROGRAM,
                str(root),
                *([] if limit_w is None else [str(limit_w)]),
            ],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env=env,
            text=True,
        ) as child:
            assert child.stdin is not None
            assert child.stdout is not None
            out = []
            for step in (lambda: None, *steps):
                step()
                child.stdin.write("read\n")
                child.stdin.flush()
                out.append(json.loads(child.stdout.readline()))
            child.stdin.close()
        return out
