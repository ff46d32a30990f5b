"""Busy ones yield, the room is held for whom it was made, and what fits nowhere is said at once (A64)."""

from __future__ import annotations

from typing import Any

from msgspec.structs import replace

from llmgw.core import evict
from llmgw.core.reconcile.decide import decide
from llmgw.core.reconcile.observe import observe
from llmgw.core.types.messages import Foreign
from llmgw.core.types.state import (
    DrainBegun,
    Failure,
    NodeRegistered,
    Refused,
    SessionLost,
    State,
    Woken,
)
from tests.core.crowded import (
    BIG,
    LATER,
    A,
    B,
    C,
    both,
    box,
    drains,
    fleet,
    said,
    sized,
    starts,
    up,
    waits,
)
from tests.core.world import GIB, at, catalog, model, node, profile, running

# --- busy ones yield -------------------------------------------------------------------------


def held_by_busy(**scaling: Any) -> State:
    cat = catalog(sized("a", 24, **scaling), C)
    return fleet(cat, box(up("a-1", 24)))


def test_a64_a_busy_one_yields_once_others_have_waited_for_its_yield_after() -> None:
    state = held_by_busy(yield_after_s=30.0)
    state = said(state, LATER, waiting={"c": 1}, in_flight={"a-1": 3})
    late = said(state, LATER + 30, waiting={"c": 1}, in_flight={"a-1": 3})
    assert drains(decide(state, LATER + 29.9)) == {}
    assert drains(decide(late, LATER + 30)) == {
        "a-1": "makes room for c, waited for 30 s, yield_after is 30 s; busy (3 in flight), what it serves ends first"
    }


def test_a64_not_to_a_model_of_lower_priority() -> None:
    state = held_by_busy(yield_after_s=30.0, priority=1)
    state = said(state, LATER, waiting={"c": 1}, in_flight={"a-1": 3})
    state = said(state, LATER + 300, waiting={"c": 1}, in_flight={"a-1": 3})
    plan = decide(state, LATER + 300)
    assert drains(plan) == {}
    assert waits(plan, "c").why.endswith("held by a-1, busy and of higher priority")
    assert not waits(plan, "c").hopeless


def test_a64_not_for_an_operators_wish_nobody_waits_yet() -> None:
    state = held_by_busy(yield_after_s=1.0)
    state = said(observe(state, Woken("c"), LATER), LATER + 50, in_flight={"a-1": 1})
    assert drains(decide(state, LATER + 50)) == {}


def test_a64_idle_ones_are_taken_before_busy_ones_though_more_of_them() -> None:
    cat = catalog(sized("a", 24, yield_after_s=1.0), B, C, BIG)
    one = box(up("a-1", 24))
    two = box(up("b-1", 10, "box2-0"), up("c-1", 10, "box2-0", port=18001), name="box2")
    state = said(fleet(cat, one, two), LATER, waiting={"big": 1}, in_flight={"a-1": 1})
    state = said(state, LATER + 50, waiting={"big": 1}, in_flight={"a-1": 1})
    assert set(drains(decide(state, LATER + 50))) == {"b-1", "c-1"}


def test_a64_min_up_protects_a_busy_one_as_well() -> None:
    cat = catalog(sized("a", 24, min_up_s=120.0, yield_after_s=10.0), C)
    state = running(cat, box(up("a-1", 24, state="loading")))
    state = observe(state, NodeRegistered(box(up("a-1", 24))), LATER)
    told = {"waiting": {"c": 1}, "in_flight": {"a-1": 1}}
    state = said(said(state, LATER, **told), LATER + 119, **told)
    assert drains(decide(state, LATER + 119)) == {}
    assert set(drains(decide(state, LATER + 120))) == {"a-1"}


def test_a64_an_idle_one_stays_while_the_busy_one_that_is_needed_too_does() -> None:
    state = said(both(), LATER, waiting={"big": 1}, in_flight={"b-1": 1})
    plan = decide(state, LATER + 1)
    assert drains(plan) == {}
    assert waits(plan, "big").why.endswith(
        "a-1 is idle and would go; b-1 is busy (1 in flight) and yields in 119 s"
    )
    assert waits(plan, "big").first == ("a-1", "b-1")


# --- the room is held for whom it was made ---------------------------------------------------


def test_what_is_on_its_way_out_already_is_waited_for_and_nobody_else_goes() -> None:
    state = observe(both(), DrainBegun("inc-a-1", "idle", "idle"), LATER)
    plan = decide(said(state, LATER + 1, waiting={"c": 1}), LATER + 1)
    assert drains(plan) == {}
    wait = waits(plan, "c")
    assert wait.why.endswith("; it goes there once a-1 has ended")
    assert (wait.first, [s.gpus for s in wait.spots]) == (("a-1",), [("box1-0",)])


