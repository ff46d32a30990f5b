"""The least a gateway in Python can be: asyncio Protocol, httptools and uvloop, a pool of connections, nothing else.

`python -m bench.gateway.prototype PORT ENGINE_PORT`. Reads the model out of each body, as any gateway must, and relays;
no keys, counters, log, limits, time-outs, retries or care for broken peers. What llmgw costs is set against it.
"""

from __future__ import annotations

import asyncio
import sys
from typing import Any

import httptools
import msgspec
import uvloop

JOIN_BYTES = 64 * 1024
HOP = frozenset(b"connection keep-alive transfer-encoding content-length host".split())


class Asked(msgspec.Struct):
    model: str
    stream: bool = False


decode = msgspec.json.Decoder(Asked).decode


class Engine(asyncio.Protocol):
    def __init__(self, pool: list[Engine]) -> None:
        self.pool = pool
        self.client: Client | None = None
        self.transport: Any

    def connection_made(self, transport: Any) -> None:
        self.transport = transport

    def begin(self, client: Client) -> None:
        self.client = client
        self.parser = httptools.HttpResponseParser(self)

    def data_received(self, data: bytes) -> None:
        client = self.client
        if client is None:
            return
        client.write(data)
        self.parser.feed_data(data)

    def on_message_complete(self) -> None:
        client, self.client = self.client, None
        self.pool.append(self)
        if client is not None:
            client.engine = None

    def connection_lost(self, _exc: Exception | None) -> None:
        if self in self.pool:
            self.pool.remove(self)
        if self.client is not None:
            self.client.transport.close()


class Client(asyncio.Protocol):
    def __init__(self, pool: list[Engine], engine_port: int) -> None:
        self.pool = pool
        self.engine_port = engine_port
        self.engine: Engine | None = None
        self.transport: Any

    def connection_made(self, transport: Any) -> None:
        self.transport = transport
        self.write = transport.write
        self.parser = httptools.HttpRequestParser(self)

    def data_received(self, data: bytes) -> None:
        self.parser.feed_data(data)

    def connection_lost(self, _exc: Exception | None) -> None:
        if self.engine is not None:
            self.engine.client = None
            self.engine.transport.abort()

    def on_message_begin(self) -> None:
        self.headers: list[bytes] = []
        self.parts: list[bytes] = []

    def on_url(self, url: bytes) -> None:
        self.url = url

    def on_header(self, name: bytes, value: bytes) -> None:
        if name.lower() not in HOP:
            self.headers += (name, b": ", value, b"\r\n")

    def on_body(self, part: bytes) -> None:
        self.parts.append(part)

    def on_message_complete(self) -> None:
        body = self.parts[0] if len(self.parts) == 1 else b"".join(self.parts)
        assert decode(body).model
        head = b"POST %b HTTP/1.1\r\nhost: engine\r\n%bcontent-length: %d\r\n\r\n" % (
            self.url,
            b"".join(self.headers),
            len(body),
        )
        if self.pool:
            self.send(self.pool.pop(), head, body)
        else:
            self.dialling = asyncio.ensure_future(self.dial(head, body))

    async def dial(self, head: bytes, body: bytes) -> None:
        loop = asyncio.get_running_loop()
        _, engine = await loop.create_connection(
            lambda: Engine(self.pool), "127.0.0.1", self.engine_port
        )
        self.send(engine, head, body)

    def send(self, engine: Engine, head: bytes, body: bytes) -> None:
        self.engine = engine
        engine.begin(self)
        joined = len(body) < JOIN_BYTES
        engine.transport.write(head + body if joined else head)
        if not joined:
            engine.transport.write(body)


async def main(port: int, engine_port: int) -> None:
    pool: list[Engine] = []
    loop = asyncio.get_running_loop()
    server = await loop.create_server(
        lambda: Client(pool, engine_port), "127.0.0.1", port, backlog=4096
    )
    await server.serve_forever()


if __name__ == "__main__":
    uvloop.run(main(int(sys.argv[1]), int(sys.argv[2])))
