"""A folder that looks like /sys, /proc and /dev of a box with AMD or Intel cards, file by file as their drivers write.

Answers for: the words of the files. It may not know what is made of them.
"""

from __future__ import annotations

import struct
from pathlib import Path

GIB = 1 << 30


class Tree:
    def __init__(self, root: Path) -> None:
        self.root = root

    def write(self, path: str, text: str | float) -> None:
        file = self.root / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(f"{text}\n")

    def memory(self, total_gib: float, available_gib: float) -> None:
        total, free = int(total_gib * (1 << 20)), int(available_gib * (1 << 20))
        self.write("proc/meminfo", f"MemTotal: {total} kB\nMemFree: 1 kB\nMemAvailable: {free} kB")

    def card(self, number: int, vendor: str, driver: str, pci: str, device: str) -> str:
        """The path of its PCI device."""
        at = f"sys/class/drm/card{number}/device"
        self.write(f"{at}/vendor", vendor)
        ident = f"{vendor.removeprefix('0x').upper()}:{device}"
        self.write(f"{at}/uevent", f"DRIVER={driver}\nPCI_ID={ident}\nPCI_SLOT_NAME={pci}")
        self.write(f"{at}/revision", "0xc8")
        self.write(f"sys/class/drm/card{number}-DP-1/status", "connected")
        return at

    def amd(
        self,
        number: int,
        pci: str,
        *,
        vram: int,
        used: int = 0,
        gtt: int = 31 * GIB,
        unique: str = "",
        table: int = 1,
    ) -> str:
        at = self.card(number, "0x1002", "amdgpu", pci, "744C")
        for name, value in (("vram_total", vram), ("vram_used", used), ("gtt_total", gtt)):
            self.write(f"{at}/mem_info_{name}", value)
        if unique:
            self.write(f"{at}/unique_id", unique)
        (self.root / at / "gpu_metrics").write_bytes(
            struct.pack("<HBB", 120, table, 3) + b"\0" * 116
        )
        self.write(f"{at}/hwmon/hwmon3/power1_average", 87_000_000)
        self.write(f"{at}/hwmon/hwmon3/power1_cap", 303_000_000)
        return at

    def kfd(self, node: int, pci: str, target: int, gpu_id: int) -> None:
        at = f"sys/class/kfd/kfd/topology/nodes/{node}"
        self.write(f"{at}/gpu_id", gpu_id)
        domain, bus, rest = pci.split(":")
        slot, function = rest.split(".")
        where = int(bus, 16) << 8 | int(slot, 16) << 3 | int(function, 16)
        self.write(
            f"{at}/properties",
            f"cpu_cores_count 0\nsimd_count 192\nlocation_id {where}\ndomain {int(domain, 16)}\n"
            f"gfx_target_version {target}\nname gfx",
        )

    def kfd_process(self, pid: int, gpu_id: int, size: int) -> None:
        self.write(f"sys/class/kfd/kfd/proc/{pid}/vram_{gpu_id}", size)

    def client(self, pid: int, fd: int, pci: str, client: int, *lines: str) -> None:
        """A descriptor of a DRM card, as the kernel's drm-usage-stats.rst has it."""
        link = self.root / f"proc/{pid}/fd/{fd}"
        link.parent.mkdir(parents=True, exist_ok=True)
        link.symlink_to("/dev/dri/renderD128")
        about = (f"drm-pdev:\t{pci}", f"drm-client-id:\t{client}", *lines)
        self.write(f"proc/{pid}/fdinfo/{fd}", "\n".join(("pos:\t0", "drm-driver:\tx", *about)))
