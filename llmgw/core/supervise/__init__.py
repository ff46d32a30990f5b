"""The agent's decisions: `supervise(state, event, now) -> (state, effects)`, pure.

Theory. An event is folded into the state (commands.py, attempts.py, workers.py, health.py, sleep.py, teardown.py,
reattach.py); then every record is asked what is due (the `pursue` functions), level-triggered: nothing remembers what
it asked for beyond what a record holds. A journal write is not ordered by hand anywhere: a record whose journaled part
differs from before is written, before any other effect. Laws, each a property in tests/core/test_supervise.py:

1. At most one spawn a (shard, attempt), its intent journaled before; one attempt at a time.
2. Nothing is signalled that is not verified ours; nothing at all from re-attach; one TERM a process, ever.
3. What a record holds is free only when its tree is seen gone and its memory is back.
4. Draining, stopped and given-up shards are never started again.
5. A command of a lower epoch, another leader or another session changes nothing.
"""

from __future__ import annotations

from collections.abc import Iterable
from math import inf
from typing import assert_never

from msgspec.structs import replace

from llmgw.core.supervise import attempts, health, peak, sleep, teardown, workers
from llmgw.core.supervise.commands import received, with_record
from llmgw.core.supervise.fence import heard, obeyed
from llmgw.core.supervise.reattach import identified
from llmgw.core.supervise.report import shard_report
from llmgw.core.types.messages import Token
from llmgw.core.types.node import (
    About,
    AgentState,
    Changed,
    CommandReceived,
    DeleteRecord,
    DoorAnswered,
    Effect,
    Event,
    Exited,
    GpusSeen,
    Identified,
    Identify,
    Knocked,
    MemorySeen,
    NodeFacts,
    Probed,
    Refuse,
    Register,
    Renewed,
    SessionLost,
    SessionOpened,
    Spawned,
    SpawnFailed,
    StoreToken,
    Tick,
    TreeSeen,
    WriteRecord,
)
from llmgw.core.types.record import Key, Record, Watch

_NO_WATCH = Watch()


def initial_state(
    facts: NodeFacts, records: Iterable[Record] = (), token: Token | None = None
) -> AgentState:
    """The state a new agent process starts with: what the journal says. Ask `Identify` of `unidentified` next."""
    known = {
        r.key: replace(r, watch=Watch(identified=r.ended))
        for r in sorted(records, key=lambda r: r.key)
    }
    return AgentState(facts=facts, records=known, token=token)


def unidentified(state: AgentState) -> tuple[Record, ...]:
    """What re-attach still has to say something about."""
    return tuple(r for r in state.records.values() if not r.watch.identified)


def supervise(state: AgentState, event: Event, now: float) -> tuple[AgentState, tuple[Effect, ...]]:
    """Fold one fact in and say what is due now. Effects are in the order in which they must be performed."""
    after, said = _fold(state, event, now)
    due: list[Effect] = []
    for key, record in _concerned(state, after, event):
        if record.watch.identified and (not isinstance(event, Identified) or record.watch.gone):
            pursued, effects = _pursue(after, record, now)
            after = with_record(after, pursued) if pursued is not record else after
            due += effects
            assert pursued.key == key
    return after, _ordered(state, after, said, due)


def _concerned(before: AgentState, after: AgentState, event: Event) -> list[tuple[Key, Record]]:
    """All records; of a probe that changed nothing that is journaled its own: fifty engines are probed without end.

    What has become due by time alone is asked for by the next `Tick`.
    """
    if isinstance(event, Probed) and event.key in after.records:
        old, new = before.records[event.key], after.records[event.key]
        if durable(old) == durable(new):
            return [(event.key, new)]
    return list(after.records.items())


def next_due(state: AgentState) -> float:
    """When a `Tick` is wanted at the latest; inf while nothing waits for time."""
    return min((_due_s(state, r) for r in state.records.values()), default=inf)


def durable(record: Record) -> Record:
    """What of a record is worth a write: how far a start is, its next probe tells (P9)."""
    state = "starting" if record.state == "loading" else record.state
    return replace(record, state=state, watch=_NO_WATCH)


