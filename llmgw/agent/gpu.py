"""The GPUs of this node and who uses them. The only door to NVML; other sources: a file of facts, or none.

`None` is "devices unknown" (a card is there, its driver does not answer), which is not the same as `()`, none (F59).
After a failure the library is opened anew at the next reading, so a driver that comes up later is found. NVML calls may
block for seconds: callers read in a thread. May not decide what a foreign process means.
"""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Any, NamedTuple

import pynvml
import structlog
from msgspec.structs import replace

from llmgw import wire
from llmgw.core.types.messages import Gpu
from llmgw.errors import LlmgwError

log = structlog.get_logger()
NVIDIA_VENDOR, DISPLAY_CLASS = "0x10de", "0x03"


class GpuFileError(LlmgwError):
    """The file of GPU facts given with --gpus cannot be used."""

    code = "gpus"


class Use(NamedTuple):
    """A process that computes on a GPU; `memory_bytes` 0 where the driver does not tell."""

    pid: int
    gpu: str
    memory_bytes: int


class Reading(NamedTuple):
    """`measured`: `gpus` and `uses` come from a driver, so freed memory can be seen to come back."""

    gpus: tuple[Gpu, ...] | None
    uses: tuple[Use, ...] = ()
    measured: bool = False


class Gpus:
    """`source`: auto (NVML where there is one), none, or the path of a JSON list of GPU facts."""

    def __init__(self, source: str, root: Path = Path("/")) -> None:
        self.source = source
        self.root = root
        self.open = False
        self.said = ""
        #: every card seen in this process: one that is missing later is lost, not "none" (F72)
        self.cards: dict[str, Gpu] = {}
        if source not in ("auto", "none"):
            from_file(Path(source))

    def read(self) -> Reading:
        if self.source == "none":
            return Reading(())
        if self.source != "auto":
            return self._from_file()
        try:
            if not self.open:
                pynvml.nvmlInit()
                self.open = True
            found = _read_all()
        except pynvml.NVMLError as e:
            self._close()
            return self._unanswered(str(e))
        self.said = ""
        return self._with_lost(found)

    def _from_file(self) -> Reading:
        """At the start a bad file is an error; of a running agent it would end the supervision of what runs."""
        try:
            found = from_file(Path(self.source))
        except GpuFileError as e:
            return self._unknown(e.message)
        self.said = ""
        return Reading(found, measured=True)

    def _with_lost(self, found: Reading) -> Reading:
        assert found.gpus is not None
        here = {g.uuid for g in found.gpus}
        lost = [replace(g, healthy=False) for uuid, g in self.cards.items() if uuid not in here]
        self.cards |= {g.uuid: g for g in found.gpus if g.healthy}
        return found._replace(gpus=tuple(sorted((*found.gpus, *lost), key=lambda g: g.index)))

    def _close(self) -> None:
        if self.open:
            with contextlib.suppress(pynvml.NVMLError):
                pynvml.nvmlShutdown()
        self.open = False

    def _unanswered(self, why: str) -> Reading:
        if not self.cards and not nvidia_card(self.root):
            return Reading(())
        return self._unknown(f"an NVIDIA card is here, its driver does not answer: {why}")

    def _unknown(self, why: str) -> Reading:
        if why != self.said:
            log.warning("devices unknown", error=why)
            self.said = why
        return Reading(None)


def nvidia_card(root: Path) -> bool:
    """A device node, or a display device of that vendor on the bus (also before the driver is up)."""
    if any((root / "dev" / name).exists() for name in ("nvidiactl", "nvidia0")):
        return True
    devices = root / "sys/bus/pci/devices"
    return devices.exists() and any(
        _line(d / "vendor") == NVIDIA_VENDOR and _line(d / "class").startswith(DISPLAY_CLASS)
        for d in devices.iterdir()
    )


def from_file(path: Path) -> tuple[Gpu, ...]:
    try:
        return wire.decode(path.read_bytes(), tuple[Gpu, ...])
    except OSError as e:
        msg = f"--gpus {path}: cannot be read: {e.strerror}"
        raise GpuFileError(msg, "give auto, none, or a JSON list of GPUs") from e
    except wire.WireError as e:
        msg = f"--gpus {path}: {e.message}"
        raise GpuFileError(
            msg, 'write [{"uuid": "GPU-0", "index": 0, "memory": 25769803776}]'
        ) from e


def _line(path: Path) -> str:
    return path.read_text().strip() if path.exists() else ""


def _read_all() -> Reading:
    driver = pynvml.nvmlSystemGetDriverVersion()
    gpus: list[Gpu] = []
    uses: list[Use] = []
    for index in range(pynvml.nvmlDeviceGetCount()):
        handle = _or(None, pynvml.nvmlDeviceGetHandleByIndex, index)
        uuid = _or(None, pynvml.nvmlDeviceGetUUID, handle) if handle is not None else None
        if uuid is None:
            continue  # it fell off the bus and does not even say its name
        gpu = _gpu(index, uuid, handle, driver)
        gpus.append(gpu)
        if gpu.healthy:
            uses += _uses(uuid, handle)
    return Reading(tuple(gpus), tuple(uses), measured=True)


def _gpu(index: int, uuid: str, handle: Any, driver: str) -> Gpu:
    """One card; one that does not tell its memory is not healthy."""
    pci = _or(None, pynvml.nvmlDeviceGetPciInfo, handle)
    try:
        memory = pynvml.nvmlDeviceGetMemoryInfo(handle)
    except pynvml.NVMLError:
        return Gpu(
            uuid=uuid, index=index, healthy=False, pci=pci.busId if pci else "", driver=driver
        )
    limit_mw = _or(None, pynvml.nvmlDeviceGetEnforcedPowerLimit, handle)
    power_mw = _or(None, pynvml.nvmlDeviceGetPowerUsage, handle)
    capability = _or(None, pynvml.nvmlDeviceGetCudaComputeCapability, handle)
    return Gpu(
        uuid=uuid,
        index=index,
        name=_or("", pynvml.nvmlDeviceGetName, handle),
        memory_bytes=memory.total,
        memory_used_bytes=memory.used,
        pci=pci.busId if pci else "",
        driver=driver,
        power_limit_w=limit_mw / 1000 if limit_mw is not None else None,
        power_w=power_mw / 1000 if power_mw is not None else None,
        compute_capability=".".join(map(str, capability)) if capability else "",
    )


def _uses(uuid: str, handle: Any) -> list[Use]:
    processes = _or([], pynvml.nvmlDeviceGetComputeRunningProcesses, handle)
    return [Use(p.pid, uuid, p.usedGpuMemory or 0) for p in processes]


def _or(default: Any, ask: Any, of: Any) -> Any:
    """What an old, small or lost card does not say is left out."""
    try:
        return ask(of)
    except pynvml.NVMLError:
        return default
