"""Which GPUs of a node, and which node: named ones, near ones, parts of cards, apart from its likes, learned (A62)."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from llmgw.core.capacity import holdings
from llmgw.core.place import Fleet, NoRoom, Placement, find, place, start_message, take
from llmgw.core.place.near import APART, NUMA, NVLINK, islands
from llmgw.core.types.catalog import Model, Profile
from llmgw.core.types.messages import Gpu, NodeReport, Resources
from llmgw.core.types.state import State
from tests.core.world import GIB, at, catalog, gpus, model, node, profile, settled, shard


def need(gib: float | None = 10, **k: Any) -> Profile:
    return profile(
        gpus=k.pop("gpus", 1), gpu_memory_bytes=None if gib is None else int(gib * GIB), **k
    )


def state_of(m: Model, *reports: NodeReport, **k: Any) -> State:
    return at(settled(catalog(m), *reports), **k)


def placed(m: Model | Profile, *reports: NodeReport, **k: Any) -> Placement:
    m = m if isinstance(m, Model) else model("alpha", m)
    state = state_of(m, *reports, **k)
    yes = place(state, holdings(state), m)
    assert isinstance(yes, Placement), yes
    return yes


def refused(m: Model | Profile, *reports: NodeReport, **k: Any) -> NoRoom:
    m = m if isinstance(m, Model) else model("alpha", m)
    state = state_of(m, *reports, **k)
    no = place(state, holdings(state), m)
    assert isinstance(no, NoRoom), no
    return no


# --- these very GPUs -------------------------------------------------------------------------


TWO = (node("box1", gpus=gpus("box1", 24, 24)), node("box2", gpus=gpus("box2", 12, 24)))


@pytest.mark.parametrize(
    ("exact", "count", "chosen"),
    [
        (("box1:1",), 1, ("box1-1",)),
        (("box2-1",), 1, ("box2-1",)),
        (("box1:0", "box1-1"), 2, ("box1-0", "box1-1")),
        (("box1:1", "box2:1"), 1, ("box1-1",)),  # either of them
        (("box1:0", "box2:0"), 1, ("box2-0",)),  # the tighter one
    ],
)
def test_gpus_exact_is_taken_by_its_word(
    exact: tuple[str, ...], count: int, chosen: tuple[str, ...]
) -> None:
    assert placed(need(gpus=count, gpus_exact=exact), *TWO).spots[0].gpus == chosen


def test_gpus_exact_over_two_nodes_names_those_of_each() -> None:
    deep = need(nodes=2, gpus_exact=("box1:1", "box2:0"))
    spots = placed(deep, *TWO).spots
    assert {(s.node, s.gpus) for s in spots} == {("box1", ("box1-1",)), ("box2", ("box2-0",))}


def test_gpus_exact_waits_for_its_card_though_another_is_free() -> None:
    full = shard("beta-1/0", gpus=("box1-0",), resources=Resources(gpu_memory_bytes=20 * GIB))
    box = node("box1", full, gpus=gpus("box1", 24, 24))
    assert refused(need(gpus_exact=("box1:0",)), box, TWO[1]).why == (
        "box1: GPU 0 has 4.0 of 24.0 GiB free, 10.0 needed (held by beta-1/0); "
        "box2: has 0 of the GPUs that gpus_exact names (box1:0), 1 needed"
    )


def test_gpus_exact_says_so_where_a_card_is_gone() -> None:
    assert refused(need(gpus_exact=("box1:3", "box1:1"), gpus=2), TWO[0]).why == (
        "box1: has 1 of the GPUs that gpus_exact names (box1:3, box1:1), 2 needed"
    )


# --- parts of cards, drained cards -----------------------------------------------------------


def test_a_mig_device_is_a_gpu_like_any_other() -> None:
    parts = tuple(
        Gpu(uuid=f"MIG-{i}", index=100 + i, name="MIG 1g.10gb", memory_bytes=10 * GIB)
        for i in range(2)
    )
    box = node("box1", gpus=parts)
    assert placed(need(None), box).spots[0].gpus == ("MIG-0",)
    assert placed(need(8, gpus_exact=("MIG-1",)), box).spots[0].gpus == ("MIG-1",)


def test_a_drained_gpu_or_node_takes_nothing_and_says_since_when() -> None:
    gpu = {("box1", "box1-0"): "since noon by ann"}
    assert placed(need(), TWO[0], cordoned=gpu).spots[0].gpus == ("box1-1",)
    one = node("box1", gpus=gpus("box1", 24))
    assert refused(need(), one, cordoned=gpu).why == "box1: GPU 0 is drained since noon by ann"
    whole = {("box1", ""): "since noon by ann"}
    assert refused(profile(), one, cordoned=whole).why == "box1: is drained since noon by ann"


# --- near to each other ----------------------------------------------------------------------


def linked(name: str, *pairs: tuple[int, int], sizes: tuple[float, ...] = (24, 24, 24, 24)) -> Any:
    """Cards on two NUMA nodes, two each, and NVLink between those pairs."""
    peers: dict[int, list[str]] = {}
    for a, b in pairs:
        peers.setdefault(a, []).append(f"{name}-{b}")
        peers.setdefault(b, []).append(f"{name}-{a}")
    return tuple(
        replace(g, numa=g.index // 2, nvlink=tuple(peers.get(g.index, ())))
        for g in gpus(name, *sizes)
    )


@pytest.mark.parametrize(
    ("pairs", "sizes", "count", "chosen"),
    [
        ([(1, 3)], (24, 24, 24, 24), 2, "1, 3 linked by NVLink"),
        ([], (12, 24, 24, 24), 2, "0, 1 on one NUMA node"),
        ([], (12, 24, 20, 20), 2, "0, 1 on one NUMA node"),
        ([], (24, 24, 20, 20), 2, "2, 3 on one NUMA node"),  # the tighter island
        ([(0, 1)], (24, 8, 24, 24), 2, "2, 3 on one NUMA node"),  # a link to one that is full
        ([(0, 1), (1, 2)], (24, 24, 24, 24), 3, "0, 1, 2 linked by NVLink"),  # by way of a third
        ([], (24, 24, 24, 24), 3, "0, 1, 2"),
        ([(0, 3)], (24, 24, 24, 12), 1, "3"),  # one alone has nobody to be near to
    ],
)
def test_gpus_that_are_near_to_each_other_come_first(
    pairs: list[tuple[int, int]], sizes: tuple[float, ...], count: int, chosen: str
) -> None:
    box = node("box1", gpus=linked("box1", *pairs, sizes=sizes))
    assert f"fits box1 GPU {chosen}, " in placed(need(gpus=count), box).why


def test_a_node_with_near_gpus_comes_before_a_tighter_one() -> None:
    tight = node("box1", gpus=gpus("box1", 12, 12))
    near = node("box2", gpus=linked("box2", (0, 1)))
    assert placed(need(gpus=2), tight, near).spots[0].node == "box2"
    assert placed(need(gpus=1), tight, near).spots[0].node == "box1"


def test_islands_of_cards_that_tell_nothing() -> None:
    plain = gpus("box1", 24, 24)
    assert [islands(plain, level) for level in (APART, NUMA, NVLINK)] == [
        (frozenset({"box1-0", "box1-1"}),),
        (),
        (),
    ]


# --- apart from its likes --------------------------------------------------------------------


def test_replicas_of_one_model_are_spread_over_nodes() -> None:
    m = model("alpha", need(), low=2, aliases=("old",))
    full = node("box1", shard("old-1/0", "old", gpus=("box1-0",)), gpus=gpus("box1", 24))
    over = shard("alpha-9/0", state="failed", gpus=(), port=18007)
    assert placed(m, full, node("box2", over, gpus=gpus("box2", 48))).spots[0].node == "box2"
    assert placed(m, full).spots[0].node == "box1"  # better together than not at all
    single = model("alpha", need(), low=1)
    assert placed(single, full, node("box2", gpus=gpus("box2", 48))).spots[0].node == "box1"


def test_what_this_pass_has_placed_counts_for_the_spread_until_it_is_taken_back() -> None:
    m = model("alpha", need(), low=2)
    state = state_of(m, node("box1"), node("box2", gpus=gpus("box2", 48)))
    fleet = Fleet(state, holdings(state))
    first = find(fleet, m)
    assert isinstance(first, Placement)
    mark = fleet.mark()
    take(fleet, m, first)
    second = find(fleet, m)
    assert isinstance(second, Placement)
    assert (first.spots[0].node, second.spots[0].node) == ("box1", "box2")
    fleet.reset(mark)
    assert find(fleet, m) == first


def test_a_further_replica_waits_for_a_node_of_its_own() -> None:
    m = model("alpha", need(), low=2)
    loading = node("box2", shard("b-1/0", state="loading", gpus=(), port=18001))
    no = refused(m, node("box1", shard("alpha-1/0", gpus=("box1-0",))), loading)
    assert (no.soon, no.then and no.then.spots[0].node) == (True, "box2")


def test_a_node_that_no_weights_are_named_for_is_refused() -> None:
    here = profile(weights={"box2": "/m/a.gguf"})
    cat = catalog(model("alpha", here, low=1))
    state = settled(cat, node("box1"))
    answer = place(state, holdings(state), cat.models["alpha"])
    assert answer.why == "box1: profile main names weights for box2 only"
    state = settled(cat, node("box1"), node("box2"))
    answer = place(state, holdings(state), cat.models["alpha"])
    assert isinstance(answer, Placement)
    assert answer.spots[0].node == "box2"


# --- learned ---------------------------------------------------------------------------------


def test_a62_what_earlier_runs_held_counts_where_it_is_more_than_declared() -> None:
    box = node("box1", gpus=gpus("box1", 12, 24))
    m = model("alpha", need(10, fingerprints={"default": "1:a"}))
    assert placed(m, box, learned={"1:a": 9 * GIB}).spots[0].gpus == ("box1-0",)
    assert placed(m, box, learned={"1:a": 16 * GIB}).spots[0].gpus == ("box1-1",)
    assert refused(m, box, learned={"1:a": 30 * GIB}).why == (
        "box1: GPU 1 has 24.0 of 24.0 GiB free, 30.0 needed; it held so much before, "
        "its gpu_memory says 10.0 (llmgw clear forgets what it held), the nearest of 2"
    )
    state = state_of(m, box, learned={"1:a": 16 * GIB})
    spots = placed(m, box, learned={"1:a": 16 * GIB}).spots
    ((_, start),) = start_message(state, m, ("main", spots), "alpha-1", "inc")
    assert start.resources.gpu_memory_bytes == 16 * GIB


def test_what_was_learned_may_differ_by_node_with_the_weights() -> None:
    prints = {"box1": "1:a", "box2": "1:b"}
    m = model("alpha", need(10, fingerprints=prints, weights={"box1": "/a", "box2": "/b"}))
    learned = {"1:a": 30 * GIB, "1:b": 11 * GIB}
    yes = placed(m, node("box1"), node("box2"), learned=learned)
    assert yes.spots[0].node == "box2"
    assert "30.0 needed" in refused(m, node("box1"), learned=learned).why


def test_of_a_whole_gpu_nothing_is_learned() -> None:
    m = model("alpha", need(None, fingerprints={"default": "1:a"}))
    assert placed(m, node("box1"), learned={"1:a": 80 * GIB}).spots[0].node == "box1"


# --- fleets that do not go into a sentence ---------------------------------------------------


def test_a62_of_a_large_fleet_the_nodes_that_come_nearest_are_named() -> None:
    boxes = [node(f"box{i:02}", gpus=gpus(f"box{i:02}", i + 1)) for i in range(12)]
    why = refused(need(40), *boxes).why
    assert why.startswith("box04: GPU 0 has 5.0 of 5.0 GiB free, 40.0 needed; box05: ")
    assert why.endswith(
        "box11: GPU 0 has 12.0 of 12.0 GiB free, 40.0 needed; and 4 more nodes likewise"
    )
    deep = refused(need(40, nodes=2), *boxes).why
    assert deep.startswith("0 of 2 nodes fit; box04: ")
    assert refused(need(pool="x"), *boxes).why.startswith(
        "box00: is in pools default, not in x; box01"
    )


def test_of_many_nodes_that_start_something_a_few_are_named() -> None:
    boxes = [
        node(f"box{i}", shard(f"b{i}-1/0", state="loading", gpus=(), port=18001)) for i in range(5)
    ]
    no = refused(profile(), *boxes)
    assert no.soon
    assert no.why.endswith("; and on other nodes likewise")
    assert no.why.count("still starting there") == 3


def test_of_a_large_fleet_a_node_with_unequal_cards_is_named_once() -> None:
    sizes = [(24, 16) if i < 5 else (8, 8) for i in range(10)]
    boxes = [node(f"box{i}", gpus=gpus(f"box{i}", *size)) for i, size in enumerate(sizes)]
    state = settled(catalog(m := model("alpha", need(30))), *boxes)
    answer = place(state, holdings(state), m)
    assert isinstance(answer, NoRoom)
    assert answer.why.count("GPU 0 has 24.0 of 24.0 GiB free, 30.0 needed, the nearest of 2") == 5
    assert answer.why.count("GPU 0 has 8.0 of 8.0 GiB free, 30.0 needed, the nearest of 2") == 3
    assert answer.why.endswith("; and 2 more nodes likewise")
