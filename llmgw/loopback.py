"""What is loopback, and whose: an engine that listens there is asked by processes of the same host and namespace.

May not decide who asks whom.
"""

from __future__ import annotations

import hashlib
from ipaddress import ip_address
from pathlib import Path

_BOOT, _NETWORK = Path("/proc/sys/kernel/random/boot_id"), Path("/proc/self/ns/net")
_MACHINE = Path("/etc/machine-id")


def is_loopback(host: str) -> bool:
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def here() -> str:
    """`NAMESPACE:BOOT:MACHINE`, for `same`; "" where the kernel does not tell the first two.

    The boot id alone is not enough: systemd-nspawn gives a container one of its own by a mount, and a service with
    ProtectKernelTunables= in there sees the host's beneath it, so that gateway and agent of one box took each other
    for strangers. The machine's id is hashed, for it is not to be told (machine-id(5)).
    """
    try:
        known = f"{_NETWORK.stat().st_ino}:{_BOOT.read_text().strip()}"
    except OSError:
        return ""
    return f"{known}:{_machine()}"


def _machine() -> str:
    """Nothing in an image without one."""
    try:
        told = _MACHINE.read_text().strip()
    except OSError:
        return ""
    return hashlib.sha256(f"llmgw {told}".encode()).hexdigest()[:16] if told else ""


def same(one: str, other: str) -> bool:
    """One network namespace, by its number, of one host: by its boot, or else by its id."""
    mine, theirs = one.split(":"), other.split(":")
    return mine[0] == theirs[0] and any(
        a and a == b for a, b in zip(mine[1:], theirs[1:], strict=False)
    )
