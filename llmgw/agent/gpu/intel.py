"""Intel GPUs with memory of their own (Arc and the like) by the files of xe and i915; there is little they tell.

No file tells how much memory is in use: only processes we may look at do, so what was freed is not seen to come back.
Graphics parts of CPUs are not offered. They are known by their PCI address and given to Level Zero by number.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from llmgw.agent.gpu import fdinfo
from llmgw.agent.gpu.facts import Found, Use
from llmgw.agent.gpu.sysfs import Card, cards, link, numa, number, watts
from llmgw.core.types.messages import Gpu

VENDOR = "0x8086"
DRIVERS = ("xe", "i915")
#: What drivers call memory of the card: vram0, local0.
REGIONS = ("vram", "local")


def read(root: Path, first: int) -> Found:
    """`first`: the number that the first of them has for people."""
    there = [c for c in cards(root, VENDOR) if c.driver in DRIVERS]
    sized = [(n, c, size) for n, c in enumerate(there) if (size := _memory_bytes(c))]
    if not sized:
        return Found()
    by_pci = {c.pci: f"intel-{c.pci}" for _, c, _ in sized}
    uses = tuple(_uses(root, by_pci))
    gpus: list[Gpu] = []
    for ordinal, card, size in sized:
        uuid = by_pci[card.pci]
        gpu = Gpu(
            uuid=uuid,
            index=first + len(gpus),
            name=f"Intel GPU {card.pci_id.partition(':')[2]}",
            memory_bytes=size,
            memory_used_bytes=min(sum(u.memory_bytes for u in uses if u.gpu == uuid), size),
            vendor="intel",
            selector=str(ordinal),
            pci=card.pci,
            driver=card.driver,
            numa=numa(card.device),
            link=link(card.device),
            power_limit_w=_limit_w(card),
        )
        gpus.append(gpu)
    return Found(tuple(gpus), uses, blind=frozenset(by_pci.values()))


def _memory_bytes(card: Card) -> int:
    """By tile (xe), or in one (i915); neither has the file where there is no such memory."""
    tiles = [*card.device.glob("tile*/physical_vram_size_bytes")]
    if tiles:
        return sum(number(t) or 0 for t in tiles)
    return number(card.path / "lmem_total_bytes") or number(card.device / "lmem_total_bytes") or 0


def _limit_w(card: Card) -> float | None:
    for hwmon in sorted((card.device / "hwmon").glob("hwmon*")):
        found = watts(hwmon / "power1_max")
        if found:
            return found
    return None


def _uses(root: Path, by_pci: dict[str, str]) -> Iterator[Use]:
    for (pid, pci), regions in sorted(fdinfo.read(root).items()):
        size = sum(n for region, n in regions.items() if region.startswith(REGIONS))
        if pci in by_pci and size:
            yield Use(pid, by_pci[pci], size)
