"""One gateway in place of another: no client sees it, and either may be killed at any moment of it."""

import asyncio
import contextlib
import json
import signal
import socket
import subprocess
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from llmgw import handover
from llmgw.errors import EXIT_DIFFERENCE, EXIT_OK, EXIT_USAGE, UnreachableError
from llmgw.gateway.door import LOCK
from tests.gateway.fake_control import FakeControl, fake_control
from tests.gateway.peers import Cut, Engine, Talk, hello, request
from tests.gateway.rig import run, table
from tests.gateway.test_main import ASK, ROOT, STREAM, Process, ask, client, fleet, process, refusal

#: A new gateway that dies by `kill -9` once it has done as much as its second argument says.
DIES = """
import asyncio, os, signal, sys
from pathlib import Path
from llmgw import handover
from llmgw.gateway.door import Door, StateDir

def die():
    os.kill(os.getpid(), signal.SIGKILL)

class Nobody:
    def hello(self):
        return handover.Hello(pid=os.getpid())

async def main():
    old = handover.takeover(Path(sys.argv[1]))
    if sys.argv[2] == "took":
        die()
    Door(StateDir(Path(sys.argv[1]), old.lock), old.listener, Nobody(), "", settled=False)
    if sys.argv[2] == "door":
        die()
    old.end()
    die()

asyncio.run(main())
"""


class Load:
    """Clients in a loop, half of them on kept connections, that write down whatever is not a whole 200."""

    def __init__(self, port: int) -> None:
        self.port = port
        self.done = 0
        self.failed: list[str] = []
        self.over = False

    async def kept(self) -> None:
        """As SDKs do: a connection is used again until an answer says `close`."""
        while not self.over:
            async with client(self.port) as c:
                more = True
                while more and not self.over:
                    more = await self._one(c)

    async def fresh(self) -> None:
        while not self.over:
            async with client(self.port) as c:
                await self._one(c)

    async def _one(self, c: Any) -> bool:
        try:
            answer = await c.ask(ASK)
        except (OSError, Cut, asyncio.IncompleteReadError, ValueError) as e:
            self.failed.append(repr(e))
            return False
        self.done += 1
        if answer.status != 200:
            self.failed.append(f"{answer.status} {answer.body!r}")
        await asyncio.sleep(0.005)
        return bool(answer.headers.get("connection") != "close")


@contextlib.asynccontextmanager
async def load(port: int) -> AsyncIterator[Load]:
    world = Load(port)
    async with asyncio.TaskGroup() as group:
        for _ in range(3):
            group.create_task(world.kept())
            group.create_task(world.fresh())
        try:
            yield world
            await until(lambda: world.done)
        finally:
            world.over = True
    assert world.failed == []


async def until(look: Callable[[], object]) -> None:
    while not look():  # noqa: ASYNC110 - another process changes it
        await asyncio.sleep(0.01)


async def holder(folder: Path) -> int:
    """Whoever answers at the door; for a moment nobody does where a new gateway was killed."""
    while True:
        with contextlib.suppress(UnreachableError):
            return (await asyncio.to_thread(handover.hello, folder)).pid
        await asyncio.sleep(0.01)


class World:
    """A state dir whose gateways are ended with the test."""

    def __init__(self, folder: Path, control: FakeControl, engine: Engine, stack: ExitStack):
        self.folder = folder
        self.control = control
        self.engine = engine
        self._stack = stack
        self.port = 0

    async def first(self, **settings: Any) -> Process:
        gateway = self.start(listen="127.0.0.1:0", **settings)
        self.port = await gateway.port()
        await self.control.demand(table=1)
        return gateway

    def start(self, **settings: Any) -> Process:
        given = {"controls": [self.control.url], "access_log": False, **settings}
        return self._stack.enter_context(process(self.folder, **given))

    def heir(self, **settings: Any) -> Process:
        return self.start(takeover=True, listen=f"127.0.0.1:{self.port}", **settings)

    async def dies(self, when: str) -> None:
        """A new gateway takes over up to a point, and is killed there."""
        command = [sys.executable, "-c", DIES, str(self.folder), when]
        done = await asyncio.to_thread(subprocess.run, command, cwd=ROOT, check=False)
        assert done.returncode == -signal.SIGKILL


