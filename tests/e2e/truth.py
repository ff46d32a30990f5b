"""What really runs, from /proc alone, and every way in which an account of it may differ: journal, inventory, status.

Answers for: `wrong` lists in plain words what is not as it must be while nothing is under way (A2, A41, A52). It may
not believe any part of llmgw about a process, nor change anything.
"""

import contextlib
import json
import os
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import httpx

from llmgw.control.store import StoreError, read_memory
from llmgw.core.types.messages import TERMINAL
from llmgw.render.status import complaints
from scripts.fleet import Fleet, spawned, start_ticks

PROC = Path("/proc")
Json = dict[str, Any]


class Engine(NamedTuple):
    """A live process that carries the markers of this fleet's node."""

    pid: int
    ticks: int
    shard: str
    incarnation: str
    model: str
    port: int
    gpus: str

    @property
    def life(self) -> tuple[int, int]:
        return self.pid, self.ticks


def engines(fleet: Fleet) -> list[Engine]:
    """By their environment; an engine is known by it whoever has forgotten of it."""
    found = []
    for pid, env in _marked():
        port, ticks = env.get("LLMGW_PORT", ""), start_ticks(pid)
        if ticks and port.isdecimal() and fleet.ports[0] <= int(port) <= fleet.ports[1]:
            found.append(
                Engine(
                    pid=pid,
                    ticks=ticks,
                    shard=env.get("LLMGW_SHARD", ""),
                    incarnation=env.get("LLMGW_INCARNATION", ""),
                    model=env.get("LLMGW_MODEL", ""),
                    port=int(port),
                    gpus=env.get("CUDA_VISIBLE_DEVICES", ""),
                )
            )
    return found


def _marked() -> Iterator[tuple[int, dict[str, str]]]:
    """Every process, many times a second: without pathlib, which is most of the cost."""
    for name in os.listdir(PROC):  # noqa: PTH208
        if name.isdecimal():
            with contextlib.suppress(OSError), open(f"/proc/{name}/environ", "rb", 0) as file:  # noqa: PTH123
                raw = file.read()
                if b"LLMGW_PORT=" in raw:
                    pairs = raw.decode(errors="replace").split("\0")
                    yield int(name), dict(p.partition("=")[::2] for p in pairs)


def doubled(running: list[Engine]) -> list[str]:
    """What must not be even for a moment: two processes of one shard, on one port, on one GPU."""
    said = []
    for what, held in (
        ("shard", [f"{e.shard} {e.incarnation}" for e in running]),
        ("port", [str(e.port) for e in running]),
        ("GPU", [e.gpus for e in running if e.gpus]),
    ):
        said += [
            f"{what} {x} is held {n} times: {running}" for x, n in Counter(held).items() if n > 1
        ]
    return said


def wrong(
    fleet: Fleet, running: list[Engine], wanted: Iterable[str], kept: tuple[str, ...] = ()
) -> list[str]:
    """Everything that is not as it must be when exactly these models run, each once, and nothing is under way."""
    if sorted(e.model for e in running) != sorted(wanted):
        return [f"wanted {sorted(wanted)}, there run {running}"]
    lives = {(e.shard, e.incarnation): e.life for e in running}
    return [
        *_listeners(running),
        *_descriptors(fleet, running),
        *_journal(fleet, lives, kept),
        *_status(fleet, running),
        *_inventory(fleet, running),
        *_gateway(fleet),
    ]


def _listeners(running: list[Engine]) -> Iterator[str]:
    """Each port is listened on by the one process that it was given to."""
    owners = {
        line[9]: int(line[1].rpartition(":")[2], 16) for line in _sockets() if line[3] == "0A"
    }
    for e in running:
        mine = {owners[i] for i in _inodes(e.pid) if i in owners}
        if mine != {e.port}:
            yield f"pid {e.pid} was given port {e.port} and listens on {mine}"


