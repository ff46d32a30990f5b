"""`min` is kept whoever asks for room (A64), and nobody waits for ever for what does not end (F67)."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from llmgw.core.reconcile.decide import decide
from llmgw.core.reconcile.observe import observe
from llmgw.core.types.plan import DrainReplica, NapReplica
from llmgw.core.types.routes import Demand
from llmgw.core.types.sleep import Asleep
from llmgw.core.types.state import (
    Demanded,
    DozeBegun,
    DrainBegun,
    NodeRegistered,
    Published,
    SessionLost,
    State,
    Tick,
)
from tests.core.crowded import LATER, C, box, drains, fleet, said, sized, up, used, waits
from tests.core.test_asleep import ALPHA, NEVER, SCALE, T, fold
from tests.core.test_asleep import up as sleepy
from tests.core.world import GIB, catalog, gpus, model, node, profile, running, shard


@pytest.mark.parametrize("second", ["loading", "unhealthy", "asleep"])
def test_a64_what_serves_for_min_stays_while_the_other_does_not(second: str) -> None:
    """It may never come up: then nobody would be left, and nobody has asked for that."""
    cat = catalog(sized("a", 10, min=1, max=2), C)
    rest = Asleep(verified=True, rest_bytes=10 * GIB) if second == "asleep" else None
    other = up("a-2", 10, port=18001, state=second, sleep=1, asleep=rest)
    state = used(fleet(cat, box(up("a-1", 10), other)), LATER, a_1=900.0, a_2=1.0)
    state = said(state, LATER + 1, waiting={"c": 1})
    assert "a-1" not in drains(decide(state, LATER + 1))


def test_a64_below_its_min_nothing_of_a_model_goes() -> None:
    cat = catalog(sized("a", 20, min=1, max=2), C)
    rest = Asleep(verified=True, rest_bytes=20 * GIB)
    state = fleet(cat, box(up("a-1", 20, state="asleep", sleep=1, asleep=rest)))
    plan = decide(said(state, LATER + 1, waiting={"c": 1}), LATER + 1)
    assert drains(plan) == {}


def test_f61_what_counts_as_lost_does_not_stand_for_min() -> None:
    cat = catalog(sized("a", 20, min=1, max=2), C)
    cat = replace(cat, models={k: replace(m, lost_after_s=5.0) for k, m in cat.models.items()})
    state = fleet(cat, box(up("a-1", 20)), box(up("a-2", 20, "box2-0"), name="box2"))
    state = used(state, LATER, a_1=900.0, a_2=1.0)
    state = observe(state, SessionLost("box2"), LATER)
    state = observe(said(state, LATER + 9, waiting={"c": 1}), Tick(), LATER + 9)
    assert state.lost == {"inc-a-2"}
    assert drains(decide(state, LATER + 9)) == {}


def test_f67_nobody_waits_for_ever_for_what_does_not_end() -> None:
    """Only an operator frees what it holds: an idle one goes instead, and where there is none it is waited for."""
    cat = catalog(sized("a", 24), sized("b", 24), sized("c", 24))
    said_so = "stuck: pids 77 are still there 10 s after SIGKILL"
    there = up("a-1", 24, desired="stopped", state="stopping", error=said_so)
    state = fleet(cat, box(there, up("b-1", 24, "box1-1", 18001), cards=2))
    state = observe(state, DrainBegun("inc-a-1", "idle", "why"), LATER - 1)
    state = said(used(state, LATER, b_1=500.0), LATER + 60, waiting={"c": 1})
    assert set(drains(decide(state, LATER + 60))) == {"b-1"}
    alone = observe(fleet(cat, box(there)), DrainBegun("inc-a-1", "idle", "why"), LATER - 1)
    wait = waits(decide(said(alone, LATER + 60, waiting={"c": 1}), LATER + 60), "c")
    assert wait.why.endswith("it goes there once a-1 has ended")
    assert not wait.hopeless


def two() -> State:
    """alpha runs twice, once always; beta waits, and the one that was used last by its agent's word is in its way."""
    cat = catalog(
        replace(ALPHA, scaling=replace(SCALE, min=1, max=2)),
        model("beta", profile(gpus=1, gpu_memory_bytes=20 * GIB), scaling=NEVER),
    )
    one = sleepy(last_request_age_s=1.0)
    more = shard("alpha-2/0", gpus=("box1-1",), sleep=1, port=18001, last_request_age_s=90.0)
    there = node("box1", one, more, gpus=gpus("box1", 24, 24, used={0: 10, 1: 10}))
    state = running(cat, there)
    for n in (1, 2):
        state = fold(state, Demanded(Demand(gateway="g", n=n, waiting={"beta": 1})))
    return state


def test_a64_what_falls_asleep_for_another_does_not_count_for_min() -> None:
    """Both are idle for their timeout, the one by when it came up, the other by its last byte: one goes and no more."""
    state = two()
    for step in ("doze", "sleep"):
        plan = decide(state, T)
        (only,) = (a for a in plan.actions if isinstance(a, NapReplica))
        assert (only.replica, only.step) == ("alpha-2", step)
        state = fold(state, DozeBegun("inc-alpha-2", "why"))
        state = fold(state, Published(7, frozenset(), frozenset({"inc-alpha-2"})))
        state = fold(state, Demanded(Demand(gateway="g", n=3, table=7, waiting={"beta": 1})))


def test_a66_what_falls_asleep_for_another_replaces_nothing() -> None:
    """The one by yesterday's profile is all that serves then."""
    state = two()
    drifted = replace(state.nodes["box1"].shards[0].report, fingerprint="yesterday")
    rest = tuple(s.report for s in state.nodes["box1"].shards[1:])
    state = fold(
        state, NodeRegistered(replace(state.nodes["box1"].report, shards=(drifted, *rest)))
    )
    plan = decide(state, T)
    assert [a.replica for a in plan.actions if isinstance(a, NapReplica)] == ["alpha-2"]
    assert not [a for a in plan.actions if isinstance(a, DrainReplica)]