@contextlib.asynccontextmanager
async def world(tmp_path: Path) -> AsyncIterator[World]:
    with ExitStack() as stack:
        async with fleet() as (control, engine):
            yield World(tmp_path / "s", control, engine, stack)


def test_an_upgrade_under_load_fails_nobody(tmp_path: Path) -> None:
    """A stream that is open, kept connections, new ones: nothing is refused, reset or cut."""

    async def scenario() -> None:
        go = asyncio.Event()

        async def script(talk: Talk) -> None:
            if not json.loads(talk.asked.body).get("stream"):
                await hello(talk)
                return
            await talk.open_stream()
            await talk.event("one")
            await go.wait()
            await talk.event("two")
            await talk.end_stream()

        async with world(tmp_path) as w:
            w.engine.script = script
            old = await w.first()
            async with client(w.port) as stream, load(w.port) as clients:
                stream.send(request(STREAM))
                await stream.until(b"data: one\n\n")
                new = w.heir()
                took = await new.event("took over")
                assert (took["pid"], took["answered"]) == (old.popen.pid, True)
                await old.event("stopping")
                assert await holder(w.folder) == new.popen.pid
                assert (w.folder / LOCK).read_text() == str(new.popen.pid)
                done = clients.done
                await until(lambda: clients.done > done + 20)
                # Control hears of both, each by its own name: what streams in the old one stays busy.
                name = (await old.event("serving"))["gateway"]
                await w.control.demand(gateway=name, in_flight={"e1": 1})
                assert old.popen.poll() is None
                go.set()
                assert (await stream.until(b"0\r\n\r\n")).endswith(b"data: two\n\n\r\n0\r\n\r\n")
            assert await old.end() == EXIT_OK
            assert (await old.event("stopped"))["cut"] == 0
            assert await holder(w.folder) == new.popen.pid
            assert json.loads((w.folder / "routes.json").read_text())["version"] == 1
            new.popen.send_signal(signal.SIGTERM)
            assert await new.end() == EXIT_OK
            assert not (w.folder / handover.NAME).exists()

    run(scenario())


