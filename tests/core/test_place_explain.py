"""Where a model could go and where not, for whoever asks `llmgw status MODEL` (A62)."""

from __future__ import annotations

from math import inf
from typing import Any

import pytest
from msgspec.structs import replace

from llmgw.core import failed
from llmgw.core.place.explain import Answer, explain, impossible
from llmgw.core.reconcile.observe import observe
from llmgw.core.types.messages import Foreign, Resources
from llmgw.core.types.state import Failure, SessionLost, ShardsChanged
from tests.core.world import FP, GIB, at, catalog, gpus, model, node, profile, settled, shard


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


PROGRAM = "engine binary exllama is not on the PATH of box1 - set engines.x.command in the catalog"
FILE = "model file /m/a.gguf does not exist on box1; put it there"


@pytest.mark.parametrize(
    ("failure", "counts_s"),
    [
        (Failure("inc-a", "main", 100.0, PROGRAM, fingerprint=FP, gave_up=True), inf),
        (Failure("inc-a", "main", 100.0, PROGRAM, fingerprint=FP), 1900.0),
        (Failure("inc-a", "main", 100.0, FILE, fingerprint=FP, absent="box1"), 1900.0),
    ],
)
def test_what_was_found_missing_on_a_node_is_why_it_does_not_take_it(
    failure: Failure, counts_s: float
) -> None:
    """`fits` above a failure that says its program is not there would send people the wrong way."""
    m = model("alpha", of(10))
    state = at(settled(catalog(m), node("box1"), node("box2")), failures={"alpha": (failure,)})

    def told(now: float) -> list[Answer]:
        return list(explain(state, m, failed.lacks(state, m, now)))

    takes = [("box1", "no", failure.error), ("box2", "yes", "fits box2 GPU 0, 14.0 GiB left there")]
    assert [(a.node, a.takes, a.why) for a in told(1899.0)] == takes
    later = [a.takes for a in told(1901.0)]
    assert later == (["no", "yes"] if counts_s == inf else ["yes", "yes"])
    up = observe(state, ShardsChanged("box1", (shard("alpha-1/0", gpus=("box1-0",)),)), 110.0)
    assert failed.lacks(up, m, 111.0) == (), "it runs there"
    other = at(state, failures={"alpha": (replace(failure, error="exit 1", absent=""),)})
    assert failed.lacks(other, m, 111.0) == ()


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
