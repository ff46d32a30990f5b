"""A start that goes out with the stops that make its room (A64): who decides it, what is counted, who keeps it."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from llmgw.core.adopt.survey import survey
from llmgw.core.check import violations
from llmgw.core.place import start_message
from llmgw.core.reconcile.decide import decide
from llmgw.core.reconcile.observe import observe
from llmgw.core.supervise.commands import intended, target
from llmgw.core.supervise.follow import Following, follows
from llmgw.core.types.catalog import Catalog, Scaling
from llmgw.core.types.messages import (
    Capacity,
    Command,
    DrainShard,
    Resources,
    SendReport,
    Start,
    StopShard,
)
from llmgw.core.types.node import CommandReceived, WriteRecord
from llmgw.core.types.plan import Plan, StartReplica, StopReplica, Wait
from llmgw.core.types.state import (
    DrainBegun,
    Ending,
    Placed,
    Published,
    ShardsChanged,
    State,
    Withheld,
)
from tests.core.agent_bench import C1, C2, KEY, Bench, on_gpu, start
from tests.core.crowded import BIG, LATER, THREE, A, C, box, fleet, said, sized, up, waits
from tests.core.world import GIB, at, catalog, model, node, profile, shard, verdicts

# --- control: decided -----------------------------------------------------------------------


def going(cat: Catalog, *boxes: Any, asks: str, leave: tuple[str, ...]) -> State:
    """One model is asked for, and these replicas are drained for it: every gateway has taken that up."""
    state = said(fleet(cat, *boxes), LATER, waiting={asks: 1})
    for name in leave:
        state = observe(state, DrainBegun(f"inc-{name}", "evict", f"makes room for {asks}"), LATER)
    gone = frozenset(f"inc-{name}" for name in leave)
    state = observe(state, Published(7, gone, gone), LATER)
    return said(state, LATER + 1, waiting={asks: 1}, table=7)


def decided(state: State, now: float = LATER + 1) -> tuple[Plan, list[StartReplica]]:
    plan = decide(state, now)
    return plan, [a for a in plan.actions if isinstance(a, StartReplica)]


def stops(plan: Plan) -> list[str]:
    return [a.replica for a in plan.actions if isinstance(a, StopReplica)]


def test_a64_it_starts_with_the_stop_and_not_after_it() -> None:
    state = going(THREE, box(up("big-1", 24, port=18000), follows=True), asks="c", leave=("big-1",))
    plan, (begun,) = decided(state)
    assert stops(plan) == ["big-1"]
    assert begun.after == (("big-1/0", "inc-big-1"),)
    assert begun.why == (
        "1 waiting, 0 running; fits box1 GPU 0, 14.0 GiB left there, once big-1 has ended"
    )
    assert begun.spots[0].port == 18001, "the other one still has its own"
    assert [type(a) for a in plan.actions] == [StopReplica, StartReplica]


def test_what_is_being_stopped_by_its_agents_word_is_followed_too() -> None:
    leaving = up("big-1", 24, state="stopping", desired="stopped")
    state = said(fleet(THREE, box(leaving, follows=True)), LATER, waiting={"c": 1})
    plan, (begun,) = decided(state, LATER)
    assert stops(plan) == []
    assert begun.after == (("big-1/0", "inc-big-1"),)


@pytest.mark.parametrize(
    "change",
    [
        {"follows": False},
        {"error": "stuck: pids 7 are still there"},
        {"state": "unknown"},
        {"desired": "running", "state": "ready"},
    ],
)
def test_an_older_agent_and_what_does_not_end_by_itself_are_waited_for(
    change: dict[str, Any],
) -> None:
    knows = change.pop("follows", True)
    leaving = up("big-1", 24, **{"state": "stopping", "desired": "stopped", **change})
    state = said(fleet(THREE, box(leaving, follows=knows)), LATER, waiting={"c": 1})
    assert decided(state, LATER)[1] == []


def test_who_need_not_end_for_it_is_not_waited_for() -> None:
    """Two leave, by whoever's word, and the room of one is enough; of the two the last one is enough here."""
    both = (up("a-1", 10), up("b-1", 10, port=18001))
    state = going(THREE, box(*both, follows=True), asks="c", leave=("a-1", "b-1"))
    assert decided(state)[1][0].after == (("b-1/0", "inc-b-1"),)
    state = going(THREE, box(*both, follows=True), asks="big", leave=("a-1", "b-1"))
    (begun,) = decided(state)[1]
    assert begun.after == (("a-1/0", "inc-a-1"), ("b-1/0", "inc-b-1"))
    assert begun.why.endswith(", once a-1, b-1 have ended")


