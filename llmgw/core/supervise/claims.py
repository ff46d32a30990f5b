"""What a `start` presumes about this node, checked against what the node knows: the owner of a fact decides on it.

Names both sides (A3): the holder and the newcomer. Free GPU memory is counted as control counts it (core.capacity).
May not know who asks (fence.py does) nor change anything.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from msgspec.structs import replace

from llmgw.core.capacity import (
    GIB,
    ROUNDING,
    GpuHeld,
    Held,
    gib,
    gpu_takes,
    pool_short,
    without_own,
)
from llmgw.core.mount import parse as parse_mount
from llmgw.core.types.messages import LISTENS, LIVE, WORKERS_FIRST, Start
from llmgw.core.types.node import AgentState, Room
from llmgw.core.types.record import Key, Record
from llmgw.core.weights import NO_WEIGHTS, absent

#: Ids become paths and environment (contract/catalog.md "Names"); a replica id is a model's name and a suffix.
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}")
ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")
#: A replica and a rank, written as numbers are: "a/01" would be another file of the same rank.
SHARD = re.compile(ID.pattern + r"/(?:0|[1-9][0-9]{0,3})")
PORTS = range(1, 65536)
ATTEMPTS = range(1, 100_000)
#: Anything that the runtime does not take for an option.
IMAGE = re.compile(r"[A-Za-z0-9][^\x00-\x20\x7f]*")
HEALTH = re.compile(r"/[^\x00-\x20\x7f]*")
#: Nothing is started with less free where journal and logs are; on a small disk with less than this part of it.
DISK_FLOOR_BYTES, DISK_FLOOR_PART = 256 << 20, 10
#: Launchers that start an image.
CONTAINERS = ("podman", "docker")
SIGNALS = ("TERM", "INT", "QUIT", "HUP", "USR1", "USR2", "KILL")

#: A word of the closed list, the resource in the way ("" for none), the sentence.
No = tuple[str, str, str]


def refuse_start(
    state: AgentState, start: Start, ports_busy: dict[int, str], room: Room
) -> No | None:
    """The first thing in the way of this start, or None."""
    checks = (
        misnamed(start),
        _unsound(start),
        _not_built(start),
        _rival(state, start),
        _weights(state, start, room),
        *(_gpu(state, start, uuid) for uuid in start.gpus),
        *_short(state, start),
        _pool(state, start),
        _memory(start, room),
        _disk(start, room),
        *(_port(state, start, p, ports_busy) for p in _ports(start)),
    )
    return next((no for no in checks if no is not None), None)


def refuse_take(state: AgentState, start: Start) -> No | None:
    """The same of an engine that runs already (A71): its memory and its port are in use, and by itself."""
    checks = (
        misordered(start),
        _not_built(start),
        _rival(state, start),
        *(_shared(state, start, uuid) for uuid in start.gpus),
        *(_port(state, start, p, {}) for p in _ports(start)),
    )
    return next((no for no in checks if no is not None), None)


def refuse_wake(state: AgentState, record: Record) -> No | None:
    """Whether what a sleeper gave back is free again: of itself only what it still uses is in use there."""
    start = record.start
    gpus = state.gpus and without_own(state.gpus, start.gpus, _gpu_bytes(record))
    others = {k: r for k, r in state.records.items() if k != record.key}
    without = replace(state, gpus=gpus, records=others)
    checks = (*(_gpu(without, start, uuid) for uuid in start.gpus), _pool(without, start))
    return next((no for no in checks if no is not None), None)


def _shared(state: AgentState, start: Start, uuid: str) -> No | None:
    """One of the two was promised the GPU alone."""
    on_it = [r for r in _holders(state) if uuid in r.start.gpus]
    whole = [r for r in on_it if not _gpu_bytes(r) and not _measured(r)]
    other = (*whole, *(() if start.resources.gpu_memory_bytes else on_it))
    if not other:
        return None
    alone = "has it alone" if whole else f"is on it, and {start.shard} would have it alone"
    return "gpu_held", f"gpu {uuid}", f"GPU {uuid}: {_who(other[0])} {alone}"


def is_key(key: Key) -> bool:
    """A shard and an incarnation as we name them: both become files and environment, and are looked up by them."""
    shard, incarnation = key
    return bool(SHARD.fullmatch(shard) and ID.fullmatch(incarnation))


def misordered(start: Start) -> No | None:
    """What no engine can be started as: asked before anything is done by the order's names, ports and paths."""
    return misnamed(start) or _unsound(start)


