"""A tiny fleet for the state machine: boxes with engines that do as they are told, at once or never.

What a box runs is the truth, what control believes is judged by it. Nothing here decides or checks: agents with
processes, probes and journals are in tests/sim.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from msgspec.structs import replace

from llmgw.core.types.catalog import Catalog, Model, Scaling
from llmgw.core.types.messages import (
    TERMINAL,
    Command,
    DrainShard,
    ForgetShard,
    NodeReport,
    Refusal,
    Resources,
    ShardReport,
    Start,
    StopShard,
)
from tests.core.world import GIB, catalog, gpus, model, node, profile, shard

Key = tuple[str, str]
#: What an agent may be like: whole, an older one that leaves something out, a confused one, one below the floor.
AGENTS: dict[str, dict[str, Any]] = {
    "whole": {},
    "no world": {"world_size": None},
    "no fingerprint": {"fingerprint": ""},
    "no resources": {"resources": None},
    "no age": {"started_at": ""},
    "confused": {"node": "box9"},
    "too old": {},
}
NEXT = {"pending": "starting", "starting": "loading", "loading": "ready", "stopping": "stopped"}


class Box:
    """`cut`: nothing gets through, and neither side knows; `told`: what this control has heard of it."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.shards: dict[Key, ShardReport] = {}
        self.told: dict[Key, ShardReport] | None = None
        self.registered = False
        self.cut = False
        self.agent = "whole"

    @property
    def known(self) -> bool:
        """Control can know all that runs here."""
        return self.registered and self.told == self.shards

    @property
    def protocol(self) -> int:
        return int(self.agent != "too old")

    def says(self, s: ShardReport) -> ShardReport:
        return replace(s, **AGENTS[self.agent])

    def report(self) -> NodeReport:
        listed = (self.says(s) for s in self.shards.values())
        return node(
            self.name, *listed, gpus=gpus(self.name, 24), epoch_seen=1, protocol=self.protocol
        )

    def running(self) -> Iterator[ShardReport]:
        return (s for s in self.shards.values() if s.state not in TERMINAL)

    def put(self, report: ShardReport) -> None:
        self.shards[report.shard, report.incarnation] = report

    def obey(self, command: Command) -> Refusal | None:
        match command:
            case Start():
                return self._start(command)
            case DrainShard(shard=name, incarnation=incarnation):
                self._leave((name, incarnation), "draining")
            case StopShard(shard=name, incarnation=incarnation):
                self._leave((name, incarnation), "stopped")
            case ForgetShard(shard=name, incarnation=incarnation):
                known = self.shards.get((name, incarnation))
                if known is not None and known.state in TERMINAL:
                    del self.shards[name, incarnation]
            case _:
                pass
        return None

    def _start(self, start: Start) -> Refusal | None:
        why = self._taken(start)
        if why:
            return Refusal(
                seq=0,
                shard=start.shard,
                incarnation=start.incarnation,
                reason="held",
                resource=why,
                why=why,
            )
        self.put(started(start, self.name))
        return None

    def _taken(self, start: Start) -> str:
        there = list(self.running())
        if any(s.shard == start.shard for s in there):
            return "name"
        if any(p == start.port for s in there for p in (s.port, *s.ports.values())):
            return f"port {start.port}"
        for uuid in start.gpus:
            used = sum(_gpu_bytes(s.resources) for s in there if uuid in s.gpus)
            if used + _gpu_bytes(start.resources) > 24 * GIB:
                return f"gpu {uuid}"
        return ""

    def _leave(self, key: Key, desired: str) -> None:
        old = self.shards.get(key)
        if old is None or old.state in TERMINAL or old.desired == "stopped":
            return
        state = "stopping" if desired == "stopped" else old.state
        if desired == "draining" and old.state in ("ready", "unhealthy"):
            state = "draining"
        self.put(replace(old, desired=desired, state=state))

    def work(self) -> None:
        """Every engine comes a step further on its way up or out."""
        for key, s in list(self.shards.items()):
            self.shards[key] = replace(s, state=NEXT.get(s.state, s.state))


