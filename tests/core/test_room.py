"""Who would have to go so that a model fits, and what the fleet would look like then (A64)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from msgspec.structs import replace

from llmgw.core.adopt.survey import survey
from llmgw.core.capacity import GpuHeld, Held, holdings
from llmgw.core.place import Fleet, Idle, NoRoom, Room, make_room, room_in
from llmgw.core.place.freed import freed
from llmgw.core.types.catalog import Catalog, Model
from llmgw.core.types.messages import Capacity, Fabric, Foreign, Gpu, Resources, ShardReport
from llmgw.core.types.plan import Replica
from llmgw.core.types.state import State
from tests.core.world import GIB, catalog, gpus, model, node, profile, settled, shard


def of(gib: float | None, **k: Any) -> Any:
    return profile(gpus=k.pop("gpus", 1), gpu_memory_bytes=gib and int(gib * GIB), **k)


def runs(name: str, gib: float | None, *on: str, port: int = 18000, **k: Any) -> ShardReport:
    size = Resources(gpu_memory_bytes=int(gib * GIB) if gib else None, **k.pop("also", {}))
    return shard(f"{name}-1/0", name, gpus=on, resources=size, port=port, **k)


def replicas(state: State) -> dict[str, Replica]:
    return {r.model: r for r in survey(state).replicas}


#: What is wanted, and models for those that run.
BIG = model("big", of(20))


def cat(*more: Model) -> Catalog:
    others = [model(name, of(8)) for name in "abcdefghijk"]
    return catalog(*others, BIG, *more)


def asked(
    state: State,
    removable: Sequence[str],
    movable: Sequence[str] = "",
    costs: dict[str, float] | None = None,
) -> Room | NoRoom:
    there, cost = replicas(state), costs or {}
    lists = [[Idle(there[n], cost.get(n, 0.0)) for n in names] for names in (removable, movable)]
    wanted = state.catalog.models["big"]
    fleet = Fleet(state, holdings(state))
    before = dict(fleet.held)
    answer = room_in(fleet, wanted, (), *lists)
    assert (fleet.held, fleet.nodes) == (before, state.nodes)
    assert make_room(state, holdings(state), wanted, (), *lists) == answer
    return answer


def the_gpu(state: State) -> Gpu:
    ((gpu,),) = [n.report.gpus or () for n in state.nodes.values()]
    return gpu


def gone(answer: Room | NoRoom) -> str:
    assert isinstance(answer, Room), answer
    return "".join(sorted(r.model for r in answer.evict))


FULL = (
    node("box1", runs("a", 12, "box1-0"), runs("b", 12, "box1-0", port=18001)),
    node("box2", runs("c", 20, "box2-0")),
)


def test_a64_one_is_fewer_than_two() -> None:
    answer = asked(settled(cat(), *FULL), "abc")
    assert gone(answer) == "c"
    assert isinstance(answer, Room)
    assert answer.placement.spots[0].node == "box2"


def test_a64_of_equal_sets_the_cheapest_then_the_callers_order() -> None:
    boxes = [node(f"box{i}", runs(n, 20, f"box{i}-0")) for i, n in enumerate("abc")]
    state = settled(cat(), *boxes)
    assert gone(asked(state, "bca")) == "b"
    assert gone(asked(state, "bca", costs={"b": 9.0, "c": 2.0, "a": 1.0})) == "a"


def test_where_room_is_already_nobody_goes() -> None:
    assert gone(asked(settled(cat(), *FULL, node("box3")), "abc")) == ""


def test_where_not_even_all_of_them_make_room_the_tightest_resource_is_said() -> None:
    no = asked(settled(cat(), *FULL), "a")
    assert isinstance(no, NoRoom)
    assert no.why.startswith("box1: GPU 0 has 0.0 of 24.0 GiB free, 20.0 needed (held by a-1/0, b")
    assert not no.soon


def test_other_starts_that_come_first_need_nobody_to_go() -> None:
    coming = runs("d", 1, "box3-0", state="loading")
    no = asked(settled(cat(), *FULL, node("box3", coming)), "abc")
    assert isinstance(no, NoRoom)
    assert no.soon


def test_room_that_only_opens_where_another_start_comes_first_is_told_so() -> None:
    """Nobody goes before it could be used."""
    coming = runs("d", 1, "box2-1", state="loading", port=18005)
    box = node("box2", runs("c", 20, "box2-0"), coming, gpus=gpus("box2", 24, 4))
    no = asked(settled(cat(), box), "c")
    assert isinstance(no, NoRoom)
    assert (no.soon, no.why) == (True, "box2: d-1/0 is still starting there, 1 start at a time")


def test_one_that_is_owed_a_place_moves_and_it_is_said_where_to() -> None:
    boxes = (node("box1", runs("a", 8, "box1-0")), node("box2", gpus=gpus("box2", 10)))
    answer = asked(settled(cat(), *boxes), "", "a")
    assert isinstance(answer, Room)
    assert answer.evict == ()
    ((moved, where),) = answer.move
    assert (moved.model, where.spots[0].node) == ("a", "box2")
    assert answer.placement.spots[0].node == "box1"
    no = asked(settled(cat(), boxes[0]), "", "a")
    assert isinstance(no, NoRoom)  # it would have nowhere to go


def test_two_that_move_are_placed_together() -> None:
    """One after the other by best fit, the second would find no room."""
    wants = (model("x", of(8, select={"disk": "ssd"})), model("y", of(8)))
    ssd = {"labels": {"disk": "ssd"}}
    boxes = (
        node("box1", runs("y", 12, "box1-0"), runs("x", 12, "box1-0", port=18001), **ssd),
        node("box2", gpus=gpus("box2", 8), **ssd),
        node("box3", gpus=gpus("box3", 9)),
    )
    state = settled(cat(*wants), *boxes)
    answer = asked(state, "", "yx")
    assert isinstance(answer, Room)
    assert {r.model: p.spots[0].node for r, p in answer.move} == {"x": "box2", "y": "box3"}


def test_a_group_takes_room_on_several_nodes() -> None:
    deep = replace(BIG, profiles=(of(20, nodes=2),))
    state = settled(
        catalog(*(model(n, of(8)) for n in "ab"), deep),
        *(node(f"box{i}", runs(n, 20, f"box{i}-0")) for i, n in enumerate("ab")),
    )
    assert gone(asked(state, "ab")) == "ab"


@pytest.mark.parametrize("nodes", [1, 2])
def test_a64_many_that_could_go_are_looked_at_node_by_node(nodes: int) -> None:
    """More than a pass could look at in all their sets; those that need not go stay."""
    wanted = replace(BIG, profiles=(of(20, nodes=nodes),))
    boxes = [
        node(
            f"box{i}",
            *(
                runs(n, 11, f"box{i}-0", port=18000 + k)
                for k, n in enumerate("abcdefghij"[i * 2 : i * 2 + 2])
            ),
        )
        for i in range(5)
    ]
    boxes.append(node("box9", runs("k", 4, "box9-0"), gpus=gpus("box9", 8)))
    state = settled(replace(cat(), models=cat().models | {"big": wanted}), *boxes)
    costs = dict.fromkeys("abcdefgh", 5.0)
    answer = asked(state, "abcdefghijk", costs=costs | {"k": 0.0})
    assert len(gone(answer)) == 2 * nodes
    if nodes == 1:
        assert gone(answer) == "ij"


def test_a_second_profile_is_looked_at_where_the_first_finds_no_room() -> None:
    either = replace(BIG, profiles=(of(40), of(20, name="small")))
    state = settled(replace(cat(), models=cat().models | {"big": either}), *FULL)
    answer = asked(state, "abc")
    assert isinstance(answer, Room)
    assert (answer.placement.profile, gone(answer)) == ("small", "c")


# --- the picture once some have ended --------------------------------------------------------


def test_what_ended_gives_back_all_that_it_held_and_strangers_keep_theirs() -> None:
    also = {"host_memory_bytes": GIB, "cpu_cores": 1.0, "power_w": 100.0}
    mine = runs("a", 8, "box1-0", also=also, hcas=("mlx5_0",), ports={"group": 18009})
    other = runs("b", 8, "box1-0", port=18001)
    strangers = (
        Foreign(pid=1, gpu="box1-0", memory_bytes=GIB),
        Foreign(pid=2, gpu="box1-0", memory_bytes=2 * GIB, shard="a-1/0"),
    )
    box = node("box1", mine, other, gpus=gpus("box1", 24, used={0: 19}), foreign=strangers)
    state = settled(cat(), box)
    there = replicas(state)
    after, held = freed(state, holdings(state), [there["a"]])
    assert held == holdings(after)
    assert held["box1"].gpus["box1-0"] == GpuHeld(8 * GIB, GIB, "", ("b-1/0",))
    assert the_gpu(after).memory_used_bytes == 9 * GIB
    after, held = freed(after, held, [there["b"]])
    assert held["box1"] == Held(gpus={"box1-0": GpuHeld(foreign_bytes=GIB)})
    assert the_gpu(after).memory_used_bytes == 0


def test_of_two_that_have_a_gpu_whole_the_other_has_it_still() -> None:
    box = node("box1", runs("a", None, "box1-0"), runs("b", None, "box1-0", port=18001))
    state = settled(cat(), box)
    there = replicas(state)
    after, held = freed(state, holdings(state), [there["a"]])
    assert held["box1"].gpus["box1-0"].whole == "b-1/0"
    _, held = freed(after, held, [there["b"]])
    assert held["box1"].gpus["box1-0"].whole == ""


def test_memory_that_host_and_gpu_share_comes_back_from_both() -> None:
    pool = Gpu(uuid="s", memory_bytes=128 * GIB, memory_used_bytes=50 * GIB, unified=True)
    mine = runs("a", 30, "s", also={"host_memory_bytes": 10 * GIB})
    on_cpu = runs("b", None, port=18001, also={"host_memory_bytes": 5 * GIB})
    state = settled(cat(), node("box1", mine, on_cpu, gpus=(pool,), capacity=Capacity()))
    there = replicas(state)
    for names, left in (("a", 10), ("b", 45), ("ab", 5)):
        after, _ = freed(state, holdings(state), [there[n] for n in names])
        assert the_gpu(after).memory_used_bytes == left * GIB


def test_what_has_ended_already_gives_nothing_back_and_a_node_may_not_know_its_gpus() -> None:
    over = runs("a", 8, "box1-0", state="failed")
    state = settled(cat(), node("box1", over))
    dead = replace(replicas(state)["a"], members=state.nodes["box1"].shards)
    assert freed(state, holdings(state), [dead])[1] == holdings(state)
    blind = settled(cat(), node("box1", runs("a", 8, "box1-0"), gpus=None))
    after, held = freed(blind, holdings(blind), [replicas(blind)["a"]])
    assert (after.nodes["box1"].report.gpus, held["box1"].shards) == (None, 0)


def test_one_on_its_way_up_is_no_longer_in_the_way_of_other_starts() -> None:
    box = node("box1", runs("a", 8, "box1-0", state="loading"), circuit="office")
    state = settled(cat(), box)
    fleet = Fleet(state, holdings(state))
    assert fleet.panel("office").starting == ("a-1/0",)
    mark = fleet.mark()
    fleet.free(replicas(state)["a"])
    assert (fleet.panel("office").starting, fleet.waits("box1")) == ((), False)
    fleet.reset(mark)
    assert fleet.waits("box1")


def test_adapters_come_back_too() -> None:
    ib0 = {"ib0": Fabric(hcas=("mlx5_0",))}
    deep = replace(BIG, profiles=(of(4, nodes=2, fabric="ib0"),))
    boxes = [
        node("box1", runs("a", 4, "box1-0", hcas=("mlx5_0",)), fabrics=ib0),
        node("box2", fabrics=ib0),
    ]
    state = settled(catalog(model("a", of(4)), deep), *boxes)
    assert gone(asked(state, "a")) == "a"


LETTERS = "abcdefghij"


def test_of_many_the_first_that_makes_room_alone_goes() -> None:
    small = [runs(n, 4, f"box1-{i}", port=18000 + i) for i, n in enumerate("abcdefgh")]
    boxes = [
        node("box1", *small, gpus=gpus("box1", *[12] * 8)),
        node("box2", runs("i", 20, "box2-0")),
        node("box3", runs("j", 20, "box3-0")),
    ]
    state = settled(cat(), *boxes)
    assert gone(asked(state, "abcdefghji")) == "j"
    assert gone(asked(state, "abcdefghij")) == "i"
    costs = {"i": 5.0, "j": 1.0}
    assert gone(asked(state, "abcdefghij", costs=costs)) == "j"


def test_of_many_none_of_which_makes_room_alone_two_of_one_node_go() -> None:
    boxes = [
        node(f"box{b}", *(runs(n, 11, f"box{b}-0", port=18000 + i) for i, n in enumerate(two)))
        for b, two in enumerate(("ab", "cd", "ef", "gh", "ij"))
    ]
    assert gone(asked(settled(cat(), *boxes), "ajbcdefghi")) == "ab"
    assert gone(asked(settled(cat(), *boxes), "jicabdefgh")) == "ij"


def test_of_many_on_a_cpu_one_that_makes_room_goes() -> None:
    size: dict[str, Any] = {"host_memory_bytes": 3 * GIB}
    shards = [
        shard(f"{n}-1/0", n, port=18000 + i, resources=Resources(**size))
        for i, n in enumerate(LETTERS)
    ]
    wanted = model("big", profile(host_memory_bytes=4 * GIB))
    others = [model(n, profile(**size)) for n in LETTERS]
    box = node("box1", *shards, capacity=Capacity(host_memory_bytes=32 * GIB))
    assert gone(asked(settled(catalog(*others, wanted), box), LETTERS)) == "a"
    full = node("box1", *shards, capacity=Capacity(host_memory_bytes=30 * GIB))
    assert gone(asked(settled(catalog(*others, wanted), full), LETTERS)) == "ab"


def test_of_many_whose_room_only_opens_where_another_start_comes_first_none_goes() -> None:
    there = [runs(n, 20, f"box1-{i}", port=18000 + i) for i, n in enumerate(LETTERS)]
    coming = runs("k", 1, "box1-0", state="loading", port=18010)
    box = node("box1", *there, coming, gpus=gpus("box1", *[24] * 10))
    no = asked(settled(cat(), box), LETTERS)
    assert isinstance(no, NoRoom)
    assert no.soon
    assert "k-1/0 is still starting there" in no.why
