"""Bounded restarts of placements: at once, then with back-off, then a visible give-up (A67)."""

from __future__ import annotations

from itertools import permutations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from llmgw.core.failed import backing_off, gave_up, last
from llmgw.core.reconcile import beside
from llmgw.core.reconcile.decide import decide
from llmgw.core.reconcile.observe import observe
from llmgw.core.types.catalog import Restart
from llmgw.core.types.plan import StartReplica
from llmgw.core.types.record import REBOOTED
from llmgw.core.types.state import Cordoned, Failure, NodeRegistered, ShardsChanged, State
from tests.core.world import (
    FP,
    actions,
    at,
    catalog,
    model,
    node,
    profile,
    running,
    settled,
    shard,
)

ALPHA = model("alpha", profile(restart=Restart(max=3, window_s=100.0, backoff_s=5.0)))


def after(*at_s: float, **k: object) -> State:
    failures = tuple(
        Failure(f"i{n}", "main", t, **({"error": "exit 1", "fingerprint": FP} | k))  # type: ignore[arg-type]
        for n, t in enumerate(at_s)
    )
    return State(catalog=catalog(ALPHA), failures={"alpha": failures} if failures else {})


def test_no_failure_no_wait() -> None:
    assert (gave_up(after(), ALPHA), backing_off(after(), ALPHA, 0.0)) == ("", "")


@pytest.mark.parametrize(
    ("at_s", "now", "why"),
    [
        ((10.0,), 10.0, ""),
        ((10.0, 20.0), 20.0, "backing off 5 s after 2 failures: exit 1"),
        ((10.0, 20.0), 25.0, ""),
        ((10.0, 20.0, 30.0), 31.0, "backing off 9 s after 3 failures: exit 1"),
        ((10.0, 200.0), 201.0, ""),
    ],
)
def test_the_first_restarts_at_once_back_off_is_from_the_second(
    at_s: tuple[float, ...], now: float, why: str
) -> None:
    assert backing_off(after(*at_s), ALPHA, now) == why


def test_f44_an_agent_that_died_before_the_exec_is_no_failure_of_the_engine() -> None:
    """Else a roll would be halted by it, and ten such deaths give up a model that never ran."""
    state = running(catalog(ALPHA), node("box1"))
    lost = shard("alpha-1/0", state="failed", error="the agent died", never_ran=True)
    assert observe(state, ShardsChanged("box1", (lost,)), 1.0).failures == {}


@pytest.mark.parametrize("boxes", [1, 5])
def test_f39_a_power_cut_is_one_failure_however_many_replicas_went_down(boxes: int) -> None:
    """Five of a model that always runs gave it up, until somebody cleared it."""
    five = model("alpha", profile(gpus=0), low=5)
    up = [shard(f"alpha-{n}/0", port=18000 + n) for n in range(5)]
    there = [node(f"box{n}", *up[n::boxes]) for n in range(boxes)]
    state = running(catalog(five), *there)
    for n, box in enumerate(there):
        dead = tuple(replace(s, state="failed", error=REBOOTED) for s in box.shards)
        state = observe(state, NodeRegistered(replace(box, shards=dead)), 10.0 + n)
    now = 11.0 + boxes
    assert len(state.failures["alpha"]) == 5
    assert (gave_up(state, five), backing_off(state, five, now), last(state, five, now)) == (
        "",
        "",
        None,
    )
    assert "start alpha" in actions(decide(state, now))


def test_one_that_brings_its_host_down_with_each_start_is_given_up() -> None:
    tries = after(*(360.0 * n for n in range(5)), error=REBOOTED)
    usual = replace(ALPHA, profiles=(profile(),))
    assert gave_up(tries, usual) == "gave up after 5 failures in 30 min: the host was rebooted"


def test_it_is_given_up_after_max_within_the_window_and_that_does_not_lapse() -> None:
    assert gave_up(after(0.0, 50.0), ALPHA) == ""
    assert gave_up(after(0.0, 150.0, 160.0), ALPHA) == ""
    assert (
        gave_up(after(0.0, 50.0, 99.0), ALPHA) == "gave up after 3 failures in 1.66667 min: exit 1"
    )


def test_an_agent_that_gave_up_is_believed() -> None:
    assert gave_up(after(0.0, gave_up=True), ALPHA) == "exit 1"


def test_a67_a_give_up_is_not_undone_by_what_fails_after_it() -> None:
    ended, later = (
        Failure(f"i{n}", "main", float(n), f"exit {n}", gave_up=n == 0, fingerprint=FP)
        for n in range(2)
    )
    state = State(catalog=catalog(ALPHA), failures={"alpha": (ended, later)})
    assert gave_up(state, ALPHA) == "exit 0"


