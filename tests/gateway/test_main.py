"""The gateway as a real process: started, inherited, handed over, stopped, killed."""

import asyncio
import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest

from llmgw import handover
from llmgw.core.types.routes import RouteKey, RouteModel
from llmgw.errors import EXIT_DIFFERENCE, EXIT_INTERRUPTED, EXIT_OK, EXIT_USAGE, UnreachableError
from scripts.fleet import spawned
from tests.gateway.fake_control import FakeControl, fake_control
from tests.gateway.peers import Client, Engine, Talk, hello, request, silence
from tests.gateway.rig import loaded, run, table

SERVE = Path(__file__).with_name("serve.py")
ROOT = Path(__file__).resolve().parents[2]
ASK = {"model": "m"}
STREAM = {"model": "m", "stream": True}


class Process:
    """A gateway started with settings; its log is read line by line."""

    def __init__(self, folder: Path, pass_fds: tuple[int, ...] = (), **settings: Any) -> None:
        self.folder = folder
        self.log_path = folder.parent / f"{folder.name}.{os.urandom(4).hex()}.log"
        given = {"state_dir": str(folder), "controls": ["http://127.0.0.1:9"], **settings}
        with self.log_path.open("wb") as log:
            self.popen = subprocess.Popen(
                [sys.executable, str(SERVE), json.dumps(given)],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                pass_fds=pass_fds,
                start_new_session=True,
                cwd=ROOT,
                env={**os.environ, "PYTHONPATH": str(ROOT)},
            )

    def log(self) -> list[dict[str, Any]]:
        lines = self.log_path.read_text().splitlines()
        return [json.loads(line) for line in lines if line.startswith("{")]

    async def event(self, name: str) -> dict[str, Any]:
        """Waits for the line; `run` bounds it, and a process that ended says why."""
        while True:
            for line in self.log():
                if line["event"] == name:
                    return line
            assert self.popen.poll() is None, self.log_path.read_text()
            await asyncio.sleep(0.01)

    async def port(self) -> int:
        listen = (await self.event("serving"))["listen"]
        return int(listen.rpartition(":")[2])

    async def end(self) -> int:
        return await asyncio.to_thread(self.popen.wait, 60)


def orphans(folder: Path) -> Iterator[int]:
    """Workers of this folder, also such as have only just begun: they outlive a parent that was killed."""
    for pid in spawned(str(folder)):
        with contextlib.suppress(OSError):
            stat = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
            if str(folder) not in Path(f"/proc/{stat[1]}/cmdline").read_text():
                yield pid


@contextlib.contextmanager
def process(folder: Path, **settings: Any) -> Iterator[Process]:
    started = Process(folder, **settings)
    try:
        yield started
    finally:
        if started.popen.poll() is None:
            started.popen.kill()
        started.popen.wait()
        for pid in orphans(folder):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


@contextlib.asynccontextmanager
async def engine(script: Any = hello, name: str = "e1") -> AsyncIterator[Engine]:
    found = Engine(script, name)
    await found.start()
    try:
        yield found
    finally:
        await found.stop()


@contextlib.asynccontextmanager
async def client(port: int) -> AsyncIterator[Client]:
    found = Client(*await asyncio.open_connection("127.0.0.1", port))
    try:
        yield found
    finally:
        await found.close()


async def ask(port: int, body: Any = None) -> int:
    async with client(port) as c:
        return (await c.ask(body or ASK)).status


@contextlib.asynccontextmanager
async def fleet() -> AsyncIterator[tuple[FakeControl, Engine]]:
    async with fake_control() as control, engine() as e:
        await control.publish(table(1, m=loaded(e.replica())))
        yield control, e