def misnamed(start: Start) -> No | None:
    if start.shard != f"{start.replica}/{start.rank}":
        return (
            "bad_name",
            "",
            f"shard {start.shard!r} is not rank {start.rank} of {start.replica!r}",
        )
    for pattern, name in (
        (ID, start.replica),
        (SHARD, start.shard),
        (ID, start.incarnation),
        (NAME, start.model),
        (NAME, start.profile),
    ):
        if not pattern.fullmatch(name):
            return "bad_name", "", f"{name!r} is no name: letters, digits, '.', '_', '-' only"
    return None


def _unsound(start: Start) -> No | None:
    """What no engine can be started with, or would be counted wrongly."""
    ports = _ports(start)
    texts = (
        *start.command,
        *start.mounts,
        start.weights,
        start.fingerprint,
        start.served_name,
        *start.gpus,
    )
    need = start.resources
    amounts = (need.gpu_memory_bytes or 0, need.host_memory_bytes, need.cpu_cores, need.power_w)
    ready = start.ready
    wrong = {
        "comes without a command": not (start.command or start.image),
        f"has launcher {start.launcher} and the image {start.image!r}": (
            bool(IMAGE.fullmatch(start.image)) != (start.launcher in CONTAINERS)
        ),
        f"has mounts {list(start.mounts)}: want SOURCE:TARGET, and a container": (
            bool(start.mounts) and start.launcher not in CONTAINERS
        )
        or any(parse_mount(text) is None for text in start.mounts),
        f"is attempt {start.attempt}": start.attempt not in ATTEMPTS,
        f"has the ports {list(ports)}: want different ones of 1-65535": (
            len(set(ports)) < len(ports) or any(p not in PORTS for p in ports)
        ),
        f"names a GPU twice: {', '.join(start.gpus)}": len(set(start.gpus)) < len(start.gpus),
        f"asks for less than nothing: {need}": min(amounts) < 0,
        f"is ready by {ready.failures} of {ready.of} probes": not 0 < ready.failures <= ready.of,
        f"has {start.stop.signal!r}, no signal to stop an engine with": (
            start.stop.signal not in SIGNALS
        ),
        f"has {start.health!r}, no path to ask for its health": not _may_be_asked(start),
        f"has {start.start_order!r}, no order to start ranks in": (
            start.start_order not in ("", WORKERS_FIRST)
        ),
        "has a NUL in its command, mounts, weights or names": any("\0" in t for t in texts),
        "has an environment that no process can have": any(
            not name or "=" in name or "\0" in name + value for name, value in start.env.items()
        ),
    }
    found = next((words for words, is_so in wrong.items() if is_so), "")
    return ("bad_command", "", f"{start.shard} {found}") if found else None


def _may_be_asked(start: Start) -> bool:
    """Workers may have no health of their own, or no more than a port that is listened on; rank 0 has."""
    return bool(HEALTH.fullmatch(start.health)) or (
        start.health in ("", LISTENS) and start.rank > 0
    )


def _not_built(start: Start) -> No | None:
    if start.launcher not in ("exec", *CONTAINERS):
        has = f"only exec, {' and '.join(CONTAINERS)}"
        return "not_built", "", f"launcher {start.launcher} is not built, {has}"
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
    for shard, incarnation in state.records:
        same = shard == start.shard
        if (same and incarnation.lower() == start.incarnation.lower()) or (
            not same and shard.lower() == start.shard.lower()
        ):
            why = f"{start.shard} ({start.incarnation}) is {shard} ({incarnation}) but for case"
            return "shard_held", "", f"{why}, and names become files, which may not tell them apart"
    return None


def _gpu(state: AgentState, start: Start, uuid: str) -> No | None:
    resource = f"gpu {uuid}"
    if state.gpus is None:
        why = f"the GPUs of this node are not known ({state.gpus_error or 'driver not up?'})"
        return "devices_unknown", resource, why
    gpu = next((g for g in state.gpus if g.uuid == uuid), None)
    if gpu is None:
        return "no_such_gpu", resource, f"there is no GPU {uuid} here, {start.shard} asks for it"
    why = gpu_takes(gpu, _held(state, uuid), start.resources.gpu_memory_bytes)
    if not why:
        return None
    strangers = "".join(
        f"; {f.shard or f'pid {f.pid} ({f.command})'} holds {gib(f.memory_bytes)} GiB"
        f"{' beyond what it was given' if f.shard else ''}"
        for f in state.foreign
        if f.gpu == uuid
    )
    return "gpu_held", resource, f"{why}; {start.shard} asks for it{strangers}"


