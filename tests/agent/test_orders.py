"""A stop that is to be obeyed before gateways may ask the engine again, by the agent's own clock."""

from __future__ import annotations

import pytest

from llmgw.agent.orders import in_time
from llmgw.clock import Stamps, later
from llmgw.core.types.messages import Command, DrainShard, SendReport, StopShard
from tests.agent.rig import Rig, alive


class Clock:
    now = 500.0

    def __call__(self) -> float:
        return self.now


def stop(not_after: str) -> StopShard:
    about = {"seq": 7, "session": "s1", "epoch": 3, "leader_uuid": "L"}
    return StopShard(shard="a-1/0", incarnation="i", reason="evict", not_after=not_after, **about)  # type: ignore[arg-type]


def test_it_is_a_stop_until_then_and_a_drain_afterwards() -> None:
    clock = Clock()
    stamps = Stamps(clock)
    order = stop(later(stamps.now(), 3.0))
    clock.now += 3.0
    assert in_time(order, stamps) is order
    clock.now += 0.01
    found = in_time(order, stamps)
    assert isinstance(found, DrainShard)
    assert (found.shard, found.incarnation, found.reason) == ("a-1/0", "i", "evict")
    assert (found.seq, found.session, found.epoch, found.leader_uuid) == (7, "s1", 3, "L")


@pytest.mark.parametrize("not_after", ["another 1e9", "1e9", "nonsense"])
def test_by_another_process_s_clock_it_is_late(not_after: str) -> None:
    """The agent was started again meanwhile: nobody knows how long ago that was said."""
    assert isinstance(in_time(stop(not_after), Stamps(Clock())), DrainShard)


@pytest.mark.parametrize("command", [stop(""), SendReport()])
def test_what_has_no_end_is_obeyed_whenever_it_comes(command: Command) -> None:
    assert in_time(command, Stamps(Clock())) is command


def test_a_moment_is_given_back_as_it_came() -> None:
    stamps = Stamps(Clock())
    assert stamps.at_s(stamps.now()) == 500.0
    assert stamps.at_s(later(stamps.now(), 2.5)) == 502.5
    assert later("", 1.0) == later("nonsense", 1.0) == ""


def test_an_agent_ends_an_engine_in_time_and_lets_it_drain_when_it_is_late(rig: Rig) -> None:
    rig.start_agent().registered()
    first, second = rig.ready(1), rig.ready(2)
    (at,) = {e["at"].partition(" ")[0] for e in rig.control.events}
    rig.stop(1, not_after=f"{at} 1.0")
    assert rig.control.shard("alpha-1/0", "draining")["pid"] == first["pid"]
    rig.stop(2, not_after=later(rig.control.events[-1]["at"], 600.0))
    rig.control.shard("alpha-2/0", "stopped")
    assert (alive(first["pid"]), alive(second["pid"])) == (True, False)
    rig.stop(1)
    rig.control.shard("alpha-1/0", "stopped")