def test_it_serves_and_ends_on_term(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with fleet() as (control, _):
            with process(tmp_path / "s", controls=[control.url], listen="127.0.0.1:0") as gateway:
                port = await gateway.port()
                await control.demand(table=1)
                assert await ask(port) == 200
                assert (tmp_path / "s").stat().st_mode & 0o777 == 0o700
                gateway.popen.send_signal(signal.SIGTERM)
                assert await gateway.end() == EXIT_OK
                (line,) = [x for x in gateway.log_path.read_text().splitlines() if " request " in x]
                assert " status=200 model=m replica=e1 " in line
                with pytest.raises(UnreachableError):
                    handover.hello(tmp_path / "s")

    run(scenario())


def test_term_lets_streams_end_and_says_so_to_control(tmp_path: Path) -> None:
    async def scenario() -> None:
        go = asyncio.Event()

        async def slow(talk: Talk) -> None:
            await talk.open_stream()
            await talk.event("one")
            await go.wait()
            await talk.event("two")
            await talk.end_stream()

        async with fleet() as (control, e):
            e.script = slow
            with process(tmp_path / "s", controls=[control.url], listen="127.0.0.1:0") as gateway:
                port = await gateway.port()
                await control.demand(table=1)
                async with client(port) as c, client(port) as idle:
                    c.send(request(STREAM))
                    await c.until(b"data: one\n\n")
                    gateway.popen.send_signal(signal.SIGTERM)
                    await gateway.event("stopping")
                    assert await idle.rest() == b""
                    with pytest.raises(ConnectionRefusedError):
                        await asyncio.open_connection("127.0.0.1", port)
                    await control.demand(in_flight={"e1": 1})
                    go.set()
                    assert (await c.until(b"0\r\n\r\n")).endswith(b"data: two\n\n\r\n0\r\n\r\n")
                    assert await gateway.end() == EXIT_OK
                last = control.demands[-1]
                assert (last["in_flight"], last["ended"]) == ({}, True)
                assert not any(d["ended"] for d in control.demands[:-1])

    run(scenario())


@pytest.mark.parametrize("how", ["second TERM", "limit"])
def test_an_end_does_not_wait_for_ever(tmp_path: Path, how: str) -> None:
    async def scenario() -> None:
        async with fleet() as (control, e):
            e.script = silence
            limit = 0.2 if how == "limit" else 600
            with process(
                tmp_path / "s", controls=[control.url], listen="127.0.0.1:0", drain_timeout_s=limit
            ) as gateway:
                port = await gateway.port()
                await control.demand(table=1)
                async with client(port) as c:
                    c.send(request(ASK))
                    talk = await e.talks.get()
                    gateway.popen.send_signal(signal.SIGTERM)
                    await gateway.event("stopping")
                    if how == "second TERM":
                        gateway.popen.send_signal(signal.SIGTERM)
                    assert await gateway.end() == EXIT_OK
                    await talk.left.wait()
                    assert (await gateway_line(gateway, "stopped"))["cut"] == 1

    run(scenario())


async def gateway_line(gateway: Process, event: str) -> dict[str, Any]:
    return next(line for line in gateway.log() if line["event"] == event)


def test_ctrl_c(tmp_path: Path) -> None:
    async def scenario() -> None:
        with process(tmp_path / "s", listen="127.0.0.1:0") as gateway:
            await gateway.port()
            gateway.popen.send_signal(signal.SIGINT)
            assert await gateway.end() == EXIT_INTERRUPTED

    run(scenario())


def test_it_starts_from_the_table_on_disk_with_control_away(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with fleet() as (control, _):
            with process(tmp_path / "s", controls=[control.url], listen="127.0.0.1:0") as gateway:
                await gateway.port()
                await control.demand(table=1)
                gateway.popen.kill()
                await gateway.end()
            with process(tmp_path / "s", listen="127.0.0.1:0") as gateway:
                port = await gateway.port()
                assert await ask(port) == 200

    run(scenario())


def test_a_killed_gateway_refuses_nobody_while_somebody_holds_its_listener(tmp_path: Path) -> None:
    """Control keeps the socket open: clients queue in the kernel until the next gateway takes it."""

    async def scenario() -> None:
        listener = socket.create_server(("127.0.0.1", 0), backlog=128)
        port = listener.getsockname()[1]
        async with fleet() as (control, _):
            fd = listener.fileno()
            more = {"controls": [control.url], "listen_fd": fd, "pass_fds": (fd,)}
            with process(tmp_path / "s", **more) as gateway:
                assert await gateway.port() == port
                await control.demand(table=1)
                assert await ask(port) == 200
                async with client(port) as kept:
                    assert (await kept.ask(ASK)).status == 200
                    gateway.popen.kill()
                    await gateway.end()
                    assert await kept.reader.read() == b""
                async with client(port) as queued:
                    queued.send(request(ASK))
                    with process(tmp_path / "s", **more) as successor:
                        answer = await queued.answer()
                        assert answer.status == 200
                        assert await successor.port() == port
        listener.close()

    run(scenario())


def test_a_new_control_gets_the_listener_from_the_gateway(tmp_path: Path) -> None:
    """The old control was killed, and nothing is left of it: the gateway serves on, and hands its socket over."""

    async def scenario() -> None:
        listener = socket.create_server(("127.0.0.1", 0), backlog=128)
        port = listener.getsockname()[1]
        async with fleet() as (control, _):
            fd = listener.fileno()
            with process(
                tmp_path / "s", controls=[control.url], listen_fd=fd, pass_fds=(fd,), token="t"
            ) as gateway:
                await gateway.port()
                await control.demand(table=1)
                listener.close()
                assert await ask(port) == 200
                got = await asyncio.to_thread(handover.listener, tmp_path / "s")
                assert got.gateway.pid == gateway.popen.pid
                assert got.gateway.table == 1
                assert got.gateway.listen == f"127.0.0.1:{port}"
                assert got.token == "t"
                assert got.socket.getsockname() == ("127.0.0.1", port)
                said = await asyncio.to_thread(handover.stop, tmp_path / "s")
                assert said.pid == gateway.popen.pid
                assert await gateway.end() == EXIT_OK
            async with client(port) as queued:
                queued.send(request(ASK))
                fd = got.socket.fileno()
                with process(tmp_path / "s", controls=[control.url], listen_fd=fd, pass_fds=(fd,)):
                    assert (await queued.answer()).status == 200
            got.socket.close()

    run(scenario())


def test_the_next_gateway_may_start_while_this_one_finishes(tmp_path: Path) -> None:
    async def scenario() -> None:
        listener = socket.create_server(("127.0.0.1", 0), backlog=128)
        port, fd = listener.getsockname()[1], listener.fileno()
        go = asyncio.Event()

        async def slow(talk: Talk) -> None:
            if json.loads(talk.asked.body).get("stream"):
                await go.wait()
            await hello(talk)

        async with fleet() as (control, e):
            e.script = slow
            more = {"controls": [control.url], "listen_fd": fd, "pass_fds": (fd,)}
            with process(tmp_path / "s", **more) as old:
                await old.port()
                await control.demand(table=1)
                async with client(port) as c:
                    c.send(request(STREAM))
                    await e.talks.get()
                    old.popen.send_signal(signal.SIGTERM)
                    await old.event("stopping")
                    with process(tmp_path / "s", **more) as new:
                        await new.port()
                        assert await ask(port) == 200
                        assert handover.hello(tmp_path / "s").pid == new.popen.pid
                        go.set()
                        assert (await c.answer()).status == 200
                        assert await old.end() == EXIT_OK
                        assert handover.hello(tmp_path / "s").pid == new.popen.pid, (
                            "the door is the new one's"
                        )
        listener.close()

    run(scenario())


# -- what cannot start says so


async def refusal(folder: Path, **settings: Any) -> tuple[int, str]:
    with process(folder, **settings) as gateway:
        code = await gateway.end()
        return code, gateway.log_path.read_text().splitlines()[-1]


def test_a_port_that_is_taken(tmp_path: Path) -> None:
    async def scenario() -> None:
        with socket.create_server(("127.0.0.1", 0)) as taken:
            port = taken.getsockname()[1]
            code, said = await refusal(tmp_path / "s", listen=f"127.0.0.1:{port}")
            assert code == EXIT_DIFFERENCE
            assert said.startswith(f"cannot listen on 127.0.0.1:{port}: address already in use - ")

    run(scenario())


def test_an_inherited_socket_that_is_none(tmp_path: Path) -> None:
    async def scenario() -> None:
        code, said = await refusal(tmp_path / "s", listen_fd=77)
        assert (code, said.split(":")[0]) == (EXIT_USAGE, "--listen-fd 77 is no socket")
        with socket.socket() as idle:
            fd = idle.fileno()
            code, said = await refusal(tmp_path / "s", listen_fd=fd, pass_fds=(fd,))
            assert (code, said.split(" - ")[0]) == (EXIT_USAGE, f"--listen-fd {fd} does not listen")

    run(scenario())


def test_a_folder_in_use(tmp_path: Path) -> None:
    async def scenario() -> None:
        with process(tmp_path / "s", listen="127.0.0.1:0") as gateway:
            await gateway.port()
            code, said = await refusal(tmp_path / "s", listen="127.0.0.1:0")
            assert code == EXIT_DIFFERENCE
            assert f"is in use by the gateway with pid {gateway.popen.pid}" in said

    run(scenario())


def test_beyond_loopback_only_with_keys(tmp_path: Path) -> None:
    async def scenario() -> None:
        wide = "0.0.0.0:0"
        code, said = await refusal(tmp_path / "s", listen=wide)
        assert code == EXIT_USAGE
        assert "beyond loopback, and no control answered with a table" in said
        assert "--insecure" in said
        async with fleet() as (control, e):
            code, said = await refusal(tmp_path / "s", listen=wide, controls=[control.url])
            assert code == EXIT_USAGE
            assert "beyond loopback, and no API key exists" in said
            key = RouteKey(id="k", sha256="0" * 64)
            await control.publish(table(2, keys=(key,), m=loaded(e.replica())))
            with process(tmp_path / "s", listen=wide, controls=[control.url]) as gateway:
                assert await ask(await gateway.port()) == 401
            await control.publish(table(3, m=loaded(e.replica()), n=RouteModel()))
            with process(
                tmp_path / "t", listen=wide, controls=[control.url], insecure=True
            ) as gateway:
                port = await gateway.port()
                await control.demand(table=3)
                assert await ask(port) == 200

    run(scenario())
