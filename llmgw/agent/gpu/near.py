"""Which NVIDIA cards are near to each other: the NUMA node of each slot, and who reaches whom over NVLink.

Facts of the machine, asked once for a set of cards: they change with a screwdriver. A driver that does not tell makes a
card near to nobody. A door to pynvml; may not choose.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import permutations
from pathlib import Path
from typing import Any

import pynvml
from msgspec.structs import replace

from llmgw.agent.gpu import sysfs
from llmgw.core.types.messages import Gpu


class Near:
    def __init__(self, root: Path) -> None:
        self._root = root
        self._of: tuple[str, ...] = ()
        self._peers: dict[str, tuple[str, ...]] = {}

    def told(self, gpus: list[Gpu], whole: Mapping[str, Any]) -> list[Gpu]:
        """The same GPUs with it; `whole`: by uuid, the handles of cards that are not split (a part has no links)."""
        if self._of != tuple(whole):
            self._of = tuple(whole)
            self._peers = dict.fromkeys(whole, ())
            for a, b in permutations(whole, 2):
                if _linked(whole[a], whole[b]):
                    self._peers[a] = (*self._peers[a], b)
        return [
            replace(
                g, numa=sysfs.numa(self._device(g.pci)), nvlink=self._peers.get(g.uuid, g.nvlink)
            )
            for g in gpus
        ]

    def _device(self, pci: str) -> Path:
        """NVML writes the domain with eight digits, the kernel with four (nvmlPciInfo_t.busId)."""
        return self._root / "sys/bus/pci/devices" / pci.lower()[-len("0000:00:00.0") :]


def _linked(one: Any, other: Any) -> bool:
    """By way of an NVSwitch as well (nvmlDeviceGetP2PStatus)."""
    try:
        status = pynvml.nvmlDeviceGetP2PStatus(one, other, pynvml.NVML_P2P_CAPS_INDEX_NVLINK)
    except pynvml.NVMLError:
        return False
    return bool(status == pynvml.NVML_P2P_STATUS_OK)
