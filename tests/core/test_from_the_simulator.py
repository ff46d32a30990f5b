"""What random histories found in the core (tests/sim), each as the smallest case that shows it."""

from __future__ import annotations

from msgspec.structs import replace

from llmgw.core.adopt.survey import survey
from llmgw.core.check import violations
from llmgw.core.reconcile.decide import decide
from llmgw.core.reconcile.observe import observe
from llmgw.core.types.catalog import Scaling
from llmgw.core.types.messages import Resources, ShardReport, Start
from llmgw.core.types.node import GpusSeen
from llmgw.core.types.plan import DrainReplica, StopReplica
from llmgw.core.types.record import Record
from llmgw.core.types.routes import GATEWAY_GONE_S, Demand
from llmgw.core.types.state import (
    Demanded,
    GatewayGone,
    NodeRegistered,
    Placed,
    Published,
    SessionLost,
    ShardsChanged,
    Tick,
)
from tests.core.agent_bench import GPU0, GPU1, Bench, on_gpu
from tests.core.world import (
    GIB,
    actions,
    at,
    catalog,
    model,
    node,
    plan_of,
    profile,
    replicas,
    running,
    shard,
)

SLEEPY = catalog(model("beta", scaling=Scaling(min=0, max=1, idle_timeout_s=100.0)))
ONE = catalog(model("alpha", profile(gpus=1, gpu_memory_bytes=10 * GIB), low=1))
TORN = ShardReport(
    shard="alpha-1/0",
    replica="alpha-1",
    incarnation="inc-alpha-1",
    rank=0,
    state="unknown",
    error="torn",
)


def test_a63_a_gateway_that_died_does_not_take_the_last_byte_with_it() -> None:
    """Loaded long ago, used just now: the model fell asleep with the gateway it had served."""
    state = running(SLEEPY, node("box1", shard("beta-1/0")))
    heard = Demanded(Demand(gateway="g", n=1, last_byte={"beta-1": 5.0}))
    state = observe(state, heard, 500.0)
    state = observe(state, GatewayGone("g"), 501.0)
    assert decide(state, 594.0).actions == ()
    (drain,) = decide(state, 595.0).actions
    assert isinstance(drain, DrainReplica)


def test_a_gateway_silent_for_a_minute_waits_and_serves_no_more() -> None:
    """Its control was away when it died: what waited there kept the model up, or had it started, for ever."""
    state = running(SLEEPY, node("box1"))
    state = observe(state, Demanded(Demand(gateway="g", n=1, waiting={"beta": 1})), 10.0)
    assert actions(decide(state, 20.0)) == ["start beta"]
    assert observe(state, Tick(), 10.0 + GATEWAY_GONE_S - 0.1).gateways
    state = observe(state, Tick(), 10.0 + GATEWAY_GONE_S)
    assert state.gateways == {}
    assert actions(decide(state, 80.0)) == []


def test_a66_the_replacement_is_kept_when_it_is_ready_and_the_old_one_goes() -> None:
    """The routed old one won against the ready new one (A35), which was drained and rolled again, without end."""
    old, new = shard("alpha-1/0", fingerprint="1:old"), shard("alpha-2/0", port=18001)
    state = running(ONE, node("box1", old, new))
    state = observe(state, Published(7, frozenset({"inc-alpha-1"}), frozenset()), 0.0)
    plan = decide(state, 100.0)
    assert [r.kept for r in plan.replicas] == [True, True]
    (drain,) = plan.actions
    assert isinstance(drain, DrainReplica)
    assert (drain.replica, drain.reason) == ("alpha-1", "drift")


def test_a35_the_reason_of_a_stray_is_that_the_other_is_routed() -> None:
    old = shard("alpha-1/0", port=18001, started_at="2025-12-31T00:00:00Z")
    state = running(ONE, node("box1", old, shard("alpha-2/0")))
    state = observe(state, Published(7, frozenset({"inc-alpha-2"}), frozenset()), 0.0)
    (drain,) = decide(state, 100.0).actions
    assert drain.why.endswith("alpha-2 on box1 is kept: it is the one that is routed")