def test_ten_in_a_row(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with world(tmp_path) as w:
            gateways = [await w.first()]
            async with load(w.port):
                for _ in range(10):
                    gateways.append(w.heir())
                    await gateways[-1].event("took over")
            assert await holder(w.folder) == gateways[-1].popen.pid
            for old in gateways[:-1]:
                assert await old.end() == EXIT_OK

    run(scenario())


def test_several_at_once_come_one_after_another(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with world(tmp_path) as w:
            old = await w.first()
            async with load(w.port):
                heirs = [w.heir() for _ in range(3)]
                for heir in heirs:
                    await heir.event("took over")
                assert await old.end() == EXIT_OK
                pid = await holder(w.folder)
                (last,) = [h for h in heirs if h.popen.pid == pid]
                for heir in heirs:
                    assert heir is last or await heir.end() == EXIT_OK
            assert await ask(w.port) == 200

    run(scenario())


@pytest.mark.parametrize("when", ["took", "door"])
def test_a_new_one_that_is_killed_changes_nothing(tmp_path: Path, when: str) -> None:
    """The old one serves on, is found at its door again, and the next takeover succeeds."""

    async def scenario() -> None:
        async with world(tmp_path) as w:
            old = await w.first()
            async with load(w.port):
                await w.dies(when)
                assert await holder(w.folder) == old.popen.pid
                code, said = await refusal(w.folder, listen="127.0.0.1:0")
                assert code == EXIT_DIFFERENCE
                assert f"is in use by the gateway with pid {old.popen.pid}" in said
                await w.heir().event("took over")
                assert await old.end() == EXIT_OK

    run(scenario())


def test_a_new_one_that_is_killed_at_the_very_end_leaves_the_place_free(tmp_path: Path) -> None:
    """As a gateway that is killed while it serves: the old one had been told to go."""

    async def scenario() -> None:
        async with world(tmp_path) as w:
            old = await w.first()
            await w.dies("ended")
            assert await old.end() == EXIT_OK
            await w.heir().event("serving")
            assert await ask(w.port) == 200

    run(scenario())


@pytest.mark.parametrize("victim", ["old", "new"])
def test_killed_in_the_middle(tmp_path: Path, victim: str) -> None:
    """The new one waits for its control here; then the old one is killed, or it is itself."""

    async def scenario() -> None:
        async with world(tmp_path) as w:
            old = await w.first()
            with socket.create_server(("127.0.0.1", 0)) as mute:
                new = w.heir(controls=[f"http://127.0.0.1:{mute.getsockname()[1]}"])
                await new.event("takes over")
                (old if victim == "old" else new).popen.kill()
                mute.close()
                left = new if victim == "old" else old
                async with client(w.port) as c:
                    assert (await c.ask(ASK)).status == 200
                if victim == "old":
                    assert (await new.event("took over"))["answered"] is False
                assert await holder(w.folder) == left.popen.pid
                newest = w.heir()
                await newest.event("took over")
                assert await left.end() == EXIT_OK
                assert await ask(w.port) == 200

    run(scenario())


def test_term_to_the_old_one_in_the_middle(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with world(tmp_path) as w:
            old = await w.first()
            with socket.create_server(("127.0.0.1", 0)) as mute:
                new = w.heir(controls=[f"http://127.0.0.1:{mute.getsockname()[1]}"])
                await new.event("takes over")
                old.popen.send_signal(signal.SIGTERM)
                assert await old.end() == EXIT_OK
                mute.close()
                assert await ask(w.port) == 200
                assert await holder(w.folder) == new.popen.pid

    run(scenario())


def test_where_none_runs_it_is_an_ordinary_start(tmp_path: Path) -> None:
    """Also after a kill -9, which leaves a socket that nobody answers at."""

    async def scenario() -> None:
        async with world(tmp_path) as w:
            gateway = await w.first()
            gateway.popen.kill()
            await gateway.end()
            heir = w.heir()
            await heir.event("no gateway to take over from: an ordinary start")
            await heir.event("serving")
            assert await ask(w.port) == 200

    run(scenario())


def test_another_address_is_refused_and_the_old_one_serves_on(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with world(tmp_path) as w:
            old = await w.first()
            code, said = await refusal(w.folder, takeover=True, listen="127.0.0.2:0")
            assert code == EXIT_USAGE
            assert f"serves 127.0.0.1:{w.port}, not 127.0.0.2:0" in said
            assert await ask(w.port) == 200
            assert await holder(w.folder) == old.popen.pid

    run(scenario())


def test_the_token_goes_over_where_the_new_one_was_given_none(tmp_path: Path) -> None:
    async def scenario() -> None:
        with ExitStack() as stack:
            async with fake_control(token="secret") as control:
                await control.publish(table(1))
                w = World(tmp_path / "s", control, Engine(hello, "e1"), stack)
                await w.first(token="secret")
                await w.heir().event("took over")
                got = await asyncio.to_thread(handover.listener, w.folder)
                got.socket.close()
                assert got.token == "secret"

    run(scenario())


def test_an_idle_client_is_not_cut_off_as_it_asks(tmp_path: Path) -> None:
    """Its next answer says `close`: a connection that is closed in the moment of a request is a failed request."""

    async def scenario() -> None:
        async with world(tmp_path) as w:
            old = await w.first()
            async with client(w.port) as idle, client(w.port) as kept:
                assert (await kept.ask(ASK)).headers.get("connection") != "close"
                await w.heir().event("took over")
                await old.event("stopping")
                await asyncio.sleep(1.2)  # the sweeper of a gateway that ends has passed
                for c in (idle, kept):
                    answer = await c.ask(ASK)
                    assert (answer.status, answer.headers["connection"]) == (200, "close")
                assert await old.end() == EXIT_OK

    run(scenario())
