"""Where a replica goes, or the one sentence that says why nowhere (A62): best fit, never overbooked, deterministic."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from llmgw.core.capacity import holdings
from llmgw.core.place import NoRoom, Placement, counted, place, start_message
from llmgw.core.reconcile.observe import observe
from llmgw.core.types.catalog import Catalog, Model, Profile, Ready, Restart, Stop
from llmgw.core.types.messages import Capacity, Fabric, Foreign, NodeReport, Peer, Resources, Start
from llmgw.core.types.plan import Spot
from llmgw.core.types.state import Refused, SessionLost
from tests.core.world import GIB, at, catalog, gpus, model, node, profile, settled, shard


def answer(
    wanted: Profile | Model, *reports: NodeReport, cat: Catalog | None = None, **k: Any
) -> Placement | NoRoom:
    m = wanted if isinstance(wanted, Model) else model("alpha", wanted)
    state = at(settled(cat or catalog(m), *reports), **k)
    return place(state, holdings(state), m)


def refusal(wanted: Profile | Model, *reports: NodeReport, **k: Any) -> str:
    no = answer(wanted, *reports, **k)
    assert isinstance(no, NoRoom), no
    return no.why


def spot(wanted: Profile | Model, *reports: NodeReport, **k: Any) -> Spot:
    yes = answer(wanted, *reports, **k)
    assert isinstance(yes, Placement), yes
    (there,) = yes.spots
    return there


def need(gib: float | None = 10, **k: Any) -> Profile:
    return profile(
        gpus=k.pop("gpus", 1), gpu_memory_bytes=None if gib is None else int(gib * GIB), **k
    )


# --- best fit --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("wanted", "sizes", "chosen"),
    [
        (need(10), (24, 12, 16), ("box1-1",)),
        (need(14), (24, 12, 16), ("box1-2",)),
        (need(None), (24, 12, 16), ("box1-1",)),  # the smallest whole one
        (need(10, gpus=2), (24, 12, 16), ("box1-1", "box1-2")),
        (need(10, gpus=2), (24, 48, 12), ("box1-0", "box1-2")),  # by index, not by fit
        (need(10), (12, 12), ("box1-0",)),
    ],
)
def test_a62_the_gpus_with_least_left_over_are_taken(
    wanted: Profile, sizes: tuple[int, ...], chosen: tuple[str, ...]
) -> None:
    assert spot(wanted, node("box1", gpus=gpus("box1", *sizes))).gpus == chosen


def test_a62_the_node_with_least_left_over_is_taken_and_the_sentence_says_what_is_left() -> None:
    yes = answer(
        need(10, gpus=2),
        node("box1", gpus=gpus("box1", 24, 24)),
        node("box2", gpus=gpus("box2", 12, 8, 12)),
    )
    assert yes == Placement(
        "main",
        (Spot(node="box2", gpus=("box2-0", "box2-2"), port=18000),),
        "fits box2 GPU 0, 2, 4.0 GiB left there",
    )


def test_a62_a_gpu_that_is_shared_already_is_filled_before_an_empty_one() -> None:
    full = shard("beta-1/0", gpus=("box1-1",), port=18005)
    assert spot(need(10), node("box1", full, gpus=gpus("box1", 24, 24))).gpus == ("box1-1",)


def test_a_cpu_engine_goes_where_least_runs_then_by_name() -> None:
    busy = node("box1", shard("beta-1/0"))
    yes = answer(profile(), busy, node("box3"), node("box2"))
    assert yes == Placement("main", (Spot(node="box2", port=18000),), "fits box2 on its CPU")


def test_a62_measured_memory_counts_where_it_is_more_than_reserved() -> None:
    used = node("box1", gpus=gpus("box1", 24, 24, used={0: 20}))
    assert spot(need(10), used).gpus == ("box1-1",)


def test_ports_that_shards_strangers_and_refusals_hold_are_passed_over() -> None:
    box = node("box1", shard("beta-1/0", port=18000), foreign=(Foreign(pid=1, port=18001),))
    no = Refused("box1", "port 18002", 60.0, "in use")
    assert spot(profile(), box, refused=(no,)).port == 18003
    narrow = replace(box, capacity=Capacity(ports=(18000, 18003)))
    assert spot(profile(), narrow, refused=(no,)).port == 18003


# --- one sentence naming the tightest resource -----------------------------------------------


SMALL = node("box1", gpus=gpus("box1", 24, 12, 16))


@pytest.mark.parametrize(
    ("wanted", "box", "why"),
    [
        (need(30), SMALL, "GPU 0 has 24.0 of 24.0 GiB free, 30.0 needed, the nearest of 3"),
        (
            need(20, gpus=2),
            SMALL,
            "1 of 2 GPUs fit, GPU 2 has 16.0 of 16.0 GiB free, 20.0 needed, the nearest of 2",
        ),
        (
            need(10, gpus=4),
            SMALL,
            "has 3 GPUs, 4 needed",
        ),
        (need(), node("box1", gpus=()), "has no GPU"),
        (need(), node("box1", gpus=None), "its GPUs are not known (driver not up?)"),
        (need(pool="fast"), SMALL, "is in pools default, not in fast"),
        (need(), node("box1", pools=()), "is in pools none, not in default"),
        (
            need(select={"arch": "arm", "disk": "ssd"}),
            node("box1", labels={"arch": "arm"}),
            "label disk is not set, ssd is wanted",
        ),
        (
            need(select={"disk": "ssd", "arch": "arm"}),
            node("box1", labels={"arch": "x86"}),
            "label arch is x86, arm is wanted",
        ),
        (need(fabric="ib0"), SMALL, "is not on fabric ib0"),
        (need(cpu_cores=17.0), SMALL, "CPU cores: 16 of 16 cores free, 17 needed"),
        (need(power_w=2500.0), SMALL, "power: 2000 of 2000 W free, 2500 needed"),
        (
            need(host_memory_bytes=65 * GIB),
            SMALL,
            "host memory: 64.0 of 64.0 GiB free, 65.0 needed",
        ),
        (
            profile(),
            node("box1", shard("b-1/0", port=18000), capacity=Capacity(ports=(18000, 18000))),
            "no port of 18000-18000 is free",
        ),
    ],
)
def test_a62_what_is_in_the_way_on_a_node_is_said_with_the_figures(
    wanted: Profile, box: NodeReport, why: str
) -> None:
    assert refusal(wanted, box) == f"box1: {why}"


def test_a62_each_node_says_its_own_tightest_resource_and_names_the_holders() -> None:
    holder = shard("beta-1/0", gpus=("box1-0",), resources=Resources(gpu_memory_bytes=20 * GIB))
    m = model("alpha", need(10))
    state = settled(
        catalog(m), node("box1", holder), node("box2"), node("box3"), node("box4", protocol=0)
    )
    state = observe(state, SessionLost("box2"), 1.0)
    state = at(state, refused=(Refused("box3", "node", 60.0, "its disk is full"),))
    no = place(state, holdings(state), m)
    assert no == NoRoom(
        "main",
        "box1: GPU 0 has 4.0 of 24.0 GiB free, 10.0 needed (held by beta-1/0); "
        "box2 is not connected; box3: its disk is full; "
        "box4 has an agent of protocol 0, too old for new work: upgrade it",
    )


def test_a43_what_is_being_stopped_is_still_in_the_way_and_named() -> None:
    stray = shard("gone-1/0", gpus=("box1-0",), state="stopping", resources=Resources())
    assert refusal(need(1), node("box1", stray)) == "box1: GPU 0 is held whole by gone-1/0"


def test_with_no_node_at_all_that_is_the_reason() -> None:
    assert refusal(need()) == "no node is registered"


def test_any_fabric_is_no_condition_for_one_node_and_a_named_one_is() -> None:
    wired = node("box2", fabrics={"ib0": Fabric(address="10.1.0.2")})
    assert spot(need(fabric="any"), node("box1")).node == "box1"
    assert spot(need(fabric="ib0"), node("box1"), wired).node == "box2"


def test_labels_and_pools_choose_the_node() -> None:
    fast = node("box2", labels={"disk": "ssd"}, pools=("default", "fast"))
    assert spot(need(select={"disk": "ssd"}, pool="fast"), node("box1"), fast).node == "box2"


# --- circuits and the start limit ------------------------------------------------------------


def office(*shards: Any, name: str = "box1") -> NodeReport:
    return node(name, *shards, circuit="office", capacity=Capacity())


def drawing(watts: float, name: str = "beta-1/0", **k: Any) -> Any:
    return shard(name, resources=Resources(gpu_memory_bytes=GIB, power_w=watts), **k)


def test_a59_a_circuit_is_not_overdrawn_by_its_nodes_together() -> None:
    hungry = model("alpha", profile(power_w=400.0))
    cat = catalog(hungry, circuits={"office": 1000.0})
    other = office(drawing(700), name="box2")
    why = "circuit office: 300 of 1000 W free, 400 needed"
    assert refusal(hungry, office(), other, cat=cat) == f"box1: {why}; box2: {why}"
    assert spot(hungry, office(), node("box2", drawing(700)), cat=cat).node == "box1"
    exact = model("alpha", profile(power_w=300.0))
    assert spot(exact, office(), other, cat=cat).node == "box1"
    modest = model("alpha", profile())
    assert spot(modest, office(), other, cat=cat).node == "box1"
    small = model("alpha", profile(power_w=0.2))
    last = catalog(small, circuits={"office": 0.3})  # 0.1 + 0.2 is more, by rounding alone
    assert spot(small, office(drawing(0.1)), cat=last).node == "box1"


def test_a_circuit_nobody_described_limits_nothing() -> None:
    hungry = model("alpha", profile(power_w=9e9))
    assert spot(hungry, office(), cat=catalog(hungry)).node == "box1"


def test_a_circuit_that_lost_watts_since_says_none_free() -> None:
    hungry = model("alpha", profile(power_w=1.0))
    cat = catalog(hungry, circuits={"office": 500.0})
    why = "box1: circuit office: 0 of 500 W free, 1 needed"
    assert refusal(hungry, office(drawing(700)), cat=cat) == why


@pytest.mark.parametrize(
    ("limit", "names", "why"),
    [
        (1, ("b-1/0",), "b-1/0 is still starting there, 1 start at a time"),
        (1, ("c-1/0", "b-1/0"), "b-1/0, c-1/0 are still starting there, 1 start at a time"),
        (2, ("b-1/0", "c-1/0"), "b-1/0, c-1/0 are still starting there, 2 starts at a time"),
    ],
)
def test_a62_few_starts_at_a_time_on_a_node(limit: int, names: tuple[str, ...], why: str) -> None:
    m = model("alpha", profile())
    starting = [shard(n, state="loading", port=18001 + i) for i, n in enumerate(names)]
    no = answer(m, node("box1", *starting), cat=catalog(m, start_limit=limit))
    assert isinstance(no, NoRoom)
    assert replace(no, then=None) == NoRoom("main", f"box1: {why}", soon=True)


def test_a62_one_start_at_a_time_on_a_circuit() -> None:
    m = model("alpha", profile())
    loading = office(shard("b-1/0", state="loading"), name="box2")
    no = answer(m, office(), loading, cat=catalog(m))
    assert isinstance(no, NoRoom)
    assert replace(no, then=None) == NoRoom(
        "main",
        "box1: b-1/0 is still starting on circuit office, 1 start at a time; "
        "box2: b-1/0 is still starting there, 1 start at a time",
        soon=True,
    )
    assert spot(m, node("box1"), loading).node == "box1"


def test_want_of_room_is_said_before_the_start_limit_for_only_that_one_passes_by_itself() -> None:
    loading = shard("b-1/0", state="loading", gpus=("box1-0",), resources=Resources())
    no = answer(need(), node("box1", loading))
    assert no == NoRoom("main", "box1: GPU 0 is held whole by b-1/0")


def test_a_placement_is_counted_in_before_the_next_question_of_the_same_pass() -> None:
    m = model("alpha", need(10))
    state = settled(catalog(m, start_limit=9), node("box1"))
    before = held = holdings(state)
    for n in range(2):
        yes = place(state, held, m)
        assert isinstance(yes, Placement)
        assert yes.spots[0].port == 18000 + n
        held = counted(state, held, m, yes)
    no = place(state, held, m)
    assert no.why == (
        "box1: GPU 0 has 4.0 of 24.0 GiB free, 10.0 needed "
        "(held by alpha (just placed), alpha (just placed))"
    )
    assert held["box1"].starting == ("alpha (just placed)",) * 2
    assert before == holdings(state)


# --- several profiles ------------------------------------------------------------------------


GPU_OR_CPU = model("alpha", profile("gpu", gpus=1, gpu_memory_bytes=20 * GIB), profile("cpu"))


def test_a62_the_first_profile_that_can_be_placed_wins() -> None:
    both = answer(GPU_OR_CPU, node("box1"), node("box2", gpus=()))
    assert isinstance(both, Placement)
    assert (both.profile, both.spots[0].node) == ("gpu", "box1")
    cpu = answer(GPU_OR_CPU, node("box2", gpus=()))
    assert isinstance(cpu, Placement)
    assert cpu.profile == "cpu"


def test_a_profile_that_only_waits_for_another_start_is_not_traded_for_its_fall_back() -> None:
    loading = shard("b-1/0", state="loading", port=18001)
    no = answer(GPU_OR_CPU, node("box1", loading), node("box2", gpus=()))
    assert isinstance(no, NoRoom)
    assert no.then == Placement(
        "gpu",
        (Spot(node="box1", gpus=("box1-0",), port=18000),),
        "fits box1 GPU 0, 4.0 GiB left there",
    )
    assert (no.profile, no.why, no.soon) == (
        "gpu",
        "box1: b-1/0 is still starting there, 1 start at a time",
        True,
    )


def test_where_no_profile_fits_each_says_why() -> None:
    m = model(
        "alpha",
        profile("big", gpus=1, gpu_memory_bytes=30 * GIB),
        profile("small", gpus=1, gpu_memory_bytes=25 * GIB),
    )
    no = answer(m, node("box1"))
    assert no == NoRoom(
        "big",
        "big: box1: GPU 0 has 24.0 of 24.0 GiB free, 30.0 needed; "
        "small: box1: GPU 0 has 24.0 of 24.0 GiB free, 25.0 needed",
    )


def test_a_caller_may_ask_for_one_profile_only() -> None:
    state = settled(catalog(GPU_OR_CPU), node("box1"))
    only = place(state, holdings(state), GPU_OR_CPU, GPU_OR_CPU.profiles[1:])
    assert isinstance(only, Placement)
    assert only.profile == "cpu"


# --- the start message -----------------------------------------------------------------------


def test_the_start_message_says_all_the_agent_needs_and_expands_nothing() -> None:
    wanted = profile(
        "q4",
        fingerprints={"default": "1:d", "box1": "1:b"},
        weights={"box1": "/m/q4.gguf"},
        engine="llama.cpp",
        command=("llama-server", "--port", "${port}"),
        env={"HF_TOKEN": "${env.HF_TOKEN}"},
        gpus=1,
        gpu_memory_bytes=8 * GIB,
        host_memory_bytes=GIB,
        cpu_cores=2.0,
        power_w=300.0,
        health="/v1/models",
        compute="llama.cpp",
        ready=Ready(token=True),
        start_timeout_s=60.0,
        stop=Stop(grace_s=5.0),
        restart=Restart(max=2),
        insecure=True,
    )
    m = model("alpha", wanted)
    state = settled(catalog(m), node("box1", address="10.0.0.11"))
    spots = (Spot(node="box1", gpus=("box1-0",), port=18003),)
    assert start_message(state, m, ("q4", spots), "alpha-7k2", "inc-9") == (
        (
            "box1",
            Start(
                shard="alpha-7k2/0",
                replica="alpha-7k2",
                incarnation="inc-9",
                model="alpha",
                served_name="alpha",
                profile="q4",
                fingerprint="1:b",
                weights="/m/q4.gguf",
                engine="llama.cpp",
                command=wanted.command,
                env=wanted.env,
                gpus=("box1-0",),
                port=18003,
                resources=Resources(
                    gpu_memory_bytes=8 * GIB, host_memory_bytes=GIB, cpu_cores=2.0, power_w=300.0
                ),
                health="/v1/models",
                compute="llama.cpp",
                ready=Ready(token=True),
                start_timeout_s=60.0,
                stop=Stop(grace_s=5.0),
                restart=Restart(max=2),
                peers=(Peer(rank=0, node="box1", address="10.0.0.11", port=18003),),
                insecure=True,
            ),
        ),
    )
