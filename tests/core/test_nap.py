"""To sleep and to wake: out of the routes before the order, woken by demand onto free memory, else replaced."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from llmgw.core import asleep
from llmgw.core.adopt.survey import survey
from llmgw.core.capacity import holdings
from llmgw.core.check import violations
from llmgw.core.reconcile.decide import decide
from llmgw.core.types.messages import Resources, ShardReport
from llmgw.core.types.plan import (
    DrainReplica,
    NapReplica,
    StartReplica,
    Wait,
)
from llmgw.core.types.routes import Demand
from llmgw.core.types.sleep import Asleep
from llmgw.core.types.state import (
    Announced,
    Cordoned,
    Demanded,
    DozeBegun,
    DrainBegun,
    NodeRegistered,
    Paused,
    Published,
    Refused,
    SessionLost,
    State,
    Tick,
    Turned,
    Withheld,
)
from tests.core.test_asleep import (
    ALPHA,
    DOORS,
    INC,
    KEY,
    NEVER,
    ON,
    RESTS,
    SCALE,
    TAKES,
    T,
    alpha_of,
    asked,
    box,
    fold,
    nap,
    other,
    routes,
    sleeper,
    told,
    up,
    world,
)
from tests.core.world import GIB, actions, catalog, model, node, profile, running, shard

# ---------------------------------------------------------------- to sleep


def test_a65_it_is_out_of_the_routes_before_it_is_ordered_to_sleep() -> None:
    state = world(up())
    assert decide(state, 599.0).actions == ()
    first = nap(decide(state, T))
    assert (first.step, first.why) == (
        "doze",
        "idle for 1000 s, idle_timeout is 600 s; it goes to sleep",
    )
    state = fold(state, DozeBegun(INC, first.why))
    assert routes(state) == ["alpha-1 draining"]
    assert told(state) == "alpha-1 is about to sleep"
    assert decide(state, T).actions == (), "no table shows it yet"
    state = fold(state, Published(7, frozenset({INC}), frozenset({INC})))
    state = fold(state, Demanded(Demand(gateway="g", n=1, table=6)))
    assert decide(state, T + 1).actions == (), "a gateway may still send there"
    state = fold(state, Demanded(Demand(gateway="g", n=2, table=7)), now=T + 2)
    then = nap(decide(state, T + 2))
    assert then.step == "sleep"
    assert then.why.endswith("idle_timeout is 600 s; drained, nothing in flight")


def test_a65_no_limit_cuts_a_stream_for_a_sleep() -> None:
    """A drain ends after its limit; nobody needs this engine's memory so badly."""
    state = fold(world(up()), DozeBegun(INC, "idle"))
    state = fold(state, Published(7, frozenset({INC}), frozenset({INC})))
    state = fold(state, Demanded(Demand(gateway="g", n=1, table=7)))
    silent = T + 20.0
    assert not [a for a in decide(state, silent).actions if a.why.startswith("drained")]


def test_one_that_is_asked_for_meanwhile_stays() -> None:
    state = asked(fold(world(up()), DozeBegun(INC, "idle")))
    plan = decide(state, T)
    assert nap(plan).step == "stay"
    state = fold(state, DozeBegun(INC, ""))
    assert state.dozing == {}
    assert routes(state) == ["alpha-1 ready"]


def test_one_that_is_drained_meanwhile_is_drained() -> None:
    state = fold(world(up()), DozeBegun(INC, "idle"), DrainBegun(INC, "operator", "because"))
    assert state.dozing == {}
    assert fold(state, DozeBegun(INC, "idle")).dozing == {}


def test_a_doze_ends_with_what_it_is_about() -> None:
    state = fold(world(up()), DozeBegun(INC, "idle"), Tick())
    assert set(state.dozing) == {INC}
    gone = Announced(frozenset({INC}))
    assert fold(state, NodeRegistered(box()), gone, Tick()).dozing == {}


@pytest.mark.parametrize("why", ["profile", "agent", "drift"])
def test_who_cannot_sleep_or_should_not_is_drained_as_ever(why: str) -> None:
    plain = model("alpha", profile(**TAKES), scaling=SCALE)
    state = {
        "profile": lambda: world(up(), alpha=plain),
        "agent": lambda: world(up(sleep=0)),
        "drift": lambda: world(up(fingerprint="1:bbbb"), alpha=replace(ALPHA, on_change="keep")),
    }[why]()
    (only,) = decide(state, T).actions
    assert isinstance(only, DrainReplica)
    assert only.reason == "idle"


