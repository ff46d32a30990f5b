"""F64: alive and deaf: drained, stopped and replaced, in bounded time, bounded in number, and never while it serves."""

from __future__ import annotations

from typing import Any

import pytest

from llmgw.core import hung, route
from llmgw.core.adopt.survey import survey
from llmgw.core.failed import gave_up
from llmgw.core.reconcile.decide import decide
from llmgw.core.reconcile.observe import observe
from llmgw.core.types.catalog import Ready, Restart
from llmgw.core.types.messages import ShardReport
from llmgw.core.types.plan import DrainReplica, StopReplica
from llmgw.core.types.state import (
    DrainBegun,
    NodeRegistered,
    Published,
    SessionLost,
    ShardsChanged,
    State,
    Tick,
)
from tests.core.world import (
    DEEP,
    GIB,
    actions,
    at,
    begun,
    catalog,
    demand,
    gpus,
    half,
    model,
    node,
    plan_of,
    profile,
    running,
    shard,
)

#: When the agent says so, and when its time is up.
SICK, OVER = 100.0, 160.0
INC = "inc-alpha-1"
SAID = "3 of the last 5 health probes failed: no answer in 2 s"


def alpha(*, gib: int = 10, **k: Any) -> State:
    one = profile(gpus=1, gpu_memory_bytes=gib * GIB, **k)
    return running(catalog(model("alpha", one, low=1)), node("box1", engine()), node("box2"))


def engine(**k: Any) -> ShardReport:
    return shard("alpha-1/0", gpus=("box1-0",), **k)


def sick(state: State | None = None, now: float = SICK) -> State:
    state = alpha() if state is None else state
    told = (engine(state="unhealthy", error=SAID),)
    return observe(state, ShardsChanged("box1", told), now)


def drains(state: State, now: float) -> list[DrainReplica]:
    return [a for a in decide(state, now).actions if isinstance(a, DrainReplica)]


def given_up(state: State, now: float = OVER) -> State:
    (drain,) = drains(state, now)
    return observe(state, DrainBegun(drain.incarnation, drain.reason, drain.why), now)


def routed(state: State) -> list[str]:
    table = route.table(state, survey(state), 1)
    return [r.incarnation for m in table.models.values() for r in m.replicas if r.state == "ready"]


# ---------------------------------------------------------------- when


def test_f64_after_a_bounded_time_it_is_drained_and_a_new_one_placed() -> None:
    state = sick()
    assert routed(state) == []
    assert decide(state, OVER - 0.1).actions == ()
    (drain,) = drains(state, OVER)
    assert (drain.reason, drain.disturbs, drain.withheld) == ("hung", True, "")
    assert drain.why == (
        f"alpha-1/0 on box1 is alive and has answered nobody for 60 s, 60 s is the limit ({SAID})"
    )
    assert actions(decide(given_up(state), OVER)) == ["start alpha"]


def test_f64_without_room_beside_it_the_new_one_comes_when_it_is_gone() -> None:
    state = given_up(sick(observe(alpha(gib=20), SessionLost("box2"), 50.0)))
    assert actions(decide(state, OVER)) == ["wait alpha"]
    state = observe(state, Published(7, frozenset(), frozenset({INC})), OVER)
    (stop, _) = decide(state, OVER).actions
    assert isinstance(stop, StopReplica)
    assert (stop.reason, stop.drained, stop.due_s) == ("hung", True, 0.0)
    gone = ShardsChanged("box1", (engine(state="stopped"),), gpus=gpus("box1", 24))
    assert actions(decide(observe(state, gone, OVER + 9), OVER + 9)) == ["start alpha"]


def test_f64_one_that_gets_well_in_time_is_left_alone() -> None:
    state = observe(sick(), ShardsChanged("box1", (engine(),)), 150.0)
    assert routed(state) == [INC]
    assert decide(sick(state, 155.0), OVER).actions == ()
    assert drains(sick(state, 155.0), 215.0)


@pytest.mark.parametrize(
    ("ready", "seconds"),
    [(Ready(), 60.0), (Ready(of=20), 80.0), (Ready(token=True), 80.0)],
)
def test_f64_it_has_twice_the_time_of_its_probes(ready: Ready, seconds: float) -> None:
    assert hung.patience_s(ready) == seconds
    state = sick(alpha(ready=ready))
    assert not drains(state, SICK + seconds - 1)
    assert drains(state, SICK + seconds)


