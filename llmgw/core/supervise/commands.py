"""What a command does to this node, or why not. Every command is idempotent: repeats change nothing and are answered.

`start` takes a free name, free GPUs, memory and ports (claims.py); `take` makes a hand-started engine ours (take.py);
`drain` and `stop` name an incarnation; `forget` deletes what has ended; `report` fences. A refusal is an answer with a
closed reason and one sentence. Who may command at all is fence.py's. May not perform anything.
"""

from __future__ import annotations

from typing import assert_never

from msgspec.structs import replace

from llmgw.core.supervise.claims import No, is_key, misordered, refuse_start
from llmgw.core.supervise.fence import fence
from llmgw.core.supervise.sleep import fall_asleep, wake_up
from llmgw.core.supervise.table import move
from llmgw.core.supervise.take import left, take
from llmgw.core.supervise.teardown import begin, grace_s
from llmgw.core.types.messages import (
    Command,
    DrainShard,
    ForgetShard,
    Refusal,
    SendReport,
    Start,
    StopShard,
    Take,
    Token,
)
from llmgw.core.types.node import (
    AgentState,
    Changed,
    CommandReceived,
    DeleteRecord,
    Effect,
    Refuse,
    Register,
    StoreToken,
)
from llmgw.core.types.record import Ending, Key, Record, Watch
from llmgw.core.types.sleep import SleepShard, WakeShard

Answer = tuple[AgentState, tuple[Effect, ...]]


def received(state: AgentState, event: CommandReceived, now: float) -> Answer:
    token = fence(state, event, now)
    if not isinstance(token, Token):
        reason, why = token
        return state, (_refusal(event, reason, "", f"{event.command.__struct_config__.tag} {why}"),)
    effects: tuple[Effect, ...] = ()
    if token != state.token:
        state, effects = replace(state, token=token), (StoreToken(token),)
    state, more = _obey(state, event, now)
    return state, effects + more


def _obey(state: AgentState, event: CommandReceived, now: float) -> Answer:
    command = event.command
    match command:
        case Start():
            return _start(state, event, command)
        case Take():
            return _take(state, event, command, now)
        case SendReport():
            return state, (Register(event.control),)
        case DrainShard() | StopShard() | ForgetShard() | SleepShard() | WakeShard():
            pass
        case _:
            assert_never(command)
    key = (command.shard, command.incarnation)
    record = state.records.get(key)
    if record is None:
        return _unknown(state, event, key)
    return _about(state, event, command, record, now)


def _about(
    state: AgentState,
    event: CommandReceived,
    command: DrainShard | StopShard | ForgetShard | SleepShard | WakeShard,
    record: Record,
    now: float,
) -> Answer:
    match command:
        case DrainShard():
            return changed(state, _drain(record, command.reason, now))
        case StopShard():
            return changed(state, _stop(record, command, now))
        case ForgetShard():
            return _forget(state, event, record)
        case SleepShard():
            return _turned(state, event, record, fall_asleep(record, now))
        case WakeShard():
            return _turned(state, event, record, wake_up(state, record, now))
        case _:
            assert_never(command)


def changed(state: AgentState, record: Record) -> Answer:
    """The state with this record in it, and an answer even where nothing is new."""
    return with_record(state, record), (Changed((record.key,)),)


def with_record(state: AgentState, record: Record) -> AgentState:
    return replace(state, records={**state.records, record.key: record})


def _start(state: AgentState, event: CommandReceived, start: Start) -> Answer:
    known = state.records.get((start.shard, start.incarnation))
    if known is not None:
        if start.attempt <= known.attempt:
            return changed(state, known)
        why = f"attempt {start.attempt} of {start.shard} is the agent's to start, it is at {known.attempt}"
        return state, (_refusal(event, "attempt_held", "", why),)
    no = refuse_start(state, start, event.ports_busy, event.room)
    if no is not None:
        return state, (_refusal(event, *no),)
    return changed(state, _begun(state, event, start))


def _begun(state: AgentState, event: CommandReceived, start: Start) -> Record:
    return Record(
        start=replace(start, after=()),  # it waits for nobody any more
        attempt=start.attempt,
        boot_id=state.facts.boot_id,
        api_key=start.api_key or event.fresh_key,
        extra=event.extra,
        watch=Watch(identified=True),
    )


