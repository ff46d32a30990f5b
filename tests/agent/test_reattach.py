"""The agent is killed at every point where it matters, and starts again: one engine, the same pid, no stranger hurt.

Rows F35-F49 with real processes; which test shows which row: tests/agent/test_reattach_table.py. The decisions alone
are in tests/core/test_supervise_reattach.py.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator

import httpx
import pytest

from llmgw.agent import process
from llmgw.core.types.catalog import Stop
from tests.agent.rig import Rig, alive, until
from tests.agent.test_loop import STUBBORN


def edit(rig: Rig, n: int = 1, **changes: object) -> None:
    """What a power cut, a reboot or a clone would have made of the record, the agent being down."""
    rig.record_path(n).write_text(json.dumps({**rig.record(n), **changes}))


@pytest.fixture
def stranger() -> Iterator[int]:
    """A process of somebody else, leading a session, as a daemon does."""
    child = subprocess.Popen(["sleep", "60"], start_new_session=True)
    yield child.pid
    assert child.poll() is None, "a stranger was signalled"
    child.kill()
    child.wait()


def test_kill_9_and_again_is_the_same_engine(rig: Rig) -> None:
    """F35 and A2: again and again, engine starts = 1.

    F41: a clock that was corrected after boot makes no stranger of it; ticks and boot id are not moved by it.
    """
    rig.start_agent().registered()
    pid = rig.ready()["pid"]
    for at in ("", "1970-01-01T00:00:00Z", "2099-01-01T00:00:00Z"):
        rig.kill9()
        edit(rig, started_at=at)
        rig.again()
        report = rig.control.registers[-1]
        assert report["reattached"]
        assert [(s["state"], s["pid"]) for s in report["shards"]] == [("ready", pid)]
    assert rig.starts() == {1}
    assert rig.engine_pids() == [pid]
    assert len({r["node_id"] for r in rig.control.registers}) == 1
    assert len({r["instance"] for r in rig.control.registers}) == 4


@pytest.mark.parametrize(
    "point",
    [
        "before-StoreToken",
        "after-StoreToken",
        "before-WriteRecord",
        "journal-before-rename:4",
        "after-WriteRecord",
        "before-Spawn",
        "after-Spawn",
        "journal-before-rename:5",
        "after-WriteRecord:2",
        "before-applied",
        "after-WriteRecord:3",
    ],
)
def test_killed_while_it_starts_an_engine(rig: Rig, point: str) -> None:
    """Wherever it dies: at most one engine; control repeats its order: exactly one, or a failure told (F43, F44)."""
    rig.start_agent(crash_at=point).registered()
    start = rig.start()
    rig.crashed()
    before = rig.engine_pids()
    assert len(before) <= 1
    rig.again()
    rig.control.send(start)
    settled = rig.control.wait(
        lambda: next(
            (s for s in rig.control.shards.values() if s["state"] in ("ready", "failed")), None
        ),
        "ready or failed",
    )
    after = rig.engine_pids()
    if before:
        assert after == before
    assert len(after) == (settled["state"] == "ready")
    assert (settled["state"] == "failed") is (point in ("after-WriteRecord", "before-Spawn"))


@pytest.mark.parametrize(
    "point",
    [
        "before-WriteRecord:4",
        "after-WriteRecord:4",
        "before-Signal",
        "after-Signal",
        "before-Look",
        "after-Look",
        "before-Signal-KILL",
        "after-Signal-KILL",
        "after-reap",
    ],
)
def test_killed_while_it_stops_an_engine(rig: Rig, point: str) -> None:
    """At most one TERM, whoever sends it; the stop goes on by itself (F79)."""
    rig.start_agent(crash_at=point).registered()
    rig.start(command=STUBBORN, stop=Stop(grace_s=0.5))
    rig.control.shard("alpha-1/0", "starting")
    rig.stop()
    rig.crashed()
    rig.again()
    if point.startswith("before-WriteRecord"):
        rig.stop()  # the order was not journaled: control repeats it
    rig.control.shard("alpha-1/0", "stopped")
    assert rig.engine_log().count("got TERM") <= 1
    assert not rig.engine_pids()


def test_died_while_the_agent_was_down(rig: Rig) -> None:
    """F37: failed, exit unobserved, no restart by the agent."""
    rig.start_agent().registered()
    pid = rig.ready()["pid"]
    rig.kill9()
    os.kill(pid, signal.SIGKILL)
    until(lambda: not alive(pid), "its end")
    rig.again()
    shard = rig.control.shard("alpha-1/0", "failed")
    assert "nobody saw it exit" in shard["error"]
    assert shard["attempt"] == 1


def test_its_worker_outlives_it_while_the_agent_is_down(rig: Rig) -> None:
    """F65 after a restart: the worker is found by its markers, ended, and only then the shard is over."""
    rig.start_agent().registered()
    shard = rig.ready(1, "--fork", "--ignore-term")
    child = httpx.get(f"{shard['endpoint']}/stats", trust_env=False).json()["child"]
    rig.kill9()
    os.kill(shard["pid"], signal.SIGKILL)
    rig.again()
    assert f"pids {child} of it are left" in rig.control.shard("alpha-1/0", "failed")["error"]
    assert not alive(child)


def test_a_stranger_has_its_pid(rig: Rig, stranger: int) -> None:
    """F38: the same number, other start ticks; the stranger leads a session of that number."""
    rig.start_agent().registered()
    pid = rig.ready()["pid"]
    rig.kill9()
    os.kill(pid, signal.SIGKILL)
    edit(rig, pid=stranger)
    rig.again()
    shard = rig.control.shard("alpha-1/0", "failed")
    assert f"pid {stranger} is another process now" in shard["error"]
    rig.stop()
    rig.forget()
    rig.control.wait(lambda: rig.control.gone, "gone")
    assert alive(stranger)


def test_a_stranger_has_its_pid_and_its_stop_is_on_disk(rig: Rig, stranger: int) -> None:
    rig.start_agent().registered()
    pid = rig.ready()["pid"]
    rig.kill9()
    os.kill(pid, signal.SIGKILL)
    edit(rig, pid=stranger, desired="stopped", ending="stopped", state="stopping", signalled="stop")
    rig.again()
    rig.control.shard("alpha-1/0", "stopped")
    assert alive(stranger)


def test_after_a_reboot_no_pid_is_looked_at(rig: Rig) -> None:
    """F39, F40: pid and ticks are right, the boot is another; the process there is not touched."""
    rig.start_agent().registered()
    pid = rig.ready()["pid"]
    rig.kill9()
    edit(rig, boot_id="00000000-0000-0000-0000-000000000000")
    rig.again()
    assert rig.control.shard("alpha-1/0", "failed")["error"] == "the host was rebooted"
    assert alive(pid)


@pytest.mark.parametrize("damage", [b"", b'{"start": {"shard": "al', b"\x00" * 512])
def test_a_torn_record_is_found_again_by_its_markers(rig: Rig, damage: bytes) -> None:
    """F42: the file is kept aside; the engine is ours by its environment and goes on."""
    rig.start_agent().registered()
    pid = rig.ready()["pid"]
    rig.kill9()
    rig.record_path().write_bytes(damage)
    rig.again()
    shard = rig.control.shard("alpha-1/0", "ready")
    assert (shard["pid"], shard["model"], shard["world_size"]) == (pid, "alpha", 1)
    assert rig.record_path().with_suffix(".unreadable").read_bytes() == damage
    rig.kill9().again()
    assert rig.control.shard("alpha-1/0", "ready")["pid"] == pid
    rig.stop()
    rig.control.shard("alpha-1/0", "stopped")
    assert not alive(pid)


@pytest.mark.parametrize("damage", [b"", b"\x00" * 512])
def test_a_record_that_a_power_cut_tore_is_of_before_the_reboot(rig: Rig, damage: bytes) -> None:
    """F39, F42: what became of a process is not waited for on the disk. Its node's last boot is: nothing is held."""
    rig.start_agent().registered()
    pid = rig.ready()["pid"]
    rig.kill9()
    os.kill(pid, signal.SIGKILL)
    rig.record_path().write_bytes(damage)
    known = json.loads((rig.state_dir / "identity.json").read_text())
    other = {**known, "boot_id": "00000000-0000-0000-0000-000000000000"}
    (rig.state_dir / "identity.json").write_text(json.dumps(other))
    (rig.state_dir / "node.copy").write_bytes(damage)
    rig.again()
    assert rig.control.shard("alpha-1/0", "failed")["error"] == "the host was rebooted"
    rig.kill9().again()  # the file that is kept aside is of this boot now, and says nothing any more
    assert rig.control.shard("alpha-1/0", "failed")["error"] == "the host was rebooted"
    rig.forget()
    until(lambda: not [*(rig.state_dir / "records").iterdir()], "its files are gone")
    rig.start(2)
    rig.control.shard("alpha-2/0", "ready")


