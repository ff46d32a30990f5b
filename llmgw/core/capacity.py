"""What each node holds and what is left: computed from the shards known there, never booked (A59).

Claimed or not, placed and not yet reported, on a silent node or being stopped: whatever has not verifiably ended holds
its GPUs, memory, host memory, cores, watts, HCAs and ports (A43). Free memory is the stricter of reserved and measured
(A62). May not decide who goes where: it only counts, and says in words what is short.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator

from msgspec import Struct
from msgspec.structs import replace

from llmgw.core.types.catalog import Catalog, Profile
from llmgw.core.types.messages import STARTING, Capacity, Gpu, Resources
from llmgw.core.types.state import Node, Shard, State

GIB = 1 << 30
#: Sums of floats come out a little different in another order: an agent's and control's are of two orders (A10).
ROUNDING = 1e-6
#: A whole-GPU engine may go on a GPU that a desktop uses a little of, no more than this share.
WHOLE_GPU_USED_SHARE = 0.10


class GpuHeld(Struct, frozen=True):
    """`whole`: the shard that has this GPU alone; `by`: all shards on it; `refused`: why its agent said no to it."""

    reserved_bytes: int = 0
    foreign_bytes: int = 0
    whole: str = ""
    by: tuple[str, ...] = ()
    refused: str = ""


class Held(Struct, frozen=True):
    """What is taken on one node. `starting` names the shards on their way up (the start limit counts them)."""

    gpus: dict[str, GpuHeld] = {}
    host_memory_bytes: int = 0
    cpu_cores: float = 0.0
    power_w: float = 0.0
    ports: dict[int, str] = {}
    hcas: dict[str, str] = {}
    starting: tuple[str, ...] = ()
    shards: int = 0
    #: the agent said no to anything for now, and why
    refused: str = ""
    #: and to these alone: "host memory", "CPU cores", "power", "profile FINGERPRINT"
    lacking: dict[str, str] = {}


def resources_of(shard: Shard, catalog: Catalog) -> Resources:
    """What a shard is charged now: of GPU memory the measured rest while it sleeps, and its tear-down out of it."""
    need, there = resources_awake(shard, catalog), shard.report.asleep
    if there is None or there.rest_bytes is None:
        return need
    return replace(need, gpu_memory_bytes=max(there.rest_bytes, 1))


def resources_awake(shard: Shard, catalog: Catalog) -> Resources:
    """What a shard was given: its launch-time resources, the catalog for an older agent that has none (A21)."""
    report = shard.report
    if report.resources is not None:
        return report.resources
    model = catalog.resolve(report.model)
    profile = model.profile(report.profile) if model else None
    return resources_for(profile) if profile else Resources()


def resources_for(profile: Profile) -> Resources:
    return Resources(
        gpu_memory_bytes=profile.gpu_memory_bytes,
        host_memory_bytes=profile.host_memory_bytes,
        cpu_cores=profile.cpu_cores,
        power_w=profile.power_w,
    )


def needed(profile: Profile, node: str, learned: dict[str, int]) -> Resources:
    """What a shard of the profile is charged there: of declared and learned memory the greater one (A62).

    Learned is what earlier runs of the same fingerprint held at most. A whole GPU is as large as it is.
    """
    need = resources_for(profile)
    peak = learned.get(profile.fingerprint_on(node), 0) if learned else 0
    if need.gpu_memory_bytes and peak > need.gpu_memory_bytes:
        return replace(need, gpu_memory_bytes=peak)
    return need


def ports_of(shard: Shard) -> Iterator[int]:
    """Port 0 is no port (A44)."""
    report = shard.report
    if report.port:
        yield report.port
    if report.ports:
        yield from (p for p in report.ports.values() if p)


def holdings(state: State) -> dict[str, Held]:
    """What is held on every node. Refused resources count as foreign until they lapse (design.md 2)."""
    held = {name: _held_on(node, state.catalog) for name, node in state.nodes.items()}
    for r in state.refused:
        if r.node in held:
            held[r.node] = _refused(held[r.node], r.resource, r.why)
    return held


def _held_on(node: Node, catalog: Catalog) -> Held:
    """Like `taken` for every shard in turn, in one go: fleets have many shards, and each pass counts them anew."""
    gpus: dict[str, GpuHeld] = {}
    ports: dict[int, str] = {}
    hcas: dict[str, str] = {}
    starting: list[str] = []
    host_memory_bytes, cpu_cores, power_w, shards = 0, 0.0, 0.0, 0
    for f in node.report.foreign:
        if f.gpu:
            g = gpus.get(f.gpu, GpuHeld())
            gpus[f.gpu] = replace(g, foreign_bytes=g.foreign_bytes + f.memory_bytes)
        if f.port:
            ports[f.port] = f"foreign pid {f.pid}"
    for shard in node.shards:
        if not shard.holds:
            continue
        report, need = shard.report, resources_of(shard, catalog)
        for uuid in report.gpus:
            gpus[uuid] = _with_holder(gpus.get(uuid), report.shard, need.gpu_memory_bytes or 0)
        for port in ports_of(shard):
            ports[port] = report.shard
        for hca in report.hcas:
            hcas[hca] = report.shard
        if report.state in STARTING:
            starting.append(report.shard)
        host_memory_bytes += need.host_memory_bytes
        cpu_cores += need.cpu_cores
        power_w += need.power_w
        shards += 1
    return Held(gpus, host_memory_bytes, cpu_cores, power_w, ports, hcas, tuple(starting), shards)


def _with_holder(there: GpuHeld | None, name: str, need_bytes: int) -> GpuHeld:
    """One GPU with one shard more; without a figure it has the GPU alone."""
    if there is None:
        return GpuHeld(need_bytes, 0, "" if need_bytes else name, (name,))
    return replace(
        there,
        reserved_bytes=there.reserved_bytes + need_bytes,
        whole=there.whole or ("" if need_bytes else name),
        by=(*there.by, name),
    )


def taken(held: Held, shard: Shard, need: Resources) -> Held:
    """`held` with one shard more: what was just placed, before the next question."""
    name = shard.report.shard
    gpus = dict(held.gpus)
    for uuid in shard.report.gpus:
        gpus[uuid] = _with_holder(gpus.get(uuid), name, need.gpu_memory_bytes or 0)
    return replace(
        held,
        gpus=gpus,
        host_memory_bytes=held.host_memory_bytes + need.host_memory_bytes,
        cpu_cores=held.cpu_cores + need.cpu_cores,
        power_w=held.power_w + need.power_w,
        ports=held.ports | dict.fromkeys(ports_of(shard), name),
        hcas=held.hcas | dict.fromkeys(shard.report.hcas, name),
        starting=(*held.starting, name) if shard.report.state in STARTING else held.starting,
        shards=held.shards + 1,
    )


def given_back(held: Held, shard: Shard, need: Resources, beyond: dict[str, int]) -> Held:
    """`held` once the shard has ended: the reverse of `taken`. `beyond`: by GPU, what it held over its share (F73)."""
    report = shard.report
    name = report.shard
    gpus = dict(held.gpus)
    for uuid in report.gpus:
        gpus[uuid] = _without_holder(
            gpus[uuid], name, need.gpu_memory_bytes or 0, beyond.get(uuid, 0)
        )
    mine = {*ports_of(shard)}
    starting = list(held.starting)
    if report.state in STARTING:
        starting.remove(name)
    return replace(
        held,
        gpus=gpus,
        host_memory_bytes=held.host_memory_bytes - need.host_memory_bytes,
        cpu_cores=held.cpu_cores - need.cpu_cores,
        power_w=held.power_w - need.power_w,
        ports={p: by for p, by in held.ports.items() if p not in mine or by != name},
        hcas={h: by for h, by in held.hcas.items() if h not in report.hcas or by != name},
        starting=tuple(starting),
        shards=held.shards - 1,
    )


def _without_holder(there: GpuHeld, name: str, need_bytes: int, beyond_bytes: int) -> GpuHeld:
    """Where two had it whole the other has it still."""
    left = list(there.by)
    left.remove(name)
    whole = there.whole
    if whole == name:
        whole = left[0] if left else ""
    return replace(
        there,
        reserved_bytes=there.reserved_bytes - need_bytes,
        foreign_bytes=max(there.foreign_bytes - beyond_bytes, 0),
        whole=whole,
        by=tuple(left),
    )


#: What `short_of` looks at.
_SHORT = frozenset({"host memory", "CPU cores", "power"})


def _refused(held: Held, resource: str, why: str) -> Held:
    kind, _, what = resource.partition(" ")
    if kind == "port" and what.isdecimal():
        return replace(held, ports=held.ports | {int(what): why})
    if kind == "gpu":
        g = held.gpus.get(what, GpuHeld())
        return replace(held, gpus=held.gpus | {what: replace(g, refused=why)})
    if kind == "profile" or resource in _SHORT:
        return replace(held, lacking=held.lacking | {resource: why})
    return replace(held, refused=why)


def short_of(capacity: Capacity, held: Held, need: Resources) -> str:
    """What of the node's host memory, cores and watts is too little, or ""; what a node does not say limits nothing."""
    for what, unit, figure, used, wanted, total in (
        (
            "host memory",
            "GiB",
            gib,
            held.host_memory_bytes,
            need.host_memory_bytes,
            capacity.host_memory_bytes,
        ),
        ("CPU cores", "cores", "{:g}".format, held.cpu_cores, need.cpu_cores, capacity.cpu_cores),
        ("power", "W", "{:g}".format, held.power_w, need.power_w, capacity.power_w),
    ):
        if wanted and what in held.lacking:
            return f"its agent refused it for {what}: {held.lacking[what]}"
        if total is not None and wanted and used + wanted > total + ROUNDING:
            return f"{what}: {figure(max(total - used, 0))} of {figure(total)} {unit} free, {figure(wanted)} needed"
    return ""


