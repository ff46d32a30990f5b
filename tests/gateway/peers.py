"""The peers of a gateway under test, made of plain sockets: clients, and engines that answer by a script.

Answers for: engines that say exactly the bytes a test wants and notice when their client leaves, and clients that read
answers by the book. It may not use code of the gateway.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
import struct
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, NamedTuple, cast

from llmgw.core.types.routes import RouteReplica

CHAT = "/v1/chat/completions"


class Asked(NamedTuple):
    """A request as a server saw it."""

    method: str
    path: str
    headers: dict[str, str]
    body: bytes


async def read_request(reader: asyncio.StreamReader) -> Asked | None:
    """None where the client left before the end of it."""
    try:
        head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
        first, *lines = head.rstrip("\r\n").split("\r\n")
        method, path, _ = first.split(" ")
        headers = {k.lower(): v.strip() for k, _, v in (line.partition(":") for line in lines)}
        body = await reader.readexactly(int(headers.get("content-length", 0)))
    except (asyncio.IncompleteReadError, ConnectionError):
        return None
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
            if status >= 200 or status == 101:
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
            raise Cut(got=b"") from e

    def listen(self, *, on: bool) -> None:
        """Whether it reads at all what comes."""
        transport = cast("asyncio.Transport", self.writer.transport)
        (transport.resume_reading if on else transport.pause_reading)()

    async def close(self) -> None:
        self.writer.close()
        with contextlib.suppress(ConnectionError):
            await self.writer.wait_closed()

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
        self.connection = id(client)
        self._client = client
        self.left = asyncio.Event()  # the gateway closed this connection
        self.seen = asyncio.Event()  # for the test to set

    async def say(self, data: bytes) -> None:
        self._client.writer.write(data)
        await self._client.writer.drain()

    async def heard(self) -> bytes:
        """What the client says beyond its request."""
        return await self._client.reader.read(65536)

    def listen(self, *, on: bool) -> None:
        """Whether this engine reads at all what comes."""
        self._client.listen(on=on)

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

    async def client_has(self, data: bytes) -> None:
        """Waits until the test says that its client has `data`."""
        assert data
        await self.seen.wait()

    async def client_leaves(self) -> None:
        """Waits, reading, until the gateway closes the connection."""
        try:
            while await self._client.reader.read(65536):
                pass
        except ConnectionError:
            pass
        self.left.set()

    async def die(self) -> None:
        """The connection breaks with a reset, as when a process is killed with bytes unread."""
        sock = self._client.writer.get_extra_info("socket")
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
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
        self._server = await asyncio.start_server(
            self._serve, "127.0.0.1", self.port, limit=1 << 27
        )
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
