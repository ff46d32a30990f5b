"""A control in this process over a real inventory file, a clock that the test moves, and a scripted agent over its API.

Answers for: short words in the tests of `llmgw.control`. The agent does what a test tells it to, no more.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Callable, Coroutine
from pathlib import Path
from typing import Any, Protocol

import httpx
from msgspec.structs import replace

from llmgw.control.api import app
from llmgw.control.awake import STALL_S
from llmgw.control.guard import Tokens
from llmgw.control.lease import Lease, lease
from llmgw.control.loop import Control
from llmgw.control.picture import Moment
from llmgw.control.settings import ControlSettings
from llmgw.control.store import Store
from llmgw.control.story import Story
from llmgw.core.types.messages import (
    Command,
    Commands,
    Events,
    EventsReply,
    NodeReport,
    Refusal,
    Registered,
    ShardReport,
    Start,
    StopShard,
)
from llmgw.core.types.routes import Demand, Heard
from llmgw.wire import decode, encode, shards_digest

CATALOG = """\
version: 1
models:
  alpha:
    aliases: [first]
    scaling: {min: 1}
    profiles:
      - {name: main, command: [/bin/engine, --port, "${port}"], host_memory: 1GiB}
"""
ON_DEMAND = CATALOG.replace("{min: 1}", "{min: 0, max: 1, idle_timeout: 10m, min_up: 1s}")
#: For what must happen: generous, so that a slow machine does not fail a test.
SOON_S = 60.0


class Clock:
    """Stands still until a test moves it; wall time goes with it."""

    def __init__(self) -> None:
        self.now = 1000.0
        self.wall = time.time()  # noqa: TID251 - the inventory keeps wall time

    def __call__(self) -> float:
        return self.now

    def moment(self, mono: float) -> Moment:
        return Moment(mono, self.wall + self.now - 1000.0)


class Bench:
    def __init__(self, folder: Path, **changes: Any) -> None:
        self.folder = folder
        self.catalog = folder / "catalog.yaml"
        if not self.catalog.exists():
            self.catalog.write_text(CATALOG)
        self.inventory = folder / "inventory.db"
        self.clock = Clock()
        self.warnings: list[str] = []
        self.ended = asyncio.Event()
        self.settings = ControlSettings(
            catalog=self.catalog, state_dir=folder, gateway=None, settle_timeout_s=60.0
        )
        self.settings = replace(self.settings, **changes)
        self.lease_of: Callable[[Store], Lease] = lambda store: lease("file", self.inventory, store)
        self.control: Control
        self.client: httpx.AsyncClient

    @contextlib.asynccontextmanager
    async def running(self, *, crash: bool = False) -> AsyncIterator[Control]:
        """`crash`: it leaves without a last word, like a killed one whose file descriptors are closed."""
        story = Story()
        store = Store(self.inventory, warn=self.warnings.append)
        held = self.lease_of(store)
        control = self.control = Control(
            self.settings,
            store=store,
            lease=held,
            story=story,
            clock=self.clock,
            moment=self.clock.moment,
        )
        tokens = Tokens(self.settings.token, [self.settings.node_token], control.node_tokens)
        transport = httpx.ASGITransport(app(control, tokens, shut_down=self.ended.set))
        try:
            story.begin(self.clock.moment(self.clock.now))
            now = self.clock.moment(self.clock.now)
            control.lead(now) if held.held else control.stand_by(now)
            control.turn()
            async with (
                httpx.AsyncClient(
                    transport=transport, base_url="http://127.0.0.1", timeout=SOON_S
                ) as self.client,
                asyncio.TaskGroup() as group,
            ):
                group.create_task(control.run())
                try:
                    yield control
                finally:
                    control.close()
        finally:
            if control.leading and not crash:
                control.keeper.keep(control.state, control.now(), durable=True, all_of_it=True)
            store.close()
            held.release()

    async def later(self, seconds: float) -> None:
        """Let time pass and passes be made meanwhile: a control that stands still tells nobody's silence (F22)."""
        while True:
            self.clock.now += min(seconds, STALL_S)
            await self.control.ask(lambda _: None)
            seconds -= STALL_S
            if seconds <= 0:
                return

    async def passes(self, seconds: float, *agents: Agent) -> None:
        """Let time pass while these agents go on sending their heartbeats."""
        while seconds > 0:
            await self.later(min(seconds, 10.0))
            for agent in agents:
                await agent.tell()
            seconds -= 10.0

    async def serves(self, seconds: float, agent: Agent, **said: Any) -> None:
        """The same with a gateway that says what it serves each time."""
        while seconds > 0:
            await self.later(5.0)
            await agent.tell()
            await self.demand(int(self.clock.now), **said)
            seconds -= 5.0

    def settling(self) -> bool:
        return self.control.state.settling

    def leading(self) -> bool:
        return self.control.leading

    def connected(self, node: str) -> bool:
        return self.control.state.nodes[node].connected

    def orders(self, agent: Agent) -> list[str]:
        """Kinds of what is queued for it and not acknowledged."""
        queue = self.control.sessions.get(agent.session).queue
        return [str(c.__struct_config__.tag) for c in queue.values()]

    async def get(self, path: str, status: int = 200) -> Any:
        answer = await self.client.get(path)
        assert answer.status_code == status, answer.text
        return answer.json()

    async def post(self, path: str, body: object = None, status: int = 200) -> Any:
        answer = await self.client.post(path, json={} if body is None else body)
        assert answer.status_code == status, answer.text
        return answer.json()

    async def demand(self, n: int, gateway: str = "g1", **said: Any) -> Heard:
        table = said.pop("table", self.control.routes.version)
        message = Demand(gateway=gateway, n=n, table=table, **said)
        answer = await self.client.post(
            "/gateway/v1/demand",
            content=encode(message),
            headers={"content-type": "application/json"},
        )
        assert answer.status_code == 200, answer.text
        return decode(answer.content, Heard)

    def events(self, kind: str) -> list[dict[str, Any]]:
        return [e for e in self.control.story.events if e["kind"] == kind]


