"""What a `start` presumes about this node, checked against what the node knows: the owner of a fact decides on it.

Names both sides (A3): the holder and the newcomer. Free GPU memory is counted as control counts it (core.capacity).
May not know who asks (fence.py does) nor change anything.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from llmgw.core.capacity import GpuHeld, gib, gpu_takes
from llmgw.core.types.messages import LIVE, Start
from llmgw.core.types.node import AgentState, Record

#: Ids become paths and environment (contract/catalog.md "Names"); a replica id is a model's name and a suffix.
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}")
ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")
PORTS = range(1, 65536)
SIGNALS = ("TERM", "INT", "QUIT", "HUP", "USR1", "USR2", "KILL")

#: A word of the closed list, the resource in the way ("" for none), the sentence.
No = tuple[str, str, str]


def refuse_start(state: AgentState, start: Start, ports_busy: dict[int, str]) -> No | None:
    """The first thing in the way of this start, or None."""
    checks = (
        _names(start),
        _built(start),
        _rival(state, start),
        *(_gpu(state, start, uuid) for uuid in start.gpus),
        _host_memory(state, start),
        *(_port(state, start, p, ports_busy) for p in _ports(start)),
    )
    return next((no for no in checks if no is not None), None)


def _names(start: Start) -> No | None:
    if start.shard != f"{start.replica}/{start.rank}" or start.rank < 0:
        return (
            "bad_name",
            "",
            f"shard {start.shard!r} is not rank {start.rank} of {start.replica!r}",
        )
    for pattern, name in (
        (ID, start.replica),
        (ID, start.incarnation),
        (NAME, start.model),
        (NAME, start.profile),
    ):
        if not pattern.fullmatch(name):
            return "bad_name", "", f"{name!r} is no name: letters, digits, '.', '_', '-' only"
    bad = [p for p in (start.port, *start.ports.values()) if p not in PORTS]
    if bad:
        return "bad_command", "", f"port {bad[0]} of {start.shard} is none of 1-65535"
    return None


def _built(start: Start) -> No | None:
    if start.world_size > 1:
        return (
            "not_built",
            "",
            f"multi-node starts are not built yet: {start.shard} is one of {start.world_size}",
        )
    if start.launcher != "exec":
        return "not_built", "", f"launcher {start.launcher} is not built yet, only exec"
    if start.stop.signal not in SIGNALS:
        return "bad_command", "", f"{start.stop.signal!r} is no signal to stop an engine with"
    if not start.command:
        return "bad_command", "", f"{start.shard} comes without a command"
    return None


def _rival(state: AgentState, start: Start) -> No | None:
    """An id clash from an older or reset control plane (A37)."""
    for other in _holders(state):
        if other.start.shard == start.shard:
            return (
                "shard_held",
                "",
                f"{_who(other)} has that name; incarnation {start.incarnation} asks for it",
            )
    return None


def _gpu(state: AgentState, start: Start, uuid: str) -> No | None:
    resource = f"gpu {uuid}"
    if state.gpus is None:
        return "devices_unknown", resource, "the GPUs of this node are not known (driver not up?)"
    gpu = next((g for g in state.gpus if g.uuid == uuid), None)
    if gpu is None:
        return "no_such_gpu", resource, f"there is no GPU {uuid} here, {start.shard} asks for it"
    on_it = [r for r in _holders(state) if uuid in r.start.gpus]
    alone = [r for r in on_it if not r.start.resources.gpu_memory_bytes and not _measured(r)]
    held = GpuHeld(
        reserved_bytes=sum(r.start.resources.gpu_memory_bytes or 0 for r in on_it),
        foreign_bytes=sum(f.memory_bytes for f in state.foreign if f.gpu == uuid),
        whole=_who(alone[0]) if alone else "",
        by=tuple(_who(r) for r in on_it),
    )
    why = gpu_takes(gpu, held, start.resources.gpu_memory_bytes)
    if not why:
        return None
    strangers = "".join(
        f"; pid {f.pid} ({f.command}) holds {gib(f.memory_bytes)} GiB"
        for f in state.foreign
        if f.gpu == uuid
    )
    return "gpu_held", resource, f"{why}; {start.shard} asks for it{strangers}"


def _measured(record: Record) -> bool:
    """Taken up by its markers: what it was given is not known, and once it is up, what is measured stands for it.

    Control charges it by the catalog and finds room beside it; refused as a whole GPU it would ask for ever.
    """
    return record.partial and record.state in LIVE


def _host_memory(state: AgentState, start: Start) -> No | None:
    total, need = state.facts.capacity.host_memory_bytes, start.resources.host_memory_bytes
    used = sum(r.start.resources.host_memory_bytes for r in _holders(state))
    if total is None or not need or used + need <= total:
        return None
    free = f"{gib(total - used)} of {gib(total)} GiB host memory free"
    return "host_memory", "host memory", f"{free}, {start.shard} needs {gib(need)}"


def _port(state: AgentState, start: Start, port: int, busy: dict[int, str]) -> No | None:
    resource = f"port {port}"
    for other in _holders(state):
        if port in other.ports:
            return (
                "port_held",
                resource,
                f"port {port} is {_who(other)}'s; {start.shard} asks for it",
            )
    if port in busy:
        return (
            "port_in_use",
            resource,
            f"port {port} is in use by {busy[port]}; {start.shard} asks for it",
        )
    return None


def _ports(start: Start) -> tuple[int, ...]:
    return (start.port, *start.ports.values())


def _holders(state: AgentState) -> Iterator[Record]:
    """All that has not verifiably ended holds, whatever its state."""
    return (r for r in state.records.values() if not r.ended)


def _who(record: Record) -> str:
    """The other side of a conflict: shard, incarnation, pid, since when, state."""
    shard, incarnation = record.key
    pid = f"pid {record.pid}, " if record.pid else ""
    since = f"since {record.started_at}, " if record.started_at else ""
    return f"{shard} ({incarnation}, {pid}{since}{record.state})"