def test_a39_a_torn_record_named_by_its_file_still_holds_what_we_knew() -> None:
    """The file's name tells the incarnation; without its GPU another engine was put there."""
    state = running(ONE, node("box1", shard("alpha-1/0", gpus=("box1-0",), attempt=2)))
    for torn in (NodeRegistered(node("box1", TORN)), ShardsChanged("box1", (TORN,))):
        (held,) = observe(state, torn, 1.0).nodes["box1"].shards
        assert (held.report.model, held.report.gpus) == ("alpha", ("box1-0",))
        assert (held.report.state, held.report.error) == ("unknown", "torn")
        # The agent's digest is of these.
        assert (held.report.attempt, held.report.port) == (1, 0)
        assert held.report.ports == {"before": 18000}


def test_a39_a_torn_record_of_another_incarnation_is_not_the_one_we_knew() -> None:
    state = running(ONE, node("box1", shard("alpha-1/0", incarnation="other")))
    state = observe(state, NodeRegistered(node("box1", TORN)), 1.0)
    held = next(s for s in state.nodes["box1"].shards if not s.missing)
    assert held.report == TORN


def test_a48_an_unclaimed_shard_of_a_higher_rank_is_stopped_too() -> None:
    """Taken up by its markers, so its world is not known: nobody counted it, and nobody stopped it."""
    half = shard("gone-1/1", world_size=None)
    plan = plan_of(ONE, node("box1", half, gpus=()))
    (stop, _wait) = plan.actions
    assert isinstance(stop, StopReplica)
    assert (stop.reason, [s.report.shard for s in stop.shards]) == ("model_removed", ["gone-1/1"])
    assert replicas(plan)["gone-1"].have == 1


def test_a21_what_is_charged_by_the_catalog_proves_nothing_when_that_changes() -> None:
    """The alarm of `check` rang when a model left the catalog whose engine had been taken up by its markers."""
    old = shard("gone-1/0", gpus=("box1-0",), resources=None)
    state = running(ONE, node("box1", old))
    start = Start(
        shard="alpha-1/0",
        replica="alpha-1",
        incarnation="i",
        model="alpha",
        profile="main",
        gpus=("box1-0",),
        port=18001,
        resources=Resources(gpu_memory_bytes=10 * GIB),
    )
    state = observe(state, Placed("box1", start), 1.0)
    assert violations(state, survey(state)) == []


def test_what_was_taken_up_by_its_markers_is_measured_once_it_is_up() -> None:
    """Its size is not known. Held whole by the agent, not by control, the GPU was asked for and refused without end."""
    order = replace(on_gpu(1), command=())
    found = Record(
        start=order, partial=True, state="ready", boot_id="boot-1", pid=50, start_ticks=5
    )
    used = replace(GPU0, memory_used_bytes=10 * GIB)
    for state, gib, says in (
        ("ready", 8, ""),
        ("ready", 16, "gpu_held"),
        ("starting", 8, "gpu_held"),
    ):
        bench = Bench(replace(found, state=state), heard=False)
        bench.identified(leader="same")
        bench.session("http://c1:8801", "s1", "L1")
        bench(GpusSeen((used, GPU1)))
        bench.command(on_gpu(2, gib=gib))
        assert (bench.kinds()[-1] == "Refuse") == bool(says), bench.kinds()


def test_a43_memory_listed_under_a_leader_that_died_by_itself_is_not_back() -> None:
    """Nobody had looked at its tree, so NVML's row of it was a stranger's, and level memory counted as back."""
    bench = Bench().ready(gpus=("GPU-0",))
    bench.exited(-11).tree()
    for _ in range(6):
        bench.memory(10 * GIB, 4711)
    assert not bench.record.watch.free
    for _ in range(4):
        bench.memory(0)
    assert bench.record.state == "pending"


def test_a_node_that_is_silent_keeps_what_it_runs_counted() -> None:
    """The law behind it all: silence starts nothing elsewhere (F61)."""
    state = running(ONE, node("box1", shard("alpha-1/0")), node("box2"))
    state = observe(state, SessionLost("box1"), 1.0)
    assert decide(at(state, settled_s=0.0), 500.0).actions == ()
