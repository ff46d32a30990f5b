"""Where the ranks of a replica over several nodes go, and what each is told (A30, A62)."""

from __future__ import annotations

from typing import Any

import pytest

from llmgw.core.capacity import holdings
from llmgw.core.place import NoRoom, Placement, place, start_message
from llmgw.core.types.catalog import Model
from llmgw.core.types.messages import Capacity, Fabric, NodeReport, Peer
from llmgw.core.types.plan import Spot
from tests.core.world import GIB, catalog, gpus, model, node, profile, settled, shard


def deep(**k: Any) -> Model:
    k = {"nodes": 2, "gpus": 1, "gpu_memory_bytes": 20 * GIB} | k
    return model("deep", profile(**k), low=1)


def asked(m: Model, *nodes: NodeReport, circuits: dict[str, float] | None = None) -> Any:
    state = settled(catalog(m, circuits=circuits or {}), *nodes)
    return place(state, holdings(state), m)


def boxes(answer: Placement | NoRoom) -> list[str]:
    assert isinstance(answer, Placement), answer.why
    assert [s.rank for s in answer.spots] == list(range(len(answer.spots)))
    return [s.node for s in answer.spots]


def wired(name: str, *fabrics: str, hcas: tuple[str, ...] = (), **k: Any) -> NodeReport:
    nets = {f: Fabric(address=f"10.1.0.{name[-1]}", hcas=hcas) for f in fabrics}
    return node(name, fabrics=nets, **k)


def test_a62_the_tightest_nodes_take_the_ranks() -> None:
    big = node("box1", gpus=gpus("box1", 48))
    assert boxes(asked(deep(), big, node("box2"), node("box3"))) == ["box2", "box3"]


def test_a_group_needs_as_many_nodes_as_it_has_ranks() -> None:
    answer = asked(deep(), node("box1"), node("box2", gpus=gpus("box2", 12)))
    assert answer.why == ("1 of 2 nodes fit; box2: GPU 0 has 12.0 of 12.0 GiB free, 20.0 needed")
    assert asked(deep()).why == "0 of 2 nodes fit"


def test_only_the_leader_has_a_port_to_meet_at() -> None:
    answer = asked(deep(), node("box1"), node("box2"))
    assert [(s.port, s.group_port) for s in answer.spots] == [(18000, 18001), (18000, 0)]
    one_port = Capacity(ports=(18000, 18000))
    answer = asked(deep(), node("box1", capacity=one_port), node("box2"))
    assert "box1: no port of 18000-18000 is free" in answer.why


@pytest.mark.parametrize(
    ("fabric", "chosen"), [("ib0", ["box1", "box3"]), ("eth9", None), ("any", ["box1", "box3"])]
)
def test_all_ranks_are_on_one_fabric(fabric: str, chosen: list[str] | None) -> None:
    there = (wired("box1", "ib0"), wired("box2", "ib1"), wired("box3", "ib0"))
    answer = asked(deep(fabric=fabric), *there)
    if chosen is None:
        assert "box1: is not on fabric eth9" in answer.why
        return
    assert boxes(answer) == chosen
    assert {s.fabric for s in answer.spots} == {"ib0"}
    assert answer.why.endswith("on fabric ib0")


def test_any_fabric_of_nodes_that_have_none_in_common() -> None:
    answer = asked(deep(fabric="any"), wired("box1", "ib0"), wired("box2", "ib1"))
    assert answer.why == "1 of 2 nodes fit; box1: is not on fabric ib1"
    answer = asked(deep(fabric="any"), node("box1"), node("box2"))
    assert "box1: names no fabric" in answer.why


def test_the_fabric_that_comes_nearest_is_told() -> None:
    there = (wired("box1", "ib0"), wired("box2", "ib0"), wired("box3", "ib1"))
    answer = asked(deep(fabric="any", nodes=3), *there)
    assert answer.why == "2 of 3 nodes fit; box3: is not on fabric ib0"


