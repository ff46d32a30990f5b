"""Which process is which: real ones, and the lines of /proc that trap naive readers."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from llmgw.agent import process
from tests.agent.rig import alive, until

#: Leads a session, has a child in it that ignores TERM, prints the child's pid.
FAMILY = """
import os, signal, sys, time
child = os.fork()
if not child:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    time.sleep(60)
print(child, flush=True)
time.sleep(60)
"""
#: Of this run alone: others may run these tests beside it.
NODE = uuid.uuid4().hex
ENV = {"LLMGW_NODE_ID": NODE, "LLMGW_SHARD": "a-1/0", "LLMGW_INCARNATION": "i"}


@pytest.fixture
def family() -> Iterator[tuple[subprocess.Popen[bytes], int]]:
    parent = subprocess.Popen(
        [sys.executable, "-c", FAMILY], stdout=subprocess.PIPE, start_new_session=True, env=ENV
    )
    assert parent.stdout is not None
    child = int(parent.stdout.readline())
    yield parent, child
    for pid in (parent.pid, child):
        if alive(pid):
            os.kill(pid, signal.SIGKILL)
    parent.wait()
    parent.stdout.close()


def test_what_processes_hold_of_the_hosts_memory() -> None:
    """Their own pages each, what they may share once; a number that is another's by now holds nothing."""
    text = "import os; a = bytearray(100 << 20); os.fork(); print(1, flush=True); input()"
    parent = subprocess.Popen(
        [sys.executable, "-c", text], stdout=subprocess.PIPE, stdin=subprocess.PIPE
    )
    with parent:
        assert parent.stdout is not None
        parent.stdout.readline()
        parent.stdout.readline()
        both = {
            s.pid: s.ticks for s in process.all_stats().values() if parent.pid in (s.pid, s.ppid)
        }
        assert len(both) == 2
        alone = process.resident_bytes({parent.pid: both[parent.pid]})
        assert alone is not None
        assert 100 << 20 < alone < 130 << 20
        together = process.resident_bytes(both)
        assert together is not None
        assert 100 << 20 < together - alone < 120 << 20
        assert process.resident_bytes({pid: t + 1 for pid, t in both.items()}) is None
        assert process.resident_bytes({}) is None
        for pid in both:
            os.kill(pid, signal.SIGKILL)


def ticks(pid: int) -> int:
    stat = process.read_stat(pid)
    assert stat is not None
    return stat.ticks


def test_a_name_with_brackets_and_spaces(tmp_path: Path) -> None:
    """Field 22 counts from the last bracket."""
    program = tmp_path / "a) S 1 (b"
    program.symlink_to("/bin/sleep")
    child = subprocess.Popen([str(program), "60"])
    stat = until(
        lambda: (s := process.read_stat(child.pid)) and s.comm == "a) S 1 (b" and s, "exec"
    )
    assert (stat.ppid, stat.sid) == (os.getpid(), os.getsid(0))
    assert stat.ticks >= ticks(os.getpid())
    child.kill()
    until(lambda: (s := process.read_stat(child.pid)) and s.state == "Z", "a zombie")
    assert not alive(child.pid)
    child.wait()
    assert process.read_stat(child.pid) is None


def test_the_tree_of_a_living_leader(family: tuple[subprocess.Popen[bytes], int]) -> None:
    parent, child = family
    pid = parent.pid
    tree = process.tree_of(pid, ticks(pid), {}, [], process.all_stats())
    assert (set(tree.alive), tree.leader, tree.doubtful) == ({pid, child}, "same", ())
    wrong = process.tree_of(pid, 1, {}, [], process.all_stats())
    assert (wrong.alive, wrong.leader, wrong.doubtful) == ({}, "other", ())
    assert f"pid {pid} is another process now" in wrong.detail


def test_the_tree_of_a_dead_leader(family: tuple[subprocess.Popen[bytes], int]) -> None:
    """Members are proved by markers or by having been seen; a bare session number is a doubt."""
    parent, child = family
    pid, at = parent.pid, ticks(parent.pid)
    known = {child: ticks(child)}
    parent.kill()
    until(lambda: not alive(pid), "its end")
    zombie = process.tree_of(pid, at, {}, [], process.all_stats())
    assert (set(zombie.alive), zombie.leader) == ({child}, "absent")  # F66
    parent.wait()
    stats = process.all_stats()
    assert set(process.tree_of(pid, at, known, [], stats).alive) == {child}
    marks = process.sweep(NODE, stats)["a-1/0", "i"]
    assert set(process.tree_of(pid, at, {}, marks, stats).alive) == {child}
    doubt = process.tree_of(pid, at, {}, [], stats)
    assert (doubt.alive, doubt.doubtful) == ({}, (child,))
    assert process.tree_of(pid, at, {child: 1}, [], stats).alive == {}


def test_the_sweep_sees_its_own_node_only(family: tuple[subprocess.Popen[bytes], int]) -> None:
    parent, child = family
    found = process.sweep(NODE, process.all_stats())
    assert [m.stat.pid for m in found["a-1/0", "i"]] == [parent.pid, child]
    assert process.sweep("another", process.all_stats()) == {}
    assert process.marked_as({"LLMGW_NODE_ID": NODE}, NODE) is None
    assert process.marked_as({**ENV, "LLMGW_INCARNATION": "../x"}, NODE) is None
    assert process.marked_as({**ENV, "LLMGW_SHARD": "../x/0"}, NODE) is None


