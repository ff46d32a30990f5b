"""A real control and a real agent's loop in one process, and between them a wire that a test may damage.

Answers for: the wire's faults (lost, late, twice), an agent that can be killed and started again over its own journal,
and processes that are only numbers. It may not know what is tested.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any, Literal, NamedTuple

import httpx
from msgspec.structs import replace

from llmgw.agent.calls import Answer, NoAnswerError
from llmgw.agent.identity import Identity, open_state_dir
from llmgw.agent.journal import Journal
from llmgw.agent.link import Link
from llmgw.agent.loop import Loop
from llmgw.agent.placeholders import Filler
from llmgw.control.api import app
from llmgw.control.guard import Tokens
from llmgw.control.sessions import Session
from llmgw.core.supervise import initial_state
from llmgw.core.types.messages import Capacity
from llmgw.core.types.node import (
    Event,
    Exited,
    GpusSeen,
    Identified,
    MemorySeen,
    NodeFacts,
    Probed,
    Spawned,
    TreeSeen,
)
from llmgw.core.types.record import Key, Record
from tests.control.bench import SOON_S, Bench, scenario

Fault = Literal["", "lost", "unheard", "twice", "late"]
#: Not where other tests and other people's engines listen: the agent tries each port with a real bind.
PORTS = (23400, 23499)


class Request(NamedTuple):
    method: str
    path: str
    content: bytes


class Wire:
    """To control, with faults: `lost` never arrives, of `unheard` the answer is lost, `late` arrives at `release`."""

    def __init__(self, bench: Bench) -> None:
        self.bench = bench
        self.shown = ""
        self.in_clear = False
        self.cut = False
        self.served: tuple[Any, Any] = (None, None)
        self.log: list[tuple[str, int]] = []
        self.held: list[Request] = []
        self.fault: Callable[[str], Fault] = lambda _: ""
        #: what a peer of another version would say instead
        self.changed: Callable[[bytes], bytes] = lambda content: content
        self.answered: Callable[[bytes], bytes] = lambda content: content

    def close(self) -> None: ...

    async def call(
        self,
        method: str,
        path: str,
        body: bytes,
        limit_s: float,  # noqa: ARG002 - a caller's form
        *,
        shy: bool = False,  # noqa: ARG002
    ) -> Answer:
        request = Request(method, path, body)
        what = path.partition("?")[0].rpartition("/")[2]
        fault = "lost" if self.cut or self.bench.control.closing else self.fault(what)
        if fault == "lost":
            await asyncio.sleep(0)
            msg = "the wire is cut"
            raise ConnectionRefusedError(msg)
        if fault == "late":
            self.held.append(request)
            msg = "no answer in time"
            raise NoAnswerError(msg)
        if fault == "twice":
            await self.deliver(request)
        answer = await self.deliver(request)
        if fault == "unheard":
            msg = "the answer is lost"
            raise NoAnswerError(msg)
        self.log.append((what, answer.status))
        return answer

    async def deliver(self, request: Request) -> Answer:
        control = self.bench.control
        if self.served[0] is not control:
            self.served = (control, app(control, Tokens("", [""]), shut_down=lambda: None))
        transport = httpx.ASGITransport(self.served[1])
        content = self.changed(request.content)
        url = f"http://127.0.0.1{request.path}"
        headers = {"content-type": "application/json"}
        copy = httpx.Request(request.method, url, headers=headers, content=content)
        answer = await transport.handle_async_request(copy)
        return Answer(answer.status_code, self.answered(await answer.aread()))

    async def release(self) -> list[int]:
        """What was held up on the way arrives now, in its order; their statuses."""
        held, self.held = ([] if self.bench.control.closing else self.held), []
        return [(await self.deliver(request)).status for request in held]


class NoContainers:
    now: Any = None

    def mine(self, record: Record) -> bool:  # noqa: ARG002 - a performer's form
        return False


class Hands:
    """Stands where the agent's performer does: engines are numbers in `alive`, which outlive the agent."""

    def __init__(self, alive: dict[Key, int]) -> None:
        self.alive = alive
        self.post: Callable[[Event], None] = lambda _: None
        self.logs = self
        self.containers = NoContainers()

    def prune(self, records: object) -> None: ...

    def bound(self, records: object) -> None: ...

    def remember_trees(self, records: object) -> None: ...

    def forget(self, key: Key) -> None: ...

    def reap(self) -> None: ...

    def filler(self, record: Record) -> Filler:  # noqa: ARG002 - the performer's form
        return Filler({}, {})

    def spawn(self, record: Record) -> Event:
        assert record.key not in self.alive, f"{record.key} is started twice"
        pid = max(self.alive.values(), default=100) + 1
        self.alive[record.key] = pid
        return Spawned(
            key=record.key, attempt=record.attempt, pid=pid, start_ticks=pid, at="2026-01-01"
        )

    def die(self, record: Record) -> None:
        if self.alive.pop(record.key, None) is not None:
            self.post(Exited(key=record.key, attempt=record.attempt, code=-9))

    def signal(self, record: Record, name: str) -> None:  # noqa: ARG002 - a performer's form
        self.die(record)

    def look(self, record: Record) -> Event:
        pid = self.alive.get(record.key)
        return TreeSeen(key=record.key, attempt=record.attempt, alive=(pid,) if pid else ())

    def identify(self, record: Record, survey: object = None) -> Identified:  # noqa: ARG002
        pid = self.alive.get(record.key)
        if record.pid is None and pid is not None:
            return Identified(key=record.key, pid=pid, start_ticks=pid)
        return Identified(key=record.key, leader="absent" if pid is None else "same")

    def measure(self, record: Record, records: object) -> None:  # noqa: ARG002
        self.post(MemorySeen(key=record.key, attempt=record.attempt, used_bytes=0))

    def probe(self, record: Record, *, check: bool, token: bool) -> None:  # noqa: ARG002
        if record.key in self.alive:
            owner: Literal["", "ours"] = "ours" if check else ""
            self.post(Probed(key=record.key, attempt=record.attempt, outcome="ok", owner=owner))


