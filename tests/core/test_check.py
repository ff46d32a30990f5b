"""The invariants of control's picture: each one broken on purpose is found and named, a sound picture has none."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from llmgw.core.adopt.survey import Survey, survey
from llmgw.core.check import plan_violations, violations
from llmgw.core.reconcile.decide import decide
from llmgw.core.types.messages import SHARD_STATES, Capacity, Foreign, Resources, ShardReport
from llmgw.core.types.plan import (
    Action,
    DrainReplica,
    Plan,
    RollReplica,
    StartReplica,
    StopReplica,
    Wait,
)
from llmgw.core.types.state import PLACED, Refused, Shard, State
from tests.core.world import GIB, at, catalog, model, node, profile, running, shard

CAT = catalog(
    model("alpha", profile(gpus=1, gpu_memory_bytes=10 * GIB), low=2, high=2),
    model("deep", profile(nodes=2), low=1),
)
ON = ("box1-0",)


def placed(state: State, report: ShardReport) -> State:
    """`report` placed on box1, though it has no room there: `place` would never."""
    box = state.nodes["box1"]
    one = Shard(node="box1", report=replace(report, state="pending"), origin=PLACED, known=True)
    return at(state, nodes=state.nodes | {"box1": replace(box, shards=(*box.shards, one))})


def broken(state: State, **k: Any) -> list[str]:
    return violations(state, replace(survey(state), **k))


def new(**k: Any) -> ShardReport:
    """What is placed in these tests: small, on a port of its own."""
    small = Resources(gpu_memory_bytes=GIB, host_memory_bytes=GIB, cpu_cores=1.0, power_w=100.0)
    return replace(shard("alpha-9/0", gpus=ON, port=18009, resources=small), **k)


BOX = running(CAT, node("box1", shard("alpha-1/0", gpus=ON)))


# --- a sound picture -------------------------------------------------------------------------


SHARDS = st.lists(
    st.builds(
        lambda n, rank, state, port: shard(
            f"{n}/{rank}", state=state, port=port, gpus=ON, world_size=2
        ),
        st.sampled_from(["alpha-1", "alpha-2", "deep-1", "gone-1"]),
        st.integers(0, 2),
        st.sampled_from(SHARD_STATES),
        st.integers(18000, 18002),
    ),
    max_size=6,
)


@given(SHARDS, SHARDS)
def test_whatever_agents_report_is_no_violation(
    one: list[ShardReport], two: list[ShardReport]
) -> None:
    """Strays, second shards, clashes on a port or a GPU are verdicts; every shard has exactly one."""
    state = running(CAT, node("box1", *one), node("box2", *two))
    assert violations(state, survey(state)) == []


def test_what_fits_may_be_placed_beside_what_runs() -> None:
    state = placed(BOX, new())
    assert violations(state, survey(state)) == []


def test_what_fills_a_node_to_the_last_byte_and_watt_is_no_violation() -> None:
    rest = Resources(
        gpu_memory_bytes=14 * GIB, host_memory_bytes=64 * GIB, cpu_cores=16.0, power_w=2000.0
    )
    state = placed(BOX, new(resources=rest))
    assert violations(state, survey(state)) == []


def test_a_whole_gpu_given_out_once_is_no_violation() -> None:
    state = placed(running(CAT, node("box1")), new(resources=Resources()))
    assert violations(state, survey(state)) == []


def test_a_refused_gpu_that_two_share_is_not_one_held_whole() -> None:
    state = at(placed(BOX, new()), refused=(Refused("box1", "gpu box1-0", 60.0, "no"),))
    assert violations(state, survey(state)) == []


def test_strangers_may_take_what_they_like() -> None:
    box = BOX.nodes["box1"]
    stranger = Foreign(pid=1, gpu="box1-0", memory_bytes=99 * GIB, port=18009)
    box = replace(box, report=replace(box.report, foreign=(stranger,)))
    state = placed(at(BOX, nodes={"box1": box}), new())
    assert violations(state, survey(state)) == []


# --- one bucket each -------------------------------------------------------------------------


def test_a_shard_without_a_verdict_is_found() -> None:
    assert broken(BOX, verdicts=()) == ["inc-alpha-1/0 on box1: 1 shards, 0 verdicts"]


def test_a_shard_with_two_verdicts_is_found() -> None:
    (only,) = survey(BOX).verdicts
    assert broken(BOX, verdicts=(only, only)) == ["inc-alpha-1/0 on box1: 1 shards, 2 verdicts"]


def test_a_verdict_on_nothing_is_found() -> None:
    nobody = running(CAT, node("box1"))
    assert broken(nobody, verdicts=survey(BOX).verdicts) == [
        "inc-alpha-1/0 on box1: 0 shards, 1 verdicts"
    ]


def test_a_verdict_outside_the_closed_list_is_found() -> None:
    (only,) = survey(BOX).verdicts
    assert broken(BOX, verdicts=(replace(only, verdict="maybe"),)) == [
        "alpha-1/0 on box1: maybe is no verdict"
    ]


# --- one shard a rank ------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("ranks", "have", "said"),
    [
        ((0, 0), 2, "alpha-1 counts ranks 0, 0, 2 wanted"),
        ((0, 1), 3, "alpha-1 counts ranks 0, 1, 2 wanted"),
        ((0, 1), 2, ""),
        ((1,), 1, ""),
    ],
)
def test_a27_no_rank_counts_twice_and_none_beyond_what_is_wanted(
    ranks: tuple[int, ...], have: int, said: str
) -> None:
    (r,) = survey(BOX).replicas
    (member,) = r.members
    members = tuple(replace(member, report=replace(member.report, rank=n)) for n in ranks)
    row = replace(r, members=members, have=have, want=2)
    assert broken(BOX, replicas=(row,)) == ([said] if said else [])


# --- nothing twice ---------------------------------------------------------------------------


def test_a_port_given_out_twice_is_found() -> None:
    state = placed(BOX, new(port=18000))
    assert broken(state) == ["port 18000 of box1 is given out twice"]
    state = placed(BOX, new(ports={"group": 18000}))
    assert broken(state) == ["port 18000 of box1 is given out twice"]


def test_a_whole_gpu_given_out_again_is_found() -> None:
    whole = running(CAT, node("box1", shard("alpha-1/0", gpus=ON, resources=Resources())))
    assert broken(placed(whole, new())) == [
        "GPU box1-0 of box1 is held whole and shared: alpha-1/0, alpha-9/0"
    ]


def test_memory_given_out_twice_is_found() -> None:
    much = Resources(gpu_memory_bytes=14 * GIB + 1)
    (said,) = broken(placed(BOX, new(resources=much)))
    assert said == (
        "GPU box1-0 of box1 is given out beyond its memory, "
        f"{24 * GIB + 1} of {24 * GIB} bytes: alpha-1/0, alpha-9/0"
    )


def test_a_gpu_that_is_gone_from_the_report_is_no_double_booking() -> None:
    box = BOX.nodes["box1"]
    for devices in ((), None):
        lost = replace(box, report=replace(box.report, gpus=devices))
        state = placed(at(BOX, nodes={"box1": lost}), new(resources=Resources(gpu_memory_bytes=1)))
        assert broken(state) == []


@pytest.mark.parametrize(
    ("what", "said"),
    [
        (
            {"host_memory_bytes": 64 * GIB + 1},
            f"box1 has {64 * GIB} bytes of host memory, {64 * GIB + 1} are given out",
        ),
        ({"cpu_cores": 17.0}, "box1 has 16 CPU cores, 17.0 are given out"),
        ({"power_w": 2001.0}, "box1 has 2000 W, 2001.0 are given out"),
    ],
)
def test_a_budget_given_out_twice_is_found(what: dict[str, Any], said: str) -> None:
    need = Resources(gpu_memory_bytes=GIB, **what)
    assert broken(placed(BOX, new(resources=need))) == [said]


def test_a_limit_lowered_since_is_nobodys_fault_who_needs_none_of_it() -> None:
    hungry = shard("alpha-1/0", resources=Resources(gpu_memory_bytes=GIB, power_w=900.0))
    state = running(CAT, node("box1", hungry, capacity=Capacity(power_w=500)))
    assert broken(placed(state, new(resources=Resources(gpu_memory_bytes=GIB)))) == []
    assert broken(placed(state, new())) == ["box1 has 500 W, 1000.0 are given out"]


# --- plans -----------------------------------------------------------------------------------


def named(kind: type[Any], **k: Any) -> Any:
    return kind(model="alpha", profile="main", why="because", **k)


ENDED = {"replica": "alpha-1", "incarnation": "i", "shards": (), "reason": "idle"}
ACTIONS: list[tuple[Action, str]] = [
    (named(StartReplica, spots=()), "StartReplica of alpha while settling: because"),
    (named(StopReplica, **ENDED), "StopReplica of alpha while settling: because"),
    (named(DrainReplica, **ENDED, idle=True), "DrainReplica of alpha while settling: because"),
    (
        named(RollReplica, replica="alpha-1", incarnation="i", shards=(), spots=()),
        "RollReplica of alpha while settling: because",
    ),
]


@pytest.mark.parametrize(("action", "said"), ACTIONS)
def test_a46_while_settling_whatever_starts_stops_drains_or_rolls_is_found(
    action: Action, said: str
) -> None:
    plan = Plan(actions=(action, named(Wait)))
    assert plan_violations(at(BOX, settled_s=None), plan) == [said]
    assert plan_violations(BOX, plan) == []


def test_a46_what_is_decided_while_settling_is_sound() -> None:
    settling = at(BOX, settled_s=None)
    assert plan_violations(settling, decide(settling, 0.0)) == []


def test_a_survey_of_nothing_is_sound() -> None:
    assert violations(State(), Survey((), ())) == []
