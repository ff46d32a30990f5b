"""What a stray holds until it is seen gone, and the operator's word that frees what cannot be ended (A43, F65-F68)."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from llmgw.core.supervise import durable
from llmgw.core.types.messages import Resources
from llmgw.core.types.node import (
    DeleteRecord,
    Identify,
    Look,
    Measure,
    MemorySeen,
    Signal,
    Spawn,
    TreeSeen,
)
from llmgw.core.types.record import Watch
from tests.core.agent_bench import FACTS, GIB, KEY, Bench, on_gpu, start

ALL = Resources(gpu_memory_bytes=20 * GIB, host_memory_bytes=60 * GIB, cpu_cores=12, power_w=700)
#: What a second start may want of what the first one has, and the word it is refused with.
WANTS: list[tuple[dict[str, Any], str, str]] = [
    ({"port": 18001}, "port_held", "port 18001"),
    ({"port": 18500}, "port_held", "port 18500"),
    (
        {"gpus": ("GPU-0",), "resources": Resources(gpu_memory_bytes=8 * GIB)},
        "gpu_held",
        "gpu GPU-0",
    ),
    ({"gpus": ("GPU-0",)}, "gpu_held", "gpu GPU-0"),
    ({"resources": Resources(host_memory_bytes=8 * GIB)}, "host_memory", "host memory"),
    ({"resources": Resources(cpu_cores=8)}, "cpu_cores", "CPU cores"),
    ({"resources": Resources(power_w=400)}, "power", "power"),
]
HELD = {f"{said[2]}{n}": said for n, said in enumerate(WANTS)}


def holder() -> Bench:
    """An engine that has a bit of everything."""
    b = Bench()
    b.state = replace(
        b.state, facts=replace(FACTS, capacity=replace(FACTS.capacity, power_w=1000.0))
    )
    return b.ready(gpus=("GPU-0",), ports={"group": 18500}, resources=ALL)


def refused(b: Bench, wants: dict[str, Any]) -> tuple[str, str]:
    """How a start is refused that wants this; nothing of it is left behind."""
    reason, resource, why = b.start(2, **wants).refusal()
    assert "alpha-2/0" in why
    assert set(b.state.records) == {KEY}
    return reason, resource


@pytest.mark.parametrize("what", HELD)
def test_everything_of_a_stray_is_held_until_its_memory_is_back(what: str) -> None:
    """A43, F65, F68: ports, GPUs, memory, cores and watts, through every step of its end."""
    wants, *no = HELD[what]
    b = holder()
    assert refused(b, wants) == tuple(no)
    b.stop()
    assert refused(b, wants) == tuple(no)
    b.tree(4711, 4712).exited(0).tree(4712)
    assert refused(b, wants) == tuple(no)
    b.tick(20.0).tree()
    assert refused(b, wants) == tuple(no)
    b.memory(9 * GIB, 4712).memory(9 * GIB).memory(GIB).memory(GIB).memory(GIB)
    assert refused(b, wants) == tuple(no)
    assert b.memory(GIB).record.state == "stopped"
    assert b.start(2, **wants).of(Spawn)


@pytest.mark.parametrize("what", HELD)
def test_what_nobody_can_look_at_holds_all_the_same(what: str) -> None:
    """F45, A43: unverifiable is not free."""
    wants, *no = HELD[what]
    b = holder()
    b.state = replace(b.state, records={KEY: replace(b.record, state="unknown")})
    assert refused(b, wants) == tuple(no)


def test_a_listed_pid_of_its_tree_keeps_the_memory_held() -> None:
    """F68: used memory stands still because a dead process still has it, the tree's or the leader's own."""
    for pid in (4711, 4712):
        b = holder().stop().tree(4711, 4712).exited(0).tree()
        for _ in range(20):
            b.memory(GIB, pid)
        assert b.record.state == "stopping"
        b.memory(GIB).memory(GIB)
        assert b.record.state == "stopping"
        assert b.memory(GIB).record.state == "stopped"


def test_a43_memory_that_does_not_come_back_is_said_after_a_minute_and_what_frees_it() -> None:
    """It was held in silence: `stopping`, with nothing of it left, and no word why nothing starts there."""
    b = holder().stop().tree(4711).exited(0).tree()
    assert b.memory(9 * GIB, 4711, after_s=59.0).record.error is None
    b.memory(9 * GIB, 4711, after_s=2.0)
    assert b.record.error == (
        "stuck: all of it is gone for 61 s, its GPU memory is not back (the driver still lists pids 4711); "
        "its GPUs and ports stay held; llmgw stop --force alpha-1/0 frees them"
    )
    said = b.record.error
    assert b.memory(9 * GIB, 4711, after_s=9.0).record.error == said
    b.memory(GIB).memory(GIB).memory(GIB).memory(GIB)
    assert b.record.state == "stopped"
    assert b.record.error is None


def test_a43_that_memory_is_late_does_not_hide_what_the_engine_died_of() -> None:
    b = holder().exited(1).tree().memory(9 * GIB)
    why = str(b.record.error)
    b.memory(8 * GIB, after_s=61.0)
    assert str(b.record.error).startswith(f"{why}; stuck: all of it is gone for 6")
    assert "(it still falls)" in str(b.record.error)
    b.memory(8 * GIB).memory(8 * GIB).memory(8 * GIB)
    assert b.record.error == why


def test_every_attempt_has_a_term_of_its_own() -> None:
    """The last one's KILL is not this one's: it may serve, and its streams are to end well."""
    b = Bench().ready().exited(-11).tree(4712)
    assert [e.name for e in b.of(Signal)] == ["KILL"]
    assert b.due() == pytest.approx(0.05)  # it is mostly gone at once
    b.tree().spawned(pid=4713).tick(0.1).probe().stop()
    assert [e.name for e in b.of(Signal)] == ["TERM"]


def test_late_looks_say_nothing_about_this_end() -> None:
    """F65: an empty tree of the attempt before is not this one's; a minute of nobody measuring begins once."""
    b = Bench().ready().gone(1).spawned(pid=4712).tick(0.1).probe().stop()
    assert b(TreeSeen(key=KEY, attempt=1)).record.state == "stopping"
    assert not b.record.watch.gone
    b = holder().exited(1).tree().memory(0).memory(0).memory(0).memory(0)
    b.spawned(pid=4712).stop().exited(0).tree()
    for _ in range(5):
        assert b(MemorySeen(key=KEY, attempt=1, used_bytes=0)).record.state == "stopping"
    b = holder().stop().exited(0).tree().memory(None, after_s=30.0)
    assert b.tree(4711).record.watch.gone
    assert b.tree().memory(None, after_s=31.0).record.state == "stopped"


