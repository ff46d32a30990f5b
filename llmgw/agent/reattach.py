"""Evidence about records' processes, for re-attach: looks and tells, `core.supervise.reattach` judges (F35-F45).

Also takes up engines whose record is gone, by their markers (design.md 3). May not signal or change anything.
"""

from __future__ import annotations

import asyncio
from collections.abc import Container, Iterable
from types import MappingProxyType

import structlog
from msgspec.structs import replace

from llmgw.agent import by_hand, markers, ports
from llmgw.agent.container_start import CLIENT
from llmgw.agent.process import (
    Mark,
    Marks,
    Pids,
    all_stats,
    by_shard,
    look,
    started_at,
    words,
)
from llmgw.core.endpoint import address, asked_at, endpoint
from llmgw.core.types.node import Identified, NodeFacts, Told
from llmgw.core.types.record import Key, Record

log = structlog.get_logger()


class Survey:
    """All processes, seen once, and which of them carry our markers."""

    def __init__(self, node_id: str, before: Marks = MappingProxyType({})) -> None:
        self.stats = all_stats()
        self.seen = look(node_id, self.stats, before)
        self.marks = by_shard(node_id, self.seen)


class Looks:
    """One look a turn of the event loop: who is signalled is looked at right after, and others in the same turn."""

    def __init__(self, node_id: str) -> None:
        self._node_id = node_id
        self._seen: Marks = {}
        self._now: Survey | None = None

    def survey(self) -> Survey:
        if self._now is None:
            self._now = Survey(self._node_id, self._seen)
            self._seen = self._now.seen
            asyncio.get_running_loop().call_soon(self.over)
        return self._now

    def over(self) -> None:
        """Who comes now is in none that was made."""
        self._now = None


def evidence(record: Record, node_id: str, known: Pids, survey: Survey | None = None) -> Identified:
    """What is there of this record's processes; `error` where nobody could look."""
    try:
        return _evidence(record, known, survey or Survey(node_id))
    except (OSError, ValueError, IndexError) as e:
        return Identified(key=record.key, error=f"cannot look at its processes: {e}")


def _evidence(record: Record, known: Pids, survey: Survey) -> Identified:
    marks = survey.marks.get(record.key, [])
    tree = by_hand.tree_of(record, known, marks, survey.stats)
    leader = _leader(marks) if record.pid is None else None
    own = {record.pid, leader.stat.pid if leader else None}
    # Of whatever is left of it: without its GPUs nobody waits for their memory (F65).
    found = rebuilt(record.key, leader or marks[0]) if marks and record.partial else None
    return Identified(
        key=record.key,
        leader=tree.leader,
        pid=leader.stat.pid if leader else None,
        start_ticks=leader.stat.ticks if leader else 0,
        others=tuple(sorted(pid for pid in tree.alive if pid not in own)),
        doubtful=tree.doubtful,
        detail=tree.detail,
        rebuilt=found.start if found else None,
        told=found.told if found else Told(),
    )


def listens_at(record: Record, seen: Identified, facts: NodeFacts) -> str:
    """Of one that runs: its node may have another address by now than it was started with."""
    start = seen.rebuilt or record.start
    before = address(record.endpoint) or seen.told.address
    return ports.place(start.port, asked_at(facts, start), before)


def orphans(
    records: Iterable[Record],
    survey: Survey,
    boot_id: str,
    released: Container[Key] = (),
    answered: Container[str] = (),
) -> list[Record]:
    """Engines with our markers that no record tells of: each is a record again, as far as its markers go.

    What an operator released is a stranger for good (A43): taken up again its GPUs would be given out twice.
    `answered`: container runtimes that told of all that is ours: what else one started is a copy of an engine's own.
    """
    have = {r.key for r in records}
    out = []
    for key, marks in sorted(survey.marks.items()):
        if key in have or key in released:
            continue
        pids = [m.stat.pid for m in marks]
        found = rebuilt(key, _leader(marks) or marks[0])
        if found.start.launcher in answered and not any(CLIENT in m.env for m in marks):
            log.warning("markers of ours in a container that is not", shard=key[0], pids=pids)
            continue
        log.warning(
            "an engine of ours has no record, it is taken up by its markers",
            shard=key[0],
            pids=pids,
        )
        out.append(unrecorded(found, boot_id, "it was found by its markers"))
    return out


def unrecorded(found: markers.Found, boot_id: str, how: str) -> Record:
    """What a lost record is begun anew with: unknown until its process is verified. `how` it was found, for people."""
    told = found.told
    return Record(
        start=found.start,
        state="unknown",
        attempt=told.attempt,
        boot_id=boot_id,
        partial=not told.whole,
        started_at=told.started_at,
        artefact=told.artefact,
        api_key=told.api_key,
        endpoint=endpoint(told.address, found.start.port) if told.address else "",
        error=f"its record is gone, {how}",
    )


def rebuilt(key: Key, mark: Mark) -> markers.Found:
    """The order that started it, as far as its markers tell; since when at least its process is there."""
    found = markers.read(key, mark.env, words(mark.stat.pid))
    since = found.told.started_at or started_at(mark.stat.ticks)
    return found._replace(told=replace(found.told, started_at=since))


def _leader(marks: list[Mark]) -> Mark | None:
    """The session's leader among them: the process that was spawned."""
    return next((m for m in marks if m.stat.pid == m.stat.sid), None)
