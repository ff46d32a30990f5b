"""Several processes that accept on one socket: killed one by one, with their parent, and replaced under load."""

import asyncio
import contextlib
import json
import os
import re
import signal
from collections.abc import AsyncIterator
from pathlib import Path
from typing import NamedTuple

import pytest

from llmgw import handover
from llmgw.errors import EXIT_DIFFERENCE, EXIT_INTERRUPTED, EXIT_OK
from llmgw.gateway import kin
from tests.gateway.peers import Client, Cut, Talk, hello, request
from tests.gateway.rig import run
from tests.gateway.test_main import STREAM, Process, ask, client, refusal
from tests.gateway.test_takeover import World, holder, load, until, world

SERVING = re.compile(r"serving +worker=(\d+) .*gateway=(\S+) pid=(\d+)")


class Worker(NamedTuple):
    number: int
    gateway: str
    pid: int


def workers(gateway: Process) -> list[Worker]:
    """All that ever served, as the log has them."""
    found = SERVING.findall(gateway.log_path.read_text())
    return [Worker(int(index), name, int(pid)) for index, name, pid in found]


def alive(pid: int) -> bool:
    try:
        return " Z " not in Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2][:3]
    except OSError:
        return False


@contextlib.asynccontextmanager
async def family(tmp_path: Path) -> AsyncIterator[tuple[World, Process]]:
    """A gateway of two workers, each of which accepts."""
    started: list[Process] = []
    async with world(tmp_path) as w:
        begin = w.start

        def start(**settings: object) -> Process:
            started.append(begin(**{"workers": 2, **settings}))
            return started[-1]

        w.start = start  # type: ignore[method-assign]
        try:
            gateway = await w.first()
            await until(lambda: len(workers(gateway)) == 2)  # each says so after it accepts
            yield w, gateway
        finally:
            for gateway in started:
                gateway.popen.kill()


class Streams:
    """Streams that are open until `go`, at least one on each worker."""

    def __init__(self, w: World) -> None:
        self.go = asyncio.Event()
        self.of: dict[str, list[Client]] = {}
        self._w = w
        w.engine.script = self._script

    async def _script(self, talk: Talk) -> None:
        if not json.loads(talk.asked.body).get("stream"):
            await hello(talk)
            return
        await talk.open_stream()
        await talk.event("one")
        await self.go.wait()
        await talk.event("two")
        await talk.end_stream()

    async def open(self, stack: contextlib.AsyncExitStack) -> None:
        while len(self.of) < 2:
            c = await stack.enter_async_context(client(self._w.port))
            c.send(request(STREAM))
            _, headers = await c.head()
            self.of.setdefault(headers["x-request-id"][:8], []).append(c)

    async def end(self) -> int:
        """How many came to their end; the others were cut."""
        self.go.set()
        whole = 0
        for c in (c for clients in self.of.values() for c in clients):
            with contextlib.suppress(Cut, ConnectionError, asyncio.IncompleteReadError):
                text = b"".join([chunk async for chunk in c.chunks()])
                whole += text.endswith(b"data: two\n\n")
            await c.close()
        return whole


def test_a_killed_worker_takes_only_its_own_requests_along(tmp_path: Path) -> None:
    """P6. The others accept on, and the parent starts it again."""

    async def scenario() -> None:
        async with contextlib.AsyncExitStack() as stack:
            w, gateway = await stack.enter_async_context(family(tmp_path))
            streams = Streams(w)
            await streams.open(stack)
            victim = workers(gateway)[0]
            doomed = len(streams.of[victim.gateway[:8]])
            os.kill(victim.pid, signal.SIGKILL)
            for _ in range(20):
                assert await ask(w.port) == 200
            await until(lambda: len(workers(gateway)) == 3)
            assert workers(gateway)[2].number == victim.number
            assert (await gateway.event("a worker ended"))["code"] == -signal.SIGKILL
            total = sum(map(len, streams.of.values()))
            assert await streams.end() == total - doomed
            gateway.popen.send_signal(signal.SIGTERM)
            assert await gateway.end() == EXIT_OK
            await until(lambda: not any(alive(x.pid) for x in workers(gateway)))

    run(scenario())


