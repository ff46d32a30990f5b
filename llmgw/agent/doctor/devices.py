"""GPUs as their driver tells them, and whether this user may open them. May not touch a card."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from llmgw.agent.doctor.look import Check, Node, gib, some

NVIDIA = ("nvidiactl", "nvidia-uvm")
#: AMD's compute device, and the render nodes that it needs beside (ROCm installation guide, "group permissions").
KFD = "kfd"


def devices(node: Node) -> Iterator[Check]:
    yield from _gpus(node)
    yield _nodes(node)


def _gpus(node: Node) -> Iterator[Check]:
    if node.gpus == "none":
        yield Check("skip", "gpu", "GPUs are left out (--gpus none)")
        return
    found = node.cards()
    if found.gpus is None:
        yield Check("fail", "gpu", found.error, "nvidia-smi and dmesg say more")
        return
    if not found.gpus:
        yield Check("skip", "gpu", "there is no GPU here, engines run on the CPU")
        return
    drivers = sorted({g.driver for g in found.gpus if g.driver})
    cards = [f"{g.index} {g.name or g.uuid} {gib(g.memory_bytes)}" for g in found.gpus if g.healthy]
    if cards:
        driver = f"driver {', '.join(drivers)}: " if drivers else ""
        yield Check("ok", "gpu", f"{driver}{', '.join(cards)}")
    for gpu in found.gpus:
        if not gpu.healthy or gpu.trouble:
            fact = f"GPU {gpu.index} ({gpu.uuid}): {gpu.trouble or 'it is not healthy'}"
            hint = "dmesg says more (Xid)"
            yield Check("warn" if gpu.healthy else "fail", "gpu", fact, hint)
    if found.unheld:
        which = ", ".join(map(str, found.unheld))
        fact = f"persistence mode is off on GPU {which}: the driver starts anew at each first use"
        yield Check("warn", "persistence", fact, "run nvidia-persistenced, or nvidia-smi -pm 1")


def _nodes(node: Node) -> Check:
    dev = node.root / "dev"
    cards = sorted(p.name for p in dev.glob("nvidia[0-9]*"))
    wanted = [*NVIDIA, *cards] if cards else []
    if (dev / KFD).exists():
        wanted += [KFD, *sorted(f"dri/{p.name}" for p in (dev / "dri").glob("renderD*"))]
    if not wanted:
        return Check("skip", "devices", "there is no /dev/nvidia* and no /dev/kfd")
    missing = [f"/dev/{name}" for name in wanted if not (dev / name).exists()]
    if missing:
        hint = "nvidia-modprobe -u -c=0 makes them; in a container they have to be passed in"
        return Check("fail", "devices", f"{some(missing)} is not there", hint)
    closed = [name for name in wanted if not node.may(dev / name, os.R_OK | os.W_OK)]
    if closed:
        modes = [f"/dev/{name} ({_mode(dev / name)})" for name in closed]
        fact = f"user {node.user} may not read and write {some(modes)}"
        return Check("fail", "devices", fact, "put the agent's user into the device's group")
    return Check("ok", "devices", f"user {node.user} may use {some([f'/dev/{n}' for n in wanted])}")


def _mode(path: Path) -> str:
    stat = path.stat()
    return f"mode {stat.st_mode & 0o777:o}, owner {stat.st_uid}:{stat.st_gid}"
