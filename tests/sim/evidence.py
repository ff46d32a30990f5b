"""What an agent finds when it looks at its host: process trees, memory, listeners. It trusts no pid either."""

from __future__ import annotations

from collections.abc import Container
from typing import Literal

from msgspec.structs import replace

from llmgw.core.types.messages import LISTENS, Start
from llmgw.core.types.node import (
    DoorAnswered,
    DoorName,
    Identified,
    Knocked,
    MemorySeen,
    Probed,
    Told,
    TreeSeen,
)
from llmgw.core.types.record import Key, Record
from tests.sim.clock import iso
from tests.sim.world import Engine, Host, Stranger


def tree(host: Host, record: Record) -> TreeSeen:
    pids = tuple(p for e in host.live(record.key) for p in e.pids)
    if host.proc_blind:
        return TreeSeen(
            key=record.key, attempt=record.attempt, doubtful=pids or (0,), detail="/proc unreadable"
        )
    return TreeSeen(key=record.key, attempt=record.attempt, alive=pids)


def memory(host: Host, record: Record) -> MemorySeen:
    gpus = host.gpus()
    if gpus is None:
        return MemorySeen(key=record.key, attempt=record.attempt)
    now = host.clock.now
    mine = set(record.start.gpus)
    listed = tuple(
        p
        for e in host.engines
        if mine & set(e.start.gpus) and e.holds(now)
        for p in (e.pid, e.pid + 1)
    )
    return MemorySeen(
        key=record.key,
        attempt=record.attempt,
        used_bytes=sum(g.memory_used_bytes for g in gpus if g.uuid in mine),
        pids=listed,
    )


def probe(host: Host, record: Record, *, check: bool, token: bool = False) -> Probed:
    now = host.clock.now
    there = host.listener(record.start.port)
    key, attempt = record.key, record.attempt
    if there is None:
        return Probed(key=key, attempt=attempt, outcome="refused", detail="connection refused")
    owner: Literal["", "ours", "other"]
    if isinstance(there, Stranger):
        owner = "other" if check else ""
        detail = f"pid {there.pid} listens on {there.port}"
        return Probed(key=key, attempt=attempt, outcome="ok", detail=detail, owner=owner)
    if there.hung or there.deaf:
        return Probed(key=key, attempt=attempt, outcome="failed", detail="no answer in 2 s")
    if not there.answers(now) and record.start.health == LISTENS:
        return Probed(key=key, attempt=attempt, outcome="refused", detail="nothing listens")
    if not there.answers(now):
        done = (now - there.born_s) / there.manners.load_s
        return Probed(key=key, attempt=attempt, outcome="loading", progress=round(done, 2))
    if token and there.sleeping:
        return Probed(key=key, attempt=attempt, outcome="failed", detail="HTTP 503: asleep")
    there.seen_up = True
    ours = there.key == key
    owner = ("ours" if ours else "other") if check else ""
    return Probed(key=key, attempt=attempt, outcome="ok", owner=owner)


def door(host: Host, record: Record, which: DoorName) -> DoorAnswered:
    """What the engine says there, and what the driver says that it uses."""
    key, attempt = record.key, record.attempt
    there = host.listener(record.start.port)
    silent = not isinstance(there, Engine) or there.key != key or there.hung or there.deaf
    if silent:
        return DoorAnswered(key=key, attempt=attempt, which=which, detail="no answer")
    assert isinstance(there, Engine)
    answer = DoorAnswered(key=key, attempt=attempt, which=which, asleep=there.sleeping)
    if which == "wake" or not there.sleeping or host.nvml_blind:
        return answer
    mine = [g for g in host.devices if g.uuid in record.start.gpus]
    used = [there.bytes_on(g) for g in mine]
    return replace(answer, rest_bytes=max(used, default=0), freed_bytes=sum(used) * 9)


def knocked(hosts: dict[str, Host], record: Record) -> Knocked:
    """The other ranks of a group that do not take a connection."""
    missing = []
    for peer in record.start.peers:
        there = hosts[peer.node].listener(peer.port)
        up = isinstance(there, Engine) and there.answers(hosts[peer.node].clock.now)
        if peer.rank and not up:
            missing.append(f"rank {peer.rank} on {peer.node} at port {peer.port}: no answer")
    return Knocked(key=record.key, attempt=record.attempt, missing=tuple(missing))


def identify(host: Host, record: Record) -> tuple[Identified, Engine | None]:
    """Evidence for re-attach, and the engine whose end will be watched."""
    if host.proc_blind:
        return Identified(key=record.key, error="/proc cannot be read"), None
    mine = host.live(record.key)
    at_pid = next((e for e in host.engines if e.leader and e.pid == record.pid), None)
    stranger = any(s.pid == record.pid for s in host.strangers)
    if at_pid is not None and at_pid.ticks == record.start_ticks:
        others = tuple(p for e in mine for p in e.pids if p != at_pid.pid)
        return Identified(key=record.key, leader="same", others=others), at_pid
    there: Literal["absent", "other"] = "other" if at_pid is not None or stranger else "absent"
    detail = f"pid {record.pid} is another process now" if there == "other" else "no such process"
    leader = next((e for e in mine if e.leader), None)
    if record.pid is None and leader is not None:
        return (
            Identified(
                key=record.key,
                leader="absent",
                pid=leader.pid,
                start_ticks=leader.ticks,
                others=tuple(p for e in mine for p in e.pids if p != leader.pid),
                rebuilt=rebuilt(leader) if record.partial else None,
                told=told(leader),
            ),
            leader,
        )
    others = tuple(p for e in mine for p in e.pids)
    found = Identified(key=record.key, leader=there, others=others, detail=detail)
    if mine and record.partial:
        found = replace(found, rebuilt=rebuilt(mine[0]), told=told(mine[0]))
    return found, None


def told(engine: Engine) -> Told:
    """What its markers tell beside the order; those of older agents tell less."""
    if engine.older:
        return Told(attempt=engine.attempt)
    started_at = iso(engine.born_s)
    return Told(
        attempt=engine.attempt,
        started_at=started_at,
        artefact=engine.start.weights,
        api_key="key",
        whole=True,
    )


def rebuilt(engine: Engine) -> Start:
    """The order that started it, as far as the markers of its environment tell."""
    start = engine.start
    if not engine.older:
        return start
    return Start(
        shard=start.shard,
        replica=start.replica,
        incarnation=start.incarnation,
        model=start.model,
        profile=start.profile,
        rank=start.rank,
        fingerprint=start.fingerprint,
        gpus=start.gpus,
        port=start.port,
    )


def orphans(host: Host, known: Container[Key]) -> list[Record]:
    """Engines of ours that no record tells of, taken up by their markers; one record a shard."""
    if host.proc_blind:
        return []
    found = {e.key: e for e in host.live() if e.key not in known}
    return [
        Record(
            start=rebuilt(e),
            state="unknown",
            attempt=e.attempt,
            boot_id=host.boot_id,
            partial=True,
            error="its record is gone, it was found by its markers",
        )
        for _, e in sorted(found.items())
    ]


def unreadable(key: tuple[str, str], boot_id: str) -> Record:
    """As much as the name of the file tells (llmgw.agent.journal)."""
    shard, incarnation = key
    replica, _, rank = shard.rpartition("/")
    start = Start(
        shard=shard,
        replica=replica,
        incarnation=incarnation,
        model="",
        profile="",
        rank=int(rank),
    )
    return Record(
        start=start,
        state="unknown",
        partial=True,
        boot_id=boot_id,
        error="its record cannot be read; the file is kept",
    )
