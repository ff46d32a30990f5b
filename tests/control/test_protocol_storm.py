"""Any weather between a real control and a real agent: nothing runs unreported, nothing twice, both end up agreeing.

A42, F2, F3, F57, F58, F79. The wire loses, delays and repeats messages, either side is killed and comes back, engines
die, the catalog changes; after each step the law of A42 holds, and once the weather clears the pictures are the same.
"""

from __future__ import annotations

import asyncio
import random
import tempfile
from contextlib import AsyncExitStack
from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st

from tests.control.bench import CATALOG, SOON_S, Bench
from tests.control.pair import Fault, Node, Wire, until

MODELS = ("alpha", "beta", "gamma")
FAULTS: tuple[Fault, ...] = ("lost", "unheard", "twice", "late")
#: Where nothing waits for a disk: what is synced when is other tests' business.
MEMORY = Path("/dev/shm")
STEPS = ("fault", "fault", "catalog", "die", "agent", "control", "release", "time", "rest", "again")


def catalog_of(models: list[str]) -> str:
    head, _, body = CATALOG.partition("  alpha:\n")
    body = body.replace("    aliases: [first]\n", "").replace(
        "memory: 1GiB}", "memory: 1GiB, restart: {backoff: 10ms, max: 99}}"
    )
    return (
        head + "".join(f"  {m}:\n{body}" for m in models) if models else "version: 1\nmodels: {}\n"
    )


class Weather:
    def __init__(self, folder: Path, seed: int) -> None:
        self.dice = random.Random(seed)
        self.bench = Bench(folder)
        self.wire = Wire(self.bench)
        self.node = Node(self.wire, folder / "agent")
        self.faults: list[Fault] = []
        self.stack = {"control": AsyncExitStack(), "agent": AsyncExitStack()}
        self.done: list[str] = []

    async def start(self, what: str) -> None:
        it = self.bench.running(crash=True) if what == "control" else self.node.running()
        await self.stack[what].enter_async_context(it)

    async def stop(self, what: str) -> None:
        await self.stack[what].aclose()

    async def run(self, steps: list[str]) -> None:
        self.bench.catalog.write_text(catalog_of(["alpha"]))
        self.wire.fault = lambda _: self.faults.pop() if self.faults else ""
        await self.start("control")
        await self.start("agent")
        try:
            for step in steps:
                self.done.append(step)
                await self.step(step)
                for _ in range(self.dice.randrange(12)):
                    await asyncio.sleep(0)
                    self.law()
            self.done.append("clear")
            await self.clear()
        finally:
            await self.stop("agent")
            await self.stop("control")

    async def step(self, step: str) -> None:
        match step:
            case "fault":
                self.faults += self.dice.choices(FAULTS, k=self.dice.randrange(1, 4))
            case "catalog":
                models = self.dice.sample(MODELS, k=self.dice.randrange(1, 4))
                self.bench.catalog.write_text(catalog_of(models))
                await self.bench.post("/api/v1/catalog")
            case "die":
                for record in self.dice.sample(
                    list(self.node.records.values()), k=1 if self.node.records else 0
                ):
                    self.node.hands.die(record)
            case "agent" | "control":
                await self.stop(step)
                await self.start(step)
            case "release":
                await self.wire.release()
            case "time":
                await self.bench.later(self.dice.choice((1, 6, 16, 70)))
            case "again":
                self.node.link.register_again("the test says so")
            case _:
                await asyncio.sleep(0.01)

    def law(self) -> None:
        """Whatever an older session had started is in the report that the present one began with (A42)."""
        session = self.node.session
        if session is None:
            return
        reported = {(s.shard, s.incarnation) for s in session.report.shards}
        for key, record in self.node.records.items():
            if record.start.session != session.id and key in self.node.alive:
                assert key in reported, f"{key} of session {record.start.session} is unreported"
        ports = [r.start.port for k, r in self.node.records.items() if k in self.node.alive]
        assert len(ports) == len(set(ports)), ports

    async def clear(self) -> None:
        self.faults.clear()
        await self.wire.release()
        await self.bench.later(70)
        await until(self.node.agree, "both agree")
        for _ in range(12):  # what waits for its grace, its repetition or its drain
            await self.bench.later(30)
            await until(self.node.agree, "both agree")
        self.law()
        await until(self.as_wanted, "one engine a model")
        assert not set(self.node.alive) - set(self.node.records)

    def as_wanted(self) -> bool:
        records = self.node.records
        alive = sorted(records[key].start.model for key in self.node.alive)
        return alive == sorted(self.bench.control.state.catalog.models)


@settings(max_examples=12)
@given(st.lists(st.sampled_from(STEPS), max_size=25), st.integers(0, 2**32))
def test_a42_whatever_the_weather(steps: list[str], seed: int) -> None:
    """F2, F3, F57, F58, F79: killed at any moment, told twice or late or not at all."""

    async def bounded(weather: Weather) -> None:
        async with asyncio.timeout(2 * SOON_S):
            await weather.run(steps)

    with tempfile.TemporaryDirectory(dir=MEMORY if MEMORY.is_dir() else None) as folder:
        asyncio.run(bounded(Weather(Path(folder), seed)))
