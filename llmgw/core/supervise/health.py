"""Is it up? Loading, ready, unhealthy: from probes, k of n and never one.

After the first answer the listener must be ours: a successful bind proves nothing while engines use SO_REUSEPORT
(A45, F70). May not stop an engine for failing probes: that is control's health policy; a newcomer on a stranger's
port, an engine on a lost GPU and one that does not come up in time end here.
"""

from __future__ import annotations

from math import inf

from msgspec.structs import replace

from llmgw.core.supervise.attempts import fail, lost_gpu
from llmgw.core.supervise.sleep import canary
from llmgw.core.supervise.table import UP, move
from llmgw.core.types.messages import LISTENS
from llmgw.core.types.node import AgentState, Effect, Probe, Probed
from llmgw.core.types.record import Record

#: Probing a newcomer: a share of the time it took so far, so that waiting adds little to any engine's own start.
QUICK_S, LOADING_S, SHARE = 0.002, 0.25, 0.03
#: Probing what is up: all of a node at the same moments, so that fifty engines wake their agent once, not fifty times.
STEADY_S = 2.0
#: Where readiness asks for a token (`ready.token`) what is up is asked for one so often, and again at once when it made
#: none: `/health` stays 200 while a rank hangs (engines.md 5, F64).
TOKEN_S = 15.0

_COMING_UP = frozenset({"starting", "loading"})
#: Where one that only listens is not asked again.
_SETTLED = frozenset({"ready", "draining"})


def probed(state: AgentState, record: Record, event: Probed, now: float) -> Record:
    if event.attempt != record.attempt or record.ending or record.state not in UP:
        return record
    if record.nap and not record.watch.probing:
        return record  # asked before it slept
    asked = record.watch.token and event.outcome == "ok"
    watch = replace(
        record.watch,
        probing=False,
        token_s=now + TOKEN_S if asked else record.watch.token_s,
        last_probe=event.detail or event.outcome,
        owned=record.watch.owned or (event.outcome == "ok" and event.owner != "other"),
    )
    record = replace(record, watch=watch)
    if record.state in _COMING_UP:
        return _coming_up(record, event, now)
    return _up(state, record, event, now)


def _coming_up(record: Record, event: Probed, now: float) -> Record:
    pause = min(max(SHARE * (now - record.watch.began_s), QUICK_S), LOADING_S)
    record = replace(record, watch=replace(record.watch, probe_s=now + pause))
    if event.outcome == "loading":
        return _loading(record, event, now)
    if event.outcome != "ok":
        return record
    if event.owner == "other":
        why = f"port {record.start.port} answers, but it is not ours: {event.detail}"
        return fail(record, why, now, again=False)
    return _ready(record, event, now)


def _loading(record: Record, event: Probed, now: float) -> Record:
    """Progress moves the deadline: a long load is not a hung one."""
    before = record.watch.progress
    if record.state == "starting":
        record = move(record, "loading", "it answers that it is loading", now)
        before = None
    if event.progress is None or (before is not None and event.progress <= before):
        return record
    due = now + record.start.start_timeout_s
    return replace(record, watch=replace(record.watch, progress=event.progress, due_s=due))


def _ready(record: Record, event: Probed, now: float) -> Record:
    watch = replace(record.watch, probes=(True,), progress=None, probe_s=_steady_s(now))
    record = replace(record, nap="", compute=event.compute or record.compute, watch=watch)
    return _is_up(record, "its health check answers", now)


def _is_up(record: Record, why: str, now: float) -> Record:
    record = replace(move(record, "answers", why, now), error=None)
    if record.desired == "draining":
        return move(record, "drain", "a drain was ordered before it was ready", now)
    return record


def _up(state: AgentState, record: Record, event: Probed, now: float) -> Record:
    good = event.outcome == "ok" and event.owner != "other"
    lost = lost_gpu(state, record)
    if not good and lost:
        why = f"{lost}: {event.detail or event.outcome}"
        return fail(record, why, now, again=False)
    ready = record.start.ready
    probes = (*record.watch.probes, good)[-ready.of :]
    bad = probes.count(False)
    # Until one probe succeeded (after a re-attach) ask quickly: an adopted engine that does not answer is unhealthy
    # (F46).
    again = _steady_s(now) if any(probes) else now + LOADING_S
    record = replace(record, watch=replace(record.watch, probes=probes, probe_s=again))
    compute = event.compute or record.compute
    if bad >= ready.failures:
        why = f"{bad} of the last {len(probes)} health probes failed: {record.watch.last_probe}"
        if record.state == "ready":
            record = move(record, "probes_fail", why, now)
        return replace(record, error=why)
    if good and record.state == "unhealthy":
        record = move(record, "answers", f"{bad} of the last {len(probes)} probes failed", now)
    return replace(record, compute=compute, error=None) if good else record


def _steady_s(now: float) -> float:
    return (now // STEADY_S + 1) * STEADY_S


def pursue(record: Record, now: float) -> tuple[Record, tuple[Effect, ...]]:
    """Probe when it is time; give up on a start that takes too long without progress."""
    if not _watched(record):
        return record, ()
    watch = record.watch
    coming = record.state in _COMING_UP
    if not record.start.health:
        return _worker_runs(record, now), ()
    if record.start.health == LISTENS and record.state in _SETTLED:
        return record, ()
    if coming and now >= watch.due_s:
        timeout = f"{record.start.start_timeout_s:g} s"
        why = (
            f"not ready after {timeout} without progress; last probe: {watch.last_probe or 'none'}"
        )
        if not watch.found or record.nap:  # nobody was sent to one that wakes
            return fail(record, why, now), ()
        # Whether it serves, too busy to answer, control hears from gateways (F64).
        record, coming = replace(move(record, "overdue", why, now), error=why), False
        watch = record.watch
    if watch.probing or now < watch.probe_s:
        return record, ()
    token = record.start.ready.token and (coming or now >= watch.token_s)
    token = token or canary(record)
    record = replace(record, watch=replace(watch, probing=True, token=token))
    return record, (Probe(record, check=coming or not watch.owned, token=token),)


def _worker_runs(record: Record, now: float) -> Record:
    """A rank that answers to nobody is up while its process is: rank 0 comes up only once all of them have met."""
    if record.state not in _COMING_UP:
        return record
    return _is_up(record, f"it runs; rank 0 speaks for {record.start.shard}", now)


def due_s(record: Record) -> float:
    """When `pursue` has something to do."""
    not_asked = record.state not in _COMING_UP and not record.start.health
    not_asked = not_asked or (record.start.health == LISTENS and record.state in _SETTLED)
    if not _watched(record) or not_asked:
        return inf
    probe = inf if record.watch.probing else record.watch.probe_s
    return min(probe, record.watch.due_s) if record.state in _COMING_UP else probe


def _watched(record: Record) -> bool:
    """Neither a sleeper, which a probe must not wake, nor one that is only being woken, or may sleep."""
    up = record.state in UP and not record.ending and record.watch.verified
    return up and record.nap not in ("waking", "asking")
