"""Builders for core tests: a catalog, nodes and shards in a line each. Values only: no clock, no file, no double."""

from __future__ import annotations

from typing import Any

from msgspec.structs import replace

from llmgw.core.place import start_message
from llmgw.core.reconcile.decide import decide
from llmgw.core.reconcile.fresh import Memory, after_settling, started
from llmgw.core.reconcile.observe import observe
from llmgw.core.types.catalog import Catalog, Model, Profile, Scaling
from llmgw.core.types.messages import Capacity, Gpu, NodeReport, Resources, ShardReport
from llmgw.core.types.plan import Plan, Replica, Spot
from llmgw.core.types.routes import Demand
from llmgw.core.types.state import Demanded, NodeRegistered, Placed, State

GIB = 1 << 30
FP = "1:aaaa"


def profile(name: str = "main", **k: Any) -> Profile:
    k.setdefault("fingerprints", {"default": FP})
    return Profile(name=name, **k)


def model(name: str, *profiles: Profile, low: int = 0, high: int = 1, **k: Any) -> Model:
    scaling = k.pop("scaling", Scaling(min=low, max=max(low, high)))
    return Model(name=name, profiles=profiles or (profile(),), scaling=scaling, **k)


def catalog(*models: Model, **k: Any) -> Catalog:
    return Catalog(models={m.name: m for m in models}, **k)


def gpus(node: str, *sizes_gib: float, used: dict[int, float] | None = None) -> tuple[Gpu, ...]:
    used = used or {}
    return tuple(
        Gpu(
            uuid=f"{node}-{i}",
            index=i,
            memory_bytes=int(size * GIB),
            memory_used_bytes=int(used.get(i, 0) * GIB),
        )
        for i, size in enumerate(sizes_gib)
    )


def shard(name: str, model: str = "", **k: Any) -> ShardReport:
    replica, _, rank = name.rpartition("/")
    k.setdefault("incarnation", f"inc-{replica}")
    k.setdefault("profile", "main")
    k.setdefault("fingerprint", FP)
    k.setdefault("world_size", 1)
    k.setdefault("state", "ready")
    k.setdefault("port", 18000)
    k.setdefault("endpoint", "http://h:18000" if rank == "0" else "")
    k.setdefault("started_at", "2026-01-01T00:00:00Z")
    k.setdefault("resources", Resources(gpu_memory_bytes=10 * GIB))
    return ShardReport(
        shard=name, replica=replica, rank=int(rank), model=model or replica.rpartition("-")[0], **k
    )


def node(name: str, *shards: ShardReport, **k: Any) -> NodeReport:
    k.setdefault("gpus", gpus(name, 24))
    k.setdefault("capacity", Capacity(cpu_cores=16, host_memory_bytes=64 * GIB, power_w=2000))
    return NodeReport(node=name, node_id=f"id-{name}", shards=shards, **k)


def settled(cat: Catalog, *reports: NodeReport, **k: Any) -> State:
    """A control that started at 0, heard these nodes, and has settled."""
    return after_settling(cat, Memory(), reports, **k)


def running(cat: Catalog, *reports: NodeReport, now: float = 0.0) -> State:
    """A control that runs: settled, and its shards are known."""
    state = started(cat, Memory(), now=now, settle_timeout_s=0.0, keep_unknown=False)
    for r in (*reports, *reports):
        state = observe(state, NodeRegistered(r), now)
    return state


def verdicts(plan: Plan) -> dict[str, str]:
    """`node:shard` -> `verdict reason`."""
    return {
        f"{v.shard.node}:{v.shard.report.shard}": f"{v.verdict} {v.reason or ''}".strip()
        for v in plan.verdicts
    }


def actions(plan: Plan) -> list[str]:
    names = {
        "StartReplica": "start",
        "StopReplica": "stop",
        "DrainReplica": "drain",
        "RollReplica": "roll",
        "NapReplica": "nap",
        "Wait": "wait",
    }
    return [f"{names[type(a).__name__]} {a.model}" for a in plan.actions]


def replicas(plan: Plan) -> dict[str, Replica]:
    return {r.replica: r for r in plan.replicas}


def plan_of(cat: Catalog, *reports: NodeReport, **k: Any) -> Plan:
    return decide(settled(cat, *reports, **k), 0.0)


def at(state: State, **k: Any) -> State:
    return replace(state, **k)


#: one model on one GPU, and one over two nodes
ALPHA = catalog(model("alpha", profile(gpus=1, gpu_memory_bytes=10 * GIB), low=1))
DEEP = catalog(model("deep", profile(nodes=2, gpus=1, gpu_memory_bytes=20 * GIB), low=1))
#: one that is always on, and one on demand
ONE = catalog(model("alpha", low=1))
SLEEPY = catalog(model("beta"))


def why(plan: Plan, shard_name: str) -> str:
    return next(v.why for v in plan.verdicts if v.shard.report.shard == shard_name)


def half(rank: int, **k: Any) -> ShardReport:
    """One of the two shards of deep-1, on box1 or box2."""
    return shard(f"deep-1/{rank}", "deep", world_size=2, gpus=(f"box{rank + 1}-0",), **k)


def begun(cat: Catalog, *remembered: NodeReport, timeout_s: float = 60.0) -> State:
    """A control that has just started and remembers these nodes."""
    memory = Memory(nodes=tuple((r, False) for r in remembered), epoch=3)
    return started(cat, memory, now=0.0, settle_timeout_s=timeout_s, keep_unknown=False)


def demand(n: int = 1, gateway: str = "g", **k: Any) -> Demanded:
    return Demanded(Demand(gateway=gateway, n=n, **k))


def place_at(state: State, name: str, incarnation: str = "new", port: int = 18000) -> State:
    """The catalog's first model placed on a node, not reported yet."""
    wanted = next(iter(state.catalog.models.values()))
    spots = (Spot(node=name, port=port),)
    ((where, start),) = start_message(state, wanted, ("main", spots), "alpha-9", incarnation)
    return observe(state, Placed(where, start), 1.0)
