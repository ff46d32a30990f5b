"""Laws of one pass over worlds in which everything is under way at once: drains, sleepers, wakes, rolls, moves.

Evictions, moves, rolls and naps are decided one after the other in one pass; these are the seams between them (A49,
A59, A62-A66).
"""

from __future__ import annotations

from collections import Counter
from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from msgspec import Struct
from msgspec.structs import replace

from llmgw.core import cordon
from llmgw.core.asleep import asleep
from llmgw.core.reconcile.decide import decide
from llmgw.core.reconcile.observe import observe
from llmgw.core.types.catalog import Catalog, Scaling
from llmgw.core.types.messages import NodeReport, Resources, ShardReport
from llmgw.core.types.plan import (
    DrainReplica,
    NapReplica,
    Plan,
    RollReplica,
    StartReplica,
    StopReplica,
)
from llmgw.core.types.sleep import Asleep
from llmgw.core.types.state import SessionLost, State, Tick
from tests.core.world import FP, GIB, catalog, demand, gpus, model, node, profile, running, shard

SIZES = {"pin": 10, "lazy": 14, "other": 20}
REST_BYTES = 2 * GIB
STATES = ("ready", "ready", "ready", "loading", "draining", "asleep", "unhealthy")
pick = st.sampled_from


class World(Struct, frozen=True):
    catalog: Catalog
    nodes: tuple[NodeReport, ...]
    cordoned: dict[tuple[str, str], str]
    waiting: dict[str, int]
    now: float
    silent: bool
    routed: bool


@st.composite
def catalogs(draw: st.DrawFn) -> Catalog:
    """`pin` always runs, `lazy` sleeps, `other` may want a whole GPU; the first two may have changed."""
    one: dict[str, dict[str, Any]] = {
        name: {"gpus": 1, "gpu_memory_bytes": size * GIB} for name, size in SIZES.items()
    }
    today = [{"default": draw(pick([FP, FP, "1:bbbb"]))} for _ in range(2)]
    scaling = Scaling(min=0, max=draw(pick([1, 2])), idle_timeout_s=50.0, min_up_s=0.0)
    other = one["other"] | ({"gpu_memory_bytes": None} if draw(st.booleans()) else {})
    return catalog(
        model(
            "pin",
            profile(fingerprints=today[0], **one["pin"]),
            low=draw(pick([1, 2])),
            high=2,
            max_unavailable=draw(pick([1, 2])),
            lost_after_s=draw(pick([None, 0.0])),
        ),
        model("lazy", profile(fingerprints=today[1], sleep=1, **one["lazy"]), scaling=scaling),
        model("other", profile(**other), scaling=replace(scaling, max=1)),
        start_limit=draw(pick([1, 4])),
    )


@st.composite
def engines(draw: st.DrawFn, gpu: str, number: int) -> ShardReport:
    name = draw(pick(sorted(SIZES)))
    state = draw(pick(STATES))
    sleeps = name == "lazy"
    if state == "asleep" and not sleeps:
        state = "ready"
    measured = draw(st.booleans())
    box = gpu.partition("-")[0]
    return shard(
        f"{name}-{number}/0",
        name,
        gpus=(gpu,),
        port=18000 + number,
        endpoint=f"http://{box}:{18000 + number}",
        state=state,
        desired="draining" if state == "draining" else "running",
        resources=Resources(gpu_memory_bytes=SIZES[name] * GIB),
        sleep=1 if sleeps else None,
        asleep=Asleep(rest_bytes=REST_BYTES, verified=measured) if state == "asleep" else None,
        started_at=f"2026-01-0{1 + number % 3}T00:00:00Z",
    )


@st.composite
def worlds(draw: st.DrawFn) -> World:
    nodes, number = [], 0
    for box in ("box1", "box2", "box3")[: draw(st.integers(1, 3))]:
        there = []
        for gpu in (f"{box}-0", f"{box}-1"):
            for _ in range(draw(pick([0, 1, 1, 2]))):
                number += 1
                there.append(draw(engines(gpu, number)))
        nodes.append(node(box, *there, gpus=gpus(box, 24, 24), follows=draw(st.booleans())))
    places = [(n.node, gpu) for n in nodes for gpu in ("", f"{n.node}-0")]
    waiting = {name: draw(pick([0, 0, 1, 9])) for name in ("lazy", "other")}
    return World(
        catalog=draw(catalogs()),
        nodes=tuple(nodes),
        cordoned=dict.fromkeys(sorted(draw(st.sets(pick(places), max_size=2))), "since noon"),
        waiting={name: count for name, count in waiting.items() if count},
        now=draw(pick([1.0, 100.0, 1000.0])),
        silent=len(nodes) > 1 and draw(st.integers(0, 3)) == 0,
        routed=draw(st.booleans()),
    )


