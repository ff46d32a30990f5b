"""Engines that somebody started by hand: found by what listens, looked at before one is taken over (A70, A71, F74).

Cheap while nothing changes: the table of listeners is read, and of a listener that is new who holds it; a command line
is read once. A taken-over engine is its process and what descends from it: its session is the person's shell, which
nobody may signal. May not decide who is taken, nor signal anything.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple

from msgspec.structs import replace

from llmgw.agent import bearers, ports, process
from llmgw.agent.process import PROC, Mark, Pids, Stat, Stats, Tree
from llmgw.core.match import ENGINES, hidden, key_in, program
from llmgw.core.types.by_hand import ByHand, Started
from llmgw.core.types.messages import Take
from llmgw.core.types.record import Record

#: Of a command line as it is reported; a longer one is cut, and matches nothing.
ARGV_CHARS = 8 << 10
#: Deeper than any tree of an engine.
DEPTH = 32
RUNTIMES = ("docker", "libpod", "crio", "containerd", "kubepods", "lxc", "machine.slice")


class Listener(NamedTuple):
    """Who holds a listening socket, as it was when that was new; `words` is empty where it is none of an engine's."""

    port: int
    pid: int
    ticks: int
    words: tuple[str, ...]
    #: the agent whose markers it carries
    bearer: bearers.Bearer | None = None


class Engines:
    """What listens on this host and looks like an engine, as of the last look; to be called in a thread."""

    def __init__(self) -> None:
        self._holders: dict[int, Listener] = {}

    def look(self, programs: Iterable[str] = ()) -> tuple[Started, ...]:
        """`programs`: names besides those of the built-in engines. Nobody who carries an agent's markers."""
        there = dict(_listening())
        self._holders = {i: h for i, h in self._holders.items() if i in there and _same(h)}
        new = there.keys() - self._holders.keys()
        if new:
            holders = _holders_of(new)
            for inode in new:
                self._holders[inode] = _read(there[inode], holders.get(inode, 0))
        named = ENGINES | {*programs}
        found: dict[int, list[Listener]] = {}
        for h in self._holders.values():
            if h.words and h.bearer is None and program(h.words) in named:
                found.setdefault(h.pid, []).append(h)
        return tuple(_started(found[pid]) for pid in sorted(found))

    def masterless(
        self, node_id: str, controls: frozenset[str], home: str
    ) -> dict[int, tuple[Started, bearers.Bearer]]:
        """Of the last look those that another agent of this fleet started, which is not here any more."""
        marked = [
            h
            for h in self._holders.values()
            if h.bearer
            and h.bearer.node_id != node_id
            and (h.bearer.untold or h.bearer.told_of(controls, home))
        ]
        by_pid: dict[int, list[Listener]] = {}
        for h in marked:
            by_pid.setdefault(h.pid, []).append(h)
        nobodys = bearers.masterless(h.bearer for h in marked if h.bearer)
        return {
            pid: (_started(rows), bearer)
            for pid, rows in sorted(by_pid.items())
            if (bearer := rows[0].bearer) and bearer.node_id in nobodys
        }


def _listening() -> Iterator[tuple[int, int]]:
    """Inode and port of every listener. The kernel lists those first (net/ipv4/tcp_ipv4.c), so it is no long read."""
    for table in ports.TABLES:
        path = PROC / table
        if not path.exists():
            continue
        with path.open() as lines:
            next(lines, "")
            for line in lines:
                fields = line.split()
                if fields[3] != ports.LISTEN:
                    break
                yield int(fields[9]), int(fields[1].rpartition(":")[2], 16)


def _holders_of(inodes: Iterable[int]) -> dict[int, int]:
    """Inode -> the process that has it; of a parent and its workers the parent."""
    wanted, have = {*inodes}, dict[int, list[Stat]]()
    for stat in process.all_stats().values():
        for inode in ports.inodes(stat.pid):
            if inode in wanted:
                have.setdefault(inode, []).append(stat)
    out = {}
    for inode, stats in have.items():
        pids = {s.pid for s in stats}
        first = [s for s in stats if s.ppid not in pids] or stats
        out[inode] = min(first, key=lambda s: (s.ticks, s.pid)).pid
    return out


def _read(port: int, pid: int) -> Listener:
    stat = _stat(pid) if pid else None
    env = _environ(pid) if stat is not None else {}
    marked = "LLMGW_NODE_ID" in env
    told = marked and process.same_user(pid)
    bearer = bearers.bearer(f"pid {pid}", env, bearers.home_of(pid, env)) if told else None
    if stat is None or (marked and bearer is None):
        return Listener(port, 0, 0, ())
    return Listener(port, pid, stat.ticks, tuple(_text(process.words(pid))), bearer)


def _same(listener: Listener) -> bool:
    """What is not an engine's is not looked at again while it listens."""
    if not listener.words:
        return True
    stat = _stat(listener.pid)
    return stat is not None and stat.ticks == listener.ticks


def _stat(pid: int) -> Stat | None:
    try:
        return process.read_stat(pid)
    except OSError:
        return None


def _environ(pid: int) -> dict[str, str]:
    try:
        return process.environ(pid)
    except OSError:
        return {}


def _text(words: Iterable[str]) -> list[str]:
    """What can be told to control: no broken text."""
    return [os.fsencode(word).decode(errors="replace") for word in words]