def test_what_was_marked_is_not_read_again(
    family: tuple[subprocess.Popen[bytes], int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """F67: a process that hangs in the kernel may hold its reader for ever."""
    parent, child = family

    def swept() -> list[process.Mark]:
        (found,) = process.sweep(NODE, process.all_stats()).values()
        return list(found)

    # Between fork and exec the parent's environment shows in one more.
    until(lambda: {m.stat.pid for m in swept()} == {parent.pid, child}, "the two alone")
    marks = swept()
    before = {m.stat.pid: m for m in marks}
    read: list[int] = []
    environ = process.environ

    def seen(pid: int) -> dict[str, str]:
        read.append(pid)
        return environ(pid)

    monkeypatch.setattr(process, "environ", seen)
    (again,) = process.sweep(NODE, process.all_stats(), before).values()
    assert [(m.stat.pid, m.env) for m in again] == [(m.stat.pid, m.env) for m in marks]
    assert not {parent.pid, child} & set(read)
    old = marks[0]._replace(stat=marks[0].stat._replace(ticks=1))
    stranger = dict.fromkeys((parent.pid, child), old)  # the numbers were somebody else's then
    process.sweep(NODE, process.all_stats(), stranger)
    assert {parent.pid, child} <= set(read)
    assert process.sweep("another", process.all_stats(), before) == {}


def test_what_is_not_ours_is_not_read_again_either(
    family: tuple[subprocess.Popen[bytes], int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A host has thousands of them. But markers come with an exec: the young and the renamed are asked anew."""
    parent, child = family
    ours, read = {parent.pid, child}, list[int]()
    environ = process.environ

    def seen(pid: int) -> dict[str, str]:
        read.append(pid)
        return environ(pid)

    def asked(before: process.Marks) -> set[int]:
        read.clear()
        process.look("another", process.all_stats(), before)
        return ours & set(read)

    monkeypatch.setattr(process, "environ", seen)
    before = process.look("another", process.all_stats())
    assert all(not before[pid].env for pid in ours)
    assert asked(before) == ours  # young
    monkeypatch.setattr(process, "GROWN_S", -1.0)
    assert asked(before) == set()
    mark = before[child]
    assert asked({**before, child: mark._replace(stat=mark.stat._replace(comm="sh"))}) == {child}
    assert asked({**before, child: mark._replace(stat=mark.stat._replace(ticks=1))}) == {child}


def test_descendants_are_known_by_their_parents(
    family: tuple[subprocess.Popen[bytes], int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without a session or a marker; never by the number of a parent that is another process now."""
    parent, child = family
    stats = process.all_stats()
    me, mine = stats[os.getpid()], {parent.pid, child}
    assert {s.pid for s in process.descendants([me], stats)} >= mine
    assert {s.pid for s in process.descendants([stats[parent.pid]], stats)} == {child}
    assert not list(process.descendants([stats[child]], stats))
    older = stats[parent.pid]._replace(ticks=stats[parent.pid].ticks - 1)
    assert not list(process.descendants([older], stats))  # its number was given out anew since
    young = stats[child]._replace(ticks=stats[parent.pid].ticks - 1)
    assert not list(process.descendants([stats[parent.pid]], process.Stats({child: young})))
    hidden = stats[parent.pid]._replace(ticks=-1)
    monkeypatch.setattr(process, "read_stat", lambda _: hidden)
    assert not list(process.descendants([stats[parent.pid]], stats))


def test_dead_children_are_those_that_nobody_waited_for() -> None:
    """F66."""
    child = subprocess.Popen(["true"])
    until(lambda: (s := process.read_stat(child.pid)) and s.state == "Z", "a zombie")
    assert child.pid in process.dead_children()
    assert child.wait() == 0  # it was looked at, not waited for
    assert child.pid not in process.dead_children()


def test_another_users_markers_are_not_believed() -> None:
    """Anybody can write them into an environment, and would be signalled as ours, or hold a shard's name."""
    if os.geteuid():
        pytest.skip("needs root: only root starts a process of another user")
    with subprocess.Popen(["sleep", "60"], env=ENV, user=65534) as child:
        until(lambda: process.environ(child.pid), "exec")
        assert process.marked_as(process.environ(child.pid), NODE)
        assert process.sweep(NODE, process.all_stats()) == {}
        child.kill()


def test_signals_reach_exactly_who_is_meant(family: tuple[subprocess.Popen[bytes], int]) -> None:
    parent, _ = family
    at = ticks(parent.pid)
    assert not process.send(parent.pid, at + 1, signal.SIGKILL)
    assert process.open_pidfd(parent.pid, at + 1) is None
    assert process.send(parent.pid, at, signal.SIGTERM)
    assert parent.wait() == -signal.SIGTERM
    assert not process.send(parent.pid, at, signal.SIGTERM)


def test_words_for_people() -> None:
    assert "pytest" in process.command_line(os.getpid())
    if (kernel := process.read_stat(2)) and kernel.comm == "kthreadd":
        assert process.command_line(2) == "kthreadd"
    assert process.command_line(1 << 22) == ""
    assert process.environ(1 << 22) == {}
    assert len(process.boot_id()) == 36


def test_the_kernels_own_threads_are_not_asked_for_an_environment(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """They have none, change their names all the time, and a host has hundreds."""
    me = process.read_stat(os.getpid())
    assert me is not None
    assert not me.kernel
    monkeypatch.setattr(process, "environ", lambda pid: pytest.fail(f"asked {pid}"))
    thread = me._replace(pid=1, kernel=True)
    assert process.look(NODE, process.Stats({1: thread})) == {1: process.Mark(thread, {})}
