"""What placement keeps for any fleet: nothing given out twice, nothing with room refused, order never matters (A62)."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from llmgw.core.capacity import Held, holdings
from llmgw.core.place import NoRoom, Placement, counted, place
from llmgw.core.types.messages import Capacity, Foreign, NodeReport, Resources
from llmgw.core.types.state import State
from tests.core.world import GIB, catalog, gpus, model, node, profile, settled, shard

SIZES = st.integers(1, 24)


@st.composite
def fleets(draw: st.DrawFn) -> list[NodeReport]:
    """Up to 3 nodes of mixed cards, engines of ours, strangers, memory in use."""
    out = []
    for name in draw(st.lists(st.sampled_from(["box1", "box2", "box3"]), unique=True)):
        sizes = draw(st.lists(SIZES, max_size=3))
        used = {i: draw(st.integers(0, size)) for i, size in enumerate(sizes)}
        shards = [
            shard(
                f"{name}x{i}-1/0",
                gpus=(f"{name}-{i}",),
                port=draw(st.integers(18000, 18004)),
                state=draw(st.sampled_from(["ready", "loading", "stopping", "failed"])),
                resources=Resources(gpu_memory_bytes=draw(st.integers(0, size)) * GIB),
            )
            for i, size in enumerate(sizes)
            if draw(st.booleans())
        ]
        foreign = draw(st.integers(0, 4)) * GIB
        out.append(
            node(
                name,
                *shards,
                gpus=gpus(name, *sizes, used={i: float(g) for i, g in used.items()}),
                foreign=(Foreign(pid=7, gpu=f"{name}-0", memory_bytes=foreign, port=18005),),
                capacity=Capacity(cpu_cores=8, ports=(18000, 18006)),
                circuit=draw(st.sampled_from([None, "office"])),
            )
        )
    return out


WANTED = st.lists(
    st.tuples(st.integers(0, 2), st.none() | SIZES, st.sampled_from([0.0, 1.0, 3.0])),
    min_size=1,
    max_size=6,
)
Asked = list[tuple[int, int | None, float]]


def series(
    reports: list[NodeReport], wanted: Asked, limit: int = 9
) -> tuple[State, dict[str, Held], list[Placement | NoRoom]]:
    """One pass that places each in turn, every answer counted in before the next question."""
    models = [
        model(
            f"m{i}",
            profile(
                gpus=count, gpu_memory_bytes=size and size * GIB, cpu_cores=cores, power_w=100.0
            ),
        )
        for i, (count, size, cores) in enumerate(wanted)
    ]
    state = settled(catalog(*models, circuits={"office": 500.0}, start_limit=limit), *reports)
    held = holdings(state)
    answers = []
    for m in models:
        found = place(state, held, m)
        answers.append(found)
        if isinstance(found, Placement):
            held = counted(state, held, m, found)
    return state, held, answers


@given(fleets(), WANTED)
def test_a59_no_byte_whole_gpu_port_core_or_watt_is_given_out_twice(
    reports: list[NodeReport], wanted: Asked
) -> None:
    state, held, answers = series(reports, wanted)
    before = holdings(state)
    given_out = [s for a in answers if isinstance(a, Placement) for s in a.spots]
    assert len({(s.node, s.port) for s in given_out}) == len(given_out)
    for s in given_out:
        assert s.port not in before[s.node].ports
        box = state.nodes[s.node].report
        assert held[s.node].cpu_cores <= 8
        for gpu in box.gpus or ():
            if gpu.uuid in s.gpus:
                there = held[s.node].gpus[gpu.uuid]
                assert there.reserved_bytes + there.foreign_bytes <= gpu.memory_bytes
                assert not there.whole or len(there.by) == 1
    on_circuit = [n for n, b in state.nodes.items() if b.report.circuit == "office"]
    assert sum(held[n].power_w for n in on_circuit) <= 500.0


@given(fleets(), WANTED, st.randoms(use_true_random=False))
def test_a62_the_same_fleet_in_any_order_gives_the_same_answers(
    reports: list[NodeReport], wanted: Asked, random: Any
) -> None:
    shuffled = [
        NodeReport(
            node=r.node,
            node_id=r.node_id,
            shards=tuple(random.sample(r.shards, len(r.shards))),
            gpus=tuple(random.sample(r.gpus or (), len(r.gpus or ()))),
            foreign=r.foreign,
            capacity=r.capacity,
            circuit=r.circuit,
        )
        for r in random.sample(reports, len(reports))
    ]
    assert series(shuffled, wanted)[2] == series(reports, wanted)[2]


@given(fleets(), WANTED)
def test_a62_at_most_the_start_limit_starts_on_a_node_in_one_pass(
    reports: list[NodeReport], wanted: Asked
) -> None:
    _, held, answers = series(reports, wanted, limit=1)
    used = [s.node for a in answers if isinstance(a, Placement) for s in a.spots]
    assert len({*used}) == len(used)
    assert all(len(held[n].starting) == 1 for n in used)


def could(state: State, held: Held, name: str, asked: tuple[int, int | None, float]) -> bool:
    """In other words than the code's: whether this node has room."""
    count, size, cores = asked
    box = state.nodes[name].report
    fitting = 0
    for gpu in box.gpus or ():
        there = held.gpus.get(gpu.uuid)
        ours = there.reserved_bytes if there else 0
        strangers = there.foreign_bytes if there else 0
        if there and there.whole:
            continue
        if size:
            fitting += ours + strangers + size * GIB <= gpu.memory_bytes and (
                gpu.memory_used_bytes + size * GIB <= gpu.memory_bytes
            )
        elif not (there and there.by):
            fitting += 10 * max(strangers, gpu.memory_used_bytes) <= gpu.memory_bytes
    return fitting >= count and held.cpu_cores + cores <= 8 and len(held.ports) < 7


@given(fleets(), WANTED)
def test_a62_nothing_that_has_room_is_refused(reports: list[NodeReport], wanted: Asked) -> None:
    reports = [replace(r, circuit=None) for r in reports]
    state, held, answers = series(reports, wanted)
    last, asked = answers[-1], wanted[-1]
    room = [n for n in state.nodes if could(state, held[n], n, asked)]
    if isinstance(last, NoRoom):
        assert room == []
        assert all(name in last.why for name in state.nodes)
