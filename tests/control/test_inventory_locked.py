"""Another program holds the inventory locked, for a moment or for good: nobody waits for it but history (F13).

At the start there is no epoch and no lead until it lets go (F15). What a file in other trouble does: `test_inventory`.
"""

import sqlite3
import threading
import time
from contextlib import ExitStack

from msgspec.structs import replace

from llmgw.control.keep import PAUSE_S
from llmgw.control.store import BUSY_S, read_memory
from tests.control.bench import SOON_S, Agent, Bench, engine, scenario
from tests.control.test_inventory import Fleet, locked


@scenario
async def test_f13_a_lock_costs_one_wait_now_and_then_and_not_every_pass(bench: Bench) -> None:
    """However long another program holds the file, and however much comes in meanwhile."""
    async with bench.running():
        agent = Agent(bench)
        await agent.register()
        with locked(bench.inventory):
            began, passes = time.monotonic(), 40
            for n in range(passes):
                await agent.tell(engine(f"alpha-{n}", port=18100 + n))
            assert await agent.register() == dict.fromkeys((s for s, _ in agent.shards), "keep")
            await bench.later(1)
            assert time.monotonic() - began < passes * BUSY_S / 4
            assert bench.events("inventory")


@scenario
async def test_f13_the_only_record_of_an_end_is_not_dropped_while_it_cannot_be_written(
    bench: Bench,
) -> None:
    """An agent deletes its record of an ended shard once told to: not before control has it on the disk."""
    async with bench.running():
        agent = Agent(bench)
        await agent.register()
        shard = await agent.start_one("loading")
        with locked(bench.inventory):
            await agent.tell(replace(shard, state="failed", error="exit 1"))
            await bench.passes(2 * PAUSE_S, agent)
            assert "forget" not in bench.orders(agent)
            assert read_memory(bench.inventory).failures == {}
        await bench.passes(2 * PAUSE_S, agent)
        assert "forget" in bench.orders(agent)
        assert list(read_memory(bench.inventory).failures) == ["alpha"]


@scenario
async def test_f13_a_lock_that_is_let_go_in_time_is_not_even_mentioned(bench: Bench) -> None:
    async with bench.running() as control:
        agent = Agent(bench)
        await agent.register()
        assert control.store._db
        control.store._db.execute(
            f"PRAGMA busy_timeout={SOON_S * 1000:.0f}"
        )  # however slow this machine is
        other = sqlite3.connect(bench.inventory, isolation_level=None, check_same_thread=False)
        other.execute("BEGIN EXCLUSIVE")
        threading.Timer(0.05, other.rollback).start()
        await agent.tell(engine())
        await bench.later(1)
        assert bench.events("inventory") == []
        assert [n.shards[0].shard for n, _ in read_memory(bench.inventory).nodes] == ["alpha-1/0"]
        other.close()


@scenario
async def test_f13_f15_a_lock_at_the_start_is_waited_out_while_routes_stay(bench: Bench) -> None:
    """No epoch, no lead; the moment the lock goes, an epoch above every one that was seen."""
    fleet = Fleet(bench)
    async with bench.running(crash=True):
        await fleet.begins()
    with ExitStack() as stack:
        stack.enter_context(locked(bench.inventory))
        async with bench.running() as control:
            fleet.box1.report = replace(fleet.box1.report, epoch_seen=77)
            for _ in range(3):
                await fleet.box1.register()
                assert (fleet.box1.said.leader, fleet.box1.said.epoch) == (False, 0)
            stack.close()
            await bench.later(2)
            assert control.state.epoch == 78
            assert await fleet.box1.register() == {"alpha-1/0": "adopt"}
            assert (fleet.box1.said.leader, fleet.box1.said.epoch) == (True, 78)
            assert await fleet.routed() == ["alpha-1"]
            assert bench.orders(fleet.box1) == []