def _fold(state: AgentState, event: Event, now: float) -> tuple[AgentState, tuple[Effect, ...]]:
    match event:
        case CommandReceived():
            return received(state, event, now)
        case SessionOpened():
            sessions = {**state.sessions, event.control: event.session}
            seen = state.control_heard or event.session.leader
            token = heard(state, event.control, event.session, now)
            state = replace(
                state, sessions=sessions, control_heard=seen, token=token or state.token
            )
            state = replace(state, obeyed_s=obeyed(state, event.session, now))
            return state, (StoreToken(token),) if token else ()
        case SessionLost():
            sessions = {c: s for c, s in state.sessions.items() if c != event.control}
            obeyed_s = obeyed(state, state.sessions.get(event.control), now)
            return replace(state, sessions=sessions, obeyed_s=obeyed_s), ()
        case GpusSeen():
            gpus, error = event.gpus, event.error
            state = replace(state, gpus=gpus, gpus_error=error, foreign=event.foreign)
            return peak.seen(state, event), ()
        case Renewed():
            return replace(state, facts=replace(state.facts, inspect_pin=event.pin)), ()
        case Tick():
            return state, ()
        case Spawned() | SpawnFailed() | Exited() | Probed() | TreeSeen() | MemorySeen():
            pass
        case Identified() | Knocked() | DoorAnswered():
            pass
        case _:
            assert_never(event)
    record = state.records.get(event.key)
    if record is None:
        return state, ()
    return with_record(state, _about(state, record, event, now)), ()


def _about(  # noqa: PLR0911 - one arm per event
    state: AgentState,
    record: Record,
    event: About,
    now: float,
) -> Record:
    """The record with one fact more."""
    match event:
        case Spawned():
            return attempts.spawned(state.facts, record, event, now)
        case SpawnFailed():
            return attempts.spawn_failed(record, event, now)
        case Exited():
            return attempts.exited(record, event, now)
        case Probed():
            return health.probed(state, record, event, now)
        case Knocked():
            return workers.knocked(record, event, now)
        case TreeSeen():
            return teardown.tree_seen(record, event, now)
        case MemorySeen():
            return teardown.memory_seen(record, event, now)
        case DoorAnswered():
            return sleep.answered(record, event, now)
        case Identified():
            return identified(state.facts, record, event, now)
        case _:
            assert_never(event)


def _pursue(state: AgentState, record: Record, now: float) -> tuple[Record, tuple[Effect, ...]]:
    """All that is due: a start that took too long is torn down, and what is torn down may start again, in one pass."""
    if record.state == "unknown":
        if now < record.watch.look_s:
            return record, ()
        record = replace(record, watch=replace(record.watch, look_s=inf))
        return record, (Identify(record),)
    record, calling = sleep.pursue(record, now)
    record, probing = health.pursue(record, now)
    record, knocking = workers.pursue(record, now)
    record, ending = teardown.pursue(record, now)
    record, starting = attempts.pursue(state, record, now)
    return record, (*calling, *probing, *knocking, *ending, *starting)


def _due_s(state: AgentState, record: Record) -> float:
    if not record.watch.identified:
        return inf
    if record.state == "unknown":
        return record.watch.look_s
    if record.ending:
        return teardown.due_s(record)
    due = (health.due_s(record), workers.due_s(record), sleep.due_s(record))
    return min(*due, attempts.due_s(state, record))


def _ordered(
    before: AgentState, after: AgentState, said: tuple[Effect, ...], due: list[Effect]
) -> tuple[Effect, ...]:
    """Durable first: the token, deletions, the journal; then what acts; what only tells comes last."""
    durables: list[Effect] = [e for e in said if isinstance(e, StoreToken | DeleteRecord)]
    tell: list[Effect] = [e for e in said if isinstance(e, Refuse | Register)]
    told = {k for e in said if isinstance(e, Changed) for k in e.keys}
    for key, record in after.records.items():
        old = before.records.get(key)
        if old is record:
            continue
        if old is None or durable(old) != durable(record):
            durables.append(WriteRecord(record))
        if old is None or shard_report(old) != shard_report(record):
            told.add(key)
    if told:
        tell.append(Changed(tuple(sorted(told))))
    return (*durables, *due, *tell)
