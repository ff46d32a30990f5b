"""What the doctor looks at: this node's settings, the machine's files, and the doors to all else (see `doors`).

Answers for: nothing that cannot be read is an error. May not judge what it finds.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Literal, NamedTuple

from msgspec import Struct

from llmgw.core.types.catalog import Catalog
from llmgw.core.types.messages import Gpu

Level = Literal["ok", "warn", "fail", "skip"]


class Check(NamedTuple):
    """One finding: a fact with its values; `hint` says what to try. `skip`: there is nothing to look at here."""

    level: Level
    name: str
    fact: str
    hint: str = ""


class Answer(NamedTuple):
    """Of an HTTP server: `status` 0 and the reason in `error` where there is none, and `hint` if that is known."""

    status: int
    date: str = ""
    error: str = ""
    hint: str = ""


class Cards(NamedTuple):
    """`gpus` None: not known, `error` says why. `unheld`: indices of those whose persistence mode is off."""

    gpus: tuple[Gpu, ...] | None
    error: str = ""
    unheld: tuple[int, ...] = ()


class Owner(NamedTuple):
    """Another agent whose engines are here. `home` None: its state dir is not known; `pid` 0: nor its process."""

    node: str
    home: Path | None
    pid: int
    alive: bool

    @property
    def words(self) -> str:
        who = f"node {self.node or '?'}" + (f", pid {self.pid}" if self.pid else "")
        return f"({who})"


class Node(Struct, frozen=True, kw_only=True):
    """The settings of this node's agent, and the doors.

    `remembered`: the control that the command line of this box asks besides, in `memory`. `others`: by pid, the agent
    whose engine it is, where not ours.
    `catalog` may be the finding that there is none to read. `engines` tells pid -> shard, `tell` what a command prints,
    "" for nothing; `unsynchronised` is None where the kernel does not say; `time_s` is wall time.
    """

    name: str
    state_dir: Path
    ports: tuple[int, int]
    gpus: str
    controls: tuple[str, ...]
    token: str
    remembered: tuple[str, ...] = ()
    memory: Path = Path()
    catalog: Catalog | Check
    cards: Callable[[], Cards]
    unsynchronised: Callable[[], bool | None]
    time_s: Callable[[], float]
    ask: Callable[[str, str], Answer]
    engines: Callable[[], dict[int, str]]
    others: Callable[[], dict[int, Owner]]
    tell: Callable[[tuple[str, ...]], str]
    may: Callable[[Path, int], bool] = os.access
    user: int = os.geteuid()
    root: Path = Path("/")

    def text(self, path: str) -> str:
        """A file of the machine; "" where it is not there or may not be read."""
        try:
            return (self.root / path).read_text(errors="replace")
        except OSError:
            return ""

    def agent(self) -> int:
        """The pid of the agent that holds the state dir now; 0 for none."""
        return holder(self.state_dir, self.root)

    def cgroup(self, pid: int | str) -> str:
        """The one that systemd manages, "" where it cannot be told."""
        found = {}
        for line in self.text(f"proc/{pid}/cgroup").splitlines():
            _, controllers, path = line.split(":", 2)
            found[controllers] = path
        return found.get("name=systemd") or found.get("", "")


def holder(state_dir: Path, root: Path = Path("/")) -> int:
    """The pid of the agent that holds a state dir now; 0 for none. Its lock is looked at, never tried."""
    file = state_dir / "agent.lock"
    try:
        inode, pid = file.stat().st_ino, file.read_text().strip()
        locks = (root / "proc/locks").read_text().splitlines()
    except OSError:
        return 0
    held = any(w[1] == "FLOCK" and w[5].endswith(f":{inode}") for w in map(str.split, locks))
    return int(pid) if held and pid.isdecimal() else 0


def there(path: Path) -> bool:
    """Also where a folder above may not be looked into: then it is as good as absent."""
    try:
        return path.exists()
    except OSError:
        return False


def gib(size: float) -> str:
    return f"{size / (1 << 30):.1f} GiB"


def some(names: list[str], most: int = 5) -> str:
    """The first few of a list, in words."""
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(names[:most]) + more
