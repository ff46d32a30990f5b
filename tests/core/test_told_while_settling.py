"""What is told while control settles, by whichever node comes first, counts the same (A10, A29, A34, A47, A52, A65)."""

from __future__ import annotations

from llmgw.core.reconcile.decide import decide
from llmgw.core.reconcile.fresh import Memory, started
from llmgw.core.reconcile.observe import observe
from llmgw.core.types.messages import Compute
from llmgw.core.types.plan import StopReplica
from llmgw.core.types.state import Announced, Draining, Event, NodeRegistered, State, Tick
from tests.core.world import DEEP, ONE, SLEEPY, begun, half, node, replicas, running, shard


def fold(state: State, *events: Event, now: float) -> State:
    for event in (*events, Tick()):
        state = observe(state, event, now)
    return state


def test_a47_of_nodes_that_were_all_silent_the_first_to_come_back_does_not_end_it() -> None:
    """None is expected then, and the others have their 15 s of quiet: perhaps it was control that was cut off (F63)."""
    fleet = [node(f"box{n}", epoch_seen=7) for n in (1, 2)]
    memory = Memory(nodes=tuple((r, True) for r in fleet), epoch=7)
    state = started(ONE, memory, now=0.0, settle_timeout_s=60.0, keep_unknown=False)
    state = fold(state, NodeRegistered(fleet[0]), now=1.0)
    assert fold(state, now=15.9).settling
    assert fold(state, now=16.0).settled_s == 16.0
    assert fold(state, NodeRegistered(fleet[1]), now=9.0).settled_s == 9.0


def test_a65_a_drain_is_kept_until_what_it_is_about_has_been_heard() -> None:
    """The row of its node could not be read (F20), the order to its agent was lost: the operator is still obeyed."""
    memory = Memory(
        nodes=((node("box1"), False),),
        epoch=7,
        draining={"inc-beta-1": Draining(-5.0, "operator", "ann asked")},
        confirmed=frozenset({"inc-beta-1"}),
    )
    state = started(SLEEPY, memory, now=0.0, settle_timeout_s=60.0, keep_unknown=False)
    late = NodeRegistered(node("box2", shard("beta-1/0")))
    state = fold(fold(state, now=1.0), late, NodeRegistered(node("box1")), now=2.0)
    assert state.draining.keys() == state.confirmed == {"inc-beta-1"}
    assert replicas(decide(state, 2.0))["beta-1"].state == "draining"
    gone = fold(state, NodeRegistered(node("box2")), Announced(frozenset({"inc-beta-1"})), now=3.0)
    assert (gone.draining, gone.confirmed) == ({}, frozenset())


def test_a34_a52_a_group_that_lost_a_rank_goes_as_the_dry_run_said() -> None:
    """What box2 lacks is said while control settles, and still known when it decides: at once, not after a window."""
    fleet = [node("box1", half(0)), node("box2", half(1)), node("box3")]
    state = begun(DEEP, *fleet)
    for report in (fleet[0], node("box2")):
        state = fold(state, NodeRegistered(report), now=1.0)
        lacking = [
            v.shard.incarnation for v in decide(state, 1.0).verdicts if v.verdict == "forget"
        ]
        state = fold(state, Announced(frozenset(lacking)), now=1.0)
    state = fold(state, NodeRegistered(fleet[2]), now=2.0)
    (stop,) = decide(state, 2.0).actions
    assert isinstance(stop, StopReplica)
    assert (stop.reason, stop.due_s) == ("not_running", 0.0)


def test_a10_which_rank_tells_of_the_end_first_does_not_matter() -> None:
    ends = [
        half(r, state="failed", error=e) for r, e in enumerate(("lost its peer", "out of memory"))
    ]
    told = []
    for order in ((0, 1), (1, 0)):
        state = running(DEEP, node("box1", half(0)), node("box2", half(1)))
        for r in order:
            state = fold(state, NodeRegistered(node(f"box{r + 1}", ends[r])), now=1.0)
        told.append(state.failures)
    assert told[0] == told[1]
    assert len(told[0]["deep"]) == 1


def test_a29_a_known_compute_is_not_overwritten_by_another_of_the_same_attempt() -> None:
    on_gpu, on_cpu = Compute(device="cuda", layers_gpu=49), Compute(device="cpu")
    first = shard("alpha-1/0", compute=on_gpu)
    for attempt, counts in ((1, on_gpu), (2, on_cpu)):
        again = shard("alpha-1/0", compute=on_cpu, attempt=attempt)
        state = fold(
            running(ONE, node("box1", first)), NodeRegistered(node("box1", again)), now=1.0
        )
        assert state.nodes["box1"].shards[0].report.compute == counts
