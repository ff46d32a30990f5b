"""Whose a box's engines are where an agent's state folder is lost: by the markers of what runs (design.md 3, A1, A13).

An agent without an identity file takes the node id that engines of its name and control carry, else control would start
others beside them. It never guesses: with two ids, or where an agent with it lives, it does not start. May not signal
or adopt anything.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from pathlib import Path

import structlog

from llmgw.agent import container_evidence
from llmgw.agent.bearers import Bearer, alive, bearer, bearers, home_of, masterless, places
from llmgw.agent.container_start import NODE
from llmgw.agent.identity import FILE, StateDirError
from llmgw.agent.runtime import AwayError, Runtime
from llmgw.core.supervise.claims import CONTAINERS

log = structlog.get_logger()


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
    for kind in (
        boxed if mine else ()
    ):  # that one asks them too: a copy of an engine's container is not ours
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
    sure = [b for b in named if b.told_of(own, home)]
    untold = [b for b in named if b.untold]
    nobodys = masterless(untold)
    doubtful = [b for b in untold if b.node_id in nobodys]
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
