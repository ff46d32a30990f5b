"""What must not reach an engine through its agent: the terminal, a pipe, a dead loop (F47-F50); and how its end shows.

Real agents and engines; a subreaper that does not reap stands in for an init that does not.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import pty
import shutil
import signal
import socket
import subprocess
import sys
import uuid
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from llmgw.agent import process
from llmgw.core.types.catalog import Restart
from tests.agent.rig import PROGRAM, ROOT, Rig, alive, until
from tests.agent.test_loop import Stranger

PR_SET_CHILD_SUBREAPER = 36
NEVER = Restart(max=0)


def state_of(pid: int) -> str:
    stat = process.read_stat(pid)
    return stat.state if stat else ""


def test_ctrl_c_in_the_agents_terminal_reaches_no_engine(rig: Rig) -> None:
    """F48: a session of its own and no terminal, so neither SIGINT nor the SIGHUP of a closed window comes through."""
    if shutil.which("setsid") is None:
        pytest.skip("setsid of util-linux is missing: nobody gives the agent a terminal")
    ours, theirs = pty.openpty()
    with rig.log_path().open("w") as log:
        rig.agent = subprocess.Popen(
            ["setsid", "--ctty", sys.executable, str(PROGRAM), json.dumps(rig.settings)],
            cwd=ROOT,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
            stdin=theirs,
            stdout=log,
            stderr=subprocess.STDOUT,
            text=True,
        )
    os.close(theirs)
    rig.registered()
    pid = rig.ready()["pid"]
    stat = process.read_stat(pid)
    assert stat is not None
    assert (stat.sid, os.getpgid(pid)) == (pid, pid)
    assert not any("pts" in str(fd.readlink()) for fd in Path(f"/proc/{pid}/fd").iterdir())
    os.write(ours, b"\x03")
    assert rig.ended()[0] == 130
    os.close(ours)
    assert alive(pid)
    rig.again()
    assert rig.control.registers[-1]["shards"][0]["pid"] == pid


def test_an_engine_has_files_and_no_pipe(rig: Rig) -> None:
    """F49: it writes on when its agent is dead; through a pipe it would die of SIGPIPE, or block at 64 KiB."""
    rig.start_agent().registered()
    rig.start(1, "--late-listen", "1.0", "--log-flood", str(1 << 20))
    pid = rig.control.shard("alpha-1/0", "starting")["pid"]
    rig.kill9()
    fds = {}
    for path in Path(f"/proc/{pid}/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):  # it opens and closes others meanwhile
            fds[path.name] = str(path.readlink())
    assert fds["0"] == "/dev/null"
    assert fds["1"] == fds["2"] == str(rig.state_dir / "logs/alpha-1/0.log")
    assert not any(what.startswith("pipe:") for what in fds.values()), fds
    until(lambda: len(rig.engine_log()) > 1 << 20, "its words")
    assert alive(pid)


@pytest.fixture
def careless_init() -> Iterator[None]:
    """Orphans come to this process, and it does not wait for them."""
    libc = ctypes.CDLL(None)
    libc.prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    yield
    libc.prctl(PR_SET_CHILD_SUBREAPER, 0, 0, 0, 0)


@pytest.mark.usefixtures("careless_init")
def test_a_zombie_is_not_alive_and_its_workers_are(rig: Rig) -> None:
    """F66, F65: nobody reaps the dead leader; what it held is held until its session is empty, and then no longer."""
    rig.start_agent().registered()
    shard = rig.ready(1, "--fork", "--ignore-term", restart=NEVER)
    pid = shard["pid"]
    child = httpx.get(f"{shard['endpoint']}/stats", trust_env=False).json()["child"]
    rig.kill9().again()
    os.kill(pid, signal.SIGKILL)
    error = rig.control.shard("alpha-1/0", "failed")["error"]
    assert (
        error
        == "exited, and nobody could observe its exit code: " + rig.engine_log().splitlines()[-1]
    )
    assert state_of(pid) == "Z"
    assert not alive(child)
    rig.kill9().again()  # found like that it is over too
    assert rig.control.shards["alpha-1/0"]["state"] == "failed"
    for dead in (pid, child):
        os.waitpid(dead, 0)


@pytest.mark.usefixtures("careless_init")
def test_a_zombie_found_at_the_start_is_over(rig: Rig) -> None:
    """F66, F37: same pid, same ticks, and nothing runs there any more."""
    rig.start_agent().registered()
    pid = rig.ready(restart=NEVER)["pid"]
    rig.kill9()
    os.kill(pid, signal.SIGKILL)
    until(lambda: state_of(pid) == "Z", "a zombie")
    rig.again()
    assert "nobody saw it exit" in rig.control.shard("alpha-1/0", "failed")["error"]
    os.waitpid(pid, 0)


def test_the_kernels_kill_is_seen_at_once_and_worded(rig: Rig) -> None:
    """F80: by the pidfd, before any probe; as its parent with the signal, after a restart without."""
    rig.start_agent().registered()
    for n in (1, 2):
        rig.ready(n, restart=NEVER)
    os.kill(rig.control.shards["alpha-1/0"]["pid"], signal.SIGKILL)
    error = rig.control.shard("alpha-1/0", "failed")["error"]
    assert error.startswith("killed by signal 9 (SIGKILL: "), error
    assert rig.agent is not None
    assert rig.agent.poll() is None
    rig.kill9().again()
    os.kill(rig.control.shards["alpha-2/0"]["pid"], signal.SIGKILL)
    error = rig.control.shard("alpha-2/0", "failed")["error"]
    assert error.startswith("exited, and nobody could observe its exit code")


MEMORY = next(
    (
        p
        for p in map(Path, ("/sys/fs/cgroup/memory", "/sys/fs/cgroup"))
        if (p / "cgroup.procs").exists()
    ),
    Path("/none"),
)


@pytest.fixture
def small() -> Iterator[Path]:
    """A memory cgroup of 48 MiB, of either version."""
    root, folder = MEMORY, MEMORY / f"llmgw-test-{uuid.uuid4().hex}"
    try:
        folder.mkdir()
    except OSError as e:
        pytest.skip(f"no memory cgroup can be made below {root}: {e.strerror}")
    limit = next((n for n in ("memory.limit_in_bytes", "memory.max") if (folder / n).exists()), "")
    if not limit:
        folder.rmdir()
        pytest.skip(f"{root} has no memory controller for its children")
    (folder / limit).write_text(str(48 << 20))
    yield folder
    until(lambda: not (folder / "cgroup.procs").read_text(), "an empty cgroup")
    folder.rmdir()


def test_an_engine_that_the_kernel_ended_for_want_of_memory(rig: Rig, small: Path) -> None:
    """F80: a real out-of-memory kill is told as what it most likely is."""
    rig.start_agent().registered()
    eat = f"'{sys.executable}' -c 'len(b\"x\" * (400 << 20))'"
    rig.start(command=("sh", "-c", f"echo 0 > {small}/cgroup.procs; exec {eat}"), restart=NEVER)
    error = rig.control.shard("alpha-1/0", "failed")["error"]
    assert "SIGKILL: out of memory by all appearances" in error


def test_an_adopted_engine_whose_port_a_stranger_answers_is_not_healthy(rig: Rig) -> None:
    """F69, A45: after a re-attach the listener is looked at before an answer counts."""
    rig.start_agent().registered()
    shard = rig.ready(1, "--reuse-port")
    rig.kill9()
    with Stranger(shard["port"]):
        rig.again()
        found = rig.control.shard("alpha-1/0", "unhealthy")
        assert f"its listener is pid {os.getpid()}" in found["error"]
        assert found["pid"] == shard["pid"]
    assert alive(shard["pid"])


def test_a_port_that_somebody_else_took_before_the_next_attempt(rig: Rig) -> None:
    """F69: the plain bind before exec fails; the engine is not started to share it."""
    rig.start_agent().registered()
    shard = rig.ready(restart=Restart(max=5, backoff_s=0.2))
    rig.control.down = True
    rig.kill9()
    os.kill(shard["pid"], signal.SIGKILL)
    until(lambda: not alive(shard["pid"]), "its end")
    rig.control.down = False
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        record = rig.record()
        record["start"]["port"] = port
        waits = {"pid": None, "state": "pending", "failures": [0.0]}
        rig.record_path().write_text(json.dumps({**record, **waits}))
        rig.again()
        error = rig.control.shard("alpha-1/0", "failed")["error"]
        assert f"port {port} is in use by pid {os.getpid()}" in error
    assert rig.engine_pids() == []
