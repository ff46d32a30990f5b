"""The real llama-server with a tiny model, as tests use it.

Answers for: the command line that serves the tiny model on this box, or a skip that says why there
is none. It may not choose the server: scripts/engine.py does, for the demo too.
"""

import contextlib
import os
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from llmgw.agent.ports import listeners
from scripts.engine import Found, llama_server, rpc_pair
from scripts.ports import free_port
from tests.engines import tiny_gguf

CHAT = "/v1/chat/completions"
# One thread: two stall on each other as soon as anything else runs.
FLAGS = ["-t", "1", "-np", "2", "-c", "2048"]
ENV = {"GGML_NO_BACKTRACE": "1"}  # or it calls gdb when it aborts: 2.4 s
MODELS = Path(__file__).resolve().parents[2] / "build" / "models"


def usable(found: Found) -> list[str]:
    """The command; `make test` installs a server, so a skip means this box can run none."""
    if found.command is None:
        pytest.skip(found.why)
    return found.command


def model(name: str) -> Path:
    """The tiny model that says ' hello from NAME.', kept until its writer changes."""
    MODELS.mkdir(parents=True, exist_ok=True)
    path = MODELS / f"{name}.gguf"
    writer = Path(tiny_gguf.__file__)
    if not path.exists() or path.stat().st_mtime < writer.stat().st_mtime:
        tiny_gguf.write(MODELS / f"{name}.{os.getpid()}", name).rename(path)
    return path


def server(name: str) -> list[str]:
    """A llama-server's argv (without --port) that serves the tiny model under `name`."""
    return [*usable(llama_server()), "-m", str(model(name)), "--alias", name, *FLAGS]


def rpc_head_and_worker(name: str) -> tuple[list[str], list[str]]:
    """The argv of a head (add --port, --rpc HOST:PORT) and of a worker (add -H and -p)."""
    head, worker = (usable(found) for found in rpc_pair())
    serve = ["-m", str(model(name)), "--alias", name, "-ngl", "99", *FLAGS]
    return [*head, *serve], [*worker, "-t", "1"]


@contextlib.contextmanager
def worker_of(command: list[str]) -> Iterator[tuple[subprocess.Popen[bytes], str]]:
    """A worker that listens, and its address: a head that finds nobody there serves all the same, alone."""
    port, quiet = free_port(), subprocess.DEVNULL
    words = [*command, "-H", "127.0.0.1", "-p", str(port)]
    process = subprocess.Popen(words, stdin=quiet, stdout=quiet, stderr=quiet)
    try:
        give_up = time.monotonic() + 20
        while not listeners(port, "127.0.0.1"):
            assert process.poll() is None, f"the worker ended with {process.returncode}"
            assert time.monotonic() < give_up, "the worker does not listen"
            time.sleep(0.01)
        yield process, f"127.0.0.1:{port}"
    finally:
        process.kill()
        process.wait()
