"""Whose a box's engines are where an agent's state folder is lost: by the markers of what runs (design.md 3, A1, A13).

An agent without an identity file takes the node id that engines of its name and control carry, else control would start
others beside them. It never guesses: two ids, or engines that may be another fleet's, and it does not start. Engines
whose agent lives, or whose agent's folder is there, are not lost. May not signal, write or adopt anything.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import NamedTuple
from urllib.parse import urlsplit

import structlog

from llmgw.agent import container_evidence, process
from llmgw.agent.container_start import NODE
from llmgw.agent.identity import COPY, FILE, StateDirError, claimed_as, node_id_in
from llmgw.agent.process import PROC
from llmgw.agent.runtime import AwayError, Runtime
from llmgw.core.supervise.claims import CONTAINERS, ID

log = structlog.get_logger()
#: The controls of the agent that started an engine, as HOST:PORT: two fleets on a host may have nodes of one name.
CONTROLS = "LLMGW_CONTROLS"
_GONE = " (deleted)"


class Bearer(NamedTuple):
    """A live process, or a container, that carries an agent's markers; `home`: that agent's state dir, "" unknown."""

    who: str
    node_id: str
    node: str
    controls: frozenset[str]
    home: str


def places(urls: Iterable[str]) -> tuple[str, ...]:
    """HOST:PORT of each: neither the scheme, which TLS changes, nor what it may be pinned by or logged in with."""
    found = (urlsplit(url).netloc.rpartition("@")[2].lower() for url in urls)
    return tuple(dict.fromkeys(place for place in found if place))


def bearer(who: str, env: Mapping[str, str], home: str) -> Bearer | None:
    """What these markers say; None for what an agent cannot have written."""
    node_id = env.get("LLMGW_NODE_ID", "")
    if not ID.fullmatch(node_id) or process.marked_as(env, node_id) is None:
        return None
    controls = frozenset(filter(None, env.get(CONTROLS, "").split(",")))
    return Bearer(who, node_id, env.get("LLMGW_NODE", ""), controls, home)


def bearers(stats: process.Stats | None = None) -> Iterator[Bearer]:
    """Every live process of our user with an agent's markers, whichever agent's."""
    stats = process.all_stats() if stats is None else stats
    for pid, stat in stats.items():
        if not stat.live or pid == os.getpid() or not process.same_user(pid):
            continue
        env = process.environ(pid)
        found = bearer(f"pid {pid}", env, home_of(pid, env)) if "LLMGW_NODE_ID" in env else None
        if found is not None:
            yield found


def home_of(pid: int, env: Mapping[str, str]) -> str:
    """The state dir in which its output goes to a log: it follows the folder when that is moved."""
    for fd in (1, 2):
        try:
            target = os.readlink(PROC / str(pid) / "fd" / str(fd))  # noqa: PTH115  a name, perhaps of no file
        except OSError:
            continue
        home, logs, _ = target.removesuffix(_GONE).rpartition(f"/logs/{env.get('LLMGW_REPLICA')}/")
        if logs:
            return home
    return ""


def alive(node_id: str) -> bool:
    """Whether an agent with this id runs on this host, in whatever network namespace: its claim names it."""
    claim = f" @{claimed_as(node_id)}".encode()
    seen = set()
    for name in os.listdir(PROC):  # noqa: PTH208  names only
        if not name.isdecimal():
            continue
        folder = PROC / name
        try:
            space = os.readlink(folder / "ns/net")  # noqa: PTH115  a name of no file
            if space in seen:
                continue
            seen.add(space)
            lines = (folder / "net/unix").read_bytes().splitlines()
        except OSError:
            continue  # gone meanwhile, or another user's
        if any(line.endswith(claim) for line in lines):
            return True
    return False


def intact(home: str, node_id: str) -> bool:
    """That agent is merely down: its folder says who it is."""
    return bool(home) and any(node_id_in(Path(home) / name) == node_id for name in (FILE, COPY))


def masterless(found: Iterable[Bearer]) -> set[str]:
    """The ids among these that no agent here has, or will have when it is started again."""
    homes: dict[str, set[str]] = {}
    for b in found:
        homes.setdefault(b.node_id, set()).add(b.home)
    return {
        node_id
        for node_id, some in homes.items()
        if not any(intact(home, node_id) for home in some) and not alive(node_id)
    }


def why(one: Bearer) -> str:
    """Of a row among the strangers: whose it is, and what can be done."""
    return (
        f"carries the marks of node {one.node or '?'}, id {one.node_id}, which no agent here is: an agent whose "
        f'{FILE} says {{"node_id": "{one.node_id}"}} takes it up, else stop it by hand; left alone'
    )


def node_id(node: str, controls: Iterable[str], state_dir: Path) -> str:
    """What an agent without an identity file is, "" for a new node; nothing was written yet."""
    try:
        found, boxed = list(bearers()), asyncio.run(_contained())
        mine, who = former(
            node, controls, state_dir, [*found, *(b for some in boxed.values() for b in some)]
        )
    except (OSError, ValueError, IndexError) as e:
        msg = f"{state_dir} does not say which node this is, and its engines cannot be looked for: {e}"
        raise StateDirError(msg, "start it again") from e
    if mine:
        log.warning(
            "this state dir does not say which node this is: it takes the id that its engines carry",
            node=node, node_id=mine, engines=who, state_dir=str(state_dir),
        )  # fmt: skip
    for kind, some in boxed.items():
        if mine in {b.node_id for b in some}:
            container_evidence.remember(state_dir, kind)
    return mine


async def _contained() -> dict[str, list[Bearer]]:
    """By runtime the containers with an agent's labels that live: whose processes may be another user's."""
    found: dict[str, list[Bearer]] = {}
    for kind in CONTAINERS:
        runtime = Runtime(kind)
        try:
            if not container_evidence.groups() or not runtime.installed:
                continue
            boxes = await container_evidence.ours(runtime, {NODE: ""}, {})
        except AwayError as e:
            log.warning("a container runtime cannot be asked", runtime=kind, error=str(e))
            continue
        living = (b for b in boxes if not b.over and not b.unborn)
        bearers = (bearer(f"container {b.id[:12]}", b.env, home_of(b.pid, b.env)) for b in living)
        found[kind] = [b for b in bearers if b is not None]
    return found


def former(
    node: str, controls: Iterable[str], state_dir: Path, found: Iterable[Bearer]
) -> tuple[str, str]:
    """The node id that an agent of this name had here, and of whom that is known; both "" where nothing says so.

    Raises `StateDirError` where it cannot be known.
    """
    own, home = frozenset(places(controls)), str(state_dir.resolve())
    named = [b for b in found if b.node == node]
    sure = [b for b in named if b.controls & own or b.home == home]
    nobodys = masterless(b for b in named if b not in sure)
    doubtful = [b for b in named if b not in sure and b.node_id in nobodys]
    ids = {b.node_id for b in (*sure, *doubtful)}
    if not ids:
        return "", ""
    if len(ids) > 1 or doubtful:
        raise _unclear(node, own, state_dir, (*sure, *doubtful))
    node_id = ids.pop()
    who = ", ".join(b.who for b in sure)
    if alive(node_id):
        msg = (
            f"another agent of node {node}, id {node_id}, runs on this host, and its engines: {who}"
        )
        hint = "stop that one first, give it back its --state-dir, or give this one another --node"
        raise StateDirError(msg, hint)
    return node_id, who


def _unclear(
    node: str, own: frozenset[str], state_dir: Path, found: Iterable[Bearer]
) -> StateDirError:
    groups: dict[str, list[Bearer]] = {}
    for b in found:
        groups.setdefault(b.node_id, []).append(b)
    said = "; ".join(f"{node_id} ({_about(group)})" for node_id, group in sorted(groups.items()))
    msg = (
        f"{state_dir} does not say which node this is, and engines of a node {node} run here with the "
        f"id {said}; this agent's control is {', '.join(sorted(own)) or 'none'}"
    )
    some = min(groups)
    hint = (
        f'to take those of one up: mkdir -p {state_dir}; echo \'{{"node_id": "{some}"}}\' > {state_dir / FILE}; '
        "else stop them by hand, or give this agent another --node"
    )
    return StateDirError(msg, hint)


def _about(group: list[Bearer]) -> str:
    controls = sorted({c for b in group for c in b.controls})
    homes = sorted({b.home for b in group if b.home})
    parts = [", ".join(b.who for b in group)]
    parts += [f"control {', '.join(controls)}"] if controls else []
    parts += [f"state dir {', '.join(homes)}"] if homes else []
    return ", ".join(parts)