def test_of_two_boxes_only_who_is_on_its_own_is_followed() -> None:
    one = box(up("a-1", 24), follows=True)
    two = box(up("d-1", 24, "box2-0"), name="box2", follows=True)
    cat = catalog(A, sized("d", 24), C)
    state = going(cat, one, two, asks="c", leave=("a-1", "d-1"))
    (begun,) = decided(state)[1]
    assert len(begun.after) == 1
    assert begun.after[0][0] == {"box1": "a-1/0", "box2": "d-1/0"}[begun.spots[0].node]


def test_what_another_box_has_to_give_back_is_waited_for() -> None:
    """One breaker for both: there is room for it when both have ended, and its agent sees one of them."""
    heavy: dict[str, Any] = {"power_w": 500.0, "cpu_cores": 16.0}
    lean = Scaling(min_up_s=0.0, idle_timeout_s=9000.0)
    cat = catalog(
        model("x", profile(**heavy), scaling=lean),
        model("y", profile(**heavy), scaling=lean),
        model("z", profile(power_w=900.0, cpu_cores=16.0), scaling=lean),
        circuits={"office": 1000.0},
    )
    full = Capacity(cpu_cores=16.0)
    boxes = [
        node(
            name,
            shard(f"{m}-1/0", resources=Resources(power_w=500.0, cpu_cores=16.0)),
            gpus=(),
            capacity=full,
            circuit="office",
            follows=True,
        )
        for name, m in (("box1", "x"), ("box2", "y"))
    ]
    state = going(cat, *boxes, asks="z", leave=("x-1", "y-1"))
    plan, begun = decided(state)
    assert begun == []
    assert waits(plan, "z").first == ("x-1", "y-1")


def test_a_group_is_started_once_there_is_room() -> None:
    wide = model("wide", profile(gpus=1, nodes=2), scaling=Scaling())
    cat = catalog(A, sized("d", 24), wide)
    one = box(up("a-1", 24), follows=True)
    two = box(up("d-1", 24, "box2-0"), name="box2", follows=True)
    state = going(cat, one, two, asks="wide", leave=("a-1", "d-1"))
    plan, begun = decided(state)
    assert begun == []
    assert isinstance(waits(plan, "wide"), Wait)


def test_a56_with_the_stop_the_start_is_held_back() -> None:
    state = going(THREE, box(up("big-1", 24), follows=True), asks="c", leave=("big-1",))
    state = observe(state, Withheld("another plan is required"), LATER + 1)
    plan, (begun,) = decided(state)
    assert begun.withheld == "another plan is required"
    assert all(a.withheld for a in plan.actions if isinstance(a, StopReplica))
    assert decided(observe(state, Ending(), LATER + 1))[1] == []


# --- control: counted -----------------------------------------------------------------------


def followed() -> State:
    """c was placed to come after big-1, which ends."""
    leaving = up("big-1", 24, state="stopping", desired="stopped")
    state = said(fleet(THREE, box(leaving, follows=True)), LATER, waiting={"c": 1})
    (begun,) = decided(state, LATER)[1]
    placement = (begun.profile, begun.spots)
    ((_, order),) = start_message(state, THREE.models["c"], placement, "c-new", "inc-c-new")
    order = replace(order, after=begun.after)
    return observe(state, Placed("box1", order), LATER)


