"""Who is which process: /proc, pidfds, sessions and environment markers (design.md 3, F35-F45).

A process is (boot_id, pid, start ticks). A zombie is not live. Membership in a shard's tree is proved by the session of
a leader that is provably there, by having been seen so before, or by the markers in its environment; anything less is a
doubt, never a target. May not decide what evidence means.
"""

from __future__ import annotations

import contextlib
import errno
import os
import signal
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import cached_property
from pathlib import Path
from types import MappingProxyType
from typing import Literal, NamedTuple

from llmgw.core.match import hidden
from llmgw.core.supervise.claims import is_key
from llmgw.core.types.record import Key

PROC = Path("/proc")
#: In place of a state: who we may not look at (hidepid), so neither dead nor anybody we know (F45).
UNSEEN = "?"
#: After so long a process that was just forked has become what it was forked for.
GROWN_S = 10.0
READ_BYTES = 1 << 16
#: Of the flags in a stat (include/linux/sched.h).
PF_KTHREAD = 0x00200000
#: pid -> start ticks
Pids = dict[int, int]


class Stat(NamedTuple):
    pid: int
    comm: str
    state: str
    ppid: int
    sid: int
    ticks: int
    #: a thread of the kernel's own: it has no environment
    kernel: bool = False

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
        raw = _read(pid, "stat", whole=False)
    except (FileNotFoundError, ProcessLookupError):
        return None
    head, _, tail = raw.rpartition(b")")
    fields = tail.split(None, 20)
    return Stat(
        pid=pid,
        comm=head.partition(b"(")[2].decode(errors="replace"),
        state=fields[0].decode(),
        ppid=int(fields[1]),
        sid=int(fields[3]),
        ticks=int(fields[19]),
        kernel=bool(int(fields[6]) & PF_KTHREAD),
    )


def _read(pid: int, name: str, *, whole: bool = True) -> bytes:
    """Without a Path, a file object and a decoder: it is done for every process of the host, again and again.

    Not `whole`: what the kernel makes in one piece, as it does a stat, comes with the first read.
    """
    fd = os.open(f"/proc/{pid}/{name}", os.O_RDONLY | os.O_CLOEXEC)
    try:
        raw = part = os.read(fd, READ_BYTES)
        while part and whole:
            part = os.read(fd, READ_BYTES)
            raw += part
        return raw
    finally:
        os.close(fd)


class Stats(dict[int, Stat]):
    """All processes by pid; who is in whose session, and whose child, is worked out once for all shards that ask."""

    @cached_property
    def sessions(self) -> dict[int, list[Stat]]:
        return self._by(lambda s: s.sid)

    @cached_property
    def children(self) -> dict[int, list[Stat]]:
        return self._by(lambda s: s.ppid)

    def _by(self, what: Callable[[Stat], int]) -> dict[int, list[Stat]]:
        found: dict[int, list[Stat]] = {}
        for stat in self.values():
            found.setdefault(what(stat), []).append(stat)
        return found


def all_stats() -> Stats:
    """Other users' processes may be hidden from us; any other trouble is told, for what is not seen counts as gone."""
    pids = (int(p) for p in os.listdir(PROC) if p.isdecimal())  # noqa: PTH208  names only, and of thousands
    found = ((pid, _stat_or_unseen(pid)) for pid in pids)
    return Stats((pid, stat) for pid, stat in found if stat is not None)


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
        raw = _read(pid, "environ")
    except (FileNotFoundError, ProcessLookupError, PermissionError):
        return {}
    pairs = (item.partition("=") for item in os.fsdecode(raw).split("\0") if "=" in item)
    return {name: value for name, _, value in pairs}


def words(pid: int) -> list[str]:
    """The arguments it was started with, or has written over them since."""
    try:
        raw = _read(pid, "cmdline")
    except OSError:
        return []
    return [os.fsdecode(word) for word in raw.removesuffix(b"\0").split(b"\0")] if raw else []


def command_line(pid: int) -> str:
    """For people, without the values of keys: the arguments, or the name of a kernel thread."""
    text = os.fsencode(" ".join(hidden(words(pid)))).decode(errors="replace").strip()
    stat = None if text else read_stat(pid)
    return text or (stat.comm if stat else "")


def resident_bytes(pids: Pids) -> int | None:
    """Of the host's memory, what these hold together; None where none of them is there.

    A page of a file or of shared memory may be in several of them, so of those only the greatest share counts.
    """
    own, shared = 0, []
    for pid, ticks in pids.items():
        try:
            stat, fields = read_stat(pid), _read(pid, "statm").split()
        except OSError:
            continue
        if stat is not None and stat.ticks == ticks and len(fields) > 2:  # noqa: PLR2004 - statm(5): size, all, shared
            own += int(fields[1]) - int(fields[2])
            shared.append(int(fields[2]))
    return (own + max(shared)) * os.sysconf("SC_PAGE_SIZE") if shared else None


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
    """A process as it was looked at; `env` is empty where it does not carry our markers."""

    stat: Stat
    env: dict[str, str]


#: pid -> what was seen there
Marks = Mapping[int, Mark]


