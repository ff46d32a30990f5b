"""Many and large: what a gateway holds of them is bounded, and measured on a real process."""

import asyncio
import contextlib
import gc
import os
import resource
import socket
from pathlib import Path

import pytest

from tests.gateway.fake_control import fake_control
from tests.gateway.kept import kept
from tests.gateway.peers import Client, Talk, request
from tests.gateway.rig import loaded, rig, run, table
from tests.gateway.test_main import client, engine, fleet, process

MIB = 1 << 20
#: So many at once; fewer where descriptors are short.
CONNECTIONS = 10_000
#: What an idle connection may cost; measured: 3.4 KiB (Python 3.11, uvloop 0.22).
IDLE_BYTES = 8 * 1024


def resident(pid: int) -> int:
    fields = Path(f"/proc/{pid}/statm").read_text().split()
    return int(fields[1]) * os.sysconf("SC_PAGESIZE")


def peak(pid: int) -> int:
    status = Path(f"/proc/{pid}/status").read_text()
    return int(status.split("VmHWM:")[1].split()[0]) * 1024


async def served(port: int) -> bool:
    async with client(port) as c:
        return (await c.ask({"model": "m"})).status == 200


def test_ten_thousand_idle_connections(tmp_path: Path) -> None:
    """They cost a few KiB each, hold nobody up, and are gone when their clients are."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    count = min(CONNECTIONS, hard - 500)
    if count < 1000:
        pytest.skip(f"needs a limit of 1500 open files or more, RLIMIT_NOFILE is {hard}")
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))

    async def scenario() -> None:
        async with fleet() as (control, _):
            here = tmp_path / "g"
            with process(here, listen="127.0.0.1:0", controls=[control.url]) as gateway:
                port = await gateway.port()
                assert await served(port)
                before = resident(gateway.popen.pid)
                lines = [socket.socket() for _ in range(count)]
                try:
                    for n, line in enumerate(lines):
                        # Several addresses: one has no more than 28232 ports of its own.
                        line.bind((f"127.0.1.{1 + n % 8}", 0))
                        line.connect(("127.0.0.1", port))
                        if n % 500 == 0:
                            await asyncio.sleep(0.01)  # for the loop of the test's own peers
                    async with client(port) as c:
                        while True:
                            text = (await c.get("/metrics")).body.decode()
                            (open_now,) = [
                                float(x.split()[1])
                                for x in text.splitlines()
                                if x.startswith("llmgw_gateway_connections ")
                            ]
                            if open_now > count:
                                break
                            await asyncio.sleep(0.05)
                    each = (resident(gateway.popen.pid) - before) / count
                    assert each < IDLE_BYTES, f"{each:.0f} bytes for each of {count}"
                    assert await served(port)
                finally:
                    for line in lines:
                        line.close()
                gc.collect()
                assert await served(port)

    try:
        run(scenario())
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_bodies_of_64_mib_and_no_more(tmp_path: Path) -> None:
    """Several at once: they pass whole, in little more memory than they are, and it is given back."""
    seen: list[int] = []

    async def counts(talk: Talk) -> None:
        seen.append(len(talk.asked.body))
        await talk.json({})

    front, back = b'{"model":"m","x":"', b'"}'
    body = front + b"x" * (64 * MIB - len(front) - len(back)) + back

    async def scenario() -> None:
        async with fake_control() as control, engine(counts) as e:
            await control.publish(table(1, m=loaded(e.replica())))
            here = tmp_path / "g"
            with process(here, listen="127.0.0.1:0", controls=[control.url]) as gateway:
                port = await gateway.port()
                assert await served(port)
                before = resident(gateway.popen.pid)

                async def send() -> int:
                    async with client(port) as c:
                        c.send(request(body))
                        return (await c.answer()).status

                async with asyncio.TaskGroup() as group:
                    sent = [group.create_task(send()) for _ in range(2)]
                assert [t.result() for t in sent] == [200] * 2
                assert seen[-2:] == [len(body)] * 2
                assert peak(gateway.popen.pid) - before < 2 * 64 * MIB * 2.5
                async with client(port) as c:
                    c.send(request(b"", content_length=str(64 * MIB + 1)))
                    assert (await c.answer()).status == 413
                assert resident(gateway.popen.pid) - before < 64 * MIB

    run(scenario())


@pytest.mark.parametrize("size", [1, 2_000_000])
def test_a_flood_of_headers_ends_the_connection_and_holds_nothing(size: int) -> None:
    async def scenario() -> None:
        async with rig() as world:
            c = await world.client()
            c.send(b"GET / HTTP/1.1\r\nHost: x\r\n")
            line = b"X-%d: a\r\n" if size == 1 else b"X-%d: " + b"a" * size + b"\r\n"
            with contextlib.suppress(ConnectionError):
                for n in range(200_000 // size + 1):
                    c.send(line % n)
                    if n % 100 == 0:
                        await c.writer.drain()
            answer = await c.answer()
            assert answer.status == 431
            await c.close()

    run(scenario())


def test_many_clients_that_say_a_byte_now_and_then_hold_nobody_up() -> None:
    """Slow loris: each is given up when its time is over, and others are served meanwhile."""

    async def scenario() -> None:
        async with rig() as world:
            one = await world.engine()
            world.use(table(m=loaded(one.replica())))
            slow: list[Client] = [await world.client() for _ in range(50)]
            head = request({"model": "m"})
            for at, c in enumerate(slow):
                c.send(head[: at + 1])
            await world.until(
                lambda: sum(c._reader.partial for c in world.gateway.connections) == 50
            )
            for step in range(15):
                for at, c in enumerate(slow):
                    c.send(head[at + 1 + step : at + 2 + step])
                await asyncio.sleep(0.002)
                world.pass_time(1.0)
                assert (await world.ask({"model": "m"})).status == 200
            world.pass_time(1.0)
            assert [(await c.answer()).status for c in slow] == [408] * 50
            world.pass_time(60.0)
            await world.until(lambda: not world.gateway.connections)

    run(scenario())


def test_a_smuggled_request_reaches_no_engine() -> None:
    """The corpus over real sockets: refused, closed, and nothing behind it is read as a request."""

    async def scenario() -> None:
        async with rig() as world:
            one = await world.engine()
            world.use(table(m=loaded(one.replica())))
            behind = b'POST /v1/embeddings HTTP/1.1\r\nHost: x\r\nContent-Length: 13\r\n\r\n{"model":"m"}'
            for name, data in kept("smuggling").items():
                c = await world.client()
                c.send(data + behind)
                answer = await c.answer()
                assert answer.status in (400, 505), name
                assert await c.rest() == b"", name
                await c.close()
            assert not one.asked

    run(scenario())


def test_an_end_waits_for_what_a_slow_client_has_not_taken_yet() -> None:
    """The engine is done, its answer is not: the last of it stands in our buffer, and the process must not end."""

    async def scenario() -> None:
        async with rig() as world:

            def unsent() -> int:
                (connection,) = world.gateway.connections
                return int(connection._transport.get_write_buffer_size())

            said = 0

            async def until_it_is_not_taken(talk: Talk) -> None:
                nonlocal said
                await talk.open_stream()
                while not unsent():
                    await talk.event("x" * 8000)
                    said += 1
                    await asyncio.sleep(0)
                await talk.event("last")
                await talk.end_stream()

            one = await world.engine(until_it_is_not_taken)
            world.use(table(m=loaded(one.replica())))
            c = await world.client()
            c.listen(on=False)
            c.send(request({"model": "m"}))
            await world.until(lambda: said and not world.in_flight())
            assert unsent()
            assert world.gateway.in_flight() == 1
            world.gateway.stopping = True
            world.pass_time(30.0)
            assert world.gateway.in_flight() == 1
            c.listen(on=True)
            answer = await c.answer()
            assert answer.body.endswith(b"data: last\n\n")
            assert answer.body.count(b"data: ") == said + 1
            await world.until(lambda: not world.gateway.in_flight())

    run(scenario())
