"""Replacing what drifted, one step a pass: beside the old one where there is room, else after it (A66)."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from llmgw.core import roll
from llmgw.core.adopt.survey import survey
from llmgw.core.capacity import holdings
from llmgw.core.place import Fleet
from llmgw.core.reconcile.decide import decide
from llmgw.core.reconcile.observe import observe
from llmgw.core.types.catalog import Model, Profile
from llmgw.core.types.messages import NodeReport, Resources, ShardReport
from llmgw.core.types.plan import Replica, RollReplica, Spot, Wait
from llmgw.core.types.routes import Demand
from llmgw.core.types.state import Demanded, DrainBegun, Failure, State
from tests.core.world import FP, GIB, at, catalog, gpus, model, node, profile, running, shard

NEW = "1:bbbb"
DRIFT = "profile main changed since it was started (1:aaaa -> 1:bbbb)"


def changed(**k: Any) -> Profile:
    k.setdefault("gpu_memory_bytes", 10 * GIB)
    return profile(fingerprints={"default": NEW}, gpus=1, **k)


def old(name: str = "alpha-1", gpu: str = "box1-0", **k: Any) -> ShardReport:
    k.setdefault("port", 18000 + int(name[-1]))
    return shard(f"{name}/0", gpus=(gpu,), **k)


def new(name: str = "alpha-9", gpu: str = "box1-0", **k: Any) -> ShardReport:
    return old(name, gpu, fingerprint=NEW, **k)


def picture(m: Model, *reports: NodeReport) -> State:
    return running(catalog(m), *reports)


def kept(state: State) -> list[Replica]:
    return [r for r in survey(state).replicas if r.kept and r.state != "draining"]


def step(
    state: State, m: Model, replicas: list[Replica] | None = None
) -> RollReplica | Wait | None:
    return roll.step(
        Fleet(state, holdings(state)), m, kept(state) if replicas is None else replicas
    )


def waits(state: State, m: Model) -> str:
    answer = step(state, m)
    assert isinstance(answer, Wait), answer
    assert (answer.model, answer.profile) == ("alpha", "main")
    return answer.why


ONE = model("alpha", changed(), low=1)
TWO = model("alpha", changed(), low=2, high=2)


# --- one step --------------------------------------------------------------------------------


def test_a66_with_room_a_new_one_starts_beside_the_old() -> None:
    state = picture(ONE, node("box1", old()))
    (r,) = kept(state)
    assert step(state, ONE) == RollReplica(
        replica="alpha-1",
        incarnation="inc-alpha-1",
        model="alpha",
        profile="main",
        shards=r.members,
        spots=(Spot(node="box1", gpus=("box1-0",), port=18000),),
        why=f"{DRIFT}; a new one starts beside it: fits box1 GPU 0, 4.0 GiB left there",
    )


def test_a66_without_room_the_old_one_is_stopped_first_and_the_sentence_says_so() -> None:
    state = picture(ONE, node("box1", old(), gpus=gpus("box1", 16, used={0: 10})))
    answer = step(state, ONE)
    assert isinstance(answer, RollReplica)
    assert answer.spots == ()
    assert answer.why == (
        f"{DRIFT}; it is stopped first, no room beside it: "
        "box1: GPU 0 has 6.0 of 16.0 GiB free, 10.0 needed (held by alpha-1/0)"
    )


def test_nothing_is_stopped_for_a_new_one_that_would_find_no_room_even_then() -> None:
    m = model("alpha", changed(gpu_memory_bytes=30 * GIB), low=1)
    state = picture(m, node("box1", old(), gpus=gpus("box1", 24, used={0: 10})))
    assert waits(state, m) == (
        "roll: no room, not even once alpha-1 is stopped: "
        "box1: GPU 0 has 24.0 of 24.0 GiB free, 30.0 needed"
    )


def test_what_others_hold_stays_held_when_the_old_one_is_thought_away() -> None:
    m = model("alpha", changed(gpu_memory_bytes=16 * GIB), low=1)
    other = shard("gone-1/0", gpus=("box1-0",), port=18009)
    state = picture(m, node("box1", old(), other, gpus=gpus("box1", 24, 8, used={0: 20})))
    assert waits(state, m).endswith(
        "box1: GPU 0 has 14.0 of 24.0 GiB free, 16.0 needed (held by gone-1/0), the nearest of 2"
    )


def test_a_cpu_engine_on_a_node_whose_gpus_are_not_known_rolls_too() -> None:
    m = model("alpha", profile(fingerprints={"default": NEW}, cpu_cores=9.0), low=1)
    heavy = shard("alpha-1/0", resources=Resources(cpu_cores=9.0))
    answer = step(picture(m, node("box1", heavy, gpus=None)), m)
    assert isinstance(answer, RollReplica)
    assert answer.why.endswith(
        "it is stopped first, no room beside it: box1: CPU cores: 7 of 16 cores free, 9 needed"
    )


def test_the_start_limit_passes_by_itself_so_nothing_is_stopped_for_it() -> None:
    loading = shard("beta-1/0", state="loading", port=18009)
    state = picture(ONE, node("box1", old(), loading))
    assert waits(state, ONE) == ("roll: box1: beta-1/0 is still starting there, 1 start at a time")


def test_an_old_one_is_stopped_first_though_another_start_is_under_way_there() -> None:
    loading = shard("beta-1/0", state="loading", port=18009)
    state = picture(ONE, node("box1", old(), loading, gpus=gpus("box1", 12)))
    answer = step(state, ONE)
    assert isinstance(answer, RollReplica)
    assert answer.spots == ()


# --- when there is nothing to do -------------------------------------------------------------


@pytest.mark.parametrize(
    ("m", "reports"),
    [
        (ONE, (new(),)),  # today's
        (ONE, (old(fingerprint=""),)),  # A18: unknown is neither equal nor different
        (model("alpha", changed(), low=1, on_change="keep"), (old(),)),
        (ONE, (old(state="unhealthy"),)),
        (ONE, (old(), new(state="loading"))),  # its surge is under way
        (TWO, (old(),)),  # one is missing: that one comes first
        (ONE, ()),
    ],
)
def test_a66_no_step_is_taken(m: Model, reports: tuple[ShardReport, ...]) -> None:
    assert step(picture(m, node("box1", *reports)), m) is None


def test_a66_the_least_busy_then_the_oldest_goes_first() -> None:
    first = old("alpha-1", started_at="2026-01-02T00:00:00Z")
    state = picture(TWO, node("box1", first, old("alpha-2"), gpus=gpus("box1", 48)))
    answer = step(state, TWO)
    assert isinstance(answer, RollReplica)
    assert answer.replica == "alpha-2"
    busy = observe(state, Demanded(Demand(gateway="g", n=1, in_flight={"alpha-2": 1})), 1.0)
    answer = step(busy, TWO)
    assert isinstance(answer, RollReplica)
    assert answer.replica == "alpha-1"


# --- never two at a time ---------------------------------------------------------------------


GOING = [
    {"state": "draining"},
    {"state": "stopping"},
    {"desired": "draining"},
    {"desired": "stopped"},
]


@pytest.mark.parametrize("going", GOING)
def test_a66_the_next_waits_until_the_last_one_is_gone(going: dict[str, str]) -> None:
    """On-demand models too, which may run less than they did: else all of them would be on their way out at once."""
    m = model("alpha", changed(), high=2)
    state = picture(m, node("box1", old("alpha-1"), old("alpha-2", **going)))
    assert waits(state, m) == "roll: alpha-2 on box1 is still on its way out"


def test_a66_a_drain_that_only_control_knows_of_counts_as_well() -> None:
    m = model("alpha", changed(), high=2)
    state = picture(m, node("box1", old("alpha-1"), old("alpha-2")))
    state = observe(state, DrainBegun("inc-alpha-2", "drift", DRIFT), 1.0)
    assert waits(state, m) == "roll: alpha-2 on box1 is still on its way out"


def test_others_on_their_way_out_do_not_hold_up_a_roll() -> None:
    other = old("beta-2", state="draining")
    gone = old("alpha-3", state="failed")
    state = picture(ONE, node("box1", old("alpha-1"), other, gone))
    assert isinstance(step(state, ONE), Wait | RollReplica)
    assert not isinstance(step(state, ONE), Wait)


# --- halted ----------------------------------------------------------------------------------


def test_a66_a_new_one_that_did_not_come_up_halts_the_roll_until_somebody_clears_it() -> None:
    failure = Failure("inc-new", "main", 5.0, "exited with code 1", gave_up=True, fingerprint=NEW)
    state = at(picture(ONE, node("box1", old())), failures={"alpha": (failure,)})
    assert waits(state, ONE) == (
        "roll: halted, the new main did not come up (exited with code 1); "
        "llmgw clear alpha lets it go on"
    )


@pytest.mark.parametrize("fingerprint", [FP, ""])
def test_a_failure_of_another_version_does_not_halt_it(fingerprint: str) -> None:
    failure = Failure("inc-x", "main", 5.0, "exited with code 1", fingerprint=fingerprint)
    state = at(picture(ONE, node("box1", old())), failures={"alpha": (failure,)})
    assert isinstance(step(state, ONE), RollReplica)


# --- the end of a surge ----------------------------------------------------------------------


WIDE = model("alpha", changed(), low=1, high=3)


@pytest.mark.parametrize(
    ("reports", "goes"),
    [
        ((old("alpha-1"), new("alpha-9")), "alpha-1"),
        ((old("alpha-1"), old("alpha-2"), new("alpha-9")), "alpha-1"),
        ((old("alpha-1"), old("alpha-2")), None),  # no new one yet
        ((old("alpha-1"), new("alpha-9", state="loading")), None),
        ((new("alpha-8"), new("alpha-9")), None),
        ((old("alpha-1"),), None),
        ((new("alpha-9"),), None),
    ],
)
def test_a66_once_the_new_one_is_ready_the_old_one_may_go(
    reports: tuple[ShardReport, ...], goes: str | None
) -> None:
    state = picture(WIDE, node("box1", *reports, gpus=gpus("box1", 48)))
    found = roll.surplus(state, WIDE, kept(state))
    assert (found.replica if found else None) == goes


def test_a66_a_second_old_one_waits_until_the_first_is_gone() -> None:
    """Else both would go at once where `min` asks for none: never more than one away at a time."""
    free = model("alpha", changed(), low=0, high=3)
    reports = (old("alpha-1", state="draining"), old("alpha-2"), new("alpha-9"))
    state = picture(free, node("box1", *reports, gpus=gpus("box1", 48)))
    staying = [r for r in kept(state) if r.state != "draining"]
    assert roll.surplus(state, free, staying) is None
    state = picture(free, node("box1", *reports[1:], gpus=gpus("box1", 48)))
    found = roll.surplus(state, free, kept(state))
    assert found is not None
    assert found.replica == "alpha-2"


def test_a66_no_old_one_goes_below_min() -> None:
    state = picture(TWO, node("box1", old("alpha-1"), new("alpha-9"), gpus=gpus("box1", 48)))
    assert roll.surplus(state, TWO, kept(state)) is None


@given(
    st.integers(0, 3),
    st.lists(st.sampled_from(["old", "new"]), max_size=4),
    st.lists(st.sampled_from(["ready", "loading", "unhealthy", "draining"]), max_size=4),
    st.integers(1, 6),
)
def test_a66_a_step_is_taken_only_from_a_whole_model_and_takes_away_at_most_one(
    low: int, ages: list[str], states: list[str], gpu_tens: int
) -> None:
    m = model("alpha", changed(), low=low, high=max(low, 4))
    reports = [
        replace(old(f"alpha-{i}"), state=state, fingerprint=FP if age == "old" else NEW)
        for i, (age, state) in enumerate(zip(ages, states, strict=False), 1)
    ]
    state = picture(m, node("box1", *reports, gpus=gpus("box1", 10 * gpu_tens)))
    answer, there = step(state, m), kept(state)
    if isinstance(answer, RollReplica):
        assert all(r.complete_and_ready for r in there)
        assert len(there) >= low
        assert len(there) == len(reports)
        assert answer.incarnation in {r.incarnation for r in there if r.drift}
        assert len({s.incarnation for s in answer.shards}) == 1


# --- max_unavailable -------------------------------------------------------------------------


def many(count: int = 4, away: int = 2) -> Model:
    return model("alpha", changed(), low=count, high=count, max_unavailable=away)


def tight(m: Model, *reports: ShardReport) -> State:
    """Room for as many as run and no more."""
    size = 10.0 * m.scaling.min
    return picture(m, node("box1", *reports, gpus=gpus("box1", size, used={0: size})))


OLD_4 = tuple(old(f"alpha-{i}") for i in range(1, 5))


def test_a66_the_first_new_one_proves_itself_alone_however_many_may_be_away() -> None:
    state = tight(many(), *OLD_4)
    assert isinstance(step(state, many()), RollReplica)
    gone = (old("alpha-1", state="stopping"), *OLD_4[1:])
    assert step(tight(many(), *gone), many()) is None
    coming = (new(state="loading"), *OLD_4[1:])
    assert step(tight(many(), *coming), many()) is None


def test_a66_once_one_is_ready_so_many_may_be_away_at_a_time() -> None:
    proved = (new("alpha-9"), *OLD_4[1:])
    answer = step(tight(many(), *proved), many())
    assert isinstance(answer, RollReplica)
    assert (answer.replica, answer.spots) == ("alpha-2", ())
    one_away = (new("alpha-9"), old("alpha-2", state="stopping"), *OLD_4[2:])
    answer = step(tight(many(), *one_away), many())
    assert isinstance(answer, RollReplica)
    assert answer.replica == "alpha-3"
    two_away = (
        new("alpha-9"),
        new("alpha-8", state="loading"),
        old("alpha-3", state="stopping"),
        OLD_4[3],
    )
    assert step(tight(many(), *two_away), many()) is None
    assert step(tight(many(away=1), *one_away), many(away=1)) is None


def test_a66_beside_the_others_they_come_one_at_a_time() -> None:
    """With room a new one is one more than `max` for a while; two would be two too many."""
    coming = (new("alpha-9"), new("alpha-8", state="loading"), *OLD_4[1:])
    m = many()
    state = picture(m, node("box1", *coming, gpus=gpus("box1", 200)))
    assert step(state, m) is None
    assert roll.surplus(state, m, kept(state)) is None


def group(name: str, port: int, **k: Any) -> tuple[ShardReport, ...]:
    """Rank 0 on box2, rank 1 on box1: not in the order of their nodes."""
    return tuple(
        shard(f"{name}/{rank}", gpus=(f"box{2 - rank}-{name[-1]}",), port=port, world_size=2, **k)
        for rank in range(2)
    )


def test_a66_a_group_that_a_pass_ends_while_it_is_on_its_way_out_is_one_that_is_away() -> None:
    """Counted by two names it was two: with `max_unavailable: 2` the roll then took one at a time."""
    wide = replace(changed(), nodes=2)
    m = model("alpha", wide, low=3, high=3, max_unavailable=2)
    groups = (
        group("alpha-0", 18000, state="draining", desired="draining"),
        group("alpha-1", 18001, fingerprint=NEW),
        group("alpha-2", 18002),
    )
    boxes = [
        node(f"box{2 - rank}", *(g[rank] for g in groups), gpus=gpus(f"box{2 - rank}", 10, 10, 10))
        for rank in range(2)
    ]
    state = observe(picture(m, *boxes), DrainBegun("inc-alpha-0", "drift", DRIFT), 1.0)
    found = decide(state, 1e4).actions
    assert [type(a).__name__ for a in found] == ["StopReplica", "Wait", "RollReplica"]
    assert isinstance(found[2], RollReplica)
    assert found[2].replica == "alpha-2"
