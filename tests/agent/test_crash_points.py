"""The agent dies at each effect of a drain and of a re-attachment, and a stranger has got the recorded pid meanwhile.

Nothing is lost, started twice or ended that is not ours. Of a load, a stop and a forget: tests/agent/test_reattach.py;
every point of the code, in a whole fleet: tests/e2e/test_crash_matrix.py.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable

import pytest

from llmgw.core.types.catalog import Restart, Stop
from tests.agent.rig import Rig, alive, until
from tests.agent.test_loop import STUBBORN, deaf
from tests.agent.test_reattach import edit, stranger

__all__ = ["stranger"]
NEVER = Restart(max=0)
GRACE = Stop(grace_s=0.5)


@pytest.mark.parametrize(
    "point",
    [
        "before-order:2",
        "before-WriteRecord-change:2",
        "after-WriteRecord-change:2",
        "before-applied:2",
        "after-applied:2",
    ],
)
def test_killed_while_it_drains(rig: Rig, point: str) -> None:
    """A65: whoever had heard the order, it serves on in the same process, and never goes back to ready after it."""
    rig.start_agent(crash_at=point).registered()
    pid = rig.ready()["pid"]
    rig.drain()
    rig.crashed()
    journaled = rig.record()["desired"] == "draining"
    assert journaled is (not point.startswith(("before-order", "before-WriteRecord")))
    rig.again()
    found = rig.control.registers[-1]["shards"][0]
    assert (found["state"], found["pid"]) == ("draining" if journaled else "ready", pid)
    rig.drain()  # control repeats it
    rig.control.shard("alpha-1/0", "draining")
    assert rig.engine_pids() == [pid]
    assert rig.starts() == {1}
    rig.stop()
    rig.control.shard("alpha-1/0", "stopped")
    assert not alive(pid)


@pytest.mark.parametrize(
    "point",
    [
        "after-lock",
        "after-load",
        "reattach-half",
        "reattach-half:2",
        "reattach-half:3",
        "after-reattach",
        "after-boot",
        "before-WriteRecord",
        "after-WriteRecord",
        "before-Signal",
        "after-Signal",
        "before-register",
        "after-register",
    ],
)
def test_killed_while_it_reattaches(rig: Rig, stranger: int, point: str) -> None:
    """F35, F38, F79, F43: one runs, one's pid is a stranger's, one is being stopped, one's pid was never journaled."""
    rig.start_agent().registered()
    runs, gone, started = (rig.ready(n, restart=NEVER)["pid"] for n in (1, 2, 4))
    rig.start(3, command=STUBBORN, stop=GRACE)
    deaf(rig, 3)
    rig.stop(3)
    until(lambda: "got TERM" in rig.engine_log(3), "its TERM")
    rig.kill9()
    os.kill(gone, signal.SIGKILL)
    until(lambda: not alive(gone), "its end")
    edit(rig, n=2, pid=stranger)
    edit(rig, n=4, pid=None, start_ticks=0, intent=True, state="pending")
    rig.start_agent(crash_at=point).crashed()
    rig.again()
    control = rig.control
    assert control.shard("alpha-1/0", "ready")["pid"] == runs
    assert "another process now" in control.shard("alpha-2/0", "failed")["error"]
    control.shard("alpha-3/0", "stopped")
    assert control.shard("alpha-4/0", "ready")["pid"] == started
    assert rig.engine_pids() == sorted((runs, started))
    assert rig.engine_log(3).count("got TERM") == 1
    assert [rig.starts(f"alpha-{n}/0") for n in (1, 4)] == [{1}, {1}]


def load(_: Rig) -> None:
    """It is on its way since the start."""


#: Where it dies, after what order, and how the shard ends.
MOMENTS: list[tuple[str, Callable[[Rig], object], str]] = [
    ("after-WriteRecord-started", load, "failed"),
    ("after-WriteRecord-change", load, "failed"),
    ("after-WriteRecord-change:2", Rig.drain, "stopped"),
    ("after-WriteRecord-exit", Rig.stop, "stopped"),
    ("after-Signal-TERM", Rig.stop, "stopped"),
    ("after-Signal-KILL", Rig.stop, "stopped"),
    ("after-Look", Rig.stop, "stopped"),
]


@pytest.mark.parametrize("again", ["", "after-load", "reattach-half"], ids=["once", "load", "half"])
@pytest.mark.parametrize("moment", MOMENTS, ids=[m[0] for m in MOMENTS])
def test_a_stranger_got_its_pid_meanwhile(
    rig: Rig, stranger: int, moment: tuple[str, Callable[[Rig], object], str], again: str
) -> None:
    """F38: wherever the agent died, and again while it looked; what control orders then is nothing to it either."""
    point, order, ends = moment
    rig.start_agent(crash_at=point).registered()
    rig.start(1, "--ignore-term", stop=GRACE, restart=NEVER)
    if order is not load:
        rig.control.shard("alpha-1/0", "ready")
        order(rig)
    rig.crashed()
    for pid in rig.engine_pids():
        os.kill(pid, signal.SIGKILL)
    until(lambda: not rig.engine_pids(), "its end")
    edit(rig, pid=stranger)
    if again:
        rig.start_agent(crash_at=again).crashed()
    rig.again()
    rig.control.shard("alpha-1/0", ends)
    rig.stop()
    rig.stop(force=True)
    rig.forget()
    rig.control.wait(lambda: ["alpha-1/0", "inc-1"] in rig.control.gone, "gone")
    assert alive(stranger)
    assert rig.engine_pids() == []


def test_two_records_with_one_pid(rig: Rig) -> None:
    """Whose ticks it has, it is; the other's shard is over, and ends nobody."""
    rig.start_agent().registered()
    one, two = (rig.ready(n, restart=NEVER)["pid"] for n in (1, 2))
    rig.kill9()
    os.kill(two, signal.SIGKILL)
    until(lambda: not alive(two), "its end")
    edit(rig, n=2, pid=one)
    rig.again()
    rig.control.shard("alpha-2/0", "failed")
    rig.stop(2)
    assert rig.control.shard("alpha-1/0", "ready")["pid"] == one
    assert alive(one)
