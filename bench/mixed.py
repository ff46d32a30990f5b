"""Hours of everything at once: streams, JSON, cancels, resets and wake-ups, while parts are killed and replaced.

    python -m bench.mixed [MINUTES]        60 by default

Control is killed every 20 s, the gateway upgraded every minute (`--takeover`), an engine killed every 45 s, all over
real processes with fake engines. Prints one JSON document; the exit code is 0 where no request failed but those of
killed engines, nothing stayed in flight, and memory stayed flat. It may not judge by anything that a client cannot see.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import yaml

from llmgw import handover
from llmgw.errors import LlmgwError
from scripts.fleet import Fleet, wait_for
from tests.engines.running import FAKE
from tests.gateway.peers import Client, Cut, request

CONTROL_S, GATEWAY_S, ENGINE_S = 20.0, 60.0, 45.0
TOKENS = 40
WORKERS = 12
#: A replica comes back under its own name: its failures are the kill's for so long.
EXCUSED_S = 10.0
#: Resident memory of one kind of process may grow by this much from its early lives to its late ones.
GROWTH = 1.25
GROWTH_BYTES = 8 << 20
OK = 200
Json = dict[str, Any]


def catalog(path: Path) -> Path:
    def model(least: int, most: int, *flags: str, **scaling: Any) -> Json:
        command = [*FAKE, "--port", "${port}", "--tokens", str(TOKENS), *flags]
        profile = {"name": "main", "command": command, "host_memory": "64MiB"}
        more = {"min": least, "max": most, **scaling}
        return {"scaling": more, "profiles": [profile]}

    models = {
        "steady": model(2, 2, "--token-interval-s", "0.02"),
        "asleep": model(0, 1, "--load-s", "0.5", idle_timeout="3s", min_up="1s"),
    }
    # Its engines are killed all the time: none of them is to be given up for that.
    defaults = {"restart": {"max": 10_000, "window": "30m", "backoff": "0.2s"}}
    path.write_text(yaml.safe_dump({"version": 1, "defaults": defaults, "models": models}))
    return path


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


class Load:
    def __init__(self, port: int, tally: Tally, dice: random.Random) -> None:
        self.port = port
        self.tally = tally
        self.dice = dice
        self.over = False
        self.replica = ""  # that answers just now
        self.kinds: dict[str, Callable[[Client], Awaitable[bool]]] = {
            "stream": self.stream,
            "json": self.json,
            "cancel": self.cancel,
            "reset": self.reset,
            "wake": self.wake,
            "models": self.models,
        }

    async def run(self) -> None:
        """One client after another; a connection is kept for a few requests, as SDKs do."""
        while not self.over:
            try:
                client = Client(*await asyncio.open_connection("127.0.0.1", self.port))
            except OSError as e:
                self.tally.failure("connect", repr(e))
                await asyncio.sleep(0.2)
                continue
            try:
                for _ in range(self.dice.randint(1, 5)):
                    if not await self.one(client):
                        break
                    await asyncio.sleep(self.dice.random() * 0.1)
            finally:
                with contextlib.suppress(OSError):
                    await client.close()

    async def head(self, client: Client) -> tuple[int, dict[str, str]]:
        status, headers = await client.head()
        self.replica = headers.get("x-llmgw-replica", "")
        return status, headers

    async def one(self, client: Client) -> bool:
        self.replica = ""
        kind = self.dice.choices(list(self.kinds), weights=[5, 5, 2, 2, 1, 1])[0]
        try:
            async with asyncio.timeout(60):
                more = await self.kinds[kind](client)
        except (Cut, OSError, asyncio.IncompleteReadError, ValueError, TimeoutError) as e:
            self.tally.failure(kind, repr(e)[:300], self.replica)
            return False
        self.tally.done[kind] += 1
        return more

    def refused(self, kind: str, status: int, body: bytes) -> bool:
        self.tally.failure(kind, f"{status} {body[-300:]!r}", self.replica)
        return False

    async def stream(self, client: Client, model: str = "steady") -> bool:
        client.send(request({"model": model, "messages": [], "stream": True}))
        status, headers = await self.head(client)
        whole = b""
        if headers.get("transfer-encoding") == "chunked":
            async for piece in client.chunks():
                whole += piece
        else:
            whole = await client.reader.readexactly(int(headers.get("content-length", 0)))
        tokens = whole.count(b'"delta": {"content"') or whole.count(b'"content":')
        if status != OK or not whole.rstrip().endswith(b"data: [DONE]") or tokens < TOKENS:
            return self.refused("stream", status, whole)
        return headers.get("connection") != "close"

    async def json(self, client: Client, model: str = "steady") -> bool:
        client.send(request({"model": model, "messages": []}))
        status, headers = await self.head(client)
        body = await client.reader.readexactly(int(headers.get("content-length", 0)))
        if status != OK or f"t{TOKENS}".encode() not in body:
            return self.refused("json", status, body)
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
        answer = await client.get("/v1/models")
        if answer.status != OK:
            return self.refused("models", answer.status, answer.body)
        return answer.headers.get("connection") != "close"


def resident(pid: int) -> int:
    try:
        fields = Path(f"/proc/{pid}/statm").read_text().split()
    except OSError:
        return 0
    return int(fields[1]) * os.sysconf("SC_PAGESIZE")


class Trouble:
    """Kills and replaces parts of a fleet, and looks at their memory."""

    def __init__(self, fleet: Fleet, tally: Tally, dice: random.Random, workers: int) -> None:
        self.fleet = fleet
        self.tally = tally
        self.dice = dice
        self.workers = workers
        self.count: Counter[str] = Counter()
        self.memory: dict[str, dict[int, list[int]]] = defaultdict(lambda: defaultdict(list))
        self.gateways: list[subprocess.Popen[bytes]] = []

    async def every(self, seconds: float, what: Callable[[], None]) -> None:
        while True:
            await asyncio.sleep(seconds)
            await asyncio.to_thread(what)

    def control(self) -> None:
        self.fleet.kill("control")
        self.count["control killed"] += 1
        time.sleep(self.dice.random() * 3)
        self.fleet.start("control")

    def gateway(self) -> None:
        before = self.fleet.gateway_pid()
        url, state = self.fleet.urls, self.fleet.folder / "control" / "gateway"
        words = ["gateway", "--takeover", "--state-dir", str(state), "--control", url["control"]]
        words += ["--listen", url["gateway"].removeprefix("http://")]
        words += ["--workers", str(self.workers)]
        with self.fleet.log("gateway").open("ab") as log:
            heir = subprocess.Popen(
                [sys.executable, "-m", "llmgw", *words],
                env=self.fleet.env,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        self.gateways.append(heir)

        def taken_over() -> bool:
            try:
                return handover.hello(state).pid not in {0, before}
            except LlmgwError:
                return False

        wait_for(taken_over, "a gateway that took over")
        self.count["gateway upgraded"] += 1
        for old in self.gateways:
            old.poll()  # reaped

    def engine(self) -> None:
        found = sorted(x for x in self.fleet.engines().items() if x[1].startswith("steady"))
        if not found:
            return
        pid, shard = self.dice.choice(found)
        self.tally.killed_s[shard.partition("/")[0]] = time.monotonic()
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
        self.count["engine killed"] += 1

    def look(self) -> None:
        pids = {name: p.pid for name, p in self.fleet.processes.items()}
        pids["gateway"] = self.fleet.gateway_pid() or 0
        for name, pid in pids.items():
            if size := resident(pid):
                self.memory[name][pid].append(size)

    def flat(self) -> tuple[bool, Json]:
        """The last sample of each life that was not the first: late lives against early ones, or one life alone."""
        shown: Json = {}
        good = True
        for name, lives in self.memory.items():
            sizes = [max(s) for s in lives.values() if len(s) > 1]
            if len(sizes) <= 1:  # one long life: its first quarter against its last
                samples = max(lives.values(), key=len)
                quarter = max(1, len(samples) // 4)
                sizes = [max(samples[:quarter]), max(samples[-quarter:])]
            half = max(1, len(sizes) // 2)
            early, late = max(sizes[:half]), max(sizes[-half:])
            good = good and late < early * GROWTH + GROWTH_BYTES
            shown[name] = {"lives": len(lives), "early_mib": early >> 20, "late_mib": late >> 20}
        return good, shown


def in_flight(fleet: Fleet) -> int:
    found = fleet.status()
    return -1 if found is None else sum(r["in_flight"] or 0 for r in found["replicas"])


async def storm(fleet: Fleet, minutes: float, tally: Tally, trouble: Trouble) -> None:
    port = int(fleet.urls["gateway"].rpartition(":")[2])
    loads = [Load(port, tally, random.Random(n)) for n in range(WORKERS)]
    async with asyncio.TaskGroup() as group:
        running = [group.create_task(load.run()) for load in loads]
        troubles = [
            group.create_task(trouble.every(CONTROL_S, trouble.control)),
            group.create_task(trouble.every(GATEWAY_S, trouble.gateway)),
            group.create_task(trouble.every(ENGINE_S, trouble.engine)),
            group.create_task(trouble.every(5.0, trouble.look)),
        ]
        await asyncio.sleep(minutes * 60)
        for task in troubles:
            task.cancel()
        for load in loads:
            load.over = True
        await asyncio.wait(running)


def measured(minutes: float, workers: int, folder: Path) -> Json:
    dice = random.Random(1)
    fleet = Fleet(folder, catalog(folder / "catalog.yaml"), settle_timeout="5s")
    fleet.more["control"] = ["--workers", str(workers)] if workers > 1 else []
    tally = Tally()
    trouble = Trouble(fleet, tally, dice, workers)
    try:
        fleet.start("control", "agent")
        fleet.ready("steady")
        fleet.served("steady")
        asyncio.run(storm(fleet, minutes, tally, trouble))
        if "control" not in fleet.processes:  # it was between two lives
            fleet.start("control")
        with contextlib.suppress(TimeoutError):
            wait_for(lambda: in_flight(fleet) == 0, "nothing in flight", 30)
        left = in_flight(fleet)
        flat, memory = trouble.flat()
    finally:
        fleet.close()
        for old in trouble.gateways:
            if old.poll() is None:
                old.kill()
            old.wait()
    return {
        "minutes": minutes,
        "requests": sum(tally.done.values()),
        "of": dict(tally.done),
        "failed": len(tally.failed),
        "failures": tally.failed[:20],
        "of_killed_engines": len(tally.excused),
        "excused": tally.excused[:20],
        "in_flight_at_the_end": left,
        "trouble": dict(trouble.count),
        "memory": memory,
        "ok": not tally.failed and left == 0 and flat,
    }


def main() -> int:
    parser = argparse.ArgumentParser(prog="bench.mixed")
    parser.add_argument("minutes", nargs="?", type=float, default=60.0)
    parser.add_argument("--workers", type=int, default=1, help="gateway processes")
    parser.add_argument("--keep", type=Path, help="folder for the logs, kept")
    given = parser.parse_args()
    with contextlib.ExitStack() as stack:
        folder = given.keep or Path(stack.enter_context(tempfile.TemporaryDirectory()))
        folder.mkdir(parents=True, exist_ok=True)
        found = measured(given.minutes, given.workers, folder)
    print(json.dumps(found, indent=2))
    return 0 if found["ok"] else 1


if __name__ == "__main__":
    sys.exit(main())
