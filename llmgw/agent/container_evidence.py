"""What containers say of records' engines: who is ours, what of it lives, what is taken up without a record (F35-F45).

A container is ours by its labels, its processes by their control group, which names the container and is never given
out again. Where /proc does not show them (another user's, another machine's kernel) the runtime's word counts. May
not run or signal anything.
"""

from __future__ import annotations

import os
import re
from collections.abc import Container, Iterable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import structlog
from msgspec.structs import replace

from llmgw.agent import markers
from llmgw.agent.container_start import ATTEMPT, CLIENT, INCARNATION, NODE, SHARD
from llmgw.agent.process import PROC, Mark, Pids, read_stat
from llmgw.agent.reattach import unrecorded
from llmgw.agent.runtime import AwayError, Box, Image, Runtime
from llmgw.core.supervise.claims import CONTAINERS, is_key
from llmgw.core.supervise.restarts import exit_words
from llmgw.core.types.node import Identified, Told
from llmgw.core.types.record import Key, Record

log = structlog.get_logger()
#: A file here says that this agent once started something by that runtime.
USED = "runtimes"
#: Of a label that somebody else wrote: Python refuses to read a number of thousands of digits.
DIGITS = 10
#: A container's own group: /libpod_parent/libpod-ID, …/docker-ID.scope, /docker/ID; conmon's has another name.
_GROUP = re.compile(rb"/(?:libpod-|docker-)?([0-9a-f]{64})(?:\.scope)?(?:/|$)", re.MULTILINE)


class First(NamedTuple):
    """What was found when the agent started; `away`: the runtimes that could not be asked, and why.

    `marks` are from before the runtimes were asked: a program that was making a container then has made it, or is
    still there.
    """

    boxes: tuple[Box, ...] = ()
    away: Mapping[str, str] = {}
    marks: Mapping[Key, list[Mark]] = {}
    there: Mapping[str, Pids] = {}
    answered: frozenset[str] = frozenset()


async def first(
    state_dir: Path, records: Iterable[Record], node_id: str, marks: Mapping[Key, list[Mark]]
) -> First:
    """Asks every runtime that this agent ever used: whoever has no containers does not wait for one."""
    told = {r.start.launcher for r in records}
    boxes: list[Box] = []
    answered: set[str] = set()
    away = {}
    there: Mapping[str, Pids] = {}
    for kind in CONTAINERS:
        if kind not in told and not (state_dir / USED / kind).exists():
            continue
        try:
            boxes += await ours(Runtime(kind), {NODE: node_id}, {})
            there = groups()
            answered.add(kind)
        except AwayError as e:
            log.warning("a container runtime cannot be asked", runtime=kind, error=str(e))
            away[kind] = str(e)
    return First(tuple(boxes), away, marks, there, frozenset(answered))


def remember(state_dir: Path, kind: str) -> None:
    """Before the first start: the next agent asks this runtime for orphans."""
    folder = state_dir / USED
    folder.mkdir(mode=0o700, exist_ok=True)
    (folder / kind).touch()


async def ours(runtime: Runtime, labels: Mapping[str, str], known: dict[str, Image]) -> list[Box]:
    """The containers with these labels, but for those that have them of their image: `docker commit` writes them there.

    `known`: what images were found to be; one that was removed meanwhile has no labels to give.
    """
    found = await runtime.boxes(labels)
    for image_id in {box.image_id for box in found} - known.keys():
        known[image_id] = (await runtime.image(image_id) if image_id else None) or Image(())
    return [box for box in found if not _inherited(box, known[box.image_id].labels)]


def _inherited(box: Box, given: Mapping[str, str]) -> bool:
    """An image that was made of an engine's container may be a profile's own image: then ours say something new."""
    names = (NODE, SHARD, INCARNATION, ATTEMPT)
    return NODE in given and all(given.get(n) == box.labels.get(n) for n in names)


def key_of(box: Box) -> Key:
    return (box.labels.get(SHARD, ""), box.labels.get(INCARNATION, ""))


def attempt_of(box: Box) -> int:
    text = box.labels.get(ATTEMPT, "")
    return int(text) if text.isascii() and text.isdecimal() and len(text) < DIGITS else 0


