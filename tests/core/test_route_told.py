"""What a client that waits is told, and whoever asks for what fits nowhere (A31, A64, A67)."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from llmgw.core import route
from llmgw.core.reconcile.observe import observe
from llmgw.core.types.catalog import Catalog
from llmgw.core.types.messages import ShardReport
from llmgw.core.types.state import PLACED, REPORTED, Failure, SessionLost, State
from tests.core.test_route import ALPHA, CAT, DEEP, half, one, table, told
from tests.core.world import at, catalog, model, node, running, shard

# --- what a waiting client is told -----------------------------------------------------------


def failure(n: int, at_s: float, **k: Any) -> Failure:
    return Failure(f"inc-{n}", k.pop("profile", "main"), at_s, f"exit {n}", **k)


def failed(*failures: Failure, cat: Catalog = CAT, shards: tuple[ShardReport, ...] = ()) -> State:
    return at(one(*shards, cat=cat), failures={"alpha": failures})


@pytest.mark.parametrize(
    ("what", "said"),
    [
        ({"state": "ready"}, ("loaded", "", None)),
        ({"state": "pending"}, ("loading", "pending on box1", None)),
        ({"state": "loading", "progress": 0.42}, ("loading", "loading on box1", 0.42)),
        ({"state": "starting", "attempt": 2}, ("loading", "starting on box1 (attempt 2)", None)),
        ({"state": "unhealthy"}, ("unloaded", "alpha-1 is degraded", None)),
        ({"state": "failed"}, ("unloaded", "", None)),
        ({"state": "stopping"}, ("unloaded", "", None)),
        ({"state": "loading", "desired": "stopped"}, ("unloaded", "", None)),
    ],
)
def test_what_a_waiting_client_is_told(
    what: dict[str, Any], said: tuple[str, str, float | None]
) -> None:
    assert told(one(shard("alpha-1/0", **what))) == said


def test_a_load_on_a_node_that_fell_silent_is_still_a_load() -> None:
    state = observe(one(shard("alpha-1/0", state="loading")), SessionLost("box1"), 1.0)
    assert told(state) == ("loading", "loading on box1", None)


def test_a_short_replica_is_named_with_its_state() -> None:
    assert told(running(DEEP, node("box1", half(0))), "deep") == (
        "unloaded",
        "deep-1 is assembling",
        None,
    )


def test_one_ready_replica_makes_the_model_loaded_whatever_became_of_others() -> None:
    state = failed(failure(1, 1.0, gave_up=True), shards=(shard("alpha-1/0"),))
    assert told(state) == ("loaded", "", None)


def test_a_load_under_way_comes_before_an_older_failure() -> None:
    loading = shard("alpha-1/0", state="loading")
    assert told(failed(failure(1, 1.0, gave_up=True), shards=(loading,)))[0] == "loading"


def test_a67_an_agent_that_gave_up_fails_the_model_with_its_last_line() -> None:
    assert told(failed(failure(1, 1.0), failure(2, 9e9, gave_up=True))) == (
        "failed",
        "exit 2",
        None,
    )


def test_a67_one_failure_is_no_failed_model() -> None:
    assert told(failed(failure(1, 1.0))) == ("unloaded", "", None)


@pytest.mark.parametrize(
    ("origin", "where", "why"),
    [
        (PLACED, "box1", "pending on box1: exit 1"),
        (PLACED, "box2", "pending on box1"),
        (REPORTED, "box1", "pending on box1"),
    ],
)
def test_while_a_missing_file_is_looked_for_again_it_is_still_named(
    origin: str, where: str, why: str
) -> None:
    """Once a minute, for as long as its agent takes: `status` showed a plain start then."""
    state = failed(failure(1, 1.0, absent=where), shards=(shard("alpha-1/0", state="pending"),))
    box = state.nodes["box1"]
    placed = tuple(replace(s, origin=origin) for s in box.shards)
    assert told(replace(state, nodes={"box1": replace(box, shards=placed)}))[1] == why


# --- nobody makes room -----------------------------------------------------------------------


def test_a64_who_asks_for_what_fits_nowhere_reads_why_and_nobody_else() -> None:
    cat = catalog(ALPHA, model("huge"))
    told = table(running(cat, node("box1", shard("alpha-1/0"))))
    assert route.refusing(told, {}) is told
    why = {"huge": "80.0 needed", "alpha": "too late, it is up", "gone": "not in the catalog"}
    refused = route.refusing(told, why).models
    assert (refused["huge"].no_room, refused["huge"].why) == ("80.0 needed", "80.0 needed")
    assert (refused["huge"].status, refused["alpha"]) == ("unloaded", told.models["alpha"])
    assert "gone" not in refused
