"""AMD and Intel GPUs out of a made-up /sys and /proc, and how engines are told of them."""

from __future__ import annotations

from pathlib import Path

import pytest

from llmgw.agent.devices import Devices
from llmgw.agent.gpu import Gpus
from llmgw.agent.gpu.facts import Use
from llmgw.agent.gpu.sysfs import link
from llmgw.agent.gpu.visible import environment
from llmgw.core.types.messages import Gpu, Start
from llmgw.core.types.record import Record
from tests.agent.sysfs_tree import GIB, Tree

RX, SECOND, STRIX = "0000:03:00.0", "0000:0a:00.0", "0000:c6:00.0"
GFX1100, GFX1151, RAPHAEL = 110000, 110501, 100306


@pytest.fixture
def tree(tmp_path: Path) -> Tree:
    tree = Tree(tmp_path)
    tree.memory(124, 118)
    return tree


def test_facts_of_an_amd_card(tree: Tree) -> None:
    tree.amd(1, RX, vram=24 * GIB, used=3 * GIB, unique="5e9b1c2d3a4f6071")
    tree.kfd(0, "0000:00:00.0", 0, 0)  # the CPU
    tree.kfd(1, RX, GFX1100, 51234)
    tree.write("usr/share/libdrm/amdgpu.ids", "# names\n1.0.0\n744C,\tC8,\tAMD Radeon RX 7900 XTX")
    reading = Gpus("auto", tree.root).read()
    assert reading.gpus == (
        Gpu(
            uuid="GPU-5e9b1c2d3a4f6071",
            index=0,
            name="AMD Radeon RX 7900 XTX",
            memory_bytes=24 * GIB,
            memory_used_bytes=3 * GIB,
            pci=RX,
            driver="amdgpu",
            power_limit_w=303.0,
            power_w=87.0,
            compute_capability="gfx1100",
            vendor="amd",
        ),
    )
    assert (reading.measured, reading.blind) == (True, frozenset())


def bridge(tree: Tree, at: str, vendor: str, now: str, width: int) -> None:
    tree.write(f"{at}/vendor", vendor)
    for which, speed, lanes in (("current", now, width), ("max", "16.0 GT/s PCIe", 16)):
        tree.write(f"{at}/{which}_link_speed", speed)
        tree.write(f"{at}/{which}_link_width", lanes)


@pytest.mark.parametrize("maker", ["0x1002", "0x8086"])
def test_the_link_is_the_one_to_the_slot(tree: Tree, maker: str) -> None:
    """A switch on the card hides it; an Intel card in an Intel board is not told by the board's own port."""
    port = "sys/devices/pci0000:00/0000:00:01.0"
    bridge(tree, port, "0x8086", "32.0 GT/s PCIe", 16)
    bridge(tree, f"{port}/0000:01:00.0", maker, "2.5 GT/s PCIe", 8)
    bridge(tree, f"{port}/0000:01:00.0/0000:02:00.0", maker, "16.0 GT/s PCIe", 16)
    card = f"{port}/0000:01:00.0/0000:02:00.0/0000:03:00.0"
    bridge(tree, card, maker, "2.5 GT/s PCIe", 1)
    assert link(tree.root / card) == "gen1 x8 of gen4 x16"


@pytest.mark.parametrize(
    ("speed", "width", "said"),
    [("32.0 GT/s PCIe", 4, "gen5 x4 of gen4 x16"), ("Unknown", 16, ""), ("8.0 GT/s PCIe", 0, "")],
)
def test_a_link_that_is_not_told_is_none(tree: Tree, speed: str, width: int, said: str) -> None:
    at = tree.amd(0, RX, vram=8 * GIB)
    bridge(tree, at, "0x1002", speed, width)
    (gpu,) = Gpus("auto", tree.root).read().gpus or ()
    assert gpu.link == said


