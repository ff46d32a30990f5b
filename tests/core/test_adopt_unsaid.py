"""What an older agent leaves out is unknown, never different; what a report says twice or out of order changes nothing.

The facts are those of A10, A12, A13, A17 and F55, seen over two nodes or two control starts.
"""

from __future__ import annotations

import itertools

from msgspec.structs import replace

from llmgw.core import route
from llmgw.core.adopt.survey import survey
from llmgw.core.reconcile.decide import decide
from llmgw.core.reconcile.fresh import Memory, after_settling
from llmgw.core.types.catalog import Catalog
from llmgw.core.types.messages import NodeReport, Resources, ShardReport
from llmgw.core.types.plan import Plan
from tests.core.world import (
    GIB,
    actions,
    catalog,
    model,
    node,
    plan_of,
    profile,
    replicas,
    settled,
    shard,
    verdicts,
)

ALPHA = catalog(model("alpha", profile(), low=1))
DEEP = catalog(model("deep", profile(nodes=2), low=1))


def again(cat: Catalog, before: NodeReport, *reports: NodeReport) -> Plan:
    """What a control decides that remembers `before` and is told `reports`."""
    return decide(after_settling(cat, Memory(nodes=((before, False),)), reports), 0.0)


def nameless(s: ShardReport) -> ShardReport:
    return replace(s, incarnation="")


def half(rank: int, **k: object) -> ShardReport:
    return shard(f"deep-1/{rank}", "deep", world_size=2, **k)


def test_f55_an_engine_whose_agent_stops_saying_its_incarnation_is_the_one_we_knew() -> None:
    alpha = shard("alpha-1/0")
    for before, now in ((alpha, nameless(alpha)), (nameless(alpha), alpha)):
        plan = again(ALPHA, node("box1", before), node("box1", now))
        assert verdicts(plan) == {"box1:alpha-1/0": "adopt"}
        assert actions(plan) == []


def test_f55_another_engine_without_an_incarnation_is_another_engine() -> None:
    other = nameless(shard("alpha-2/0"))
    plan = again(ALPHA, node("box1", shard("alpha-1/0")), node("box1", other))
    assert verdicts(plan) == {
        "box1:alpha-1/0": "forget not_running",
        "box1:alpha-2/0": "adopt",
    }


def test_f55_halves_of_an_older_and_a_newer_agent_are_one_replica() -> None:
    for a, b in ((half(0), nameless(half(1))), (nameless(half(0)), half(1))):
        plan = plan_of(DEEP, node("box1", a), node("box2", b))
        assert verdicts(plan) == {"box1:deep-1/0": "adopt", "box2:deep-1/1": "join"}
        assert replicas(plan)["deep-1"].state == "ready"
        assert actions(plan) == []


def test_a37_a_copy_without_an_incarnation_stays_a_copy() -> None:
    younger = nameless(half(0, started_at="2026-02-01T00:00:00Z"))
    plan = plan_of(DEEP, node("box1", half(0)), node("box2", younger))
    assert verdicts(plan)["box2:deep-1/0"] == "conflict duplicate_replica"
    beyond = shard("deep-1/7", world_size=2, incarnation="")
    plan = plan_of(DEEP, node("box1", half(0), half(1)), node("box2", beyond))
    assert verdicts(plan)["box2:deep-1/7"] == "conflict duplicate_rank"
    unsure = replace(half(1), incarnation="", world_size=3)
    plan = plan_of(DEEP, node("box1", half(0)), node("box2", unsure))
    assert replicas(plan)["deep-1"].have == 1


def test_f55_an_engine_that_nobody_says_the_model_of_is_left_alone() -> None:
    """A missing model is unknown, and unknown is not removed: it holds what it has and is not stopped."""
    unsaid = replace(shard("alpha-1/0", gpus=("box1-0",)), model="")
    plan = plan_of(catalog(model("alpha", profile(gpus=1), low=1)), node("box1", unsaid))
    assert verdicts(plan) == {"box1:alpha-1/0": "hold"}
    assert plan.verdicts[0].why == "cannot tell: its agent does not say what it runs"
    assert actions(plan) == []  # by its name it is one of alpha, so another is not wanted


def test_a12_a_refused_shard_was_never_believed() -> None:
    refused = replace(shard("alpha-1/0"), node="box9")
    plan = again(catalog(model("alpha", profile())), node("box1", refused), node("box1"))
    assert verdicts(plan) == {}


