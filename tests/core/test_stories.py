"""What went wrong on real clusters, replayed as it was told (the lines *Story* and *Gap seen* of acceptance.md).

Those that stand elsewhere, as examples of their statement: A20, A26, A31 in test_adopt, A36 in test_adopt_known, A67 in
test_reconcile; and all of them as whole histories in tests/scripts.
"""

from __future__ import annotations

from msgspec.structs import replace

from llmgw.core import route
from llmgw.core.adopt.survey import survey
from llmgw.core.capacity import holdings
from llmgw.core.reconcile.decide import decide
from llmgw.core.reconcile.fresh import Memory, started
from llmgw.core.reconcile.observe import observe
from llmgw.core.types.catalog import Catalog, Scaling
from llmgw.core.types.messages import NodeReport, Resources
from llmgw.core.types.plan import Spot, StartReplica
from llmgw.core.types.state import (
    Announced,
    DrainBegun,
    Event,
    NodeRegistered,
    Published,
    SessionLost,
    ShardsChanged,
    State,
    Tick,
)
from tests.core.world import (
    ALPHA,
    DEEP,
    GIB,
    actions,
    begun,
    catalog,
    demand,
    gpus,
    half,
    model,
    node,
    place_at,
    profile,
    replicas,
    running,
    shard,
    verdicts,
)

ON = ("box1-0",)
FULL: NodeReport = node("box1", shard("alpha-1/0", gpus=ON))


def told(state: State, *events: Event, now: float = 1.0) -> State:
    for event in (*events, Tick()):
        state = observe(state, event, now)
    return state


def routed(state: State, name: str = "alpha") -> dict[str, str]:
    table = route.table(state, survey(state), 7)
    return {r.replica: r.endpoint for r in table.models[name].replicas if r.state == "ready"}


def spot_of(state: State) -> Spot:
    """Where the one start of this moment goes."""
    (start,) = (a for a in decide(state, 1.0).actions if isinstance(a, StartReplica))
    return start.spots[0]


# --- a restart -------------------------------------------------------------------------------

TRIO = catalog(*(model(m, profile(gpus=1, gpu_memory_bytes=20 * GIB), low=1) for m in "abc"))
FLEET = [node(f"box{i}", shard(f"{m}-1/0", m, gpus=(f"box{i}-0",))) for i, m in enumerate("abc", 1)]


def test_a2_an_empty_view_placed_duplicates_which_failed_to_allocate() -> None:
    """Ours waits until all are heard: with the last picture, and without one."""
    lost = Memory(epoch=1)
    known = Memory(nodes=tuple((r, False) for r in FLEET), epoch=1)
    for memory in (known, lost):
        state = started(TRIO, memory, now=0.0, settle_timeout_s=60.0, keep_unknown=False)
        for n, report in enumerate(FLEET):
            assert decide(state, n * 5.0).actions == ()
            heard = NodeRegistered(replace(report, epoch_seen=1))
            state = told(state, heard, now=n * 5.0)
        state = told(state, now=40.0)
        assert not state.settling
        assert set(verdicts(decide(state, 40.0)).values()) == {"adopt"}
        assert decide(state, 40.0).actions == ()


def test_a13_an_early_empty_registration_left_a_running_shard_failed_and_unallocated_for_ever() -> (
    None
):
    """Ours repairs state and holdings with the next report, whatever the early one said."""
    whole = shard("alpha-1/0", gpus=ON)
    early = replace(whole, state="failed", error="no such process", gpus=(), port=0, endpoint="")
    for was in (NodeRegistered(node("box1", early)), NodeRegistered(node("box1"))):
        state = told(running(ALPHA, node("box1", whole)), was)
        state = told(state, Announced(frozenset({"inc-alpha-1"})), NodeRegistered(FULL), now=2.0)
        (kept,) = state.nodes["box1"].shards
        assert (kept.report, kept.missing) == (whole, False)
        assert holdings(state)["box1"].gpus["box1-0"].by == ("alpha-1/0",)
        assert replicas(decide(state, 2.0))["alpha-1"].state == "ready"
        assert routed(state) == {"alpha-1": whole.endpoint}