def test_both_are_counted_and_neither_is_in_the_others_way() -> None:
    state = followed()
    assert violations(state, survey(state)) == []
    plan = decide(state, LATER + 1)
    assert verdicts(plan) == {"box1:big-1/0": "keep", "box1:c-new/0": "keep"}
    assert [a for a in plan.actions if not isinstance(a, Wait)] == []


def test_it_says_what_it_waits_for_as_long_as_that_is_there() -> None:
    """Not that its agent owes us an answer: an engine may take half a minute to end."""

    def why(state: State) -> str:
        verdicts = decide(state, LATER + 1).verdicts
        return next(v.why for v in verdicts if v.shard.report.shard == "c-new/0")

    state = followed()
    assert why(state) == "placed, it starts once big-1/0 has ended"
    big = next(s.report for s in state.nodes["box1"].shards if not s.after)
    state = observe(state, ShardsChanged("box1", (replace(big, state="stopped"),)), LATER + 1)
    assert why(state) == "placed, its agent has not reported it yet"


def test_its_room_is_nobody_elses() -> None:
    """Another one that asks meanwhile waits: what ends is spoken for."""
    many = replace(THREE, start_limit=4)
    state = at(followed(), catalog=many)
    state = said(state, LATER + 1, waiting={"c": 1, "a": 1, "big": 1})
    plan, begun = decided(state)
    assert [a.model for a in begun] == ["a"], "14 GiB are left beside c"
    assert begun[0].after == (("big-1/0", "inc-big-1"),)
    assert isinstance(waits(plan, "big"), Wait)


def test_given_out_twice_is_found_whoever_ends_first() -> None:
    state = followed()
    (mine,) = [s for s in state.nodes["box1"].shards if s.after]
    more = replace(
        mine, report=replace(mine.report, shard="c-2/0", incarnation="inc-c-2", port=18009)
    )
    box1 = state.nodes["box1"]
    twice = at(
        state,
        nodes={
            "box1": replace(
                box1,
                shards=(
                    *box1.shards,
                    more,
                    replace(
                        more,
                        report=replace(
                            more.report, shard="c-3/0", incarnation="inc-c-3", port=18010
                        ),
                    ),
                ),
            )
        },
    )
    assert any("is given out beyond its memory" in v for v in violations(twice, survey(twice)))
    alone = replace(more, after=())
    beside = at(state, nodes={"box1": replace(box1, shards=(*box1.shards, alone))})
    assert any("beyond its memory" in v for v in violations(beside, survey(beside)))


def test_once_its_agent_tells_of_it_it_is_one_like_any_other() -> None:
    state = followed()
    (mine,) = [s for s in state.nodes["box1"].shards if s.after]
    told = ShardsChanged(
        "box1", (replace(mine.report, state="starting"),), (("big-1/0", "inc-big-1"),)
    )
    state = observe(state, told, LATER + 2)
    assert [(s.report.shard, s.after) for s in state.nodes["box1"].shards] == [("c-new/0", ())]


# --- the agent: kept back --------------------------------------------------------------------

AFTER = (("alpha-1/0", "inc-1"),)


def stopping() -> Bench:
    return Bench().start(gpus=("GPU-0",)).spawned().probe().stop()


def given(command: Command) -> CommandReceived:
    return CommandReceived(command=command, control=C1)


def kept(b: Bench, *orders: Start) -> Following:
    there = Following()
    for order in orders:
        assert there.keeps(b.state, given(order))
    return there


