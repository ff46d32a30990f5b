"""Which endpoints gateways may use, and what a waiting client is told (A31, A38, A50, A61, A67)."""

from __future__ import annotations

import itertools
from typing import Any

import pytest

from llmgw.core import route
from llmgw.core.adopt.survey import survey
from llmgw.core.reconcile.fresh import Memory, started
from llmgw.core.reconcile.observe import observe
from llmgw.core.types.catalog import Catalog, Model, Requests
from llmgw.core.types.messages import SHARD_STATES, NodeReport, ShardReport
from llmgw.core.types.routes import RouteModel, RouteReplica, RouteTable
from llmgw.core.types.state import (
    DrainBegun,
    NodeRegistered,
    Published,
    SessionLost,
    ShardsChanged,
    State,
    Tick,
)
from tests.core.world import at, catalog, model, node, profile, running, shard

ALPHA = model("alpha", profile(weight=3), low=1)
CAT = catalog(ALPHA)
DEEP = catalog(model("deep", profile(nodes=2), low=1))


def table(state: State) -> RouteTable:
    return route.table(state, survey(state), 7)


def routes(state: State, name: str = "alpha") -> dict[str, str]:
    return {r.replica: r.state for r in table(state).models[name].replicas}


def told(state: State, name: str = "alpha") -> tuple[str, str, float | None]:
    m = table(state).models[name]
    return m.status, m.why, m.progress


def one(*shards: ShardReport, cat: Catalog = CAT) -> State:
    return running(cat, node("box1", *shards))


def half(rank: int, **k: Any) -> ShardReport:
    return shard(f"deep-1/{rank}", "deep", world_size=2, **k)


def begun(cat: Catalog, *remembered: NodeReport) -> State:
    """A control that has just started and has heard nobody; `remembered` is its last picture."""
    memory = Memory(nodes=tuple((r, False) for r in remembered))
    return started(cat, memory, now=0.0, settle_timeout_s=60.0, keep_unknown=False)


# --- the table -------------------------------------------------------------------------------


def test_the_table_holds_every_model_with_what_a_gateway_needs_of_it() -> None:
    cat = catalog(
        Model(
            name="beta",
            profiles=(profile(),),
            aliases=("b", "beta-*"),
            kind="embed",
            context=8192,
            listed=False,
            requests=Requests(max_in_flight=2, queue=3),
            wait_timeout_s=9.0,
        ),
        ALPHA,
    )
    found = table(one(shard("alpha-1/0", served_name="a"), cat=cat))
    assert (found.version, found.partial, list(found.models)) == (7, False, ["alpha", "beta"])
    assert found.models["beta"] == RouteModel(
        aliases=("b", "beta-*"),
        kind="embed",
        context=8192,
        listed=False,
        status="unloaded",
        wait_timeout_s=9.0,
        max_in_flight=2,
        queue=3,
    )
    assert found.models["alpha"].replicas == (
        RouteReplica(
            replica="alpha-1",
            incarnation="inc-alpha-1",
            endpoint="http://h:18000",
            profile="main",
            state="ready",
            weight=3,
            upstream_model="a",
        ),
    )


def test_a19_weight_follows_the_catalog_also_where_the_engine_drifted() -> None:
    (r,) = table(one(shard("alpha-1/0", fingerprint="1:old"))).models["alpha"].replicas
    assert r.weight == 3


@pytest.mark.parametrize(
    ("asks", "key", "sent"), [(True, "k", "k"), (True, None, ""), (False, "k", "")]
)
def test_the_engines_key_goes_along_where_its_profile_asks_for_one(
    asks: bool, key: str | None, sent: str
) -> None:
    cat = catalog(model("alpha", profile(upstream_key=asks), low=1))
    (r,) = table(one(shard("alpha-1/0", api_key=key), cat=cat)).models["alpha"].replicas
    assert r.api_key == sent


def test_what_no_model_claims_is_not_routed() -> None:
    state = one(shard("gone-1/0"), shard("alpha-1/0", profile="gone", fingerprint="", port=18001))
    assert routes(state) == {}


def test_a14_a_replica_under_an_alias_is_routed_under_the_name_of_today() -> None:
    cat = catalog(model("alpha", aliases=("old",), low=1))
    assert routes(one(shard("old-1/0", "old"), cat=cat)) == {"old-1": "ready"}


def test_incarnations_are_told_apart_by_what_the_table_says_of_them() -> None:
    state = one(shard("alpha-1/0"), shard("alpha-2/0", state="draining", port=18001))
    found = table(state)
    assert route.incarnations(found, "ready") == {"inc-alpha-1"}
    assert route.incarnations(found, "draining") == {"inc-alpha-2"}


# --- which shards are routed -----------------------------------------------------------------


@pytest.mark.parametrize("state", SHARD_STATES)
def test_a61_only_what_answers_is_routed_and_new_requests_only_to_what_is_ready(
    state: str,
) -> None:
    shown = {"ready": "ready", "draining": "draining"}.get(state)
    assert routes(one(shard("alpha-1/0", state=state))) == ({"alpha-1": shown} if shown else {})