def test_a_torn_record_without_a_process_is_held_until_it_is_stopped(rig: Rig) -> None:
    """A39: unreadable is not absent."""
    rig.start_agent().registered()
    pid = rig.ready()["pid"]
    rig.kill9()
    os.kill(pid, signal.SIGKILL)
    rig.record_path().write_bytes(b"{")
    rig.again()
    shard = rig.control.shard("alpha-1/0", "unknown")
    assert "cannot be read; the file is kept" in shard["error"]
    rig.kill9().again()
    rig.control.shard("alpha-1/0", "unknown")
    rig.stop()
    rig.control.shard("alpha-1/0", "stopped")


def test_the_worker_of_a_torn_record_tells_what_it_held(rig: Rig) -> None:
    """Its leader is dead, its record torn: the worker's markers still name its port."""
    rig.start_agent().registered()
    shard = rig.ready(1, "--fork", "--ignore-term")
    rig.kill9()
    os.kill(shard["pid"], signal.SIGKILL)
    rig.record_path().write_bytes(b"")
    rig.again()
    ended = rig.control.shard("alpha-1/0", "failed")
    assert (ended["port"], ended["model"]) == (shard["port"], "alpha")
    assert rig.engine_pids() == []


def test_an_engine_that_retitles_itself_keeps_its_markers(rig: Rig) -> None:
    """SPT_NOENV=1 is always set."""
    rig.start_agent().registered()
    pid = rig.ready(1, "--retitle", "vllm::EngineCore")["pid"]
    assert process.command_line(pid).startswith("vllm::EngineCore")
    rig.kill9()
    rig.record_path().unlink()
    rig.again()
    assert rig.control.shard("alpha-1/0", "ready")["pid"] == pid