def test_a64_nobody_slips_into_the_room_that_was_made_for_another() -> None:
    """A small model that came later would fit beside what still ends, and the big one never in one piece."""
    state = said(both(), LATER + 1, waiting={"big": 1})
    state = observe(state, DrainBegun("inc-a-1", "evict", ""), LATER + 1)
    state = observe(state, DrainBegun("inc-b-1", "evict", ""), LATER + 1)
    small = sized("small", 2)
    state = at(state, catalog=catalog(A, B, C, BIG, small))
    state = said(state, LATER + 2, waiting={"big": 1, "small": 1})
    plan = decide(state, LATER + 2)
    assert (starts(plan), drains(plan)) == ([], {})


def test_a64_also_while_it_waits_for_a_busy_one_that_is_due() -> None:
    """Protected by min_up still, and others have waited its yield_after: nobody new gets in beside it."""
    cat = catalog(sized("a", 10, min_up_s=500.0, yield_after_s=10.0), BIG, sized("small", 2))
    state = running(cat, box(up("a-1", 10, state="loading")))
    state = observe(state, NodeRegistered(box(up("a-1", 10))), LATER)
    state = said(state, LATER, waiting={"big": 1})
    before = said(state, LATER + 9, waiting={"big": 1, "small": 1})
    assert starts(decide(before, LATER + 9)) == ["small"]
    after = said(state, LATER + 11, waiting={"big": 1, "small": 1})
    assert starts(decide(after, LATER + 11)) == []


def test_a64_who_was_made_to_go_does_not_take_its_room_back() -> None:
    """It has a queue that is older than the other's wait; its turn begins with its own end."""
    state = said(held_by_busy(), LATER, waiting={"a": 5})
    state = said(state, LATER + 200, waiting={"a": 5, "c": 1})
    state = said(state, LATER + 400, waiting={"a": 5, "c": 1})
    plan = decide(state, LATER + 400)
    assert set(drains(plan)) == {"a-1"}
    state = observe(state, DrainBegun("inc-a-1", "evict", ""), LATER + 400)
    state = observe(state, NodeRegistered(box()), LATER + 401)
    state = said(state, LATER + 402, waiting={"a": 5, "c": 1})
    assert starts(decide(state, LATER + 402)) == ["c"]


# --- hopeless, or only not known -------------------------------------------------------------


def hopeless(state: State, now: float = LATER + 1) -> bool:
    return waits(decide(said(state, now, waiting={"huge": 1}), now), "huge").hopeless


HUGE = catalog(sized("huge", 80), C)


def test_a_model_that_fits_nowhere_is_told_so_with_the_tightest_resource() -> None:
    state = fleet(HUGE, box())
    assert hopeless(state)
    (why,) = evict.unplaceable(
        decide(said(state, LATER + 1, waiting={"huge": 1}), LATER + 1)
    ).values()
    assert why == "1 waiting, 0 running; box1: GPU 0 has 24.0 of 24.0 GiB free, 80.0 needed"


def test_nor_would_it_once_all_others_have_ended() -> None:
    state = fleet(HUGE, box(up("c-1", 10)))
    plan = decide(said(state, LATER + 1, waiting={"huge": 1}), LATER + 1)
    assert drains(plan) == {}
    assert waits(plan, "huge").why.endswith(
        "nor is there room once c-1 has ended: box1: GPU 0 has 24.0 of 24.0 GiB free, 80.0 needed"
    )


FITS = catalog(sized("huge", 20), C)
TAKEN = (Refused("box1", "gpu box1-0", LATER + 60, "in use"),)


def test_while_a_node_cannot_be_heard_that_may_have_room_it_waits() -> None:
    bare = node("box1", gpus=())
    state = observe(fleet(FITS, bare, box(name="box2")), SessionLost("box2"), LATER)
    assert not hopeless(state)
    assert hopeless(at(state, cordoned={("box2", ""): "since noon"}))


def test_while_nothing_is_known_of_gpus_or_an_agent_said_no_for_now_it_waits() -> None:
    assert not hopeless(fleet(HUGE, node("box1", gpus=None)))
    assert not hopeless(at(fleet(FITS, box()), refused=TAKEN))
    assert not hopeless(fleet(HUGE))


