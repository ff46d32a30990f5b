"""The re-attach table of `core/supervise/reattach.py`, row by row, with real processes and made-up records.

row                                    shown by
boot id differs: rebooted (F39, F40)   test_another_boot_id_decides, test_reattach: after_a_reboot
could not look: unverifiable (F45)     test_what_may_not_be_looked_at_is_held (hidepid); test_looks: out_of
leader, its ticks: ours (F35, F41)     test_reattach: kill_9_and_again; F46: test_lost_records: does_not_answer
a stranger there: gone (F38)           test_reattach: a_stranger_has_its_pid, and with its stop on disk;
                                       test_a_stranger_that_repeats_everything_but_the_ticks
no pid, but its markers: ours (F43)    test_an_intent_and_a_leader_with_markers; test_crash_points: after-Spawn
no pid, no markers: never ran (F44)    test_an_intent_and_nothing_there; test_crash_points: before-Spawn
leftovers (F65)                        test_leftovers_whatever_they_did_to_be_forgotten, test_reattach: its_worker
perhaps members: unverifiable          test_perhaps_members_are_held_until_they_are_gone
none: gone (F37)                       test_reattach: died_while_the_agent_was_down; zombies (F66): test_survival
unreadable: unknown (F42, A39)         test_reattach: a_torn_record_...; files of any name: test_journal
no record at all: by markers           test_lost_records; strangers of another agent: test_reattach
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from llmgw.agent import process
from llmgw.core.types.catalog import Restart
from tests.agent.rig import Rig, alive, until
from tests.agent.test_reattach import edit
from tests.beds import needs
from tests.engines.running import FAKE

NEVER = Restart(max=0)
OTHER_BOOT = "00000000-0000-0000-0000-000000000000"
AGAIN = {"again_s": 0.2, "beat_s": 0.2}


@pytest.fixture
def quick(tmp_path: Path) -> Iterator[Rig]:
    """An agent that asks about what it cannot verify several times a second."""
    rig = Rig(tmp_path, world=AGAIN)
    yield rig
    rig.close()


def ticks(pid: int) -> int:
    stat = process.read_stat(pid)
    assert stat is not None
    return stat.ticks


def pids_of(rig: Rig, n: int = 1) -> list[int]:
    """Who writes to its log: also who has neither its session nor its markers."""
    log = str(rig.state_dir / f"logs/alpha-{n}/0.log")
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            if str((folder / "fd/1").readlink()) == log:
                found.append(int(folder.name))
        except OSError:
            continue
    return [pid for pid in found if alive(pid)]


@pytest.mark.parametrize(
    ("on_disk", "state"),
    [
        ({}, "failed"),
        ({"desired": "draining", "state": "draining"}, "stopped"),
        ({"desired": "stopped", "ending": "stopped", "state": "stopping"}, "stopped"),
        ({"pid": None, "intent": True, "state": "pending"}, "failed"),
    ],
    ids=["ready", "draining", "stopping", "intent"],
)
def test_another_boot_id_decides(rig: Rig, on_disk: dict[str, Any], state: str) -> None:
    """F39, F40: whatever the record says, and though a process with that pid, those ticks and markers is there."""
    rig.start_agent().registered()
    pid = rig.ready()["pid"]
    rig.kill9()
    edit(rig, boot_id=OTHER_BOOT, **on_disk)
    rig.again()
    shard = rig.control.shard("alpha-1/0", state)
    assert shard["pid"] is None
    assert alive(pid)


HIDDEN = """
mount -t proc -o hidepid=1,gid=65533 proc /proc && exec setpriv --bounding-set=-sys_ptrace --inh-caps=-sys_ptrace "$@"
"""


@needs("unshare", "mount", "setpriv")
def test_what_may_not_be_looked_at_is_held(quick: Rig) -> None:
    """F45: /proc with hidepid, an agent without CAP_SYS_PTRACE, another user's process: not dead, not signalled, held.

    Asked about again and again, it is over once it is seen to be gone.
    """
    rig = quick.start_agent().registered()
    pid = rig.ready(restart=NEVER)["pid"]
    rig.kill9()
    os.kill(pid, signal.SIGKILL)
    until(lambda: not alive(pid), "its end")
    with subprocess.Popen(["sleep", "60"], user=65534, start_new_session=True) as other:
        edit(rig, pid=other.pid, start_ticks=ticks(other.pid))
        rig.start_agent(wrap=("unshare", "--mount", "sh", "-c", HIDDEN, "sh")).registered(2)
        shard = rig.control.shard("alpha-1/0", "unknown")
        assert f"/proc/{other.pid}/stat" in shard["error"]
        rig.start(2, port=shard["port"])
        assert rig.control.refusal("port_held")["resource"] == f"port {shard['port']}"
        rig.stop()
        until(lambda: rig.record()["desired"] == "stopped", "the order journaled")
        time.sleep(0.5)
        assert (rig.control.shards["alpha-1/0"]["state"], other.poll()) == ("unknown", None)
        other.kill()
    rig.control.shard("alpha-1/0", "stopped")


def test_a_stranger_that_repeats_everything_but_the_ticks(rig: Rig) -> None:
    """F38: pid, session, program, user and even its port are as they were; only its start is not."""
    rig.start_agent().registered()
    shard = rig.ready(restart=NEVER)
    rig.kill9()
    os.kill(shard["pid"], signal.SIGKILL)
    until(lambda: not alive(shard["pid"]), "its end")
    command = [*FAKE, "--port", str(shard["port"]), "--host", "127.0.0.1"]
    with subprocess.Popen(command, start_new_session=True) as stranger:
        edit(rig, pid=stranger.pid)
        rig.again()
        error = rig.control.shard("alpha-1/0", "failed")["error"]
        assert f"pid {stranger.pid} is another process now" in error
        rig.stop()
        rig.forget()
        rig.control.wait(lambda: rig.control.gone, "gone")
        assert stranger.poll() is None
        stranger.kill()


def test_an_intent_and_a_leader_with_markers(rig: Rig) -> None:
    """F43: the agent died between exec and journal; it goes on as if nothing had been."""
    rig.start_agent().registered()
    pid = rig.ready()["pid"]
    rig.kill9()
    edit(rig, pid=None, start_ticks=0, intent=True, state="pending", started_at="", endpoint="")
    rig.again()
    shard = rig.control.shard("alpha-1/0", "ready")
    assert (shard["pid"], shard["attempt"]) == (pid, 1)
    assert (rig.record()["pid"], rig.record()["intent"]) == (pid, False)
    assert rig.engine_pids() == [pid]


def test_an_intent_and_nothing_there(rig: Rig) -> None:
    """F44: exec was never come to: failed, and not started by the agent."""
    rig.start_agent().registered()
    pid = rig.ready()["pid"]
    rig.kill9()
    os.kill(pid, signal.SIGKILL)
    until(lambda: not alive(pid), "its end")
    edit(rig, pid=None, start_ticks=0, intent=True, state="pending", started_at="")
    rig.again()
    shard = rig.control.shard("alpha-1/0", "failed")
    assert "the agent died before it was started: no process has its markers" in shard["error"]
    assert rig.engine_pids() == []


#: A worker that left the session and wiped its environment, or only one of the two; then the engine itself.
WORKERS = {
    "own session": "setsid sleep 600 &",
    "wiped": "env -i sleep 600 &",
    "own session, wiped": "setsid env -i sleep 600 &",
}


def engine_with(worker: str) -> tuple[str, ...]:
    return ("sh", "-c", f'{worker} exec "$@"', "sh", *FAKE, "--port", "${port}")


def two_of(rig: Rig, n: int) -> list[int]:
    found: list[int] = until(lambda: pids_of(rig, n)[1:] and pids_of(rig, n), "two of them")
    return found


def next_beats(rig: Rig) -> None:
    told = len(rig.control.events)
    rig.control.wait(lambda: len(rig.control.events) > told + 2, "heartbeats")


@pytest.mark.skipif(shutil.which("setsid") is None, reason="setsid of util-linux is missing")
@pytest.mark.parametrize("worker", WORKERS)
def test_leftovers_whatever_they_did_to_be_forgotten(tmp_path: Path, worker: str) -> None:
    """F65: a worker is known by its parent while that lives, so it is ended too when the engine dies or is stopped."""
    rig = Rig(tmp_path, world={"beat_s": 0.2}).start_agent().registered()
    try:
        for n, end in ((1, "dies"), (2, "is stopped")):
            pid = rig.ready(n, command=engine_with(WORKERS[worker]), restart=NEVER)["pid"]
            there = two_of(rig, n)
            next_beats(rig)
            if end == "dies":
                os.kill(pid, signal.SIGKILL)
                rig.control.shard(f"alpha-{n}/0", "failed")
            else:
                rig.stop(n)
                rig.control.shard(f"alpha-{n}/0", "stopped")
            assert not [p for p in there if alive(p)], end
    finally:
        rig.close()


def test_perhaps_members_are_held_until_they_are_gone(quick: Rig) -> None:
    """Its leader is gone, what is left shares its session and nothing else: no target, and no freedom either."""
    rig = quick.start_agent().registered()
    pid = rig.ready(command=engine_with(WORKERS["wiped"]), restart=NEVER)["pid"]
    (worker,) = until(lambda: [p for p in pids_of(rig) if p != pid], "its worker")
    rig.kill9()
    os.kill(pid, signal.SIGKILL)
    until(lambda: process.read_stat(pid) is None, "its end, and init's wait for it")
    rig.again()
    shard = rig.control.shard("alpha-1/0", "unknown")
    assert shard["error"].startswith("cannot be verified, so held: ")
    rig.stop()
    until(lambda: rig.record()["desired"] == "stopped", "the order journaled")
    time.sleep(0.5)
    assert (rig.control.shards["alpha-1/0"]["state"], alive(worker)) == ("unknown", True)
    os.kill(worker, signal.SIGKILL)
    rig.control.shard("alpha-1/0", "stopped")


def test_orphans_are_reaped_by_the_agent(tmp_path: Path) -> None:
    """F66: PR_SET_CHILD_SUBREAPER: a worker's double-forked child does not stay a zombie where init reaps nobody."""
    rig = Rig(tmp_path, world={"beat_s": 0.2}).start_agent().registered()
    try:
        assert rig.agent is not None
        forked = "import os; os.fork() and os._exit(0); os.execvp('sleep', ['sleep', '600'])"
        worker = f'"{sys.executable}" -c "{forked}"; '
        pid = rig.ready(command=engine_with(worker), restart=NEVER)["pid"]
        (orphan,) = until(lambda: [p for p in pids_of(rig) if p != pid], "the orphan")
        stat = process.read_stat(orphan)
        assert stat is not None
        assert stat.ppid == rig.agent.pid
        os.kill(orphan, signal.SIGKILL)
        assert f"code=-9 pid={orphan}" in rig.said("an orphan of an engine had ended")
        until(lambda: process.read_stat(orphan) is None, "its zombie")
        os.kill(pid, signal.SIGTERM)  # and the engine's own code is not taken away by that
        assert "exited with code 0" in rig.control.shard("alpha-1/0", "failed")["error"]
    finally:
        rig.close()
