"""AMD GPUs by the files of amdgpu and KFD; no library is needed (kernel: Documentation/gpu/amdgpu/driver-misc.rst).

A card is known by its `unique_id`, which is also how ROCm names it (`GPU-` and 16 digits); one without is known by its
PCI address, and given to ROCm by its number. Graphics parts of desktop CPUs are not offered: their memory is a piece
of the host's and few engines run on them; Strix parts are real targets and have one pool with the host.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from llmgw.agent.gpu import fdinfo
from llmgw.agent.gpu.facts import Found, Use
from llmgw.agent.gpu.sysfs import Card, cards, host_memory, link, numa, number, text, watts
from llmgw.core.types.messages import Gpu

VENDOR = "0x1002"
#: The header of `gpu_metrics` tells APUs by the format of the table (kernel: kgd_pp_interface.h); 1 is of cards.
APU_FORMATS = frozenset({2, 3})
#: APUs to place engines on: gfx1150, gfx1151 (Strix Halo), gfx1152.
APU_TARGETS = frozenset({110500, 110501, 110502})
#: Names by device and revision, as Mesa and ROCm have them.
IDS = "usr/share/libdrm/amdgpu.ids"


class Kfd(NamedTuple):
    """`ordinal`: its number among GPUs, as ROCm counts them; `gpu_id` names it in KFD's own files."""

    ordinal: int
    gpu_id: int
    target: int


def read(root: Path, first: int) -> Found:
    """`first`: the number that the first of them has for people."""
    there = [c for c in cards(root, VENDOR) if c.driver == "amdgpu"]
    if not there:
        return Found()
    nodes = _kfd(root)
    found: list[tuple[Card, Gpu]] = []
    ids: set[str] = set()
    for card in there:
        gpu = _gpu(root, card, nodes.get(card.pci), first + len(found), ids)
        if gpu is not None:
            ids.add(gpu.uuid)
            found.append((card, gpu))
    if not found:
        return Found()
    return Found(tuple(g for _, g in found), tuple(_uses(root, found, nodes)))


def _gpu(root: Path, card: Card, kfd: Kfd | None, index: int, taken: set[str]) -> Gpu | None:
    """None for what is not offered, and for a card that does not answer: it is missed by who knew it."""
    vram = number(card.device / "mem_info_vram_total")
    used = number(card.device / "mem_info_vram_used")
    if not vram or used is None:
        return None
    unified = False
    if _is_apu(card):
        if kfd is None or kfd.target not in APU_TARGETS:
            return None
        gtt, host = number(card.device / "mem_info_gtt_total") or 0, host_memory(root)
        # With less carved out for it than it may take of the host's, ROCm takes the host's (amdgpu: apu_prefer_gtt).
        unified = gtt > vram and host is not None
        if unified and host is not None:
            vram, used = min(gtt, host.total_bytes), host.used_bytes
    about: dict[str, Any] = _named(card, kfd, taken) | _power(card)
    errors = _uncorrected(card)
    trouble = f"{errors} memory errors were not corrected: reset it when it is idle"
    return Gpu(
        **about,
        index=index,
        name=_name(root, card),
        memory_bytes=vram,
        memory_used_bytes=used,
        vendor="amd",
        pci=card.pci,
        driver=card.driver,
        numa=numa(card.device),
        link=link(card.device),
        compute_capability=_gfx(kfd.target) if kfd else "",
        unified=unified,
        healthy=not errors,
        trouble=trouble if errors else "",
    )


def _named(card: Card, kfd: Kfd | None, taken: set[str]) -> dict[str, str]:
    """Parts of a partitioned card share its id."""
    unique = text(card.device / "unique_id") or ""
    uuid = f"GPU-{unique.removeprefix('0x')}"
    if unique and set(unique) != {"0"} and uuid not in taken:
        return {"uuid": uuid}
    return {"uuid": f"amd-{card.pci}", "selector": str(kfd.ordinal) if kfd else ""}