def test_what_a_card_does_not_say_is_left_out(tree: Tree) -> None:
    at = tree.amd(0, RX, vram=8 * GIB, unique="0")
    for name in ("hwmon/hwmon3/power1_average", "hwmon/hwmon3/power1_cap", "revision"):
        (tree.root / at / name).unlink()
    tree.write(f"{at}/hwmon/hwmon3/power1_input", 12_500_000)
    tree.write("usr/share/libdrm/amdgpu.ids", "744C, not hex, A\n744C, C8, B")
    (gpu,) = Gpus("auto", tree.root).read().gpus or ()
    assert (gpu.uuid, gpu.selector, gpu.name) == (f"amd-{RX}", "", "AMD GPU 744C")
    assert (gpu.power_w, gpu.power_limit_w, gpu.compute_capability) == (12.5, None, "")
    tree.write(f"{at}/product_name", "AMD Instinct MI210")
    (gpu,) = Gpus("auto", tree.root).read().gpus or ()
    assert gpu.name == "AMD Instinct MI210"


def test_cards_are_in_the_order_of_the_bus_and_two_of_one_id_are_told_apart(tree: Tree) -> None:
    """Numbers of DRM go by who loads first; parts of a partitioned card share its id."""
    tree.amd(0, SECOND, vram=16 * GIB, unique="aaaa")
    tree.amd(7, RX, vram=24 * GIB, unique="aaaa")
    tree.kfd(3, SECOND, GFX1100, 2)
    tree.kfd(12, RX, GFX1100, 1)
    gpus = Gpus("auto", tree.root).read().gpus or ()
    assert [(g.uuid, g.index, g.selector) for g in gpus] == [
        ("GPU-aaaa", 0, ""),
        (f"amd-{SECOND}", 1, "0"),  # the first GPU that KFD counts
    ]


