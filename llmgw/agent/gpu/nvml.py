"""NVIDIA GPUs through NVML: their facts, what is wrong with them, who uses them. With `events` the only door.

A card that does not answer is that card's trouble (F72); a library or a driver that does not answer at all is
`NvmlAwayError`, and the library is opened anew at the next reading: a driver that comes up later, or comes back after
a `systemctl daemon-reload` took a container's devices away (NVIDIA/nvidia-container-toolkit#48), is found (F59).
MIG devices are GPUs of their own, the card that they are parts of is not offered. May not keep a verdict.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pynvml
from msgspec.structs import replace

from llmgw.agent.gpu import sysfs
from llmgw.agent.gpu.events import Events, asks
from llmgw.agent.gpu.facts import Found, Link, Use, linked
from llmgw.agent.gpu.near import Near
from llmgw.agent.gpu.power import PowerLimit
from llmgw.core.types.messages import Gpu
from llmgw.errors import LlmgwError

MISMATCH, UNKNOWN = pynvml.NVML_ERROR_LIB_RM_VERSION_MISMATCH, pynvml.NVML_ERROR_UNKNOWN
GONE = frozenset({pynvml.NVML_ERROR_GPU_IS_LOST, pynvml.NVML_ERROR_GPU_NOT_FOUND})
#: What to do about an error that its own words do not tell.
ADVICE = {
    MISMATCH: "the driver was replaced under the running kernel module: reboot when it suits; if the module is "
    "reloaded instead, restart the agent, whose engines go on",
    UNKNOWN: "the devices of a container are taken away by systemctl daemon-reload; start the container anew",
    pynvml.NVML_ERROR_DRIVER_NOT_LOADED: "load the nvidia module",
    pynvml.NVML_ERROR_NO_PERMISSION: "let this user open /dev/nvidia*",
}
#: GPUs whose memory is the host's. Most do not tell any memory; some drivers tell the host's (XuehaiPan/nvitop#208).
UNIFIED_NAMES = ("GB10", "Tegra", "Orin", "Thor")
#: A MIG device's number for people: that of its card, and which of it. 0 is the first card's first: 100.
MIG_INDEX = 100


class NvmlAwayError(LlmgwError):
    """NVML does not answer: nothing is known of any of its devices."""

    code = "nvml_away"


class _Card(NamedTuple):
    number: int
    uuid: str
    handle: Any
    driver: str


class Nvml:
    """`mig` has every MIG device seen and the card it is part of, `names` the card at each index of this opening."""

    def __init__(self, root: Path, limit_w: float | None = None) -> None:
        self.root = root
        self.limit = PowerLimit(limit_w)
        self.open = False
        self.mig: dict[str, str] = {}
        self.names: dict[int, str] = {}
        self.events = Events()
        self.near = Near(root)

    def read(self) -> Found:
        try:
            if not self.open:
                self.names = {}
                self.limit.opened()
                self.events = Events()
                pynvml.nvmlInit()
                self.open = True
            return self._all()
        except pynvml.NVMLError as e:
            self.close()
            raise NvmlAwayError(_away(e)) from e

    def close(self) -> None:
        if self.open:
            with contextlib.suppress(pynvml.NVMLError):
                pynvml.nvmlShutdown()
        self.open = False

    def _all(self) -> Found:
        driver = pynvml.nvmlSystemGetDriverVersion()
        gpus: list[Gpu] = []
        uses: list[Use] = []
        retired: set[str] = set()
        mute: list[pynvml.NVMLError] = []
        asked: dict[str, int] = {}
        whole: dict[str, Any] = {}
        answers = 0
        for index in range(pynvml.nvmlDeviceGetCount()):
            try:
                handle = pynvml.nvmlDeviceGetHandleByIndex(index)
                card = _Card(index, pynvml.nvmlDeviceGetUUID(handle), handle, driver)
                self.names[index] = card.uuid
                parts = list(self._parts(card))
                said = self.limit.held(card.uuid, handle)
                found = parts or [(_gpu(card, self.root), handle)]
                found = [(replace(g, trouble=g.trouble or said), h) for g, h in found]
            except pynvml.NVMLError as e:
                mute.append(e)
                gpus += self._mute(index, driver, e)
                continue
            answers += 1
            retired |= self._retired(card, [g.uuid for g, _ in parts])
            self.events.watch(handle, found[0][0].pci)
            wanted = asks(handle)
            asked |= {} if wanted is None else {g.uuid: wanted for g, _ in found}
            whole |= {} if parts else {card.uuid: handle}
            gpus += [g for g, _ in found]
            uses += [u for g, h in found if not g.lost for u in _uses(g.uuid, h)]
        away = next((e for e in mute if e.value not in GONE), None)
        if away is not None and not answers:
            raise away  # no card answers, and none is said to be lost: it is the driver, or our access to it
        return Found(
            tuple(self.near.told(gpus, whole)),
            tuple(uses),
            retired=frozenset(retired),
            xids=tuple(self.events.new()),
            asks=asked,
        )

    def _mute(self, index: int, driver: str, error: pynvml.NVMLError) -> Iterator[Gpu]:
        """A card that does not even say its name has the one that it had; one that never said it is left out."""
        uuid = self.names.get(index)
        if uuid is not None:
            lost = error.value in GONE
            yield Gpu(
                uuid=uuid,
                index=index,
                vendor="nvidia",
                driver=driver,
                healthy=False,
                lost=lost,
                trouble=_unanswered(error),
            )

    def _parts(self, card: _Card) -> Iterator[tuple[Gpu, Any]]:
        """Its MIG devices, or a card without any: in MIG mode it computes nothing itself."""
        if not _or([0, 0], pynvml.nvmlDeviceGetMigMode, card.handle)[0]:
            return
        whole, some = _gpu(card, self.root), False
        for slot in range(_or(0, pynvml.nvmlDeviceGetMaxMigDeviceCount, card.handle)):
            try:
                handle = pynvml.nvmlDeviceGetMigDeviceHandleByIndex(card.handle, slot)
                uuid = pynvml.nvmlDeviceGetUUID(handle)
                memory = pynvml.nvmlDeviceGetMemoryInfo(handle)
            except pynvml.NVMLError_NotFound:
                continue
            some = True
            self.mig[uuid] = card.uuid
            yield (
                Gpu(
                    uuid=uuid,
                    index=MIG_INDEX * (card.number + 1) + slot,
                    name=_mig_name(whole.name, handle),
                    memory_bytes=memory.total,
                    memory_used_bytes=memory.used,
                    vendor="nvidia",
                    pci=whole.pci,
                    driver=card.driver,
                    link=whole.link,
                    compute_capability=whole.compute_capability,
                    healthy=whole.healthy,
                    trouble=whole.trouble,
                ),
                handle,
            )
        if not some:
            trouble = (
                "it is in MIG mode and has no MIG devices: nvidia-smi mig -cgi PROFILE -C makes one"
            )
            empty = Gpu(
                uuid=card.uuid,
                index=card.number,
                name=whole.name,
                vendor="nvidia",
                pci=whole.pci,
                driver=card.driver,
                healthy=False,
                trouble=trouble,
            )
            yield empty, card.handle

    def _retired(self, card: _Card, parts: list[str]) -> set[str]:
        """What was taken apart on purpose: the card once it has parts, and parts that it no longer has."""
        gone = {u for u, parent in self.mig.items() if parent == card.uuid and u not in parts}
        return gone | ({card.uuid} if parts and card.uuid not in parts else set())


def persistence_off() -> tuple[int, ...]:
    """Cards whose driver forgets them when nobody has them open; () also where NVML does not say."""
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError:
        return ()
    try:
        handles = [
            _or(None, pynvml.nvmlDeviceGetHandleByIndex, i)
            for i in range(pynvml.nvmlDeviceGetCount())
        ]
        modes = [
            None if h is None else _or(None, pynvml.nvmlDeviceGetPersistenceMode, h)
            for h in handles
        ]
    except pynvml.NVMLError:
        return ()
    finally:
        pynvml.nvmlShutdown()
    return tuple(i for i, mode in enumerate(modes) if mode == pynvml.NVML_FEATURE_DISABLED)


def _gpu(card: _Card, root: Path) -> Gpu:
    """One card; one that does not tell its memory, though it has its own, is not healthy."""
    handle = card.handle
    pci = _or(None, pynvml.nvmlDeviceGetPciInfo, handle)
    name = _or("", pynvml.nvmlDeviceGetName, handle)
    capability = _or(None, pynvml.nvmlDeviceGetCudaComputeCapability, handle)
    limit_mw = _or(None, pynvml.nvmlDeviceGetEnforcedPowerLimit, handle)
    power_mw = _or(None, pynvml.nvmlDeviceGetPowerUsage, handle)
    about: dict[str, Any] = {
        "uuid": card.uuid,
        "index": card.number,
        "name": name,
        "vendor": "nvidia",
        "pci": pci.busId if pci else "",
        "driver": card.driver,
        "link": _link(handle),
        "power_limit_w": limit_mw / 1000 if limit_mw is not None else None,
        "power_w": power_mw / 1000 if power_mw is not None else None,
        "compute_capability": ".".join(map(str, capability)) if capability else "",
    }
    try:
        total, used, unified = _memory(handle, name, root)
    except pynvml.NVMLError as e:
        return Gpu(**about, healthy=False, lost=e.value in GONE, trouble=_unanswered(e))
    healthy, trouble = _trouble(handle)
    return Gpu(
        **about,
        memory_bytes=total,
        memory_used_bytes=used,
        unified=unified,
        healthy=healthy,
        trouble=trouble,
    )


def _link(handle: Any) -> str:
    """Now, and as wide and fast as card and slot can be (NVML API reference: nvmlDeviceGetMaxPcieLinkWidth)."""
    return linked(
        Link(
            _or(None, pynvml.nvmlDeviceGetCurrPcieLinkGeneration, handle),
            _or(None, pynvml.nvmlDeviceGetCurrPcieLinkWidth, handle),
        ),
        Link(
            _or(None, pynvml.nvmlDeviceGetMaxPcieLinkGeneration, handle),
            _or(None, pynvml.nvmlDeviceGetMaxPcieLinkWidth, handle),
        ),
    )


def _memory(handle: Any, name: str, root: Path) -> tuple[int, int, bool]:
    """Total, in use, and whether it is the host's own memory.

    A GB10 (DGX Spark) answers "not supported": it has none of its own (kubernetes-sigs/dra-driver-nvidia-gpu#1073,
    Syllo/nvtop#411). A Grace Hopper tells its own memory, and is counted by that.
    """
    unified = any(part in name for part in UNIFIED_NAMES)
    memory = None
    try:
        memory = pynvml.nvmlDeviceGetMemoryInfo(handle)
    except pynvml.NVMLError_NotSupported:
        unified = True
    if not unified and memory is not None and memory.total:
        return memory.total, memory.used, False
    host = sysfs.host_memory(root)
    if host is None:
        raise pynvml.NVMLError(pynvml.NVML_ERROR_NOT_SUPPORTED)
    return host.total_bytes, host.used_bytes, True


def _trouble(handle: Any) -> tuple[bool, str]:
    """Whether it may have new work, and what is to be said of it (docs.nvidia.com/deploy: A100 memory errors).

    A pending row remapping does no harm until the next reset; a failed one, and errors that were not corrected, do.
    """
    rows = _or(None, pynvml.nvmlDeviceGetRemappedRows, handle)
    if rows and rows[3]:
        return False, "a row of its memory could not be remapped: the card needs service"
    counted = (pynvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED, pynvml.NVML_VOLATILE_ECC)
    errors = _or(0, lambda h: pynvml.nvmlDeviceGetTotalEccErrors(h, *counted), handle)
    if errors:
        words = "1 memory error was" if errors == 1 else f"{errors} memory errors were"
        return False, f"{words} not corrected since its driver was loaded: reset it when it is idle"
    if _or(0, pynvml.nvmlDeviceGetRetiredPagesPendingStatus, handle):
        return False, "pages of its memory wait to be retired: reset it when it is idle"
    if rows and rows[2]:
        return True, "rows of its memory are remapped at its next reset: reset it when it is idle"
    return True, ""


def _uses(uuid: str, handle: Any) -> list[Use]:
    """Those that compute and those that draw (a desktop, A70); one that does both is in both lists."""
    found: dict[int, int] = {}
    for ask in (
        pynvml.nvmlDeviceGetComputeRunningProcesses,
        pynvml.nvmlDeviceGetGraphicsRunningProcesses,
    ):
        for p in _or([], ask, handle):
            found[p.pid] = max(found.get(p.pid, 0), p.usedGpuMemory or 0)
    return [Use(pid, uuid, size) for pid, size in found.items()]


def _mig_name(card: str, handle: Any) -> str:
    """Newer drivers say it ("A100 MIG 1g.5gb"); of others it is made as they make it."""
    name = _or("", pynvml.nvmlDeviceGetName, handle)
    if "MIG" in name:
        return str(name)
    about = _or(None, pynvml.nvmlDeviceGetAttributes, handle)
    if about is None:
        return f"{card} MIG"
    return f"{card} MIG {about.gpuInstanceSliceCount}g.{(about.memorySizeMB + 1023) // 1024}gb"


def _away(error: pynvml.NVMLError) -> str:
    advice = ADVICE.get(error.value, "")
    said = f"an NVIDIA card is here, its driver does not answer: {str(error).rstrip('.')}"
    return f"{said} ({advice})" if advice else said


def _unanswered(error: pynvml.NVMLError) -> str:
    if error.value in GONE:
        return "it does not answer any more (fell off the bus, Xid 79?)"
    return f"it does not answer: {error}"


def _or(default: Any, ask: Any, of: Any) -> Any:
    """What an old, small or lost card does not say is left out."""
    try:
        return ask(of)
    except pynvml.NVMLError:
        return default