class Client(Protocol):
    """Whoever knows where control is: a `Bench`, or a `Box` with one in a process."""

    client: httpx.AsyncClient


class Agent:
    """One node. `shards` is what it reports; commands are only done when the test says so."""

    def __init__(self, bench: Client, node: str = "box1", **report: Any) -> None:
        self.bench = bench
        self.report = NodeReport(
            node=node,
            node_id=f"id-{node}",
            instance="i1",
            boot_id=f"boot-{node}",
            gpus=(),
            address="10.0.0.1",
        )
        self.report = replace(self.report, **report)
        self.shards: dict[tuple[str, str], ShardReport] = {}
        self.session = ""
        self.at = ""  # of an older one
        self.after = 0
        self.n = 0
        self.said: Registered

    def runs(self, shard: ShardReport) -> None:
        self.shards[shard.shard, shard.incarnation] = shard

    async def register(self, status: int = 200) -> Any:
        report = replace(self.report, shards=tuple(self.shards.values()))
        answer = await self._send("/agent/v1/register", report)
        assert answer.status_code == status, answer.text
        if status != 200:
            return answer.json()["error"]
        self.said = decode(answer.content, Registered)
        self.session, self.after, self.n = self.said.session, 0, 0
        self.report = replace(
            self.report, epoch_seen=self.said.epoch, leader_uuid=self.said.leader_uuid
        )
        return {v["shard"]: v["verdict"] for v in self.said.verdicts}

    async def poll(self, status: int = 200) -> tuple[Command, ...]:
        answer = await self.bench.client.get(
            f"/agent/v1/commands?session={self.session}&after={self.after}"
        )
        assert answer.status_code == status, answer.text
        if status != 200:
            return ()
        found = decode(answer.content, Commands).commands
        self.after = max([self.after, *(c.seq for c in found)])
        for c in found:  # stored before it is obeyed, as `supervise.fence` has it
            if c.epoch > self.report.epoch_seen:
                token = {"epoch_seen": c.epoch, "leader_uuid": c.leader_uuid}
                self.report = replace(self.report, **token)
        return found

    async def tell(
        self,
        *shards: ShardReport,
        gone: tuple[tuple[str, str], ...] = (),
        refused: tuple[Refusal, ...] = (),
        digest: str | None = None,
        status: int = 200,
    ) -> EventsReply:
        for shard in shards:
            self.runs(shard)
        for key in gone:
            self.shards.pop(key, None)
        self.n += 1
        message = Events(
            session=self.session,
            n=self.n,
            applied=self.after,
            shards=shards,
            gone=gone,
            refused=refused,
            digest=self.digest if digest is None else digest,
            at=self.at,
        )
        answer = await self._send("/agent/v1/events", message)
        assert answer.status_code == status, answer.text
        return decode(answer.content, EventsReply) if status == 200 else EventsReply()

    @property
    def digest(self) -> str:
        return shards_digest(tuple(self.shards.values()))

    async def start_one(self, state: str = "ready") -> ShardReport:
        """Wait for a start, and report the engine in that state."""
        command = next(c for c in await self.poll() if isinstance(c, Start))
        shard = started(command, state)
        await self.tell(shard)
        return shard

    async def stop_one(self) -> StopShard:
        """Wait for a stop, and report the engine as stopped."""
        while True:
            for command in await self.poll():
                if isinstance(command, StopShard):
                    shard = self.shards[command.shard, command.incarnation]
                    await self.tell(replace(shard, state="stopped", desired="stopped"))
                    return command
            await self.tell()

    async def _send(self, path: str, message: Any) -> httpx.Response:
        return await self.bench.client.post(
            path, content=encode(message), headers={"content-type": "application/json"}
        )


def started(command: Start, state: str = "ready") -> ShardReport:
    return ShardReport(
        shard=command.shard,
        replica=command.replica,
        incarnation=command.incarnation,
        rank=command.rank,
        world_size=command.world_size,
        model=command.model,
        profile=command.profile,
        fingerprint=command.fingerprint,
        port=command.port,
        resources=command.resources,
        endpoint=f"http://10.0.0.1:{command.port}",
        state=state,
        pid=4711,
        started_at="2026-01-01T00:00:00Z",
        api_key="secret-of-the-engine",
    )


def engine(replica: str = "alpha-1", model: str = "alpha", **changes: Any) -> ShardReport:
    """A running engine that control did not start."""
    base = ShardReport(
        shard=f"{replica}/0",
        replica=replica,
        incarnation=f"inc-{replica}",
        rank=0,
        world_size=1,
        model=model,
        profile="main",
        port=18000,
        endpoint="http://10.0.0.1:18000",
        state="ready",
        pid=4711,
        started_at="2026-01-01T00:00:00Z",
    )
    return replace(base, **changes)


def scenario(
    story: Callable[[Bench], Coroutine[Any, Any, None]],
) -> Callable[[Path], None]:
    """A test of a coroutine that gets a bench over an empty folder."""

    def test(tmp_path: Path) -> None:
        async def bounded() -> None:
            async with asyncio.timeout(2 * SOON_S):
                await story(Bench(tmp_path))

        asyncio.run(bounded())

    test.__name__ = story.__name__
    test.__doc__ = story.__doc__
    return test
