"""A gateway under test, with the world around it: engines and a control made of plain sockets, and a clock.

Answers for: scripted engines that say exactly the bytes a test wants and notice when their client leaves, a control that
holds polls, and clients that read answers with a parser of their own. It may not use the gateway's framing code.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import Any, NamedTuple

import uvloop

from llmgw.core.types.routes import RouteKey, RouteModel, RouteReplica, RouteTable
from llmgw.gateway.meter import Access
from llmgw.gateway.proxy import serve_on
from llmgw.gateway.state import Gateway
from llmgw.gateway.upstream import Dialer

LIMIT_S = 20.0
CHAT = "/v1/chat/completions"


def run(scenario: Coroutine[Any, Any, None]) -> None:
    """One scenario on the loop that the product uses; a hang is a failure with a name."""

    async def bounded() -> None:
        async with asyncio.timeout(LIMIT_S):
            await scenario

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(bounded())


class Asked(NamedTuple):
    """A request as a server saw it."""

    method: str
    path: str
    headers: dict[str, str]
    body: bytes


async def read_request(reader: asyncio.StreamReader) -> Asked | None:
    try:
        head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
    except (asyncio.IncompleteReadError, ConnectionError):
        return None
    first, *lines = head.rstrip("\r\n").split("\r\n")
    method, path, _ = first.split(" ")
    headers = {k.lower(): v.strip() for k, _, v in (line.partition(":") for line in lines)}
    body = await reader.readexactly(int(headers.get("content-length", 0)))
    return Asked(method, path, headers, body)


class Answer(NamedTuple):
    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def error(self) -> dict[str, Any]:
        return dict(self.json["error"])


class Cut(Exception):  # noqa: N818 - what a client sees
    """The connection ended inside an answer; `got` is the body until then."""

    def __init__(self, got: bytes) -> None:
        super().__init__(got)
        self.got = got


class Client:
    """One connection of a client, reading answers by the book."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    def send(self, data: bytes) -> None:
        self.writer.write(data)

    async def ask(self, body: Any, path: str = CHAT, **headers: str) -> Answer:
        self.send(request(body, path, **headers))
        return await self.answer()

    async def get(self, path: str, method: str = "GET", **headers: str) -> Answer:
        self.send(request(None, path, method, **headers))
        return await self.answer(head_only=method == "HEAD")

    async def head(self) -> tuple[int, dict[str, str]]:
        while True:
            head = (await self.reader.readuntil(b"\r\n\r\n")).decode("latin-1")
            first, *lines = head.rstrip("\r\n").split("\r\n")
            headers = {k.lower(): v.strip() for k, _, v in (line.partition(":") for line in lines)}
            status = int(first.split(" ")[1])
            if status >= 200:
                return status, headers

    async def answer(self, *, head_only: bool = False) -> Answer:
        status, headers = await self.head()
        if head_only or status in (204, 304):
            return Answer(status, headers, b"")
        if headers.get("transfer-encoding") == "chunked":
            got = b""
            async for piece in self.chunks():
                got += piece
            return Answer(status, headers, got)
        if "content-length" in headers:
            size = int(headers["content-length"])
            try:
                return Answer(status, headers, await self.reader.readexactly(size))
            except (asyncio.IncompleteReadError, ConnectionError) as e:
                raise Cut(getattr(e, "partial", b"")) from e
        return Answer(status, headers, await self.reader.read())

    async def chunks(self) -> AsyncIterator[bytes]:
        got = b""
        try:
            while True:
                size = int((await self.reader.readuntil(b"\r\n")).split(b";")[0], 16)
                piece = (await self.reader.readexactly(size + 2))[:-2]
                if not size:
                    return
                got += piece
                yield piece
        except (asyncio.IncompleteReadError, ConnectionError) as e:
            raise Cut(got) from e

    async def until(self, text: bytes) -> bytes:
        return await self.reader.readuntil(text)

    async def rest(self) -> bytes:
        """Everything until the server closes; `Cut` where it resets."""
        try:
            return await self.reader.read()
        except ConnectionError as e:
            raise Cut(b"") from e

    async def close(self) -> None:
        self.writer.close()
        try:
            await self.writer.wait_closed()
        except ConnectionError:
            pass

    def reset(self) -> None:
        self.writer.transport.abort()


