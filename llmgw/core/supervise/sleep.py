"""An idle engine is put to sleep by its own doors, and woken by them; it keeps its process, its port and its GPUs.

    ready --ordered--> asleep, falling --its word--> asleep
    asleep --ordered--> loading, waking --its word--> loading, proving --one real token--> ready

A kill at any moment finds the step in the journal, and the doors are called again (they do nothing the second time).
One that does not sleep or wake in its time is ended, and control replaces it. A sleeper is never probed, for that might
wake it; after a re-attach it is asked at its own door. May not decide when one sleeps: that is control's.
"""

from __future__ import annotations

from math import inf

from msgspec.structs import replace

from llmgw.core.supervise.attempts import fail
from llmgw.core.supervise.claims import No, refuse_wake
from llmgw.core.supervise.table import move
from llmgw.core.supervise.teardown import begin
from llmgw.core.types.messages import LIVE, STARTING
from llmgw.core.types.node import AgentState, CallDoor, DoorAnswered, DoorName, Effect
from llmgw.core.types.record import Record

#: Naps of a record that gave its memory back, or is about to.
SLEEPS = frozenset({"falling", "asleep"})
#: The most that falling asleep may take: level 1 copies all of the weights to host memory.
SLEEP_S = 120.0
#: How soon a door that gave no answer, or another than hoped for, is tried again.
AGAIN_S = 1.0


def fall_asleep(record: Record, now: float) -> Record | No:
    """The first step of it, or why not. One that sleeps is answered."""
    if record.state == "asleep":
        return record
    start = record.start
    if start.sleep is None:
        return "not_ready", "", f"{start.shard} has no door to be put to sleep by"
    if record.state != "ready" or record.desired != "running":
        why = f"{start.shard} is {record.state}: only what is ready is put to sleep"
        return "not_ready", "", why
    watch = replace(
        record.watch, door_s=now, calling=False, asked=True, due_s=now + SLEEP_S, probing=False
    )
    why = f"sleep ordered, level {start.sleep.level}"
    return replace(move(record, "sleep", why, now), nap="falling", watch=watch)


def wake_up(state: AgentState, record: Record, now: float) -> Record | No:
    """The first step of it, or why not. What is awake already, or on its way, is answered."""
    shard = record.start.shard
    if record.state in STARTING or record.state in LIVE - {"asleep", "draining"}:
        return record
    if record.state != "asleep" or record.nap != "asleep":
        how = "still falling asleep" if record.state == "asleep" else record.state
        return "not_asleep", "", f"{shard} is {how}: only a sleeper is woken"
    return refuse_wake(state, record) or _woken(record, "wake ordered", now)


def _woken(record: Record, why: str, now: float) -> Record:
    """From here on it holds all that it was given; it is not one that served before a restart of ours."""
    record = move(record, "wake", why, now)
    watch = replace(
        record.watch,
        began_s=now,
        due_s=now + record.start.start_timeout_s,
        door_s=now,
        probe_s=now,
        calling=False,
        found=False,
        probing=False,
        probes=(),
        progress=None,
        last_probe="",
    )
    return replace(record, nap="waking", rest_bytes=None, freed_bytes=None, error=None, watch=watch)


def answered(record: Record, event: DoorAnswered, now: float) -> Record:
    if event.attempt != record.attempt or event.which != _wanted(record):
        return record
    watch = replace(record.watch, calling=False, door_s=now + AGAIN_S)
    said = {None: "no answer", True: "it says that it sleeps", False: "it says that it is awake"}
    last = event.detail or said[event.asleep]
    record = replace(record, watch=replace(watch, last_probe=last))
    if event.asleep is None:
        return record
    match event.which:
        case "sleep" if event.asleep:
            rest, freed = event.rest_bytes, event.freed_bytes
            record = replace(record, nap="asleep", rest_bytes=rest, freed_bytes=freed)
            return replace(record, watch=replace(record.watch, asked=True))
        case "wake" if not event.asleep:
            return replace(record, nap="proving", watch=replace(record.watch, probe_s=now))
        case "ask":
            return _known(record, event, now)
        case _:
            return record


def _known(record: Record, event: DoorAnswered, now: float) -> Record:
    """Whether it sleeps, after a re-attach."""
    found = record.nap == "asking"
    if not event.asleep:
        if found:
            return replace(record, nap="", watch=replace(record.watch, probe_s=now))
        return replace(_woken(record, "it was woken, and not by us", now), nap="proving")
    if found:
        record = replace(move(record, "sleep", "found asleep", now), nap="asleep")
    rest = event.rest_bytes if record.rest_bytes is None else record.rest_bytes
    record = replace(record, rest_bytes=rest, watch=replace(record.watch, asked=True))
    if record.desired == "draining":
        return begin(record, "stopped", "a drain was ordered, and it sleeps", now)
    return record


def pursue(record: Record, now: float) -> tuple[Record, tuple[Effect, ...]]:
    """Call the door that is due; give up on one that does not get there in its time."""
    which, watch = _wanted(record), record.watch
    if which is None or watch.calling:
        return record, ()
    if which != "ask" and now >= watch.due_s:
        did = "fall asleep" if which == "sleep" else "wake"
        why = f"it did not {did} in its time: {watch.last_probe or 'nothing was heard of it'}"
        return fail(record, why, now, again=which == "wake"), ()
    if record.nap == "asking" and now >= watch.due_s:
        return replace(record, nap=""), ()  # it is for its probes to say what it is
    if now < watch.door_s:
        return record, ()
    record = replace(record, watch=replace(watch, calling=True))
    return record, (CallDoor(record, which),)


def due_s(record: Record) -> float:
    """When `pursue` has something to do."""
    which, watch = _wanted(record), record.watch
    if which is None or watch.calling:
        return inf
    return watch.door_s if which == "ask" else min(watch.door_s, watch.due_s)


def canary(record: Record) -> bool:
    """Whether it must make a real token before anybody is sent to it."""
    return record.nap == "proving" and record.start.sleep is not None and record.start.sleep.canary


def _wanted(record: Record) -> DoorName | None:
    """The door that the record is at, or None."""
    if record.ending or not record.watch.verified:
        return None
    if record.state == "asleep":
        if record.nap == "falling":
            return "sleep"
        return None if record.watch.asked else "ask"
    if record.state not in STARTING:
        return None
    doors: dict[str, DoorName] = {"waking": "wake", "asking": "ask"}
    return doors.get(record.nap)
