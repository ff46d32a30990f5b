"""Who is which process: /proc, pidfds, sessions and environment markers (design.md 3, F35-F45).

A process is (boot_id, pid, start ticks). A zombie is not live. Membership in a shard's tree is proved by the session of
a leader that is provably there, by having been seen so before, or by the markers in its environment; anything less is a
doubt, never a target. May not decide what evidence means.
"""

from __future__ import annotations

import errno
import os
import signal
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Literal, NamedTuple

from llmgw.core.supervise.claims import is_key
from llmgw.core.types.record import Key

PROC = Path("/proc")
#: In place of a state: who we may not look at (hidepid), so neither dead nor anybody we know (F45).
UNSEEN = "?"
#: pid -> start ticks
Pids = dict[int, int]


class Stat(NamedTuple):
    pid: int
    comm: str
    state: str
    ppid: int
    sid: int
    ticks: int

    @property
    def live(self) -> bool:
        """A zombie holds nothing and cannot be signalled (F66)."""
        return self.state not in "ZXx"


class Tree(NamedTuple):
    """The live processes of a shard; `leader`: what is at the pid that it had."""

    alive: Pids
    doubtful: tuple[int, ...]
    leader: Literal["absent", "same", "other"]
    detail: str = ""


def boot_id() -> str:
    return (PROC / "sys/kernel/random/boot_id").read_text().strip()


def read_stat(pid: int) -> Stat | None:
    """None where there is no such process. The name may hold spaces and brackets: fields count after the last ')'."""
    try:
        text = (PROC / str(pid) / "stat").read_text(errors="replace")
    except (FileNotFoundError, ProcessLookupError):
        return None
    head, _, tail = text.rpartition(")")
    fields = tail.split()
    return Stat(
        pid=pid,
        comm=head.partition("(")[2],
        state=fields[0],
        ppid=int(fields[1]),
        sid=int(fields[3]),
        ticks=int(fields[19]),
    )


def all_stats() -> dict[int, Stat]:
    """Other users' processes may be hidden from us; any other trouble is told, for what is not seen counts as gone."""
    pids = (int(p) for p in os.listdir(PROC) if p.isdecimal())  # noqa: PTH208  names only, and of thousands
    found = ((pid, _stat_or_unseen(pid)) for pid in pids)
    return {pid: stat for pid, stat in found if stat is not None}


def _stat_or_unseen(pid: int) -> Stat | None:
    try:
        return read_stat(pid)
    except PermissionError:
        return Stat(pid, comm="", state=UNSEEN, ppid=0, sid=0, ticks=-1)


def environ(pid: int) -> dict[str, str]:
    """The environment it was started with; {} where it is gone, wiped it or may not be read.

    Any other trouble is told: without its markers an engine of ours counts as gone, and is started twice.
    """
    try:
        raw = (PROC / str(pid) / "environ").read_bytes()
    except (FileNotFoundError, ProcessLookupError, PermissionError):
        return {}
    pairs = (item.partition(b"=") for item in raw.split(b"\0") if b"=" in item)
    return {os.fsdecode(name): os.fsdecode(value) for name, _, value in pairs}


def words(pid: int) -> list[str]:
    """The arguments it was started with, or has written over them since."""
    try:
        raw = (PROC / str(pid) / "cmdline").read_bytes()
    except OSError:
        return []
    return [os.fsdecode(word) for word in raw.removesuffix(b"\0").split(b"\0")] if raw else []


def command_line(pid: int) -> str:
    """For people: the arguments, or the name of a kernel thread."""
    text = os.fsencode(" ".join(words(pid))).decode(errors="replace").strip()
    stat = None if text else read_stat(pid)
    return text or (stat.comm if stat else "")


def started_at(ticks: int) -> str:
    """Wall time for people, ISO; it moves with the clock, so nobody is known by it (F41)."""
    ago_s = time.clock_gettime(time.CLOCK_BOOTTIME) - ticks / os.sysconf("SC_CLK_TCK")
    began = time.clock_gettime(time.CLOCK_REALTIME) - ago_s
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(began))