def _started(listeners: list[Listener]) -> Started:
    """Of several ports the one that its words name, else the lowest."""
    first = min(listeners)
    said = next((h for h in sorted(listeners) if str(h.port) in h.words), first)
    argv, left = [], ARGV_CHARS
    for word in hidden(first.words):
        left -= len(word)
        if left < 0:
            break
        argv.append(word)
    return Started(
        pid=first.pid,
        start_ticks=first.ticks,
        started_at=process.started_at(first.ticks),
        argv=tuple(argv),
        cwd=_link(first.pid, "cwd"),
        port=said.port,
    )


def _link(pid: int, name: str) -> str:
    try:
        return _text([os.readlink(PROC / str(pid) / name)])[0]  # noqa: PTH115  a name, perhaps of no file
    except OSError:
        return ""


def engine_of(pid: int, engines: Mapping[int, Started]) -> Started | None:
    """The engine that this process is, or descends from."""
    for _ in range(DEPTH):
        if pid in engines or pid <= 1:
            break
        stat = _stat(pid)
        pid = stat.ppid if stat is not None else 0
    return engines.get(pid)


# ---------------------------------------------------------------- the tree of a taken-over engine


def tree_of(record: Record, known: Pids, marks: list[Mark], stats: Stats) -> Tree:
    """The processes of any record; of a taken-over one those that descend from it, or were once seen to."""
    if not record.by_hand:
        return process.tree_of(record.pid or 0, record.start_ticks, known, marks, stats)
    pid, ticks = record.pid or 0, record.start_ticks
    leader = stats.get(pid)
    if leader is not None and leader.state == process.UNSEEN:
        raise PermissionError(errno.EACCES, "may not be looked at", str(PROC / str(pid) / "stat"))
    same = leader is not None and leader.ticks == ticks
    roots = [s for s in stats.values() if known.get(s.pid) == s.ticks]
    roots += [leader] if leader is not None and same else []
    alive = {s.pid: s.ticks for s in (*roots, *process.descendants(roots, stats)) if s.live}
    if same and pid in alive:
        return Tree(alive, (), "same")
    if leader is not None and not same:
        who = f"pid {pid} is another process now ({leader.comm}, start ticks {leader.ticks}, not {ticks})"
        return Tree(alive, (), "other", who)
    return Tree(alive, (), "absent", f"no process {pid}")


# ---------------------------------------------------------------- before it is taken over


def examine(take: Take, address: str, gpus: Mapping[int, tuple[str, ...]] | None) -> ByHand:
    """Everything about the process that can be seen at once. `gpus`: by process, None where nobody can tell."""
    try:
        return _examined(take, address, gpus)
    except (OSError, ValueError, IndexError) as e:
        return ByHand(error=str(e))


def _examined(take: Take, address: str, gpus: Mapping[int, tuple[str, ...]] | None) -> ByHand:
    pid = take.pid
    stats = process.all_stats()
    stat = stats.get(pid)
    if stat is None or not stat.live:
        return ByHand()
    env = process.environ(pid)
    argv = tuple(_text(process.words(pid)))
    pids = [pid, *(s.pid for s in process.descendants([stat], stats))]
    key_names = [name for name, text in take.start.env.items() if text == "${api_key}"]
    keys = (*(env.get(name, "") for name in key_names), key_in(argv))
    whose, detail = ports.owner(take.start.port, address, pids)
    seen = ByHand(
        start_ticks=stat.ticks,
        started_at=process.started_at(stat.ticks),
        command=" ".join(hidden(argv)) or stat.comm,
        argv=argv,
        cwd=_link(pid, "cwd"),
        env={name: _text([env[name]])[0] for name in take.start.env if name in env},
        api_key=next((key for key in _text(keys) if key), ""),
        user=f"uid {(PROC / str(pid)).stat().st_uid}",
        user_wanted=f"uid {os.geteuid()}",
        container=_contained(pid),
        service=_service(pid),
        listener=whose,
        listener_detail=detail,
    )
    if "LLMGW_NODE_ID" in env:
        seen = replace(seen, marked=_text([env.get("LLMGW_NODE", "") or "another node"])[0])
    if gpus is not None:
        used = {uuid for p in pids for uuid in gpus.get(p, ())}
        seen = replace(seen, gpus=tuple(sorted(used)))
    return seen


def _contained(pid: int) -> bool:
    """In namespaces of its own, or in a runtime's group: a restart of the runtime, or a stop, is not seen by us."""
    theirs = {ns: _link(pid, f"ns/{ns}") for ns in ("pid", "net")}
    own = any(link and link != _link(os.getpid(), f"ns/{ns}") for ns, link in theirs.items())
    group = _group(pid)
    return own or (group != _group(os.getpid()) and any(name in group for name in RUNTIMES))


def _service(pid: int) -> str:
    """The unit that starts it again, or ends it; a login session or a scope does not, nor where the agent is itself."""
    group = _group(pid)
    units = [part for part in group.split("/") if part.endswith((".service", ".scope"))]
    unit = units[-1] if units else ""
    ours = group == _group(os.getpid()) or unit.startswith("user@")
    return unit if unit.endswith(".service") and not ours else ""


def _group(pid: int) -> str:
    """Its control group: of the one hierarchy, or of systemd's own."""
    for line in (PROC / str(pid) / "cgroup").read_text().splitlines():
        _, controllers, path = line.split(":", 2)
        if controllers in ("", "name=systemd"):
            return path
    return ""


def output_of(pid: int) -> str:
    """Where its output goes, for people."""
    return _link(pid, "fd/1") or "where nobody of ours can see it"
