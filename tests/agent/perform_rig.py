"""A performer with nobody behind it, for tests of what the agent does to processes, and records of what runs."""

from __future__ import annotations

import asyncio
import errno
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from llmgw.agent import process
from llmgw.agent.devices import Devices
from llmgw.agent.gpu import Gpus
from llmgw.agent.logs import Logs
from llmgw.agent.perform import Performer
from llmgw.core.types.messages import Start
from llmgw.core.types.node import Event, NodeFacts, TreeSeen
from llmgw.core.types.record import Key, Record, Watch
from scripts.ports import free_port

#: Of this run alone: others may run these tests beside it.
NODE = uuid.uuid4().hex
FACTS = NodeFacts(node="box1", node_id=NODE)
START = Start(
    shard="alpha-1/0",
    replica="alpha-1",
    incarnation="inc-1",
    model="alpha",
    profile="main",
    command=("sleep", "60"),
    port=18000,
)
KEY: Key = ("alpha-1/0", "inc-1")
TOO_MANY = OSError(errno.EMFILE, "Too many open files")


class Bench:
    """A performer with nobody behind it: `events` is what it posted."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.events: list[Event] = []
        self.posted = asyncio.Event()
        self.logs = Logs(folder)
        self.devices = Devices(Gpus("none"), NODE)

    def run(self, act: Callable[[Performer], Any], *, posts: type[Event] | None = None) -> Any:
        """Do something with it, and wait until it has posted an event of that kind."""

        async def life() -> Any:
            async with asyncio.TaskGroup() as tasks:
                hands = Performer(
                    facts=FACTS,
                    state_dir=self.folder,
                    logs=self.logs,
                    devices=self.devices,
                    post=self.post,
                    tasks=tasks,
                )
                answer = act(hands)
                if asyncio.iscoroutine(answer):
                    answer = await answer
                async with asyncio.timeout(60):
                    while posts and not any(isinstance(e, posts) for e in self.events):
                        self.posted.clear()
                        await self.posted.wait()
                return answer

        return asyncio.run(life())

    def post(self, event: Event) -> None:
        self.events.append(event)
        self.posted.set()

    def look(self, record: Record) -> TreeSeen:
        seen = self.run(lambda hands: hands.look(record))
        assert isinstance(seen, TreeSeen)
        return seen

    def secrets(self, record: Record) -> frozenset[str]:
        found: frozenset[str] = self.run(lambda hands: hands.secrets_of(record))
        return found

    def spawn(self, record: Record) -> Event:
        answer: Event = self.run(lambda hands: hands.spawn(record))
        return answer

    def last(self, kind: type[Any]) -> Any:
        return next(e for e in reversed(self.events) if isinstance(e, kind))


def running(pid: int, ticks: int, **changes: Any) -> Record:
    start = replace(START, **changes)
    return Record(
        start=start, state="ready", pid=pid, start_ticks=ticks, watch=Watch(verified=True)
    )


def ordered(*command: str) -> Record:
    return Record(start=replace(START, command=command, port=free_port()), intent=True)


def hide(monkeypatch: pytest.MonkeyPatch, pid: int, error: OSError) -> None:
    """Whoever looks at this process gets this error."""
    read = process.read_stat

    def looked(asked: int) -> process.Stat | None:
        if asked == pid:
            raise error
        return read(asked)

    monkeypatch.setattr(process, "read_stat", looked)