# ---------------------------------------------------------------- what cannot be ended


def stuck(b: Bench) -> Bench:
    """KILL was sent and repeated; a process in D state does not go (F67)."""
    b.stop().tree(4711, 4712).tick(20.0).tree(4711).tick(10.0)
    assert [e.name for e in b.of(Signal)] == ["KILL"]
    return b


def test_what_does_not_die_stays_held_and_says_how_to_free_it() -> None:
    """F67: never "stopped" by itself, however long it takes; KILL is repeated, for a fork may have raced it."""
    b = stuck(holder())
    error = str(b.record.error)
    assert error.startswith("stuck: pids 4711 are still there 10 s after SIGKILL")
    assert "llmgw stop --force alpha-1/0" in error
    assert b.tick(0.05).of(Look)
    assert b.due() == pytest.approx(2.0)  # nothing is in a hurry now
    for _ in range(500):
        b.tick(10.0).tree(4711)
    assert b.record.state == "stopping"
    assert refused(b, {"port": 18001}) == ("port_held", "port 18001")


def test_an_operators_word_releases_what_is_stuck_at_once() -> None:
    """A43, F67: stopped by hand, the pids are named, nothing more is signalled, and all it held is free."""
    b = stuck(holder()).tree(4711).stop(force=True)
    assert b.kinds() == ["WriteRecord", "Changed"]
    assert (b.record.state, b.record.pid, b.record.ending) == ("stopped", None, "")
    assert b.record.error == "released by hand: pids 4711 may still be there"
    assert b.record.released
    assert b.record.watch == Watch(identified=True, story=b.record.watch.story)
    assert not b.tick(3600.0).effects
    assert b.stop(force=True).kinds() == ["Changed"]
    assert b.exited(-9).tree(4711).record.state == "stopped"  # late news of a stranger
    everything = on_gpu(2, gib=20, port=18001, ports={"group": 18500})
    assert b.command(everything).of(Spawn)


