"""A control as a gateway sees it: holds polls for route tables, and writes down demand.

Answers for: the contract's two calls over plain sockets, and for being away, slow or wrong on request. It may not use
code of the gateway.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import ssl
from collections.abc import AsyncIterator, Callable
from typing import Any

import msgspec

from llmgw.core.types.routes import Heard, RouteTable
from tests.gateway.peers import Asked, Client, read_request


class FakeControl:
    def __init__(self, token: str = "") -> None:
        self.token = token
        #: served with, where there is one
        self.tls: ssl.SSLContext | None = None
        self.table: RouteTable | None = None
        #: it holds no poll: who has its table, or a newer one, is to ask the leader
        self.stands_by = False
        #: it neither decides nor knows who does: its lease store is away
        self.undecided = False
        #: takes what is sent and answers nothing, as where its host is gone
        self.deaf = False
        #: nobody can read what it answers to demand
        self.garbled = False
        #: when it says its answer to demand was given, and what that answer waits for
        self.at = ""
        #: its answer to demand tells of a table that is so much newer than the one polls get yet
        self.ahead = 0
        self.answers = asyncio.Event()
        self.answers.set()
        self.demands: list[dict[str, Any]] = []
        self.polls: list[Asked] = []
        self.port = 0
        self._news = asyncio.Condition()
        self._server: asyncio.Server
        self._writers: set[asyncio.StreamWriter] = set()

    @property
    def url(self) -> str:
        return f"{'http' if self.tls is None else 'https'}://127.0.0.1:{self.port}"

    async def start(self) -> None:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", self.port, ssl=self.tls)
        self.port = self._server.sockets[0].getsockname()[1]

    async def stop(self) -> None:
        self._server.close()
        for writer in tuple(self._writers):
            writer.transport.abort()
        await self._server.wait_closed()

    async def publish(self, table: RouteTable) -> None:
        self.table = table
        await self.notify()

    async def notify(self) -> None:
        async with self._news:
            self._news.notify_all()

    async def until(self, condition: Callable[[], object]) -> None:
        async with self._news:
            await self._news.wait_for(condition)

    async def demand(self, since: int | None = None, **want: Any) -> dict[str, Any]:
        """The next demand in which all of `want` holds; `since`: of those behind so many."""
        start = len(self.demands) if since is None else since

        def found() -> dict[str, Any] | None:
            fits = (d for d in self.demands[start:] if all(d[k] == v for k, v in want.items()))
            return next(fits, None)

        await self.until(found)
        demand = found()
        assert demand is not None
        return demand

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._writers.add(writer)
        client = Client(reader, writer)
        try:
            while (asked := await read_request(reader)) is not None:
                status, body = await self._answer(asked)
                if writer.is_closing():
                    break  # stopped meanwhile
                head = f"HTTP/1.1 {status} X\r\ncontent-length: {len(body)}\r\n\r\n"
                client.send(head.encode() + body)
        except (ConnectionError, asyncio.CancelledError):
            pass
        finally:
            self._writers.discard(writer)
            writer.close()

    async def _answer(self, asked: Asked) -> tuple[int, bytes]:
        if self.token and asked.headers.get("authorization") != f"Bearer {self.token}":
            return 401, b'{"error":{"message":"wrong token"}}'
        if self.deaf:
            await asyncio.Event().wait()
        if asked.path == "/gateway/v1/demand":
            self.demands.append(json.loads(asked.body))
            await self.notify()
            await self.answers.wait()
            version = self.table.version if self.table is not None else 0
            if self.garbled:
                return 200, b"{"
            acting = not (self.stands_by or self.undecided)
            version += self.ahead
            said = Heard(version=version, leader=not self.stands_by, acting=acting, at=self.at)
            return 200, msgspec.json.encode(said)
        assert asked.path.startswith("/gateway/v1/routes?version=")
        self.polls.append(asked)
        await self.notify()
        version = int(asked.path.rpartition("=")[2])
        if self.stands_by and self.table is not None and self.table.version <= version:
            return 204, b""
        await self.until(lambda: self.table is not None and self.table.version != version)
        return 200, msgspec.json.encode(self.table)


@contextlib.asynccontextmanager
async def fake_control(token: str = "") -> AsyncIterator[FakeControl]:
    control = FakeControl(token)
    await control.start()
    try:
        yield control
    finally:
        await control.stop()
