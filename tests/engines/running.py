"""Starts an engine for one test and makes sure that nothing of it is left behind.

Answers for: a free port, a child in its own session, a wait for its health, and the end of that
whole session. It may not decide which engine: scripts/engine.py does, or the fake one's flags.
"""

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import httpx

from scripts.ports import free_port

FAKE = [sys.executable, str(Path(__file__).parent / "fake_engine.py")]


class Running(NamedTuple):
    process: subprocess.Popen[str]
    client: httpx.Client
    port: int
    log: Path

    def stats(self) -> dict[str, int]:
        return dict(self.client.get("/stats").json())


@contextlib.contextmanager
def running(
    command: Sequence[str],
    folder: Path,
    *,
    env: Mapping[str, str] | None = None,
    port: int = 0,
    ready_s: float = 20.0,
) -> Iterator[Running]:
    """The engine with a --port of its own; `ready_s=0` does not wait for its /health to say 200."""
    port = port or free_port()
    log = folder / f"engine-{len(list(folder.iterdir()))}.log"
    with log.open("w") as file:
        process = subprocess.Popen(
            [*command, "--port", str(port)],
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=subprocess.STDOUT,
            env={**os.environ, **(env or {})},
            start_new_session=True,
            text=True,
        )
    with httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=20, trust_env=False) as client:
        engine = Running(process, client, port, log)
        try:
            if ready_s:
                wait_for_health(engine, ready_s)
            yield engine
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def wait_for_health(engine: Running, ready_s: float) -> None:
    give_up = time.monotonic() + ready_s
    while engine.process.poll() is None and time.monotonic() < give_up:
        with contextlib.suppress(httpx.TransportError):
            if engine.client.get("/health").status_code == 200:
                return
        time.sleep(0.01)
    state = engine.process.poll()
    msg = (
        f"not ready after {ready_s} s, exit code {state}; it said: {engine.log.read_text()[-600:]}"
    )
    raise AssertionError(msg)