def test_a30_adapters_go_to_one_shard() -> None:
    m = deep(fabric="ib0", gpu_memory_bytes=8 * GIB)
    there = [wired(f"box{n}", "ib0", hcas=("mlx5_0",)) for n in (1, 2)]
    answer = asked(m, *there)
    assert [s.hcas for s in answer.spots] == [("mlx5_0",)] * 2
    held = shard("other-1/0", "other", hcas=("mlx5_0",), port=19000)
    taken = node("box2", held, fabrics=there[1].fabrics)
    assert "box2: mlx5_0 is held by other-1/0" in asked(m, there[0], taken).why


def test_a_circuit_bears_all_ranks_together() -> None:
    m = deep(power_w=300.0)
    pair = [node(f"box{n}", circuit="office") for n in (1, 2)]
    assert boxes(asked(m, *pair, circuits={"office": 600.0})) == ["box1", "box2"]
    answer = asked(m, *pair, circuits={"office": 500.0})
    assert "box2: circuit office: 500 of 500 W free, 600 needed" in answer.why
    elsewhere = node("box3", circuit="attic")
    assert boxes(asked(m, *pair, elsewhere, circuits={"office": 500.0})) == ["box1", "box3"]


def test_a_group_waits_for_the_start_that_is_in_its_way() -> None:
    coming = shard("other-1/0", "other", state="loading", port=19000, gpus=())
    answer = asked(deep(), node("box1", coming), node("box2"))
    assert (answer.soon, answer.why) == (
        True,
        "box1: other-1/0 is still starting there, 1 start at a time",
    )


def test_each_rank_is_told_its_part() -> None:
    m = model(
        "deep",
        profile(
            nodes=3,
            command=("serve",),
            leader_args=("--lead",),
            worker_args=("--headless",),
            fabric="ib0",
        ),
        low=1,
    )
    state = settled(
        catalog(m), *(wired(f"box{n}", "ib0", address=f"10.0.0.{n}") for n in (1, 2, 3))
    )
    spots = tuple(
        Spot(node=f"box{n + 1}", rank=n, port=18000, group_port=0 if n else 18001, fabric="ib0")
        for n in range(3)
    )
    starts = [s for _, s in start_message(state, m, ("main", spots), "deep-1", "inc")]
    assert [s.command for s in starts] == [
        ("serve", "--lead"),
        ("serve", "--headless"),
        ("serve", "--headless"),
    ]
    assert [(s.shard, s.world_size, s.ports) for s in starts] == [
        ("deep-1/0", 3, {"group": 18001}),
        ("deep-1/1", 3, {}),
        ("deep-1/2", 3, {}),
    ]
    assert [s.health for s in starts] == ["/health", "", ""]
    assert starts[1].peers == starts[0].peers
    assert starts[0].peers[0] == Peer(
        rank=0,
        node="box1",
        address="10.0.0.1",
        fabric_address="10.1.0.1",
        port=18000,
        group_port=18001,
    )


def test_workers_may_be_another_program() -> None:
    m = model("deep", profile(nodes=2, command=("head",), worker_command=("worker", "-x")), low=1)
    state = settled(catalog(m), node("box1"), node("box2"))
    spots = (Spot(node="box1", port=1), Spot(node="box2", rank=1, port=2))
    starts = [s for _, s in start_message(state, m, ("main", spots), "deep-1", "inc")]
    assert [s.command for s in starts] == [("head",), ("worker", "-x")]


def test_workers_first_is_the_leaders_to_wait_for_and_workers_listen_first() -> None:
    """All orders go out together: its agent holds the leader back, so nothing is left to be sent later."""
    first = profile(nodes=2, start_order="workers_first", worker_command=("worker",))
    m = model("deep", first, low=1)
    state = settled(catalog(m), node("box1"), node("box2"))
    found = place(state, holdings(state), m)
    assert isinstance(found, Placement)
    starts = [s for _, s in start_message(state, m, ("main", found.spots), "deep-1", "inc")]
    assert [(s.start_order, s.health) for s in starts] == [
        ("workers_first", "/health"),
        ("", "tcp"),
    ]
    assert [p.port for p in starts[0].peers] == [s.port for s in starts]