def test_force_on_a_running_engine_is_a_stop_without_grace_first() -> None:
    """A43: one TERM, KILL at once, its whole time for the KILL; only what is then still there is released."""
    b = holder().stop(force=True)
    assert [e.name for e in b.of(Signal)] == ["TERM"]
    assert b.due() == 0.0
    assert b.tree(4711).tick().of(Signal) == []  # the KILL came with the look's answer
    assert [e.name for e in b.log if isinstance(e, Signal)] == ["TERM", "KILL"]
    b.tick(9.9).tree(4711)
    assert b.record.state == "stopping"
    b.tick(0.1)
    assert (b.record.state, b.record.released) == ("stopped", True)
    assert b.record.error == "released by hand: pids 4711 may still be there"
    assert not b.of(Signal)


def test_force_on_what_ends_in_time_is_an_ordinary_stop() -> None:
    """Memory included; nothing is a stranger then."""
    b = holder().stop(force=True).tree(4711).exited(-9).tree()
    assert b.of(Measure)
    b.memory(0).memory(0).memory(0)
    assert b.record.state == "stopping"
    b.memory(0)
    assert (b.record.state, b.record.error, b.record.released) == ("stopped", None, False)
    assert b.forget().effects == (DeleteRecord(KEY),)


def test_force_frees_memory_that_never_comes_back() -> None:
    """The tree is gone, the driver lists a dead pid for ever."""
    b = holder().stop().tree(4711).exited(0).tree()
    b.memory(9 * GIB, 4711, after_s=30.0).stop(force=True)
    assert b.record.state == "stopped"
    assert "all of it is gone, its GPU memory was not seen to come back" in str(b.record.error)
    b = holder().stop(force=True).exited(0).tree()
    b.memory(9 * GIB, 4711, after_s=9.0)
    assert b.record.state == "stopping"
    assert b.due() == pytest.approx(0.25)
    b.memory(9 * GIB, 4711, after_s=0.9)
    assert b.due() == pytest.approx(0.1)
    assert b.tick(0.1).record.state == "stopped"


def test_force_in_the_grace_of_an_ordinary_stop_sends_the_kill() -> None:
    """No second TERM."""
    b = holder().stop().tree(4711).tick(1.0)
    assert [e.name for e in b.stop(force=True).of(Signal)] == ["KILL"]
    b.tick(10.0)
    assert b.record.released
    assert [e.name for e in b.log if isinstance(e, Signal)] == ["TERM", "KILL"]


def test_a_later_stop_with_a_grace_does_not_take_the_word_back() -> None:
    b = holder().stop(force=True).tree(4711).stop(grace_s=600.0).tick(10.0)
    assert b.record.released


def test_force_on_processes_that_may_not_be_signalled() -> None:
    """Its leader died, what is left cannot be proved ours: no signal reaches it, an operator's word frees it."""
    b = holder().exited(0).tree(doubtful=(4800,))
    assert b.due() == pytest.approx(2.0)  # nothing to send, so no hurry
    b.tick(60.0).tree(doubtful=(4800,))
    assert not [e for e in b.log if isinstance(e, Signal)]
    b.stop(force=True)
    assert b.record.state == "stopping"
    b.tree(doubtful=(4800,)).tick(10.0)
    assert b.record.state == "stopped"
    assert b.record.error == "released by hand: pids 4800 may still be there"


