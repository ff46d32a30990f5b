"""Several limits of one fleet at once: parts of a card (MIG), watts, pools, what was learned, a drain (A62, A65)."""

from __future__ import annotations

from typing import Any

from msgspec.structs import replace

from llmgw.core.place.explain import explain
from llmgw.core.reconcile.decide import decide
from llmgw.core.reconcile.observe import observe
from llmgw.core.types.catalog import Profile, Scaling
from llmgw.core.types.messages import Capacity, Gpu, NodeReport, Resources, ShardReport
from llmgw.core.types.plan import DrainReplica, Plan, StartReplica, Wait
from llmgw.core.types.state import Cordoned, NodeRegistered, State
from tests.core.world import (
    FP,
    GIB,
    at,
    catalog,
    demand,
    gpus,
    model,
    node,
    profile,
    running,
    shard,
)

#: one card in four parts of 10, 10, 20 and 40 GiB
PARTS = tuple(
    Gpu(uuid=f"MIG-{i}", index=100 + i, memory_bytes=size * GIB)
    for i, size in enumerate((10, 10, 20, 40))
)


def part(gib: int | None, power_w: float, pool: str = "batch", **k: Any) -> Profile:
    size = None if gib is None else gib * GIB
    return profile(gpus=1, gpu_memory_bytes=size, power_w=power_w, pool=pool, **k)


def box(name: str, cards: tuple[Gpu, ...], power_w: float, *pools: str) -> NodeReport:
    there = Capacity(cpu_cores=8, host_memory_bytes=32 * GIB, power_w=power_w)
    return node(name, gpus=cards, pools=pools, capacity=there, circuit="lab")


SMALL = model("small", part(9, 200), low=3, high=3)
DESK = model("desk", part(9, 200, "default"), low=1)
WHOLE = model("whole", part(None, 10), low=1)
EXACT = model("exact", part(39, 30, gpus_exact=("dgx:103",)), low=1)
AGAIN = model("too", part(39, 30, gpus_exact=("MIG-3",)), low=1)


def lab(circuit_w: float = 850.0) -> State:
    models = (SMALL, DESK, WHOLE, EXACT, AGAIN)
    cat = catalog(*models, circuits={"lab": circuit_w}, start_limit=9)
    dgx = box("dgx", PARTS, 500, "batch")
    return running(cat, dgx, box("desk", gpus("desk", 24), 450, "default", "batch"))


def starts(plan: Plan) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for a in plan.actions:
        if isinstance(a, StartReplica):
            found.setdefault(a.model, []).extend(g for s in a.spots for g in s.gpus)
    return found


def waits(plan: Plan) -> dict[str, str]:
    return {a.model: a.why for a in plan.actions if isinstance(a, Wait)}


def test_a62_parts_of_a_card_are_cards_and_watts_and_pools_count_beside_them() -> None:
    plan = decide(lab(), 1.0)
    assert starts(plan) == {
        "desk": ["desk-0"],
        "exact": ["MIG-3"],
        # by best fit, then spread over nodes, then where there is room
        "small": ["MIG-0", "desk-0", "MIG-1"],
        "whole": ["MIG-2"],
    }
    said = waits(plan)
    assert set(said) == {"too"}
    assert "dgx: circuit lab: 20 of 850 W free, 30 needed" in said["too"]


def test_a62_the_tightest_of_each_node_is_named() -> None:
    state = lab(circuit_w=190)
    (desk, dgx) = explain(state, SMALL)
    assert (desk.node, dgx.node) == ("desk", "dgx")
    for said in (desk, dgx):
        assert (said.takes, said.why) == ("no", "circuit lab: 190 of 190 W free, 200 needed")
    (_, dgx) = explain(state, DESK)
    assert dgx.why == "is in pools batch, not in default"
    (desk, _) = explain(state, EXACT)
    assert desk.why.startswith("has 0 of the GPUs that gpus_exact names (dgx:103), 1 needed")


def test_a62_more_than_declared_was_measured_and_no_card_of_the_pool_has_it() -> None:
    """One card would have taken two of them by what the catalog says, the other one."""
    two = model("two", part(9, 0, "default"), low=2, high=2)
    boxes = (node("a", gpus=gpus("a", 16)), node("b", gpus=gpus("b", 24)))
    fresh = running(catalog(two, start_limit=9), *boxes)
    assert starts(decide(fresh, 1.0)) == {"two": ["a-0", "b-0"]}
    state = at(fresh, learned={FP: 17 * GIB})
    plan = decide(state, 1.0)
    assert starts(plan) == {"two": ["b-0"]}
    assert "a: GPU 0 has 16.0 of 16.0 GiB free, 17.0 needed" in waits(plan)["two"]
    (to_start,) = (a for a in plan.actions if isinstance(a, StartReplica))
    assert to_start.why.endswith("fits b GPU 0, 7.0 GiB left there")


def busy(name: str, where: str) -> ShardReport:
    need = Resources(gpu_memory_bytes=20 * GIB)
    return shard(f"{name}/0", "chat", gpus=(f"{where}-0",), resources=need)


def crowd(state: State, now: float, n: int) -> State:
    return observe(state, demand(n, waiting={"chat": 12}, in_flight={"chat-1": 4}), now)


def test_a63_a_queue_during_a_drain_has_its_further_replica_elsewhere() -> None:
    chat = model(
        "chat",
        profile(gpus=1, gpu_memory_bytes=20 * GIB),
        scaling=Scaling(min=1, max=3, idle_timeout_s=600.0, min_up_s=0.0),
    )
    state = running(catalog(chat), node("a", busy("chat-1", "a")), node("b", busy("chat-2", "b")))
    state = observe(state, Cordoned("b", "", "since noon by you"), 1000.0)
    for n, now in enumerate((1000.0, 1004.0, 1008.0, 1012.0), 2):
        state = crowd(state, now, n)
    plan = decide(state, 1012.0)
    (drain,) = (a for a in plan.actions if isinstance(a, DrainReplica))
    assert (drain.replica, drain.why) == (
        "chat-2",
        "b is drained since noon by you; 1 other is ready",
    )
    assert "b: is drained since noon by you" in waits(plan)["chat"], "nobody goes for it"
    state = observe(state, NodeRegistered(node("c")), 1013.0)
    state = crowd(state, 1013.0, 9)
    assert starts(decide(state, 1013.0)) == {"chat": ["c-0"]}
    few = replace(chat, scaling=replace(chat.scaling, max=2))
    assert starts(decide(at(state, catalog=catalog(few)), 1013.0)) == {}
