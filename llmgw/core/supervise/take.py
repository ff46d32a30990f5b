"""Taking over an engine that somebody started by hand: what must be so, and the record that makes it ours (A71).

The record is written as one whose process is not verified yet, so that re-attach finds it like any engine of ours: a
kill at any moment leaves it either a stranger or ours. Everything that differs is said at once. Nothing is signalled
here and nothing is started; one that has no health now would be ended for it later, so it is refused.
"""

from __future__ import annotations

from collections.abc import Iterator

from msgspec import Struct
from msgspec.structs import replace

from llmgw.core.endpoint import loopback
from llmgw.core.match import Known, compare, environment, words
from llmgw.core.supervise.claims import No, refuse_take
from llmgw.core.types.by_hand import ByHand, Fact
from llmgw.core.types.messages import Take
from llmgw.core.types.node import AgentState
from llmgw.core.types.record import Record, Watch

#: Of the closed list: everything about the process itself.
NOT_TAKEN = "not_taken"


class Taken(Struct, frozen=True):
    """Either the record, or the refusal with all that was compared."""

    record: Record | None
    no: No | None = None
    facts: tuple[Fact, ...] = ()


def take(state: AgentState, command: Take, seen: ByHand, now: float) -> Taken:
    start = command.start
    if (start.shard, start.incarnation) != (command.shard, command.incarnation):
        why = f"{command.shard} ({command.incarnation}) comes with the order of {start.shard}"
        return Taken(None, ("bad_name", "", why))
    wrong = _other_process(state, command, seen)
    if wrong:
        return Taken(None, (NOT_TAKEN, "", wrong))
    no = refuse_take(state, start)
    if no is not None:
        return Taken(None, no)
    facts = tuple(_facts(state, command, seen))
    if not all(f.same for f in facts):
        why = f"{_named(command, seen)} is not what {start.profile} starts: {words(facts)}"
        return Taken(None, (NOT_TAKEN, "", why), facts)
    story = f"{now:.2f} taken over: {_named(command, seen)} was started by hand"
    record = Record(
        start=start,
        state="unknown",
        attempt=start.attempt,
        pid=command.pid,
        start_ticks=command.start_ticks,
        boot_id=state.facts.boot_id,
        started_at=seen.started_at,
        artefact=seen.weights,
        api_key=seen.api_key,
        by_hand=True,
        # Its health check answers in its sleep too: its own door tells.
        nap="asking" if start.sleep is not None else "",
        watch=Watch(identified=True, look_s=now, story=(story,)),
    )
    return Taken(record, None, facts)


def left(state: AgentState, pid: int) -> AgentState:
    """Without the rows of what is ours now: the next look would leave them out."""
    others = tuple(
        f for f in state.foreign if pid not in (f.pid, f.by_hand.pid if f.by_hand else 0)
    )
    return replace(state, foreign=others)


def _named(command: Take, seen: ByHand) -> str:
    return f"pid {command.pid} ({seen.command[:80]})"


def _other_process(state: AgentState, command: Take, seen: ByHand) -> str:
    """Why it is nobody's to take, or not the one that was meant; "" where it may be."""
    pid = command.pid
    if seen.error:
        return f"pid {pid} cannot be looked at: {seen.error}"
    if not seen.start_ticks:
        return f"there is no process {pid} any more"
    if seen.start_ticks != command.start_ticks:
        ticks = f"start ticks {seen.start_ticks}, not {command.start_ticks}"
        return f"pid {pid} is another process now ({seen.command[:80]}, {ticks})"
    for r in state.records.values():
        if not r.ended and (r.pid, r.start_ticks) == (pid, seen.start_ticks):
            return f"pid {pid} is {r.start.shard} ({r.start.incarnation}) already"
    if seen.marked:
        return f"{_named(command, seen)} belongs to the llmgw agent of {seen.marked}"
    if seen.container:
        return f"{_named(command, seen)} runs in a container, whose runtime answers for it"
    if seen.service:
        stop = f"systemctl stop {seen.service}, and let llmgw start it"
        return (
            f"{_named(command, seen)} belongs to {seen.service}, which would start it again: {stop}"
        )
    return ""


def _facts(state: AgentState, command: Take, seen: ByHand) -> Iterator[Fact]:
    start = command.start
    known = Known(seen.values, seen.weights, seen.cwd)
    yield from compare(start.command, seen.argv, known)
    env = {k: v for k, v in start.env.items() if k not in command.template_env}
    yield from environment(env, seen.env, known)
    yield Fact("user", seen.user_wanted, seen.user, seen.user == seen.user_wanted)
    yield Fact("launcher", "exec", start.launcher, start.launcher == "exec")
    yield Fact("nodes", "1", str(start.world_size), start.world_size == 1)
    gpus = "unknown" if seen.gpus is None else ",".join(seen.gpus) or "none"
    wanted = ",".join(start.gpus) or "none"
    yield Fact("GPUs", wanted, gpus, seen.gpus is not None and {*seen.gpus} == {*start.gpus})
    yield _listener(state, command, seen)
    well = seen.health in ("ok", "loading")
    yield Fact(start.health or "health", "ok", seen.health_detail or seen.health, well)
    key = seen.api_key or start.insecure or loopback(state.facts.address)
    yield Fact(
        "API key", "one" if not key else "any", "a key" if seen.api_key else "none", bool(key)
    )


def _listener(state: AgentState, command: Take, seen: ByHand) -> Fact:
    where = f"{state.facts.address}:{command.start.port}"
    runs = {"ours": where, "other": seen.listener_detail, "": "nothing that can be seen"}
    return Fact("listens on", where, runs[seen.listener], seen.listener == "ours")
