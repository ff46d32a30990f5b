"""After an agent restart: evidence about each record's processes -> verdict -> record (F35-F49).

    boot id differs                        rebooted      everything of it is dead, no pid is looked at (F39, F40)
    could not look                         unverifiable  unknown, held, not signalled, asked again (F45)
    leader at its pid with its start ticks ours          goes on where it was (F35, F46)
    no pid, but a leader with its markers  ours          the agent died between spawn and journal (F43)
    no leader, but live members of it      leftovers     dying: what is left is ended, then its memory checked (F65)
    no leader, perhaps members             unverifiable
    none of these                          gone          failed, exit unobserved; control decides (F37, F38, F44)

A record that cannot be read is held as unknown even when nothing is found: unreadable is not absent (A39); only an
order to stop it frees it then. What cannot be verified is freed by an operator's word alone (A43). Nothing is signalled
from here. May not look at anything itself.
"""

from __future__ import annotations

from typing import Literal, assert_never

from msgspec.structs import replace

from llmgw.core.endpoint import asked_at, endpoint
from llmgw.core.supervise.claims import CONTAINERS
from llmgw.core.supervise.sleep import SLEEPS
from llmgw.core.supervise.table import move
from llmgw.core.supervise.teardown import CAUSE, begin, grace_s, release
from llmgw.core.types.messages import LIVE, Start
from llmgw.core.types.node import Identified, NodeFacts, Told
from llmgw.core.types.record import REBOOTED, Record, Watch

Verdict = Literal["rebooted", "unverifiable", "ours", "leftovers", "gone"]
#: How soon an unverifiable record is asked about again.
AGAIN_S = 10.0


def rebooted(record: Record, boot_id: str) -> bool:
    """Asked before any pid is looked at: after a reboot a pid and even a small start tick may repeat (F40)."""
    return bool(record.boot_id and boot_id) and record.boot_id != boot_id


def judge(record: Record, event: Identified, boot_id: str) -> Verdict:
    if rebooted(record, boot_id):
        return "rebooted"
    if event.error:
        return "unverifiable"
    if event.leader == "same" or event.pid is not None:
        return "ours"
    if event.others:
        return "leftovers"
    if event.doubtful or (record.unreadable and record.desired == "running"):
        return "unverifiable"
    return "gone"


def identified(facts: NodeFacts, record: Record, event: Identified, now: float) -> Record:
    """The record as the evidence has it. What was judged before is asked about again only while it is unknown."""
    if record.watch.identified and record.state != "unknown":
        return _moved(record, event)
    if event.rebuilt is not None and record.partial:
        record = _rebuilt(record, event.rebuilt, event.told)
    verdict = judge(record, event, facts.boot_id)
    story = record.watch.story
    fresh = Watch(identified=True, began_s=now, look_s=now, probe_s=now, due_s=now, story=story)
    record = replace(record, watch=fresh)
    match verdict:
        case "ours":
            return _ours(facts, record, event, now)
        case "leftovers":
            return _leftovers(record, event, now)
        case "unverifiable":
            return _unverifiable(record, event, now)
        case "gone":
            return _gone(record, event.detail, now)
        case "rebooted":
            return _rebooted(record, now)
        case _:
            assert_never(verdict)


def _moved(record: Record, event: Identified) -> Record:
    """A container that somebody started again has another first process; whether it serves, its probes tell."""
    other = event.leader == "same" and event.pid not in (None, record.pid)
    if not (other and record.start.launcher in CONTAINERS and record.state in LIVE):
        return record
    return replace(record, pid=event.pid, start_ticks=event.start_ticks)


def _rebuilt(record: Record, start: Start, told: Told) -> Record:
    """As whole as its markers tell it: a whole order is started again like any other."""
    return replace(
        record,
        start=start,
        attempt=told.attempt,
        started_at=told.started_at,
        artefact=told.artefact,
        api_key=told.api_key,
        partial=not told.whole,
        # Its health check answers in its sleep too: its own door tells.
        nap="asking" if start.sleep is not None else "",
        error=None,
    )