def groups() -> dict[str, Pids]:
    """Live processes by the id of their container, by their control groups; none where /proc does not show them.

    Raises `AwayError` where nobody can look.
    """
    found: dict[str, Pids] = {}
    for name in _pids():
        try:
            match = _GROUP.search(_cgroup(name))
            stat = read_stat(int(name)) if match else None
        except (FileNotFoundError, ProcessLookupError, PermissionError):
            continue
        except OSError as e:  # no descriptor left, say: nobody counts as gone
            msg = f"cannot look at its processes: {e}"
            raise AwayError(msg) from e
        if match and stat is not None and stat.live:
            found.setdefault(match[1].decode(), {})[stat.pid] = stat.ticks
    return found


def _pids() -> list[str]:
    try:
        return [name for name in os.listdir(PROC) if name.isdecimal()]  # noqa: PTH208  names only
    except OSError as e:
        msg = f"cannot look at any process: {e}"
        raise AwayError(msg) from e


def _cgroup(pid: str) -> bytes:
    with open(f"/proc/{pid}/cgroup", "rb", buffering=0) as file:  # noqa: PTH123  of every process
        return file.read()


def alive(box: Box, record: Record, there: Mapping[str, Pids]) -> Pids:
    """What of the container lives. Ticks are 0 where only the runtime says so.

    A runtime whose watcher was killed says "running" for ever: where its processes could once be seen, their absence
    counts more.
    """
    seen = there.get(box.id, {})
    if seen or box.over or box.unborn:
        return seen
    seen_before = record.start_ticks != 0 and attempt_of(box) == record.attempt
    return {} if seen_before else {box.pid: 0}


def evidence(
    record: Record,
    boxes: Sequence[Box],
    clients: tuple[int, ...],
    there: Mapping[str, Pids],
) -> Identified:
    """`boxes` are all of this record's; `clients`: the runtime's programs that were just making one before."""
    living = [(box, alive(box, record, there)) for box in boxes]
    own = next(
        (
            (box, pids)
            for box, pids in living
            if pids
            and box.pid
            and not box.over
            and (record.unreadable or attempt_of(box) == record.attempt)
        ),
        None,
    )
    told = rebuilt(record.key, own[0] if own else boxes[0]) if boxes and record.partial else None
    pids = {pid for _, found in living for pid in found}
    if own is not None:
        box, found = own
        return Identified(
            key=record.key,
            leader="same",
            pid=box.pid,
            start_ticks=found.get(box.pid, 0),
            others=tuple(sorted(pids - {box.pid})),
            rebuilt=told.start if told else None,
            told=told.told if told else Told(),
        )
    if clients:
        detail = f"{record.start.launcher} is just making its container (pid {clients[0]})"
        return Identified(key=record.key, doubtful=clients, detail=detail)
    return Identified(
        key=record.key,
        others=tuple(sorted(pids)),
        detail=_over(record, boxes),
        rebuilt=told.start if told else None,
        told=told.told if told else Told(),
    )


def _over(record: Record, boxes: Sequence[Box]) -> str:
    """The end of this attempt, which its runtime saw."""
    box = next((b for b in boxes if attempt_of(b) == record.attempt), None)
    if box is None:
        return "no container has its labels"
    if box.unborn:
        return "its container was made and never started"
    return f"its container {end_words(box, '')}"


def end_words(box: Box, last_line: str) -> str:
    return exit_words(box.code, last_line, out_of_memory=box.out_of_memory or None)


def clients(key: Key, marks: Mapping[Key, list[Mark]]) -> tuple[int, ...]:
    return tuple(m.stat.pid for m in marks.get(key, ()) if CLIENT in m.env)


def rebuilt(key: Key, box: Box) -> markers.Found:
    """The order that started it, by its environment as the runtime keeps it."""
    found = markers.read(key, box.env, box.argv)
    start = replace(found.start, launcher=box.kind, image=found.start.image or box.image)
    return markers.Found(start, replace(found.told, attempt=attempt_of(box) or 1))


def orphans(
    records: Iterable[Record], found: First, boot_id: str, released: Container[Key] = ()
) -> list[Record]:
    """Running containers of ours that no record tells of: each is a record again."""
    have = {r.key for r in records}
    out: list[Record] = []
    for box in sorted(found.boxes, key=attempt_of, reverse=True):
        key = key_of(box)
        if box.over or box.unborn or key in have or key in released or not is_key(key):
            continue
        have.add(key)
        log.warning("a container of ours has no record, it is taken up", shard=key[0], id=box.id)
        how = "its container was found by its labels"
        out.append(unrecorded(rebuilt(key, box), boot_id, how))
    return out
