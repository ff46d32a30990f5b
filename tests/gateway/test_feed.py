"""The link to control: tables in, demand out, and going on without it."""

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from llmgw.config import Trust
from llmgw.core.types.routes import RouteKey, RouteModel
from llmgw.gateway import feed
from llmgw.gateway.feed import BACKOFF_MAX_S, Feed, jitter
from llmgw.gateway.settings import GatewaySettings
from tests.gateway.fake_control import FakeControl, fake_control
from tests.gateway.peers import request, silence
from tests.gateway.rig import Rig, loaded, rig, run, table

ASK = {"model": "m"}


class Log:
    def __init__(self) -> None:
        self.lines: list[tuple[str, dict[str, Any]]] = []

    def info(self, event: str, **facts: Any) -> None:
        self.lines.append((event, facts))

    warning = info

    def count(self, event: str) -> int:
        return sum(e == event for e, _ in self.lines)


class Linked:
    def __init__(
        self,
        world: Rig,
        folder: Path,
        controls: tuple[FakeControl, ...],
        token: str,
        trust: Trust = Trust(),  # noqa: B008 - immutable
    ) -> None:
        self.world = world
        self.log = Log()
        urls = tuple(c.url for c in controls)
        settings = GatewaySettings(controls=urls, state_dir=folder, token=token, trust=trust)
        self.feed = Feed(world.gateway, world.dialer, settings, self.log)
        self.path = folder / "routes.json"

    @property
    def version(self) -> int:
        found = self.world.gateway.fleet.table
        return found.version if found is not None else 0

    async def on_disk(self, version: int) -> Any:
        """The file, once it is that version's: it is written a moment after its table is used."""
        async with asyncio.timeout(60):
            while True:
                with contextlib.suppress(FileNotFoundError):
                    if (there := json.loads(self.path.read_bytes()))["version"] == version:
                        return there
                await asyncio.sleep(feed.SAVE_S)


@contextlib.asynccontextmanager
async def linked(
    world: Rig,
    folder: Path,
    *controls: FakeControl,
    token: str = "",
    trust: Trust = Trust(),  # noqa: B008 - immutable
) -> AsyncIterator[Linked]:
    """A gateway whose link to control runs."""
    link = Linked(world, folder, controls, token, trust)
    link.feed.restore()
    task = world.group.create_task(link.feed.run())
    try:
        yield link
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task
        for control in link.feed.controls:
            while control.endpoint.idle:
                control.endpoint.idle.pop().close()


