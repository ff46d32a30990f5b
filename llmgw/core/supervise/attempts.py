"""One attempt after another: spawn, what became of it, and whether there is a next one (design.md 4 "Who restarts").

The agent restarts a single-shard engine in place: same incarnation, GPUs and port, attempt + 1, within `restart`;
after its own restart not before a leader is heard (F36). Draining and stopping engines, groups (F77) and engines
whose command is not known are never restarted here. May not touch a process: it returns records and effects.
"""

from __future__ import annotations

from msgspec.structs import replace

from llmgw.core.endpoint import asked_at, endpoint
from llmgw.core.supervise.restarts import exit_words, gave_up_words, retry_s, with_failure
from llmgw.core.supervise.table import move
from llmgw.core.supervise.teardown import begin, tree_seen
from llmgw.core.types.node import AgentState, Effect, Exited, NodeFacts, Spawn, Spawned, SpawnFailed
from llmgw.core.types.record import Record, Watch

#: First probe after a spawn.
FIRST_PROBE_S = 0.005


def spawned(facts: NodeFacts, record: Record, event: Spawned, now: float) -> Record:
    if event.attempt != record.attempt or not record.intent:
        return record
    record = move(record, "spawned", f"attempt {event.attempt} is pid {event.pid}", now)
    record = replace(
        record,
        intent=False,
        pid=event.pid,
        start_ticks=event.start_ticks,
        started_at=record.started_at or event.at,
        artefact=event.artefact or record.artefact,
        endpoint=endpoint(asked_at(facts, record.start), record.start.port),
        watch=Watch(
            identified=True,
            verified=True,
            began_s=now,
            due_s=now + record.start.start_timeout_s,
            probe_s=now + FIRST_PROBE_S,
            story=record.watch.story,
        ),
    )
    if record.desired == "running":
        return record
    return begin(record, "stopped", f"{record.desired} was ordered while it was started", now)


def spawn_failed(record: Record, event: SpawnFailed, now: float) -> Record:
    if event.attempt != record.attempt or not record.intent:
        return record
    record = replace(record, intent=False)
    return fail(record, event.error, now, again=not event.fatal)


def exited(record: Record, event: Exited, now: float) -> Record:
    """The leader is gone: at once, whatever the last probe said."""
    if event.attempt != record.attempt or not record.watch.verified or record.watch.exited:
        return record
    watch = replace(record.watch, exited=True, look_s=now)
    record = replace(record, exit_code=event.code, watch=watch)
    if record.ending:
        return record if event.seen is None else tree_seen(record, event.seen, now)
    if event.lasting and _never_up(record):
        record = replace(record, lasting=record.lasting + 1)
    why = exit_words(event.code, event.last_line, out_of_memory=event.out_of_memory)
    # What a sleeper gave back may be another's by now: where its model runs next is control's to say.
    return fail(record, why, now, again=record.state != "asleep" and record.nap != "asking")


def fail(record: Record, why: str, now: float, *, again: bool = True) -> Record:
    """The attempt is over: tear down what is left of it, then the next one, or the end."""
    if record.desired != "running":
        return begin(replace(record, error=why), "stopped", why, now)
    restart = record.start.restart
    record = replace(record, failures=with_failure(record, now))
    count = len(record.failures)
    start = record.start
    known = not record.partial and (start.command or start.image)  # too long for a marker (F43)
    if again and restart.max and known and record.start.world_size == 1:
        if count < restart.max and not _proved(record):
            return begin(replace(record, error=why), "restart", why, now)
        record = replace(record, gave_up=True)
        why = gave_up_words(record, count, why)
    return begin(replace(record, error=why), "failed", why, now)


def _never_up(record: Record) -> bool:
    """In this attempt: not even before this agent took it up again, or it fell asleep."""
    return record.state in ("starting", "loading") and not (record.watch.found or record.nap)


def _proved(record: Record) -> bool:
    """Each attempt ended for what no repeat mends, the second proved that it was no fluke: no back-off for more.

    One that was up, or failed otherwise, goes by the usual rule: what it was started from may be changing just now.
    """
    return 1 < record.attempt == record.lasting


def pursue(state: AgentState, record: Record, now: float) -> tuple[Record, tuple[Effect, ...]]:
    """Spawn the next attempt when it is due. Its intent is journaled before, by the order of effects (F43)."""
    if now < due_s(state, record):
        return record, ()
    gone = lost_gpu(state, record) if record.failures else ""
    if gone:  # with its GPU out of sight an engine would come up on the CPU
        why = f"not started again, {gone}; before: {record.error}"
        return fail(record, why, now, again=False), ()
    attempt = record.attempt + bool(record.failures)
    record = replace(record, attempt=attempt, intent=True, exit_code=None, by_hand=False)
    return record, (Spawn(record),)


def lost_gpu(state: AgentState, record: Record) -> str:
    """The first of its GPUs that is gone (F72), in words; unknown devices are no proof (F59).

    One that is merely not for new work still computes: what runs there is not ended for it.
    """
    if state.gpus is None:
        return ""
    there = {g.uuid for g in state.gpus if not g.lost}
    gone = next((uuid for uuid in record.start.gpus if uuid not in there), "")
    return f"GPU {gone} is lost (fell off the bus?)" if gone else ""


def due_s(state: AgentState, record: Record) -> float:
    """When `pursue` has something to do."""
    if not _waits(record) or held_back(record) or (record.failures and not state.control_heard):
        return float("inf")
    return retry_s(record)


def held_back(record: Record) -> bool:
    """It leads a group whose workers must listen first, and has not met them all yet (workers.py)."""
    return _waits(record) and bool(record.start.start_order) and not record.watch.met


def _waits(record: Record) -> bool:
    return record.state == "pending" and not record.intent and not record.ending
