"""`llmgw adopt NODE:PID --as MODEL/PROFILE`: an engine that somebody started by hand becomes ours (A71).

Answers for: what is compared before anybody is told, one order to the one agent, and what became of it. It may not
decide whether a process may be taken: its agent does, which looks at it. Two calls at once are one.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from msgspec import Struct, to_builtins
from msgspec.structs import replace

from llmgw.control.apply import replica_id, uuid7
from llmgw.control.given import flag, whole
from llmgw.control.loop import Control
from llmgw.control.verbs import at, leading, unknown
from llmgw.core.adopt.foreign import Engine, engines, facts, one_too_many
from llmgw.core.adopt.survey import survey
from llmgw.core.match import served_name, words
from llmgw.core.place import start_message
from llmgw.core.types.by_hand import Fact, Started
from llmgw.core.types.catalog import Model, Profile
from llmgw.core.types.messages import LIVE, TERMINAL, Refusal, Take
from llmgw.core.types.plan import Spot
from llmgw.core.types.state import PLACED, Placed, Shard
from llmgw.errors import EXIT_DIFFERENCE, EXIT_OK, EXIT_UNKNOWN, LlmgwError, UsageError

SCHEMA = "llmgw.takeover/1"
#: A process that was only just started is reported with the next heartbeat of its agent.
SEEN_S = 7.0
#: Its agent looks at it, asks its health and writes it down; then its first probe.
TAKEN_S = 15.0
TICK_S = 0.05
DIFFERS = "stop it and let llmgw start it as the catalog says, or write a profile that says what it runs with"
Json = dict[str, Any]


#: Every answer has all of these.
BLANK: Json = {
    "schema": SCHEMA, "node": "", "pid": 0, "command": "", "port": 0, "gpus": [], "memory": 0,
    "model": "", "profile": "", "facts": [], "taken": False, "already": False, "shard": None,
    "incarnation": None, "state": None, "endpoint": None, "why": None, "hint": None, "exit_code": EXIT_OK,
}  # fmt: skip


class Asked(Struct, frozen=True):
    """Which process as what, and the answer so far."""

    node: str
    engine: Engine
    started: Started
    model: Model
    profile: Profile
    facts: tuple[Fact, ...]

    def document(self, **more: Any) -> Json:
        engine = self.engine
        about = {
            "node": self.node,
            "pid": engine.pid,
            "command": engine.command,
            "port": engine.port,
            "gpus": list(engine.gpus),
            "memory": engine.memory_bytes,
            "model": self.model.name,
            "profile": self.profile.name,
            "facts": to_builtins(self.facts),
        }
        return BLANK | about | more

    def refused(self, why: str, hint: str = "", exit_code: int = EXIT_DIFFERENCE) -> Json:
        return self.document(why=why, hint=hint or None, exit_code=exit_code)


async def takeover(
    control: Control, node: str, pid: int, wanted: str, *, dry_run: bool = False
) -> Json:
    """What is compared, and with all of it alike what became of the order; `dry_run` orders nothing."""
    await _told_of(control, node, pid)

    def fold(now: float) -> Json | asyncio.Task[Json]:
        leading(control)
        model, profile = _meant(control, wanted)
        mine = _ours(control, node, pid)
        if mine is not None:
            return _already(mine, model, profile)
        under_way = control.takeovers.get((node, pid))
        if under_way is not None:
            return under_way
        engine, started = _engine(control, node, pid)
        report = control.state.nodes[node].report
        compared = facts(report, model, profile, engine, started)
        asked = Asked(node, engine, started, model, profile, compared)
        no = _in_the_way(control, asked)
        if no is not None or dry_run:
            return no or asked.document()
        return _ordered(control, asked, now)

    found = await control.ask(fold)
    if isinstance(found, asyncio.Task):
        found = await asyncio.shield(found)
    document: Json = found
    return document


async def _told_of(control: Control, node: str, pid: int) -> None:
    """Until the agent has told of this process, ours or not, or would have."""
    loop = asyncio.get_running_loop()
    give_up = loop.time() + SEEN_S
    while loop.time() < give_up and not control.closing:
        there = control.state.nodes.get(node)
        if there is None or not there.connected or _ours(control, node, pid):
            return
        if any(e.pid == pid and e.started for e in engines(there.report)):
            return
        await asyncio.sleep(TICK_S)


def _meant(control: Control, wanted: str) -> tuple[Model, Profile]:
    name, slash, which = wanted.partition("/")
    model = control.state.catalog.resolve(name)
    if model is None:
        unknown("model", name, sorted(control.state.catalog.models))
    if not slash and len(model.profiles) == 1:
        return model, model.profiles[0]
    profile = model.profile(which)
    if profile is None:
        known = [f"{model.name}/{p.name}" for p in model.profiles]
        if not which:
            msg = f"{wanted} has {len(known)} profiles, and none is named"
            raise UsageError(msg, f"say which: {', '.join(known)}")
        unknown("profile", wanted, known)
    return model, profile


def _ours(control: Control, node: str, pid: int) -> Shard | None:
    """Also as another agent of the same host has it: what was taken over carries nobody's markers."""
    there = control.state.nodes.get(node)
    boot = there.report.boot_id if there else ""
    for name, other in control.state.nodes.items():
        if name == node or (boot and other.report.boot_id == boot):
            found = next((s for s in other.shards if s.holds and s.report.pid == pid), None)
            if found is not None:
                return found
    return None


