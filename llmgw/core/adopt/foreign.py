"""Engines on the nodes that somebody started by hand: which profile is each most like, and what differs (A70, A71).

Seen from control, which knows the catalog and of the process what its agent reports: its words, its port, its GPUs. Its
environment is the agent's to compare. May not decide that one is taken.
"""

from __future__ import annotations

from collections.abc import Iterator

from msgspec import Struct

from llmgw.core.match import Known, compare, fact, program
from llmgw.core.types.by_hand import Fact, Started
from llmgw.core.types.catalog import Catalog, Model, Profile
from llmgw.core.types.messages import Foreign, NodeReport
from llmgw.core.types.plan import Judged


class Engine(Struct, frozen=True):
    """A process that is not ours, with all that descends from it; `started`: it can be taken over; `why` it cannot."""

    pid: int
    command: str
    port: int
    gpus: tuple[str, ...]
    memory_bytes: int
    started: Started | None = None
    why: str = ""


class Match(Struct, frozen=True):
    model: str
    profile: str
    facts: tuple[Fact, ...]

    @property
    def name(self) -> str:
        return f"{self.model}/{self.profile}"

    @property
    def differing(self) -> tuple[Fact, ...]:
        return tuple(f for f in self.facts if not f.same)


def engines(report: NodeReport) -> tuple[Engine, ...]:
    """The processes on a node that are not ours, each with what descends from it."""
    groups: dict[int, list[Foreign]] = {}
    for f in report.foreign:
        if not f.shard:
            groups.setdefault((f.by_hand and f.by_hand.pid) or f.pid, []).append(f)
    found = []
    for pid, rows in sorted(groups.items()):
        own = next((f for f in rows if f.pid == pid), rows[0])
        started = rows[0].by_hand if rows[0].by_hand and rows[0].by_hand.pid else None
        gpus = tuple(sorted({f.gpu for f in rows if f.gpu}))
        port = started.port if started else own.port or 0
        memory = sum(f.memory_bytes for f in rows)
        command = " ".join(started.argv) if started else own.command
        why = next((f.why for f in rows if f.why), "")
        found.append(Engine(pid, command, port, gpus, memory, started, why))
    return tuple(found)


def facts(
    report: NodeReport, model: Model, profile: Profile, engine: Engine, started: Started
) -> tuple[Fact, ...]:
    """All that can be compared from here: its words and its place. Names and folders of the agent's may be anything."""
    index = {g.uuid: str(g.index) for g in report.gpus or ()}
    values = {
        "port": str(started.port),
        "model": model.name,
        "gpu_count": str(len(engine.gpus)),
        "gpu_uuids": ",".join(engine.gpus),
        "gpu_indices": ",".join(index.get(u, "") for u in engine.gpus),
        "rank": "0",
        "nodes": "1",
        "is_leader": "true",
        "node": report.node,
        "node_addr": report.address,
    }
    known = Known(values, profile.weights_on(report.node), started.cwd)
    return (
        *compare(profile.command, started.argv, known),
        *_placing(report, profile, engine.gpus),
    )


def _placing(report: NodeReport, profile: Profile, gpus: tuple[str, ...]) -> Iterator[Fact]:
    if profile.gpus_exact:
        uuid = {f"{report.node}:{g.index}": g.uuid for g in report.gpus or ()}
        exact = sorted(uuid.get(w, w) for w in profile.gpus_exact)
        yield fact("GPUs", ",".join(exact), ",".join(gpus), exact == sorted(gpus))
    else:
        yield fact("GPUs", str(profile.gpus), str(len(gpus)), profile.gpus == len(gpus))
    yield fact("nodes", str(profile.nodes), "1", profile.nodes == 1)
    yield fact("launcher", profile.launcher, "exec", profile.launcher == "exec")
    yield fact("pool", profile.pool, ",".join(report.pools), profile.pool in report.pools)
    for label, value in profile.select.items():
        there = report.labels.get(label, "")
        yield fact(f"label {label}", value, there, there == value)


def one_too_many(seen: Judged, model: Model) -> str:
    """Why no more of it is taken over, or "": what is too many would only be drained."""
    mine = [r for r in seen.replicas if r.model == model.name]
    run = [f"{r.replica} ({r.state})" for r in mine if r.kept and not r.going]
    if len(run) < model.scaling.max:
        return ""
    return f"{model.name} has {len(run)} of max {model.scaling.max} replicas: {', '.join(run)}"


def nearest(catalog: Catalog, report: NodeReport, engine: Engine) -> Match | None:
    """The profile that differs least, the first of those alike; None where none starts such a program."""
    started = engine.started
    if started is None:
        return None
    runs = program(started.argv)
    found = (
        Match(m.name, p.name, facts(report, m, p, engine, started))
        for m in catalog.models.values()
        for p in m.profiles
        if program(p.command) == runs
    )
    return min(found, key=lambda m: len(m.differing), default=None)