def test_force_on_what_is_torn_down_to_be_restarted() -> None:
    """It was to come back after a start that took too long; now it is killed and does not."""
    b = Bench().start(start_timeout_s=60.0).spawned().tick(60.0)
    assert (b.record.state, b.record.ending) == ("pending", "restart")
    assert [e.name for e in b.tree(4711).stop(force=True).of(Signal)] == ["KILL"]
    assert b.tick(10.0).record.released
    assert not b.tick(3600.0).of(Spawn)
    b = Bench().ready().gone(1).spawned().gone(1).stop(force=True)  # waits for its next attempt
    assert (b.record.state, b.record.released) == ("stopped", False)


def test_force_while_it_is_being_spawned() -> None:
    b = Bench().start().stop(force=True)
    assert not b.of(Signal)
    b.spawned().tree(4711).tick().tick(10.0)
    assert b.record.released
    b = Bench().start().stop(force=True).spawn_failed("no such binary", fatal=True)
    assert (b.record.state, b.record.released) == ("stopped", False)


def test_force_on_what_cannot_be_looked_at_looks_once_more() -> None:
    """A43: released unsignalled if still nobody can say; ended as any other if somebody can."""

    def unknown() -> Bench:
        b = Bench(durable(holder().record)).identified(error="permission denied")
        return b.stop(force=True)

    b = unknown()
    assert b.one(Identify).record.key == KEY
    assert b.record.state == "unknown"
    b.identified(error="permission denied")
    assert (b.record.state, b.record.released) == ("stopped", True)
    assert b.record.error == "released by hand: pids 4711 may still be there"
    b = unknown().identified(doubtful=(4800, 4801))
    assert b.record.error == "released by hand: pids 4800, 4801 may still be there"
    b = unknown().identified(leader="same").tick()
    assert [e.name for e in b.of(Signal)] == ["TERM"]
    assert b.record.state == "stopping"
    assert not b.tree(4711).tick().record.released
    assert b.tick(10.0).record.released
    b = unknown().identified()
    assert (b.record.state, b.record.watch.gone) == ("stopping", True)  # its memory first
    torn = replace(start(), model="", command=())
    b = Bench(replace(holder().record, start=torn, state="unknown", partial=True, pid=None))
    b.identified(error="permission denied").stop(force=True).identified(error="still")
    assert b.record.error == "released by hand: nothing of it was seen there"


def test_the_word_survives_the_agent() -> None:
    """It is journaled before anything is done about it; after a restart a KILL has its time again."""
    b = stuck(holder())
    b = b.stop(force=True).restarted()
    assert b.state.reattached
    assert b.record.released
    b = holder().stop(force=True).tree(4711).restarted()
    b.identified(leader="same")
    assert b.record.state == "stopping"
    assert [e.name for e in b.tick().of(Signal)] == ["KILL"]
    assert b.tick(10.0).record.released
    b = holder().stop(force=True).tree(4711).restarted().identified(error="permission denied")
    assert b.record.released
    assert not b.of(Signal)


def test_what_was_released_leaves_a_note_when_it_is_forgotten() -> None:
    """Its processes carry its markers: without a note the next agent would take them up as ours."""
    b = stuck(holder()).stop(force=True)
    assert b.forget().effects == (DeleteRecord(KEY, released=True),)
    assert b.stop(force=True).effects == (DeleteRecord(KEY),)  # already gone: said again


def test_force_means_one_incarnation_only() -> None:
    """F75."""
    b = stuck(holder())
    assert b.stop(incarnation="inc-9", force=True).refusal()[0] == "other_incarnation"
    assert b.record.state == "stopping"
    assert not b.of(Look)