def _already(shard: Shard, model: Model, profile: Profile) -> Json:
    """Asked for again, it is done; as something else it is a mistake."""
    report = shard.report
    what = f"{report.model}/{report.profile}"
    as_meant = (report.model, report.profile) == (model.name, profile.name)
    why = f"pid {report.pid} on {shard.node} is {report.shard} ({what}) already"
    if not as_meant:
        raise LlmgwError(why, "nothing is to be done", code="already", status=409)
    return _outcome(BLANK, shard) | {
        "node": shard.node,
        "pid": report.pid,
        "port": report.port,
        "gpus": list(report.gpus),
        "model": report.model,
        "profile": report.profile,
        "already": True,
        "why": why,
    }


def _engine(control: Control, node: str, pid: int) -> tuple[Engine, Started]:
    there = control.state.nodes.get(node)
    if there is None:
        unknown("node", node, sorted(control.state.nodes))
    if not control.sessions.reachable(node):
        msg = f"{node} does not answer, so nothing can be taken over there"
        raise LlmgwError(msg, "start its agent", code="node_silent", status=409)
    found = engines(there.report)
    engine = next((e for e in found if e.pid == pid), None)
    if engine is not None and engine.started is not None:
        return engine, engine.started
    known = ", ".join(f"{node}:{e.pid}" for e in found if e.started) or "none"
    if engine is None:
        msg = f"{node} reports no engine with pid {pid} that llmgw did not start"
    elif engine.why:
        msg = f"pid {pid} on {node} {engine.why}"
    else:
        msg = f"pid {pid} on {node} ({engine.command[:80]}) does not listen as an engine of the catalog"
    hint = f"what can be taken over there: {known}"
    raise LlmgwError(msg, hint, code="not_found", status=404)


def _in_the_way(control: Control, asked: Asked) -> Json | None:
    if not all(f.same for f in asked.facts):
        profile = f"{asked.model.name}/{asked.profile.name}"
        return asked.refused(f"it is not what {profile} starts: {words(asked.facts)}", DIFFERS)
    if control.state.settling:
        who = ", ".join(control.plan.settling_for) or "a moment of quiet"
        why = f"control is settling and waits for {who}: the model may run there already"
        return asked.refused(why, "ask again when `llmgw status` shows no settling", EXIT_UNKNOWN)
    full = one_too_many(survey(control.state), asked.model)
    if full:
        name = asked.model.name
        hint = f"llmgw stop {name} first, or raise scaling.max; one too many would be drained"
        return asked.refused(full, hint)
    return None


