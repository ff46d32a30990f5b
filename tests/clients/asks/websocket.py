"""A WebSocket from end to end: an engine's own server, the gateway, a client: `websocket.py serve | PORT`.

Run by build/clients' Python (make test-clients): both ends are the `websockets` library, so every frame is checked.
"""

import asyncio
import sys
from functools import partial

import websockets
from said import check, main

URL = f"ws://127.0.0.1:{sys.argv[1]}/v1/realtime?model=talk"


connect = partial(websockets.connect, subprotocols=["realtime"], max_size=None)


async def serve() -> None:
    async def echo(ws: websockets.ServerConnection) -> None:
        async for message in ws:
            if message == "bye":
                await ws.close(4001, "as asked")
                return
            await ws.send(message)

    async with websockets.serve(
        echo, "127.0.0.1", 0, subprotocols=["realtime"], max_size=None
    ) as s:
        sys.stdout.write(f"{next(iter(s.sockets)).getsockname()[1]}\n")
        sys.stdout.flush()
        await asyncio.get_running_loop().create_future()


@check
def messages_large_and_small() -> None:
    async def talk() -> None:
        async with connect(URL) as ws:
            assert ws.subprotocol == "realtime"
            for message in ("hello", "", b"\0\xff" * 70_000, "x" * (8 << 20)):
                await ws.send(message)
                assert await ws.recv() == message
            await (await ws.ping())

    asyncio.run(talk())


@check
def compressed_ones() -> None:
    async def talk() -> None:
        async with connect(URL, compression="deflate") as ws:
            for n in range(100):
                await ws.send("again and again " * n)
                assert await ws.recv() == "again and again " * n

    asyncio.run(talk())


@check
def the_engine_ends_it_with_a_reason() -> None:
    async def talk() -> None:
        async with connect(URL) as ws:
            await ws.send("bye")
            await ws.wait_closed()
            assert (ws.close_code, ws.close_reason) == (4001, "as asked")

    asyncio.run(talk())


@check
def an_unknown_model_is_an_answer() -> None:
    async def talk() -> None:
        status = 101
        try:
            async with connect(URL + "x"):
                pass
        except websockets.InvalidStatus as e:
            status = e.response.status_code
        assert status == 404

    asyncio.run(talk())


@check
def many_at_once() -> None:
    async def one(n: int) -> None:
        async with connect(URL) as ws:
            for i in range(20):
                await ws.send(f"{n} {i}")
                assert await ws.recv() == f"{n} {i}"

    async def talk() -> None:
        await asyncio.gather(*(one(n) for n in range(20)))

    asyncio.run(talk())


if __name__ == "__main__":
    if sys.argv[1] == "serve":
        asyncio.run(serve())
    sys.exit(main())