def test_f64_an_engine_without_a_word_why_is_judged_too() -> None:
    state = observe(alpha(), ShardsChanged("box1", (engine(state="unhealthy"),)), SICK)
    assert drains(state, OVER)[0].why.endswith("(its probes fail)")


def test_a52_f64_its_time_begins_when_settling_is_over_as_the_dry_run_has_it() -> None:
    """Sick all through settling, it was ended by the very first pass, of which no dry run had said a word."""
    sick_one = node("box1", engine(state="unhealthy"))
    cat = catalog(model("alpha", low=1))
    state = observe(begun(cat, sick_one, node("box2")), NodeRegistered(sick_one), 0.0)
    state = observe(state, Tick(), 60.0)
    assert not state.settling
    assert actions(decide(state, 60.0)) == actions(plan_of(cat, sick_one)) == []
    assert drains(state, 119.0) == []
    assert [d.reason for d in drains(state, 120.0)] == ["hung"]


# ---------------------------------------------------------------- while it serves


def test_f64_a_failing_probe_while_requests_progress_is_no_failure() -> None:
    """A busy engine is slow to answer: bytes of good answers count, and it stays routed."""
    state = observe(sick(), demand(answered={"alpha-1": 4.0}, in_flight={"alpha-1": 8}), 130.0)
    assert routed(state) == [INC]
    state = observe(state, demand(2), 180.0)
    assert not drains(state, 126.0 + 59)
    assert drains(state, 126.0 + 60)


def test_f64_bytes_from_before_it_fell_ill_prove_nothing() -> None:
    state = observe(sick(), demand(answered={"alpha-1": 10.0}), SICK + 5)
    assert routed(state) == []
    assert drains(observe(state, demand(2), 155.0), OVER)


def test_f64_requests_that_only_wait_on_it_are_no_progress() -> None:
    """In flight, and left by clients who lost their patience: `last_byte` moves, `answered` does not."""
    state = observe(sick(), demand(in_flight={"alpha-1": 2}, last_byte={"alpha-1": 0.0}), 159.0)
    assert drains(state, OVER)


def test_f64_what_one_gateway_saw_last_stays_known_though_a_later_word_leaves_it_out() -> None:
    state = observe(sick(), demand(answered={"alpha-1": 1.0}), 131.0)
    state = observe(state, demand(2), 155.0)
    assert not drains(state, OVER)


def test_f64_nothing_while_a_gateway_is_silent() -> None:
    """It may be the one that is being served; after a minute it is out of the count."""
    state = observe(sick(), demand(), 140.0)
    assert drains(observe(state, demand(2), 155.0), OVER)
    assert not drains(state, OVER)
    assert drains(observe(state, Tick(), 200.0), 200.0)


# ---------------------------------------------------------------- while nobody can know


def test_f64_nothing_while_control_settles_and_the_time_counts_from_its_own_start() -> None:
    """A46: what the last control saw of it, or an agent tells at once, may be over in a moment."""
    state = begun(alpha().catalog, node("box1", engine(state="unhealthy")), node("box2"))
    assert decide(state, 1e4).actions == ()
    state = observe(state, NodeRegistered(node("box1", engine(state="unhealthy"))), SICK)
    state = observe(state, NodeRegistered(node("box2")), SICK)
    state = observe(state, Tick(), SICK)
    assert not state.settling
    assert not drains(state, OVER - 1)
    assert drains(state, OVER)


def test_f61_f64_nothing_while_its_node_is_silent_and_its_time_counts_anew_after() -> None:
    state = observe(sick(), SessionLost("box1"), 120.0)
    assert not drains(state, 1000.0)
    state = observe(state, NodeRegistered(node("box1", engine(state="unhealthy"))), 1000.0)
    assert not drains(state, 1059.0)
    assert drains(state, 1060.0)


def test_f64_a_state_that_this_version_does_not_know_is_no_illness() -> None:
    state = observe(alpha(), ShardsChanged("box1", (engine(state="sleeping"),)), SICK)
    assert decide(state, 1000.0).replicas[0].state == "degraded"
    assert not drains(state, 1000.0)


