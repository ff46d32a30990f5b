"""The power limit that an operator asked for, held on each NVIDIA card of the node (`gpu_power_limit_w`).

Nothing is set unless it is asked for. A driver forgets the limit when it is loaded anew, so it is looked at with each
reading. Setting it is for root (nvmlDeviceSetPowerManagementLimit, NVML API reference); a refusal is a warning that
says what to type, and is not tried again before the library is opened anew. May not take a limit back: nobody said to
what.
"""

from __future__ import annotations

from typing import Any

import pynvml
import structlog

log = structlog.get_logger()


class PowerLimit:
    """`watts` None: the cards are left as they are."""

    def __init__(self, watts: float | None) -> None:
        self.watts = watts
        self._refused: dict[str, str] = {}

    def opened(self) -> None:
        self._refused = {}

    def held(self, uuid: str, handle: Any) -> str:
        """Why this card may draw another figure than was asked for, or ""."""
        if self.watts is None:
            return ""
        try:
            has_mw = pynvml.nvmlDeviceGetPowerManagementLimit(handle)
        except pynvml.NVMLError as e:
            return f"its power limit cannot be told: {e}"
        wanted_mw = round(self.watts * 1000)
        if has_mw == wanted_mw:
            return ""
        if uuid not in self._refused:
            why = _set(handle, wanted_mw)
            if not why:
                log.info("power limit set", gpu=uuid, before_w=has_mw / 1000, now_w=self.watts)
                return ""
            self._refused[uuid] = why
        return f"its power limit is {has_mw / 1000:g} W, not the {self.watts:g} W asked for: {self._refused[uuid]}"


def _set(handle: Any, wanted_mw: int) -> str:
    """Why it was not set, or ""."""
    try:
        low, high = pynvml.nvmlDeviceGetPowerManagementLimitConstraints(handle)
        if not low <= wanted_mw <= high:
            return f"the card takes {low / 1000:g} to {high / 1000:g} W"
        pynvml.nvmlDeviceSetPowerManagementLimit(handle, wanted_mw)
    except pynvml.NVMLError as e:
        root = "; root may: nvidia-smi -pl" if e.value == pynvml.NVML_ERROR_NO_PERMISSION else ""
        return f"{str(e).rstrip('.').lower()}{root}"
    return ""
