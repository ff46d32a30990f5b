"""Which processes hold memory of DRM cards, from /proc/PID/fdinfo (kernel: Documentation/gpu/drm-usage-stats.rst).

Only what we may read is seen: other users' processes need root. A client that several descriptors or processes share
is counted once. May not know a vendor: regions of memory are told by the names that their driver gives them.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

#: Of the same memory: what is there now, its older name, what was asked for.
KEYS = ("drm-resident-", "drm-memory-", "drm-total-")
UNITS = {"": 1, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30}

#: (pid, PCI address) -> region -> bytes
Held = dict[tuple[int, str], dict[str, int]]


def read(root: Path) -> Held:
    held: Held = defaultdict(lambda: defaultdict(int))
    seen: set[tuple[str, str]] = set()
    pids = sorted(int(p.name) for p in (root / "proc").iterdir() if p.name.isdecimal())
    for pid in pids:
        for about in _clients(root / "proc" / str(pid)):
            client = (about.get("drm-pdev", ""), about.get("drm-client-id", ""))
            if client in seen:
                continue
            seen.add(client)
            for region, size in _regions(about).items():
                held[pid, client[0]][region] += size
    return held


def _clients(proc: Path) -> Iterator[dict[str, str]]:
    """What each descriptor of a DRM device tells. A process may end, or be somebody else's, while we look."""
    try:
        fds = [*(proc / "fd").iterdir()]
    except OSError:
        return
    for fd in fds:
        try:
            if not str(fd.readlink()).startswith("/dev/dri/"):
                continue
            lines = (proc / "fdinfo" / fd.name).read_text().splitlines()
        except OSError:
            continue
        about = {k: v.strip() for k, _, v in (line.partition(":") for line in lines)}
        if "drm-pdev" in about:
            yield about


def _regions(about: dict[str, str]) -> dict[str, int]:
    found: dict[str, int] = {}
    for prefix in KEYS:
        for key, value in about.items():
            region = key.removeprefix(prefix)
            if key.startswith(prefix) and region not in found and "-" not in region:
                size, _, unit = value.partition(" ")
                if size.isdecimal() and unit.strip() in UNITS:
                    found[region] = int(size) * UNITS[unit.strip()]
    return found
