"""Where systemd is pid 1: a scope for each engine, so that its memory and its end are not the agent's (F47, F80).

The engine is started as anywhere, and its processes are moved then: nothing here can keep it from starting, nor start
it twice. Only what sits in the agent's own cgroup is moved: a container, or an engine that somebody started by hand
under a unit of his own, stays where it is. May not decide about a shard, nor stop anything.

No memory limit is set: `host_memory` is a figure for placing, and the page cache of mapped weights would count against
it. Whoever wants one writes a drop-in for the slice or for the names (docs/operations.md).
"""

from __future__ import annotations

import asyncio
import os
import pwd
from pathlib import Path

import structlog

from llmgw.agent import process
from llmgw.agent.bus import Bus, BusError, Property
from llmgw.core.types.record import Record

log = structlog.get_logger()

BOOTED = Path("/run/systemd/system")
SYSTEM_BUS = Path("/run/dbus/system_bus_socket")
LINGERS = Path("/var/lib/systemd/linger")
SLICE = "llmgw-engines.slice"
#: systemd answers in milliseconds. One that hangs may hold up nobody: the engine runs already.
LIMIT_S = 5.0
LOOK_S = 0.005
#: Looks for processes that were forked before their parent was moved.
ROUNDS = 20
#: An engine without one of its processes is no engine: the kernel shall take all of them (systemd.service(5)).
OOM: tuple[Property, ...] = (("OOMPolicy", "s", "kill"),)


def unit_name(shard: str, incarnation: str, attempt: int) -> str:
    """Of no other start, so that a scope that is still ending is in nobody's way. The ids' own limits keep it short."""
    return f"llmgw-engine-{shard.replace('/', '-')}-{incarnation}-{attempt}.scope"


async def keep(record: Record, pid: int) -> None:
    """Of an engine that was just started, or found again; it runs whatever comes of this."""
    start = record.start
    unit = unit_name(start.shard, start.incarnation, record.attempt)
    try:
        why = await enclose(pid, unit, f"llmgw engine {start.shard}")
    except Exception:  # a strange answer must not end the agent
        log.exception("a bug", shard=start.shard)
        return
    if why:
        log.warning("an engine has no scope of its own", shard=start.shard, why=why)


async def enclose(pid: int, unit: str, what: str) -> str:
    """Move the session that `pid` leads out of the agent's cgroup; why that was not possible, "" for all is well."""
    ours = cgroup(os.getpid()) if booted() else ""
    if not ours or cgroup(pid) != ours:
        return ""
    try:
        async with asyncio.timeout(LIMIT_S), Bus.open(bus_path(ours)) as bus:
            await _scope(bus, pid, unit, (("Description", "s", what), *_order(ours)))
            await _moved(pid, ours)
            await _rest(bus, pid, unit, ours)
    except TimeoutError:
        return f"it stays in {ours}: systemd has not moved it to {unit} within {LIMIT_S:g} s"
    except (OSError, EOFError, BusError) as e:
        return f"it, or a part of it, stays in {ours} and not in {unit}: {e}"
    return ""


def booted() -> bool:
    """sd_booted(3): whether systemd is pid 1."""
    return BOOTED.is_dir()


def cgroup(pid: int) -> str:
    """The one that systemd manages: of the v1 hierarchies its own, else the unified one; "" where it cannot be told."""
    try:
        text = (process.PROC / str(pid) / "cgroup").read_text()
    except OSError:
        return ""
    found = {}
    for line in text.splitlines():
        _, controllers, path = line.split(":", 2)
        found[controllers] = path
    return found.get("name=systemd") or found.get("", "")


def bus_path(ours: str) -> Path:
    """Of the manager that may move what is ours: the system's for root, else the user's own.

    The latter ends with the last session of its user, and all that is in it: only where we live in it ourselves, or
    where it stays, is an engine put there (loginctl(1), enable-linger).
    """
    uid = os.geteuid()
    if uid == 0:
        return SYSTEM_BUS
    try:
        user = pwd.getpwuid(uid).pw_name
    except KeyError:
        user = str(uid)
    if f"/user@{uid}.service/" not in ours and not (LINGERS / user).exists():
        msg = f"the manager of user {user} ends when {user} logs out; loginctl enable-linger {user} lets it stay"
        raise BusError(msg)
    return Path(os.environ.get("XDG_RUNTIME_DIR") or f"/run/user/{uid}") / "bus"


def _order(ours: str) -> tuple[Property, ...]:
    """When the box goes down the agent ends first: it would take its engines for crashed and start them again."""
    unit = ours.rpartition("/")[2]
    return (("Before", "as", (unit,)),) if unit.endswith(".service") else ()


async def _scope(bus: Bus, pid: int, unit: str, more: tuple[Property, ...]) -> None:
    fixed: tuple[Property, ...] = (
        *more,
        ("Slice", "s", SLICE),
        ("CollectMode", "s", "inactive-or-failed"),
        ("Delegate", "b", True),  # without it no further process can be moved in
        ("PIDs", "au", (pid,)),
    )
    try:
        await bus.start_scope(unit, (*fixed, *OOM))
    except BusError as e:
        if "OOMPolicy" not in str(e):
            raise
        await bus.start_scope(unit, fixed)  # scopes have it from systemd 253 on


async def _moved(pid: int, ours: str) -> None:
    """The answer comes before the deed. One that ended meanwhile is in no cgroup of ours either."""
    while cgroup(pid) == ours:  # noqa: ASYNC110 - a file of /proc; there is no event for it
        await asyncio.sleep(LOOK_S)


async def _rest(bus: Bus, pid: int, unit: str, ours: str) -> None:
    """Children that were there before the move. Those of a moved process are born in its scope, so this ends."""
    left: list[int] = []
    for _ in range(ROUNDS):
        stats = process.all_stats().values()
        left = [s.pid for s in stats if s.sid == pid and s.live and cgroup(s.pid) == ours]
        if not left:
            return
        try:
            await bus.attach(unit, left)
        except BusError:
            await asyncio.sleep(LOOK_S)  # one of them ended between the look and the call
    msg = f"processes {left} of its session could not be moved"
    raise BusError(msg)