class Node:
    """One agent: `running` is one process of it, killed at the end without a last word."""

    def __init__(self, wire: Wire, folder: Path, name: str = "box1", **facts: Any) -> None:
        self.wire = wire
        self.bench = wire.bench
        self.folder = folder
        self.facts = NodeFacts(
            node=name,
            node_id=f"id-{name}",
            boot_id=f"boot-{name}",
            address="10.0.0.1",
            capacity=Capacity(ports=PORTS),
        )
        self.facts = replace(self.facts, **facts)
        self.alive: dict[Key, int] = {}
        self.lives = 0
        self.loop: Loop
        self.link: Link
        self.hands: Hands

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[Loop]:
        self.lives += 1
        identity: Identity = open_state_dir(self.folder, "machine-1")
        journal = Journal(self.folder)
        loaded = journal.load()
        facts = replace(self.facts, instance=identity.instance)
        self.loop = loop = Loop(initial_state(facts, loaded.records, loaded.token), journal)
        self.hands = hands = Hands(self.alive)
        hands.post = loop.post
        loop.reattach(hands, None)  # type: ignore[arg-type]
        loop.feed(GpusSeen(()))
        self.link = link = Link(loop, "http://127.0.0.1", "", calls=self.wire)
        link.pause_s = lambda _: 0.0
        loop.links = {link.url: link}
        tasks = [asyncio.ensure_future(loop.run()), asyncio.ensure_future(link.run())]
        try:
            yield loop
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks)
            identity.lock.close()
            for task in tasks:
                if not task.cancelled():
                    task.result()

    @property
    def records(self) -> dict[Key, Record]:
        return self.loop.state.records

    @property
    def session(self) -> Session | None:
        return self.bench.control.sessions.of(self.facts.node)

    def known(self) -> dict[Key, str]:
        """What control believes of this node, by state; what it only placed left out."""
        node = self.bench.control.state.nodes.get(self.facts.node)
        shards = () if node is None else node.shards
        return {
            (s.report.shard, s.report.incarnation): s.report.state
            for s in shards
            if s.origin == "reported" and not s.missing
        }

    def agree(self) -> bool:
        """Both sides have the same picture, and nothing is under way between them."""
        session = self.session
        mine = {key: r.state for key, r in self.records.items()}
        box = self.link.outbox
        told = not (box.changed or box.gone or box.refused or box.ready.is_set())
        return session is not None and told and not session.queue and mine == self.known()


async def until(test: Callable[[], Any], what: str = "", limit_s: float = SOON_S) -> Any:
    end = time.monotonic() + limit_s
    while not (found := test()):
        assert time.monotonic() < end, f"waited {limit_s} s for {what or test}"
        await asyncio.sleep(0.002)
    return found


async def up(node: Node) -> None:
    """One engine runs, and both sides know it."""
    await until(lambda: set(node.known().values()) == {"ready"} and node.agree(), "both agree")


def first(what: str, *faults: Fault) -> Callable[[str], Fault]:
    """These faults, one each, for the next calls of this kind."""
    left = list(faults)
    return lambda path: left.pop(0) if path == what and left else ""


def one_node(
    story: Callable[[Node], Any],
) -> Callable[[Path], None]:
    """A test with a control that runs, and an agent that the test starts."""

    @scenario
    async def test(bench: Bench) -> None:
        async with bench.running():
            await story(Node(Wire(bench), bench.folder / "agent"))

    test.__name__, test.__doc__ = story.__name__, story.__doc__
    return test