def marked_as(env: Mapping[str, str], node_id: str) -> Key | None:
    """The shard whose markers this environment carries, if they are this agent's (two agents may share a host)."""
    key = (env.get("LLMGW_SHARD", ""), env.get("LLMGW_INCARNATION", ""))
    return key if is_key(key) and env.get("LLMGW_NODE_ID") == node_id else None


class Mark(NamedTuple):
    stat: Stat
    env: dict[str, str]


def sweep(
    node_id: str, stats: Mapping[int, Stat], before: Mapping[int, Mark] | None = None
) -> dict[Key, list[Mark]]:
    """All live processes that carry this agent's markers, oldest first; never the agent itself.

    What was marked `before` is not read again: the environment of a process that hangs in the kernel with its memory
    locked may be waited for without end, and the agent with it (F67).
    """
    before = before or {}
    found: dict[Key, list[Mark]] = {}
    for stat in sorted(stats.values(), key=lambda s: s.ticks):
        if not stat.live or stat.pid == os.getpid() or not _same_user(stat.pid):
            continue
        known = before.get(stat.pid)
        env = known.env if known and known.stat.ticks == stat.ticks else environ(stat.pid)
        key = marked_as(env, node_id)
        if key is not None:
            found.setdefault(key, []).append(Mark(stat, env))
    return found


def _same_user(pid: int) -> bool:
    """Anybody can write our markers into an environment; only processes of our own user are believed."""
    try:
        return (PROC / str(pid)).stat().st_uid == os.geteuid()
    except OSError:
        return False


def tree_of(
    pid: int,
    ticks: int,
    known: Mapping[int, int],
    marks: list[Mark],
    stats: Mapping[int, Stat],
) -> Tree:
    """The processes of the shard whose leader is, or was, `pid`.

    A pid is not given out again while a session of that number lives. So where a process with other ticks sits at
    `pid`, the old session is empty and the number a stranger's; where none does, an unmarked member may be either's.
    """
    leader = stats.get(pid)
    if leader is not None and leader.state == UNSEEN:
        raise PermissionError(errno.EACCES, "may not be looked at", str(PROC / str(pid) / "stat"))
    same = leader is not None and leader.ticks == ticks
    alive = {m.stat.pid: m.stat.ticks for m in marks}
    doubtful = []
    for stat in stats.values():
        if not stat.live or stat.pid in alive:
            continue
        if (same and stat.sid == pid) or known.get(stat.pid) == stat.ticks:
            alive[stat.pid] = stat.ticks
        elif leader is None and pid and stat.sid == pid:
            doubtful.append(stat.pid)
    if same and leader is not None and leader.live:
        return Tree(alive, tuple(doubtful), "same")
    if leader is not None and not same:
        who = f"pid {pid} is another process now ({leader.comm}, start ticks {leader.ticks}, not {ticks})"
        return Tree(alive, tuple(doubtful), "other", who)
    return Tree(alive, tuple(doubtful), "absent", f"no process {pid}" if pid else "")


def open_pidfd(pid: int, ticks: int) -> int | None:
    """A pidfd of exactly this process: opened first, then checked, so it cannot become a stranger's in between."""
    try:
        fd = os.pidfd_open(pid)
    except ProcessLookupError:
        return None
    try:
        stat = read_stat(pid)
    except OSError:
        os.close(fd)  # asked again every second, it would use all of them up
        raise
    if stat is None or stat.ticks != ticks:
        os.close(fd)
        return None
    return fd


def send(pid: int, ticks: int, signum: int) -> bool:
    """Signal exactly this process, if it is still there."""
    fd = open_pidfd(pid, ticks)
    if fd is None:
        return False
    try:
        signal.pidfd_send_signal(fd, signum)
    except ProcessLookupError:
        return False
    finally:
        os.close(fd)
    return True