def request(
    body: Any, path: str = CHAT, method: str = "POST", version: str = "1.1", **headers: str
) -> bytes:
    data = b"" if body is None else body if isinstance(body, bytes) else json.dumps(body).encode()
    lines = {"host": "gateway", **{k.replace("_", "-"): v for k, v in headers.items()}}
    if body is not None:
        lines.setdefault("content-length", str(len(data)))
    head = "".join(f"{k}: {v}\r\n" for k, v in lines.items())
    return f"{method} {path} HTTP/{version}\r\n{head}\r\n".encode() + data


Script = Callable[["Talk"], Awaitable[None]]


class Talk:
    """One request at an engine: what was asked, and the means to answer it."""

    def __init__(self, engine: Engine, asked: Asked, client: Client) -> None:
        self.engine = engine
        self.asked = asked
        self._client = client
        self.left = asyncio.Event()  # the gateway closed this connection

    async def say(self, data: bytes) -> None:
        self._client.writer.write(data)
        await self._client.writer.drain()

    async def json(self, document: Any, status: str = "200 OK", extra: str = "") -> None:
        body = json.dumps(document).encode()
        head = f"HTTP/1.1 {status}\r\ncontent-type: application/json\r\n{extra}content-length: {len(body)}\r\n\r\n"
        await self.say(head.encode() + body)

    async def open_stream(self, extra: str = "") -> None:
        head = f"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n{extra}transfer-encoding: chunked\r\n\r\n"
        await self.say(head.encode())

    async def event(self, text: str) -> None:
        data = f"data: {text}\n\n".encode()
        await self.say(b"%x\r\n%b\r\n" % (len(data), data))

    async def end_stream(self) -> None:
        await self.say(b"0\r\n\r\n")

    async def client_leaves(self) -> None:
        """Waits, reading, until the gateway closes the connection."""
        try:
            while await self._client.reader.read(65536):
                pass
        except ConnectionError:
            pass
        self.left.set()

    async def die(self) -> None:
        """The connection breaks, as when the process is killed."""
        await asyncio.sleep(0)
        self._client.writer.transport.abort()

    async def hang_up(self) -> None:
        self._client.writer.close()


class Engine:
    """A server that answers each request by a script."""

    def __init__(self, script: Script, name: str) -> None:
        self.script = script
        self.name = name
        self.asked: list[Asked] = []
        self.talks: asyncio.Queue[Talk] = asyncio.Queue()
        self.connections = 0
        self._server: asyncio.Server
        self._writers: set[asyncio.StreamWriter] = set()
        self.port = 0

    async def start(self) -> None:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", self.port, limit=1 << 27)
        self.port = self._server.sockets[0].getsockname()[1]

    async def stop(self) -> None:
        """Stops listening and drops every connection."""
        self._server.close()
        for writer in tuple(self._writers):
            writer.transport.abort()
        await self._server.wait_closed()

    def drop_idle(self) -> None:
        for writer in tuple(self._writers):
            writer.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        self._writers.add(writer)
        client = Client(reader, writer)
        try:
            while (asked := await read_request(reader)) is not None:
                self.asked.append(asked)
                talk = Talk(self, asked, client)
                self.talks.put_nowait(talk)
                await self.script(talk)
        except ConnectionError:
            pass
        finally:
            self._writers.discard(writer)
            writer.close()

    def replica(self, **more: Any) -> RouteReplica:
        facts: dict[str, Any] = {"incarnation": f"i-{self.name}", "profile": "p", **more}
        return RouteReplica(replica=self.name, endpoint=f"http://127.0.0.1:{self.port}", **facts)


async def hello(talk: Talk) -> None:
    """Says who answers, and what it was asked."""
    await talk.json({"from": talk.engine.name, "asked": json.loads(talk.asked.body)})


async def silence(talk: Talk) -> None:
    await talk.client_leaves()


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


def table(version: int = 1, *, keys: tuple[RouteKey, ...] = (), partial: bool = False, **models: RouteModel) -> RouteTable:
    named = {name.replace("_", "-"): model for name, model in models.items()}
    return RouteTable(version=version, models=named, keys=keys, partial=partial)


def loaded(*replicas: RouteReplica, **more: Any) -> RouteModel:
    return RouteModel(status="loaded", replicas=replicas, **more)


class Rig:
    """The gateway's data path in this process, its sweeper in the test's hand."""

    def __init__(self, group: asyncio.TaskGroup, *, open_without_keys: bool, body_limit: int) -> None:
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
        self.log += [json.loads(line) for line in data.splitlines()]

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
        while not condition():
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


@asynccontextmanager
async def rig(*, open_without_keys: bool = True, body_limit: int = 64 << 20) -> AsyncIterator[Rig]:
    import socket  # noqa: PLC0415 - only here

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
