"""Starts of one pass: nobody is left without a place because another was asked first (A62)."""

from __future__ import annotations

from typing import Any

from msgspec.structs import replace

from llmgw.core.capacity import holdings
from llmgw.core.place import Fleet, NoRoom, Placement, find
from llmgw.core.place.fit import ways
from llmgw.core.place.together import Want, together
from llmgw.core.reconcile.decide import decide
from llmgw.core.reconcile.starts import BATCH
from llmgw.core.types.catalog import Catalog, Model, Scaling
from llmgw.core.types.messages import Fabric, NodeReport
from llmgw.core.types.plan import Plan, StartReplica, Wait
from tests.core.world import GIB, catalog, gpus, model, node, plan_of, profile, settled, shard


def of(gib: float | None, name: str = "main", **k: Any) -> Any:
    return profile(name, gpus=k.pop("gpus", 1), gpu_memory_bytes=gib and int(gib * GIB), **k)


def wants(name: str, *profiles: Any, priority: int = 0, low: int = 1) -> Model:
    return model(name, *profiles, scaling=Scaling(min=low, max=low, priority=priority))


def where(plan: Plan) -> dict[str, str]:
    """model -> where it starts, or that it waits, and by which profile."""
    out = {}
    for a in plan.actions:
        if isinstance(a, StartReplica):
            out[a.model] = f"{a.profile} {','.join(s.node for s in a.spots)}"
        if isinstance(a, Wait):
            out[a.model] = "waits"
    return out


def waits(plan: Plan) -> dict[str, str]:
    return {a.model: a.why for a in plan.actions if isinstance(a, Wait)}


def plan(*models: Model, on: tuple[NodeReport, ...], **k: Any) -> Plan:
    return plan_of(catalog(*models, **{"start_limit": 9, **k}), *on)


#: b can only be here, and a is asked first and fits better here.
ONLY_FOR_B = (node("box1", gpus=gpus("box1", 12), labels={"disk": "ssd"}), node("box2"))
PICKY = wants("b", of(10, select={"disk": "ssd"}))


def test_a62_one_that_was_asked_first_makes_way_where_both_find_a_place() -> None:
    assert where(plan(wants("a", of(10)), PICKY, on=ONLY_FOR_B)) == {
        "a": "main box2",
        "b": "main box1",
    }


def test_a62_two_that_share_a_card_make_room_for_a_third_that_needs_one_whole() -> None:
    """By best fit alone `a` and `b` would each open a card: `b` is too large to share with `a` on the smaller."""
    boxes = (node("box1", gpus=gpus("box1", 16, 24)),)
    found = where(plan(wants("a", of(10)), wants("b", of(14)), wants("c", of(None)), on=boxes))
    assert set(found.values()) == {"main box1"}


def test_what_starts_somewhere_is_not_moved_for_one_that_fits_nowhere() -> None:
    assert where(plan(wants("a", of(10)), wants("b", of(40)), on=ONLY_FOR_B)) == {
        "a": "main box1",
        "b": "waits",
    }


def test_where_not_all_find_a_place_the_first_in_turn_has_it() -> None:
    one = (node("box1", gpus=gpus("box1", 12)),)
    assert where(plan(wants("a", of(10)), wants("b", of(10)), on=one)) == {
        "a": "main box1",
        "b": "waits",
    }
    assert where(plan(wants("a", of(10)), wants("b", of(10), priority=1), on=one)) == {
        "a": "waits",
        "b": "main box1",
    }


def test_one_goes_down_to_its_fall_back_for_its_like_and_not_for_a_lesser() -> None:
    one = (node("box1", gpus=gpus("box1", 24)),)
    both = (of(20), of(10, "small"))
    assert where(plan(wants("a", *both), wants("b", of(12)), on=one)) == {
        "a": "small box1",
        "b": "main box1",
    }
    assert where(plan(wants("a", *both, priority=1), wants("b", of(12)), on=one)) == {
        "a": "main box1",
        "b": "waits",
    }


def test_room_where_another_start_comes_first_is_kept_for_who_waits_for_it() -> None:
    """Else a lesser one would start there meanwhile, on another node's turn, and the first never find room."""
    loading = shard("x-1/0", "x", state="loading", gpus=(), port=18009)
    boxes = (
        node("box1", loading, gpus=gpus("box1", 24), circuit=None),
        node("box2", gpus=gpus("box2", 8)),
    )
    found = plan(wants("a", of(20)), wants("b", of(8)), on=boxes, start_limit=1)
    assert where(found)["a"] == "waits"
    assert where(found)["b"] == "main box2"
    only = plan(wants("a", of(20), low=1), wants("b", of(10)), on=boxes[:1], start_limit=1)
    said = {a.model: a.why for a in only.actions}
    assert "x-1/0 is still starting there" in said["a"]
    assert "4.0 of 24.0 GiB free, 10.0 needed (held by a (just placed))" in said["b"]


def test_several_replicas_that_wait_are_one_line_and_all_their_room_is_kept() -> None:
    loading = [shard(f"x{i}-1/0", f"x{i}", state="loading", gpus=(), port=18009) for i in (1, 2)]
    boxes = tuple(node(f"box{i}", loading[i - 1]) for i in (1, 2))
    found = plan(wants("a", of(20), low=3), wants("b", of(10)), on=boxes, start_limit=1)
    assert [a.model for a in found.actions if isinstance(a, Wait)] == ["a", "b"]
    assert "held by a (just placed)" in waits(found)["b"]


