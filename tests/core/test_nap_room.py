"""A sleeper is not in the way of its own model: others go so that it can wake, or it goes for a new one (A59, A64)."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from llmgw.core.evict import unplaceable
from llmgw.core.reconcile.decide import decide
from llmgw.core.types.catalog import Model
from llmgw.core.types.messages import NodeReport, Resources, ShardReport
from llmgw.core.types.plan import DrainReplica, Plan, StartReplica, Wait
from llmgw.core.types.routes import Demand
from llmgw.core.types.state import (
    Cordoned,
    Demanded,
    DrainBegun,
    NodeRegistered,
    Published,
    State,
    Woken,
)
from tests.core.test_asleep import ALPHA, SCALE, T, asked, box, fold, nap, other, sleeper
from tests.core.world import GIB, actions, catalog, gpus, model, node, profile, running

#: more than its card has beside what its sleeper keeps
BIG = Resources(gpu_memory_bytes=23 * GIB)


def wide(**k: Any) -> Model:
    main = replace(ALPHA.profiles[0], gpu_memory_bytes=23 * GIB)
    return replace(ALPHA, profiles=(main,), **k)


def world(*shards: ShardReport, alpha: Model | None = None, used: float = 20, **k: Any) -> State:
    """beta may go as well."""
    beta = model("beta", profile(gpus=1, gpu_memory_bytes=20 * GIB), scaling=SCALE)
    return running(catalog(alpha or wide(), beta), box(*shards, used=used, **k))


def goes(plan: Plan) -> DrainReplica:
    (drain,) = (a for a in plan.actions if isinstance(a, DrainReplica))
    return drain


def test_a64_what_its_sleeper_keeps_is_room_for_it() -> None:
    """Else a model that fits its card alone would never be back: whoever asked was told that there is no room."""
    plan = decide(asked(world(sleeper(resources=BIG), other())), T)
    assert actions(plan) == ["drain beta", "wait alpha"]
    assert unplaceable(plan) == {}
    assert goes(plan).why.startswith("makes room for alpha")


def test_a64_a_busy_one_in_its_way_is_waited_for() -> None:
    state = asked(world(sleeper(resources=BIG), other()), in_flight={"beta-1": 1})
    plan = decide(state, T)
    (wait,) = plan.actions
    assert isinstance(wait, Wait)
    assert wait.why.endswith("beta-1 is busy (1 in flight) and yields in 120 s")
    assert unplaceable(plan) == {}


def told(state: State) -> State:
    """beta is drained for it, and every gateway has taken that up."""
    gone = frozenset({"inc-beta-1"})
    state = fold(state, DrainBegun("inc-beta-1", "evict", "why"), Published(7, gone, gone))
    return asked(state, 2, T + 1, table=7)


@pytest.mark.parametrize("gib", [10, 23])
def test_it_wakes_once_they_have_ended_and_no_new_one_is_loaded(gib: int) -> None:
    alpha = wide() if gib > 10 else ALPHA
    need = Resources(gpu_memory_bytes=gib * GIB)
    lies = sleeper(resources=need)
    state = told(asked(world(lies, other(), alpha=alpha, follows=True)))
    plan = decide(state, T + 1)
    assert actions(plan) == ["stop beta", "wait alpha"]
    assert isinstance(plan.actions[1], Wait)
    assert plan.actions[1].why.endswith("it goes there once beta-1 has ended")
    state = fold(state, NodeRegistered(box(lies)), now=T + 2)
    assert nap(decide(state, T + 2)).step == "wake"


def test_a66_one_that_drifted_goes_for_the_new_one_that_has_no_room_beside_it() -> None:
    old = sleeper(resources=BIG, fingerprint="1:bbbb")
    plan = decide(asked(world(old, used=2)), T)
    assert actions(plan) == ["drain alpha", "wait alpha"]
    assert "profile main changed" in goes(plan).why
    assert unplaceable(plan) == {}
    state = fold(asked(world(old, used=2)), NodeRegistered(box(used=0)))
    assert actions(decide(state, T)) == ["start alpha"]


def test_a66_one_that_drifted_is_not_waited_for() -> None:
    """A new one starts with the stop that makes its room: nothing wakes there."""
    old = sleeper(fingerprint="1:bbbb")
    plan = decide(told(asked(world(old, other(), alpha=ALPHA, follows=True))), T + 1)
    assert actions(plan) == ["stop beta", "start alpha", "drain alpha"]


def test_who_asks_for_a_whole_card_has_that_of_its_own_sleeper() -> None:
    main = replace(ALPHA.profiles[0], gpu_memory_bytes=None)
    whole = sleeper(resources=Resources(), fingerprint="1:bbbb")
    plan = decide(asked(world(whole, alpha=replace(ALPHA, profiles=(main,)), used=2)), T)
    assert actions(plan) == ["drain alpha", "wait alpha"]


def test_on_a_drained_node_it_goes_once() -> None:
    state = world(sleeper(resources=BIG), used=2)
    state = fold(state, Cordoned("box1", "box1-0", "since noon by you"))
    state = fold(state, NodeRegistered(node("box2", gpus=())), now=0.0)
    assert actions(decide(asked(state), T)).count("drain alpha") == 1


def test_host_memory_that_a_sleeper_keeps_is_for_the_new_one_elsewhere_on_its_node() -> None:
    """Its own card is another's for good; a second one is free, and its host memory has to be given back."""
    need = Resources(gpu_memory_bytes=10 * GIB, host_memory_bytes=40 * GIB)
    main = replace(ALPHA.profiles[0], host_memory_bytes=40 * GIB)
    pin = model("beta", profile(gpus=1, gpu_memory_bytes=20 * GIB), low=1)
    two = (*box().gpus, replace(box().gpus[0], uuid="box1-1", index=1, memory_used_bytes=0))
    lies = box(sleeper(resources=need), other(), used=20)
    lies = replace(lies, gpus=(replace(two[0], memory_used_bytes=20 * GIB), two[1]))
    state = asked(running(catalog(replace(ALPHA, profiles=(main,)), pin), lies))
    plan = decide(state, T)
    assert actions(plan) == ["drain alpha", "wait alpha"]
    assert goes(plan).why.startswith("asleep, and cannot wake where it lies: GPU 0 has 4.0 of 24.0")
    there = [a for a in plan.actions if isinstance(a, StartReplica)]
    assert not there, "not before it has ended"