class Panel(Struct, frozen=True):
    """One breaker panel: the watts of all engines behind it, and what is on its way up there."""

    power_w: float = 0.0
    starting: tuple[str, ...] = ()


def panels(nodes: dict[str, Node], held: dict[str, Held]) -> dict[str, Panel]:
    """Every panel at once: a pass that asks for many nodes must not add up the whole circuit for each."""
    out: dict[str, Panel] = {}
    for name, node in nodes.items():
        circuit = node.report.circuit
        if circuit is not None:
            out[circuit] = on_panel(out.get(circuit, Panel()), node, Held(), held[name])
    return out


def on_panel(panel: Panel, node: Node, before: Held, after: Held) -> Panel:
    """The panel once one of its nodes holds something else than before.

    A node that died in the middle of a load would block every start of its circuit until somebody forgets it; its watts
    stay counted.
    """
    starting = panel.starting
    if before.starting != after.starting and node.connected:
        left = list(starting)
        for name in before.starting:
            left.remove(name)
        starting = (*left, *after.starting)
    return Panel(round(panel.power_w + after.power_w - before.power_w, 6), starting)


def gpu_free_bytes(gpu: Gpu, held: GpuHeld) -> int:
    """Never the optimistic one of reserved and measured: an engine that is still loading will take what it reserved."""
    if held.whole or held.refused:
        return 0
    taken_bytes = max(held.reserved_bytes + held.foreign_bytes, gpu.memory_used_bytes)
    return max(gpu.memory_bytes - taken_bytes, 0)


