"""`lost_after`: what is on a silent node is replaced elsewhere, and A38 says who stays when it is back (F61, F62)."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from llmgw.core import lost, route
from llmgw.core.adopt.survey import survey
from llmgw.core.reconcile.decide import decide
from llmgw.core.reconcile.fresh import Memory, started
from llmgw.core.reconcile.observe import observe
from llmgw.core.types.catalog import Model
from llmgw.core.types.messages import ShardReport
from llmgw.core.types.plan import DrainReplica, StartReplica, StopReplica
from llmgw.core.types.routes import Demand
from llmgw.core.types.state import (
    Demanded,
    DrainBegun,
    NodeRegistered,
    Published,
    SessionLost,
    State,
    Tick,
)
from tests.core.world import GIB, catalog, demand, half, model, node, profile, running, shard

NEED: dict[str, Any] = {"gpus": 1, "gpu_memory_bytes": 10 * GIB}


def lasting(after_s: float | None = 60.0, low: int = 1) -> Model:
    return model("alpha", profile(**NEED), low=low, lost_after_s=after_s)


def engine(name: str = "alpha-1", where: str = "box1", **k: Any) -> ShardReport:
    return shard(f"{name}/0", gpus=(f"{where}-0",), endpoint=f"http://{where}:18000", **k)


def silent(m: Model, for_s: float) -> State:
    """box1 runs alpha and fell silent at 10; a tick so long after. box2 is empty."""
    state = running(catalog(m), node("box1", engine()), node("box2"))
    state = observe(state, SessionLost("box1"), 10.0)
    return observe(state, Tick(), 10.0 + for_s)


def test_f61_nothing_is_started_elsewhere_unless_the_model_says_when() -> None:
    assert decide(silent(lasting(None), 1e6), 1e6).actions == ()
    assert decide(silent(lasting(60.0), 59.0), 69.0).actions == ()


def test_f61_after_lost_after_it_is_replaced_where_there_is_room() -> None:
    state = silent(lasting(60.0), 60.0)
    assert state.lost == {"inc-alpha-1"}
    (a,) = decide(state, 70.0).actions
    assert isinstance(a, StartReplica)
    assert a.spots[0].node == "box2"


def test_on_demand_it_is_woken_elsewhere_by_a_request_and_not_before() -> None:
    state = silent(lasting(60.0, low=0), 60.0)
    assert decide(state, 70.0).actions == ()
    asked = observe(state, demand(waiting={"alpha": 1}), 71.0)
    assert [type(a) for a in decide(asked, 71.0).actions] == [StartReplica]


@pytest.mark.parametrize(("for_s", "said"), [(59.0, "ready"), (60.0, "draining")])
def test_nothing_new_is_sent_to_what_counts_as_lost(for_s: float, said: str) -> None:
    """Else nobody would wait for its replacement. What it may still stream is not cut."""
    state = silent(lasting(60.0), for_s)
    table = route.table(state, survey(state), 1)
    (r,) = table.models["alpha"].replicas
    assert r.state == said
    assert table.models["alpha"].status == ("loaded" if said == "ready" else "unloaded")


def test_it_is_not_lost_any_more_once_its_node_is_back() -> None:
    state = observe(silent(lasting(60.0), 60.0), NodeRegistered(node("box1", engine())), 80.0)
    assert observe(state, Tick(), 80.0).lost == frozenset()


def test_a46_nothing_counts_as_lost_while_control_settles() -> None:
    memory = Memory(nodes=((node("box1", engine()), True), (node("box2"), False)))
    state = started(
        catalog(lasting(5.0)), memory, now=0.0, settle_timeout_s=60.0, keep_unknown=False
    )
    assert observe(state, Tick(), 59.0).lost == frozenset()
    state = observe(state, NodeRegistered(node("box2")), 59.0)
    settled = observe(state, Tick(), 60.0)
    assert settled.lost == frozenset()  # how long it was silent before, this control has not seen
    assert observe(settled, Tick(), 65.0).lost == {"inc-alpha-1"}
    assert lost.due(state, state.nodes["box1"], "alpha") is None


def test_f63_when_nobody_is_heard_it_is_us_and_the_first_to_return_is_not_given_everything() -> (
    None
):
    state = running(catalog(lasting(60.0)), node("box1", engine()), node("box2"))
    for name in ("box1", "box2"):
        state = observe(state, SessionLost(name), 10.0)
    state = observe(state, Tick(), 300.0)
    assert state.lost == frozenset()
    state = observe(observe(state, NodeRegistered(node("box2")), 301.0), Tick(), 301.0)
    assert decide(state, 301.0).actions == ()
    assert observe(state, Tick(), 359.0).lost == frozenset()
    assert observe(state, Tick(), 360.0).lost == {"inc-alpha-1"}


# --- it comes back (F62) ---------------------------------------------------------------------


def back(replacement: ShardReport, **k: Any) -> State:
    state = observe(silent(lasting(60.0), 60.0), NodeRegistered(node("box2", replacement)), 75.0)
    routed = frozenset({"inc-alpha-1", replacement.incarnation})
    state = observe(state, Published(7, routed, frozenset()), 76.0)
    state = observe(state, NodeRegistered(node("box1", engine(**k))), 80.0)
    return observe(state, Tick(), 80.0)


def drained(state: State) -> list[str]:
    return [a.replica for a in decide(state, 80.0).actions if isinstance(a, DrainReplica)]


def test_f62_both_up_the_longest_running_stays_and_the_other_is_drained() -> None:
    later = engine("alpha-9", "box2", started_at="2026-01-03T00:00:00Z")
    assert drained(back(later)) == ["alpha-9"]


def test_f62_the_one_with_requests_stays() -> None:
    later = engine("alpha-9", "box2", started_at="2026-01-03T00:00:00Z")
    state = observe(back(later), demand(in_flight={"alpha-9": 3}), 80.0)
    assert drained(state) == ["alpha-1"]


def test_f62_one_that_is_not_up_yet_gives_way_and_the_ready_one_is_never_touched() -> None:
    loading = engine("alpha-9", "box2", state="loading", started_at="2026-01-03T00:00:00Z")
    actions = decide(back(loading), 80.0).actions
    assert [(type(a), a.replica) for a in actions if not isinstance(a, StartReplica)] == [
        (StopReplica, "alpha-9")
    ]


def test_a38_no_gap_the_one_that_returns_unready_waits_for_the_other() -> None:
    """A returned engine that does not answer yet ends nothing: the replacement serves on."""
    later = engine("alpha-9", "box2", started_at="2026-01-03T00:00:00Z")
    assert "alpha-9" not in drained(back(later, state="unhealthy"))


# --- groups ----------------------------------------------------------------------------------


def deep(after_s: float | None, **k: Any) -> State:
    m = model(
        "deep", profile(nodes=2, gpus=1, gpu_memory_bytes=20 * GIB), low=1, lost_after_s=after_s
    )
    state = running(
        catalog(m), node("box1", half(0, **k)), node("box2", half(1, **k)), node("box3")
    )
    state = observe(state, SessionLost("box1"), 10.0)
    return observe(state, Tick(), 100.0)


def test_a33_what_is_left_of_a_group_that_lost_a_rank_ends_and_frees_its_room() -> None:
    (a, *others) = decide(deep(60.0), 100.0).actions
    assert isinstance(a, DrainReplica), "who is on it still gets the time to end"
    assert (a.reason, [s.node for s in a.shards]) == ("node_silent", ["box2"])
    assert a.why == "1 of 2 shards; the others are on nodes that count as lost"
    assert not [o for o in others if isinstance(o, StartReplica)]
    assert decide(deep(None), 100.0).actions == ()


def test_a33_what_nobody_was_ever_on_is_stopped_at_once() -> None:
    state = deep(60.0, state="loading")
    (a, *_) = decide(state, 100.0).actions
    assert isinstance(a, StopReplica)
    assert (a.reason, [s.node for s in a.shards]) == ("node_silent", ["box2"])


def test_a65_streams_of_a_group_that_lost_a_rank_are_not_cut() -> None:
    """Silence is no proof of death: what it serves may come by a rank that only control does not hear."""
    state = observe(deep(60.0), DrainBegun("inc-deep-1", "node_silent", "why"), 100.0)
    gone = frozenset({"inc-deep-1"})
    state = observe(state, Published(7, gone, gone), 100.0)
    told = Demand(gateway="g", n=1, table=7, in_flight={"deep-1": 1})
    state = observe(state, Demanded(told), 101.0)
    assert not [a for a in decide(state, 102.0).actions if isinstance(a, StopReplica)]
    state = observe(state, Demanded(replace(told, n=2, in_flight={})), 130.0)
    stop = next(a for a in decide(state, 131.0).actions if isinstance(a, StopReplica))
    assert stop.why == "why; drained, nothing in flight"


# --- words -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("after_s", "said"),
    [
        (None, "lost_after never: none is started elsewhere"),
        (100.0, "counts as lost in 40 s"),
        (60.0, "counts as lost, replaced where there is room"),
    ],
)
def test_status_says_what_becomes_of_it(after_s: float | None, said: str) -> None:
    state = silent(lasting(after_s), 60.0)
    assert lost.said(state, "box1", 70.0) == (
        f"box1 is silent, what it runs is left alone: alpha-1 ({said})"
    )
    assert lost.said(state, "box2", 70.0) == ""


def test_what_no_catalog_knows_is_never_lost() -> None:
    state = running(catalog(), node("box1", engine()))
    assert lost.due(state, state.nodes["box1"], "alpha") is None
