"""`llmgw drain NODE[/GPU]`: nothing new there, what is there leaves without a gap where there is room (A62, A65)."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from llmgw.core import cordon
from llmgw.core.capacity import holdings
from llmgw.core.place import NoRoom, Placement, place
from llmgw.core.reconcile.decide import decide
from llmgw.core.reconcile.fresh import Memory, after_settling
from llmgw.core.reconcile.observe import observe
from llmgw.core.types.catalog import Model, Scaling
from llmgw.core.types.messages import NodeReport, Resources, ShardReport
from llmgw.core.types.plan import DrainReplica, NapReplica, Plan, StartReplica, Wait
from llmgw.core.types.sleep import Asleep
from llmgw.core.types.state import (
    Cordoned,
    DrainBegun,
    Failure,
    NodeForgotten,
    Published,
    SessionLost,
    State,
)
from tests.core.world import GIB, at, catalog, demand, gpus, model, node, profile, running, shard

SAID = "since noon by the operator"
NEED: dict[str, Any] = {"gpus": 1, "gpu_memory_bytes": 10 * GIB}
ONE = model("alpha", profile(**NEED), low=1)
TWO = model("alpha", profile(**NEED), low=2, high=2)
LAZY = model("alpha", profile(**NEED), low=0, high=1)


def engine(name: str = "alpha-1", gpu: str = "box1-0", **k: Any) -> ShardReport:
    k.setdefault("port", 18000 + int(name[-1]))
    return shard(f"{name}/0", gpus=(gpu,), **k)


def picture(m: Model, *reports: NodeReport, drained: tuple[str, str] = ("box1", "")) -> State:
    return told(running(catalog(m, start_limit=9), *reports), *drained)


def told(state: State, name: str, gpu: str = "", why: str = SAID) -> State:
    return observe(state, Cordoned(name, gpu, why), 1.0)


def of(state: State, now: float = 1.0) -> Plan:
    return decide(state, now)


def drains(plan: Plan) -> list[str]:
    return [a.why for a in plan.actions if isinstance(a, DrainReplica)]


def starts(plan: Plan) -> list[str]:
    return [a.why for a in plan.actions if isinstance(a, StartReplica)]


def waits(plan: Plan) -> list[str]:
    return [a.why for a in plan.actions if isinstance(a, Wait)]


# --- the word --------------------------------------------------------------------------------


def test_the_word_is_kept_as_it_was_said_first_until_it_is_taken_back() -> None:
    state = told(told(running(catalog(ONE)), "box9"), "box9", why="later")
    assert state.cordoned == {("box9", ""): SAID}
    assert told(state, "box9", why="").cordoned == {}


def test_a47_a_node_that_is_forgotten_takes_its_words_along() -> None:
    state = told(told(running(catalog(ONE), node("box1"), node("box2")), "box1", "box1-0"), "box2")
    assert observe(state, NodeForgotten("box1"), 1.0).cordoned == {("box2", ""): SAID}


def test_it_survives_a_restart_and_the_dry_run_goes_by_it() -> None:
    memory = Memory(cordoned={("box1", ""): SAID})
    state = after_settling(catalog(LAZY), memory, [node("box1", engine())])
    (a,) = decide(state, 0.0).actions
    assert isinstance(a, DrainReplica)
    assert (a.reason, a.disturbs) == ("cordon", True)


# --- nothing new -----------------------------------------------------------------------------


def refusal(state: State, m: Model) -> str:
    answer = place(state, holdings(state), m)
    assert isinstance(answer, NoRoom), answer
    return answer.why


def test_a62_nothing_is_placed_on_a_drained_node_or_gpu_and_the_sentence_says_since_when() -> None:
    assert refusal(picture(ONE, node("box1")), ONE) == f"box1: is drained {SAID}"
    one = picture(ONE, node("box1"), drained=("box1", "box1-0"))
    assert refusal(one, ONE) == f"box1: GPU 0 is drained {SAID}"
    two = picture(ONE, node("box1", gpus=gpus("box1", 24, 24)), drained=("box1", "box1-0"))
    answer = place(two, holdings(two), ONE)
    assert isinstance(answer, Placement)
    assert answer.spots[0].gpus == ("box1-1",)


# --- who leaves ------------------------------------------------------------------------------


def test_what_runs_beside_a_drained_gpu_stays() -> None:
    reports = engine(), engine("alpha-2", "box1-1")
    state = picture(
        TWO, node("box1", *reports, gpus=gpus("box1", 24, 24, 24)), drained=("box1", "box1-0")
    )
    plan = of(state)
    assert starts(plan) == [
        f"moves, GPU 0 of box1 is drained {SAID}; fits box1 GPU 1, 4.0 GiB left there"
    ]
    assert drains(plan) == []


def test_a_gpu_that_its_node_does_not_name_is_called_by_its_uuid() -> None:
    state = picture(LAZY, node("box1", engine(), gpus=None), drained=("box1", "box1-0"))
    assert drains(of(state))[0].startswith(f"GPU box1-0 of box1 is drained {SAID}; ")


def test_a63_what_is_on_demand_is_drained_and_woken_where_it_may_be() -> None:
    state = picture(LAZY, node("box1", engine()), node("box2"))
    how = "it is on demand, the next request wakes it where there is room"
    assert drains(of(state)) == [f"box1 is drained {SAID}; {how}"]
    assert starts(of(state)) == []


def test_a65_what_min_wants_goes_once_another_is_ready() -> None:
    """The whole move, pass by pass, and no moment without a replica that serves."""
    old, other = node("box1", engine()), node("box2")
    state = picture(ONE, old, other)
    plan = of(state)
    assert starts(plan) == [f"moves, box1 is drained {SAID}; fits box2 GPU 0, 14.0 GiB left there"]
    assert drains(plan) == []
    coming = picture(ONE, old, node("box2", engine("alpha-9", "box2-0", state="loading")))
    plan = of(coming)
    assert (starts(plan), drains(plan)) == ([], [])
    assert waits(plan) == ["alpha-1 stays until another is ready: alpha-9 is starting"]
    up = picture(ONE, old, node("box2", engine("alpha-9", "box2-0")))
    plan = of(up)
    assert drains(plan) == [f"box1 is drained {SAID}; 1 other is ready"]
    (a,) = plan.actions
    assert isinstance(a, DrainReplica)
    assert a.incarnation == "inc-alpha-1"
    assert plan.blocked is None


def test_a38_the_one_that_moves_is_no_copy_too_many() -> None:
    """With `max` 1 the new one would lose against the routed one and be stopped, the move begin anew for ever."""
    state = picture(
        ONE, node("box1", engine()), node("box2", engine("alpha-9", "box2-0", state="loading"))
    )
    state = observe(state, Published(7, frozenset({"inc-alpha-1"}), frozenset()), 2.0)
    assert {v.verdict for v in of(state).verdicts} == {"keep"}


def test_of_several_as_many_go_as_others_are_ready() -> None:
    m = model("alpha", profile(**NEED), low=2, high=2)
    here = node("box1", engine(), engine("alpha-2"), gpus=gpus("box1", 48))
    plan = of(picture(m, here, node("box2", gpus=gpus("box2", 48))))
    assert len(starts(plan)) == 2
    one = picture(
        m,
        here,
        node(
            "box2",
            engine("alpha-8", "box2-0"),
            engine("alpha-9", "box2-0", state="loading"),
            gpus=gpus("box2", 48),
        ),
    )
    plan = of(one)
    assert drains(plan) == [f"box1 is drained {SAID}; 1 other is ready"]
    two = picture(
        m,
        here,
        node(
            "box2", engine("alpha-8", "box2-0"), engine("alpha-9", "box2-0"), gpus=gpus("box2", 48)
        ),
    )
    assert drains(of(two)) == [f"box1 is drained {SAID}; 2 others are ready"] * 2


def test_the_least_busy_goes_first() -> None:
    here = node("box1", engine(), engine("alpha-2"), gpus=gpus("box1", 48))
    state = picture(
        TWO,
        here,
        node("box2", engine("alpha-8", "box2-0"), engine("alpha-9", "box2-0", state="loading")),
    )
    state = observe(state, demand(in_flight={"alpha-1": 2}), 1.0)
    (a,) = (a for a in of(state).actions if isinstance(a, DrainReplica))
    assert a.replica == "alpha-2"


def test_where_nothing_else_fits_it_goes_all_the_same_and_the_model_waits_with_the_reason() -> None:
    state = picture(ONE, node("box1", engine()), node("box2", gpus=gpus("box2", 8)))
    short = "GPU 0 has 8.0 of 8.0 GiB free, 10.0 needed"
    assert drains(of(state)) == [
        f"box1 is drained {SAID}; nothing else fits: box1: is drained {SAID}; box2: {short}"
    ]
    gone = picture(ONE, node("box1"), node("box2", gpus=gpus("box2", 8)))
    (why,) = waits(of(gone))
    assert why.startswith(f"min 1, 0 running; box1: is drained {SAID}; box2: {short}")


def test_a64_idle_ones_on_demand_make_way_and_until_then_it_stays() -> None:
    """No moment without the pinned one for the sake of one that nobody uses."""
    lazy = model("lazy", profile(gpus=1, gpu_memory_bytes=20 * GIB))
    idle = shard(
        "lazy-1/0",
        "lazy",
        gpus=("box2-0",),
        port=18050,
        resources=Resources(gpu_memory_bytes=20 * GIB),
    )
    cat = catalog(ONE, lazy)
    state = told(running(cat, node("box1", engine()), node("box2", idle)), "box1")
    plan = of(state, 500.0)
    assert [(a.replica, a.reason) for a in plan.actions if isinstance(a, DrainReplica)] == [
        ("lazy-1", "evict")
    ]
    (why,) = waits(plan)
    assert why.startswith(
        f"moves, box1 is drained {SAID}; box1: is drained {SAID}; box2: GPU 0 has"
    )
    begun = observe(state, DrainBegun("inc-lazy-1", "evict", "x"), 501.0)
    plan = of(begun, 501.0)
    assert drains(plan) == []
    assert "it goes there once lazy-1 has ended" in waits(plan)[0]


def test_where_one_more_fits_one_goes_at_once_and_the_other_once_that_is_ready() -> None:
    here = node("box1", engine(), engine("alpha-2"), gpus=gpus("box1", 48))
    plan = of(picture(TWO, here, node("box2", gpus=gpus("box2", 12))))
    assert len(starts(plan)) == 1
    assert len(drains(plan)) == 1


def test_what_is_on_its_way_up_there_goes_at_once() -> None:
    state = picture(ONE, node("box1", engine(state="loading")), node("box2"))
    assert drains(of(state)) == [f"box1 is drained {SAID}; it is starting, nobody is on it yet"]
    assert len(starts(of(state))) == 1


def test_a67_it_stays_while_its_replacement_fails() -> None:
    """The only one that serves is not ended for one that does not come up; `llmgw stop` is there for that."""
    failure = Failure("inc-x", "main", 0.0, "exited with code 1", gave_up=True)
    state = at(picture(ONE, node("box1", engine()), node("box2")), failures={"alpha": (failure,)})
    plan = of(state)
    assert (starts(plan), drains(plan)) == ([], [])
    assert waits(plan) == [
        "alpha-1 stays until another is ready: its replacement failed (exited with code 1)"
    ]
    twice = tuple(Failure(f"inc-{i}", "main", 0.0, "exited with code 1") for i in range(2))
    (why,) = waits(of(at(state, failures={"alpha": twice})))
    assert "its replacement failed (backing off" in why


def test_a62_it_stays_while_other_starts_come_first() -> None:
    busy = shard("beta-1/0", "beta", state="loading", port=18050, gpus=("box2-0",))
    cat = catalog(ONE, model("beta", profile(), low=1))
    state = told(running(cat, node("box1", engine()), node("box2", busy)), "box1")
    plan = of(state)
    assert (starts(plan), drains(plan)) == ([], [])
    assert waits(plan) == [
        f"moves, box1 is drained {SAID}; box2: beta-1/0 is still starting there, 1 start at a time"
    ]


def test_f61_what_is_on_a_silent_node_is_left_alone_until_that_is_back() -> None:
    state = picture(ONE, node("box1", engine()), node("box2"))
    silent = observe(state, SessionLost("box1"), 2.0)
    assert of(silent).actions == ()


def test_one_that_is_not_heard_takes_over_from_nobody() -> None:
    state = picture(
        TWO,
        node("box1", engine()),
        node("box2", engine("alpha-9", "box2-0")),
        node("box3", gpus=()),
    )
    state = observe(state, SessionLost("box2"), 2.0)
    plan = of(state)  # for the other of the two nothing fits, and this one is the last that serves
    assert drains(plan) == []
    assert waits(plan)[-1] == "alpha-1 stays until another is ready: alpha-9 is not heard"
    one = picture(ONE, node("box1", engine()), node("box2", engine("alpha-9", "box2-0")))
    one = at(
        observe(one, SessionLost("box2"), 2.0),
        catalog=catalog(replace(ONE, scaling=replace(ONE.scaling, max=2))),
    )
    assert waits(of(one)) == ["alpha-1 stays until another is ready: alpha-9 is not heard"]


def test_what_ends_already_is_not_drained_again() -> None:
    state = picture(LAZY, node("box1", engine(desired="stopped", state="ready")))
    assert drains(of(state)) == []


def test_a48_what_nobody_claims_leaves_too_also_where_it_is_kept_otherwise() -> None:
    """Nothing of ours is there until `undrain`: a catalog that keeps what it does not know is no exception."""
    gone = shard("gone-1/0", gpus=("box1-0",))
    state = told(running(catalog(keep_unknown=True), node("box1", gone)), "box1", "box1-0")
    assert drains(of(state)) == [f"GPU 0 of box1 is drained {SAID}"]
    assert of(state).blocked is None


def test_a49_the_guard_does_not_count_what_an_operator_asked_for() -> None:
    models = [model(f"m{i}", profile(**NEED)) for i in range(4)]
    shards = [shard(f"m{i}-1/0", f"m{i}", gpus=("box1-0",), port=18000 + i) for i in range(4)]
    state = running(catalog(*models), node("box1", *shards, gpus=gpus("box1", 48)))
    plan = of(told(state, "box1"))
    assert len(drains(plan)) == 4
    assert plan.blocked is None


def test_no_roll_begins_while_a_model_moves() -> None:
    m = model("alpha", profile(fingerprints={"default": "1:bbbb"}, **NEED), low=1)
    plan = of(picture(m, node("box1", engine(), gpus=gpus("box1", 48)), node("box2")))
    assert [type(a) for a in plan.actions] == [StartReplica]


@pytest.mark.parametrize(("gpu", "count"), [("", 2), ("box1-0", 1), ("box1-9", 0)])
def test_what_is_left_there(gpu: str, count: int) -> None:
    ended = engine("alpha-3", state="failed")
    state = running(catalog(TWO), node("box1", engine(), engine("alpha-2", "box1-1"), ended))
    assert len(cordon.left(state.nodes["box1"], gpu)) == count


def test_a38_one_that_is_missing_anyhow_is_not_started_twice_over_by_a_move() -> None:
    """`min` is 2 and one has gone: its successor and the one that moves are two starts, not three."""
    two = [node(f"box{n}") for n in (2, 3, 4)]
    plan = of(picture(TWO, node("box1", engine()), *two))
    assert [why.split(";")[0] for why in starts(plan)] == [
        "min 2, 1 running",
        f"moves, box1 is drained {SAID}",
    ]
    assert drains(plan) == []


def test_a65_what_moves_waits_for_the_one_that_was_missing_where_there_is_room_for_one_only() -> (
    None
):
    plan = of(picture(TWO, node("box1", engine()), node("box2", gpus=gpus("box2", 12))))
    assert [why.split(";")[0] for why in starts(plan)] == ["min 2, 1 running"]
    assert (drains(plan), waits(plan)) == ([], [])


def test_a65_where_nothing_fits_anywhere_it_goes_though_another_is_missing() -> None:
    plan = of(picture(TWO, node("box1", engine())))
    assert starts(plan) == []
    assert [why.rpartition("; ")[2][:18] for why in drains(plan)] == ["nothing else fits:"]


def test_f64_what_hangs_on_a_drained_node_is_drained_once() -> None:
    state = picture(TWO, node("box1", engine(state="unhealthy"), engine("alpha-2")), node("box2"))
    plan = of(state, 1000.0)
    gone = [a.incarnation for a in plan.actions if isinstance(a, DrainReplica)]
    assert gone.count("inc-alpha-1") == 1


def test_a63_a_sleeper_elsewhere_is_woken_for_the_one_that_moves() -> None:
    naps = Asleep(rest_bytes=2 * GIB, verified=True)
    spare = engine("alpha-2", "box2-0", state="asleep", sleep=1, asleep=naps)
    lazy = model("alpha", profile(sleep=1, **NEED), low=1, high=2)
    plan = of(picture(lazy, node("box1", engine()), node("box2", spare)))
    (a,) = plan.actions
    assert isinstance(a, NapReplica)
    assert (a.step, a.replica) == ("wake", "alpha-2")
    assert a.why == f"moves, box1 is drained {SAID}; it sleeps on box2"
    falling = replace(spare, asleep=Asleep())
    plan = of(picture(lazy, node("box1", engine()), node("box2", falling)))
    assert waits(plan) == [f"moves, box1 is drained {SAID}; alpha-2 is falling asleep on box2"]
    assert drains(plan) == []


def test_a65_just_after_a_start_of_control_it_waits_until_it_is_known_who_is_idle() -> None:
    """A drain in the first minute ended what `min` wants, though an idle one would have made way a moment later."""
    lazy = model("lazy", profile(**NEED), scaling=Scaling(min=0, min_up_s=0.0, idle_timeout_s=1e6))
    need = Resources(gpu_memory_bytes=20 * GIB)
    there = shard("lazy-1/0", gpus=("box2-0",), port=18009, resources=need)
    state = running(catalog(ONE, lazy), node("box1", engine()), node("box2", there))
    state = told(state, "box1")
    assert drains(of(state, 20.0)) == []
    (why,) = waits(of(state, 20.0))
    assert "lazy-1 is busy (control started 20 s ago, a gateway may not have said yet" in why
    (a,) = [a for a in of(state, 60.0).actions if isinstance(a, DrainReplica)]
    assert (a.replica, a.reason) == ("lazy-1", "evict")
