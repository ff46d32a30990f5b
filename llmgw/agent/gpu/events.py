"""Xids as NVML tells them: an event set that is asked at each reading and never waited for. With `nvml` the only door.

A card that has no events (old, virtual, WSL) has none here. May not say what an Xid means.
"""

from __future__ import annotations

import contextlib
import ctypes
import time
from typing import Any

import pynvml

from llmgw.agent.gpu.xid import Address, Xid, address, wall

#: A card in trouble may tell a thousand of them; the rest comes with the next reading.
MOST = 256
#: nvml.h, NVML_FI_DEV_GET_GPU_RECOVERY_ACTION: from driver 570 on; older bindings do not name it.
RECOVERY_ACTION = 230


class Events:
    """Of one opening of the library: closing that ends them."""

    def __init__(self) -> None:
        self._set: Any = None
        #: the cards that are asked, by their handle: one that is lost does not say its name any more
        self._cards: dict[int, Address] = {}

    def watch(self, handle: Any, pci: str) -> None:
        """Once for each card."""
        where, mine = address(pci), _number(handle)
        if where is None or mine in self._cards:
            return
        with contextlib.suppress(pynvml.NVMLError):
            if self._set is None:
                self._set = pynvml.nvmlEventSetCreate()
            kinds = pynvml.nvmlDeviceGetSupportedEventTypes(handle)
            if kinds & pynvml.nvmlEventTypeXidCriticalError:
                pynvml.nvmlDeviceRegisterEvents(
                    handle, pynvml.nvmlEventTypeXidCriticalError, self._set
                )
        self._cards[mine] = where

    def new(self) -> list[Xid]:
        found: list[Xid] = []
        while self._set is not None and len(found) < MOST:
            try:
                event = pynvml.nvmlEventSetWait_v2(self._set, 0)
            except pynvml.NVMLError:  # NVML_ERROR_TIMEOUT: nothing more
                break
            where = self._cards.get(_number(event.device))
            if where is not None and event.eventType == pynvml.nvmlEventTypeXidCriticalError:
                at_s = time.monotonic()
                found.append(Xid(where, int(event.eventData), at_s, wall(at_s)))
        return found


def asks(handle: Any) -> int | None:
    """What its driver wants done for it; None where it does not say."""
    try:
        value = pynvml.nvmlDeviceGetFieldValues(handle, [RECOVERY_ACTION])[0]
    except pynvml.NVMLError:
        return None
    return int(value.value.uiVal) if value.nvmlReturn == pynvml.NVML_SUCCESS else None


def _number(handle: Any) -> int:
    return ctypes.cast(handle, ctypes.c_void_p).value or 0
