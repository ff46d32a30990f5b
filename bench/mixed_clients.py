"""Clients of every kind at once, for `bench.mixed`: what they ask, and what they hold for a failure.

Answers for: judging by nothing that a client cannot see, and excusing a failed request for one reason only: its engine
was killed a moment ago. It may not know how the fleet is built, nor touch it.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import time
from collections import Counter
from collections.abc import Awaitable, Callable

from tests.gateway.peers import Client, Cut, request

TOKENS = 40
#: A replica comes back under its own name: its failures are the kill's for so long.
EXCUSED_S = 10.0
#: Longer than from one gateway to the next: such a session lives on in the old one.
LONG_S = (65.0, 100.0)
#: A client has as much patience; with more of it where a model must come first: a control that was killed takes nothing
#: for idle until it has heard every gateway, or for a minute, and `wait_timeout` is five of them.
PATIENCE_S, WAKE_S = 60.0, 240.0
OK, SWITCHED = 200, 101
FORM = "multipart/form-data; boundary=part"
WEBSOCKET = {
    "connection": "Upgrade",
    "upgrade": "websocket",
    "sec-websocket-key": "dGhlIHNhbXBsZSBub25jZQ==",
    "sec-websocket-version": "13",
}
BROKEN = (Cut, OSError, asyncio.IncompleteReadError, ValueError, TimeoutError)


class Tally:
    """What clients saw."""

    def __init__(self) -> None:
        self.done: Counter[str] = Counter()
        self.excused: list[str] = []
        self.failed: list[str] = []
        #: replica -> when its engine was killed: its requests may fail then, and nobody else's, nor later
        self.killed_s: dict[str, float] = {}

    def failure(self, kind: str, why: str, replica: str = "") -> None:
        said = f"{time.strftime('%H:%M:%S')} {kind} {replica}: {why}"
        since = time.monotonic() - EXCUSED_S
        lately = [name for name, at_s in self.killed_s.items() if at_s > since]
        theirs = replica in lately or any(f"({name})" in why for name in lately)
        (self.excused if theirs else self.failed).append(said)


def upload(model: str, size: int) -> bytes:
    head = 'content-disposition: form-data; name="model"\r\n\r\n'
    file = 'content-disposition: form-data; name="file"; filename="a"\r\n\r\n'
    ends = f"--part\r\n{head}{model}\r\n--part\r\n{file}".encode(), b"\r\n--part--\r\n"
    return ends[0] + b"\xff" * size + ends[1]


class Load:
    """One client after another; a connection is kept for a few requests, as SDKs do."""

    def __init__(self, port: int, tally: Tally, dice: random.Random) -> None:
        self.port = port
        self.tally = tally
        self.dice = dice
        self.over = False
        self.replica = ""  # that answers just now
        self.kinds: dict[str, tuple[int, Callable[[Client], Awaitable[bool]]]] = {
            "stream": (5, self.stream),
            "json": (5, self.json),
            "cancel": (2, self.cancel),
            "reset": (2, self.reset),
            "wake": (1, self.wake),
            "models": (1, self.models),
            "head": (1, self.head_only),
            "pipelined": (2, self.pipelined),
            "upload": (2, self.upload),
            "upstream": (1, self.upstream),
            "socket": (2, self.socket),
        }
        self.weights = [weight for weight, _ in self.kinds.values()]

    async def run(self) -> None:
        await self.clients(self.some)

    async def long_sockets(self) -> None:
        """One after another, to a model whose engine nobody kills: whatever cuts them is a failure."""
        await self.clients(self.long_socket)

    async def swaps(self) -> None:
        """Two models of which only one fits: each request waits for its own to come."""
        await self.clients(self.swap)

    async def clients(self, asks: Callable[[Client], Awaitable[None]]) -> None:
        while not self.over:
            try:
                client = Client(*await asyncio.open_connection("127.0.0.1", self.port))
            except OSError as e:
                self.tally.failure("connect", repr(e))
                await asyncio.sleep(0.2)
                continue
            try:
                await asks(client)
            finally:
                with contextlib.suppress(OSError):
                    await client.close()

    async def some(self, client: Client) -> None:
        for _ in range(self.dice.randint(1, 5)):
            kind = self.dice.choices(list(self.kinds), weights=self.weights)[0]
            limit_s = WAKE_S if kind == "wake" else PATIENCE_S
            if not await self.one(kind, self.kinds[kind][1](client), limit_s):
                break
            await asyncio.sleep(self.dice.random() * 0.1)

    async def long_socket(self, client: Client) -> None:
        length_s = self.dice.uniform(*LONG_S)
        talk = self.talk(client, "calm", time.monotonic() + length_s, 0.5)
        await self.one("long socket", talk, length_s + 30)

    async def swap(self, client: Client) -> None:
        await self.one("swap", self.json(client, self.dice.choice(["left", "right"])), WAKE_S)
        await asyncio.sleep(self.dice.random() * 2)

    async def one(self, kind: str, asked: Awaitable[bool], limit_s: float) -> bool:
        self.replica = ""
        try:
            async with asyncio.timeout(limit_s):
                more = await asked
        except BROKEN as e:
            self.tally.failure(kind, repr(e)[:300], self.replica)
            return False
        self.tally.done[kind] += 1
        return more

    # -- what is asked; each says whether the connection is good for more

    async def head(self, client: Client) -> tuple[int, dict[str, str]]:
        status, headers = await client.head()
        self.replica = headers.get("x-llmgw-replica", "")
        return status, headers

    async def whole(self, client: Client) -> tuple[int, dict[str, str], bytes]:
        status, headers = await self.head(client)
        if headers.get("transfer-encoding") == "chunked":
            return status, headers, b"".join([piece async for piece in client.chunks()])
        size = int(headers.get("content-length", 0))
        return status, headers, await client.reader.readexactly(size)

    def refused(self, kind: str, status: int, body: bytes) -> bool:
        self.tally.failure(kind, f"{status} {body[-300:]!r}", self.replica)
        return False

    async def stream(self, client: Client, model: str = "steady") -> bool:
        client.send(request({"model": model, "messages": [], "stream": True}))
        status, headers, body = await self.whole(client)
        tokens = body.count(b'"delta": {"content"') or body.count(b'"content":')
        if status != OK or not body.rstrip().endswith(b"data: [DONE]") or tokens < TOKENS:
            return self.refused("stream", status, body)
        return headers.get("connection") != "close"

    async def json(self, client: Client, model: str = "steady") -> bool:
        client.send(request({"model": model, "messages": []}))
        return await self.answered(client, "json", f"t{TOKENS}".encode())

    async def answered(self, client: Client, kind: str, holds: bytes) -> bool:
        status, headers, body = await self.whole(client)
        if status != OK or holds not in body:
            return self.refused(kind, status, body)
        return headers.get("connection") != "close"

    async def cancel(self, client: Client) -> bool:
        client.send(request({"model": "steady", "messages": [], "stream": True}))
        await self.head(client)
        await client.until(b"\n\n")
        return False

    async def reset(self, client: Client) -> bool:
        data = request({"model": "steady", "messages": [], "stream": True})
        client.send(data[: self.dice.randint(1, len(data))])
        await asyncio.sleep(self.dice.random() * 0.3)
        client.reset()
        return False

    async def wake(self, client: Client) -> bool:
        """Asked of a model that sleeps as often as not."""
        await asyncio.sleep(self.dice.random() * 4)
        return await (self.stream if self.dice.getrandbits(1) else self.json)(client, "asleep")

    async def models(self, client: Client) -> bool:
        client.send(request(None, "/v1/models", "GET"))
        return await self.answered(client, "models", b'"steady"')

    async def head_only(self, client: Client) -> bool:
        """A body behind it would be taken for the next answer."""
        client.send(request(None, "/v1/models", "HEAD"))
        status, headers = await self.head(client)
        if status != OK or not int(headers["content-length"]):
            return self.refused("head", status, b"")
        return headers.get("connection") != "close"

    async def pipelined(self, client: Client) -> bool:
        """All sent at once, answered in order; behind an answer that says `close` a client asks again elsewhere."""
        asks = [(request({"model": "steady", "messages": []}), f"t{TOKENS}".encode())] * 2
        asks.insert(self.dice.randint(0, 2), (request(None, "/v1/models", "GET"), b'"list"'))
        client.send(b"".join(data for data, _ in asks))
        for _, holds in asks:
            if not await self.answered(client, "pipelined", holds):
                return False
        return True

    async def upload(self, client: Client) -> bool:
        size = self.dice.randint(1, 300_000)
        body = upload("steady", size)
        client.send(request(body, "/v1/audio/transcriptions", content_type=FORM))
        return await self.answered(client, "upload", b'"%d bytes"' % size)

    async def upstream(self, client: Client) -> bool:
        """An engine's own API, which no other request of ours reaches."""
        client.send(request(None, "/upstream/steady/stats", "GET"))
        return await self.answered(client, "upstream", b'"completed"')

    async def socket(self, client: Client) -> bool:
        return await self.talk(client, "steady", time.monotonic() + self.dice.random() * 2, 0.05)

    async def talk(self, client: Client, model: str, until_s: float, pause_s: float) -> bool:
        """A WebSocket, by either way there is; what is said comes back."""
        ways = [f"/v1/realtime?model={model}", f"/upstream/{model}/any/path"]
        client.send(request(None, self.dice.choice(ways), "GET", **WEBSOCKET))
        status, _ = await self.head(client)
        if status != SWITCHED:
            return self.refused("socket", status, b"")
        while time.monotonic() < until_s and not self.over:
            said = self.dice.randbytes(self.dice.randint(1, 20_000))
            client.send(said)
            heard = await client.reader.readexactly(len(said))
            if heard != said:
                return self.refused("socket", status, b"another echo than what was said")
            await asyncio.sleep(pause_s)
        return False
