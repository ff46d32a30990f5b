"""Control's side of sleep: out of the routes before the order, woken by demand onto free memory, else replaced."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from llmgw.core import asleep, route
from llmgw.core.adopt.survey import survey
from llmgw.core.capacity import holdings, resources_of
from llmgw.core.reconcile.decide import decide
from llmgw.core.reconcile.observe import observe
from llmgw.core.types.catalog import Model, Scaling
from llmgw.core.types.messages import Gpu, Refusal, Resources, ShardReport
from llmgw.core.types.plan import (
    NapReplica,
    Plan,
    Replica,
    StartReplica,
)
from llmgw.core.types.routes import Demand
from llmgw.core.types.sleep import Asleep, Doors
from llmgw.core.types.state import (
    Demanded,
    Event,
    NodeRegistered,
    ShardsChanged,
    State,
    Turned,
)
from tests.core.world import GIB, catalog, model, node, profile, running, shard, verdicts

DOORS = Doors(
    level=1, asleep="/is_sleeping", sleep=("/sleep?level=1",), wake=("/wake_up",), canary=True
)
SCALE = Scaling(idle_timeout_s=600.0, min_up_s=0.0)
TAKES: dict[str, Any] = {"gpus": 1, "gpu_memory_bytes": 10 * GIB}
#: alpha sleeps, beta does not
ALPHA = model("alpha", profile(sleep=DOORS, **TAKES), scaling=SCALE)
NEVER = Scaling(idle_timeout_s=None)
BETA = model("beta", profile(gpus=1, gpu_memory_bytes=20 * GIB), scaling=NEVER)
ON: dict[str, Any] = {"gpus": ("box1-0",), "sleep": 1}
RESTS = Asleep(verified=True, freed_bytes=8 * GIB, rest_bytes=2 * GIB)
INC, KEY = "inc-alpha-1", ("inc-alpha-1", 0)
#: idle for its timeout, and every gateway has had the time to speak
T = 1000.0


def up(**k: Any) -> ShardReport:
    return shard("alpha-1/0", **{**ON, **k})


def sleeper(**k: Any) -> ShardReport:
    return up(**{"state": "asleep", "asleep": RESTS, **k})


def other(gib: int = 20, **k: Any) -> ShardReport:
    need = Resources(gpu_memory_bytes=gib * GIB)
    return shard("beta-1/0", gpus=("box1-0",), port=18001, resources=need, **k)


def box(*shards: ShardReport, used: float = 2, **k: Any) -> Any:
    gpu = Gpu(uuid="box1-0", index=0, memory_bytes=24 * GIB, memory_used_bytes=int(used * GIB))
    return node("box1", *shards, **{"gpus": (gpu,), **k})


def world(*shards: ShardReport, alpha: Model = ALPHA, **k: Any) -> State:
    return running(catalog(alpha, BETA), box(*shards, **k))


def asked(state: State, n: int = 1, now: float = T, **k: Any) -> State:
    return observe(state, Demanded(Demand(gateway="g", n=n, waiting={"alpha": 1}, **k)), now)


def fold(state: State, *events: Event, now: float = T) -> State:
    for event in events:
        state = observe(state, event, now)
    return state


def nap(plan: Plan) -> NapReplica:
    (only,) = (a for a in plan.actions if isinstance(a, NapReplica))
    return only


def alpha_of(state: State) -> Replica:
    return next(r for r in survey(state).replicas if r.model == "alpha")


def routes(state: State) -> list[str]:
    table = route.table(state, survey(state), 1)
    return [f"{r.replica} {r.state}" for r in table.models["alpha"].replicas]


def told(state: State) -> str:
    return route.table(state, survey(state), 1).models["alpha"].why


# ---------------------------------------------------------------- what it holds


def test_a62_a_sleeper_is_charged_what_was_measured_of_it() -> None:
    state = world(sleeper())
    (there,) = state.nodes["box1"].shards
    assert resources_of(there, state.catalog).gpu_memory_bytes == 2 * GIB
    assert holdings(state)["box1"].gpus["box1-0"].reserved_bytes == 2 * GIB


@pytest.mark.parametrize("lies", [Asleep(), Asleep(verified=True)])
def test_a59_what_was_not_measured_is_charged_whole(lies: Asleep) -> None:
    state = world(sleeper(asleep=lies))
    assert holdings(state)["box1"].gpus["box1-0"].reserved_bytes == 10 * GIB


def test_a59_a_whole_gpu_is_shared_while_its_engine_sleeps() -> None:
    state = world(sleeper(resources=Resources(), asleep=replace(RESTS, rest_bytes=0)))
    there = holdings(state)["box1"].gpus["box1-0"]
    assert (there.whole, there.reserved_bytes) == ("", 1)


def test_a43_in_its_tear_down_it_takes_nothing_back() -> None:
    state = world(sleeper(state="stopping"))
    assert holdings(state)["box1"].gpus["box1-0"].reserved_bytes == 2 * GIB


def test_another_model_starts_on_what_a_sleeper_gave_back() -> None:
    state = fold(world(sleeper()), Demanded(Demand(gateway="g", n=1, waiting={"beta": 1})))
    (start,) = decide(state, T).actions
    assert isinstance(start, StartReplica)
    assert start.spots[0].gpus == ("box1-0",)


# ---------------------------------------------------------------- words that come late


@pytest.mark.parametrize(
    ("to", "late", "counts"), [("asleep", up(), "asleep"), ("loading", sleeper(), "loading")]
)
def test_what_its_agent_said_before_the_order_reached_it_is_not_believed(
    to: str, late: ShardReport, counts: str
) -> None:
    state = fold(world(late), Turned("box1", KEY, to), ShardsChanged("box1", shards=(late,)))
    (there,) = state.nodes["box1"].shards
    assert (there.report.state, there.turned) == (counts, to)
    assert asleep.told(there).state == late.state, "what both sides compare is what was told"


@pytest.mark.parametrize(("to", "before"), [("asleep", up()), ("loading", sleeper())])
def test_a_no_or_a_complete_report_takes_the_order_back(to: str, before: ShardReport) -> None:
    state = fold(world(before), Turned("box1", KEY, to))
    no = Refusal(seq=1, shard="alpha-1/0", incarnation=INC, reason="not_ready", why="no")
    refused = fold(state, ShardsChanged("box1", shards=(before,), refused=(no,)))
    heard = fold(state, NodeRegistered(box(before)))
    for after in (refused, heard):
        (there,) = after.nodes["box1"].shards
        assert (there.report.state, there.turned) == (before.state, "")


@pytest.mark.parametrize(
    ("to", "now"), [("asleep", sleeper()), ("asleep", up(state="stopping")), ("loading", up())]
)
def test_what_comes_after_the_order_is_believed(to: str, now: ShardReport) -> None:
    state = fold(world(up()), Turned("box1", KEY, to), ShardsChanged("box1", shards=(now,)))
    (there,) = state.nodes["box1"].shards
    assert (there.report.state, there.turned) == (now.state, "")
    assert asleep.told(there) == there.report


# ---------------------------------------------------------------- what people see


def test_a52_a_restart_adopts_it_as_what_it_is_and_has_nothing_to_do() -> None:
    plan = decide(running_anew(sleeper()), 0.0)
    assert verdicts(plan) == {"box1:alpha-1/0": "adopt"}
    assert plan.actions == ()
    said = "asleep on box1, 8.0 GiB of GPU memory freed, 2.0 GiB still used"
    assert said in plan.verdicts[0].why


def running_anew(*shards: ShardReport) -> State:
    return fold(running(catalog(ALPHA, BETA)), NodeRegistered(box(*shards)), now=0.0)


def test_words_of_how_it_sleeps() -> None:
    state = world(sleeper())
    assert told(state) == (
        "alpha-1 is asleep on box1, 8.0 GiB of GPU memory freed, 2.0 GiB still used"
    )
    state = world(sleeper(asleep=Asleep(verified=True)))
    assert told(state) == "alpha-1 is asleep on box1"


def test_f45_a_sleeper_that_nobody_can_look_at_is_not_routed() -> None:
    state = fold(world(sleeper()), ShardsChanged("box1", shards=(sleeper(state="unknown"),)))
    assert routes(state) == []
