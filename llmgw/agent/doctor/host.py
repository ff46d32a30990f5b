"""The machine under the engines: kernel, /proc, limits, memory. May not advise where nothing can go wrong."""

from __future__ import annotations

import os
from collections.abc import Iterator

from llmgw.agent.doctor.look import Check, Node, gib

#: Engines inherit the limit of the agent: sockets of clients and peers, a file for each piece of the weights.
FILES = 4096
#: hidepid values that hide who others' processes are (proc(5)).
HIDING = frozenset({"1", "2", "4", "noaccess", "invisible", "ptraceable"})
#: "never promise more than there is" (vm/overcommit-accounting.rst)
STRICT = "2"
UNLIMITED = "unlimited"


def host(node: Node) -> Iterator[Check]:
    yield _kernel(node)
    yield _proc(node)
    limits = _limits(node)
    yield _files(limits)
    yield _locked(node, limits)
    yield from _memory(node)


def _kernel(node: Node) -> Check:
    release = node.text("proc/sys/kernel/osrelease").strip()
    try:
        os.close(os.pidfd_open(os.getpid()))
    except (OSError, AttributeError) as e:
        fact = f"kernel {release} gives no pidfd ({e}): no process can be signalled surely"
        return Check(
            "fail", "kernel", fact, "Linux 5.3 or newer, and a container that allows pidfd_open"
        )
    return Check("ok", "kernel", f"{release}, with pidfd")


def _proc(node: Node) -> Check:
    for line in node.text("proc/mounts").splitlines():
        _, point, kind, options, *_ = line.split()
        if kind != "proc" or point != "/proc":
            continue
        said = [o for o in options.split(",") if o.partition("=")[0] == "hidepid"]
        if node.user and said and said[0].partition("=")[2] in HIDING:
            fact = f"/proc is mounted with {said[0]}: who holds a port or a GPU cannot be named"
            return Check("warn", "proc", fact, "mount it with gid= a group of the agent's user")
        return Check("ok", "proc", "processes of other users can be seen")
    return Check("skip", "proc", "/proc is in no list of mounts")


def _limits(node: Node) -> dict[str, tuple[str, str]]:
    """Name -> soft and hard limit, of the agent that runs, else of this process; engines inherit them."""
    found = {}
    for line in node.text(f"proc/{node.agent() or 'self'}/limits").splitlines()[1:]:
        name, rest = line[:26].strip(), line[26:].split()
        found[name] = (rest[0], rest[1])
    return found


def _files(limits: dict[str, tuple[str, str]]) -> Check:
    soft, hard = limits.get("Max open files", ("", ""))
    if not soft:
        return Check("skip", "files", "the limit of open files cannot be read")
    fact = f"{soft} open files a process (hard limit {hard})"
    if hard != UNLIMITED and int(hard) < FILES:
        hint = f"LimitNOFILE={FILES} in the agent's unit, or ulimit -n before its start"
        return Check(
            "warn", "files", f"{fact}: engines with many weight files or peers run out", hint
        )
    return Check("ok", "files", fact)


def _locked(node: Node, limits: dict[str, tuple[str, str]]) -> Check:
    """It matters where memory is registered with a network card (NCCL user guide, "Memory limits" of RDMA)."""
    soft, _ = limits.get("Max locked memory", ("", ""))
    cards = node.root / "sys/class/infiniband"
    hcas = sorted(p.name for p in cards.iterdir()) if cards.is_dir() else []
    if not hcas:
        return Check("skip", "memlock", "there is no RDMA card that would need locked memory")
    if soft not in ("", UNLIMITED):
        fact = f"{soft} bytes may be locked, and RDMA ({', '.join(hcas)}) registers all it sends"
        return Check("warn", "memlock", fact, "LimitMEMLOCK=infinity in the agent's unit")
    return Check("ok", "memlock", f"unlimited, for RDMA ({', '.join(hcas)})")


def _memory(node: Node) -> Iterator[Check]:
    words = (line.split() for line in node.text("proc/meminfo").splitlines())
    info = {w[0].rstrip(":"): int(w[1]) << 10 for w in words if len(w) > 1}
    total = info.get("MemTotal", 0)
    if not total:
        yield Check("skip", "memory", "/proc/meminfo cannot be read")
        return
    fact = f"{gib(info.get('MemAvailable', 0))} of {gib(total)} available"
    limit, where = _cgroup_limit(node)
    if limit is not None and limit < total:
        hint = "raise MemoryMax (or the container's limit), or count on that much: host_memory in the catalog"
        fact = f"{fact}, but {where} allows {gib(limit)}: the kernel kills what goes beyond"
        yield Check("warn", "memory", fact, hint)
    else:
        yield Check("ok", "memory", fact)
    if node.text("proc/sys/vm/overcommit_memory").strip() == STRICT:
        left = info.get("CommitLimit", 0) - info.get("Committed_AS", 0)
        fact = f"vm.overcommit_memory=2 leaves {gib(max(left, 0))} to reserve; CUDA reserves far more than it uses"
        yield Check("warn", "overcommit", fact, "sysctl vm.overcommit_memory=0")


def _cgroup_limit(node: Node) -> tuple[int | None, str]:
    """The tightest memory limit above the agent (else above us), and the cgroup that has it; v2, then v1."""
    pid = node.agent() or "self"
    paths: dict[str, str] = {}
    for line in node.text(f"proc/{pid}/cgroup").splitlines():
        _, controllers, path = line.split(":", 2)
        paths |= dict.fromkeys(controllers.split(","), path)
    tightest: tuple[int | None, str] = (None, "")
    for base, path, file in (
        ("sys/fs/cgroup", paths.get("", ""), "memory.max"),
        ("sys/fs/cgroup/memory", paths.get("memory", ""), "memory.limit_in_bytes"),
    ):
        parts = [p for p in path.split("/") if p]
        # The root of what we see: in a container its own limit stands there, and the path is the host's.
        for n in range(len(parts), -1, -1):
            above = "/".join(parts[:n])
            said = node.text(f"{base}/{above}/{file}" if above else f"{base}/{file}").strip()
            if said.isdecimal() and (tightest[0] is None or int(said) < tightest[0]):
                tightest = int(said), f"cgroup /{above}"
    return tightest
