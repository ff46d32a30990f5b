"""Where a model could go and where not, for whoever asks `llmgw status MODEL` (A62)."""

from __future__ import annotations

from typing import Any

from llmgw.core.place.explain import Answer, explain, impossible
from llmgw.core.reconcile.observe import observe
from llmgw.core.types.messages import Foreign, Resources
from llmgw.core.types.state import SessionLost
from tests.core.world import GIB, at, catalog, gpus, model, node, profile, settled, shard


def of(gib: float | None, name: str = "main", **k: Any) -> Any:
    return profile(name, gpus=k.pop("gpus", 1), gpu_memory_bytes=gib and int(gib * GIB), **k)


def test_a62_every_node_says_why_it_would_take_it_or_not_also_when_nobody_waits() -> None:
    m = model("alpha", of(10), profile("cpu"))
    full = shard("b-1/0", gpus=("box1-0",), resources=Resources(gpu_memory_bytes=20 * GIB))
    coming = shard("c-1/0", state="loading", gpus=(), port=18005)
    state = settled(catalog(m), node("box3"), node("box2", coming), node("box1", full))
    state = observe(state, SessionLost("box3"), 1.0)
    starting = "c-1/0 is still starting there, 1 start at a time"
    assert list(explain(state, m)) == [
        Answer("box1", "main", "no", "GPU 0 has 4.0 of 24.0 GiB free, 10.0 needed (held by b-1/0)"),
        Answer("box2", "main", "soon", starting),
        Answer("box3", "main", "no", "is not connected"),
        Answer("box1", "cpu", "yes", "fits box1 on its CPU"),
        Answer("box2", "cpu", "soon", starting),
        Answer("box3", "cpu", "no", "is not connected"),
    ]


def test_what_would_fit_in_no_fleet_of_this_kind_is_known_before_anybody_asks_for_it() -> None:
    full = shard("b-1/0", gpus=("box1-0",), resources=Resources())
    strangers = (Foreign(pid=7, gpu="box1-0", memory_bytes=20 * GIB),)
    box = node("box1", full, gpus=gpus("box1", 24, used={0: 24}), foreign=strangers)
    cat = catalog(model("fits", of(20)), model("big", of(40)), model("either", of(40), of(4, "s")))
    state = at(settled(cat, box), cordoned={("box1", ""): "since noon"})
    state = observe(state, SessionLost("box1"), 1.0)
    assert list(impossible(state)) == [
        ("big", "box1: GPU 0 has 24.0 of 24.0 GiB free, 40.0 needed")
    ]


def test_nothing_is_said_while_some_node_is_yet_to_tell_what_it_has() -> None:
    cat = catalog(model("big", of(40)))
    whole = settled(cat, node("box1"))
    assert list(impossible(whole))
    assert not list(impossible(at(whole, settled_s=None)))
    assert not list(impossible(settled(cat)))
    for odd in ({"gpus": None}, {"gpus_error": "NVML"}, {"protocol": 0}):
        assert not list(impossible(settled(cat, node("box1"), node("box2", **odd))))