def test_a31_without_an_endpoint_there_is_no_route() -> None:
    assert routes(one(shard("alpha-1/0", endpoint=""))) == {}


def test_a27_a_silent_nodes_rank_of_another_replica_does_not_complete_this_one() -> None:
    other = shard("deep-2/1", "deep", world_size=2, endpoint="http://other:1")
    cat = catalog(model("deep", profile(nodes=2), low=1, high=2))
    state = running(cat, node("box1", half(0)), node("box2", other), node("box3", half(1)))
    assert routes(state, "deep") == {"deep-1": "ready"}
    gone = observe(state, NodeRegistered(node("box3")), 1.0)
    assert routes(observe(gone, SessionLost("box2"), 2.0), "deep") == {}
    assert routes(observe(gone, SessionLost("box1"), 2.0), "deep") == {}


def test_a31_the_endpoint_is_rank_0s_whichever_half_came_first() -> None:
    halves = [node("box1", half(0)), node("box2", half(1, endpoint="http://worker:1"))]
    for order in itertools.permutations(halves):
        (r,) = table(running(DEEP, *order)).models["deep"].replicas
        assert r.endpoint == "http://h:18000"


@pytest.mark.parametrize("state", sorted({*SHARD_STATES} - {"ready"}))
def test_a61_one_rank_that_is_not_ready_takes_the_whole_replica_out(state: str) -> None:
    pair = running(DEEP, node("box1", half(0)), node("box2", half(1, state=state)))
    assert routes(pair, "deep") in ({}, {"deep-1": "draining"})
    assert (routes(pair, "deep") == {}) is (state != "draining")


def test_a61_a_short_replica_is_not_routed() -> None:
    assert routes(running(DEEP, node("box1", half(0))), "deep") == {}
    assert routes(running(DEEP, node("box1", half(1, endpoint="http://h:1"))), "deep") == {}


def test_a_rank_beyond_those_wanted_neither_makes_up_for_a_missing_one_nor_spoils_the_others() -> (
    None
):
    far = half(7, endpoint="http://h:7")
    state = observe(
        running(DEEP, node("box1", half(0)), node("box2", half(1)), node("box3", far)),
        SessionLost("box3"),
        1.0,
    )
    assert routes(state, "deep") == {"deep-1": "ready"}
    short = observe(
        running(DEEP, node("box1", half(0)), node("box3", far)), SessionLost("box3"), 1.0
    )
    assert routes(short, "deep") == {}


# --- restarts and silent nodes ---------------------------------------------------------------


def test_a50_f19_a_restart_never_empties_the_table() -> None:
    state = begun(CAT, node("box1", shard("alpha-1/0")), node("box2"))
    assert table(state).partial
    assert routes(state) == {"alpha-1": "ready"}
    state = observe(state, NodeRegistered(node("box1", shard("alpha-1/0"))), 1.0)
    assert (table(state).partial, routes(state)) == (True, {"alpha-1": "ready"})
    state = observe(observe(state, NodeRegistered(node("box2")), 2.0), Tick(), 2.0)
    assert (table(state).partial, routes(state)) == (False, {"alpha-1": "ready"})


def test_a41_f19_what_was_believed_ready_is_routed_until_its_node_says_otherwise() -> None:
    state = begun(CAT, node("box1", shard("alpha-1/0")))
    state = observe(state, NodeRegistered(node("box1")), 1.0)
    assert routes(state) == {}


def unheard(state: State) -> list[bool]:
    return [r.unheard for r in table(state).models["alpha"].replicas]


@pytest.mark.parametrize(("how", "so"), [({"sleep": 1}, True), ({"sleep": 0}, False)])
def test_a50_a63_of_what_may_sleep_and_was_not_heard_gateways_know_better(
    how: dict[str, Any], so: bool
) -> None:
    """The control before may have put it to sleep since; what serves must not lose its route for that."""
    told_before = at(begun(CAT, node("box1", shard("alpha-1/0", **how))), epoch=3)
    assert unheard(told_before) == [so]
    heard = observe(told_before, NodeRegistered(node("box1", shard("alpha-1/0", **how))), 1.0)
    assert unheard(heard) == [False]


@pytest.mark.parametrize(
    ("epoch", "outdated", "so"), [(3, False, False), (3, True, True), (0, False, True)]
)
def test_a63_of_what_fell_silent_only_the_one_that_leads_knows_that_nobody_put_it_to_sleep(
    epoch: int, outdated: bool, so: bool
) -> None:
    """A standby has no epoch; `outdated`: an agent has obeyed another leader meanwhile."""
    state = at(one(shard("alpha-1/0", sleep=1)), epoch=epoch, outdated=outdated)
    assert unheard(state) == [False]
    assert unheard(observe(state, SessionLost("box1"), 2.0)) == [so]


@pytest.mark.parametrize(("level", "so"), [(0, False), (1, True), (2, True)])
def test_a50_a63_gateways_know_what_may_be_put_to_sleep(level: int, so: bool) -> None:
    """One that is cut off for a minute is not waited for (`GATEWAY_WORD_S`)."""
    state = one(shard("alpha-1/0", sleep=level))
    for seen in (state, observe(state, SessionLost("box1"), 2.0)):
        (replica,) = table(seen).models["alpha"].replicas
        assert replica.sleeps is so


