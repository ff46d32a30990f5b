"""Where the agent lives: its state dir, its process, who would kill its engines with it, its ports.

May not lock, write or bind anything.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from llmgw.agent import ports
from llmgw.agent.doctor.look import Check, Node, Owner, gib, some, there

#: Below this the journal, logs and downloads are in danger; the agent itself refuses starts much later.
LOW_BYTES = 2 << 30
#: File systems that do not keep what is written over a power cut, or lock only as their server pleases.
VOLATILE = frozenset({"tmpfs", "ramfs"})
REMOTE = frozenset({"nfs", "nfs4", "cifs", "smb3", "fuse.sshfs", "9p"})


def place(node: Node) -> Iterator[Check]:
    yield _state_dir(node)
    agent, others = node.agent(), node.others()
    if agent:
        yield Check("ok", "agent", f"pid {agent} runs with state dir {node.state_dir}")
    else:
        fact = f"no agent runs with state dir {node.state_dir}"
        yield Check("warn", "agent", fact, _where_one_runs(node.name, others))
    engines = node.engines()
    yield _kill_mode(node, agent, engines)
    yield from _ports(node, engines, others)


def _where_one_runs(name: str, others: dict[int, Owner]) -> str:
    """Rather one of this name: it is probably the one that was meant."""
    run = sorted({o for o in others.values() if o.alive and o.home}, key=lambda o: o.node != name)
    if not run:
        return "start it: llmgw agent, or name its --state-dir"
    runs = run[0]
    return f"one runs with state dir {runs.home} {runs.words}: `llmgw doctor --state-dir {runs.home}` looks at it"


def _state_dir(node: Node) -> Check:
    path = node.state_dir
    if not there(path):
        near = next((p for p in path.parents if there(p)), node.root)
        if not node.may(near, os.W_OK | os.X_OK):
            fact = f"{path} is not there and user {node.user} may not make it in {near}"
            return Check("fail", "state", fact, "make it for the agent's user, or give --state-dir")
        return Check("ok", "state", f"{path} is not there yet, the agent makes it in {near}")
    if not path.is_dir():
        return Check("fail", "state", f"{path} is no folder", "move it away, or give --state-dir")
    stat = path.stat()
    mode = f"{stat.st_mode & 0o777:o}"
    if not node.may(path, os.R_OK | os.W_OK | os.X_OK):
        fact = f"user {node.user} may not write {path} (mode {mode}, owner {stat.st_uid})"
        return Check("fail", "state", fact, "run this as the agent's user, or chown the folder")
    if stat.st_mode & 0o077:
        fact = f"{path} has mode {mode}: others may look into it, and it holds keys"
        return Check("warn", "state", fact, f"chmod 700 {path}")
    return _disk(node, f"{path} is user {stat.st_uid}'s, mode {mode}")


def _disk(node: Node, said: str) -> Check:
    """Room, and a file system that keeps what it was given."""
    disk, kind = os.statvfs(node.state_dir), _kind(node, node.state_dir)
    size = disk.f_bavail * disk.f_frsize
    fact = f"{said}, on {kind or 'an unknown file system'}, {gib(size)} free"
    wrong = {
        "make room: the journal and the engines' logs are there": size < LOW_BYTES,
        "a reboot makes a new node of this one: put it on a disk": kind in VOLATILE,
        "put it on a local disk: its lock and its fsync are a server's word here": kind in REMOTE,
    }
    hint = next((words for words, is_so in wrong.items() if is_so), "")
    return Check("warn" if hint else "ok", "state", fact, hint)


def _kind(node: Node, path: Path) -> str:
    """The type of the file system that a path is on: the longest mount point above it, the last mount there."""
    whole, best, kind = str(path.resolve()), -1, ""
    for line in node.text("proc/mounts").splitlines():
        fields = line.split()
        point = fields[1].replace("\\040", " ")
        inside = whole == point or whole.startswith(point.rstrip("/") + "/")
        if inside and len(point) >= best:
            best, kind = len(point), fields[2]
    return kind


def _kill_mode(node: Node, agent: int, engines: dict[int, str]) -> Check:
    """What is in a service's cgroup ends with it, unless KillMode says otherwise (systemd.kill(5), F47)."""
    if not agent:
        return Check("skip", "kill-mode", "no agent runs, so it is in no unit")
    where = node.cgroup(agent)
    unit = where.rpartition("/")[2]
    if not unit.endswith(".service"):
        return Check(
            "ok", "kill-mode", f"the agent is in no service ({where or 'no cgroup is known'})"
        )
    inside = sorted({shard for pid, shard in engines.items() if _within(node.cgroup(pid), where)})
    if engines and not inside:
        shards = sorted(set(engines.values()))
        fact = f"{some(shards)} run outside of {unit}: its end is not theirs"
        return Check("ok", "kill-mode", fact)
    manager = ("systemctl", "--user") if "/user@" in where else ("systemctl",)
    mode = node.tell((*manager, "show", unit, "--property=KillMode", "--value"))
    theirs = f"{some(inside)} run in {unit}" if inside else f"the agent is {unit}, no engine runs"
    if not mode:
        fact = f"{theirs}, and systemd does not say its KillMode"
        return Check("warn", "kill-mode", fact, f"systemctl show {unit} -p KillMode")
    if mode in ("process", "none"):
        return Check("ok", "kill-mode", f"{theirs}, KillMode={mode} leaves engines alone")
    hint = f"systemctl edit {unit}: [Service] KillMode=process"
    if not inside:
        fact = f"{theirs}; KillMode={mode} ends engines that are not given a scope of their own"
        return Check("warn", "kill-mode", fact, hint)
    return Check("fail", "kill-mode", f"{theirs}, KillMode={mode} ends them with it", hint)


