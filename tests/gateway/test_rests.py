"""What is idle is asked nothing while control chooses from it: no longer than that, and never what somebody uses."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from llmgw.core.types.routes import (
    GATEWAY_GONE_S,
    REST_OBEYED_S,
    REST_S,
    REST_TAKEN_S,
    RouteModel,
    RouteReplica,
    RouteTable,
)
from llmgw.gateway import feed
from llmgw.gateway.plane import OWED_S
from llmgw.gateway.rests import Rests
from tests.gateway.fake_control import FakeControl, fake_control
from tests.gateway.peers import Client, request, silence
from tests.gateway.rig import Rig, loaded, rig, run, table
from tests.gateway.test_feed import linked

IDLE, WANTED = {"model": "idle"}, {"model": "wanted"}
NONE_RUNS = RouteModel(status="unloaded")


@asynccontextmanager
async def chosen(
    folder: Path, *, sleeps: bool = False, busy: RouteModel = NONE_RUNS
) -> AsyncIterator[tuple[FakeControl, Rig, RouteReplica]]:
    """A control that has answered before, one idle replica, and a model that nobody serves."""
    async with fake_control() as control, rig() as world:
        control.at = "it 1.5"
        engine = await world.engine(name="e1")
        replica = RouteReplica(replica="r-idle", endpoint=engine.replica().endpoint, sleeps=sleeps)
        await control.publish(table(5, idle=loaded(replica), wanted=NONE_RUNS, busy=busy))
        async with linked(world, folder, control) as link:
            await control.demand(table=5, heard="it 1.5")
            await world.until(lambda: not link.feed.controls[0].turn.locked())
            control.answers.clear()
            yield control, world, replica
            control.answers.set()


async def waits(world: Rig, model: dict[str, str]) -> Client:
    before = sum(world.waiting().values())
    client = await world.client()
    client.send(request(model))
    await world.until(lambda: sum(world.waiting().values()) > before)
    return client


async def told(control: FakeControl, world: Rig, wanted: int = 1) -> tuple[Client, dict[str, Any]]:
    """One more request that waits for what nobody serves, and the demand that says so."""
    since = len(control.demands)
    client = await waits(world, WANTED)
    return client, await control.demand(since, waiting={"wanted": wanted})


def rests(world: Rig) -> list[str]:
    return [e.replica for e in world.gateway.fleet.endpoints() if e.resting]


def test_what_is_idle_rests_until_control_has_answered(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with chosen(tmp_path) as (control, world, _):
            wanted, demand = await told(control, world)
            assert (demand["resting"], demand["in_flight"]) == (["r-idle"], {})
            idle = await waits(world, IDLE)
            assert world.gateway.meter.model("idle").wakeups == 0, "it was up all the time"
            control.answers.set()  # with the table in use: nothing came of it
            assert (await idle.answer()).status == 200
            assert rests(world) == []
            wanted.reset()

    run(scenario())


def test_what_control_took_is_asked_nothing_after_the_answer_either(tmp_path: Path) -> None:
    """The answer may be here before the table it tells of."""

    async def scenario() -> None:
        async with chosen(tmp_path) as (control, world, replica):
            wanted, demand = await told(control, world)
            assert demand["resting"] == ["r-idle"]
            going = table(
                7,
                idle=RouteModel(
                    status="unloaded",
                    replicas=(RouteReplica(replica="r-idle", endpoint=replica.endpoint, state="draining"),),
                ),
                wanted=NONE_RUNS,
            )  # fmt: skip
            control.ahead = 2
            control.answers.set()
            await control.demand(table=5)  # the next one: that answer was read
            idle = await waits(world, IDLE)
            assert rests(world) == ["r-idle"]
            await control.publish(going)
            await world.until(lambda: not rests(world))
            assert world.waiting() == {"idle": 1, "wanted": 1}
            await control.publish(table(8, idle=loaded(replica), wanted=NONE_RUNS))
            assert (await idle.answer()).status == 200
            wanted.reset()

    run(scenario())


def test_an_older_table_that_comes_late_ends_no_rest(tmp_path: Path) -> None:
    """Nor does the same replica at another address, which is new to this process."""

    async def scenario() -> None:
        async with chosen(tmp_path) as (control, world, replica):
            wanted, demand = await told(control, world)
            assert demand["resting"] == ["r-idle"]
            other = await world.engine(name="e2")
            moved = RouteReplica(replica="r-idle", endpoint=other.replica().endpoint)
            for version, routed in ((6, replica), (7, moved)):
                world.use(table(version, idle=loaded(routed), wanted=NONE_RUNS))
                assert rests(world) == ["r-idle"]
            idle = await waits(world, IDLE)
            control.table = table(8, idle=loaded(moved), wanted=NONE_RUNS)
            control.answers.set()
            await control.notify()
            assert (await idle.answer()).status == 200
            wanted.reset()

    run(scenario())


@pytest.mark.parametrize("gone", [False, True])
def test_without_an_answer_it_is_over_after_a_while(tmp_path: Path, gone: bool) -> None:
    """Also where nothing listens any more: the control that was told may have been killed in the middle."""

    async def scenario() -> None:
        async with chosen(tmp_path) as (control, world, _):
            wanted, demand = await told(control, world)
            assert demand["resting"] == ["r-idle"]
            if gone:
                await control.stop()
            idle = await waits(world, IDLE)
            for seconds in (1.0, 2.0, 1.9):
                world.pass_time(seconds)
                assert rests(world) == ["r-idle"]
            world.pass_time(0.1)
            assert (await idle.answer()).status == 200
            wanted.reset()

    run(scenario())


def test_what_is_used_or_may_sleep_is_left_as_it_is(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with rig() as other:
            busy = await other.engine(silence, name="busy")
            two = RouteReplica(replica="r-busy", endpoint=busy.replica().endpoint)
            async with chosen(tmp_path, sleeps=True, busy=loaded(two)) as (control, world, _):
                client = await world.client()
                client.send(request({"model": "busy"}))
                await world.until(lambda: world.in_flight() == {"r-busy": 1})
                wanted, demand = await told(control, world)
                assert (demand["resting"], rests(world)) == ([], [])
                wanted.reset()
                client.reset()

    run(scenario())


def test_only_once_for_a_model_and_not_for_one_that_comes_up(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with chosen(tmp_path) as (control, world, replica):
            control.answers.set()
            one, demand = await told(control, world)
            assert demand["resting"] == ["r-idle"]
            # Told each second, and not for each request that joins those that wait.
            two = await waits(world, WANTED)
            assert (await control.demand(waiting={"wanted": 2}))["resting"] == []
            since = len(control.demands)
            one.reset()
            two.reset()
            await control.demand(since, waiting={})
            loading = RouteModel(status="loading")
            await control.publish(table(6, idle=loaded(replica), wanted=loading))
            await control.demand(table=6)
            three, demand = await told(control, world)
            assert demand["resting"] == []
            three.reset()

    run(scenario())


@pytest.mark.parametrize("who", ["older", "stands by", "undecided"])
def test_nothing_rests_for_who_makes_nothing_of_it(tmp_path: Path, who: str) -> None:
    async def scenario() -> None:
        async with fake_control() as control, rig() as world:
            control.at = "" if who == "older" else "it 1.5"
            control.stands_by, control.undecided = who == "stands by", who == "undecided"
            engine = await world.engine()
            await control.publish(table(5, idle=loaded(engine.replica()), wanted=NONE_RUNS))
            async with linked(world, tmp_path, control):
                await control.demand(heard=control.at, table=5)
                wanted, demand = await told(control, world)
                assert demand["resting"] == []
                wanted.reset()

    run(scenario())


def test_an_answered_one_waits_for_its_table_however_long(tmp_path: Path) -> None:
    """Its poll may be dead while demand goes through: it is asked for anew, by another connection."""

    async def scenario() -> None:
        async with chosen(tmp_path) as (control, world, replica):
            wanted, demand = await told(control, world)
            assert demand["resting"] == ["r-idle"]
            control.ahead = 2
            control.answers.set()
            await control.demand(table=5)
            world.pass_time(REST_S + 1)
            world.pass_time(1)
            assert rests(world) == ["r-idle"]
            polls = len(control.polls)
            world.clock.now += OWED_S
            await control.until(lambda: len(control.polls) > polls)
            assert control.polls[-1].path.endswith("?version=5")
            await control.publish(table(7, idle=loaded(replica), wanted=NONE_RUNS))
            await world.until(lambda: not rests(world))
            wanted.reset()

    run(scenario())


def test_a_gateway_that_was_stopped_reads_first_what_came_meanwhile(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with chosen(tmp_path) as (control, world, _):
            wanted, _ = await told(control, world)
            world.pass_time(60.0)
            assert rests(world) == ["r-idle"]
            world.pass_time(1.0)
            assert rests(world) == []
            wanted.reset()

    run(scenario())


def test_nothing_rests_over_and_over_for_a_control_that_is_slow(tmp_path: Path) -> None:
    """One client that asks and leaves would have all that is idle wait with it."""

    async def scenario() -> None:
        async with chosen(tmp_path) as (control, world, _):
            wanted, demand = await told(control, world)
            assert demand["resting"] == ["r-idle"]
            world.clock.now += 2.0
            control.answers.set()
            wanted.reset()
            await control.demand(waiting={})
            wanted, demand = await told(control, world)
            assert demand["resting"] == []
            since = len(control.demands)
            wanted.reset()
            await control.demand(since, waiting={})
            world.clock.now += 2.0 * feed.SPARED
            wanted, demand = await told(control, world)
            assert demand["resting"] == ["r-idle"]
            wanted.reset()

    run(scenario())


def test_each_promise_is_over_by_its_own_table() -> None:
    all_of_them = Rests()
    first = all_of_them.begin(frozenset("a"), 10.0)
    second = all_of_them.begin(frozenset("ab"), 11.0)
    first.version, second.version = 5, 6
    all_of_them.uses(5)
    assert all_of_them.replicas == {"a", "b"}
    all_of_them.look(11.0 + GATEWAY_GONE_S - 0.1)
    assert all_of_them.replicas == {"a", "b"}
    all_of_them.uses(6)
    assert all_of_them.replicas == frozenset()


def test_control_has_the_time_for_its_order_to_arrive() -> None:
    assert REST_TAKEN_S < REST_OBEYED_S < REST_S
    assert feed.POST_S <= REST_S


def test_a_table_without_the_model_ends_it_as_well() -> None:
    async def scenario() -> None:
        async with rig() as world:
            engine = await world.engine()
            world.use(table(1, idle=loaded(engine.replica())))
            rest = world.gateway.fleet.rest((), world.clock())
            assert rest is not None
            world.use(RouteTable(version=2))
            world.gateway.answered(rest, 2)
            world.use(table(3, idle=loaded(engine.replica())))
            assert (await world.ask(IDLE)).status == 200
            await asyncio.sleep(0)

    run(scenario())