def test_f45_what_nobody_can_look_at_and_was_up_stays_routed() -> None:
    """A50: unverifiable is not dead; an engine that never came up, or whose record is torn, is another matter."""
    blind = shard("alpha-1/0", state="unknown", error="/proc cannot be read")
    seen = observe(one(shard("alpha-1/0")), ShardsChanged("box1", (blind,)), 1.0)
    assert routes(seen) == {"alpha-1": "ready"}
    coming = observe(one(shard("alpha-1/0", state="loading")), ShardsChanged("box1", (blind,)), 1.0)
    assert routes(coming) == {}
    torn = ShardReport(shard="alpha-1/0", replica="alpha-1", state="unknown", error="unreadable")
    assert routes(observe(one(shard("alpha-1/0")), ShardsChanged("box1", (torn,)), 1.0)) == {}


def test_f61_a_silent_nodes_engine_stays_routed_for_the_breaker_to_judge() -> None:
    state = observe(one(shard("alpha-1/0")), SessionLost("box1"), 1.0)
    assert routes(state) == {"alpha-1": "ready"}


def test_a_replica_with_one_half_on_a_silent_node_stays_routed() -> None:
    state = running(DEEP, node("box1", half(0)), node("box2", half(1)))
    for lost in ("box1", "box2"):
        assert routes(observe(state, SessionLost(lost), 1.0), "deep") == {"deep-1": "ready"}


@pytest.mark.parametrize(
    ("what", "shown"),
    [
        ({"state": "loading"}, {}),
        ({"state": "unknown"}, {}),
        ({"state": "draining"}, {"alpha-1": "draining"}),
        ({"desired": "draining"}, {"alpha-1": "draining"}),
        ({"desired": "stopped"}, {"alpha-1": "draining"}),
    ],
)
def test_a65_the_last_picture_of_a_silent_node_is_not_made_better_than_it_was(
    what: dict[str, str], shown: dict[str, str]
) -> None:
    assert routes(begun(CAT, node("box1", shard("alpha-1/0", **what)))) == shown


def test_a65_one_rank_of_the_last_picture_on_its_way_out_is_enough() -> None:
    state = begun(DEEP, node("box1", half(0)), node("box2", half(1, desired="draining")))
    assert routes(state, "deep") == {"deep-1": "draining"}


def test_f55_an_engine_under_an_agent_that_is_too_old_is_routed_all_the_same() -> None:
    assert routes(running(CAT, node("box1", shard("alpha-1/0"), protocol=0))) == {
        "alpha-1": "ready"
    }


def test_f55_a37_another_of_that_name_under_an_older_agent_is_no_shard_of_this_one() -> None:
    """One comes up on a node that fell silent; the agent of the other leaves incarnations out, and is read-only."""
    nameless = node("box1", shard("alpha-1/0", incarnation=""), protocol=0)
    state = running(CAT, nameless, node("box2", shard("alpha-1/0", state="loading")))
    state = observe(state, SessionLost("box2"), 1.0)
    there = table(state).models["alpha"].replicas
    assert [r.incarnation for r in there] == ["?alpha/alpha-1"]


def test_f55_a_half_under_an_older_agent_is_of_the_half_that_has_a_name() -> None:
    older = node("box2", half(1, incarnation=""), protocol=0)
    state = running(DEEP, node("box1", half(0)), older)
    there = table(observe(state, SessionLost("box1"), 1.0)).models["deep"].replicas
    assert [(r.incarnation, r.state) for r in there] == [("inc-deep-1", "ready")]


# --- drains and losers -----------------------------------------------------------------------


def test_a65_a_drain_shows_in_the_next_table() -> None:
    state = observe(one(shard("alpha-1/0")), DrainBegun("inc-alpha-1", "drift", ""), 1.0)
    assert (routes(state), told(state)) == ({"alpha-1": "draining"}, ("unloaded", "", None))


def test_a38_the_loser_of_one_that_is_ready_gets_nothing_new() -> None:
    older = shard("alpha-1/0", started_at="2025-01-01T00:00:00Z")
    state = one(older, shard("alpha-2/0", port=18001))
    assert routes(state) == {"alpha-1": "ready", "alpha-2": "draining"}


def test_a38_the_loser_serves_until_the_one_that_is_kept_can() -> None:
    """The routed one stays kept while its probes fail; taking the healthy copy away too would leave nobody."""
    pair = [shard("alpha-1/0"), shard("alpha-2/0", port=18001)]
    state = running(CAT, node("box1", *pair))
    state = observe(state, Published(6, frozenset({"inc-alpha-1"}), frozenset()), 1.0)
    pair[0] = shard("alpha-1/0", state="unhealthy")
    state = observe(state, NodeRegistered(node("box1", *pair)), 2.0)
    assert [(r.replica, r.kept) for r in survey(state).replicas] == [
        ("alpha-1", True),
        ("alpha-2", False),
    ]
    assert routes(state) == {"alpha-2": "ready"}
    assert told(state)[0] == "loaded"
