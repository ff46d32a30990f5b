"""A leader whose workers come first (`start_order: workers_first`): it is spawned once every other rank listens.

Its agent has the order from the start and asks the workers itself, from where the engine will and at the addresses that
it will use (engines.md 5: a llama-server started before its ggml-rpc-server gives up at once). So nothing is left to be
sent later: control, and each agent, may be restarted in between. Knocking ends with the first whole answer, for an
RPC server takes one client at a time. May not start anything: `attempts` does.
"""

from __future__ import annotations

from math import inf

from msgspec.structs import replace

from llmgw.core.supervise.attempts import fail, held_back
from llmgw.core.types.node import Effect, Knock, Knocked
from llmgw.core.types.record import Record

#: Between two knocks: a share of the time it took so far, within these.
QUICK_S, SLOW_S, SHARE = 0.05, 2.0, 0.1


def knocked(record: Record, event: Knocked, now: float) -> Record:
    if event.attempt != record.attempt or not held_back(record):
        return record
    watch = replace(record.watch, knocking=False)
    if not event.missing:
        return replace(record, error=None, watch=replace(watch, met=True))
    waited_s = now - watch.began_s
    pause_s = min(max(SHARE * waited_s, QUICK_S), SLOW_S)
    why = f"waits for its workers: {'; '.join(event.missing)}"
    return replace(record, error=why, watch=replace(watch, knock_s=now + pause_s))


def pursue(record: Record, now: float) -> tuple[Record, tuple[Effect, ...]]:
    """Knock when it is time; give up after as long as the start itself may take."""
    if not held_back(record):
        return record, ()
    watch = record.watch
    if not watch.give_up_s:
        watch = replace(watch, began_s=now, give_up_s=now + record.start.start_timeout_s)
        record = replace(record, watch=watch)
    if now >= watch.give_up_s:
        why = f"not started in {record.start.start_timeout_s:g} s: {record.error or 'its workers do not answer'}"
        return fail(record, why, now), ()
    if watch.knocking or now < watch.knock_s:
        return record, ()
    record = replace(record, watch=replace(watch, knocking=True))
    return record, (Knock(record),)


def due_s(record: Record) -> float:
    if not held_back(record):
        return inf
    watch = record.watch
    return min(inf if watch.knocking else watch.knock_s, watch.give_up_s)