def pictured(world: World) -> State:
    """A control that runs, whose gateway said so at the start and says it again now."""
    state = replace(running(world.catalog, *world.nodes), cordoned=world.cordoned)
    state = observe(state, demand(1, waiting=world.waiting, table=9), 0.0)
    if world.silent:
        state = observe(state, SessionLost(world.nodes[0].node), world.now - 1)
    state = observe(state, Tick(), world.now)
    state = observe(state, demand(2, waiting=world.waiting, table=9), world.now)
    shards = [s for n in state.nodes.values() for s in n.shards]
    up = (s.incarnation for s in shards if s.report.state in ("ready", "unhealthy", "draining"))
    return replace(state, routed=frozenset(up)) if world.routed else state


@given(worlds())
def test_nothing_is_told_twice_what_becomes_of_it(world: World) -> None:
    """One end or one nap for each: not a drain by the operator's word and another because it hangs (A65)."""
    told = Counter(
        a.incarnation
        for a in decide(pictured(world), world.now).actions
        if isinstance(a, DrainReplica | StopReplica | NapReplica | RollReplica)
    )
    assert {i: n for i, n in told.items() if n > 1} == {}


@given(worlds())
def test_a38_no_pass_starts_more_than_max(world: World) -> None:
    """Whatever moves, rolls, wakes and is missing at once; a roll has one more for a while (A66)."""
    state = pictured(world)
    plan = decide(state, world.now)
    for name, of in world.catalog.models.items():
        mine = [a for a in plan.actions if getattr(a, "model", "") == name]
        surge = sum(isinstance(a, RollReplica) and bool(a.spots) for a in mine)
        new = surge + sum(isinstance(a, StartReplica) for a in mine)
        new += sum(isinstance(a, NapReplica) and a.step == "wake" for a in mine)
        there = staying(state, plan, name)
        assert not new or there + new <= of.scaling.max + bool(surge), f"{name}: {there} + {new}"


def staying(state: State, plan: Plan, name: str) -> int:
    """Replicas that are up, or on their way up, and that nothing makes leave."""
    ended = {
        a.incarnation
        for a in plan.actions
        if isinstance(a, DrainReplica | StopReplica | RollReplica)
    }
    return sum(
        r.model == name and r.kept and not r.going and not asleep(r)
        for r in plan.replicas
        if r.incarnation not in ended
        and not cordon.leaves(state, r.members)
        and not (r.held and r.incarnation in state.lost)
    )


@given(worlds())
def test_a59_a62_what_a_pass_starts_and_wakes_fits_beside_what_is_there(world: World) -> None:
    """Also together, and nothing goes where an operator drained. One that comes after others fits once they ended."""
    state = pictured(world)
    taken: Counter[str] = Counter()
    sizes: dict[tuple[str, str], tuple[str, int]] = {}
    for report in world.nodes:
        for s in report.shards:
            size = SIZES[s.model] * GIB if s.asleep is None else REST_BYTES
            taken.update(dict.fromkeys(s.gpus, size))
            sizes[s.shard, s.incarnation] = (s.gpus[0], size)
    more: Counter[str] = Counter()
    late: Counter[str] = Counter()
    over: set[tuple[str, str]] = set()
    for a in decide(state, world.now).actions:
        if isinstance(a, StartReplica | RollReplica):
            declared = world.catalog.models[a.model].profiles[0].gpu_memory_bytes
            for spot in a.spots:
                assert (
                    not {(spot.node, ""), *((spot.node, g) for g in spot.gpus)}
                    & state.cordoned.keys()
                )
                after = a.after if isinstance(a, StartReplica) else ()
                over.update(after)
                (late if after else more).update(dict.fromkeys(spot.gpus, declared or 24 * GIB))
        if isinstance(a, NapReplica) and a.step == "wake":
            more.update(dict.fromkeys(a.shards[0].report.gpus, SIZES["lazy"] * GIB - REST_BYTES))
    assert [gpu for gpu, size in more.items() if taken[gpu] + size > 24 * GIB] == []
    assert over <= sizes.keys()
    for gpu, size in map(sizes.__getitem__, over):
        taken[gpu] -= size
    assert [g for g, size in (more + late).items() if taken[g] + size > 24 * GIB] == []


@given(worlds())
def test_a63_who_waits_is_told_of_something(world: World) -> None:
    """A model that requests wait for is up, or an action says what is done about it, or why not."""
    plan = decide(pictured(world), world.now)
    for name in world.waiting:
        up = [r for r in plan.replicas if r.model == name and r.kept and not r.going]
        said = any(a.model == name for a in plan.actions)
        assert said or not all(map(asleep, up)), name
