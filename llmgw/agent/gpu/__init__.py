"""The GPUs of this node and who uses them: NVIDIA by NVML, AMD and Intel by sysfs; or a file of facts, or none.

`None` is "devices unknown" (a card is there, its driver does not answer), which is not the same as `()`, none (F59).
Drivers may block for seconds: callers read in a thread. May not decide what a foreign process means.
"""

from __future__ import annotations

import time
from pathlib import Path

import structlog
from msgspec.structs import replace

from llmgw import wire
from llmgw.agent.gpu import amd, intel
from llmgw.agent.gpu.facts import Found, Reading, Use
from llmgw.agent.gpu.kmsg import KernelLog
from llmgw.agent.gpu.nvml import Nvml, NvmlAwayError
from llmgw.agent.gpu.sysfs import on_the_bus
from llmgw.agent.gpu.xid import Xids, parse
from llmgw.core.types.messages import Gpu
from llmgw.errors import LlmgwError

__all__ = ["GpuFileError", "Gpus", "Reading", "Use", "from_file", "nvidia_card"]

log = structlog.get_logger()
NVIDIA_VENDOR = "0x10de"
LOST = "it does not answer any more (fell off the bus?)"


class GpuFileError(LlmgwError):
    """The file of GPU facts given with --gpus cannot be used."""

    code = "gpus"


class Gpus:
    """`source`: auto (what the drivers tell), none, or the path of a JSON list of GPU facts.

    `power_limit_w`: what each NVIDIA card may draw; None leaves that to whoever set it.
    """

    def __init__(
        self, source: str, root: Path = Path("/"), *, power_limit_w: float | None = None
    ) -> None:
        self.source = source
        self.root = root
        self.nvml = Nvml(root, power_limit_w)
        self.said = ""
        self.driver = ""
        #: every card seen in this process, as it was when it was last well: missing later it is lost, not "none" (F72)
        self.cards: dict[str, Gpu] = {}
        self.lost: set[str] = set()
        self.xids = Xids()
        self.kernel_log = KernelLog(root / "dev/kmsg")
        if source not in ("auto", "none"):
            from_file(Path(source))

    def read(self) -> Reading:
        if self.source == "none":
            return Reading(())
        if self.source != "auto":
            return self._from_file()
        try:
            nvidia = self._nvidia()
            found = [nvidia]
            for read in (amd.read, intel.read):
                found.append(read(self.root, sum(len(f.gpus) for f in found)))
        except NvmlAwayError as e:
            return self._unknown(e.message)
        except (
            OSError,
            ValueError,
        ) as e:  # what a driver says may be anything; it must not end the supervision
            return self._unknown(f"the GPUs cannot be read: {e}")
        self.said = ""
        return self._with_lost(found)

    def _nvidia(self) -> Found:
        """Nothing where there is no card: most boxes have no NVML, and that is no error."""
        try:
            found = self.nvml.read()
        except NvmlAwayError:
            if not self._had_nvidia() and not nvidia_card(self.root):
                return Found()
            raise
        if not found.gpus and (self._had_nvidia() or on_the_bus(self.root, NVIDIA_VENDOR)):
            # All cards at once: an access that was taken away, hardly the hardware.
            self.nvml.close()
            msg = "an NVIDIA card is here, and its driver lists none"
            raise NvmlAwayError(msg)
        self._tell_driver(found)
        self.xids.add(found.xids)
        if self._had_nvidia() or found.gpus:
            lines = (parse(line, at_s) for line, at_s in self.kernel_log.new())
            self.xids.add(xid for xid in lines if xid is not None)
        return found

    def _had_nvidia(self) -> bool:
        return any(g.vendor in ("", "nvidia") for g in self.cards.values())

    def _tell_driver(self, found: Found) -> None:
        driver = next((g.driver for g in found.gpus if g.driver), self.driver)
        if self.driver and driver != self.driver:
            log.info("another NVIDIA driver", before=self.driver, now=driver)
        self.driver = driver

    def _from_file(self) -> Reading:
        """At the start a bad file is an error; of a running agent it would end the supervision of what runs."""
        try:
            found = from_file(Path(self.source))
        except GpuFileError as e:
            return self._unknown(e.message)
        self.said = ""
        return Reading(found, measured=True)

    def _with_lost(self, found: list[Found]) -> Reading:
        said = [g for f in found for g in f.gpus]
        for uuid in frozenset[str]().union(*(f.retired for f in found)):
            self.cards.pop(uuid, None)
        here = {g.uuid for g in said}
        missing = [
            replace(g, healthy=False, lost=True, trouble=LOST)
            for uuid, g in self.cards.items()
            if uuid not in here
        ]
        gpus = [self._as_known(g) for g in (*said, *missing)]
        self.cards |= {g.uuid: g for g in said if g.memory_bytes}
        lost = {g.uuid for g in gpus if g.lost}
        for back in (g for g in gpus if g.uuid in self.lost - lost):
            self.xids.clear(back.pci)
        asks = {uuid: action for f in found for uuid, action in f.asks.items()}
        now_s = time.monotonic()
        gpus = [self.xids.judged(g, asks.get(g.uuid), now_s) for g in gpus]
        for uuid in sorted(lost - self.lost):
            log.error("a GPU is lost", gpu=uuid, pci=next(g.pci for g in gpus if g.uuid == uuid))
        self.lost = lost
        mute = frozenset(g.uuid for g in said if not (g.lost or g.memory_bytes))
        return Reading(
            tuple(sorted(gpus, key=lambda g: (g.index, g.lost, g.uuid))),
            tuple(u for f in found for u in f.uses),
            measured=bool(gpus),
            blind=mute.union(*(f.blind for f in found)),
        )

    def _as_known(self, gpu: Gpu) -> Gpu:
        """A card that says little just now is still the one that it was; what a lost one held, it holds no more."""
        known = gpu if gpu.memory_bytes else self.cards.get(gpu.uuid, gpu)
        used = 0 if gpu.lost else known.memory_used_bytes
        return replace(
            known,
            index=gpu.index,
            healthy=gpu.healthy,
            lost=gpu.lost,
            trouble=gpu.trouble,
            memory_used_bytes=used,
            power_w=None if gpu.lost else known.power_w,
        )

    def _unknown(self, why: str) -> Reading:
        if why != self.said:
            log.warning("devices unknown", error=why)
            self.said = why
        return Reading(None, error=why)


def nvidia_card(root: Path) -> bool:
    """A device node, or a display device of that vendor on the bus (also before the driver is up)."""
    if any((root / "dev" / name).exists() for name in ("nvidiactl", "nvidia0")):
        return True
    return on_the_bus(root, NVIDIA_VENDOR)


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