def _ordered(control: Control, asked: Asked, now: float) -> asyncio.Task[Json]:
    """Placed first, so that no pass starts a copy beside it meanwhile; its agent has the last word."""
    state, node, started = control.state, asked.node, asked.started
    model, profile = asked.model, asked.profile
    replica, incarnation = replica_id(state, model.name), uuid7(control.now().wall)
    spot = Spot(node=node, gpus=asked.engine.gpus, port=started.port)
    placement = (profile.name, (spot,))
    ((_, start),) = start_message(state, model, placement, replica, incarnation)
    weights = profile.weights_on(node)
    default = model.name if "${" in weights else weights
    name = served_name(profile.command, started.argv, default) or model.name
    start = replace(start, served_name=name)
    order = Take(
        shard=start.shard,
        incarnation=incarnation,
        pid=started.pid,
        start_ticks=started.start_ticks,
        start=start,
        template_env=profile.template_env,
    )
    control.fold(Placed(node, start), now)
    control.sessions.send(node, order, now)
    control.story.tell(
        "takeover",
        f"an operator at {at(control)} has pid {started.pid} on {node} taken over as {start.shard}",
        node=node,
        shard=start.shard,
        model=model.name,
        profile=profile.name,
        incarnation=incarnation,
    )
    task = asyncio.ensure_future(_done(control, asked, order))
    control.takeovers[node, started.pid] = task
    task.add_done_callback(lambda _: control.takeovers.pop((node, started.pid), None))
    return task


async def _done(control: Control, asked: Asked, order: Take) -> Json:
    """Its agent's no, or its state once its first probe is over."""
    refusals: list[Refusal] = []

    def hear(refusal: Refusal) -> None:
        if (refusal.shard, refusal.incarnation) == (order.shard, order.incarnation):
            refusals.append(refusal)

    control.on_refusal.append(hear)
    try:
        shard = await _settled(lambda: _reported(control, asked.node, order), refusals)
    finally:
        control.on_refusal.remove(hear)
    if refusals:
        said = refusals[0]
        document = asked.refused(said.why or said.reason, DIFFERS if said.facts else "")
        seen = [f for f in said.facts if f.what not in {g.what for g in asked.facts}]
        return document | {"facts": to_builtins((*asked.facts, *seen))}
    if shard is None:
        why = f"{asked.node} has not answered in {TAKEN_S:g} s; what was asked may still be done"
        return asked.refused(why, "`llmgw status` shows it", EXIT_UNKNOWN)
    return _outcome(asked.document(), shard)


async def _settled(look: Callable[[], Shard | None], refusals: list[Refusal]) -> Shard | None:
    loop = asyncio.get_running_loop()
    give_up = loop.time() + TAKEN_S
    while not refusals and loop.time() < give_up:
        shard = look()
        if shard is not None and shard.report.state in LIVE | TERMINAL:
            return shard
        await asyncio.sleep(TICK_S)
    return look()


def _reported(control: Control, node: str, order: Take) -> Shard | None:
    there = control.state.nodes.get(node)
    key = (order.shard, order.incarnation)
    for shard in there.shards if there else ():
        if (shard.report.shard, shard.incarnation) == key and shard.origin != PLACED:
            return shard
    return None


def _outcome(document: Json, shard: Shard) -> Json:
    report = shard.report
    failed = report.state in TERMINAL
    return document | {
        "taken": True,
        "shard": report.shard,
        "incarnation": report.incarnation,
        "state": report.state,
        "endpoint": report.endpoint,
        "why": report.error,
        "exit_code": EXIT_DIFFERENCE if failed else EXIT_OK,
    }


def parsed(body: Json) -> dict[str, Any]:
    """What of a request `takeover` is called with."""
    node, pid, wanted = body.get("node"), whole(body, "pid"), body.get("as")
    if not isinstance(node, str) or type(pid) is not int or not isinstance(wanted, str):
        msg = "a takeover names a node, a pid and what the process is"
        raise UsageError(msg, '{"node": "box2", "pid": 4242, "as": "MODEL/PROFILE"}')
    dry_run = flag(body, "dry_run")
    return {"node": node, "pid": pid, "wanted": wanted, "dry_run": dry_run}
