"""Engines with bad habits, one agent: the node ends in the right state.

habit                        shown by
ignores TERM                 test_one_that_ignores_term; a whole tree of them: test_loop: a_stop_is_one_term
forks and dies               test_one_that_forks_and_dies; after an agent's death: test_reattach: its_worker
retitles itself              test_one_that_retitles_itself; found by its markers then: test_reattach: retitles
shares a port (SO_REUSEPORT) test_one_that_squats_anothers_port; a newcomer: test_loop: shares_its_port
floods its log               test_one_that_floods_its_log
hangs after it was ready     test_one_that_hangs_after_it_was_ready; answers 500: test_loop: a_hung_engine
ready before it listens      test_one_that_says_ready_before_it_listens
returns its memory late      test_one_whose_memory_comes_back_late; after a stop: test_gpu: free_only_when
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time
from pathlib import Path

import httpx

from llmgw.agent import process
from llmgw.core.types.catalog import Ready, Restart, Stop
from tests.agent.cards import GIB, UUIDS, Cards
from tests.agent.rig import Rig, alive, gpu_users, until
from tests.engines.fake_engine import FLOOD_ENDS
from tests.engines.running import FAKE

NEVER = Restart(max=0)


def test_one_that_ignores_term(rig: Rig) -> None:
    """One TERM, its grace, KILL; its port is free for the next one then, and not before (A43)."""
    rig.start_agent().registered()
    shard = rig.ready(1, "--ignore-term", stop=Stop(grace_s=0.7))
    began = time.monotonic()
    rig.stop()
    rig.control.shard("alpha-1/0", "stopping")
    rig.start(2, port=shard["port"])
    assert rig.control.refusal("port_held")["resource"] == f"port {shard['port']}"
    rig.control.shard("alpha-1/0", "stopped")
    assert time.monotonic() - began >= 0.7
    assert not alive(shard["pid"])
    assert rig.ready(3, port=shard["port"])["port"] == shard["port"]


def test_one_that_forks_and_dies(rig: Rig) -> None:
    """F65: what it left is ended before the next attempt, each time; when it gives up nothing is left at all (A67)."""
    rig.start_agent().registered()
    flags = ("--fork", "--ignore-term", "--die-after-s", "0.4", "--exit-code", "7")
    rig.start(1, *flags, restart=Restart(max=2, backoff_s=0.1))
    shard = rig.control.shard("alpha-1/0", "failed")
    assert (shard["attempt"], shard["gave_up"]) == (2, True)
    assert "exited with code 7: fake engine: out of memory" in shard["error"]
    assert rig.engine_pids() == []


def test_one_that_retitles_itself(rig: Rig) -> None:
    """Known by its session, its start and its markers, never by its name: stopped as any other."""
    rig.start_agent().registered()
    flags = ("--retitle", "VLLM::EngineCore", "--fork", "--ignore-term")
    shard = rig.ready(1, *flags, stop=Stop(grace_s=0.3))
    child = httpx.get(f"{shard['endpoint']}/stats", trust_env=False).json()["child"]
    assert process.command_line(shard["pid"]).startswith("VLLM::EngineCore")
    assert rig.engine_pids() == sorted((shard["pid"], child))
    rig.stop()
    rig.control.shard("alpha-1/0", "stopped")
    assert rig.engine_pids() == []


def test_one_that_squats_anothers_port(rig: Rig) -> None:
    """F70: a stray engine binds beside ours with SO_REUSEPORT. Ours is not stopped for it, nor it for ours (F74).

    After the next attempt the answer may be the stray's: that attempt is refused, with its name.
    """
    rig.start_agent().registered()
    shard = rig.ready(1, "--reuse-port")
    command = [*FAKE, "--reuse-port", "--host", "127.0.0.1", "--port", str(shard["port"])]
    with subprocess.Popen(command, start_new_session=True) as stray:
        until(lambda: listens(stray.pid), "its listener")
        assert rig.control.shard("alpha-1/0", "ready")["pid"] == shard["pid"]
        os.kill(shard["pid"], signal.SIGKILL)
        error = rig.control.shard("alpha-1/0", "failed")["error"]
        assert f"port {shard['port']} is in use by pid {stray.pid}" in error
        assert stray.poll() is None
        stray.kill()
    assert rig.engine_pids() == []


def listens(pid: int) -> bool:
    for fd in Path(f"/proc/{pid}/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):  # it opens and closes others meanwhile
            if str(fd.readlink()).startswith("socket:"):
                return True
    return False


def test_one_that_floods_its_log(tmp_path: Path) -> None:
    """F49: 64 times as much as a log may hold (1 GB of 16 MB, say): bounded, and it serves all the while.

    What the attempt before said is not washed away by that, and the flood's own end is kept as the attempt before.
    """
    most = 256 << 10
    rig = Rig(tmp_path, world={"log_max_bytes": most, "beat_s": 0.1}).start_agent().registered()
    try:
        first = rig.ready(1, "--alias", "one", "--log-flood", str(64 * most))
        folder = rig.state_dir / "logs/alpha-1"
        until(lambda: size(folder / "0.log"), "its first words")
        os.kill(first["pid"], signal.SIGKILL)
        rig.control.shard("alpha-1/0", "ready", attempt=2)
        endpoint = f"http://127.0.0.1:{first['port']}"
        until((folder / "0.log.cut").exists, "the flood's cut")
        assert httpx.get(f"{endpoint}/health", trust_env=False).status_code == 200
        written = until(lambda: (io := io_of(rig)) >= 64 * most and io, "all of the flood")
        until(lambda: size(folder / "0.log") <= most, "a short log")
        rig.kill9().again()
        assert rig.control.registers[-1]["shards"][0]["attempt"] == 2
        sizes = {path.name: size(path) for path in folder.iterdir()}
        assert sorted(sizes) == ["0.log", "0.log.1", "0.log.cut"]
        assert max(sizes["0.log"], sizes["0.log.cut"]) <= most
        assert sizes["0.log.1"] <= 2 * most
        assert written >= 64 * most
        base = f"http://{rig.settings['listen']}/v1/logs/alpha-1/0"
        for query in ("", "?previous=1"):
            text = httpx.get(base + query, trust_env=False).text
            # What was written while it was cut may be lost, and tears a line.
            said = {line for line in text.splitlines() if line.strip("x")}
            assert said <= {first["model"], FLOOD_ENDS}, query
    finally:
        rig.close()


def io_of(rig: Rig) -> int:
    """What the engine has written so far."""
    lines = Path(f"/proc/{rig.control.shards['alpha-1/0']['pid']}/io").read_text().splitlines()
    return next(int(x.split()[1]) for x in lines if x.startswith("wchar:"))


def size(path: Path) -> int:
    return path.stat().st_size


def test_one_that_hangs_after_it_was_ready(rig: Rig) -> None:
    """F64, F46: unhealthy and left alone, also by the next agent; a stop ends it though no TERM reaches it."""
    rig.start_agent().registered()
    shard = rig.ready(ready=Ready(failures=1, of=1), stop=Stop(grace_s=0.3))
    os.kill(shard["pid"], signal.SIGSTOP)
    assert "no answer in 2 s" in rig.control.shard("alpha-1/0", "unhealthy")["error"]
    rig.kill9().again()
    found = rig.control.registers[-1]["shards"][0]
    assert (found["state"], found["pid"], found["attempt"]) == ("unhealthy", shard["pid"], 1)
    rig.stop()
    rig.control.shard("alpha-1/0", "stopped")
    assert not alive(shard["pid"])


def test_one_that_says_ready_before_it_listens(rig: Rig) -> None:
    """A log's word is none: ready is what answers on its own port. One that never does is given up in time (A67)."""
    rig.start_agent().registered()
    rig.start(1, "--say-early", "--late-listen", "0.8")
    until(lambda: "listening on" in rig.engine_log(), "its word")
    rig.control.shard("alpha-1/0", "ready")
    late = ("--say-early", "--late-listen", "600")
    rig.start(2, *late, start_timeout_s=2.0, restart=NEVER, stop=Stop(grace_s=0.5))
    error = rig.control.shard("alpha-2/0", "failed")["error"]
    assert error.startswith("not ready after 2 s without progress; last probe: connection refused")
    assert "ready" not in {state for s, state, _ in rig.control.history if s == "alpha-2/0"}
    assert rig.engine_pids() == [rig.control.shards["alpha-1/0"]["pid"]]


def test_one_whose_memory_comes_back_late(tmp_path: Path, cards: Cards) -> None:
    """F68: it crashed, its memory is back seconds later: the next attempt is not before."""
    late_s = 1.0  # of five, so that the test is not the late one
    rig = Rig(tmp_path, gpus="auto", world={"beat_s": 0.2})
    rig.start_agent(**cards.env).registered()
    try:
        first = rig.ready(gpus=UUIDS[:1], restart=Restart(max=3, backoff_s=0.05))
        cards.use(0, 9 * GIB, (first["pid"], 9 * GIB))
        os.kill(first["pid"], signal.SIGKILL)
        rig.control.shard("alpha-1/0", "pending")
        time.sleep(late_s / 2)
        cards.use(0, 9 * GIB)  # nobody's any more, and not free yet: falling
        for held in (6, 3):
            time.sleep(late_s / 4)
            assert rig.engine_pids() == []
            cards.use(0, held * GIB)
        assert rig.control.shards["alpha-1/0"]["state"] == "pending"
        cards.use(0, 0)
        rig.control.shard("alpha-1/0", "ready", attempt=2)
        assert not any(gpu_users(e) for e in rig.control.events)
    finally:
        rig.close()