def test_one_that_wakes_does_not_go_for_the_next_one_of_its_model() -> None:
    """What it still keeps would be room enough for that one: it was woken and drained in one breath."""
    main = replace(ALPHA.profiles[0], gpu_memory_bytes=13 * GIB)
    two = replace(ALPHA, profiles=(main,), scaling=replace(SCALE, min=2, max=2))
    lies = sleeper(resources=Resources(gpu_memory_bytes=13 * GIB))
    state = running(replace(catalog(two), start_limit=2), box(lies))
    plan = decide(asked(state), T)
    assert actions(plan) == ["nap alpha", "wait alpha"]
    assert nap(plan).step == "wake"


def test_one_that_an_operator_wakes_does_not_go_for_another_model() -> None:
    """Nobody waits for it, which made it idle to all others in the very pass that wakes it."""
    main = replace(ALPHA.profiles[0], gpu_memory_bytes=13 * GIB)
    beta = model("beta", profile(gpus=1, gpu_memory_bytes=13 * GIB), scaling=SCALE)
    lies = sleeper(resources=Resources(gpu_memory_bytes=13 * GIB))
    both = catalog(replace(ALPHA, profiles=(main,)), beta)
    state = fold(running(replace(both, start_limit=2), box(lies)), Woken("alpha"), now=T - 100)
    for n, at in enumerate((T - 90, T), 1):
        state = fold(state, Demanded(Demand(gateway="g", n=n, waiting={"beta": 1})), now=at)
    plan = decide(state, T)
    assert actions(plan) == ["nap alpha", "wait beta"]
    assert nap(plan).step == "wake"


@pytest.mark.parametrize(
    ("more", "done"),
    [
        ((), ["drain alpha", "wait beta", "wait alpha"]),
        ((node("box2", gpus=gpus("box2", 16)),), ["drain alpha", "wait beta", "start alpha"]),
    ],
)
def test_one_that_goes_for_another_model_is_neither_woken_nor_drained_again(
    more: tuple[NodeReport, ...], done: list[str]
) -> None:
    """beta has waited for longer, and its turn comes first; alpha may start elsewhere."""
    main = replace(ALPHA.profiles[0], gpu_memory_bytes=8 * GIB)
    beta = model("beta", profile(gpus=1, gpu_memory_bytes=23 * GIB), scaling=SCALE)
    lies = sleeper(resources=Resources(gpu_memory_bytes=8 * GIB))
    both = catalog(replace(ALPHA, profiles=(main,)), beta)
    state = running(replace(both, start_limit=2), box(lies), *more)
    for n, at in enumerate((T - 300, T), 1):
        state = fold(state, Demanded(Demand(gateway="g", n=n, waiting={"beta": 1})), now=at)
    plan = decide(fold(state, Woken("alpha"), now=T - 10), T)
    assert actions(plan) == done
    assert goes(plan).why.startswith("makes room for beta")


# ---------------------------------------------------------------- one too many


def twice(*there: NodeReport) -> Plan:
    """alpha is on both boxes, one box was lost meanwhile: one of them has to go."""
    return decide(running(catalog(ALPHA), *there), T - 500)


def second(**k: Any) -> NodeReport:
    late = sleeper(**k)
    again = replace(
        late,
        shard="alpha-2/0",
        replica="alpha-2",
        incarnation="inc-alpha-2",
        gpus=("box2-0",),
        started_at="2026-01-01T09:00:00Z",
    )
    return node("box2", again)


def test_a38_of_two_that_sleep_one_goes_at_once() -> None:
    """Neither serves anybody: before, both stayed until somebody asked."""
    plan = twice(box(sleeper()), second())
    assert (goes(plan).replica, goes(plan).reason) == ("alpha-2", "duplicate_replica")


@pytest.mark.parametrize("state", ["ready", "loading"])
def test_a38_a_sleeper_waits_for_the_other_to_be_ready(state: str) -> None:
    plan = twice(box(sleeper()), second(state=state, asleep=None))
    gone = [a.replica for a in plan.actions if isinstance(a, DrainReplica)]
    assert gone == (["alpha-1"] if state == "ready" else [])
