"""Models that take turns on a card: what gateways leave alone (`Demand.resting`) control ends at once, cutting nobody.

Whatever comes late, is stopped, or waits. Each part of the promise is needed: without it the story cuts a stream.
"""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace
from typing_extensions import override

from llmgw.clock import Stamps
from llmgw.control import rests as taken
from llmgw.core.types.messages import StopShard
from llmgw.core.types.routes import Demand
from llmgw.gateway import rests as given
from tests.sim.commands import Commands
from tests.sim.gateways import SLOW
from tests.sim.judge import Broken

WORLD = """
node box1 gpus=24
model alpha min=0 idle=70 min_up=0 memory=whole load=1
model beta min=0 idle=70 min_up=0 memory=whole load=1
start box1 control gateway
advance 65s
ask alpha 1
advance 20s
"""
#: What follows is by seconds from here, just after its gateway has spoken.
BEGINS_S = 100.0
ASKED_MEANWHILE = """
-0.6 ask alpha 0.1
0.0 ask beta 1
0.2 ask alpha 30
20.0
"""
#: The demand reaches a control that is stopped, and what its gateway says afterwards reaches nobody.
HEARD_LATE = """
-0.6 ask alpha 0.1
0.0 freeze control for=6.5 ; ask beta 1
0.2 silent gateway for=40
5.5 ask alpha 30
25.0
"""
#: It is stopped with the order in its hand.
SENT_LATE = """
-0.6 ask alpha 0.1
0.0 freeze control at=before-send nth={} for=6.5 within=3 ; ask beta 1
0.2 silent gateway for=40
5.8 ask alpha 30
25.0
"""
#: It is on its way when the box of agent and gateway is cut off for a while; what they ask each other goes on.
OBEYED_LATE = """
-0.6 ask alpha 0.1
0.0 ask beta 1
0.2 cut box1 control for=6 ; cut control box1 for=6 ; silent gateway for=40
5.8 ask alpha 30
25.0
"""
STORIES = (ASKED_MEANWHILE, HEARD_LATE, OBEYED_LATE, *(SENT_LATE.format(n) for n in range(1, 5)))


class Prompt(given.Rests):
    """By true seconds: this gateway has spoken a moment ago (`SLOW`)."""

    @override
    def begin(self, replicas: frozenset[str], now: float) -> given.Rest:
        return super().begin(replicas, now * SLOW)

    @override
    def look(self, now: float) -> bool:
        return super().look(now * SLOW)


class RestsNot(given.Rests):
    """A gateway that says it, and goes on asking what it said it would leave alone."""

    @override
    def look(self, now: float) -> bool:
        return self._keep([])


class TakesAll(taken.Rests):
    """A control that takes any word, however old."""

    @override
    def taken(self, demand: Demand) -> Demand:
        now = replace(demand, heard=self.at()) if demand.resting else demand
        return super().taken(now)


class SendsAll(taken.Rests):
    """One that does not look again before it sends, nor says how long its order is good."""

    @override
    def bound(self, order: StopShard, agent_at: str, heard_s: float) -> StopShard | None:
        return order


class Delivers(taken.Rests):
    """One that looks again, and sends orders that are obeyed whenever they come."""

    @override
    def bound(self, order: StopShard, agent_at: str, heard_s: float) -> StopShard | None:
        return order if super().bound(order, agent_at, heard_s) is not None else None


def begun(gives: type[given.Rests] = Prompt, takes: type[taken.Rests] = taken.Rests) -> Commands:
    commands = Commands()
    for line in WORLD.strip().split("\n"):
        list(commands.run(line))
    sim = commands.sim
    sim.gateways[0].rests = gives()
    sim.controls["control"].rests = takes(lambda: sim.clock.now)
    sim.agents["box1"].stamps = Stamps(lambda: sim.clock.now)
    return commands


def plays(commands: Commands, story: str) -> Commands:
    for line in story.strip().split("\n"):
        at_s, _, words = line.partition(" ")
        list(commands.run(f"at {BEGINS_S + float(at_s):.2f} {words}"))
    return commands


@pytest.mark.parametrize("story", STORIES)
def test_nobody_is_cut(story: str) -> None:
    commands = plays(begun(), story)
    for line in ("calm", "rest"):
        list(commands.run(line))


def test_it_goes_in_the_turn_that_hears_of_it() -> None:
    commands = plays(begun(), "-0.6 ask alpha 0.1\n0.0 ask beta 1\n0.4")
    engines = [e for e in commands.sim.hosts["box1"].engines if e.start.model == "alpha"]
    assert [e.signals for e in engines] == [["TERM"]]


def cuts(story: str, **flaw: Any) -> bool:
    try:
        plays(begun(**flaw), story)
    except Broken as e:
        return e.invariant == "no stream is cut"
    return False


def test_a_gateway_that_does_not_keep_its_word_cuts_a_stream() -> None:
    assert cuts(ASKED_MEANWHILE, gives=RestsNot)


def test_a_word_that_is_taken_too_late_cuts_a_stream() -> None:
    assert cuts(HEARD_LATE, takes=TakesAll)


def test_an_order_that_is_obeyed_whenever_it_comes_cuts_a_stream() -> None:
    assert cuts(OBEYED_LATE, takes=Delivers)


def test_an_order_that_goes_out_too_late_cuts_a_stream() -> None:
    assert any(cuts(SENT_LATE.format(n), takes=SendsAll) for n in range(1, 5))
