"""Processes that carry an agent's markers, whichever agent's, and whether that agent is here (design.md 3, A1).

An agent that lives holds its claim; one whose folder says the id is merely down. May not signal, write or adopt.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import NamedTuple
from urllib.parse import urlsplit

from llmgw.agent import process
from llmgw.agent.identity import COPY, FILE, claimed_as, node_id_in
from llmgw.agent.process import PROC
from llmgw.core.supervise.claims import ID

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

    def told_of(self, controls: frozenset[str], home: str) -> bool:
        """Started by an agent of these controls, or of this folder: another fleet may be on the host."""
        return bool(self.controls & controls) or (bool(self.home) and self.home == home)

    @property
    def untold(self) -> bool:
        """Of an older agent, and without a log of ours: nothing says which fleet's."""
        return not self.controls and not self.home


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