def test_once_ordered_it_counts_as_asleep_and_holds_all_that_it_was_given() -> None:
    state = fold(world(up()), DozeBegun(INC, "idle"), Turned("box1", KEY, "asleep"))
    assert state.dozing == {}
    assert alpha_of(state).state == "asleep"
    assert routes(state) == []
    assert told(state) == "alpha-1 is falling asleep on box1"
    assert holdings(state)["box1"].gpus["box1-0"].reserved_bytes == 10 * GIB


def test_pause_and_require_plan_hold_a_sleep_back_and_a_wake_only_the_second() -> None:
    state = world(up())
    assert nap(decide(fold(state, Paused("since 12:00")), T)).withheld == "paused since 12:00"
    assert nap(decide(fold(state, Withheld("another plan")), T)).withheld == "another plan"
    state = asked(world(sleeper()))
    assert nap(decide(fold(state, Paused("since 12:00")), T)).withheld == ""
    assert nap(decide(fold(state, Withheld("another plan")), T)).withheld == "another plan"
    state = asked(fold(world(up()), DozeBegun(INC, "idle"), Withheld("another plan")))
    assert nap(decide(state, T)).withheld == "", "it is routed as it was"


# ---------------------------------------------------------------- for another


def wants(gib: int | None = 20, *shards: ShardReport, **k: Any) -> State:
    """beta asks for memory that alpha holds, idle for a while."""
    beta = model("beta", profile(gpus=1, gpu_memory_bytes=gib and gib * GIB), scaling=NEVER)
    state = running(catalog(ALPHA, beta), box(*(shards or (up(),)), used=10))
    return fold(state, Demanded(Demand(gateway="g", n=1, waiting={"beta": 1}, **k)), now=500.0)


def test_a64_one_that_makes_room_falls_asleep_where_that_is_enough() -> None:
    """It is back sooner that way: two models that do not fit together take turns without loading."""
    state = wants()
    plan = decide(state, 500.0)
    assert actions(plan) == ["nap alpha", "wait beta"]
    assert nap(plan).step == "doze"
    assert nap(plan).why.startswith("makes room for beta")
    state = fold(
        state, DozeBegun(INC, "why"), Published(7, frozenset(), frozenset({INC})), now=500.0
    )
    state = fold(state, Demanded(Demand(gateway="g", n=2, table=7, waiting={"beta": 1})), now=501.0)
    assert nap(decide(state, 501.0)).step == "sleep"
    state = fold(state, Turned("box1", KEY, "asleep"), now=501.0)
    assert actions(decide(state, 501.0)) == ["wait beta"], "it is waited for, and nobody else goes"
    state = fold(state, NodeRegistered(box(sleeper())), now=502.0)
    assert actions(decide(state, 502.0)) == ["start beta"]


def test_one_that_is_idle_and_in_the_way_too_goes_to_sleep_once() -> None:
    state = fold(wants(), Demanded(Demand(gateway="g", n=2, waiting={"beta": 1})))
    assert actions(decide(state, T)) == ["nap alpha", "wait beta"]


def test_a64_a_sleeper_that_is_in_the_way_still_goes() -> None:
    state = wants(23, sleeper())
    drain, wait = decide(state, 500.0).actions
    assert isinstance(drain, DrainReplica)
    assert (drain.replica, drain.reason) == ("alpha-1", "evict")
    assert isinstance(wait, Wait)


@pytest.mark.parametrize("why", ["whole", "busy"])
def test_a64_who_needs_the_gpu_alone_or_waits_for_a_busy_one_has_it_ended(why: str) -> None:
    """A busy one yields after a while, and its drain has a limit; a sleep has none."""
    if why == "whole":
        state, at = wants(None), 500.0
    else:
        state, at = wants(20, in_flight={"alpha-1": 1}), 500.0 + SCALE.yield_after_s
        busy = Demand(gateway="g", n=2, waiting={"beta": 1}, in_flight={"alpha-1": 1})
        state = fold(state, Demanded(busy), now=at)
    drain = next(a for a in decide(state, at).actions if isinstance(a, DrainReplica))
    assert (drain.replica, drain.reason) == ("alpha-1", "evict")