def test_a24_every_awake_on_demand_model_was_drained_at_every_failover() -> None:
    """Ours: none of three before the timeout, each once after it; a later failover begins the timeout anew."""
    lazy = [model(m, scaling=Scaling(idle_timeout_s=100.0, min_up_s=0.0)) for m in "abc"]
    cat = catalog(*lazy)
    awake = [shard(f"{m}-1/0", m, port=18000 + i) for i, m in enumerate("abc")]
    report = node("box1", *(replace(s, last_request_age_s=9000.0) for s in awake))
    memory = Memory(nodes=((report, False),))
    state = started(cat, memory, now=0.0, settle_timeout_s=60.0, keep_unknown=False)
    for term_s in (0.0, 90.0, 180.0):
        state = started(cat, memory, now=term_s, settle_timeout_s=60.0, keep_unknown=False)
        assert state.wanted_s == {}
        state = told(state, NodeRegistered(report), now=term_s)
        assert state.wanted_s == dict.fromkeys("abc", term_s)
        assert decide(state, term_s + 99.0).actions == ()
    drains = decide(told(state, now=280.0), 280.0).actions
    assert [a.model for a in drains] == ["a", "b", "c"]
    for m in "abc":
        state = observe(state, DrainBegun(f"inc-{m}-1", "idle", ""), 280.0)
    assert decide(state, 281.0).actions == ()


# --- several nodes ---------------------------------------------------------------------------


def test_a28_two_starting_one_blips_and_its_gpu_counted_as_free() -> None:
    loading = [node(f"box{r + 1}", half(r, state="loading")) for r in (0, 1)]
    state = running(DEEP, *loading)
    for event in (SessionLost("box2"), NodeRegistered(loading[1])):
        state = told(state, event)
        held = holdings(state)
        assert [held[f"box{n}"].gpus[f"box{n}-0"].by for n in (1, 2)] == [
            ("deep-1/0",),
            ("deep-1/1",),
        ]
        assert decide(state, 1.0).actions == ()
    assert replicas(decide(state, 1.0))["deep-1"].have == 2


def test_a30_gpus_were_handed_out_twice() -> None:
    """Each adopted shard takes all it has on its own node; what is started next goes where there is room."""
    need = profile(
        gpus=1, gpu_memory_bytes=10 * GIB, host_memory_bytes=8 * GIB, cpu_cores=4, power_w=300
    )
    cat = catalog(model("deep", profile(nodes=2), low=1), model("alpha", need, low=1))
    whole = Resources(gpu_memory_bytes=None, host_memory_bytes=60 * GIB, cpu_cores=13, power_w=1800)
    halves = [
        half(r, hcas=(f"mlx5_{r}",), port=18000, ports={"group": 18001}, resources=whole)
        for r in (0, 1)
    ]
    boxes = [node(f"box{r + 1}", h, gpus=gpus(f"box{r + 1}", 24, 24)) for r, h in enumerate(halves)]
    state = running(cat, *boxes)
    for r, box in enumerate(("box1", "box2")):
        held = holdings(state)[box]
        assert (held.gpus[f"{box}-0"].by, held.gpus[f"{box}-0"].whole) == (
            (f"deep-1/{r}",),
        ) * 1 + (f"deep-1/{r}",)
        assert held.hcas == {f"mlx5_{r}": f"deep-1/{r}"}
        assert held.ports == {18000: f"deep-1/{r}", 18001: f"deep-1/{r}"}
        assert (held.host_memory_bytes, held.cpu_cores, held.power_w) == (60 * GIB, 13, 1800)
    (wait,) = decide(state, 0.0).actions
    assert wait.why.endswith(
        "box1: host memory: 4.0 of 64.0 GiB free, 8.0 needed; "
        "box2: host memory: 4.0 of 64.0 GiB free, 8.0 needed"
    )
    assert spot_of(told(state, NodeRegistered(node("box3")))).node == "box3"


def test_a27_repeats_carried_a_replica_past_its_count() -> None:
    state = running(DEEP, node("box1", half(0)), node("box2", half(1)))
    for _ in range(5):
        state = told(state, NodeRegistered(node("box1", half(0))))
        state = told(state, ShardsChanged("box2", (half(1),)))
        deep = replicas(decide(state, 1.0))["deep-1"]
        assert (deep.have, deep.want, deep.state) == (2, 2, "ready")


