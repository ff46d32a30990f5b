"""What earlier runs held is remembered by fingerprint, and counts for the next ones (A62)."""

from __future__ import annotations

from msgspec.structs import replace

from llmgw.core import learn
from llmgw.core.reconcile.observe import observe
from llmgw.core.supervise.report import shard_report
from llmgw.core.types.messages import Resources
from llmgw.core.types.node import GpusSeen
from llmgw.core.types.state import Cleared, NodeRegistered, ShardsChanged, State
from tests.core.agent_bench import Bench, start
from tests.core.world import GIB, catalog, model, node, profile, running, shard

ALPHA = catalog(model("alpha", profile(fingerprints={"default": "1:a"}), low=1))


def told(gib: float | None, fingerprint: str = "1:a", **k: object) -> object:
    peak = None if gib is None else int(gib * GIB)
    return replace(shard("alpha-1/0", fingerprint=fingerprint, gpu_peak_bytes=peak), **k)


def heard(state: State, *shards: object) -> State:
    return observe(state, ShardsChanged("box1", shards=shards), 1.0)  # type: ignore[arg-type]


def test_a62_the_most_that_was_ever_held_stays() -> None:
    state = running(ALPHA, node("box1", told(9)))  # type: ignore[arg-type]
    assert state.learned == {"1:a": 9 * GIB}
    for gib, left in ((11, 11), (10, 11), (None, 11), (12, 12)):
        state = heard(state, told(gib))
        assert state.learned == {"1:a": left * GIB}
    state = observe(state, NodeRegistered(node("box1")), 2.0)
    assert state.learned == {"1:a": 12 * GIB}


def test_nothing_is_learned_of_what_has_its_gpu_whole_or_does_not_say_what_it_is() -> None:
    state = running(ALPHA, node("box1"))
    state = heard(state, told(9, resources=Resources()), told(9, ""), told(9, resources=None))
    assert state.learned == {}


def test_an_operator_who_clears_a_model_has_it_measured_anew() -> None:
    state = replace(running(ALPHA, node("box1")), learned={"1:a": GIB, "1:b": GIB})
    assert observe(state, Cleared("alpha"), 1.0).learned == {"1:b": GIB}
    assert observe(state, Cleared("beta"), 1.0).learned == state.learned


def test_what_is_in_no_catalog_goes_before_there_is_too_much() -> None:
    many = {f"1:{i}": GIB for i in range(learn.KEPT)}
    state = replace(running(ALPHA, node("box1")), learned=many)
    assert heard(state, told(9)).learned == {"1:a": 9 * GIB}


def test_an_agent_tells_the_most_that_an_engine_held_in_steps_and_never_less() -> None:
    b = Bench()
    b.command(start(1, gpus=("GPU-0",)))
    (key,) = b.state.records
    gpus = b.state.gpus

    def seen(size: int) -> int | None:
        b(GpusSeen(gpus, held={key: size, ("gone-1/0", "x"): size}))
        return b.state.records[key].watch.peak_bytes

    step = 64 << 20
    assert [seen(n) for n in (1, step, step + 1, 3, 9 * step)] == [
        step,
        step,
        2 * step,
        2 * step,
        9 * step,
    ]


def test_host_memory_is_told_likewise_beside_it() -> None:
    b = Bench()
    b.command(start(1, gpus=("GPU-0",)))
    (key,) = b.state.records
    step = 64 << 20
    b(GpusSeen(b.state.gpus, held={key: 1}, resident={key: step + 1, ("gone-1/0", "x"): 1}))
    b(GpusSeen(b.state.gpus, resident={key: 1}))
    report = shard_report(b.state.records[key])
    assert (report.gpu_peak_bytes, report.host_peak_bytes) == (step, 2 * step)


def test_a62_what_clear_would_forget_is_the_most_that_any_profile_of_the_model_held() -> None:
    two = model(
        "alpha",
        profile(fingerprints={"default": "1:a"}),
        profile("b", fingerprints={"default": "1:b"}),
    )
    state = replace(running(catalog(two)), learned={"1:a": 3, "1:b": 7, "1:other": 9})
    assert learn.peak_bytes(state, "alpha") == 7
    assert learn.peak_bytes(state, "gone") == 0