def _within(cgroup: str, other: str) -> bool:
    return cgroup == other or cgroup.startswith(other + "/")


def _ports(node: Node, engines: dict[int, str], others_of: dict[int, Owner]) -> Iterator[Check]:
    low, high = node.ports
    text = f"ports {low}-{high}"
    there: dict[int, set[int]] = {}
    for sock in ports.sockets():
        if sock.state == ports.LISTEN and low <= sock.port <= high:
            there.setdefault(sock.port, set()).add(sock.inode)
    ours = {inode for pid in engines for inode in ports.inodes(pid)} if there else set()
    others = {port: inodes for port, inodes in there.items() if not inodes <= ours}
    mine = f"{len(there) - len(others)} listened on by our engines"
    theirs = _theirs(others, others_of) if others else {}
    for owner, taken in theirs.items():
        whose = f"engines of {_agent(owner)}, which {'runs' if owner.alive else 'does not run'}"
        fact = f"{text}: {some([str(p) for p in taken], 3)} by {whose}; {mine}"
        yield Check("warn", "ports", fact, _leave(owner))
    strange = sorted(others.keys() - {port for taken in theirs.values() for port in taken})
    if strange:
        who = some([f"{p} by {ports.holder(p)}" for p in strange[:3]] + [""] * len(strange[3:]), 3)
        hint = "end them, or give the agent other --ports: a start on one of these is refused"
        yield Check("warn", "ports", f"{text}: {who}; {mine}", hint)
    if not others:
        yield Check("ok", "ports", f"{text}: {mine}, the others are free")
    first = int(node.text("proc/sys/net/ipv4/ip_unprivileged_port_start") or 0)
    if node.user and low < first:
        fact = f"{text}: below {first} only root may listen (ip_unprivileged_port_start)"
        yield Check("fail", "ports", fact, f"give the agent --ports {first} or higher")
    if (begin := _lent(node, low, high)) is not None:
        fact = f"{text}: the kernel lends {begin} to clients' connections (ip_local_port_range)"
        hint = f"sysctl net.ipv4.ip_local_reserved_ports={low}-{high}, or give other --ports"
        yield Check("warn", "ports", fact, hint)


def _theirs(taken: dict[int, set[int]], others: dict[int, Owner]) -> dict[Owner, list[int]]:
    """Of the ports that are not ours, those that engines of other agents listen on."""
    of = {inode: owner for pid, owner in others.items() for inode in ports.inodes(pid)}
    found: dict[Owner, list[int]] = {}
    for port, inodes in sorted(taken.items()):
        owner = next((of[i] for i in inodes if i in of), None)
        if owner is not None:
            found.setdefault(owner, []).append(port)
    return found


def _agent(owner: Owner) -> str:
    return f"{f'the agent of {owner.home}' if owner.home else 'another agent'} {owner.words}"


def _leave(owner: Owner) -> str:
    """Whoever ends them ends what serves."""
    if owner.alive:
        at = f": `llmgw doctor --state-dir {owner.home}` looks at it" if owner.home else ""
        return f"they are that agent's, leave them{at}; give one of the two agents other --ports"
    if owner.home:
        return f"start it, and it takes them up: llmgw agent --state-dir {owner.home}"
    return "start that agent, and it takes them up; with its folder lost stop them by hand"


def _lent(node: Node, low: int, high: int) -> str | None:
    """The part of the range that the kernel may give to outgoing connections, None for none (ip-sysctl.rst)."""
    lent = [int(n) for n in node.text("proc/sys/net/ipv4/ip_local_port_range").split()]
    if not lent:
        return None
    reserved = node.text("proc/sys/net/ipv4/ip_local_reserved_ports").strip()
    kept = [
        (int(a), int(b or a)) for a, _, b in (r.partition("-") for r in reserved.split(",") if r)
    ]
    both = range(max(low, lent[0]), min(high, lent[1]) + 1)
    left = [p for p in both if not any(a <= p <= b for a, b in kept)]
    return f"{left[0]}-{left[-1]}" if left else None
