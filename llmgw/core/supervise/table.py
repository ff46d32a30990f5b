"""The shard's transition table (A60), as data: state -> cause -> state. Nothing else changes a shard's state.

`pending` waits for its process (the first, or the next attempt after the last one's remains are gone), `stopping`
is being torn down for good, `unknown` cannot be verified: held, never signalled. A cause that a state does not know
is a bug, and raises with the record's story. May not decide when a cause applies.
"""

from __future__ import annotations

from msgspec.structs import replace

from llmgw.core.types.record import Record

#: What every state with a process, or with one to come, knows.
_ANY = {"retry": "pending", "fail": "stopping", "stop": "stopping", "cannot_tell": "unknown"}

TABLE: dict[str, dict[str, str]] = {
    "pending": {"spawned": "starting", **_ANY},
    "starting": {
        "sleep": "asleep",
        "loading": "loading",
        "answers": "ready",
        "overdue": "unhealthy",
        **_ANY,
    },
    "loading": {"answers": "ready", "overdue": "unhealthy", **_ANY},
    "ready": {"probes_fail": "unhealthy", "drain": "draining", "sleep": "asleep", **_ANY},
    "unhealthy": {"answers": "ready", "drain": "draining", **_ANY},
    # A draining shard never comes back: not by a probe, not by a restart (A65).
    # It serves nobody, so a drain of it is a stop, and what ends it is no reason to load it again (`attempts.exited`).
    "asleep": {"wake": "loading", **_ANY},
    "draining": {"fail": "stopping", "stop": "stopping", "cannot_tell": "unknown"},
    "stopping": {
        "ended": "stopped",
        "failed": "failed",
        # By an operator's word, not because it was seen gone (A43).
        "released": "stopped",
        "cannot_tell": "unknown",
    },
    "unknown": {
        "identified": "starting",
        "sleep": "asleep",
        "released": "stopped",
        "retry": "pending",
        "fail": "stopping",
        "stop": "stopping",
    },
    "stopped": {},
    "failed": {},
}
#: States with a process that is meant to answer.
UP = frozenset({"starting", "loading", "ready", "unhealthy", "draining"})
STORY_LINES = 12


class ImpossibleTransitionError(Exception):
    """A bug: `story` holds the record's last transitions."""

    def __init__(self, record: Record, cause: str) -> None:
        self.story = record.watch.story
        story = "".join(f"\n  {line}" for line in self.story)
        shard, incarnation = record.key
        super().__init__(
            f"{shard} ({incarnation}) cannot go from {record.state} by {cause}; its story:{story}"
        )


def move(record: Record, cause: str, why: str, now: float) -> Record:
    """The record in the state that `cause` leads to; `why` is a sentence for people."""
    to = TABLE[record.state].get(cause)
    if to is None:
        raise ImpossibleTransitionError(record, cause)
    line = f"{now:.2f} {record.state} -{cause}-> {to}: {why}"
    watch = replace(record.watch, story=(*record.watch.story, line)[-STORY_LINES:])
    return replace(record, state=to, watch=watch)