def test_one_that_makes_way_may_have_to_wait_itself_and_the_plan_says_so() -> None:
    loading = shard("x-1/0", "x", state="loading", gpus=(), port=18009)
    boxes = (ONLY_FOR_B[0], node("box2", loading))
    found = plan(wants("a", of(10)), PICKY, on=boxes, start_limit=1)
    assert where(found) == {"a": "waits", "b": "main box1"}
    assert waits(found) == {
        "a": "min 1, 0 running; box2: x-1/0 is still starting there, 1 start at a time"
    }


def test_one_that_finds_room_only_by_others_making_way_may_have_to_wait() -> None:
    loading = shard("x-1/0", "x", state="loading", gpus=(), port=18009)
    boxes = (
        node("box1", loading, gpus=gpus("box1", 12), labels={"disk": "ssd"}),
        node("box2", loading),
    )
    found = plan(wants("a", of(10)), wants("a2", of(10)), PICKY, on=boxes, start_limit=1)
    assert where(found) == {"a": "waits", "a2": "waits", "b": "waits"}
    assert all("x-1/0 is still starting there" in why for why in waits(found).values())


def test_groups_make_way_and_are_made_way_for() -> None:
    ib0 = {"fabrics": {"ib0": Fabric()}}
    boxes = (
        node("box1", gpus=gpus("box1", 12), **ib0),
        node("box2", gpus=gpus("box2", 12), **ib0),
        node("box3", gpus=gpus("box3", 24)),
    )
    deep = wants("z", of(10, nodes=2, fabric="any"))
    assert where(plan(wants("a", of(10)), deep, on=boxes)) == {
        "a": "main box3",
        "z": "main box1,box2",
    }
    first = wants("a", of(8, nodes=2))
    assert where(plan(first, wants("b", of(20)), wants("c", of(9)), on=boxes))["b"] == "main box3"


def test_the_search_gives_up_after_so_many_steps_and_leaves_the_fleet_as_it_was() -> None:
    boxes = [node(f"box{i}", gpus=gpus(f"box{i}", 10)) for i in range(4)]
    models = [model(f"m{i}", of(6)) for i in range(5)]
    state = settled(catalog(*models), *boxes)
    fleet = Fleet(state, holdings(state))
    before = dict(fleet.held)
    asked = [Want(m, m.profiles) for m in models]
    assert together(fleet, asked) is None
    assert together(fleet, asked[:4], steps=2) is None
    assert fleet.held == before
    assert together(fleet, asked[:4]) is not None
    assert fleet.held == before


def many(count: int) -> tuple[Catalog, list[NodeReport]]:
    boxes = [node(f"box{i:03}", gpus=gpus(f"box{i:03}", 24)) for i in range(count)]
    models = [wants(f"m{i:03}", of(20)) for i in range(count)]
    return catalog(*models), boxes


def test_one_pass_gives_so_many_a_place_and_the_rest_are_looked_at_in_the_next() -> None:
    cat, boxes = many(BATCH + 2)
    found = decide(settled(cat, *boxes), 0.0)
    assert len(found.actions) - len(waits(found)) == BATCH
    assert {*waits(found).values()} == {
        f"min 1, 0 running; {BATCH} starts are decided in one pass, it is looked at in the next"
    }


def test_of_many_that_were_planned_those_on_nodes_it_could_be_on_make_way() -> None:
    boxes = [node(f"box{i:02}", gpus=gpus(f"box{i:02}", 24)) for i in range(12)]
    boxes.append(node("box99", gpus=gpus("box99", 22), labels={"disk": "ssd"}))
    models = [wants(f"m{i:02}", of(20)) for i in range(12)]
    found = where(plan(*models, wants("z", of(20, select={"disk": "ssd"})), on=tuple(boxes)))
    assert found["z"] == "main box99"
    assert "waits" not in found.values()


def test_a_model_asked_twice_for_more_than_there_is_is_refused_for_the_same_reason() -> None:
    models = [model(f"m{i}", of(40 + i)) for i in range(3)]
    state = settled(catalog(*models), node("box1"))
    fleet = Fleet(state, holdings(state))
    answers = [find(fleet, m) for m in models]
    assert all(isinstance(a, NoRoom) for a in answers)
    assert [a.why.split(" free, ")[1] for a in answers if isinstance(a, NoRoom)] == [
        "40.0 needed",
        "41.0 needed",
        "42.0 needed",
    ]
    small = model("small", of(4))
    assert isinstance(find(fleet, small), Placement)


def test_of_several_that_wait_each_may_make_way() -> None:
    loading = shard("x-1/0", "x", state="loading", gpus=(), port=18009)
    boxes = (
        node("box1", gpus=gpus("box1", 12), labels={"disk": "ssd"}),
        node("box2", loading),
        node("box3", loading),
    )
    two = wants("a", of(10), low=2)
    found = plan(two, PICKY, on=boxes, start_limit=1)
    assert where(found) == {"a": "waits", "b": "main box1"}
    later = tuple(replace(b, shards=(loading,)) for b in boxes)
    found = plan(two, PICKY, on=later, start_limit=1)
    assert [a.model for a in found.actions if isinstance(a, Wait)] == ["a", "b"]


def test_each_set_of_gpus_is_one_way_however_near_they_are() -> None:
    cards = tuple(replace(g, numa=0) for g in gpus("box1", 24, 24, 24))
    state = settled(catalog(), node("box1", gpus=cards))
    fleet = Fleet(state, holdings(state))
    found = ways(fleet, state.nodes["box1"], of(10, gpus=2), 9)
    assert [f.spot.gpus for f in found] == [
        ("box1-0", "box1-1"),
        ("box1-0", "box1-2"),
        ("box1-1", "box1-2"),
    ]
