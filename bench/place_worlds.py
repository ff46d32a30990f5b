"""Small random fleets and models, and whether they fit by trying every way there is: what `bench.place` measures with.

The oracle shares no line with the code under test: what is left of each node is kept in the simplest words.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import combinations

from llmgw.core.types.catalog import Catalog, Model, Profile, Scaling
from llmgw.core.types.messages import Capacity, Fabric, Foreign, Gpu, NodeReport

GIB = 1 << 30
#: Watts of the one circuit that some nodes are on.
CIRCUIT_W = 700.0


def _often(r: random.Random, percent: int) -> bool:
    return r.randrange(100) < percent


def nodes(r: random.Random) -> list[NodeReport]:
    """One to four boxes of up to four cards of all sizes, some in use by strangers, some on a fabric or a circuit."""
    out = []
    for n in range(r.randint(1, 4)):
        name = f"box{n + 1}"
        size = r.choice((12, 16, 24, 24, 48, 80))
        sizes = [r.choice((size, size, 12, 24)) for _ in range(r.randint(0, 4))]
        gpus = tuple(
            Gpu(
                uuid=f"{name}-{i}",
                index=i,
                memory_bytes=size * GIB,
                memory_used_bytes=r.choice((0, 0, 0, 1, size // 3)) * GIB,
            )
            for i, size in enumerate(sizes)
        )
        out.append(
            NodeReport(
                node=name,
                node_id=f"id-{name}",
                gpus=gpus,
                foreign=tuple(
                    Foreign(pid=7, gpu=g.uuid, memory_bytes=g.memory_used_bytes) for g in gpus
                ),
                labels={"disk": "ssd"} if _often(r, 50) else {},
                fabrics={"ib0": Fabric()} if _often(r, 60) else {},
                circuit="office" if _often(r, 30) else None,
                capacity=Capacity(
                    cpu_cores=r.choice((8, 16)), host_memory_bytes=r.choice((16, 32, 64)) * GIB
                ),
            )
        )
    return out


def profile(r: random.Random, name: str) -> Profile:
    count = r.choice((0, 1, 1, 1, 1, 2, 2, 3, 4))
    return Profile(
        name=name,
        fingerprints={"default": f"1:{name}"},
        gpus=count,
        gpu_memory_bytes=None
        if _often(r, 25)
        else r.choice((4, 6, 8, 10, 12, 16, 20, 24, 40)) * GIB,
        host_memory_bytes=r.choice((0, 0, 2, 8, 16)) * GIB,
        cpu_cores=r.choice((0.0, 0.0, 1.0, 4.0)),
        power_w=r.choice((0.0, 0.0, 150.0, 300.0)),
        select={"disk": "ssd"} if _often(r, 15) else {},
        nodes=2 if _often(r, 12) else 1,
        fabric="ib0" if _often(r, 10) else "",
        gpus_exact=("box1:0", "box2:1", "box2:0")[: r.randint(1, 3)]
        if count == 1 and _often(r, 8)
        else (),
    )


def models(r: random.Random, count: int, prefix: str = "m") -> list[Model]:
    return [
        Model(
            name=f"{prefix}{i}",
            scaling=Scaling(min=1),
            profiles=tuple(
                profile(r, f"{prefix}{i}p{k}") for k in range(2 if _often(r, 25) else 1)
            ),
        )
        for i in range(count)
    ]


def catalog(some: Sequence[Model]) -> Catalog:
    return Catalog(models={m.name: m for m in some}, circuits={"office": CIRCUIT_W})


# ---------------------------------------------------------------- the oracle: all there is, by brute force


@dataclass
class Box:
    """What is left of one node, in the simplest words."""

    report: NodeReport
    free: dict[str, int]
    whole: set[str]
    #: GPUs with an engine of ours
    shared: dict[str, int]
    memory: float
    cores: float


@dataclass
class Left:
    boxes: dict[str, Box] = field(default_factory=dict)
    watts: float = CIRCUIT_W


Put = tuple[tuple[str, tuple[str, ...]], ...]


def left(reports: Sequence[NodeReport]) -> Left:
    out = Left()
    for report in reports:
        gpus = report.gpus or ()
        out.boxes[report.node] = Box(
            report,
            {g.uuid: g.memory_bytes - g.memory_used_bytes for g in gpus},
            {g.uuid for g in gpus if g.memory_used_bytes * 10 <= g.memory_bytes},
            {g.uuid: 0 for g in gpus},
            report.capacity.host_memory_bytes or 0,
            report.capacity.cpu_cores or 0,
        )
    return out


def put(there: Left, p: Profile, where: Put, sign: int = 1) -> None:
    for name, uuids in where:
        box = there.boxes[name]
        box.memory -= sign * p.host_memory_bytes
        box.cores -= sign * p.cpu_cores
        there.watts -= sign * p.power_w * (box.report.circuit is not None)
        for uuid in uuids:
            box.shared[uuid] += sign
            if p.gpu_memory_bytes is None:
                box.free[uuid] -= sign * (1 << 60)
            else:
                box.free[uuid] -= sign * p.gpu_memory_bytes


def on_box(there: Left, p: Profile, box: Box) -> Iterator[tuple[str, ...]]:
    labels, report = box.report.labels, box.report
    if any(labels.get(k) != v for k, v in p.select.items()):
        return
    if p.fabric and p.fabric not in report.fabrics:
        return
    if box.memory < p.host_memory_bytes or box.cores < p.cpu_cores:
        return
    if report.circuit and there.watts < p.power_w:
        return
    able = []
    for gpu in report.gpus or ():
        if p.gpus_exact and f"{report.node}:{gpu.index}" not in p.gpus_exact:
            continue
        if p.gpu_memory_bytes is None:
            fits = not box.shared[gpu.uuid] and gpu.uuid in box.whole
        else:
            fits = box.free[gpu.uuid] >= p.gpu_memory_bytes
        if fits:
            able.append(gpu.uuid)
    yield from combinations(able, p.gpus)


def places(there: Left, p: Profile) -> Iterator[Put]:
    for some in combinations(sorted(there.boxes), p.nodes):
        if p.nodes == 1:
            yield from (((some[0], uuids),) for uuids in on_box(there, p, there.boxes[some[0]]))
            continue
        first, second = some
        for uuids in on_box(there, p, there.boxes[first]):
            one = ((first, uuids),)
            put(there, p, one)
            more = [(*one, (second, u)) for u in on_box(there, p, there.boxes[second])]
            put(there, p, one, -1)
            yield from more


def solvable(there: Left, wanted: Sequence[Model]) -> bool:
    """Whether all of them find a place together: every way is tried."""
    if not wanted:
        return True
    # The hardest first, for speed alone.
    by_size = sorted(
        wanted,
        key=lambda m: (
            -max(p.nodes * (p.gpus * (p.gpu_memory_bytes or 80 * GIB) + 1) for p in m.profiles)
        ),
    )
    first, rest = by_size[0], by_size[1:]
    seen = set()
    for p in first.profiles:
        for where in list(places(there, p)):
            alike = (
                p.name,
                tuple((n, tuple(sorted(_kind(there.boxes[n], u) for u in us))) for n, us in where),
            )
            if alike in seen and not any(q.gpus_exact for m in rest for q in m.profiles):
                continue
            seen.add(alike)
            put(there, p, where)
            done = solvable(there, rest)
            put(there, p, where, -1)
            if done:
                return True
    return False


def _kind(box: Box, uuid: str) -> tuple[int, int, bool]:
    return box.free[uuid], box.shared[uuid], uuid in box.whole