def test_a13_an_early_report_forgets_nothing() -> None:
    two = (shard("alpha-1/0"), shard("alpha-2/0", port=18001))
    cat = catalog(model("alpha", profile(), low=2, high=2))
    for early in ((), two[:1]):
        plan = again(cat, node("box1", *two), node("box1", *early, reattached=False), node("box2"))
        assert verdicts(plan) == {
            "box1:alpha-1/0": "hold node_silent",
            "box1:alpha-2/0": "hold node_silent",
        }
        assert actions(plan) == []
        assert not plan.complete


def test_a17_disagreeing_fingerprints_are_a_conflict() -> None:
    plan = plan_of(DEEP, node("box1", half(0)), node("box2", half(1, fingerprint="1:bbbb")))
    assert verdicts(plan) == {"box1:deep-1/0": "adopt drift", "box2:deep-1/1": "conflict drift"}
    assert plan.verdicts[1].why == "its fingerprint is 1:bbbb, deep-1/0 has 1:aaaa"
    plan = plan_of(DEEP, node("box1", half(0, fingerprint="")), node("box2", half(1)))
    assert verdicts(plan) == {"box1:deep-1/0": "adopt", "box2:deep-1/1": "join"}


def test_a17_fingerprints_that_differ_with_the_weights_of_their_nodes_agree() -> None:
    fingerprints = {"default": "1:aaaa", "box2": "1:bbbb"}
    cat = catalog(model("deep", profile(nodes=2, fingerprints=fingerprints), low=1))
    whole = plan_of(cat, node("box1", half(0)), node("box2", half(1, fingerprint="1:bbbb")))
    assert verdicts(whole) == {"box1:deep-1/0": "adopt", "box2:deep-1/1": "join"}
    torn = plan_of(cat, node("box1", half(0)), node("box2", half(1, fingerprint="1:cccc")))
    assert verdicts(torn)["box2:deep-1/1"] == "conflict drift"


def test_a17_disagreeing_pools_are_a_conflict() -> None:
    plan = plan_of(DEEP, node("box1", half(0, pool="a")), node("box2", half(1, pool="b")))
    assert verdicts(plan) == {"box1:deep-1/0": "adopt", "box2:deep-1/1": "conflict"}
    assert plan.verdicts[1].why == "it is on pool b, the replica on a"


def test_a10_words_do_not_depend_on_the_order_of_shards_or_nodes() -> None:
    whole = Resources(gpu_memory_bytes=None)
    twins = tuple(
        shard(f"alpha-{n}/0", gpus=("box1-0",), port=18000 + n, resources=whole) for n in (1, 2)
    )
    twice = tuple(shard("alpha-3/0", port=port, pid=port) for port in (18003, 18004))
    leaving = tuple(
        shard(f"alpha-{n}/0", port=18000 + n, desired="draining", state="draining") for n in (5, 6)
    )
    drifted = catalog(
        model("alpha", profile(fingerprints={"default": "1:new"}), low=1, high=9),
        model("beta", profile(gpus=1, gpu_memory_bytes=GIB), low=1),
    )
    box1 = [
        node("box1", *shards) for shards in itertools.permutations((*twins, *twice, leaving[0]))
    ]
    box2 = node("box2", leaving[1], gpus=())
    plans = [plan_of(drifted, b, box2) for b in box1[::7]] + [plan_of(drifted, box2, box1[0])]
    assert all(p == plans[0] for p in plans)


def test_a25_the_age_counts_shards_on_silent_nodes() -> None:
    old = half(0, started_at="2025-01-01T00:00:00Z")
    plan = again(DEEP, node("box1", old), node("box2", half(1)))
    assert replicas(plan)["deep-1"].started_at == "2025-01-01T00:00:00Z"


def test_f55_halves_found_by_their_markers_are_one_replica_though_neither_says_of_how_many() -> (
    None
):
    """Their records were torn, so their agents know no world size; one agent is older besides, even too old."""
    for protocol, verdict in ((1, "join"), (0, "hold protocol_too_old")):
        a, b = (half(rank, port=18000 + rank) for rank in (0, 1))
        a, b = replace(a, world_size=None), replace(nameless(b), world_size=None)
        state = settled(DEEP, node("box1", a), node("box2", b, protocol=protocol))
        plan = decide(state, 1000.0)
        assert verdicts(plan)["box2:deep-1/1"] == verdict
        assert [r.replica for r in plan.replicas] == ["deep-1"]
        assert actions(plan) == []


def test_f55_a_group_of_which_one_agent_is_too_old_goes_on_being_routed() -> None:
    """It runs as it did; only its agent leaves the incarnation out and takes no orders."""
    state = settled(DEEP, node("box1", half(0)), node("box2", nameless(half(1)), protocol=0))
    found = route.table(state, survey(state), 1).models["deep"]
    assert [(r.replica, r.state) for r in found.replicas] == [("deep-1", "ready")]