def test_f61_f64_a_group_with_a_rank_on_a_silent_node_is_held_whole() -> None:
    """Unreachable is not dead: the head may hang only because of the network, and its partner holds its memory.

    Ending the head would free one half, serve nobody, and lose what comes back with the network.
    """
    state = running(DEEP, node("box1", half(0)), node("box2", half(1)), node("box3"))
    state = observe(state, ShardsChanged("box1", (half(0, state="unhealthy"),)), SICK)
    cut = observe(state, SessionLost("box2"), SICK)
    plan = decide(cut, 1000.0)
    assert plan.actions == ()
    assert [(v.verdict, v.reason) for v in plan.verdicts if v.shard.node == "box2"] == [
        ("hold", "node_silent")
    ]
    assert routed(cut) == []
    back = observe(cut, NodeRegistered(node("box2", half(1))), 1000.0)
    assert not drains(back, 1059.0)  # the network is back, and may be all that was wrong
    assert drains(back, 1060.0)


def test_f64_a_group_of_which_a_rank_hangs_goes_together() -> None:
    """The network between the nodes is cut, and both agents are heard: held memory is counted till it is free."""
    state = running(DEEP, node("box1", half(0)), node("box2", half(1)))
    state = observe(state, ShardsChanged("box1", (half(0, state="unhealthy"),)), SICK)
    (drain,) = drains(state, OVER)
    assert [s.report.shard for s in drain.shards] == ["deep-1/0", "deep-1/1"]
    state = given_up(state)
    assert actions(decide(state, OVER)) == ["wait deep"]
    state = observe(state, ShardsChanged("box1", (half(0, state="stopped"),)), OVER)
    assert actions(decide(state, OVER)) == ["wait deep"]


def test_f64_not_what_is_paused_ending_or_a_loser() -> None:
    """`llmgw pause` holds it; what is ending anyway has its own order."""
    (drain,) = drains(at(sick(), paused="by ann since 12:00"), OVER)
    assert drain.withheld == "paused by ann since 12:00"
    (drain,) = drains(at(sick(), ending=True), OVER)
    assert drain.reason == "ending"


# ---------------------------------------------------------------- bounded


def test_f64_a67_it_counts_as_a_failure_of_its_model_once() -> None:
    state = given_up(sick())
    (failure,) = state.failures["alpha"]
    assert (failure.incarnation, failure.at_s, failure.gave_up) == (INC, OVER, False)
    assert failure.error.startswith("alpha-1/0 on box1 is alive and has answered nobody")
    again = observe(state, DrainBegun(INC, "hung", failure.error), OVER + 1)
    assert again.failures == state.failures


def test_f64_a67_one_that_always_hangs_ends_in_a_visible_give_up() -> None:
    state = alpha(restart=Restart(max=2, window_s=1800.0, backoff_s=5.0))
    now = SICK
    for n in (1, 2):
        gone = () if n == 1 else (engine(state="stopped"),)
        told = shard(f"alpha-{n}/0", gpus=("box1-0",), state="unhealthy", port=18000 + n)
        state = observe(state, ShardsChanged("box1", (told, *gone)), now)
        now += 60.0
        state = given_up(state, now)
    alpha_model = state.catalog.models["alpha"]
    assert gave_up(state, alpha_model).startswith("gave up after 2 failures in 30 min: alpha-2/0")


def test_a49_f64_many_at_once_are_stopped_for_a_person_to_look() -> None:
    """F63: it is the network, or us."""
    state = many()
    for n in range(4):
        state = ill(state, n, SICK)
    plan = decide(state, OVER)
    assert plan.blocked is not None
    assert plan.blocked.why == (
        "would end 4 of 4 running replicas in one pass, which nobody asked for (limit 2): "
        "m0, m1, m2, m3"
    )
    assert all(d.withheld for d in drains(state, OVER))


def test_a49_f64_one_after_the_other_is_no_way_around_the_guard() -> None:
    state = many()
    for n in range(4):
        state = ill(state, n, SICK + n)
    state = given_up(state, OVER)
    state = given_up(state, OVER + 1)
    plan = decide(state, OVER + 2)
    assert plan.blocked is not None
    assert plan.blocked.why == (
        "would end 3 of 4 running replicas in one pass, which nobody asked for (limit 2), "
        "2 given up before and not gone yet: m2"
    )


def many() -> State:
    models = [model(f"m{n}", low=1) for n in range(4)]
    there = [shard(f"m{n}-1/0", f"m{n}", port=18000 + n) for n in range(4)]
    return running(catalog(*models), node("box1", *there))


def ill(state: State, n: int, now: float) -> State:
    told = shard(f"m{n}-1/0", f"m{n}", port=18000 + n, state="unhealthy")
    return observe(state, ShardsChanged("box1", (told,)), now)
