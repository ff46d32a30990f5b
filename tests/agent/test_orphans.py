"""Of an engine that was told to end nothing is left when no child of ours is: seen without a look at every process.

Real processes; that we are the parent of what they leave behind, in a process that only runs tests, is put in by hand.
"""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from llmgw.agent import process, reattach
from llmgw.agent.orphans import Orphans
from llmgw.agent.perform import Performer
from llmgw.core.types.catalog import Stop
from llmgw.core.types.node import Exited, Spawned
from scripts.ports import free_port
from tests.agent.perform_rig import KEY, Bench, ordered, running
from tests.agent.rig import Rig, alive, until

#: It hears of its end, and a process of it in a session of its own stays; whose number is said in a file.
LEAVES_ONE = "trap 'setsid sleep 60 & echo $! > {}; exit 0' TERM; while :; do sleep 0.05; done"
AFTER = (("alpha-1/0", "inc-1"),)


class Ends:
    """One engine ends; `looks`: how often all processes were looked at for it."""

    def __init__(self, bench: Bench, monkeypatch: pytest.MonkeyPatch, **world: Any) -> None:
        self.ours: set[int] = set()
        self.looks, self.monkeypatch = 0, monkeypatch
        children, stats = process.children, process.all_stats

        def some(pid: int) -> Iterator[int]:  # who runs the tests has children of its own
            return (c for c in children(pid) if pid != os.getpid() or c in self.ours)

        def look() -> process.Stats:
            self.looks += 1
            return stats()

        monkeypatch.setattr(process, "children", some)
        monkeypatch.setattr(reattach, "all_stats", look)
        bench.run(lambda hands: self.act(hands, **world), posts=Exited)
        self.seen = bench.last(Exited).seen

    def act(
        self,
        hands: Performer,
        *,
        told: bool = True,
        adopts: bool = True,
        known: int = 0,
        other: int = 0,
    ) -> None:
        """`other`: a child of ours that leads no engine; `known`: one of its own tree, whosesoever child."""
        hands.orphans = Orphans(adopts=adopts)
        spawned = hands.spawn(ordered("sleep", "60"))
        assert isinstance(spawned, Spawned)
        self.ours |= {spawned.pid, other}
        if known:
            hands.known[KEY][known] = getattr(process.read_stat(known), "ticks", 0)
        now = running(spawned.pid, spawned.start_ticks)
        now = replace(now, signalled="stop" if told else "")
        self.monkeypatch.setattr(hands.containers, "now", lambda _: now)
        os.kill(spawned.pid, signal.SIGTERM)


@pytest.fixture
def sleeper() -> Iterator[int]:
    child = subprocess.Popen(
        ["sleep", "60"], env={}, executable="/bin/sleep", start_new_session=True
    )
    yield child.pid
    child.kill()
    child.wait()


def test_its_end_is_seen_without_a_look_at_every_process(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """P9: a host has hundreds, and the next engine waits for it."""
    ends = Ends(bench, monkeypatch)
    assert (ends.seen.alive, ends.seen.doubtful, ends.looks) == ((), (), 0)


@pytest.mark.parametrize("world", [{"told": False}, {"adopts": False}])
def test_where_nobody_looked_before_or_nothing_is_adopted_all_are_looked_at(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, world: dict[str, bool]
) -> None:
    ends = Ends(bench, monkeypatch, **world)
    assert (ends.seen.alive, ends.looks) == ((), 1)


def test_where_the_kernel_lists_no_children_all_are_looked_at(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(process, "lists_children", lambda: False)
    assert Ends(bench, monkeypatch).looks == 1


def test_another_child_of_ours_may_have_been_its_own(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, sleeper: int
) -> None:
    assert Ends(bench, monkeypatch, other=sleeper).looks == 1


def test_who_was_known_to_be_of_it_is_looked_for_whosever_child_it_is(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, sleeper: int
) -> None:
    ends = Ends(bench, monkeypatch, known=sleeper)
    assert ends.seen.alive == (sleeper,)


def test_what_its_leader_leaves_in_its_last_moment_ends_before_another_starts(
    rig: Rig, tmp_path: Path
) -> None:
    """F65: after the look that went with the signal, in a session of its own."""
    rig.start_agent().registered()
    port, file = free_port(), tmp_path / "left"
    command = ("sh", "-c", LEAVES_ONE.format(file))
    rig.start(1, command=command, stop=Stop(grace_s=0.5), port=port)
    pid = rig.control.shard("alpha-1/0", "starting")["pid"]
    until(lambda: "trap" in Path(f"/proc/{pid}/cmdline").read_text(), "its exec")
    rig.stop(1)
    rig.start(2, port=port, after=AFTER)
    until(lambda: not alive(pid), "the end of its leader")
    rig.control.shard("alpha-2/0", "starting")
    assert not alive(int(file.read_text()))
    rig.control.shard("alpha-2/0", "ready")
    assert rig.control.refused == []
