"""A fleet without a free place, in a line each: who is there, who asks, and what the plan says of it."""

from __future__ import annotations

from typing import Any

from llmgw.core.reconcile.observe import observe
from llmgw.core.types.catalog import Catalog, Model, Scaling
from llmgw.core.types.messages import Capacity, NodeReport, Resources
from llmgw.core.types.plan import DrainReplica, Plan, StartReplica, Wait
from llmgw.core.types.routes import Demand
from llmgw.core.types.state import (
    Demanded,
    State,
)
from tests.core.world import GIB, catalog, gpus, model, node, profile, running, shard

#: Well after control's start: every gateway has had the time to say what it serves.
LATER = 1000.0
FREE = Capacity(host_memory_bytes=64 * GIB)


def sized(name: str, gib: float, **scaling: Any) -> Model:
    """On demand unless said otherwise; it may go as soon as it is idle."""
    scaling = {"min_up_s": 0.0, "idle_timeout_s": 9000.0} | scaling
    return model(name, profile(gpus=1, gpu_memory_bytes=int(gib * GIB)), scaling=Scaling(**scaling))


def up(name: str, gib: float, gpu: str = "box1-0", port: int = 18000, **k: Any) -> Any:
    k.setdefault("resources", Resources(gpu_memory_bytes=int(gib * GIB)))
    return shard(f"{name}/0", gpus=(gpu,), port=port, **k)


def box(*shards: Any, name: str = "box1", cards: int = 1, **k: Any) -> NodeReport:
    return node(name, *shards, gpus=gpus(name, *[24] * cards), capacity=FREE, **k)


def fleet(cat: Catalog, *boxes: NodeReport) -> State:
    """Control has run for long, and one gateway has been heard of all the time."""
    state = running(cat, *boxes)
    return said(state, LATER - 5)


def said(state: State, now: float, **told: Any) -> State:
    n = int(now * 1000)
    return observe(state, Demanded(Demand(gateway="g", n=n, **told)), now)


def used(state: State, now: float, **ages_s: float) -> State:
    """Last bytes, by replica with - as _."""
    return said(state, now, last_byte={k.replace("_", "-"): v for k, v in ages_s.items()})


def drains(plan: Plan) -> dict[str, str]:
    return {a.replica: a.why for a in plan.actions if isinstance(a, DrainReplica)}


def waits(plan: Plan, name: str) -> Wait:
    (only,) = [a for a in plan.actions if isinstance(a, Wait) and a.model == name]
    return only


def starts(plan: Plan) -> list[str]:
    return [a.model for a in plan.actions if isinstance(a, StartReplica)]


A, B, C = sized("a", 10), sized("b", 10), sized("c", 10)
BIG = sized("big", 24)
THREE = catalog(A, B, C, BIG)


def both(**k: Any) -> State:
    """a-1 and b-1 hold 20 of 24 GiB."""
    return fleet(THREE, box(up("a-1", 10), up("b-1", 10, port=18001), **k))