def without_own(
    gpus: tuple[Gpu, ...], uuids: tuple[str, ...], rest_bytes: int | None
) -> tuple[Gpu, ...]:
    """The GPUs without what a sleeper still uses on these of them: it is in use, and by itself.

    Where nobody could measure that, all that it was given may be its own. Control and agent count alike: else the one
    orders a wake that the other refuses.
    """
    return tuple(
        replace(g, memory_used_bytes=max(g.memory_used_bytes - (rest_bytes or g.memory_bytes), 0))
        if g.uuid in uuids
        else g
        for g in gpus
    )


def gpu_takes(gpu: Gpu, held: GpuHeld, memory_bytes: int | None) -> str:
    """What stands in the way, or "". `memory_bytes` None asks for the whole GPU, alone (A62)."""
    if not gpu.healthy:
        return f"GPU {gpu.index} is not healthy{f': {gpu.trouble}' if gpu.trouble else ''}"
    if held.refused:
        return f"GPU {gpu.index} was refused by its agent: {held.refused}"
    if held.whole:
        return f"GPU {gpu.index} is held whole by {held.whole}"
    if memory_bytes:
        free = gpu_free_bytes(gpu, held)
        if free >= memory_bytes:
            return ""
        return (
            f"GPU {gpu.index} has {gib(free)} of {gib(gpu.memory_bytes)} GiB free, "
            f"{gib(memory_bytes)} needed{_holders(held)}"
        )
    if held.by:
        return f"GPU {gpu.index} is shared{_holders(held)}, a whole one is needed"
    # What a host uses of a pool that it shares with its GPU is no stranger on that GPU.
    used = held.foreign_bytes if gpu.unified else max(held.foreign_bytes, gpu.memory_used_bytes)
    if used > gpu.memory_bytes * WHOLE_GPU_USED_SHARE:
        return f"GPU {gpu.index} has {gib(used)} GiB in use by others, a whole one is needed"
    return ""