def _power(card: Card) -> dict[str, float | None]:
    for hwmon in sorted((card.device / "hwmon").glob("hwmon*")):
        now = watts(hwmon / "power1_average")
        now = watts(hwmon / "power1_input") if now is None else now
        return {"power_w": now, "power_limit_w": watts(hwmon / "power1_cap")}
    return {}


def _is_apu(card: Card) -> bool:
    try:
        with (card.device / "gpu_metrics").open("rb") as f:
            header = f.read(4)
    except OSError:
        return False
    return len(header) > 2 and header[2] in APU_FORMATS  # noqa: PLR2004  after the size, two bytes


def _uncorrected(card: Card) -> int:
    """Of its memory (kernel: amdgpu RAS, umc_err_count)."""
    for line in (text(card.device / "ras/umc_err_count") or "").splitlines():
        kind, _, count = line.partition(":")
        if kind.strip() == "ue" and count.strip().isdecimal():
            return int(count)
    return 0


def _name(root: Path, card: Card) -> str:
    """Only server cards say it themselves."""
    said = text(card.device / "product_name")
    if said:
        return said
    device, revision = card.pci_id.partition(":")[2], number(card.device / "revision")
    for line in (text(root / IDS) or "").splitlines():
        parts = [p.strip() for p in line.split(",")]
        if len(parts) == 3 and parts[0].upper() == device.upper():  # noqa: PLR2004  device, revision, name
            try:
                if int(parts[1], 16) == revision:
                    return parts[2]
            except ValueError:
                continue
    return f"AMD GPU {device}"


def _gfx(target: int) -> str:
    """110501 is gfx1151, 90010 is gfx90a."""
    return f"gfx{target // 10000}{target // 100 % 100:x}{target % 100:x}" if target else ""


def _kfd(root: Path) -> dict[str, Kfd]:
    """By PCI address. CPUs are nodes too, with a gpu_id of 0; a node we may not use does not tell its own."""
    found: dict[str, Kfd] = {}
    nodes = root / "sys/class/kfd/kfd/topology/nodes"
    names = sorted(int(n.name) for n in nodes.glob("*") if n.name.isdecimal())
    for name in names:
        gpu_id = number(nodes / str(name) / "gpu_id")
        if not gpu_id:
            continue
        lines = (text(nodes / str(name) / "properties") or "").splitlines()
        about = {k: int(v) for k, _, v in (x.partition(" ") for x in lines) if v.isdecimal()}
        at = about.get("location_id", 0)
        slot = f"{at >> 8 & 0xFF:02x}:{at >> 3 & 0x1F:02x}.{at & 7}"
        pci = f"{about.get('domain', 0):04x}:{slot}"
        found[pci] = Kfd(len(found), gpu_id, about.get("gfx_target_version", 0))
    return found


def _uses(root: Path, found: list[tuple[Card, Gpu]], nodes: dict[str, Kfd]) -> Iterator[Use]:
    """By descriptors, and by KFD, which tells what computes to everybody. Where both do, the larger is whole."""
    by_pci = {card.pci: gpu for card, gpu in found}
    held: dict[tuple[int, str], int] = {}
    for (pid, pci), regions in fdinfo.read(root).items():
        gpu = by_pci.get(pci)
        if gpu is not None:
            held[pid, gpu.uuid] = regions["vram"] + (regions["gtt"] if gpu.unified else 0)
    for pci, gpu in by_pci.items():
        if pci in nodes:
            files = (root / "sys/class/kfd/kfd/proc").glob(f"*/vram_{nodes[pci].gpu_id}")
            for file in files:
                at = (int(file.parent.name), gpu.uuid)
                held[at] = max(held.get(at, 0), number(file) or 0)
    for (pid, uuid), size in sorted(held.items()):
        if size:
            yield Use(pid, uuid, size)