def look(node_id: str, stats: Stats, before: Marks = MappingProxyType({})) -> dict[int, Mark]:
    """Every live process but the agent itself, with the environment of those that carry this agent's markers.

    What was looked at `before` is not read again: the environment of a process that hangs in the kernel with its memory
    locked may be waited for without end, and the agent with it (F67); and a host may have thousands. Markers come with
    an exec, so of what has none, the young and those that go by another name since are looked at anew.
    """
    me, grown = os.getpid(), _ticks_now() - GROWN_S * os.sysconf("SC_CLK_TCK")
    seen: dict[int, Mark] = {}
    for pid, stat in stats.items():
        if not stat.live or pid == me:
            continue
        known = before.get(pid)
        if known is None or not _still(known, stat, grown):
            env = environ(pid) if not stat.kernel and same_user(pid) else {}
            known = Mark(stat, env if marked_as(env, node_id) else {})
        seen[pid] = Mark(stat, known.env)
    return seen


def _still(known: Mark, stat: Stat, grown: float) -> bool:
    """It is the process that was looked at, and its environment the same."""
    if known.stat.ticks != stat.ticks:
        return False
    return bool(known.env) or (known.stat.comm == stat.comm and stat.ticks < grown)


def _ticks_now() -> float:
    return time.clock_gettime(time.CLOCK_BOOTTIME) * os.sysconf("SC_CLK_TCK")


def sweep(
    node_id: str, stats: Stats, before: Marks = MappingProxyType({})
) -> dict[Key, list[Mark]]:
    """All live processes that carry this agent's markers, oldest first; never the agent itself."""
    return by_shard(node_id, look(node_id, stats, before))


def by_shard(node_id: str, seen: Marks) -> dict[Key, list[Mark]]:
    found: dict[Key, list[Mark]] = {}
    for mark in sorted((m for m in seen.values() if m.env), key=lambda m: m.stat.ticks):
        key = marked_as(mark.env, node_id)
        if key is not None:
            found.setdefault(key, []).append(mark)
    return found


def same_user(pid: int) -> bool:
    """Anybody can write our markers into an environment; only processes of our own user are believed."""
    try:
        return os.stat(f"/proc/{pid}").st_uid == os.geteuid()  # noqa: PTH116  as `_read`
    except OSError:
        return False


def tree_of(
    pid: int,
    ticks: int,
    known: Mapping[int, int],
    marks: list[Mark],
    stats: Stats,
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
    candidates = [stats[member] for member in known if member in stats]
    candidates += stats.sessions.get(pid, []) if pid else []
    for stat in {s.pid: s for s in candidates}.values():
        if not stat.live or stat.pid in alive:
            continue
        if (same and stat.sid == pid) or known.get(stat.pid) == stat.ticks:
            alive[stat.pid] = stat.ticks
        elif leader is None and pid and stat.sid == pid:
            doubtful.append(stat.pid)
    born = descendants([stats[member] for member in alive if member in stats], stats)
    alive |= {s.pid: s.ticks for s in born if s.live}
    if same and leader is not None and leader.live:
        return Tree(alive, tuple(doubtful), "same")
    if leader is not None and not same:
        who = f"pid {pid} is another process now ({leader.comm}, start ticks {leader.ticks}, not {ticks})"
        return Tree(alive, tuple(doubtful), "other", who)
    return Tree(alive, tuple(doubtful), "absent", f"no process {pid}" if pid else "")


def below(pid: int) -> Pids | None:
    """Who descends from it just now, by the kernel's lists of children; None where it keeps none (proc(5)).

    In a fraction of the time of a look at all processes. Once the parent is gone nobody can tell any more.
    """
    if not lists_children():
        return None
    found: Pids = {}
    waiting = [pid]
    while waiting:
        parent = waiting.pop()
        for child in children(parent):
            stat = _stat_or_unseen(child)
            if stat is not None and stat.ppid == parent and child not in found:
                found[child] = stat.ticks
                waiting.append(child)
    return found


def lists_children() -> bool:
    """Whether this kernel does (CONFIG_PROC_CHILDREN)."""
    return (PROC / "thread-self" / "children").exists()


def children(pid: int) -> Iterator[int]:
    """Dead ones that nobody waited for too. Each is listed under the thread that forked it."""
    with contextlib.suppress(FileNotFoundError, ProcessLookupError):
        for task in os.listdir(f"/proc/{pid}/task"):  # noqa: PTH208  names only
            with contextlib.suppress(FileNotFoundError, ProcessLookupError):
                yield from map(int, _read(pid, f"task/{task}/children").split())


def descendants(roots: Iterable[Stat], stats: Stats) -> Iterator[Stat]:
    """By their parents, each of which is there still: a number given out anew in between has another start.

    So a worker is found that has neither its parent's session nor its environment, while its parent lives.
    """
    waiting, seen = list(roots), {s.pid for s in roots}
    while waiting:
        parent = waiting.pop()
        mine = [s for s in stats.children.get(parent.pid, ()) if s.pid not in seen]
        now = _stat_or_unseen(parent.pid) if mine else None
        if now is None or now.ticks != parent.ticks:
            continue
        for child in mine:
            if child.ticks >= parent.ticks:
                seen.add(child.pid)
                waiting.append(child)
                yield child


def dead_children() -> frozenset[int]:
    """Our zombies, whoever ought to wait for them. One call where there is none."""
    try:
        if os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None:
            return frozenset()
    except ChildProcessError:
        return frozenset()
    return frozenset(s.pid for s in all_stats().children.get(os.getpid(), ()) if not s.live)


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
