"""The data path of a gateway in the test's own process, its clock and its sweeper in the test's hand."""

from __future__ import annotations

import asyncio
import shlex
import socket
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import Any

import uvloop

from llmgw.core.types.routes import RouteKey, RouteModel, RouteReplica, RouteTable
from llmgw.gateway.books import Access
from llmgw.gateway.proxy import serve_on
from llmgw.gateway.state import Gateway
from llmgw.gateway.upstream import Dialer
from tests.gateway.peers import CHAT, Answer, Client, Engine, Script, hello

LIMIT_S = 60.0


def run(scenario: Coroutine[Any, Any, None]) -> None:
    """One scenario on the loop that the product uses; a hang is a failure with a name."""

    async def bounded() -> None:
        async with asyncio.timeout(LIMIT_S):
            await scenario

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(bounded())


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


def table(
    version: int = 1,
    *,
    keys: tuple[RouteKey, ...] = (),
    partial: bool = False,
    **models: RouteModel,
) -> RouteTable:
    named = {name.replace("_", "-"): model for name, model in models.items()}
    return RouteTable(version=version, models=named, keys=keys, partial=partial)


def loaded(*replicas: RouteReplica, **more: Any) -> RouteModel:
    return RouteModel(status="loaded", replicas=replicas, **more)


def facts(line: str) -> dict[str, Any]:
    """The key=value pairs of a log line; figures as numbers."""
    pairs = (word.partition("=") for word in shlex.split(line) if "=" in word)
    return {
        k: float(v) if v.replace(".", "", 1).isdigit() else v.removeprefix("-") for k, _, v in pairs
    }


class Rig:
    """The gateway's data path in this process, its sweeper in the test's hand."""

    def __init__(
        self, group: asyncio.TaskGroup, *, open_without_keys: bool, body_limit: int
    ) -> None:
        self.clock = Clock()
        self.log: list[dict[str, Any]] = []
        self.gateway = Gateway(
            clock=self.clock,
            access=Access(self._line, lambda: 1_764_506_000.25),
            open_without_keys=open_without_keys,
            body_limit=body_limit,
        )
        self.group = group
        self.dialer = Dialer(group.create_task, self.clock)
        self.gateway.connect = self.dialer.connect
        self.demands: list[Any] = []
        self._changes = asyncio.Event()
        self.gateway.on_change.append(self._changes.set)
        self._engines: list[Engine] = []
        self._clients: list[Client] = []
        self.port = 0

    def _line(self, data: bytes) -> None:
        self.log += [facts(line) for line in data.decode().splitlines()]

    async def engine(self, script: Script = hello, name: str = "e1", port: int = 0) -> Engine:
        engine = Engine(script, name)
        engine.port = port
        await engine.start()
        self._engines.append(engine)
        return engine

    async def client(self) -> Client:
        client = Client(*await asyncio.open_connection("127.0.0.1", self.port))
        self._clients.append(client)
        return client

    async def ask(self, body: Any, path: str = CHAT, **headers: str) -> Answer:
        client = await self.client()
        try:
            return await client.ask(body, path, **headers)
        finally:
            await client.close()

    def use(self, new: RouteTable) -> None:
        self.gateway.apply(new)

    def pass_time(self, seconds: float) -> None:
        """The clock moves and the sweeper runs, as once a second."""
        self.clock.now += seconds
        self.gateway.tick()

    async def until(self, condition: Callable[[], object]) -> None:
        """Gives the loop turns until it holds; `run` bounds the wait."""
        while not condition():  # noqa: ASYNC110 - it waits for anything, also what tells nobody
            await asyncio.sleep(0.001)

    def in_flight(self) -> dict[str, int]:
        return self.gateway.demand().in_flight

    def waiting(self) -> dict[str, int]:
        return self.gateway.demand().waiting

    async def at_rest(self) -> None:
        """Nothing is in flight or waiting, no body is held: every path must come back to this."""
        gateway = self.gateway
        await self.until(lambda: not gateway.in_flight())
        assert self.in_flight() == {}
        assert self.waiting() == {}
        assert gateway.budget.used == 0
        assert not gateway.fleet.retired

    def lines(self) -> list[dict[str, Any]]:
        assert self.gateway.access is not None
        self.gateway.access.flush()
        return self.log

    async def close(self) -> None:
        for client in self._clients:
            await client.close()
        for engine in self._engines:
            await engine.stop()
        for endpoint in self.gateway.fleet.endpoints():
            while endpoint.idle:
                endpoint.idle.pop().close()
        for connection in tuple(self.gateway.connections):
            connection.abort()
        await asyncio.sleep(0)  # for the loop to see them closed


@asynccontextmanager
async def rig(*, open_without_keys: bool = True, body_limit: int = 64 << 20) -> AsyncIterator[Rig]:
    listener = socket.create_server(("127.0.0.1", 0), backlog=128)
    async with asyncio.TaskGroup() as group:
        world = Rig(group, open_without_keys=open_without_keys, body_limit=body_limit)
        server = await serve_on(world.gateway, listener)
        world.port = listener.getsockname()[1]
        try:
            yield world
            await world.at_rest()
        finally:
            await world.close()
            server.close()
            await server.wait_closed()
            listener.close()