def test_it_is_kept_until_the_other_has_ended_and_comes_out_once() -> None:
    b = stopping()
    there = kept(b, on_gpu(2, after=AFTER))
    assert there.due(b.state) == []
    b.exited(0).tree()
    assert there.due(b.state) == [], "its memory is not back yet"
    for _ in range(4):
        b.memory(0)
    (late,) = there.due(b.state)
    assert (late.control, target(late.command)[0]) == (C1, "alpha-2/0")
    assert there.due(b.state) == []
    b.command(late.command)
    assert b.state.records["alpha-2/0", "inc-2"].start.after == ()


@pytest.mark.parametrize(
    ("bench", "waits_for_it"),
    [
        (stopping(), True),
        (Bench().start().spawned().probe(), False),
        (Bench().start().spawned().probe().drain(), False),
        (Bench(), False),
        (stopping().exited(0).tree(), True),
    ],
)
def test_only_what_is_on_its_way_out_is_waited_for(bench: Bench, waits_for_it: bool) -> None:
    assert follows(bench.state, start(2, after=AFTER)) is waits_for_it
    assert not follows(bench.state, start(2))


def test_what_does_not_end_is_not_waited_for_and_the_no_says_so() -> None:
    """F67: the usual answer, with who holds it."""
    b = stopping()
    there = kept(b, on_gpu(2, after=AFTER))
    for _ in range(3):
        b.tree(4711, after_s=20.0).tick(20.0)
    assert "stuck: " in (b.record.error or "")
    (late,) = there.due(b.state)
    reason, resource, why = b.command(late.command).refusal()
    assert (reason, resource) == ("gpu_held", "gpu GPU-0")
    assert "alpha-1/0" in why


def test_a_newer_order_about_it_takes_its_place() -> None:
    b = stopping()
    about: dict[str, Any] = {"shard": "alpha-2/0", "incarnation": "inc-2", "reason": "t"}
    for newer in (StopShard(**about), DrainShard(**about)):
        there = kept(b, on_gpu(2, after=AFTER))
        assert not there.keeps(b.state, given(SendReport()))
        assert not there.keeps(b.state, given(newer))
        b2 = stopping().exited(0).tree()
        for _ in range(4):
            b2.memory(0)
        assert there.due(b2.state) == []
    there = kept(b, on_gpu(2, after=AFTER), on_gpu(2, after=AFTER), on_gpu(3, after=AFTER))
    there.lost(C2)
    assert len(there.due(Bench().state)) == 2, "the same twice is one"


def test_with_its_session_it_is_over() -> None:
    b = stopping()
    there = kept(b, on_gpu(2, after=AFTER))
    there.lost(C1)
    assert there.due(Bench().state) == []


def test_of_a_session_that_is_over_it_is_refused_when_it_comes() -> None:
    """As any order that was long on its way (A42)."""
    b = Bench()
    b.session(C1, "s2", "L1")
    assert b.command(on_gpu(2, after=AFTER)).refusal()[0] == "other_session"


def test_nothing_is_kept_that_follows_nobody() -> None:
    assert not Following().keeps(Bench().state, given(start(2)))
    assert BIG.profiles[0].gpu_memory_bytes == 24 * GIB


def test_what_a_kept_start_will_be_journaled_as_is_known_before_its_turn() -> None:
    """F79 and the law of the intent: the same bytes as in its turn, so that they may be on the disk by then."""
    bench = Bench()
    order = start(2, after=(KEY,))
    event = CommandReceived(command=order, control=C1, fresh_key="k", extra={"start": {"x": 1}})
    said = intended(bench.state, event)
    assert said is not None
    assert (said.intent, said.start.after, said.api_key, said.extra) == (True, (), "k", event.extra)
    following = Following()
    assert following.keys == frozenset()
    bench.start().spawned().stop()
    assert following.keeps(bench.state, event)
    assert following.keys == {("alpha-2/0", "inc-2")}
    (write, *_) = bench(event).effects
    assert write == WriteRecord(said)
    assert intended(bench.state, replace(event, command=SendReport())) is None
    odd = replace(order, port=-1)
    assert intended(bench.state, replace(event, command=odd)) is None