def test_strix_halo_has_one_pool_with_its_host(tree: Tree) -> None:
    """0.5 GiB carved out, 128 GiB it may take, 124 there are (ROCm/legacy-rocm-build#6004)."""
    tree.amd(1, STRIX, vram=GIB // 2, used=GIB // 4, gtt=128 * GIB, table=3)
    tree.kfd(1, STRIX, GFX1151, 9)
    (gpu,) = Gpus("auto", tree.root).read().gpus or ()
    assert (gpu.memory_bytes, gpu.memory_used_bytes, gpu.unified) == (124 * GIB, 6 * GIB, True)
    assert (gpu.uuid, gpu.selector, gpu.compute_capability) == (f"amd-{STRIX}", "0", "gfx1151")


def test_what_is_carved_out_for_an_apu_is_its_own(tree: Tree) -> None:
    tree.amd(1, STRIX, vram=96 * GIB, used=GIB, gtt=14 * GIB, table=3)
    tree.kfd(1, STRIX, GFX1151, 9)
    (gpu,) = Gpus("auto", tree.root).read().gpus or ()
    assert (gpu.memory_bytes, gpu.memory_used_bytes, gpu.unified) == (96 * GIB, GIB, False)


def test_the_graphics_of_a_desktop_cpu_are_not_offered(tree: Tree) -> None:
    """Half the host's memory on two compute units: the tightest fit of all, and the slowest."""
    tree.amd(0, RX, vram=24 * GIB, unique="aaaa")
    tree.amd(1, STRIX, vram=GIB // 2, gtt=62 * GIB, table=2)
    tree.kfd(2, STRIX, RAPHAEL, 9)
    assert [g.uuid for g in Gpus("auto", tree.root).read().gpus or ()] == ["GPU-aaaa"]
    tree.write("sys/class/drm/card5/device/vendor", "0x1002")  # without a driver
    assert len(Gpus("auto", tree.root).read().gpus or ()) == 1


def test_f72_an_amd_card_that_does_not_answer_is_lost(tree: Tree) -> None:
    at = tree.amd(0, RX, vram=24 * GIB, unique="aaaa")
    tree.amd(1, SECOND, vram=16 * GIB, unique="bbbb")
    gpus = Gpus("auto", tree.root)
    assert [g.lost for g in gpus.read().gpus or ()] == [False, False]
    (tree.root / at / "mem_info_vram_used").unlink()
    seen = gpus.read().gpus or ()
    assert [(g.uuid, g.healthy, g.lost) for g in seen if g.lost] == [("GPU-aaaa", False, True)]
    tree.write(f"{at}/mem_info_vram_used", 5)
    assert [g.lost for g in gpus.read().gpus or ()] == [False, False]


def test_uncorrected_errors_of_an_amd_card_keep_new_work_away(tree: Tree) -> None:
    at = tree.amd(0, RX, vram=24 * GIB, unique="aaaa")
    tree.write(f"{at}/ras/umc_err_count", "ue: 0\nce: 7")
    (gpu,) = Gpus("auto", tree.root).read().gpus or ()
    assert (gpu.healthy, gpu.trouble) == (True, "")
    tree.write(f"{at}/ras/umc_err_count", "ue: 3\nce: 7")
    (gpu,) = Gpus("auto", tree.root).read().gpus or ()
    assert (gpu.healthy, gpu.trouble[:22]) == (False, "3 memory errors were n")


def test_a70_who_holds_memory_of_an_amd_card(tree: Tree) -> None:
    """By descriptors and by KFD; a client shared by two descriptors, or two processes, is one."""
    tree.amd(0, RX, vram=24 * GIB, unique="aaaa")
    tree.kfd(1, RX, GFX1100, 51234)
    resident = ("drm-resident-vram:\t2048 MiB", "drm-memory-vram:\t9 GiB", "drm-total-gtt:\t7 GiB")
    tree.client(100, 5, RX, 1, *resident)
    tree.client(100, 6, RX, 1, *resident)
    tree.client(101, 5, RX, 1, *resident)
    tree.client(102, 3, RX, 2, "drm-memory-vram:\t1048576 KiB", "drm-memory-gtt:\todd")
    tree.client(103, 3, "0000:99:00.0", 3, "drm-memory-vram:\t1 GiB")
    tree.client(104, 3, RX, 4, "drm-memory-vram:\t0")
    (tree.root / "proc/102/fd/0").symlink_to("/dev/null")
    (tree.root / "proc/106").mkdir()  # ended while we looked
    tree.kfd_process(102, 51234, 5 * GIB)
    tree.kfd_process(105, 51234, 300)
    assert Gpus("auto", tree.root).read().uses == (
        Use(100, "GPU-aaaa", 2 * GIB),
        Use(102, "GPU-aaaa", 5 * GIB),
        Use(105, "GPU-aaaa", 300),
    )


def test_what_is_taken_of_the_host_counts_where_there_is_one_pool(tree: Tree) -> None:
    tree.amd(1, STRIX, vram=GIB // 2, gtt=128 * GIB, table=3)
    tree.kfd(1, STRIX, GFX1151, 9)
    tree.client(7, 3, STRIX, 1, "drm-resident-vram:\t1 GiB", "drm-resident-gtt:\t20 GiB")
    assert Gpus("auto", tree.root).read().uses == (Use(7, f"amd-{STRIX}", 21 * GIB),)


def test_f59_what_cannot_be_read_at_all_is_unknown_and_ends_nobody(tmp_path: Path) -> None:
    tree = Tree(tmp_path)
    tree.amd(0, RX, vram=24 * GIB, unique="aaaa")
    tree.write("proc", "no folder")
    reading = Gpus("auto", tmp_path).read()
    assert (reading.gpus, reading.error[:26]) == (None, "the GPUs cannot be read: [")


# ---------------------------------------------------------------- Intel


def test_intel_cards_with_memory_of_their_own(tree: Tree) -> None:
    arc = tree.card(2, "0x8086", "xe", "0000:04:00.0", "E20B")
    tree.write(f"{arc}/tile0/physical_vram_size_bytes", 12 * GIB)
    tree.write(f"{arc}/hwmon/hwmon1/power1_max", 190_000_000)
    tree.card(0, "0x8086", "i915", "0000:00:02.0", "A780")  # of the CPU
    tree.card(1, "0x8086", "i915", "0000:05:00.0", "56A0")
    tree.write("sys/class/drm/card1/lmem_total_bytes", 16 * GIB)
    tree.client(9, 3, "0000:04:00.0", 1, "drm-resident-vram0:\t3 GiB", "drm-resident-gtt:\t1 GiB")
    reading = Gpus("auto", tree.root).read()
    assert [(g.uuid, g.index, g.selector, g.memory_bytes) for g in reading.gpus or ()] == [
        ("intel-0000:04:00.0", 0, "1", 12 * GIB),
        ("intel-0000:05:00.0", 1, "2", 16 * GIB),
    ]
    first = (reading.gpus or ())[0]
    assert (first.name, first.power_limit_w, first.memory_used_bytes) == (
        "Intel GPU E20B",
        190.0,
        3 * GIB,
    )
    assert reading.uses == (Use(9, "intel-0000:04:00.0", 3 * GIB),)
    assert reading.blind == {"intel-0000:04:00.0", "intel-0000:05:00.0"}


def test_a43_freed_memory_of_an_intel_card_is_not_seen_to_come_back(tree: Tree) -> None:
    """So what was there is held for the minute of those that nobody can measure."""
    tree.card(1, "0x8086", "i915", "0000:05:00.0", "56A0")
    tree.write("sys/class/drm/card1/lmem_total_bytes", 16 * GIB)
    devices = Devices(Gpus("auto", tree.root), "n1")
    devices.last = devices.gpus.read()
    uuid = "intel-0000:05:00.0"
    start = Start(
        shard="a-1/0", replica="a-1", incarnation="i", model="a", profile="p", gpus=(uuid,)
    )
    assert devices.memory(Record(start=start)).used_bytes is None


def test_no_card_of_anybody_is_none(tmp_path: Path) -> None:
    reading = Gpus("auto", tmp_path).read()
    assert (reading.gpus, reading.measured) == ((), False)
    tree = Tree(tmp_path)
    tree.card(0, "0x8086", "i915", "0000:00:02.0", "A780")
    tree.card(1, "0x1002", "radeon", "0000:02:00.0", "6798")
    assert Gpus("auto", tmp_path).read().gpus == ()


# ---------------------------------------------------------------- how engines are told


NVIDIA = Gpu(uuid="GPU-1-2", vendor="nvidia")
AMD = Gpu(uuid="GPU-aaaa", vendor="amd")
APU = Gpu(uuid=f"amd-{STRIX}", vendor="amd", selector="3")
ARC = Gpu(uuid="intel-0000:05:00.0", vendor="intel", selector="2")


@pytest.mark.parametrize(
    ("gpus", "told"),
    [
        ((), {"CUDA_VISIBLE_DEVICES": "", "HIP_VISIBLE_DEVICES": ""}),
        ((NVIDIA,), {"CUDA_VISIBLE_DEVICES": "GPU-1-2", "HIP_VISIBLE_DEVICES": "GPU-1-2"}),
        (
            (AMD, APU),
            {
                "ROCR_VISIBLE_DEVICES": "GPU-aaaa,3",
                "HIP_VISIBLE_DEVICES": "0,1",
                "CUDA_VISIBLE_DEVICES": "0,1",
            },
        ),
        (
            (ARC,),
            {
                "ZE_AFFINITY_MASK": "2",
                "ZE_ENABLE_PCI_ID_DEVICE_ORDER": "1",
                "CUDA_VISIBLE_DEVICES": ARC.uuid,
                "HIP_VISIBLE_DEVICES": ARC.uuid,
            },
        ),
    ],
)
def test_each_runtime_is_told_in_its_own_words(gpus: tuple[Gpu, ...], told: dict[str, str]) -> None:
    uuids = [g.uuid for g in gpus]
    env = environment(uuids, (NVIDIA, AMD, APU, ARC))
    always = {"CUDA_DEVICE_ORDER": "PCI_BUS_ID", "LLMGW_GPUS": ",".join(uuids)}
    assert env == always | told


def test_a_gpu_that_is_not_read_is_told_by_its_uuid() -> None:
    env = environment(("GPU-x",), ())
    assert env["CUDA_VISIBLE_DEVICES"] == env["HIP_VISIBLE_DEVICES"] == "GPU-x"
