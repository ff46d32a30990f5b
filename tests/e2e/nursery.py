"""Starts `llmgw` over and over without reading its code from disk each time, which is most of what a start costs.

A process of its own has imported everything and forks; the child takes the words, environment and log it is given and
goes the whole way of the command line. Run as a program this is that process, as a module its client. It may not be
used where being executed anew is what a test is about.
"""

import contextlib
import importlib
import json
import os
import select
import signal
import subprocess
import sys
import threading
from pathlib import Path
from queue import SimpleQueue
from typing import Any

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

    def wait(self, timeout_s: float | None = None) -> int:
        if not self.over.wait(timeout_s):
            msg = f"pid {self.pid} lives"
            raise TimeoutError(msg)
        assert self.returncode is not None
        return self.returncode

    def send_signal(self, number: int) -> None:
        if self.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, number)

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
        )
        self._lock = threading.Lock()
        self._born: SimpleQueue[Child] = SimpleQueue()
        self._children: dict[int, Child] = {}
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def start(self, words: list[str], env: dict[str, str], log: Path) -> Child:
        order = {"words": words, "env": env, "log": str(log)}
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


def serve() -> None:
    for name in ("llmgw.agent.run", "llmgw.cli.daemons", "llmgw.cli.log", "llmgw.control.main"):
        importlib.import_module(name)
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
    log = os.open(order["log"], os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    null = os.open(os.devnull, os.O_RDONLY)
    for there, fd in ((null, 0), (log, 1), (log, 2)):
        os.dup2(there, fd)
    os.close(log)
    os.close(null)
    os.environ.clear()
    os.environ.update(order["env"])
    sys.argv = ["llmgw", *order["words"]]
    code = 1
    try:
        # The one module that looks at the environment when it is imported.
        importlib.reload(importlib.import_module(f"llmgw.{order['words'][0]}.crash"))
        code = importlib.import_module("llmgw.__main__").main()
    except SystemExit as e:
        code = e.code if isinstance(e.code, int) else 1
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


if __name__ == "__main__":
    serve()
