"""What a pass writes at once, and what may wait for the next commit: a client would wait behind it (P9)."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import pytest
from msgspec.structs import replace

from llmgw.control.keep import LATER_S
from llmgw.control.loop import Control
from llmgw.control.picture import Change
from llmgw.control.store import read_memory
from llmgw.core.types.messages import Start, StopShard
from tests.control.bench import ON_DEMAND, Agent, Bench, engine, scenario, started


def commits(control: Control) -> list[Change]:
    """Those from now on."""
    seen: list[Change] = []
    save = control.store.save

    def noted(change: Change, *args: Any, **more: Any) -> None:
        seen.append(change)
        save(change, *args, **more)

    control.store.save = noted  # type: ignore[method-assign]
    return seen


async def idle_until_it_drains(bench: Bench, control: Control, agent: Agent) -> None:
    """With nothing else that waits to be written."""
    while not control.state.draining:
        await agent.tell()
        await bench.demand(control.routes.version)
        await bench.later(2 * LATER_S)
        for _ in range(9):
            if not control.state.draining:
                await bench.later(1)
    assert control.state.draining["inc-alpha-1"].reason == "idle"


def written(bench: Bench) -> list[tuple[str, str]]:
    return [
        (s.shard, s.state) for node, _ in read_memory(bench.inventory).nodes for s in node.shards
    ]


@scenario
async def test_an_order_is_on_the_disk_before_it_is_sent_and_what_follows_waits(
    bench: Bench,
) -> None:
    """A start in one commit; that it starts, loads and is ready in another one, all of it."""
    async with bench.running() as control:
        agent = Agent(bench)
        await agent.register()
        (order,) = [c for c in await agent.poll() if isinstance(c, Start)]
        assert (order.shard, "pending") in written(bench)
        await bench.later(2 * LATER_S)
        seen = commits(control)
        for state in ("starting", "loading", "ready"):
            await agent.tell(started(order, state))
        assert (await bench.get("/gateway/v1/routes?version=0"))["models"]["alpha"]["replicas"]
        assert seen == []
        assert written(bench) == [(order.shard, "pending")]
        await bench.later(LATER_S)
        (change,) = seen
        assert (change.durable, len(change.events) > 0) == (False, True)
        assert written(bench) == [(order.shard, "ready")]
        await bench.later(10)
        assert len(seen) == 1


@scenario
async def test_it_waits_for_no_further_fact_and_no_longer_than_it_says(bench: Bench) -> None:
    """The loop makes a pass of its own then: no second goes by for it."""
    async with bench.running() as control:
        agent = Agent(bench)
        await agent.register()
        await bench.later(2 * LATER_S)
        seen = commits(control)
        await agent.tell(engine())
        began = bench.clock.now
        for _ in range(50):
            if seen:
                break
            bench.clock.now += LATER_S / 10
            control._wake.set()
            await control.ask(lambda _: None, urgent=False)
        assert seen
        assert bench.clock.now - began == pytest.approx(LATER_S, abs=LATER_S / 5)


@scenario
async def test_a_drain_is_written_where_it_begins_and_its_end_may_wait(bench: Bench) -> None:
    """A65: a stop is sent when the drain before it is in the file; said again it costs nothing more."""
    bench.catalog.write_text(ON_DEMAND)
    async with bench.running() as control:
        agent = Agent(bench)
        agent.runs(engine())
        await agent.register()
        await bench.demand(1, in_flight={"alpha-1": 1})
        await bench.later(2 * LATER_S)
        seen = commits(control)
        await bench.post("/api/v1/models/first/stop")
        assert [c.durable for c in seen] == [True]
        assert list(read_memory(bench.inventory).draining) == ["inc-alpha-1"]
        await agent.poll()
        await bench.demand(control.routes.version)
        (stop,) = [c for c in await agent.poll() if isinstance(c, StopShard)]
        assert [c.durable for c in seen] == [True]
        await agent.tell(replace(engine(), state="stopped", desired="stopped"))
        assert await agent.poll() == ()  # its end is not recorded here yet
        await bench.later(LATER_S)
        assert [c.durable for c in seen] == [True, False]
        assert [type(c).__name__ for c in await agent.poll()] == ["ForgetShard"]
        await agent.tell(gone=((stop.shard, stop.incarnation),))
        await bench.later(LATER_S)
        assert not any(c.durable for c in seen[1:])
        assert read_memory(bench.inventory).draining == {}


@scenario
async def test_a_drain_that_nobody_asked_for_waits_for_no_disk_and_is_there_before_its_stop(
    bench: Bench,
) -> None:
    """P9, A65: a client may wait for it. Until then the next control begins it anew, or its agent tells of it."""
    bench.catalog.write_text(ON_DEMAND)
    async with bench.running() as control:
        agent = Agent(bench)
        agent.runs(engine())
        await agent.register()
        await bench.demand(control.routes.version)
        seen = commits(control)
        await idle_until_it_drains(bench, control, agent)
        assert not [c for c in seen if c.draining]
        assert read_memory(bench.inventory).draining == {}
        assert [type(c).__name__ for c in await agent.poll()] == ["DrainShard"]
        await bench.demand(control.routes.version)
        assert [type(c).__name__ for c in await agent.poll()] == ["StopShard"]
        assert list(read_memory(bench.inventory).draining) == ["inc-alpha-1"]
        (began,) = [c for c in seen if c.draining]
        assert (began.durable, began.ends) == (False, True)
        assert not began.may_wait({"box1"})


@scenario
async def test_and_it_is_in_the_file_a_moment_later_if_no_stop_follows(bench: Bench) -> None:
    bench.catalog.write_text(ON_DEMAND)
    async with bench.running() as control:
        agent = Agent(bench)
        agent.runs(engine())
        await agent.register()
        await bench.demand(control.routes.version)
        await idle_until_it_drains(bench, control, agent)
        assert read_memory(bench.inventory).draining == {}
        await bench.later(LATER_S)
        assert list(read_memory(bench.inventory).draining) == ["inc-alpha-1"]


@scenario
async def test_what_waits_is_written_at_the_end(bench: Bench) -> None:
    async with bench.running():
        agent = Agent(bench)
        await agent.register()
        await bench.later(2 * LATER_S)
        await agent.tell(engine())
        assert ("alpha-1/0", "ready") not in written(bench)
    assert ("alpha-1/0", "ready") in written(bench)


@scenario
async def test_a_failed_write_does_not_hurry_the_next(bench: Bench) -> None:
    """What may wait is due no sooner than a try is allowed again: else passes would follow each other without rest."""
    async with bench.running() as control:
        agent = Agent(bench)
        await agent.register()
        await bench.later(2 * LATER_S)
        await agent.tell(engine())
        with suppress(OSError):
            control.store.close()
        bench.inventory.unlink()
        bench.inventory.mkdir()
        await bench.later(LATER_S)
        assert control.keeper.problem
        assert control.keeper.due_s == float("inf")
        bench.inventory.rmdir()
        await bench.later(6)
        assert control.keeper.problem == ""
        assert ("alpha-1/0", "ready") in written(bench)
