"""Small files of the kernel: what is on the PCI bus, which DRM cards there are, how much memory the host has.

Everything is below a root folder, so that tests make their own. What cannot be read is None: drivers leave files out,
and a card that is gone answers EIO or ENODEV. May not know a vendor.
"""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from llmgw.agent.gpu.facts import Link, linked

#: GT/s of a lane -> generation (kernel: include/linux/pci.h, enum pci_bus_speed).
GENERATIONS = {"2.5": 1, "5": 2, "8": 3, "16": 4, "32": 5, "64": 6}
DISPLAY_CLASS = "0x03"
#: What the host uses changes all the time; told in steps it does not change with every reading.
STEP_BYTES = 64 << 20


class Card(NamedTuple):
    """`path`: /sys/class/drm/cardN; `device`: its PCI device there."""

    path: Path
    device: Path
    pci: str
    pci_id: str
    driver: str


class Memory(NamedTuple):
    total_bytes: int
    used_bytes: int


def text(path: Path) -> str | None:
    try:
        return path.read_text(errors="replace").strip()
    except OSError:
        return None


def number(path: Path) -> int | None:
    found = text(path)
    try:
        return int(found, 0) if found else None
    except ValueError:
        return None


def numa(device: Path) -> int | None:
    """The NUMA node of a PCI device; -1 says that the firmware does not tell (kernel: sysfs-bus-pci, numa_node)."""
    found = number(device / "numa_node")
    return None if found is None or found < 0 else found


def link(device: Path) -> str:
    """The PCIe link of a card to its slot (kernel: sysfs-bus-pci, current_link_speed and current_link_width).

    Cards with a switch of their own (Navi, Arc) tell of a link within the card, so that of the outermost bridge of the
    same maker counts; the port of the board that it is plugged into is never one of those.
    """
    at = device.resolve()
    maker = text(at / "vendor")
    while text(at.parent / "vendor") == maker and text(at.parent.parent / "vendor") is not None:
        at = at.parent
    now, most = (
        Link(_generation(at / f"{which}_link_speed"), number(at / f"{which}_link_width"))
        for which in ("current", "max")
    )
    return linked(now, most)


def _generation(path: Path) -> int | None:
    """`16.0 GT/s PCIe` is generation 4; `Unknown` is none."""
    return GENERATIONS.get((text(path) or "").partition(" ")[0].removesuffix(".0"))


def watts(path: Path) -> float | None:
    """Files of hwmon are in microwatts (kernel: Documentation/hwmon/sysfs-interface.rst)."""
    found = number(path)
    return None if found is None else found / 1e6


def on_the_bus(root: Path, vendor: str) -> bool:
    """A display device of that vendor, whether or not a driver has it."""
    devices = root / "sys/bus/pci/devices"
    return devices.exists() and any(
        text(d / "vendor") == vendor and (text(d / "class") or "").startswith(DISPLAY_CLASS)
        for d in devices.iterdir()
    )


def cards(root: Path, vendor: str) -> list[Card]:
    """In the order of the PCI bus, which does not change with who loads first as the numbers of DRM do."""
    found = []
    for path in (root / "sys/class/drm").glob("card*"):
        device = path / "device"
        if not path.name[4:].isdecimal() or text(device / "vendor") != vendor:
            continue
        about = dict(line.partition("=")[::2] for line in (text(device / "uevent") or "").split())
        pci = about.get("PCI_SLOT_NAME", "")
        if pci:
            card = Card(path, device, pci, about.get("PCI_ID", ""), about.get("DRIVER", ""))
            found.append(card)
    return sorted(found, key=lambda c: c.pci)


def host_memory(root: Path) -> Memory | None:
    """Used is what an engine could not have: the page cache is given back on demand (proc(5), MemAvailable)."""
    found = {}
    for line in (text(root / "proc/meminfo") or "").splitlines():
        name, _, value = line.partition(":")
        if name in ("MemTotal", "MemAvailable"):
            found[name] = int(value.split()[0]) << 10
    if len(found) < 2:  # noqa: PLR2004  both
        return None
    used = found["MemTotal"] - found["MemAvailable"]
    return Memory(found["MemTotal"], used // STEP_BYTES * STEP_BYTES)
