"""Starts `llmgw` over and over without reading its code from disk each time, which is most of what a start costs.

A process of its own has imported everything and forks; the child takes the words, environment and log it is given and
goes the whole way of the command line, or of `tests.agent.agent_program`. Run as a program this is that process, as a
module its client. It may not be used where being executed anew is what a test is about.
"""

import atexit
import contextlib
import gc
import importlib
import json
import os
import pkgutil
import select
import signal
import subprocess
import sys
import tempfile
import threading
import traceback
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from queue import SimpleQueue
from typing import Any

AGENT = "tests.agent.agent_program"
ROOT = Path(__file__).resolve().parents[1]
#: How soon a death is told.
TICK_S = 0.01


class Child:
    """As much of `subprocess.Popen` as a fleet needs."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self.returncode: int | None = None
        self.over = threading.Event()

    def poll(self) -> int | None:
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        if not self.over.wait(timeout):
            msg = f"pid {self.pid}"
            raise subprocess.TimeoutExpired(msg, timeout or 0)
        assert self.returncode is not None
        return self.returncode

    def send_signal(self, number: int) -> None:
        if self.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, number)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


class Nursery:
    def __init__(self, **env: str) -> None:
        """`env`: what only counts at the start of a process, LD_LIBRARY_PATH that is."""
        self._process = subprocess.Popen(
            [sys.executable, "-m", __name__],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={**os.environ, **env},
            cwd=ROOT,
        )
        self._lock = threading.Lock()
        self._born: SimpleQueue[Child] = SimpleQueue()
        self._children: dict[int, Child] = {}
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def run(
        self, words: list[str], env: Mapping[str, str], timeout: float
    ) -> subprocess.CompletedProcess[str]:
        """As `subprocess.run` with its output captured."""
        with tempfile.TemporaryDirectory() as folder:
            out, err = Path(folder) / "out", Path(folder) / "err"
            child = self.start(words, env, out, err)
            try:
                code = child.wait(timeout)
            except subprocess.TimeoutExpired:
                child.kill()
                raise
            return subprocess.CompletedProcess(words, code, out.read_text(), err.read_text())

    def start(
        self, words: list[str], env: Mapping[str, str], log: Path, err: Path | None = None
    ) -> Child:
        """`llmgw` with these words; `AGENT` is the first of those that are for the agent alone."""
        log.touch(0o600)  # it is there from now on, as where a shell opens it
        order = {"words": words, "env": dict(env), "log": str(log), "err": str(err or log)}
        order["cwd"] = str(Path.cwd())
        with self._lock:
            assert self._process.stdin is not None
            self._process.stdin.write(json.dumps(order).encode() + b"\n")
            self._process.stdin.flush()
            return self._born.get(timeout=60)

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            said = json.loads(line)
            if "born" in said:
                child = self._children[said["born"]] = Child(said["born"])
                self._born.put(child)
            else:
                child = self._children.pop(said["died"])
                child.returncode = said["code"]
                child.over.set()

    def close(self) -> None:
        """And all that it started, engines and gateways left out."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        self._process.wait()
        self._reader.join()
        self._process.stdout.close()


@cache
def nursery() -> Nursery:
    """One for all tests of this process."""
    made = Nursery()
    atexit.register(made.close)
    return made


def forked(env: Mapping[str, str]) -> bool:
    """Whether it may be: the dynamic linker reads its variables when a program is executed."""
    return not any(name.startswith("LD_") for name in env)


def serve() -> None:
    importlib.import_module("llmgw.lean").load()
    ours = importlib.import_module("llmgw").__path__
    for name in (AGENT, *(m.name for m in pkgutil.walk_packages(ours, "llmgw."))):
        importlib.import_module(name)
    gc.freeze()
    left, alive = b"", set[int]()
    while True:
        ready, _, _ = select.select([0], [], [], TICK_S if alive else None)
        data = os.read(0, 1 << 20) if ready else b""
        if ready and not data:  # closed, or its client was killed
            for pid in alive:
                os.kill(pid, signal.SIGKILL)
            return
        *orders, left = (left + data).split(b"\n")
        for order in orders:
            pid = os.fork()
            if not pid:
                become(json.loads(order))
            alive.add(pid)
            tell(born=pid)
        while alive:
            pid, status = os.waitpid(-1, os.WNOHANG)
            if not pid:
                break
            alive.discard(pid)
            tell(died=pid, code=os.waitstatus_to_exitcode(status))


def tell(**said: int) -> None:
    os.write(1, json.dumps(said).encode() + b"\n")


def become(order: dict[str, Any]) -> None:
    """`llmgw` with these words, in a session of its own; never returns."""
    os.setsid()
    os.chdir(order["cwd"])
    log, err = (
        os.open(order[name], os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        for name in ("log", "err")
    )
    null = os.open(os.devnull, os.O_RDONLY)
    for there, fd in ((null, 0), (log, 1), (err, 2)):
        os.dup2(there, fd)
        os.close(there)
    os.environ.clear()
    os.environ.update(order["env"])
    sys.argv = words = ["llmgw", *order["words"]]
    part = "agent" if words[1] == AGENT else words[1]
    code = 1
    try:
        # The one module that looks at the environment when it is imported.
        if part in {"control", "agent"}:
            importlib.reload(importlib.import_module(f"llmgw.{part}.crash"))
        if words[1] == AGENT:
            del words[0]
        code = importlib.import_module(AGENT if words[0] == AGENT else "llmgw.__main__").main()
    except SystemExit as e:
        code = e.code if isinstance(e.code, int) else 1
    except Exception:  # noqa: BLE001 - it is said as an interpreter says it
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


if __name__ == "__main__":
    serve()
