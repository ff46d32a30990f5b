"""Nothing of a node is given out twice, judged when it is granted and again when it is taken."""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec.structs import replace

from llmgw.core.types import messages as m
from llmgw.core.types.record import Key, Record
from tests.sim.world import Host

if TYPE_CHECKING:
    from tests.sim.agents import Agent
    from tests.sim.judge import Judge


def not_overdrawn(judge: Judge, agent: Agent, holders: dict[Key, m.Start], start: m.Start) -> None:
    """No core, watt or byte of host memory of a node twice, as far as its books go."""
    capacity = agent.facts.capacity
    for what, field in (
        ("core", "cpu_cores"),
        ("watt", "power_w"),
        ("byte of host memory", "host_memory_bytes"),
    ):
        most = getattr(capacity, field)
        if most is not None and getattr(start.resources, field):
            total = sum(getattr(s.resources, field) for s in holders.values())
            judge.require(
                f"no {what} twice",
                total <= most,
                f"{agent.facts.node} has {most:g}, {total:g} are given to {list(holders)}",
            )


def charged(record: Record) -> m.Start:
    """Its order, with what its agent charges it of GPU memory: the measured rest while it sleeps."""
    start, rest = record.start, record.rest_bytes
    if rest is None:
        return start
    return replace(start, resources=replace(start.resources, gpu_memory_bytes=max(rest, 1)))


def granted(judge: Judge, host: Host, holders: dict[Key, m.Start], start: m.Start) -> None:
    """No byte of GPU memory, whole GPU or port twice: what `holders` have, and what truly is there."""
    now = judge.sim.clock.now
    memory = {e.key: e.charged() for e in host.engines if e.holds(now)} | holders
    for gpu in host.devices:
        there = [s for s in memory.values() if gpu.uuid in s.gpus]
        if gpu.uuid not in start.gpus:
            continue
        whole = [s.shard for s in there if not s.resources.gpu_memory_bytes]
        judge.require(
            "no whole GPU twice",
            not whole or len(there) == 1,
            f"{gpu.uuid} is {whole}'s alone, and held by {[s.shard for s in there]}",
        )
        total = sum(s.resources.gpu_memory_bytes or 0 for s in there)
        judge.require(
            "no byte of GPU memory twice",
            total <= gpu.memory_bytes,
            f"{gpu.uuid} has {gpu.memory_bytes} bytes, {total} are given to {[s.shard for s in there]}",
        )
    # A worker that is left of an engine does not listen; its record keeps the port, where it can be read.
    listen = holders | {e.key: e.start for e in host.live() if e.leader}
    ports = [s.shard for s in listen.values() if s.port == start.port]
    judge.require(
        "no port twice", len(ports) <= 1, f"port {start.port} of {host.name} is {ports}'s"
    )
