"""A model file that is not there: refused, told at once, and no crash loop (A67)."""

from __future__ import annotations

from msgspec.structs import replace

from llmgw.core import evict
from llmgw.core.reconcile.decide import decide
from llmgw.core.reconcile.observe import observe
from llmgw.core.types.catalog import Scaling
from llmgw.core.types.messages import Capacity, Refusal, Resources
from llmgw.core.types.plan import Wait
from llmgw.core.types.state import (
    CatalogLoaded,
    Cleared,
    NodeForgotten,
    NodeRegistered,
    ShardsChanged,
    State,
    Tick,
)
from tests.core.world import (
    actions,
    catalog,
    demand,
    model,
    node,
    place_at,
    profile,
    running,
    shard,
)

ABSENT = "model file /m/a.gguf does not exist on box1; put it there"


def refused_for_a_file(state: State, now: float) -> State:
    no = Refusal(seq=1, shard="alpha-9/0", incarnation="new", reason="no_weights", why=ABSENT)
    return observe(state, ShardsChanged("box1", refused=(no,)), now)


def asked(state: State, now: float) -> State:
    return observe(state, demand(waiting={"alpha": 1}, n=int(now)), now)


def test_a67_an_absent_file_is_told_at_once_and_asked_for_again_without_an_end() -> None:
    """No crash loop: nothing ran, nothing is given up, and once it is there the model starts."""
    state = running(catalog(model("alpha")), node("box1"))
    for n in range(20):
        now = 2.0 + n * 70.0
        state = asked(state, now)
        assert actions(decide(state, now)) == ["start alpha"], "no back-off"
        state = refused_for_a_file(place_at(state, "box1"), now)
        plan = decide(state, now)
        (wait,) = plan.actions
        assert isinstance(wait, Wait)
        assert evict.unplaceable(plan) == {"alpha": wait.why}
        assert wait.why == (
            f"1 waiting, 0 running; box1: {ABSENT}; looked for again within a minute, "
            "at once after llmgw clear alpha"
        )
        state = observe(state, Tick(), now + 61.0)
    assert len(state.failures["alpha"]) == 1


def test_clear_has_it_looked_for_at_once() -> None:
    state = asked(running(catalog(model("alpha")), node("box1")), 2.0)
    state = refused_for_a_file(place_at(state, "box1"), 2.0)
    assert actions(decide(state, 3.0)) == ["wait alpha"]
    other = observe(state, Cleared("nobody"), 3.0)
    assert actions(decide(other, 3.0)) == ["wait alpha"]
    state = observe(state, Cleared("alpha"), 3.0)
    assert actions(decide(state, 3.0)) == ["start alpha"]


def test_nobody_makes_room_for_a_model_whose_file_is_absent_until_it_is_there() -> None:
    """Else each request would cost an idle engine, for a start that is refused."""
    cores = profile(cpu_cores=8.0)
    other = replace(cores, fingerprints={"default": "1:o"})
    patient = Scaling(idle_timeout_s=1e6, min_up_s=0.0)
    cat = catalog(model("alpha", cores), model("other", other, scaling=patient))
    small = replace(node("box1"), capacity=Capacity(cpu_cores=8.0))
    need = Resources(cpu_cores=8.0)
    state = refused_for_a_file(place_at(asked(running(cat, small), 2.0), "box1"), 3.0)
    there = shard("other-1/0", model="other", fingerprint="1:o", resources=need)
    state = observe(state, NodeRegistered(replace(small, shards=(there,))), 4.0)
    state = asked(observe(state, Tick(), 1000.0), 1000.0)
    (wait,) = decide(state, 1000.0).actions
    assert isinstance(wait, Wait)
    assert "nobody goes for it: it was refused 997 s ago (model file /m/a.gguf" in wait.why
    cleared = observe(state, Cleared("alpha"), 1000.0)
    assert actions(decide(cleared, 1000.0)) == ["drain other", "wait alpha"]
    up = shard("alpha-1/0", model="alpha", port=18001, state="loading")
    found = observe(state, ShardsChanged("box1", (up,)), 1000.0)
    assert found.failures == {}, "its agent took it: the file is there"


def test_a_refusal_for_a_file_of_a_model_that_was_removed_counts_nowhere() -> None:
    state = place_at(running(catalog(model("alpha")), node("box1")), "box1")
    state = observe(state, CatalogLoaded(catalog(model("other"))), 1.0)
    assert refused_for_a_file(state, 2.0).failures == {}


def test_a_node_that_lacks_the_file_is_nobody_s_reason_to_refuse_what_another_one_has() -> None:
    """Else the model never started there: each minute it was refused again, and nobody made room where its file is."""
    cores = profile(cpu_cores=8.0)
    other = replace(cores, fingerprints={"default": "1:o"})
    patient = Scaling(idle_timeout_s=1e6, min_up_s=0.0)
    cat = catalog(model("alpha", cores), model("other", other, scaling=patient))
    lacks = replace(node("box1"), capacity=Capacity(cpu_cores=8.0))
    need = Resources(cpu_cores=8.0)
    there = shard("other-1/0", model="other", fingerprint="1:o", resources=need)
    full = replace(node("box2"), capacity=Capacity(cpu_cores=8.0), shards=(there,))
    state = asked(observe(running(cat, lacks, full), Tick(), 1000.0), 1000.0)
    assert actions(decide(state, 1000.0)) == ["start alpha"], "where nobody need go"
    state = refused_for_a_file(place_at(state, "box1"), 1000.0)
    plan = decide(state, 1000.0)
    assert actions(plan) == ["drain other", "wait alpha"]
    assert evict.unplaceable(plan) == {}
    state = observe(state, NodeForgotten("box1"), 1001.0)
    assert actions(decide(state, 1001.0)) == ["drain other", "wait alpha"]


def test_nobody_goes_where_the_file_is_absent_though_another_node_has_it() -> None:
    """What runs of the model elsewhere tells its own node's files, no other's."""
    cores = profile(cpu_cores=8.0)
    other = replace(cores, fingerprints={"default": "1:o"})
    patient = Scaling(idle_timeout_s=1e6, min_up_s=0.0)
    cat = catalog(
        model("alpha", cores, scaling=Scaling(min=2, max=2)),
        model("other", other, scaling=patient),
    )
    need = Resources(cpu_cores=8.0)
    state = running(
        cat,
        replace(node("box1"), capacity=Capacity(cpu_cores=8.0)),
        replace(node("box2"), capacity=Capacity(cpu_cores=8.0)),
    )
    state = refused_for_a_file(place_at(state, "box1"), 3.0)
    up = shard("alpha-1/0", model="alpha", port=18001, state="loading", resources=need)
    state = observe(state, ShardsChanged("box2", (up,)), 4.0)
    there = shard("other-1/0", model="other", fingerprint="1:o", resources=need)
    state = observe(state, ShardsChanged("box1", (there,)), 5.0)
    state = observe(state, Tick(), 1000.0)
    (wait,) = decide(state, 1000.0).actions
    assert isinstance(wait, Wait)
    assert "nobody goes for it: it was refused" in wait.why