def _held(state: AgentState, uuid: str) -> GpuHeld:
    on_it = [r for r in _holders(state) if uuid in r.start.gpus]
    alone = [r for r in on_it if not _gpu_bytes(r) and not _measured(r)]
    return GpuHeld(
        reserved_bytes=sum(_gpu_bytes(r) for r in on_it),
        foreign_bytes=sum(f.memory_bytes for f in state.foreign if f.gpu == uuid),
        whole=_who(alone[0]) if alone else "",
        by=tuple(_who(r) for r in on_it),
    )


def _pool(state: AgentState, start: Start) -> No | None:
    """Where host and GPU have one memory: both reservations against it, so that no byte is given out twice."""
    gpus = state.gpus or ()
    held = Held(
        gpus={g.uuid: _held(state, g.uuid) for g in gpus if g.unified},
        host_memory_bytes=sum(r.start.resources.host_memory_bytes for r in _holders(state)),
    )
    why = pool_short(gpus, state.facts.capacity, held, start.resources, start.gpus)
    if not why:
        return None
    on = next((g.uuid for g in gpus if g.unified and g.uuid in start.gpus), "")
    why = f"{why}; {start.shard} asks for it"
    return ("gpu_held", f"gpu {on}", why) if on else ("host_memory", "host memory", why)


def _gpu_bytes(record: Record) -> int:
    """What it is charged on each of its GPUs, as control has it (`capacity.resources_of`); 0 has them alone."""
    if record.rest_bytes is not None:
        return max(record.rest_bytes, 1)
    return record.start.resources.gpu_memory_bytes or 0


def _measured(record: Record) -> bool:
    """Taken up by its markers: what it was given is not known, and once it is up, what is measured stands for it.

    Control charges it by the catalog and finds room beside it; refused as a whole GPU it would ask for ever.
    """
    return record.partial and record.state in LIVE


def _short(state: AgentState, start: Start) -> Iterator[No]:
    """Host memory, cores and watts: what the node does not say limits nothing."""
    need, total = start.resources, state.facts.capacity
    held = [r.start.resources for r in _holders(state)]
    for reason, resource, unit, wanted, used, most in (
        (
            "host_memory",
            "host memory",
            "GiB ",
            need.host_memory_bytes / GIB,
            sum(h.host_memory_bytes for h in held) / GIB,
            None if total.host_memory_bytes is None else total.host_memory_bytes / GIB,
        ),
        (
            "cpu_cores",
            "CPU cores",
            "",
            need.cpu_cores,
            sum(h.cpu_cores for h in held),
            total.cpu_cores,
        ),
        ("power", "power", "W ", need.power_w, sum(h.power_w for h in held), total.power_w),
    ):
        if most is not None and wanted and used + wanted > most + ROUNDING:
            free = f"{max(most - used, 0.0):.1f} of {most:.1f} {unit}{resource} free"
            yield reason, resource, f"{free}, {start.shard} needs {wanted:.1f}"


def _weights(state: AgentState, start: Start, room: Room) -> No | None:
    """Known before five attempts have failed; nothing else is tried before it is there."""
    if not room.missing:
        return None
    return NO_WEIGHTS, "", absent(room.missing, state.facts.node, start.profile)


def _memory(start: Start, room: Room) -> No | None:
    """What a start says that it needs against what there is now: the reservations know nothing of strangers' memory.

    Only a figure that was given counts. Weights may be larger than memory: those that are mapped are read again.
    """
    need = start.resources.host_memory_bytes
    if not need or room.memory_bytes is None or need <= room.memory_bytes:
        return None
    why = f"{gib(room.memory_bytes)} GiB of host memory are available now, {start.shard} needs {gib(need)}"
    return "insufficient_memory", "host memory", why


def _disk(start: Start, room: Room) -> No | None:
    """A full disk costs the engines that run their journal; a further engine would fill it with its log."""
    floor = min(DISK_FLOOR_BYTES, room.disk_size_bytes // DISK_FLOOR_PART)
    if room.disk_bytes is None or room.disk_bytes >= floor:
        return None
    free = f"{room.disk_bytes >> 20} MiB are free on the disk of the agent's state dir"
    return "disk_low", "node", f"{free}, {start.shard} is started from {floor >> 20} MiB on"


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
