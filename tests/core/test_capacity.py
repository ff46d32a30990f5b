"""Holdings are counted from the shards known on a node; what is short is said in words (A21, A43, A44, A59, A62)."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from llmgw.core.capacity import (
    GpuHeld,
    Held,
    gib,
    gpu_free_bytes,
    gpu_takes,
    holdings,
    panels,
    ports_of,
    resources_of,
    short_of,
    taken,
)
from llmgw.core.reconcile.observe import observe
from llmgw.core.types.catalog import Catalog
from llmgw.core.types.messages import SHARD_STATES, Capacity, Foreign, Gpu, Resources, ShardReport
from llmgw.core.types.state import NodeRegistered, Refused, SessionLost, Shard
from tests.core.world import GIB, at, catalog, model, node, profile, settled, shard

CAT = catalog(model("alpha", profile(gpus=1, gpu_memory_bytes=10 * GIB, cpu_cores=2.0)))
ROOM = Resources(gpu_memory_bytes=8 * GIB, host_memory_bytes=4 * GIB, cpu_cores=2.0, power_w=300.0)


def held_on(*shards: ShardReport, cat: Catalog = CAT, **k: Any) -> Held:
    return holdings(settled(cat, node("box1", *shards, **k)))["box1"]


# --- what a shard holds ----------------------------------------------------------------------


def test_a59_a_running_shard_holds_what_it_was_launched_with() -> None:
    report = shard(
        "alpha-1/0", gpus=("box1-0",), hcas=("mlx5_0",), ports={"group": 18500}, resources=ROOM
    )
    held = held_on(report)
    assert held.gpus == {"box1-0": GpuHeld(reserved_bytes=8 * GIB, by=("alpha-1/0",))}
    assert (held.host_memory_bytes, held.cpu_cores, held.power_w) == (4 * GIB, 2.0, 300.0)
    assert held.ports == {18000: "alpha-1/0", 18500: "alpha-1/0"}
    assert held.hcas == {"mlx5_0": "alpha-1/0"}
    assert (held.shards, held.starting) == (1, ())


@pytest.mark.parametrize("state", SHARD_STATES)
def test_a43_a44_only_a_verified_end_frees_and_only_a_start_counts_as_one(state: str) -> None:
    held = held_on(shard("alpha-1/0", state=state, gpus=("box1-0",)))
    over = state in ("stopped", "failed")
    assert (held.shards, len(held.gpus), len(held.ports)) == ((0, 0, 0) if over else (1, 1, 1))
    assert bool(held.starting) is (state in ("pending", "starting", "loading"))


def test_a43_what_nothing_claims_holds_like_any_other() -> None:
    assert held_on(shard("gone-1/0", gpus=("box1-0",))).gpus["box1-0"].by == ("gone-1/0",)


def test_a43_a_silent_node_keeps_what_it_held() -> None:
    state = settled(CAT, node("box1", shard("alpha-1/0", gpus=("box1-0",))))
    assert holdings(observe(state, SessionLost("box1"), 9.0)) == holdings(state)


def test_a39_what_its_agent_no_longer_runs_holds_nothing() -> None:
    state = settled(CAT, node("box1", shard("alpha-1/0", gpus=("box1-0",))))
    assert holdings(observe(state, NodeRegistered(node("box1")), 9.0))["box1"] == Held()


@pytest.mark.parametrize("memory", [None, 0])
def test_a_shard_without_a_figure_has_its_gpus_whole(memory: int | None) -> None:
    whole = Resources(gpu_memory_bytes=memory)
    held = held_on(shard("alpha-1/0", gpus=("box1-0", "box1-1"), resources=whole))
    assert held.gpus["box1-0"] == held.gpus["box1-1"]
    assert held.gpus["box1-0"].whole == "alpha-1/0"


@pytest.mark.parametrize(
    ("what", "charged"),
    [
        ({"resources": ROOM}, ROOM),
        ({"resources": None}, Resources(gpu_memory_bytes=10 * GIB, cpu_cores=2.0)),
        ({"resources": None, "profile": "gone"}, Resources()),
        ({"resources": None, "model": "gone"}, Resources()),
    ],
)
def test_a21_the_catalog_is_what_an_older_agents_shard_is_charged_else_whole_gpus(
    what: dict[str, Any], charged: Resources
) -> None:
    old = shard("alpha-1/0", **what)
    assert resources_of(Shard(node="box1", report=old), CAT) == charged


def test_a44_port_0_is_no_port() -> None:
    report = shard("alpha-1/0", port=0, ports={"group": 0, "rpc": 18001})
    assert list(ports_of(Shard(node="box1", report=report))) == [18001]


def test_a70_a_foreign_process_takes_memory_and_its_port() -> None:
    foreign = (
        Foreign(pid=1, gpu="box1-0", memory_bytes=2 * GIB, port=18000),
        Foreign(pid=2, gpu="box1-0", memory_bytes=GIB),
        Foreign(pid=3, port=18001),
    )
    held = held_on(shard("alpha-1/0", gpus=("box1-0",), port=18002), foreign=foreign)
    assert held.gpus["box1-0"].foreign_bytes == 3 * GIB
    assert held.gpus["box1-0"].reserved_bytes == 10 * GIB
    assert {18000: "foreign pid 1", 18001: "foreign pid 3"}.items() <= held.ports.items()


SHARDS = st.lists(
    st.builds(
        lambda n, state, where, gigs: shard(
            f"alpha-{n}/0",
            state=state,
            gpus=where,
            port=18000 + n,
            resources=Resources(gpu_memory_bytes=gigs * GIB or None, cpu_cores=float(gigs)),
        ),
        st.integers(1, 5),
        st.sampled_from(SHARD_STATES),
        st.lists(st.sampled_from(["box1-0", "box1-1"]), max_size=2, unique=True).map(tuple),
        st.integers(0, 9),
    ),
    max_size=5,
    unique_by=lambda r: r.shard,
)


@given(SHARDS, st.randoms(use_true_random=False))
def test_a59_holdings_do_not_depend_on_the_order_of_a_report(
    reports: list[ShardReport], random: Any
) -> None:
    mixed = random.sample(reports, len(reports))
    one, other = held_on(*reports), held_on(*mixed)
    assert {u: (g.reserved_bytes, {*g.by}) for u, g in one.gpus.items()} == {
        u: (g.reserved_bytes, {*g.by}) for u, g in other.gpus.items()
    }
    assert (one.ports, one.cpu_cores, one.shards) == (other.ports, other.cpu_cores, other.shards)


@given(SHARDS)
def test_a59_the_sum_of_what_is_held_is_the_sum_of_what_runs(reports: list[ShardReport]) -> None:
    held = held_on(*reports)
    run = [r for r in reports if r.state not in ("stopped", "failed")]
    sizes = [(r.resources.gpu_memory_bytes or 0) * len(r.gpus) for r in run if r.resources]
    assert sum(g.reserved_bytes for g in held.gpus.values()) == sum(sizes)
    assert {*held.ports} == {r.port for r in run}
    assert held.shards == len(run)


# --- refusals are facts ----------------------------------------------------------------------


def refused(resource: str, *, node_name: str = "box1", **k: Any) -> Held:
    state = settled(CAT, node("box1", **k))
    no = Refused(node_name, resource, 60.0, "pid 7 has it")
    return holdings(at(state, refused=(no,)))["box1"]


def test_a_refused_port_is_held() -> None:
    assert refused("port 18000").ports == {18000: "pid 7 has it"}


def test_a_refused_gpu_is_held_and_is_not_mistaken_for_one_that_a_shard_has_whole() -> None:
    report = shard("alpha-1/0", gpus=("box1-0",))
    state = settled(CAT, node("box1", report))
    held = holdings(at(state, refused=(Refused("box1", "gpu box1-0", 60.0, "pid 7 has it"),)))
    there = held["box1"].gpus["box1-0"]
    assert (there.whole, there.refused, there.by) == ("", "pid 7 has it", ("alpha-1/0",))
    gpu = Gpu(uuid="box1-0", memory_bytes=24 * GIB)
    assert gpu_free_bytes(gpu, there) == 0
    assert gpu_takes(gpu, there, GIB) == "GPU 0 was refused by its agent: pid 7 has it"


@pytest.mark.parametrize("resource", ["host memory", "CPU cores", "power", "profile 1:a"])
def test_a_refusal_for_one_thing_leaves_the_rest_of_the_node(resource: str) -> None:
    assert refused(resource) == Held(lacking={resource: "pid 7 has it"})


@pytest.mark.parametrize(
    ("need", "why"),
    [
        (Resources(host_memory_bytes=1), "its agent refused it for host memory: busy"),
        (Resources(cpu_cores=1.0), ""),
    ],
)
def test_what_a_node_lacks_is_in_the_way_of_those_that_want_it(need: Resources, why: str) -> None:
    assert short_of(Capacity(), Held(lacking={"host memory": "busy"}), need) == why


@pytest.mark.parametrize("resource", ["node", "disk", "port x", ""])
def test_any_other_refusal_rests_the_whole_node(resource: str) -> None:
    assert refused(resource) == Held(refused="pid 7 has it")


def test_a_refusal_of_a_node_that_is_forgotten_counts_nowhere() -> None:
    assert refused("port 18000", node_name="box9") == Held()


# --- GPUs ------------------------------------------------------------------------------------


def gpu(used_gib: float = 0, **k: Any) -> Gpu:
    return Gpu(
        uuid="g",
        index=3,
        memory_bytes=24 * GIB,
        memory_used_bytes=int(used_gib * GIB),
        **k,
    )


@pytest.mark.parametrize(
    ("used_gib", "held", "free_gib"),
    [
        (0, GpuHeld(), 24),
        (0, GpuHeld(reserved_bytes=20 * GIB), 4),  # still loading: it will take what it reserved
        (23, GpuHeld(reserved_bytes=20 * GIB), 1),  # took more than it said
        (5, GpuHeld(reserved_bytes=4 * GIB, foreign_bytes=6 * GIB), 14),
        (30, GpuHeld(), 0),
        (0, GpuHeld(reserved_bytes=40 * GIB), 0),
        (0, GpuHeld(whole="a/0"), 0),
    ],
)
def test_a62_free_memory_is_the_stricter_of_reserved_and_measured(
    used_gib: float, held: GpuHeld, free_gib: int
) -> None:
    assert gpu_free_bytes(gpu(used_gib), held) == free_gib * GIB


OURS = GpuHeld(reserved_bytes=20 * GIB, by=("b/0", "a/0"))
MIXED = GpuHeld(reserved_bytes=10 * GIB, foreign_bytes=10 * GIB, by=("a/0",))
STRANGER = GpuHeld(foreign_bytes=23 * GIB)


@pytest.mark.parametrize(
    ("device", "held", "need_gib", "why"),
    [
        (gpu(), GpuHeld(), 24, ""),
        (gpu(), GpuHeld(), None, ""),
        (gpu(), OURS, 4, ""),
        (Gpu(uuid="g", memory_bytes=100, memory_used_bytes=10), GpuHeld(), None, ""),  # a desktop
        (gpu(healthy=False), GpuHeld(), 1, "GPU 3 is not healthy"),
        (
            gpu(healthy=False, trouble="it is lost"),
            GpuHeld(),
            1,
            "GPU 3 is not healthy: it is lost",
        ),
        (gpu(), GpuHeld(whole="a/0", by=("a/0",)), 1, "GPU 3 is held whole by a/0"),
        (gpu(), GpuHeld(whole="a/0", by=("a/0",)), None, "GPU 3 is held whole by a/0"),
        (gpu(), OURS, 5, "GPU 3 has 4.0 of 24.0 GiB free, 5.0 needed (held by a/0, b/0)"),
        (
            gpu(),
            MIXED,
            5,
            "GPU 3 has 4.0 of 24.0 GiB free, 5.0 needed (held by a/0, 10.0 GiB of processes not ours)",
        ),
        (
            gpu(),
            STRANGER,
            5,
            "GPU 3 has 1.0 of 24.0 GiB free, 5.0 needed (held by 23.0 GiB of processes not ours)",
        ),
        (gpu(21), GpuHeld(), 5, "GPU 3 has 3.0 of 24.0 GiB free, 5.0 needed"),
        (gpu(), OURS, None, "GPU 3 is shared (held by a/0, b/0), a whole one is needed"),
        (gpu(2.5), GpuHeld(), None, "GPU 3 has 2.5 GiB in use by others, a whole one is needed"),
        (gpu(), STRANGER, None, "GPU 3 has 23.0 GiB in use by others, a whole one is needed"),
    ],
)
def test_a62_what_stands_in_the_way_of_a_gpu_is_one_sentence_with_the_figures(
    device: Gpu, held: GpuHeld, need_gib: int | None, why: str
) -> None:
    assert gpu_takes(device, held, need_gib and need_gib * GIB) == why


BYTES = st.integers(0, 30).map(lambda n: n * GIB)


@given(BYTES, BYTES, BYTES, st.integers(1, 30).map(lambda n: n * GIB))
def test_a62_a_gpu_that_takes_a_shard_is_never_overbooked(
    reserved: int, foreign: int, used: int, need: int
) -> None:
    device = Gpu(uuid="g", memory_bytes=24 * GIB, memory_used_bytes=used)
    held = GpuHeld(reserved_bytes=reserved, foreign_bytes=foreign, by=("a/0",))
    if not gpu_takes(device, held, need):
        assert reserved + foreign + need <= device.memory_bytes
        assert used + need <= device.memory_bytes
        report = shard("b/0", gpus=("g",), resources=Resources(gpu_memory_bytes=need))
        shard_ = Shard(node="box1", report=report)
        after = taken(Held(gpus={"g": held}), shard_, Resources(gpu_memory_bytes=need))
        assert gpu_free_bytes(device, after.gpus["g"]) <= gpu_free_bytes(device, held)
        assert after.gpus["g"].reserved_bytes + foreign <= device.memory_bytes


# --- nodes and circuits ----------------------------------------------------------------------

FULL = Held(host_memory_bytes=60 * GIB, cpu_cores=15.0, power_w=900.0)
LIMITS = Capacity(cpu_cores=16, host_memory_bytes=64 * GIB, power_w=1200)


@pytest.mark.parametrize(
    ("need", "why"),
    [
        (Resources(host_memory_bytes=4 * GIB, cpu_cores=1.0, power_w=300.0), ""),
        (Resources(), ""),
        (
            Resources(host_memory_bytes=5 * GIB, cpu_cores=2.0),
            "host memory: 4.0 of 64.0 GiB free, 5.0 needed",
        ),
        (Resources(cpu_cores=1.5), "CPU cores: 1 of 16 cores free, 1.5 needed"),
        (Resources(power_w=301.0), "power: 300 of 1200 W free, 301 needed"),
    ],
)
def test_a59_host_memory_cores_and_watts_of_a_node_are_counted(need: Resources, why: str) -> None:
    assert short_of(LIMITS, FULL, need) == why


def test_a10_what_fits_to_the_last_core_fits_whatever_was_added_first() -> None:
    """0.1 + 0.2 + 0.3 is more than 0.6; its agent takes it (`claims`), so control may offer it."""
    used = Held(cpu_cores=0.1 + 0.2)
    assert short_of(Capacity(cpu_cores=0.6), used, Resources(cpu_cores=0.3)) == ""
    assert short_of(Capacity(cpu_cores=0.6), used, Resources(cpu_cores=0.301))


def test_what_a_node_does_not_say_limits_nothing() -> None:
    need = Resources(host_memory_bytes=GIB, cpu_cores=99.0, power_w=9e9)
    assert short_of(Capacity(), FULL, need) == ""


def test_a_node_that_was_given_a_lower_limit_still_takes_what_needs_none_of_it() -> None:
    low = Capacity(power_w=500)
    assert short_of(low, FULL, Resources(cpu_cores=1.0)) == ""
    assert short_of(low, FULL, Resources(power_w=1.0)) == "power: 0 of 500 W free, 1 needed"


def test_a59_watts_of_a_circuit_are_those_of_all_its_nodes_the_silent_ones_too() -> None:
    state = settled(
        CAT,
        node("box1", shard("alpha-1/0", resources=ROOM), circuit="office"),
        node("box2", shard("alpha-2/0", resources=ROOM), circuit="office"),
        node("box3", shard("alpha-3/0", resources=ROOM), circuit="attic"),
        node("box4"),
    )
    state = observe(state, SessionLost("box2"), 1.0)
    held = holdings(state)
    watts = {name: panel.power_w for name, panel in panels(state.nodes, held).items()}
    assert watts == {"office": 600, "attic": 300}


def test_a62_a_node_that_died_in_a_load_does_not_block_its_circuit_for_ever() -> None:
    state = settled(
        CAT,
        node("box1", shard("alpha-1/0", state="loading"), circuit="office"),
        node("box2", shard("alpha-2/0", state="starting"), circuit="office"),
        node("box3", shard("alpha-3/0", state="pending"), circuit="attic"),
    )
    assert panels(state.nodes, holdings(state))["office"].starting == ("alpha-1/0", "alpha-2/0")
    state = observe(state, SessionLost("box2"), 1.0)
    assert panels(state.nodes, holdings(state))["office"].starting == ("alpha-1/0",)
    assert holdings(state)["box2"].starting == ("alpha-2/0",)


def test_sizes_are_read_in_gib() -> None:
    assert [gib(0), gib(GIB), gib(18.25 * GIB)] == ["0.0", "1.0", "18.2"]


def test_one_value_is_never_shared_by_two_nodes() -> None:
    state = settled(CAT, node("box1", foreign=(Foreign(pid=1, port=1),)), node("box2"))
    assert holdings(state)["box2"] == Held()