# ---------------------------------------------------------------- to wake


def test_a63_demand_wakes_the_sleeper_and_starts_nothing() -> None:
    plan = decide(asked(world(sleeper())), T)
    (wake,) = plan.actions
    assert isinstance(wake, NapReplica)
    assert (wake.step, wake.why) == ("wake", "1 waiting, 0 running; it sleeps on box1")


def test_nobody_asks_and_it_sleeps_on() -> None:
    assert decide(world(sleeper()), 10 * T).actions == ()


def test_a59_a_wake_counts_with_all_that_it_was_given_in_the_same_pass() -> None:
    """Else another model would be placed on the same bytes."""
    state = asked(world(sleeper()))
    state = fold(state, Demanded(Demand(gateway="g", n=2, waiting={"alpha": 1, "beta": 1})))
    plan = decide(state, T)
    assert actions(plan) == ["nap alpha", "wait beta"]


def test_once_ordered_it_counts_as_loading() -> None:
    state = fold(asked(world(sleeper())), Turned("box1", KEY, "loading"))
    assert alpha_of(state).state == "starting"
    assert holdings(state)["box1"].gpus["box1-0"].reserved_bytes == 10 * GIB
    assert decide(state, T).actions == ()
    assert violations(state, survey(state)) == []


def test_one_that_falls_asleep_is_waited_for() -> None:
    (wait,) = decide(asked(world(sleeper(asleep=Asleep()))), T).actions
    assert isinstance(wait, Wait)
    assert wait.why == "1 waiting, 0 running; alpha-1 is falling asleep on box1"


def test_a59_memory_that_is_anothers_now_is_not_woken_onto() -> None:
    state = world(sleeper(), other(), used=20)
    said = asleep.not_to_be_woken(state, holdings(state), alpha_of(state))
    assert said == "GPU 0 has 4.0 of 24.0 GiB free, 10.0 needed (held by beta-1/0)"
    state = world(sleeper(), other(12), used=14)
    assert asleep.not_to_be_woken(state, holdings(state), alpha_of(state)) == ""


def test_a62_measured_use_counts_less_what_is_its_own() -> None:
    state = world(sleeper(), used=16)
    assert asleep.not_to_be_woken(state, holdings(state), alpha_of(state)) == ""
    state = world(sleeper(), used=17)
    assert asleep.not_to_be_woken(state, holdings(state), alpha_of(state)).startswith("GPU 0 has")


@pytest.mark.parametrize("what", ["refused", "gone", "unknown"])
def test_where_it_lies_may_be_no_place_to_wake(what: str) -> None:
    state = world(sleeper())
    if what == "refused":
        state = replace(state, refused=(Refused("box1", "node", T + 60, "cannot write"),))
    else:
        state = world(sleeper(), gpus=() if what == "gone" else None)
    said = asleep.not_to_be_woken(state, holdings(state), alpha_of(state))
    assert (
        said
        == {
            "refused": "cannot write",
            "gone": "GPU box1-0 is not seen on box1",
            "unknown": "GPU box1-0 is not seen on box1",
        }[what]
    )


def test_one_that_cannot_wake_goes_for_the_one_that_is_started_elsewhere() -> None:
    state = asked(
        fold(world(sleeper(), other(), used=20), NodeRegistered(node("box2")), now=0.0), now=T
    )
    start, drain = decide(state, T).actions
    assert isinstance(start, StartReplica)
    assert start.spots[0].node == "box2"
    assert isinstance(drain, DrainReplica)
    assert (drain.replica, drain.reason, drain.disturbs) == ("alpha-1", "idle", False)
    assert drain.why.startswith("asleep, and cannot wake where it lies: GPU 0 has 4.0 of 24.0")


def test_one_that_drifted_is_replaced_and_not_woken_unless_it_is_kept() -> None:
    old = sleeper(fingerprint="1:bbbb")
    start, drain = decide(asked(world(old)), T).actions
    assert isinstance(start, StartReplica)
    assert isinstance(drain, DrainReplica)
    assert "profile main changed" in drain.why
    state = asked(world(old, alpha=replace(ALPHA, on_change="keep")))
    assert nap(decide(state, T)).step == "wake"