def _ours(facts: NodeFacts, record: Record, event: Identified, now: float) -> Record:
    watch = replace(record.watch, verified=True, found=True)
    if event.pid is not None:
        record = replace(record, pid=event.pid, start_ticks=event.start_ticks)
    record = replace(record, intent=False, watch=watch)
    if record.ending:
        return _resumed(record, now)
    due = replace(watch, due_s=now + record.start.start_timeout_s)
    where = endpoint(event.address or asked_at(facts, record.start), record.start.port)
    record = replace(record, watch=due, endpoint=where)
    if record.state == "pending":
        record = move(record, "spawned", f"found as pid {record.pid} by its markers", now)
    elif record.state == "unknown":
        why = f"pid {record.pid} is verified"
        cause = "sleep" if record.nap in SLEEPS else "identified"
        record = replace(move(record, cause, why, now), error=None)
    if record.desired == "stopped":
        return begin(record, "stopped", "a stop was ordered before", now)
    return record


def _leftovers(record: Record, event: Identified, now: float) -> Record:
    watch = replace(record.watch, verified=True, exited=True, tree=event.others)
    record = replace(record, intent=False, watch=watch)
    if record.ending:
        return _resumed(record, now)
    pids = ", ".join(map(str, event.others))
    why = f"its main process is gone, pids {pids} of it are left; {_unseen(event.detail)}"
    record = replace(record, pid=record.pid or event.others[0])
    return _over(record, why, now)


def _unverifiable(record: Record, event: Identified, now: float) -> Record:
    doubt = f"pids {', '.join(map(str, event.doubtful))} may belong to it" if event.doubtful else ""
    why = event.error or event.detail or doubt
    if record.force:
        return release(replace(record, watch=replace(record.watch, left=event.doubtful)), now)
    if record.state != "unknown":
        record = move(record, "cannot_tell", why, now)
    watch = replace(record.watch, look_s=now + AGAIN_S)
    words = record.error if record.partial else f"cannot be verified, so held: {why}"
    return replace(record, error=words, watch=watch)


def _gone(record: Record, detail: str, now: float) -> Record:
    waiting = record.pid is None and not record.intent
    if record.state == "pending" and waiting and not record.ending:
        return record
    free = waiting or not record.start.gpus
    watch = replace(record.watch, exited=True, gone=True, free=free, gone_s=now)
    record = replace(record, watch=watch)
    if record.ending:
        return _resumed(record, now)
    if record.intent:
        why = f"the agent died before it was started: {detail or 'no process has its markers'}"
        first = not record.started_at
        return replace(_over(replace(record, intent=False, never_ran=first), why, now), pid=None)
    record = _over(record, f"not running when the agent came back: {_unseen(detail)}", now)
    return replace(record, watch=replace(record.watch, gone=True, free=free))


def _rebooted(record: Record, now: float) -> Record:
    """Not even its next attempt: what runs after a reboot is control's decision."""
    watch = replace(record.watch, exited=True, gone=True, free=True, gone_s=now)
    record = replace(record, pid=None, intent=False, watch=watch)
    if record.ending in ("failed", "stopped"):
        return _resumed(record, now)
    return _over(record, REBOOTED, now)


def _over(record: Record, why: str, now: float) -> Record:
    """Ended while nobody watched: as ordered, or failed with no restart by the agent (F37)."""
    ending = record.desired
    return begin(
        replace(record, error=why, exit_code=None),
        "failed" if ending == "running" else "stopped",
        why,
        now,
    )


def _resumed(record: Record, now: float) -> Record:
    """A tear-down goes on: after its TERM with a whole grace from here, never a second TERM."""
    wait = grace_s(record) if record.signalled == "stop" else 0.0
    record = replace(record, watch=replace(record.watch, due_s=now + wait))
    if record.state != "unknown":
        return record
    return move(record, CAUSE[record.ending], "verified again, the tear-down goes on", now)


def _unseen(detail: str) -> str:
    return f"{detail}; nobody saw it exit" if detail else "nobody saw it exit"