# --- copies, the dead, and what is in the way ------------------------------------------------


def test_a35_a_reconnecting_agent_was_told_to_stop_the_very_replica_that_served() -> None:
    """Ours served all along, and no older copy changes that, however often both agents come back."""
    ours = node("box1", shard("alpha-1/0", started_at="2026-03-01T00:00:00Z"))
    older = node("box2", shard("alpha-1/0", incarnation="older"))
    state = running(ALPHA, ours)
    state = observe(state, Published(7, frozenset({"inc-alpha-1"}), frozenset()), 1.0)
    for report in (older, ours, older, ours):
        state = told(state, SessionLost(report.node), NodeRegistered(report), now=2.0)
        plan = decide(state, 2.0)
        assert verdicts(plan)["box1:alpha-1/0"] == "keep"
        for action in plan.actions:
            assert "inc-alpha-1" not in {s.incarnation for s in getattr(action, "shards", ())}


def test_a41_a_dead_replica_stayed_ready_on_a_dead_port_for_as_long_as_anyone_watched() -> None:
    """Ours: within the one registration it is neither ready nor routed, the loss shows, and a new one is placed."""
    state = running(ALPHA, node("box1", shard("alpha-1/0", gpus=ON)))
    assert routed(state)
    state = told(state, SessionLost("box1"), NodeRegistered(node("box1")))
    plan = decide(state, 1.0)
    assert routed(state) == {}
    assert "alpha-1" not in replicas(plan)
    assert verdicts(plan) == {"box1:alpha-1/0": "forget not_running"}
    assert actions(plan) == ["start alpha"]


def test_a43_a_new_shard_got_the_port_failed_to_bind_and_another_was_placed_on_it() -> None:
    """A loop that did not end on its own. Ours keeps the port, and the GPU, until the exit is verified."""
    stray = shard("gone-1/0", gpus=ON, resources=Resources(gpu_memory_bytes=20 * GIB))
    box = gpus("box1", 24, 24)
    state = running(ALPHA, node("box1", stray, gpus=box))
    for going in ({"desired": "stopped"}, {"desired": "stopped", "state": "stopping"}):
        state = told(state, ShardsChanged("box1", (replace(stray, **going),)))
        assert (spot_of(state).port, spot_of(state).gpus) == (18001, ("box1-1",))
    over = ShardsChanged("box1", (replace(stray, state="stopped", desired="stopped"),))
    assert spot_of(told(state, over)).port == 18000


def test_a50_recovery_published_an_empty_table_and_traffic_stopped() -> None:
    fleet = [
        node(f"box{n}", shard(f"alpha-{n}/0", endpoint=f"http://box{n}:18000")) for n in (1, 2)
    ]
    cat: Catalog = catalog(model("alpha", low=2, high=2))
    state = begun(cat, *fleet)
    everyone = {"alpha-1": "http://box1:18000", "alpha-2": "http://box2:18000"}
    assert routed(state) == everyone
    for report in fleet:
        state = told(state, NodeRegistered(report))
        assert routed(state) == everyone


def test_a8_a_shard_placed_between_adopting_and_forgetting_was_marked_failed() -> None:
    """Ours is dropped, for its order never arrived, and placed again; it is no failure of its model."""
    state = place_at(running(ALPHA, node("box1")), "box1")
    state = told(state, NodeRegistered(node("box1")))
    assert (state.nodes["box1"].shards, state.failures) == ((), {})
    assert actions(decide(state, 1.0)) == ["start alpha"]


def test_a63_eviction_hit_a_model_that_was_loading_queued_or_generating() -> None:
    """The commonest complaint of all: ours sleeps only what nobody waits for or is served by."""
    lazy = catalog(model("alpha", scaling=Scaling(idle_timeout_s=100.0, min_up_s=0.0)))
    loading = running(lazy, node("box1", shard("alpha-1/0", state="loading")))
    ready = running(lazy, node("box1", shard("alpha-1/0")))
    serving = observe(ready, demand(in_flight={"alpha-1": 1}), 995.0)
    queued = observe(ready, demand(waiting={"alpha": 1}), 995.0)
    for state in (loading, serving, queued):
        assert decide(state, 1000.0).actions == ()
    assert actions(decide(ready, 1000.0)) == ["drain alpha"]
