"""The end of a process tree: one TERM, grace, KILL, all of it seen gone, its memory back; only then is it free.

An engine is its whole tree (F65: the API process was dead, a worker held the memory, the next start ran out of it).
What does not die stays held and visible (F67), until an operator releases it by hand: `force` (A43). Signals go to
verified records only; a second TERM makes llama-server drop its streams, so what was sent is journaled before it is
sent. May not decide that something ends: `begin` is told.
"""

from __future__ import annotations

from math import inf

from msgspec.structs import replace

from llmgw.core.supervise.table import move
from llmgw.core.types.node import Effect, Look, Measure, MemorySeen, Signal, TreeSeen
from llmgw.core.types.record import STUCK, Ending, Record, Watch

#: How often the tree is looked at, and less often once KILL did not help.
LOOK_S, STUCK_LOOK_S = 0.25, 2.0
#: After this long without effect a KILL is repeated (a fork may have raced it) and the shard says that it is stuck.
KILL_WAIT_S = 10.0
#: Freed GPU memory: it has stopped falling for so many samples in a row; or nobody can measure it, for so long (A43).
MEASURE_S, MEMORY_SAMPLES, BLIND_S = 0.25, 3, 60.0
#: Begins what a shard says whose memory does not come back, after as long.
LATE = f"{STUCK}all of it is gone"

CAUSE: dict[Ending, str] = {"restart": "retry", "failed": "fail", "stopped": "stop"}


def begin(record: Record, ending: Ending, why: str, now: float) -> Record:
    """Start to tear down what there is of the current attempt; `ending` says what follows."""
    record = move(record, CAUSE[ending], why, now)
    nothing = record.pid is None
    watch = replace(
        record.watch,
        progress=None,
        due_s=inf if record.watch.exited else now,
        look_s=now,
        gone=nothing,
        free=nothing,
    )
    return replace(record, ending=ending, watch=watch)


def grace_s(record: Record) -> float:
    return record.start.stop.grace_s if record.grace_s is None else record.grace_s


def release_s(record: Record) -> float:
    """When an operator's word frees what is still not over: a KILL has its time first, and so has the memory."""
    watch = record.watch
    return (watch.gone_s if watch.gone else watch.kill_s) + KILL_WAIT_S if record.force else inf


def release(record: Record, now: float) -> Record:
    """Stopped by an operator's word, with the pids that nobody saw end; they are strangers from now on (A43, A70)."""
    watch = record.watch
    pids = watch.left or ((record.pid,) if record.pid and not watch.exited else ())
    left = f"pids {_pids(pids)} may still be there" if pids else "nothing of it was seen there"
    if watch.gone:
        left = "all of it is gone, its GPU memory was not seen to come back"
    why = f"released by hand: {left}"
    record = move(record, "released", why, now)
    return replace(_over(record), error=why)


def tree_seen(record: Record, event: TreeSeen, now: float) -> Record:
    """`tree` gathers every pid seen: NVML lists a dead one for a while, and it is then ours, not a stranger."""
    watch = record.watch
    if not record.ending or watch.gone or event.attempt != record.attempt:
        return record
    watch = replace(watch, left=tuple(sorted({*event.alive, *event.doubtful})))
    if not watch.left:
        free = not record.start.gpus and not record.unreadable
        gone = replace(watch, exited=True, gone=True, free=free, gone_s=now, look_s=now)
        return replace(record, watch=gone)
    watch = replace(watch, tree=tuple(sorted({*watch.tree, *event.alive})))
    if event.alive and watch.exited and not record.signalled:
        watch = replace(watch, due_s=now)  # its leader died by itself: the rest is broken
    if not event.alive:
        doubt = f"may still be its processes, not provably, so not signalled: {event.detail}"
        record = replace(record, error=f"pids {_pids(event.doubtful)} {doubt}")
    return replace(record, watch=watch)


def memory_seen(record: Record, event: MemorySeen, now: float) -> Record:
    watch = record.watch
    if not watch.gone or watch.free or event.attempt != record.attempt:
        return record
    if event.used_bytes is None or record.unreadable:  # nobody knows which GPUs to look at
        return replace(record, watch=replace(watch, free=now - watch.gone_s >= BLIND_S))
    falling = watch.used_bytes is None or event.used_bytes < watch.used_bytes
    listed = _listed(record, event)
    steady = 0 if falling or listed else watch.steady + 1
    free = steady >= MEMORY_SAMPLES
    watch = replace(watch, used_bytes=event.used_bytes, steady=steady, free=free)
    record = replace(record, watch=watch)
    if free:
        return replace(
            record, error=(record.error or "").partition(LATE)[0].removesuffix("; ") or None
        )
    return _late(record, event, now) if now - watch.gone_s >= BLIND_S else record


