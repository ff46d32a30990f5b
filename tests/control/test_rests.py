"""What gateways leave alone until they are answered may go in the turn that hears of it, where their word is fresh."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from llmgw.control.rests import Rests
from llmgw.core.types.messages import StopShard
from llmgw.core.types.routes import REST_OBEYED_S, REST_TAKEN_S, Demand, Heard
from tests.control.bench import Agent, Bench, engine, scenario
from tests.control.test_wake import ONE, catalog


class Clock:
    now = 50.0

    def __call__(self) -> float:
        return self.now


def test_it_is_taken_while_it_cannot_be_older_than_a_moment() -> None:
    clock = Clock()
    mine = Rests(clock)
    demand = Demand(gateway="g", n=1, resting=("a-1",), heard=mine.at())
    clock.now += REST_TAKEN_S - 0.01
    assert mine.taken(demand).resting == ("a-1",)
    clock.now += 0.02
    assert mine.taken(demand).resting == ()


@pytest.mark.parametrize(
    "heard", ["", "50.0", "x", "another 50.0", "{mine} ", "{mine} x", "{mine} nan"]
)
def test_it_is_not_taken_by_a_time_that_is_not_this_control_s(heard: str) -> None:
    """One that was started again may run on another box, behind the same address."""
    clock = Clock()
    it = Rests(clock)
    mine = it.at().partition(" ")[0]
    assert Rests(clock).at().partition(" ")[0] != mine
    told = Demand(gateway="g", n=1, resting=("a-1",), heard=heard.format(mine=mine))
    assert it.taken(told).resting == ()


async def met(bench: Bench, clock: Clock, at: str = "its 100.0") -> Agent:
    """It keeps a start back until what makes its room has ended, and has been told for a while what nobody uses."""
    catalog(bench)
    bench.control.rests = Rests(clock)
    agent = Agent(bench, capacity=ONE, follows=True)
    agent.at = at
    agent.runs(engine())
    await agent.register()
    await bench.serves(65, agent)
    return agent


async def asks(bench: Bench, n: int = 10_001, heard: str = "", **said: Any) -> Heard:
    """A gateway that has just been answered tells of somebody who waits for beta."""
    heard = heard or (await bench.demand(n - 1)).at
    return await bench.demand(n, heard=heard, **{"waiting": {"beta": 1}, **said})


def stop(bench: Bench, agent: Agent) -> StopShard:
    queue = bench.control.sessions.get(agent.session).queue.values()
    (order,) = (c for c in queue if isinstance(c, StopShard))
    return order


@scenario
async def test_a64_what_rests_goes_in_one_turn_and_what_it_is_for_follows(bench: Bench) -> None:
    catalog(bench)
    clock = Clock()
    async with bench.running():
        agent = await met(bench, clock)
        before = bench.control.routes.version
        heard = (await bench.demand(10_000)).at
        clock.now += 1.0
        said = await asks(bench, heard=heard, resting=("alpha-1",))
        assert bench.orders(agent) == ["stop", "start"]
        assert said.version > before, "the table that shows it is out before its gateway is told"
        (route,) = bench.control.routes.models["alpha"].replicas
        assert route.state == "draining"
        assert not any(g.demand.resting for g in bench.control.state.gateways.values())
        until = f"its {100.0 + REST_OBEYED_S:.3f}"
        assert stop(bench, agent).not_after == until, "from when the gateway was answered last"


@pytest.mark.parametrize("why", ["another gateway", "old", "another replica", "no word"])
def test_a65_else_every_gateway_has_to_say_that_it_has_the_table(tmp_path: Path, why: str) -> None:
    scenario(lambda bench: asked(bench, why))(tmp_path)


async def asked(bench: Bench, why: str) -> None:
    catalog(bench)
    async with bench.running():
        agent = await met(bench, Clock())
        if why == "another gateway":
            await bench.demand(1, "g2")
        heard = (await bench.demand(10_000)).at
        if why == "old":
            heard = f"{heard.partition(' ')[0]} 1.0"
        rests = {"another replica": ("alpha-2",), "no word": ()}.get(why, ("alpha-1",))
        await asks(bench, heard=heard, resting=rests)
        assert bench.orders(agent) == ["drain"]
        await bench.demand(10_002, waiting={"beta": 1})
        if why == "another gateway":
            assert bench.orders(agent) == ["drain"]
            await bench.demand(2, "g2")
        assert bench.orders(agent) == ["stop", "start"]
        assert stop(bench, agent).not_after == "", "obeyed whenever it comes"


@pytest.mark.parametrize("at", ["", "100.0", "its", "its soon"])
def test_an_agent_whose_clock_is_not_known_is_not_hurried(tmp_path: Path, at: str) -> None:
    """An older one obeys an order of any age."""

    async def story(bench: Bench) -> None:
        catalog(bench)
        async with bench.running():
            agent = await met(bench, Clock(), at)
            await asks(bench, resting=("alpha-1",))
            assert bench.orders(agent) == ["drain", "start"]
            await bench.demand(10_002, waiting={"beta": 1})
            assert sorted(bench.orders(agent)) == ["start", "stop"]

    scenario(story)(tmp_path)


@pytest.mark.parametrize("before", [False, True])
def test_an_order_that_the_disk_held_up_does_not_go_out_by_an_old_word(
    tmp_path: Path, before: bool
) -> None:
    """A commit of 6 s: the gateway has given up waiting, and may be asking what it had left alone.

    `before`: its drain began in an earlier turn, of which that gateway has not the table yet.
    """

    async def story(bench: Bench) -> None:
        catalog(bench)
        clock = Clock()
        async with bench.running():
            keep = bench.control.keeper.keep

            def slow(*a: Any, **k: Any) -> bool:
                clock.now += 6.0 if k.get("stops") else 0.0
                return keep(*a, **k)

            agent = await met(bench, clock)
            table = bench.control.routes.version
            heard = (await bench.demand(10_000)).at
            if before:
                await asks(bench, 10_001, heard, table=table)
                assert bench.orders(agent) == ["drain"]
            bench.control.keeper.keep = slow  # type: ignore[method-assign]
            more = {"beta": 2 if before else 1}
            await asks(bench, 10_002, heard, resting=("alpha-1",), table=table, waiting=more)
            assert bench.orders(agent) == ["drain", "start"]
            await bench.demand(10_003, waiting={"beta": 1})
            assert sorted(bench.orders(agent)) == ["start", "stop"]

    scenario(story)(tmp_path)