def test_another_agents_engines_are_left_alone(rig: Rig) -> None:
    """The same shard and incarnation, another node id."""
    env = {"LLMGW_NODE_ID": "another", "LLMGW_SHARD": "alpha-1/0", "LLMGW_INCARNATION": "inc-1"}
    other = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE, env=env)
    rig.start_agent().registered()
    assert rig.control.registers[0]["shards"] == []
    assert other.poll() is None
    other.kill()
    other.communicate()


def test_dead_engines_wait_for_control_after_a_restart(rig: Rig) -> None:
    """F36, and one line about a control that is away."""
    rig.start_agent().registered()
    pid = rig.ready()["pid"]
    rig.control.down = True
    rig.kill9().start_agent()
    rig.said("engines_kept=1")
    os.kill(pid, signal.SIGKILL)
    until(lambda: rig.record()["state"] == "pending", "its death journaled")
    assert rig.record()["exit_code"] is None
    assert rig.engine_pids() == []
    assert rig.log().count("answered 503") == 1
    rig.control.down = False
    assert rig.control.shard("alpha-1/0", "ready", attempt=2)


@pytest.mark.parametrize("point", ["before-DeleteRecord", "after-DeleteRecord"])
def test_killed_while_it_forgets(rig: Rig, point: str) -> None:
    """Control repeats until it hears that it is gone."""
    rig.start_agent(crash_at=point).registered()
    rig.ready()
    rig.stop()
    rig.control.shard("alpha-1/0", "stopped")
    rig.forget()
    rig.crashed()
    rig.again()
    assert rig.record_path().exists() is point.startswith("before")
    rig.forget()
    rig.control.wait(lambda: ["alpha-1/0", "inc-1"] in rig.control.gone, "gone")
    assert not rig.record_path().exists()
