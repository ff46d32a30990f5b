"""One memory for host and GPU (GB10, Strix Halo): no byte is given out twice, whichever name it is asked under."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from llmgw.core.adopt.survey import survey
from llmgw.core.capacity import Held, holdings, pool_free_bytes, pool_short
from llmgw.core.check import violations
from llmgw.core.place import NoRoom, Placement, counted, place, start_message
from llmgw.core.reconcile.observe import observe
from llmgw.core.types.messages import Capacity, Foreign, Gpu, NodeReport, Resources, Start
from llmgw.core.types.node import GpusSeen, Refuse
from llmgw.core.types.plan import Spot
from llmgw.core.types.state import Placed, ShardsChanged
from tests.core.agent_bench import FACTS, Bench, start
from tests.core.world import GIB, catalog, model, node, profile, settled, shard

SPARK = Gpu(uuid="spark", memory_bytes=120 * GIB, unified=True)
CARD = Gpu(uuid="card", index=1, memory_bytes=24 * GIB)
HOST = Capacity(cpu_cores=20, host_memory_bytes=120 * GIB)


def box(*shards: Any, used_gib: int = 0, gpus: tuple[Gpu, ...] = (SPARK,), **k: Any) -> NodeReport:
    there = tuple(replace(g, memory_used_bytes=used_gib * GIB) if g.unified else g for g in gpus)
    k.setdefault("capacity", HOST)
    return node("box1", *shards, gpus=there, **k)


def engine(n: int, gpu_gib: int | None, host_gib: int, *, on: str = "spark") -> Any:
    size = None if gpu_gib is None else gpu_gib * GIB
    need = Resources(gpu_memory_bytes=size, host_memory_bytes=host_gib * GIB)
    gpus = (on,) if on else ()
    return shard(f"alpha-{n}/0", gpus=gpus, port=18000 + n, resources=need)


def held(report: NodeReport) -> Held:
    return holdings(settled(catalog(), report))["box1"]


def free_gib(report: NodeReport) -> float | None:
    free = pool_free_bytes(report.gpus or (), report.capacity, held(report))
    return None if free is None else free / GIB


@pytest.mark.parametrize(
    ("report", "free"),
    [
        (box(gpus=(CARD,)), None),
        (box(), 120),
        (box(used_gib=7), 113),
        (box(engine(1, 40, 10)), 70),
        (box(engine(1, 40, 10), used_gib=30), 70),  # still loading: it will take what it was given
        (box(engine(1, 40, 10), used_gib=90), 30),  # takes more than it was given
        (box(engine(1, 40, 10), engine(2, 0, 50, on="")), 20),
        (box(engine(1, None, 5)), 0),  # has it whole
        (box(engine(1, 100, 100)), 0),
        (box(engine(1, 20, 0, on="card"), gpus=(SPARK, CARD)), 120),
        (box(engine(1, 20, 4, on="card"), gpus=(SPARK, CARD)), 116),
        (box(foreign=(Foreign(pid=7, gpu="spark", memory_bytes=9 * GIB),)), 111),
        (box(capacity=Capacity()), 120),  # the host does not say: what its GPU says
    ],
)
def test_a62_what_is_left_of_the_pool(report: NodeReport, free: float | None) -> None:
    assert free_gib(report) == free


def short(report: NodeReport, gpu_gib: int | None, host_gib: int, *uuids: str) -> str:
    size = gpu_gib and gpu_gib * GIB
    need = Resources(gpu_memory_bytes=size, host_memory_bytes=host_gib * GIB)
    return pool_short(report.gpus or (), report.capacity, held(report), need, uuids)


def test_both_kinds_of_memory_are_asked_of_it_together() -> None:
    report = box(engine(1, 60, 20))
    assert short(report, 30, 10, "spark") == ""
    assert short(report, 30, 11, "spark") == (
        "memory shared by host and GPU: 40.0 GiB free, 41.0 needed (30.0 GPU and 11.0 host)"
    )
    assert short(report, None, 40, "spark") == ""
    assert "(0.0 GPU and 41.0 host)" in short(report, None, 41)
    full = box(engine(1, 100, 20))
    assert short(full, None, 0, "spark").startswith("memory shared by host and GPU: 0.0 GiB free")
    assert short(full, None, 0, "card") == ""
    assert short(report, 90, 0) == ""  # no GPU of the pool
    assert short(box(gpus=(CARD,)), 99, 99, "card") == ""


def answer(report: NodeReport, **k: Any) -> Placement | NoRoom:
    m = model("beta", profile(**{"gpus": 1, **k}))
    state = settled(catalog(m), report)
    return place(state, holdings(state), m)


def test_a62_placement_asks_the_pool() -> None:
    report = box(engine(1, 60, 20), used_gib=7)
    fits = answer(report, gpu_memory_bytes=30 * GIB, host_memory_bytes=10 * GIB)
    assert isinstance(fits, Placement)
    assert fits.why == "fits box1 GPU 0, 10.0 GiB left there"
    no = answer(report, gpu_memory_bytes=35 * GIB, host_memory_bytes=10 * GIB)
    assert isinstance(no, NoRoom)
    assert "40.0 GiB free, 45.0 needed (35.0 GPU and 10.0 host)" in no.why
    cpu = answer(report, gpus=0, host_memory_bytes=41 * GIB)
    assert isinstance(cpu, NoRoom)
    assert "memory shared by host and GPU" in cpu.why


def test_a_card_of_its_own_beside_it_is_still_found() -> None:
    """The pool is full; the card is not."""
    report = box(engine(1, 100, 15), gpus=(SPARK, CARD))
    fits = answer(report, gpu_memory_bytes=20 * GIB)
    assert isinstance(fits, Placement)
    assert fits.spots[0].gpus == ("card",)


def test_two_gpus_of_one_pool_have_it_once() -> None:
    twin = replace(SPARK, uuid="twin", index=1)
    report = box(gpus=(SPARK, twin))
    assert isinstance(answer(report, gpus=2, gpu_memory_bytes=60 * GIB), Placement)
    no = answer(report, gpus=2, gpu_memory_bytes=61 * GIB)
    assert isinstance(no, NoRoom)
    assert "122.0 needed (122.0 GPU and 0.0 host)" in no.why


def test_a_whole_one_may_be_had_though_its_host_uses_memory() -> None:
    """A desktop on a small box uses a quarter of it: that is no stranger on the GPU."""
    assert isinstance(answer(box(used_gib=40)), Placement)
    stranger = Foreign(pid=7, gpu="spark", memory_bytes=40 * GIB)
    no = answer(box(used_gib=45, foreign=(stranger,)))
    assert isinstance(no, NoRoom)
    assert "has 40.0 GiB in use by others" in no.why
    assert isinstance(answer(box(engine(1, None, 0)), gpus=0, host_memory_bytes=1), NoRoom)


# ---------------------------------------------------------------- laws

WANTED = st.lists(
    st.tuples(st.sampled_from([0, 1]), st.none() | st.integers(1, 100), st.integers(0, 60)),
    min_size=1,
    max_size=6,
)
RUNNING = st.lists(
    st.tuples(
        st.none() | st.integers(1, 50), st.integers(0, 30), st.sampled_from(["spark", "card", ""])
    ),
    max_size=4,
)


@given(RUNNING, WANTED, st.integers(0, 120), st.booleans())
def test_a59_no_byte_of_the_pool_is_given_out_twice(
    running: list[Any], wanted: list[Any], used: int, known: bool
) -> None:
    """Whatever runs, whatever is asked for: what control places, and what an agent takes, is there."""
    shards = [engine(i, *what[:2], on=what[2]) for i, what in enumerate(running)]
    capacity = HOST if known else Capacity()
    report = box(*shards, used_gib=used, gpus=(SPARK, CARD), capacity=capacity)
    models = [
        model(
            f"m{i}",
            profile(gpus=n, gpu_memory_bytes=size and size * GIB, host_memory_bytes=host_gib * GIB),
        )
        for i, (n, size, host_gib) in enumerate(wanted)
    ]
    state = settled(catalog(*models, start_limit=9), report)
    now = holdings(state)
    taken = 0
    for m in models:
        before = pool_free_bytes(report.gpus or (), capacity, now["box1"])
        found = place(state, now, m)
        if not isinstance(found, Placement):
            continue
        p = m.profiles[0]
        on_it = "spark" in found.spots[0].gpus
        need = p.host_memory_bytes + (p.gpu_memory_bytes or 0) * on_it
        now = counted(state, now, m, found)
        after = pool_free_bytes(report.gpus or (), capacity, now["box1"])
        assert before is not None
        assert after is not None
        assert need <= before
        assert after <= before
        taken += need
    ours = sum((s.resources.gpu_memory_bytes or 0) for s in shards if "spark" in s.gpus)
    hosts = sum(s.resources.host_memory_bytes for s in shards)
    assert not taken or ours + hosts + taken <= 120 * GIB


@given(st.lists(st.tuples(st.integers(0, 70), st.integers(0, 70)), max_size=5), st.integers(0, 120))
def test_its_agent_gives_no_byte_of_it_out_twice_either(asked: list[Any], used: int) -> None:
    b = Bench()
    b.state = replace(b.state, facts=replace(FACTS, capacity=HOST))
    b(GpusSeen((replace(SPARK, memory_used_bytes=used * GIB),)))
    given_out, took = 0, []
    for n, (gpu_gib, host_gib) in enumerate(asked):
        need = Resources(gpu_memory_bytes=gpu_gib * GIB, host_memory_bytes=host_gib * GIB)
        b.command(start(n, gpus=("spark",) if gpu_gib else (), resources=need))
        if not b.of(Refuse):
            given_out += (gpu_gib + host_gib) * GIB
            took += [(gpu_gib, host_gib)] if gpu_gib + host_gib else []
    assert given_out <= 120 * GIB
    assert all(used + sum(one) <= 120 for one in took)
    assert len(b.state.records) <= len(asked)


def refused(ask: Start, *running: Start) -> tuple[str, str, str]:
    b = Bench()
    b.state = replace(b.state, facts=replace(FACTS, capacity=HOST))
    b(GpusSeen((SPARK, CARD)))
    for one in running:
        b.command(one)
        assert not b.of(Refuse)
    return b.command(ask).refusal()


def test_its_agent_says_which_of_the_two_was_asked_for() -> None:
    big = Resources(gpu_memory_bytes=80 * GIB, host_memory_bytes=20 * GIB)
    one = start(1, gpus=("spark",), resources=big)
    need = Resources(gpu_memory_bytes=10 * GIB, host_memory_bytes=15 * GIB)
    said = "memory shared by host and GPU: 20.0 GiB free, 25.0 needed"
    assert refused(start(2, gpus=("spark",), resources=need), one) == (
        "gpu_held",
        "gpu spark",
        f"{said} (10.0 GPU and 15.0 host); alpha-2/0 asks for it",
    )
    cpu = start(2, resources=Resources(host_memory_bytes=21 * GIB))
    reason, resource, why = refused(cpu, one)
    assert (reason, resource) == ("host_memory", "host memory")
    assert "20.0 GiB free, 21.0 needed" in why


def test_what_was_placed_beyond_the_pool_is_a_violation() -> None:
    m = model("beta", profile(gpus=1, gpu_memory_bytes=60 * GIB, host_memory_bytes=10 * GIB))

    def said(report: NodeReport) -> list[str]:
        state = settled(catalog(m), report)
        spot = Spot(node="box1", gpus=("spark",), port=18050)
        ((where, order),) = start_message(state, m, ("main", (spot,)), "beta-9", "new")
        state = observe(state, Placed(where, order), 1.0)
        return violations(state, survey(state))

    assert said(box(engine(1, 40, 10))) == []
    (found,) = said(box(engine(1, 40, 11)))
    assert found == (
        f"box1 has {120 * GIB} bytes shared by host and GPU, {121 * GIB} are given out"
    )
    assert said(box(engine(1, 40, 11), capacity=Capacity())) == [found]
    assert said(box(replace(engine(1, 40, 11), resources=None))) == []  # nobody knows what it has
    assert said(box(engine(1, 20, 11, on="card"), gpus=(CARD, SPARK))) == []


# ---------------------------------------------------------------- unknown devices (F59)


def test_f59_gpus_that_are_not_known_now_take_nothing_and_keep_what_they_have() -> None:
    m = model("beta", profile(gpus=1, gpu_memory_bytes=GIB))
    state = settled(catalog(m), box(engine(1, 10, 1)))
    away = observe(state, ShardsChanged("box1", gpus_error="the driver does not answer"), 1.0)
    no = place(away, holdings(away), m)
    assert isinstance(no, NoRoom)
    assert no.why == "box1: its GPUs are not known (the driver does not answer)"
    assert holdings(away) == holdings(state)
    quiet = observe(away, ShardsChanged("box1"), 2.0)  # an older agent does not say
    assert isinstance(place(quiet, holdings(quiet), m), NoRoom)
    back = observe(quiet, ShardsChanged("box1", gpus_error=""), 3.0)
    assert isinstance(place(back, holdings(back), m), Placement)


def test_f59_an_agent_says_why_it_does_not_know() -> None:
    b = Bench()
    b(GpusSeen(None, error="NVML: Unknown Error"))
    b.command(start(1, gpus=("GPU-0",)))
    assert b.refusal() == (
        "devices_unknown",
        "gpu GPU-0",
        "the GPUs of this node are not known (NVML: Unknown Error)",
    )
    b(GpusSeen(None)).command(start(1, gpus=("GPU-0",)))
    assert "(driver not up?)" in b.refusal()[2]