def test_one_on_a_drained_node_goes_at_once_and_is_not_woken() -> None:
    state = fold(world(sleeper()), Cordoned("box1", "", "since 12:00 by you"))
    (drain,) = decide(state, T).actions
    assert isinstance(drain, DrainReplica)
    assert "drained since 12:00" in drain.why
    asked_for = decide(asked(state), T)
    assert not [a for a in asked_for.actions if isinstance(a, NapReplica)]


def test_a_sleeper_beyond_those_wanted_sleeps_on() -> None:
    """Woken is one; the other is for the next queue."""
    two = model("alpha", profile(sleep=DOORS, **TAKES), scaling=replace(SCALE, max=2))
    second = shard("alpha-2/0", port=18003, state="asleep", asleep=RESTS, **ON)
    state = asked(world(sleeper(), second, alpha=two, used=4))
    assert actions(decide(state, T)) == ["nap alpha"]


def test_f61_one_on_a_silent_node_is_there_and_waited_for() -> None:
    state = fold(asked(world(sleeper())), SessionLost("box1"))
    assert decide(state, T).actions == ()
    assert holdings(state)["box1"].gpus["box1-0"].reserved_bytes == 2 * GIB


def test_what_always_runs_is_woken_without_demand() -> None:
    """Its `min` was raised while it slept."""
    one = model("alpha", profile(sleep=DOORS, **TAKES), scaling=replace(SCALE, min=1))
    assert nap(decide(world(sleeper(), alpha=one), T)).why == "min 1, 0 running; it sleeps on box1"


def test_a65_what_is_idle_on_a_drained_node_does_not_fall_asleep_there() -> None:
    """It was told to go to sleep and to leave in one pass, where room was needed of it."""
    state = fold(world(up()), Cordoned("box1", "", "since noon"))
    assert actions(decide(state, T)) == ["drain alpha"]


def test_a64_one_that_goes_to_sleep_for_one_model_does_so_once_whoever_else_asks() -> None:
    """Idle for its timeout, and in the way of two others, which have room for both once it sleeps."""
    ten: dict[str, Any] = {"gpus": 1, "gpu_memory_bytes": 10 * GIB}
    asking = [model(name, profile(**ten), scaling=SCALE) for name in ("delta", "gamma")]
    large = up(resources=Resources(gpu_memory_bytes=20 * GIB))
    state = running(catalog(ALPHA, *asking), box(large, used=20))
    waiting = {"delta": 1, "gamma": 1}
    state = fold(state, Demanded(Demand(gateway="g", n=1, waiting=waiting)), now=0.0)
    state = fold(state, Demanded(Demand(gateway="g", n=2, waiting=waiting)))
    plan = decide(state, T)
    assert actions(plan) == ["nap alpha", "wait delta", "wait gamma"]
    assert nap(plan).why.startswith("makes room for delta")


def test_a65_on_a_drained_gpu_none_goes_to_sleep_for_the_host_memory_it_has() -> None:
    need = Resources(gpu_memory_bytes=10 * GIB, host_memory_bytes=60 * GIB)
    beta = model("beta", profile(host_memory_bytes=20 * GIB), scaling=SCALE)
    state = running(catalog(ALPHA, beta), box(up(resources=need)))
    state = fold(state, Cordoned("box1", "box1-0", "since noon"))
    state = fold(state, Demanded(Demand(gateway="g", n=1, waiting={"beta": 1})), now=0.0)
    plan = decide(fold(state, Demanded(Demand(gateway="g", n=2, waiting={"beta": 1}))), T)
    assert sorted(actions(plan)) == ["drain alpha", "wait beta"]


def test_a64_for_one_that_moves_an_idle_one_goes_to_sleep_as_for_any_other() -> None:
    pin = model("pin", profile(gpus=1, gpu_memory_bytes=20 * GIB), low=1)
    there = node("box2", shard("pin-1/0", gpus=("box2-0",), port=18001))
    state = running(catalog(ALPHA, pin), box(up(), used=10), there)
    state = fold(state, Cordoned("box2", "", "since noon"))
    assert actions(decide(state, T)) == ["nap alpha", "wait pin"]
