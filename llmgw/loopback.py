"""Whose loopback ours is: an engine that listens there is asked by processes of the same host and network namespace.

May not decide who asks whom.
"""

from __future__ import annotations

from pathlib import Path

_BOOT, _NETWORK = Path("/proc/sys/kernel/random/boot_id"), Path("/proc/self/ns/net")


def here() -> str:
    """Alike for all processes that share a loopback, and for no others; "" where the kernel does not tell."""
    try:
        return f"{_BOOT.read_text().strip()}:{_NETWORK.stat().st_ino}"
    except OSError:
        return ""