def test_a10_which_node_tells_of_a_give_up_first_does_not_matter() -> None:
    """Two shards of one incarnation failed, one for good; and failures of one moment are in one order."""
    deep = catalog(model("deep", profile(nodes=2), low=1))
    failed = [
        node(f"box{n}", shard(f"deep-1/{n}", world_size=2, state="failed", gave_up=n == 1))
        for n in range(2)
    ]
    other = node("box3", shard("deep-0/0", incarnation="a", world_size=2, state="failed"))
    states = [settled(deep, *reports) for reports in permutations((*failed, other))]
    assert all(s.failures == states[0].failures for s in states)
    assert [(f.incarnation, f.gave_up) for f in states[0].failures["deep"]] == [
        ("a", False),
        ("inc-deep-1", True),
    ]


def test_an_edited_profile_starts_with_a_clean_slate_and_the_unknown_counts() -> None:
    old = after(0.0, 1.0, 2.0, fingerprint="1:old")
    assert (gave_up(old, ALPHA), backing_off(old, ALPHA, 2.0)) == ("", "")
    assert gave_up(after(0.0, 1.0, 2.0, fingerprint=""), ALPHA)


def test_a_profile_that_is_gone_is_judged_by_the_first() -> None:
    gone = Failure("i", "old", 0.0, "exit 1", fingerprint=FP)
    state = State(catalog=catalog(ALPHA), failures={"alpha": (gone, gone, gone)})
    assert gave_up(state, ALPHA).startswith("gave up after 3 failures")


@given(st.lists(st.floats(0, 1e6), min_size=1, max_size=30))
def test_back_off_is_bounded(times: list[float]) -> None:
    state = after(*sorted(times))
    assert backing_off(state, ALPHA, max(times) + 300.0) == ""


def test_a_shard_that_gave_up_counts_before_it_is_gone() -> None:
    """Its tear-down takes as long as it takes: a start meanwhile would be an attempt beyond the limit."""
    ready = shard("alpha-1/0")
    state = running(catalog(model("alpha", low=1)), node("box1", ready))
    going = msgspec.structs.replace(ready, state="stopping", gave_up=True, error="gave up after 5")
    state = observe(state, ShardsChanged("box1", (going,)), 9.0)
    assert actions(decide(state, 9.0)) == ["wait alpha"]
    ended = msgspec.structs.replace(going, state="failed")
    state = observe(state, ShardsChanged("box1", (ended,)), 10.0)
    assert len(state.failures["alpha"]) == 1
    assert actions(decide(state, 10.0)) == ["wait alpha"]


def test_a67_a_model_that_backs_off_says_too_that_its_only_node_is_drained() -> None:
    """Else who waited the back-off out saw the other reason only then; and `undrain` makes the wait no longer."""
    state = running(catalog(model("alpha", profile(), low=1)), node("box1"))
    for n, at_s in enumerate((10.0, 20.0, 30.0)):
        failed = shard(f"alpha-{n}/0", state="failed", error="exit 1", incarnation=f"i{n}")
        state = observe(state, ShardsChanged("box1", shards=(failed,)), at_s)
    alpha = state.catalog.models["alpha"]
    backs_off = "min 1, 0 running; backing off 9 s after 3 failures: exit 1"
    (wait,) = decide(state, 31.0).actions
    assert wait.why == backs_off
    assert beside.nor_room(state, alpha, 31.0) == "", "there is room for it"
    drained = observe(state, Cordoned("box1", "", "by her"), 1.0)
    (wait,) = decide(drained, 31.0).actions
    assert wait.why == backs_off, "no pass pays for what nobody may read"
    nor = "nor would it find a place now: box1: is drained by her"
    assert beside.nor_room(drained, alpha, 31.0) == nor
    (wait,) = decide(drained, 41.0).actions
    assert wait.why == "min 1, 0 running; box1: is drained by her"
    assert beside.nor_room(drained, alpha, 41.0) == ""
    back = observe(drained, Cordoned("box1", "", ""), 1.0)
    assert [a.why for a in decide(back, 39.0).actions] == [backs_off.replace("9 s", "1 s")]
    (start,) = decide(back, 40.0).actions
    assert isinstance(start, StartReplica)
    coming = shard("beta-1/0", state="loading", gpus=(), port=18009)
    soon = observe(state, ShardsChanged("box1", (coming,)), 30.0)
    assert beside.nor_room(soon, alpha, 31.0) == "", "others start first, that is no want of room"


def test_what_became_of_it_when_it_was_tried_last_is_known_while_it_counts() -> None:
    state = after(10.0, 20.0)
    assert beside.before(state, ALPHA, 25.0) == "5 s ago: exit 1"
    gone = Failure("i9", "main", 22.0, "no file", fingerprint=FP, absent="box1")
    both = at(state, failures={"alpha": (*state.failures["alpha"], gone)})
    assert beside.before(both, ALPHA, 25.0) == "3 s ago: no file"
    assert beside.before(both, ALPHA, 200.0) == ""
    assert beside.before(after(), ALPHA, 25.0) == ""