def test_term_lets_the_streams_of_all_workers_end(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with contextlib.AsyncExitStack() as stack:
            w, gateway = await stack.enter_async_context(family(tmp_path))
            streams = Streams(w)
            await streams.open(stack)
            gateway.popen.send_signal(signal.SIGTERM)
            for worker in workers(gateway):  # as a service manager does
                os.kill(worker.pid, signal.SIGTERM)
            await gateway.event("stopping")
            await until(lambda: gateway.log_path.read_text().count(" stopping ") >= 2)
            assert await streams.end() == sum(map(len, streams.of.values()))
            assert await gateway.end() == EXIT_OK

    run(scenario())


def test_a_second_ctrl_c_does_not_wait(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with contextlib.AsyncExitStack() as stack:
            w, gateway = await stack.enter_async_context(family(tmp_path))
            streams = Streams(w)
            await streams.open(stack)
            gateway.popen.send_signal(signal.SIGINT)
            await gateway.event("stopping")
            gateway.popen.send_signal(signal.SIGINT)
            assert await gateway.end() == EXIT_INTERRUPTED
            assert not any(alive(x.pid) for x in workers(gateway))

    run(scenario())


@pytest.mark.parametrize("how", ["parent lives", "parent killed", "parent and holder killed"])
def test_an_upgrade_under_load_fails_nobody(tmp_path: Path, how: str) -> None:
    """Also where nobody is left but the workers: one of them holds the place, and hands it over."""

    async def scenario() -> None:
        async with contextlib.AsyncExitStack() as stack:
            w, gateway = await stack.enter_async_context(family(tmp_path))
            streams = Streams(w)
            if how != "parent lives":
                gateway.popen.kill()
                await gateway.end()
                pids = {worker.pid for worker in workers(gateway)}
                first = await holder(w.folder)
                assert first in pids
                if how == "parent and holder killed":
                    os.kill(first, signal.SIGKILL)
                    assert {await holder(w.folder)} == pids - {first}
            async with load(w.port):
                if how != "parent and holder killed":
                    await streams.open(stack)
                heir = w.heir()
                await heir.event("took over")
                assert await holder(w.folder) == heir.popen.pid
                assert await ask(w.port) == 200
            assert await streams.end() == sum(map(len, streams.of.values()))
            await until(lambda: not any(alive(x.pid) for x in workers(gateway)))
            assert len(workers(heir)) == 2

    run(scenario())


def test_orphans_end_together(tmp_path: Path) -> None:
    """Whoever stops the one at the door means the gateway."""

    async def scenario() -> None:
        async with family(tmp_path) as (w, gateway):
            gateway.popen.kill()
            await gateway.end()
            await holder(w.folder)
            assert await ask(w.port) == 200
            await asyncio.to_thread(handover.stop, w.folder)
            await until(lambda: not any(alive(x.pid) for x in workers(gateway)))

    run(scenario())


def test_orphans_do_not_come_back_when_their_heir_has_ended(tmp_path: Path) -> None:
    """Stopped at once after an upgrade: the worker that had not seen it yet found the place free, and served on."""

    async def scenario() -> None:
        async with family(tmp_path) as (w, gateway):
            gateway.popen.kill()
            await gateway.end()
            first = await holder(w.folder)
            (other,) = {worker.pid for worker in workers(gateway)} - {first}
            os.kill(other, signal.SIGSTOP)
            heir = w.heir(workers=1)
            await heir.event("took over")
            heir.popen.send_signal(signal.SIGTERM)
            assert await heir.end() == EXIT_OK
            os.kill(other, signal.SIGCONT)
            await until(lambda: not alive(other))

    run(scenario())


def test_orphans_give_way_to_whoever_has_the_place(tmp_path: Path) -> None:
    """A gateway that was started at once, with the socket that its control keeps, was quicker than they."""

    async def scenario() -> None:
        async with family(tmp_path) as (w, gateway):
            got = await asyncio.to_thread(handover.listener, w.folder)
            with got.socket:
                pids = [worker.pid for worker in workers(gateway)]
                for pid in pids:
                    os.kill(pid, signal.SIGSTOP)
                gateway.popen.kill()
                await gateway.end()
                fd = got.socket.fileno()
                successor = w.start(listen_fd=fd, pass_fds=(fd,), workers=1)
                await successor.event("serving")
                for pid in pids:
                    os.kill(pid, signal.SIGCONT)
                await until(lambda: not any(map(alive, pids)))
            assert await ask(w.port) == 200
            assert await holder(w.folder) == successor.popen.pid

    run(scenario())


def test_one_that_cannot_serve_says_so(tmp_path: Path) -> None:
    async def scenario() -> None:
        code, said = await refusal(tmp_path / "s", listen="0.0.0.0:0", workers=2)
        assert code == EXIT_DIFFERENCE
        assert "ended before it served, exit code 2" in said
        assert "its own words" in said

    run(scenario())


def test_metrics_are_those_of_all_workers_and_never_go_back(tmp_path: Path) -> None:
    """Whichever worker is scraped; a worker that died keeps its series until the next one has its own."""
    name = "llmgw_gateway_requests_total"
    sample = re.compile(name.encode() + rb'{worker="(\d)",.*code="200"} (\d+)')

    async def scenario() -> None:
        async with family(tmp_path) as (w, gateway):
            before: dict[bytes, int] = {}
            seen: set[str] = set()
            text = b""
            while len(seen) < 2 or len(before) < 2:
                assert await ask(w.port) == 200
                async with client(w.port) as c:
                    answer = await c.get("/metrics")
                text = answer.body
                seen.add(answer.headers["x-request-id"][:8])
                now: dict[bytes, int] = {}
                for worker, n in sample.findall(text):
                    now[worker] = now.get(worker, 0) + int(n)
                assert all(now[worker] >= n for worker, n in before.items())
                before = now
            assert text.count(b"# TYPE llmgw_gateway_requests_total") == 1
            assert {x.gateway[:8] for x in workers(gateway)} == seen

    run(scenario())


def test_one_text_of_several() -> None:
    head = b"# HELP a_total Things.\n# TYPE a_total counter\n"
    other = b"# HELP b Other.\n# TYPE b gauge\nb 1.5\n"
    texts = [head + b'a_total{x="1"} 2\n', b"", head + b'a_total{x="{ 1"} 3\n' + other]
    assert kin.merged(texts) == (
        head + b'a_total{worker="0",x="1"} 2\na_total{worker="2",x="{ 1"} 3\n'
        b'# HELP b Other.\n# TYPE b gauge\nb{worker="2"} 1.5\n'
    )


def test_what_was_written_by_half_is_not_shown() -> None:
    (slot,) = kin.slots(1)
    assert kin.published(slot) == b""
    kin.publish(slot, b"a 1\nb 2\n")
    kin.publish(slot, b"a 2\n")
    assert kin.published(slot) == b"a 2\n"
    os.pwrite(slot, b"x", 9)
    assert kin.published(slot) == b""
    os.close(slot)