def test_tables_come_by_long_poll_and_their_use_is_reported_at_once(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with fake_control("node-token") as control, rig() as world:
            engine = await world.engine()
            await control.publish(table(5, m=loaded(engine.replica())))
            async with linked(world, tmp_path, control, token="node-token") as link:
                demand = await control.demand(table=5)
                assert demand["gateway"] == world.gateway.id
                assert (demand["in_flight"], demand["waiting"]) == ({}, {})
                assert (await world.ask(ASK)).status == 200
                await control.until(lambda: len(control.polls) == 2)
                assert control.polls[1].path.endswith("?version=5")
                assert control.polls[1].headers["authorization"] == "Bearer node-token"
                await control.publish(table(6))
                await control.demand(table=6)
                assert link.log.count("control answers") == 1
                ns = [d["n"] for d in control.demands]
                assert ns == sorted(ns)
                assert len(set(ns)) == len(ns)

    run(scenario())


def test_demand_follows_waiters_at_once_and_flows_each_second(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with fake_control() as control, rig() as world:
            await control.publish(table(1, m=RouteModel(status="unloaded")))
            async with linked(world, tmp_path, control):
                await control.demand(table=1)
                client = await world.client()
                client.send(request(ASK))
                await control.demand(waiting={"m": 1})
                client.reset()
                await control.demand(waiting={})
                seen = len(control.demands)
                await control.until(lambda: len(control.demands) > seen)

    run(scenario())


def test_demand_says_what_is_in_flight(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with fake_control() as control, rig() as world:
            engine = await world.engine(silence)
            await control.publish(table(1, m=loaded(engine.replica())))
            async with linked(world, tmp_path, control):
                await control.demand(table=1)
                client = await world.client()
                client.send(request(ASK))
                await engine.talks.get()
                await control.publish(table(2, m=loaded(engine.replica(state="draining"))))
                await control.demand(table=2, in_flight={"e1": 1})
                client.reset()
                demand = await control.demand(in_flight={})
                assert demand["last_byte"] == {"e1": 0.0}

    run(scenario())


def test_demand_goes_to_every_control_and_a_dead_one_holds_up_nobody(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with (
            fake_control() as dead,
            fake_control() as first,
            fake_control() as second,
            rig() as world,
        ):
            await dead.stop()
            await dead.start()
            await dead.stop()
            await first.publish(table(1))
            await second.publish(table(1))
            async with linked(world, tmp_path, dead, first, second) as link:
                await first.demand(table=1)
                await second.demand(table=1)
                assert world.gateway.meter.control_up[dead.url] is False
                assert world.gateway.meter.control_up[first.url] is True
                assert link.log.count("control is away") >= 1
            await dead.start()

    run(scenario())


def test_with_control_away_the_last_table_serves(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with fake_control() as control, rig() as world:
            engine = await world.engine()
            await control.publish(table(1, m=loaded(engine.replica()), sleeping=RouteModel()))
            async with linked(world, tmp_path, control) as link:
                await control.demand(table=1)
                await control.stop()
                await world.until(lambda: link.log.count("control is away"))
                assert (await world.ask(ASK)).status == 200
                client = await world.client()
                client.send(request({"model": "sleeping"}))
                await world.until(lambda: world.waiting() == {"sleeping": 1})
                again = FakeControl()
                again.port = control.port
                await again.start()
                await again.demand(waiting={"sleeping": 1})  # the wake-up was kept
                await again.publish(
                    table(2, m=loaded(engine.replica()), sleeping=loaded(engine.replica()))
                )
                assert (await client.answer()).status == 200
                assert link.log.count("control is away") == 1
                assert link.log.count("control answers") == 2
                await again.stop()
            await control.start()

    run(scenario())


def test_a_new_gateway_starts_from_the_table_on_disk(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with fake_control() as control:
            async with rig() as world:
                engine = await world.engine()
                await control.publish(table(9, m=loaded(engine.replica(api_key="inner"))))
                async with linked(world, tmp_path, control) as link:
                    await control.demand(table=9)
                assert link.path.stat().st_mode & 0o777 == 0o600
                assert not link.path.with_suffix(".tmp").exists()
            await control.stop()
            async with rig() as world:
                engine = await world.engine(port=engine.port)
                async with linked(world, tmp_path, control) as link:
                    assert link.version == 9
                    assert (await world.ask(ASK)).status == 200
                    assert engine.asked[0].headers["authorization"] == "Bearer inner"
            await control.start()

    run(scenario())


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b'{"version": "x"}'])
def test_an_unreadable_table_on_disk_is_no_obstacle(tmp_path: Path, content: bytes) -> None:
    async def scenario() -> None:
        async with fake_control() as control, rig() as world:
            (tmp_path / "routes.json").write_bytes(content)
            await control.publish(table(1))
            async with linked(world, tmp_path, control) as link:
                await control.demand(table=1)
                assert link.log.lines[0][0].startswith("last route table is unreadable")
            assert json.loads(link.path.read_bytes())["version"] == 1

    run(scenario())


def test_a_folder_that_cannot_be_written_is_no_obstacle(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with fake_control() as control, rig() as world:
            await control.publish(table(1))
            async with linked(world, tmp_path / "missing", control) as link:
                await control.demand(table=1)
            assert link.log.count("route table is not kept on disk") == 1

    run(scenario())


def test_a_partial_table_takes_nothing_away(tmp_path: Path) -> None:
    """A50: a control that settles has not heard of every replica yet."""

    async def scenario() -> None:
        async with fake_control() as control, rig() as world:
            engine = await world.engine()
            key = RouteKey(id="k", sha256="0" * 64)
            await control.publish(table(1, keys=(key,), m=loaded(engine.replica())))
            async with linked(world, tmp_path, control) as link:
                await control.demand(table=1)
                await control.publish(table(2, partial=True, m=RouteModel(status="unloaded")))
                await control.demand(table=2)
                assert [e.replica for e in world.gateway.fleet.endpoints()] == ["e1"]
                assert not world.gateway.keys.open
                kept = await link.on_disk(2)
                assert kept["models"]["m"]["replicas"][0]["replica"] == "e1"
                await control.publish(table(3, m=RouteModel(status="unloaded")))
                await control.demand(table=3)
                assert list(world.gateway.fleet.endpoints()) == []

    run(scenario())


def test_a_lagging_standby_does_not_take_a_table_back(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with fake_control() as standby, fake_control() as leader, rig() as world:
            await leader.publish(table(5))
            async with linked(world, tmp_path, standby, leader) as link:
                await standby.until(lambda: standby.polls)
                await standby.stop()
                await leader.demand(table=5)
                await standby.start()
                await standby.publish(table(4))
                await leader.stop()
                polls = len(standby.polls)
                await standby.until(lambda: len(standby.polls) > polls + 1)
                assert link.version == 5
                await standby.publish(table(6))
                await standby.demand(table=6)
            await leader.start()

    run(scenario())


def test_the_only_control_may_begin_anew(tmp_path: Path) -> None:
    """Its versions start low again where every trace of the old ones is gone; nobody else could be right."""

    async def scenario() -> None:
        async with fake_control() as control, rig() as world:
            await control.publish(table(41_000_007))
            async with linked(world, tmp_path, control):
                await control.demand(table=41_000_007)
                await control.publish(table(1_000_001))
                await control.demand(table=1_000_001)

    run(scenario())


def test_a_wrong_token_is_said_once_and_tried_on(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with fake_control("right") as control, rig() as world:
            await control.publish(table(1))
            async with linked(world, tmp_path, control, token="wrong") as link:
                await world.until(lambda: link.log.count("control is away"))
                event, facts = link.log.lines[0]
                assert event == "control is away"
                assert "answered 401" in facts["why"]
                assert "wrong token" in facts["why"]
                control.token = "wrong"
                await control.demand(table=1)
                assert link.log.count("control is away") == 1

    run(scenario())


def test_back_off_is_jittered_and_capped() -> None:
    assert all(0 <= jitter(n) <= BACKOFF_MAX_S for n in range(2000))
    assert max(jitter(100) for _ in range(200)) > BACKOFF_MAX_S / 2
    assert max(jitter(1) for _ in range(200)) < 1


def test_f63_a_control_whose_host_is_gone_holds_no_table_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing breaks the poll it held: its silence to what is told meanwhile does, and the next control is asked."""
    monkeypatch.setattr(feed, "POST_S", 0.2)

    async def scenario() -> None:
        async with fake_control() as gone, fake_control() as leader, rig() as world:
            await gone.publish(table(1))
            async with linked(world, tmp_path, gone, leader) as link:
                await gone.demand(table=1)
                await gone.until(lambda: len(gone.polls) == 2)  # held
                gone.deaf = True
                await leader.publish(table(2))
                async with asyncio.timeout(60):
                    await leader.demand(table=2)
                assert world.gateway.meter.control_up[gone.url] is False
                assert link.version == 2

    run(scenario())