def pool_free_bytes(gpus: Iterable[Gpu], capacity: Capacity, held: Held) -> int | None:
    """What is left of the memory that a host shares with its unified GPUs; None where it shares none.

    Host memory and GPU memory are the same bytes there, so both kinds of reservation come out of one pool. A unified
    GPU that is held whole has all that is left of it.
    """
    shared = [g for g in gpus if g.unified]
    if not shared:
        return None
    there = [held.gpus.get(g.uuid, GpuHeld()) for g in shared]
    if any(t.whole for t in there):
        return 0
    total = capacity.host_memory_bytes
    if total is None:
        total = max(g.memory_bytes for g in shared)
    given = held.host_memory_bytes + sum(t.reserved_bytes + t.foreign_bytes for t in there)
    return max(total - max(given, *(g.memory_used_bytes for g in shared)), 0)


def pool_short(
    gpus: Collection[Gpu], capacity: Capacity, held: Held, need: Resources, uuids: Collection[str]
) -> str:
    """Why the shared pool does not bear this on the GPUs `uuids`, or "": host and GPU memory together."""
    if True not in [g.unified for g in gpus]:
        return ""  # nearly everywhere
    mine = sum(g.unified for g in gpus if g.uuid in uuids)
    wanted = need.host_memory_bytes + (need.gpu_memory_bytes or 0) * mine
    # A GPU wanted whole gets all that is left: there must be something, so no other may have it whole.
    whole = mine and not need.gpu_memory_bytes
    free = pool_free_bytes(gpus, capacity, held) if wanted or whole else None
    if free is None or (wanted <= free and (free or not whole)):
        return ""
    return (
        f"memory shared by host and GPU: {gib(free)} GiB free, {gib(wanted)} needed "
        f"({gib(wanted - need.host_memory_bytes)} GPU and {gib(need.host_memory_bytes)} host)"
    )


def _holders(held: GpuHeld) -> str:
    names = sorted(held.by)
    if held.foreign_bytes:
        names.append(f"{gib(held.foreign_bytes)} GiB of processes not ours")
    return f" (held by {', '.join(names)})" if names else ""


def gib(size_bytes: float) -> str:
    return f"{size_bytes / GIB:.1f}"