def _listed(record: Record, event: MemorySeen) -> tuple[int, ...]:
    """Of its tree; its leader too: one that died by itself was in no tree that anybody looked at."""
    return tuple(sorted({*event.pids} & {*record.watch.tree, record.pid or 0}))


def _late(record: Record, event: MemorySeen, now: float) -> Record:
    """Held for so long without a word, it would be a riddle why nothing starts there (A43)."""
    if LATE in (record.error or ""):
        return record
    pids = _listed(record, event)
    listed = f"the driver still lists pids {_pids(pids)}" if pids else "it still falls"
    shard = record.start.shard
    said = f"{LATE} for {now - record.watch.gone_s:.0f} s, its GPU memory is not back ({listed})"
    said = f"{said}; its GPUs and ports stay held; llmgw stop --force {shard} frees them"
    return replace(record, error=f"{record.error}; {said}" if record.error else said)


def pursue(record: Record, now: float) -> tuple[Record, tuple[Effect, ...]]:
    """The next step of a tear-down, if it is due."""
    if not record.ending or record.state == "unknown":
        return record, ()
    watch = record.watch
    if watch.free:
        return _finish(record, now), ()
    if now >= release_s(record):
        return release(record, now), ()
    if not watch.gone:
        return _end_tree(record, now)
    if now < watch.look_s:
        return record, ()
    record = replace(record, watch=replace(watch, look_s=now + MEASURE_S))
    return record, (Measure(record),)


def due_s(record: Record) -> float:
    """When `pursue` has something to do."""
    watch = record.watch
    due = watch.look_s if watch.gone else min(watch.look_s, watch.due_s)
    return min(due, release_s(record))


def _end_tree(record: Record, now: float) -> tuple[Record, tuple[Effect, ...]]:
    effects: list[Effect] = []
    if now >= record.watch.due_s:
        record, signal = _signal(record, now)
        effects.append(signal)
    watch = record.watch
    if now >= watch.look_s:
        waits = record.signalled == "kill" or watch.due_s == inf  # nothing more to send: no hurry
        pause = STUCK_LOOK_S if waits else LOOK_S
        record = replace(record, watch=replace(watch, look_s=now + pause))
        effects.append(Look(record))
    return record, tuple(effects)


def _signal(record: Record, now: float) -> tuple[Record, Signal]:
    assert record.watch.verified, f"{record.key} is not verified, it may not be signalled"
    if not record.signalled and not record.watch.exited:
        watch = replace(record.watch, due_s=now + grace_s(record))
        record = replace(record, signalled="stop", watch=watch)
        return record, Signal(record, record.start.stop.signal)
    if record.signalled == "kill":
        still = f"pids {_pids(record.watch.left)} are still there {KILL_WAIT_S:g} s after SIGKILL"
        held = f"its GPUs and ports stay held; llmgw stop --force {record.start.shard} frees them"
        record = replace(record, error=f"{STUCK}{still}; {held}")
    watch = replace(record.watch, due_s=now + KILL_WAIT_S, look_s=now + LOOK_S / 5)
    watch = replace(watch, kill_s=min(watch.kill_s, now))
    record = replace(record, signalled="kill", watch=watch)
    return record, Signal(record, "KILL")


def _finish(record: Record, now: float) -> Record:
    ending = record.ending
    record = replace(_over(record), force=False)
    if ending == "restart":
        return record
    why = "all of it is gone and its memory is back"
    return move(record, "ended" if ending == "stopped" else "failed", why, now)


def _over(record: Record) -> Record:
    """Without its process."""
    watch = Watch(identified=True, story=record.watch.story)
    record = replace(record, nap="", rest_bytes=None, freed_bytes=None)
    return replace(record, pid=None, start_ticks=0, signalled="", ending="", watch=watch)


def _pids(pids: tuple[int, ...]) -> str:
    return ", ".join(map(str, pids))
