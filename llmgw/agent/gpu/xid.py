"""Xids: what NVIDIA's driver says went wrong on a card, which of them take the card out of use, and in what words.

The sorting is that of NVIDIA's Xid catalogue (docs.nvidia.com/deploy/xid-errors, "Analyzing Xid Errors with the Xid
Catalog", Ampere and newer): grave is what it answers with a reset or a reboot, or with a diagnosis of the link. All
else is a program's error, or no error of today, and is told for a while. May not read anything, nor signal anybody.
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterable, Mapping
from typing import NamedTuple

import structlog
from msgspec.structs import replace

from llmgw.core.types.messages import Gpu

log = structlog.get_logger()
#: Immediate action RESET_GPU, RESTART_BM (79), or a workflow that ends in a reset (48, 74, 144 to 150).
GRAVE = {
    46: "it stopped processing",
    48: "an uncorrected memory error",
    62: "its micro-controller halted",
    64: "bad memory could not be retired",
    74: "an NVLink error",
    79: "it fell off the bus",
    95: "an uncontained memory error",
    109: "a context switch timed out",
    110: "a security fault",
    119: "its firmware (GSP) does not answer",
    120: "its firmware (GSP) failed",
    136: "its NVLinks could not be trained",
    140: "an unrecovered memory error",
    143: "it could not be initialised",
    **dict.fromkeys(range(144, 151), "an NVLink error"),
    155: "an NVLink error",
    156: "bad parts of it wait to be retired",
    158: "a fatal time-out",
}
#: Immediate action RESTART_APP or IGNORE, and known well enough to be named.
OF_PROGRAMS = {
    13: "a graphics engine exception",
    31: "a memory page fault",
    32: "a corrupted stream of commands",
    43: "a channel was reset",
    45: "a channel was removed after other errors",
    68: "a video decoder exception",
    69: "a graphics engine class error",
    94: "a contained memory error: the card is best reset when it is idle",
}
REMAPPED = {63: "bad memory was retired, which takes effect at its next reset"}
#: Only says that what the driver asks for has changed, which is asked for itself.
ASKS_CHANGED = 154
REBOOTS = frozenset({79})
#: nvml.h, nvmlDeviceGpuRecoveryAction_t; what comes new is told by its number.
ACTIONS = {
    1: "its driver asks for a reset of it",
    2: "its driver asks for a reboot of this box",
    3: "its driver asks that other cards stop using it",
    4: "its driver asks for a reset of it once nobody uses it",
}
#: Where the driver says what has to be done, its "nothing" counts more than an Xid that is older than this.
ASKED_S = 60.0
#: So long the errors of programs are told.
TOLD_S = 900.0
_LINE = re.compile(
    r"NVRM: Xid \(PCI:(?P<pci>[0-9a-fA-F:.]+)\): (?P<code>\d+)"
    r"(?:, pid='?(?P<pid>\d+|<unknown>)'?)?(?:, name='?(?P<name>[^,']*)'?)?"
)
_PCI = re.compile(r"(?:([0-9a-f]+):)?([0-9a-f]{1,2}):([0-9a-f]{1,2})(?:\.|$)", re.IGNORECASE)
#: domain, bus, device
Address = tuple[int, int, int]


class Xid(NamedTuple):
    """One of them; `at_s` of the monotonic clock, `at` for people; `pid` 0 where the driver does not say whose."""

    pci: Address
    code: int
    at_s: float
    at: str = ""
    pid: int = 0
    name: str = ""
    shard: str = ""


def address(text: str) -> Address | None:
    """NVML writes 00000000:C6:00.0, the kernel log 0000:c6:00, older drivers c6:00."""
    found = _PCI.match(text)
    if found is None:
        return None
    domain, bus, device = (int(part or "0", 16) for part in found.groups())
    return domain, bus, device


def parse(line: str, at_s: float) -> Xid | None:
    """A line of the kernel log, if it is about one."""
    found = _LINE.search(line)
    pci = address(found["pci"]) if found else None
    if found is None or pci is None:
        return None
    pid, name = found["pid"] or "", found["name"] or ""
    return Xid(
        pci,
        int(found["code"]),
        at_s,
        wall(at_s),
        int(pid) if pid.isdecimal() else 0,
        "" if name.startswith("<") else name,
    )


def wall(at_s: float) -> str:
    """When that was, for people."""
    now_s = time.time()  # noqa: TID251 - for people
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(now_s - time.monotonic() + at_s))


class Xids:
    """The last of each kind on each card, and what follows for it. `names`: the shards of processes, where known."""

    def __init__(self) -> None:
        self.names: Mapping[int, str] = {}
        self._last: dict[tuple[Address, int], Xid] = {}

    def add(self, xids: Iterable[Xid]) -> None:
        """NVML and the kernel log tell of the same one; the log knows whose it was."""
        for new in xids:
            key = new.pci, new.code
            old = self._last.get(key)
            same = old is not None and abs(old.at_s - new.at_s) < ASKED_S
            if same and old is not None and (old.pid or not new.pid):
                continue
            self._last[key] = new
            found = self._named(new)
            log.warning("the NVIDIA driver reports an Xid", xid=new.code, words=words(found))

    def _named(self, xid: Xid) -> Xid:
        """A shard that is found once stays: its process may be gone the next time, or its pid another's."""
        if xid.shard or xid.pid not in self.names:
            return xid
        found = xid._replace(shard=self.names[xid.pid])
        self._last[xid.pci, xid.code] = found
        return found

    def clear(self, pci: str) -> None:
        """A card that was lost and is back was started anew."""
        where = address(pci)
        self._last = {key: x for key, x in self._last.items() if key[0] != where}

    def judged(self, gpu: Gpu, asks: int | None, now_s: float) -> Gpu:
        """The card as it is after all of that. `asks`: what its driver wants done, None where it does not say."""
        where = address(gpu.pci)
        if where is None or gpu.vendor != "nvidia":
            return gpu
        mine = [x for x in self._last.values() if x.pci == where]
        if asks == 0:
            for old in [x for x in mine if x.code in GRAVE and now_s - x.at_s > ASKED_S]:
                mine.remove(old)
                del self._last[old.pci, old.code]
        mine = sorted(map(self._named, mine), key=lambda x: -x.at_s)
        grave = [x for x in mine if x.code in GRAVE]
        said = [words(x) for x in grave]
        if asks:
            said.insert(0, ACTIONS.get(asks, f"its driver asks for recovery action {asks}"))
        if said:
            return replace(gpu, healthy=False, trouble=_joined(*said, gpu.trouble))
        told = [x for x in mine if x.code not in GRAVE and now_s - x.at_s < TOLD_S]
        told = [x for x in told if x.code != ASKS_CHANGED]
        return replace(gpu, trouble=_joined(gpu.trouble, *(words(x) for x in told)))


def words(xid: Xid) -> str:
    """One sentence, the same as long as it is told."""
    code, at = xid.code, xid.at
    if code in GRAVE:
        todo = "reboot this box" if code in REBOOTS else "reset it when it is idle"
        return f"Xid {code} ({GRAVE[code]}) at {at}: {todo}"
    if code in OF_PROGRAMS:
        return f"Xid {code} ({OF_PROGRAMS[code]}) of {_who(xid)} at {at}, the card goes on"
    known = REMAPPED.get(code, "NVIDIA's Xid catalogue says more")
    return f"Xid {code} ({known}) at {at}"


def _who(xid: Xid) -> str:
    if not xid.pid:
        return "a program that is not told"
    who = f"pid {xid.pid}{f', {xid.name}' if xid.name else ''}"
    return f"{xid.shard} ({who})" if xid.shard else who


def _joined(*said: str) -> str:
    return "; ".join(dict.fromkeys(text for text in said if text))
