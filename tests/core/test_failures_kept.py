"""Which failures of a model are kept: none that says something is pushed out by what says less (A67)."""

from __future__ import annotations

from msgspec.structs import replace

from llmgw.core.failed import absent, gave_up
from llmgw.core.reconcile.failures import FAILURES_KEPT
from llmgw.core.reconcile.observe import observe
from llmgw.core.types.catalog import Restart
from llmgw.core.types.messages import Refusal
from llmgw.core.types.state import CatalogLoaded, ShardsChanged, State
from tests.core.world import catalog, model, node, place_at, profile, running, shard

MAX = 3
ALPHA = model("alpha", profile(restart=Restart(max=MAX, window_s=100.0)), high=99)
MOST = MAX + FAILURES_KEPT


def fails(state: State, n: int, *, at_s: float, **k: object) -> State:
    end = shard("alpha-1/0", incarnation=f"i{n}", state="failed", error=f"exit {n}")
    return observe(state, ShardsChanged("box1", (replace(end, **k),)), at_s)


def test_a67_what_says_that_it_was_given_up_outlives_the_failures_after_it() -> None:
    """Other replicas of the model failed a dozen times later, and it was started again by itself."""
    state = fails(running(catalog(ALPHA), node("box1")), 0, at_s=0.0, gave_up=True)
    for n in range(1, 3 * MOST):
        state = fails(state, n, at_s=1000.0 * n)
    assert gave_up(state, ALPHA) == "exit 0"
    assert len(state.failures["alpha"]) == MOST + 1


def test_of_those_too_there_is_an_end() -> None:
    state = running(catalog(ALPHA), node("box1"))
    for n in range(3 * MOST):
        state = fails(state, n, at_s=1000.0 * n, gave_up=True)
    assert len(state.failures["alpha"]) == MOST


def test_a_file_that_many_nodes_lack_pushes_out_no_failure_and_is_pushed_out_by_none() -> None:
    names = [f"box{n}" for n in range(1, 2 * MOST)]
    state = fails(running(catalog(ALPHA), *map(node, names)), 0, at_s=1.0)
    for name in names:
        no = Refusal(seq=1, shard="alpha-9/0", incarnation="new", reason="no_weights", why="gone")
        state = observe(place_at(state, name), ShardsChanged(name, refused=(no,)), 2.0)
    state = fails(state, 1, at_s=3.0)
    assert [f.error for f in state.failures["alpha"] if not f.absent] == ["exit 0", "exit 1"]
    assert [f.absent for f in absent(state, ALPHA, 4.0)] == sorted(names)
    edited = replace(ALPHA, profiles=(profile(fingerprints={"default": "1:new"}),))
    state = observe(state, CatalogLoaded(catalog(edited)), 5.0)
    no = Refusal(seq=1, shard="alpha-9/0", incarnation="new", reason="no_weights", why="gone")
    state = observe(place_at(state, "box1"), ShardsChanged("box1", refused=(no,)), 6.0)
    assert [f.absent for f in state.failures["alpha"] if f.absent] == ["box1"], (
        "the others' is over"
    )