def intended(state: AgentState, event: CommandReceived) -> Record | None:
    """What a start is journaled as before its spawn, should nothing be in its way; None for what is none."""
    start = event.command
    if not isinstance(start, Start) or misordered(start) is not None:
        return None
    return replace(_begun(state, event, start), intent=True)


def _take(state: AgentState, event: CommandReceived, command: Take, now: float) -> Answer:
    known = state.records.get((command.shard, command.incarnation))
    if known is not None:
        return changed(state, known)
    taken = take(state, command, event.by_hand, now)
    if taken.record is not None:
        record = replace(taken.record, extra=event.extra)
        return changed(left(state, command.pid), record)
    assert taken.no is not None
    refused = _refusal(event, *taken.no)
    return state, (replace(refused, refusal=replace(refused.refusal, facts=taken.facts)),)


def _unknown(state: AgentState, event: CommandReceived, key: Key) -> Answer:
    """Nothing of it is here: said, so that a repeat after a lost answer ends. Another incarnation is not meant."""
    shard, incarnation = key
    if not is_key(key):
        return state, (_refusal(event, "bad_name", "", f"{key} names no shard"),)
    others = [r for r in state.records.values() if r.start.shard == shard and not r.ended]
    if others:
        why = f"{shard} is incarnation {others[0].start.incarnation} here, not {incarnation}"
        return state, (_refusal(event, "other_incarnation", "", why),)
    return state, (DeleteRecord(key),)


def _drain(record: Record, reason: str, now: float) -> Record:
    if record.ended or record.desired != "running":
        return record
    why = f"drain ordered: {reason}"
    record = replace(record, desired="draining")
    if record.state in ("ready", "unhealthy"):
        return move(record, "drain", why, now)
    if record.state == "asleep":  # it serves nobody
        return begin(record, "stopped", why, now)
    if record.state == "unknown":
        return replace(record, ending=_no_restart(record))
    if record.state == "pending" and not record.intent:
        return _not_again(record, why, now)
    return record


def _stop(record: Record, command: StopShard, now: float) -> Record:
    """With `force` it is a stop without grace, and what a KILL does not end in its time is released (A43, F67)."""
    if record.ended:
        return record
    grace = record.grace_s if command.grace_s is None else command.grace_s
    forced = record.force or command.force
    record = replace(record, desired="stopped", grace_s=0.0 if forced else grace, force=forced)
    why = f"stop ordered: {command.reason}"
    if record.state == "unknown":
        watch = replace(record.watch, look_s=now)
        return replace(record, ending=_no_restart(record), watch=watch)
    if record.intent:
        return record
    if record.state == "pending":
        record = _not_again(record, why, now)
    elif not record.ending:
        return begin(record, "stopped", why, now)
    if record.signalled == "stop" or (forced and not record.signalled):
        due = min(record.watch.due_s, now + grace_s(record))
        record = replace(record, watch=replace(record.watch, due_s=due))
    return record


def _turned(state: AgentState, event: CommandReceived, old: Record, new: Record | No) -> Answer:
    """With a refusal goes how the shard is: control counts it as asleep, or as waking, already."""
    if isinstance(new, Record):
        return changed(state, new)
    return state, (_refusal(event, *new), Changed((old.key,)))


def _not_again(record: Record, why: str, now: float) -> Record:
    """No next attempt: what is left of the last one is torn down all the same."""
    if not record.ending:
        return begin(record, "stopped", why, now)
    return replace(move(record, "stop", why, now), ending="stopped")


def _no_restart(record: Record) -> Ending:
    return "stopped" if record.ending == "restart" else record.ending


def _forget(state: AgentState, event: CommandReceived, record: Record) -> Answer:
    if not record.ended:
        why = f"{record.start.shard} is {record.state} here, only an ended shard is forgotten"
        return state, (_refusal(event, "still_running", "", why),)
    records = {k: r for k, r in state.records.items() if k != record.key}
    return replace(state, records=records), (DeleteRecord(record.key, record.released),)


def _refusal(event: CommandReceived, reason: str, resource: str, why: str) -> Refuse:
    shard, incarnation = target(event.command)
    refusal = Refusal(
        seq=event.command.seq,
        shard=shard,
        incarnation=incarnation,
        reason=reason,
        resource=resource,
        why=why,
    )
    return Refuse(event.control, refusal)


def target(command: Command) -> Key:
    """What the command is about; ("", "") for the whole node."""
    if isinstance(command, SendReport):
        return ("", "")
    return (command.shard, command.incarnation)
