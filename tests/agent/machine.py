"""A made-up machine in a folder, for the doctor to look at. It may not know what is tested."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from llmgw.agent.doctor import Check, Node
from llmgw.agent.doctor.look import Answer, Cards
from scripts.ports import free_range

AGENT = 4711
DATE = "Mon, 30 Nov 2026 12:00:00 GMT"
NOON_S = 1796040000.5

Box = Callable[..., Node]


def machine(
    tmp_path: Path, files: dict[str, str] | None = None, *, agent: bool = True, **doors: Any
) -> Node:
    """One where all is well, but for the files and doors that a test names."""
    state = tmp_path / "state"
    state.mkdir(mode=0o700, exist_ok=True)
    lock = state / "agent.lock"
    lock.write_text(f"{AGENT}\n")
    inode = lock.stat().st_ino if agent else 1
    whole = {
        "proc/locks": f"1: FLOCK  ADVISORY  WRITE {AGENT} 08:01:{inode} 0 EOF\n",
        "proc/mounts": "/dev/sda1 / ext4 rw 0 0\nproc /proc proc rw 0 0\n",
        "proc/meminfo": "MemTotal: 67108864 kB\nMemAvailable: 33554432 kB\n",
        "proc/sys/kernel/osrelease": "6.8.0\n",
        f"proc/{AGENT}/cgroup": "0::/user.slice/session-1.scope\n",
        f"proc/{AGENT}/environ": f"HOME=/root\0PATH={tmp_path}/bin\0",
        **(files or {}),
    }
    for path, text in whole.items():
        file = tmp_path / "root" / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    low, high = free_range(5)
    settings: dict[str, Any] = {
        "name": "box1",
        "state_dir": state,
        "ports": (low, high),
        "gpus": "auto",
        "controls": ("http://c:8801",),
        "token": "t0k",
        "catalog": Check("skip", "catalog", "there is none"),
        "cards": lambda: Cards(()),
        "unsynchronised": lambda: False,
        "time_s": lambda: NOON_S,
        "ask": lambda _url, path: Answer(200 if path == "/healthz" else 410, DATE),
        "engines": dict,
        "others": dict,
        "tell": lambda _argv: "",
        "user": 0,
        "root": tmp_path / "root",
    }
    return Node(**settings | doors)


def lines(part: Callable[[Node], Iterator[Check]], node: Node, name: str) -> list[str]:
    """What is said under that name, as it is printed."""
    return [
        f"{c.level} {c.fact} - {c.hint}" if c.hint else f"{c.level} {c.fact}"
        for c in part(node)
        if c.name == name
    ]
