"""Evidence about records' processes, for re-attach: looks and tells, `core.supervise.reattach` judges (F35-F45).

Also takes up engines whose record is gone, by their markers (design.md 3). May not signal or change anything.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import structlog

from llmgw.agent.process import Mark, Pids, Stat, all_stats, sweep, tree_of
from llmgw.core.types.messages import Start
from llmgw.core.types.node import Identified, Key, Record

log = structlog.get_logger()
#: Where built-in engines get their key; the journal that had it is gone.
KEY_NAMES = ("LLAMA_API_KEY", "VLLM_API_KEY")


class Survey:
    """All processes, seen once, and which of them carry our markers."""

    def __init__(self, node_id: str) -> None:
        self.stats: Mapping[int, Stat] = all_stats()
        self.marks = sweep(node_id, self.stats)


def evidence(record: Record, node_id: str, known: Pids, survey: Survey | None = None) -> Identified:
    """What is there of this record's processes; `error` where nobody could look."""
    try:
        return _evidence(record, known, survey or Survey(node_id))
    except (OSError, ValueError, IndexError) as e:
        return Identified(key=record.key, error=f"cannot look at its processes: {e}")


def _evidence(record: Record, known: Pids, survey: Survey) -> Identified:
    marks = survey.marks.get(record.key, [])
    tree = tree_of(record.pid or 0, record.start_ticks, known, marks, survey.stats)
    leader = _leader(marks) if record.pid is None else None
    own = {record.pid, leader.stat.pid if leader else None}
    return Identified(
        key=record.key,
        leader=tree.leader,
        pid=leader.stat.pid if leader else None,
        start_ticks=leader.stat.ticks if leader else 0,
        others=tuple(sorted(pid for pid in tree.alive if pid not in own)),
        doubtful=tree.doubtful,
        detail=tree.detail,
        # Of whatever is left of it: without its GPUs nobody waits for their memory (F65).
        rebuilt=rebuilt(record.key, leader or marks[0]) if marks and record.partial else None,
    )


def orphans(records: Iterable[Record], survey: Survey, boot_id: str) -> list[Record]:
    """Engines with our markers that no record tells of: each is a record again, as far as its markers go."""
    have = {r.key for r in records}
    out = []
    for key, marks in sorted(survey.marks.items()):
        if key in have:
            continue
        pids = [m.stat.pid for m in marks]
        log.warning(
            "an engine of ours has no record, it is taken up by its markers",
            shard=key[0],
            pids=pids,
        )
        attempt = marks[0].env.get("LLMGW_ATTEMPT", "")
        out.append(
            Record(
                start=rebuilt(key, _leader(marks) or marks[0]),
                state="unknown",
                attempt=int(attempt) if attempt.isdecimal() else 1,
                boot_id=boot_id,
                partial=True,
                api_key=next((v for n in KEY_NAMES if (v := marks[0].env.get(n))), ""),
                error="its record is gone, it was found by its markers",
            )
        )
    return out


def rebuilt(key: Key, mark: Mark) -> Start:
    """The order that started it, as far as its environment tells; how to start it again is not in there."""
    env = mark.env
    shard, incarnation = key
    replica, _, rank = shard.rpartition("/")
    port = env.get("LLMGW_PORT", "")
    return Start(
        shard=shard,
        replica=env.get("LLMGW_REPLICA", replica),
        incarnation=incarnation,
        model=env.get("LLMGW_MODEL", ""),
        profile=env.get("LLMGW_PROFILE", ""),
        rank=int(rank) if rank.isdecimal() else 0,
        fingerprint=env.get("LLMGW_FINGERPRINT", ""),
        gpus=tuple(uuid for uuid in env.get("CUDA_VISIBLE_DEVICES", "").split(",") if uuid),
        port=int(port) if port.isdecimal() else 0,
    )


def _leader(marks: list[Mark]) -> Mark | None:
    """The session's leader among them: the process that was spawned."""
    return next((m for m in marks if m.stat.pid == m.stat.sid), None)