def _descriptors(fleet: Fleet, running: list[Engine]) -> Iterator[str]:
    """An engine leads a session (F48) and writes to a file: a pipe would end it with its agent (F49)."""
    for e in running:
        logs = str(fleet.folder.resolve() / "agent" / "logs" / f"{e.shard}.log")
        there = [_link(f"/proc/{e.pid}/fd/{n}") for n in (0, 1, 2)]
        try:
            session = os.getsid(e.pid)
        except ProcessLookupError:
            continue  # it has ended since they were listed
        if there != [os.devnull, logs, logs] or session != e.pid:
            yield f"pid {e.pid} of {e.shard} has {there} and session {session}"


def _link(path: str) -> str:
    try:
        return str(Path(path).readlink())
    except OSError as e:
        return str(e)


def _sockets() -> Iterator[list[str]]:
    for table in ("net/tcp", "net/tcp6"):
        with contextlib.suppress(OSError):
            yield from (line.split() for line in (PROC / table).read_text().splitlines()[1:])


def _inodes(pid: int) -> Iterator[str]:
    with contextlib.suppress(OSError):
        for link in (PROC / str(pid) / "fd").iterdir():
            with contextlib.suppress(OSError):
                yield str(link.readlink()).removeprefix("socket:[").removesuffix("]")


def _journal(
    fleet: Fleet, lives: Mapping[tuple[str, str], tuple[int, int]], kept: tuple[str, ...]
) -> Iterator[str]:
    """One whole record for each engine that runs, about this very process; and nothing else (F42-F44)."""
    records = {}
    for path in sorted((fleet.folder / "agent" / "records").iterdir()):
        if path.suffix in kept:
            continue
        try:
            record = json.loads(path.read_text()) if path.suffix == ".json" else {}
        except (OSError, ValueError) as e:
            yield f"{path.name} in the journal: {e}"
            continue
        if not record:
            yield f"{path.name} is left in the journal"
            continue
        start = record["start"]
        records[start["shard"], start["incarnation"]] = (record["pid"], record["start_ticks"])
        if record["state"] != "ready" or record["desired"] != "running" or record["ending"]:
            yield f"{path.name} says {record['state']}, {record['desired']}: {record['error']}"
    if records != lives:
        yield f"the journal has {records}, there run {lives}"


def _status(fleet: Fleet, running: list[Engine]) -> Iterator[str]:
    status = fleet.status()
    if status is None:
        yield "control does not answer"
        return
    yield from complaints(status)
    if status["settling"] or status["stops_pending"]:
        yield f"settling {status['settling']}, stops pending {status['stops_pending']}"
    shown = [
        (s["pid"], s["shard"], s["port"])
        for r in status["replicas"]
        for s in r["shards"]
        if s["pid"]
    ]
    states = {r["state"] for r in status["replicas"]}
    if states - {"ready"} or sorted(shown) != sorted((e.pid, e.shard, e.port) for e in running):
        yield f"status shows {states} {shown}, there run {running}"
    try:
        plan: Json = (
            fleet.http.get(f"{fleet.urls['control']}/api/v1/plan").raise_for_status().json()
        )
    except httpx.HTTPError as e:
        yield f"no plan: {e!r}"
        return
    if plan["exit_code"]:
        yield f"a restart would do something: {plan['actions']} {plan['summary']}"


def _inventory(fleet: Fleet, running: list[Engine]) -> Iterator[str]:
    """A control that starts on this file remembers exactly what runs."""
    warned: list[str] = []
    try:
        memory = read_memory(fleet.inventory, warn=warned.append)
    except StoreError as e:
        yield f"the inventory: {e.message}"
        return
    yield from warned
    kept = [
        (s.shard, s.incarnation, s.pid)
        for report, _ in memory.nodes
        for s in report.shards
        if s.state not in TERMINAL
    ]
    if sorted(kept) != sorted((e.shard, e.incarnation, e.pid) for e in running):
        yield f"the inventory has {kept}, there run {running}"
    if memory.draining:
        yield f"the inventory has drains of what is gone: {memory.draining}"
    yield from (
        f"{p.name} is left beside the inventory" for p in fleet.inventory.parent.glob("*.new*")
    )


def _gateway(fleet: Fleet) -> Iterator[str]:
    """One process serves, and it is the one that control found or started."""
    there = list(spawned(str(fleet.folder / "control" / "gateway")))
    if there != [fleet.gateway_pid()]:
        yield f"gateways by their command line: {there}, the one that answers: {fleet.gateway_pid()}"
