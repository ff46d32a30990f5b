"""An engine's program that is not on a node, or that it cannot run: told at once, and looked for elsewhere (A67)."""

from __future__ import annotations

from itertools import permutations

import pytest
from msgspec.structs import replace

from llmgw.core import evict, failed, helps
from llmgw.core.reconcile.decide import decide
from llmgw.core.reconcile.observe import observe
from llmgw.core.types.plan import StartReplica, Wait
from llmgw.core.types.state import CatalogLoaded, NodeRegistered, ShardsChanged, State, Tick
from tests.core.world import actions, catalog, model, node, place_at, profile, running, shard

GONE = "engine binary /opt/x not found on box1 - set engines.x.command in the catalog"
ONE = catalog(model("alpha", low=1))


def tried(state: State, now: float, error: str = GONE, incarnation: str = "new") -> State:
    """It was sent to box1, whose agent took it and could not start it."""
    state = place_at(state, "box1", incarnation)
    for name, said in (("pending", None), ("stopping", error), ("failed", error)):
        report = shard("alpha-9/0", incarnation=incarnation, state=name, error=said)
        state = observe(state, ShardsChanged("box1", (report,)), now)
    return observe(state, ShardsChanged("box1", gone=(("alpha-9/0", incarnation),)), now)


@pytest.mark.parametrize(
    "error",
    [
        GONE,
        "engine binary x is not on the PATH of box1 - set engines.x.command in the catalog",
        "engine binary /my engines/x is a directory on box1 - set the profile's command",
        "engine binary /opt/x is not executable on box1 - chmod +x it, or set the profile's command",
        "engine binary /opt/x cannot be executed on box1: Exec format error - use a build for it",
        "podman is not on the PATH of the agent on box1 - install podman there",
    ],
)
def test_a67_what_one_node_lacks_is_started_at_once_where_another_has_it(error: str) -> None:
    """Best fit chose box1 again each time, until its model was given up with an idle node beside it."""
    state = tried(running(ONE, node("box1"), node("box2")), 2.0, error)
    (start,) = decide(state, 2.0).actions
    assert isinstance(start, StartReplica)
    assert [s.node for s in start.spots] == ["box2"]
    (lack,) = failed.lacks(state, state.catalog.models["alpha"], 3.0)
    assert (lack[0], lack[2]) == ("box1", error)


def test_a67_where_no_other_has_it_that_is_told_at_once_and_it_is_looked_for_again() -> None:
    """No loop of starts, nothing is given up: once the program is there (a mount, an upgrade) it starts by itself."""
    state = running(ONE, node("box1"))
    for n in range(20):
        now = 2.0 + n * 70.0
        assert actions(decide(state, now)) == ["start alpha"]
        state = tried(state, now, incarnation=f"i{n}")
        plan = decide(state, now)
        (wait,) = plan.actions
        assert isinstance(wait, Wait)
        assert wait.why == (
            f"min 1, 0 running; box1: {GONE}; looked for again within a minute, "
            "at once after llmgw clear alpha"
        )
        assert evict.unplaceable(plan) == {"alpha": wait.why}
        assert helps.absent(wait.why) == "engine binary /opt/x not found on box1"
        assert actions(decide(state, now + 50.0)) == ["wait alpha"]
        state = observe(state, Tick(), now + 61.0)
    assert len(state.failures["alpha"]) == 1
    up = observe(state, ShardsChanged("box1", (shard("alpha-9/0", state="starting"),)), 2000.0)
    assert up.failures == {}, "it runs there"


def test_a11_the_same_end_told_again_changes_nothing() -> None:
    state = place_at(running(ONE, node("box1")), "box1")
    end = shard("alpha-9/0", incarnation="new", state="failed", error=GONE)
    once = observe(state, ShardsChanged("box1", (end,)), 2.0)
    for event in (ShardsChanged("box1", (end,)), NodeRegistered(node("box1", end))):
        again = observe(once, event, 3.0)
        assert again.failures == once.failures
        assert len(again.refused) <= 1


def test_one_that_served_is_started_again_by_the_usual_rule() -> None:
    """Its program is being replaced, by an upgrade say: there again in a moment."""
    ready = shard("alpha-9/0", incarnation="new")
    state = running(ONE, node("box1", ready))
    end = replace(ready, state="failed", error=GONE)
    state = observe(state, ShardsChanged("box1", (end,)), 2.0)
    state = observe(state, ShardsChanged("box1", gone=(("alpha-9/0", "new"),)), 2.0)
    assert actions(decide(state, 2.0)) == ["start alpha"], "at once, and on box1"
    assert [f.absent for f in state.failures["alpha"]] == [""]


def test_what_an_engine_says_of_programs_is_its_own_affair() -> None:
    end = f"exited with code 1: {GONE}"
    state = tried(running(ONE, node("box1"), node("box2")), 2.0, end)
    assert [f.absent for f in state.failures["alpha"]] == [""]
    assert state.refused == ()


def test_what_is_lacking_for_another_catalog_is_forgotten() -> None:
    """Not for the profile of today, which may name another program; nor for a model that is gone."""
    for cat in (
        catalog(model("alpha", profile(fingerprints={"default": "1:new"}), low=1)),
        catalog(model("other", low=1)),
    ):
        state = place_at(running(ONE, node("box1")), "box1")
        state = observe(state, CatalogLoaded(cat), 1.0)
        end = shard("alpha-9/0", incarnation="new", state="failed", error=GONE)
        state = observe(state, ShardsChanged("box1", (end,)), 2.0)
        assert (state.failures, state.refused) == ({}, ())


def test_a10_two_ranks_that_lack_it_are_known_in_one_order() -> None:
    deep = catalog(model("deep", profile(nodes=2), low=1))
    ends = [
        (f"box{n}", shard(f"deep-1/{n}", world_size=2, state="failed", error=GONE))
        for n in range(3)
    ]
    found = []
    for order in permutations(ends):
        state = running(deep, *(node(f"box{n}") for n in range(3)))
        for name, end in order:
            state = observe(state, ShardsChanged(name, (end,)), 2.0)
        found.append(state.failures["deep"])
    assert all(f == found[0] for f in found)
    assert [f.absent for f in found[0]] == ["box0", "box1", "box2"]
