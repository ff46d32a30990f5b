"""What this host has left, looked at when a start is ordered: memory, the disk of the state dir; how big weights are.

What cannot be read is not known, and limits nothing. May not refuse: `core.supervise.claims` does.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import structlog
from msgspec.structs import replace

from llmgw.agent.placeholders import Filler
from llmgw.agent.weights import missing
from llmgw.core.capacity import gib
from llmgw.core.supervise.claims import misordered
from llmgw.core.types.messages import Start
from llmgw.core.types.node import Room
from llmgw.core.types.record import Record

log = structlog.get_logger()
ROOT = Path("/")


def look_for(start: Start, state_dir: Path, filler: Callable[[Record], Filler] | None) -> Room:
    """And whether the files are there that this one would load, where what it names can be filled in."""
    there = look(state_dir)
    if filler is not None and misordered(start) is None:
        there = replace(there, missing=missing(start, filler(Record(start=start))))
    if why := too_big(start, there):
        log.warning(why, weights=start.weights)
    return there


def look(state_dir: Path, root: Path = ROOT) -> Room:
    try:
        disk = os.statvfs(state_dir)
    except OSError:
        return Room(memory_bytes=_available(root))
    return Room(
        memory_bytes=_available(root),
        disk_bytes=disk.f_bavail * disk.f_frsize,
        disk_size_bytes=disk.f_blocks * disk.f_frsize,
    )


def _available(root: Path) -> int | None:
    """MemAvailable: what new programs can have without swapping (proc_meminfo(5))."""
    try:
        lines = (root / "proc/meminfo").read_text().splitlines()
    except OSError:
        return None
    said = (line.split()[1] for line in lines if line.startswith("MemAvailable:"))
    return next((int(kib) << 10 for kib in said), None)


def too_big(start: Start, room: Room) -> str:
    """A word on weights that a CPU engine cannot hold in memory, "" for none.

    No refusal: an engine that maps them (llama.cpp does) runs, and reads them from the disk at every token.
    """
    unknown = start.gpus or start.resources.host_memory_bytes or room.memory_bytes is None
    size = 0 if unknown else _size(Path(start.weights))
    if room.memory_bytes is None or size <= room.memory_bytes:
        return ""
    have = f"{gib(room.memory_bytes)} GiB of memory are available now"
    return (
        f"the weights of {start.shard} are {gib(size)} GiB, {have}: it will be slow, or not start"
    )


def _size(weights: Path) -> int:
    """Of a file, or of all files of a folder; 0 for what is no path, or not here."""
    try:
        if not weights.is_absolute() or not weights.exists():
            return 0
        files = weights.iterdir() if weights.is_dir() else [weights]
        return sum(f.stat().st_size for f in files if f.is_file())
    except OSError:
        return 0