def started(start: Start, where: str) -> ShardReport:
    return ShardReport(
        shard=start.shard,
        replica=start.replica,
        incarnation=start.incarnation,
        rank=start.rank,
        world_size=start.world_size,
        model=start.model,
        profile=start.profile,
        fingerprint=start.fingerprint,
        artefact=start.weights,
        gpus=start.gpus,
        port=start.port,
        ports=start.ports,
        endpoint=f"http://{where}:{start.port}",
        state="pending",
        resources=start.resources,
        started_at="2026-02-01T00:00:00Z",
    )


def _gpu_bytes(resources: Resources | None) -> int:
    return (resources.gpu_memory_bytes if resources else None) or 24 * GIB


#: Engines that nobody of today's control started: of every model, of one that is gone, under an alias, copies, halves.
FOUND = (
    ("alpha-1", "alpha", 1),
    ("alpha-2", "alpha", 1),
    ("beta-1", "beta", 1),
    ("old-1", "old", 1),
    ("gone-1", "gone", 1),
    ("deep-1", "deep", 2),
    ("deep-1", "deep", 2),
)


def found(
    box: Box, which: int, rank: int, *, incarnation: str, port: int, state: str
) -> ShardReport:
    replica, name, size = FOUND[which]
    rank %= size
    return shard(
        f"{replica}/{rank}",
        name,
        incarnation=f"{replica}-{incarnation}",
        world_size=size,
        state=state,
        port=18000 + port,
        gpus=(f"{box.name}-0",) if name == "alpha" else (),
        endpoint=f"http://{box.name}:{18000 + port}",
        artefact="/m/beta" if name == "old" else "",
        started_at=f"2026-01-0{1 + port}T00:00:00Z",
        resources=Resources(gpu_memory_bytes=10 * GIB if name == "alpha" else None),
    )


class Edits:
    """The catalog as an operator edits it."""

    def __init__(self) -> None:
        self.absent: set[str] = set()
        self.versions = {"alpha": 0, "beta": 0, "deep": 0}
        self.renamed = False
        self.alias_of = "beta"
        self.low = 1
        self.nodes = 2

    def toggle(self, what: str) -> None:
        match what:
            case "rename":
                self.renamed = not self.renamed
            case "alias":
                self.alias_of = "alpha" if self.alias_of == "beta" else "beta"
            case "low":
                self.low = 1 - self.low
            case "nodes":
                self.nodes = 3 - self.nodes
            case _ if what.startswith("change "):
                self.versions[what[7:]] ^= 1
            case _:
                self.absent ^= {what}

    def catalog(self) -> Catalog:
        models = [self._model("alpha"), self._model("beta"), self._model("deep")]
        return catalog(
            *(m for m in models if m.name not in self.absent),
            stray_grace_s=60.0,
            assembly_window_s=90.0,
            start_limit=2,
        )

    def _model(self, name: str) -> Model:
        fingerprints = {"default": "1:bbbb" if self.versions[name] else "1:aaaa"}
        weights = {"default": f"/m/{name}"}
        aliases = ("old",) if name == self.alias_of else ()
        if name == "alpha":
            main = profile(
                "renamed" if self.renamed else "main",
                fingerprints=fingerprints,
                weights=weights,
                gpus=1,
                gpu_memory_bytes=10 * GIB,
            )
            return model(name, main, low=self.low, high=1, aliases=aliases)
        if name == "beta":
            lazy = Scaling(min=0, max=1, idle_timeout_s=100.0, min_up_s=0.0)
            return model(
                name,
                profile(fingerprints=fingerprints, weights=weights),
                scaling=lazy,
                aliases=aliases,
            )
        return model(
            name,
            profile(nodes=self.nodes, fingerprints=fingerprints, weights=weights),
            low=1,
            aliases=aliases,
        )
