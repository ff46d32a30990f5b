"""Which report of an agent counts for a leader: one that was taken after its agent had stored the leader's epoch."""

from __future__ import annotations

from pathlib import Path

import pytest
from msgspec.structs import replace

from llmgw.core.types.messages import SendReport
from tests.control.bench import Agent, Bench, engine, scenario
from tests.control.test_standby import with_lease


@scenario
async def test_f21_a_report_from_before_the_fence_does_not_count(bench: Bench) -> None:
    """Its agent may have obeyed an older leader since it took it: only what it says after storing our epoch counts."""
    with_lease(bench, held=True)
    async with bench.running():
        agent = Agent(bench, epoch_seen=7, leader_uuid="older")
        await agent.register()
        await bench.later(1)
        assert "box1" not in bench.control.state.nodes
        agent.runs(engine())
        await agent.tell()
        (order,) = await agent.poll()
        assert isinstance(order, SendReport)
        assert await agent.register() == {"alpha-1/0": "adopt"}
        await bench.later(1)
        assert bench.connected("box1")


@pytest.mark.parametrize("kind", ["etcd", "file"])
def test_a42_a_registration_from_before_the_old_leaders_start_does_not_count(
    kind: str, tmp_path: Path
) -> None:
    """Its call is late: it says that nobody commanded its agent and nothing runs there, and an engine does by now."""

    @scenario
    async def story(bench: Bench) -> None:
        hand = with_lease(bench)
        hand.name = kind
        bench.settings = replace(bench.settings, standby=True)
        async with bench.running():
            hand.comes()
            await bench.later(1)
            agent = Agent(bench)
            await agent.register()
            await bench.later(1)
            assert bench.orders(agent) == ["report"], "no second engine"
            agent.runs(engine())
            assert [type(c) for c in await agent.poll()] == [SendReport]
            assert await agent.register() == {"alpha-1/0": "adopt"}
            await bench.passes(20, agent)
            assert bench.orders(agent) == []

    story(tmp_path)


@scenario
async def test_a47_of_the_first_epoch_there_is_nobody_to_fence_off(bench: Bench) -> None:
    """A first start waits for no second report; who obeyed another leader refuses the first epoch of ours."""
    hand = with_lease(bench, held=True)
    hand.epochs = [1]
    async with bench.running():
        agent = Agent(bench)
        await agent.register()
        await bench.later(1)
        assert bench.orders(agent) == ["start"]