def test_what_fits_on_no_node_is_told_at_once_whatever_else_is_not_known_just_now() -> None:
    """A start that was refused for a minute, of whatever model, says nothing of a card that is not there."""
    bare = node("box1", gpus=())
    refused = (Refused("box1", "profile 1:other", LATER + 60, "its file is absent"),)
    assert hopeless(at(fleet(FITS, bare), refused=refused))
    assert hopeless(at(fleet(HUGE, box()), refused=TAKEN))
    assert hopeless(observe(fleet(HUGE, box(), box(name="box2")), SessionLost("box2"), LATER))
    state = at(fleet(HUGE, box()), refused=TAKEN)
    plan = decide(said(state, LATER + 1, waiting={"huge": 1}), LATER + 1)
    assert waits(plan, "huge").why.endswith(
        "; nor is there room where nothing runs: box1: GPU 0 has 24.0 of 24.0 GiB free, 80.0 needed"
    )


def test_where_no_node_takes_work_it_is_told_at_once_but_not_before_all_are_heard() -> None:
    drained = {("box1", ""): "since noon"}
    refused = (Refused("box1", "profile 1:other", LATER + 60, "its file is absent"),)
    state = at(fleet(FITS, box()), cordoned=drained, refused=refused)
    assert hopeless(state)
    crashed = Failure("inc", "main", LATER - 1, "exit code 1")
    assert hopeless(at(state, failures={"huge": (crashed,)}))
    assert not hopeless(at(state, failures={"huge": (crashed,)}, cordoned={}, refused=TAKEN))
    silent = replace(state.nodes["box1"], settled=False, connected=False)
    other = replace(silent, report=replace(silent.report, node="box2"))
    assert not hopeless(at(state, nodes=state.nodes | {"box2": other}))
    assert hopeless(at(state, nodes={"box1": silent}))


def test_a_cpu_model_does_not_care_for_gpus_that_are_not_known() -> None:
    cat = catalog(model("huge", profile(host_memory_bytes=500 * GIB)))
    assert hopeless(fleet(cat, node("box1", gpus=None)))


def test_what_a_desktop_holds_is_not_ours_to_free() -> None:
    foreign = (Foreign(pid=7, gpu="box1-0", memory_bytes=20 * GIB, command="x"),)
    cat = catalog(sized("huge", 20), C)
    assert hopeless(fleet(cat, box(foreign=foreign)))


def test_other_starts_come_first_is_not_hopeless_and_takes_nobody() -> None:
    cat = catalog(sized("a", 20), B, sized("new", 20))
    shards = (up("a-1", 20), up("b-1", 2, port=18001, state="loading"))
    state = said(fleet(cat, box(*shards)), LATER + 1, waiting={"new": 1})
    plan = decide(state, LATER + 1)
    assert drains(plan) == {}
    assert "still starting there" in waits(plan, "new").why
    assert not waits(plan, "new").hopeless


def test_while_something_ends_it_waits_whatever_else_is_there() -> None:
    shards = (up("a-1", 20), up("b-1", 2, port=18001, state="loading"))
    cat = catalog(sized("a", 20), sized("b", 2), sized("new", 20))
    state = observe(fleet(cat, box(*shards)), DrainBegun("inc-a-1", "idle", ""), LATER)
    plan = decide(said(state, LATER + 1, waiting={"new": 1}), LATER + 1)
    assert not waits(plan, "new").hopeless


def test_what_its_agent_cannot_tell_may_have_ended_so_it_waits_for_that() -> None:
    """The record of what holds the card is unreadable: running or over, it will be known, and there may be room."""
    there = up("a-1", 20, state="unknown", error="its record is torn")
    cat = catalog(sized("a", 20), C, sized("huge", 80))
    state = said(fleet(cat, box(there)), LATER + 1, waiting={"c": 1, "huge": 1})
    plan = decide(state, LATER + 1)
    assert drains(plan) == {}
    assert not waits(plan, "c").hopeless
    assert waits(plan, "c").why == (
        "1 waiting, 0 running; box1: GPU 0 has 4.0 of 24.0 GiB free, 10.0 needed (held by a-1/0); there is room if "
        "a-1/0 on box1 has ended, which its agent cannot tell (its record is torn)"
    )
    assert waits(plan, "huge").hopeless


def test_several_of_which_nobody_can_tell_are_named_together() -> None:
    two = (up("a-1", 10, state="unknown"), up("b-1", 10, port=18001, state="unknown"))
    cat = catalog(A, B, sized("c", 20))
    plan = decide(said(fleet(cat, box(*two)), LATER + 1, waiting={"c": 1}), LATER + 1)
    assert not waits(plan, "c").hopeless
    assert waits(plan, "c").why.endswith(
        "; there is room if a-1/0 on box1, b-1/0 on box1 have ended, which nobody can tell"
    )
