"""What an operator orders of the whole fleet: pause and resume, confirm, clear, forget, end (A43-A49, A67).

Answers for: his word as a fact in the picture, kept over restarts before he is answered, and told as an event. It may
not decide what follows from it.
"""

from __future__ import annotations

from typing import Any, NoReturn

from llmgw.control.looks import fresh_plan
from llmgw.control.loop import Control
from llmgw.control.settings import DIGEST
from llmgw.core import learn
from llmgw.core import names as wording
from llmgw.core.helps import SHOWN
from llmgw.core.names import plain
from llmgw.core.types.state import Cleared, Confirmed, Ending, NodeForgotten, Paused
from llmgw.errors import LlmgwError, UsageError
from llmgw.wire.plan import blocked_digest, plan_digest

#: An operator's reason is a remark in a line, not a text.
WHY_CHARS = 200

Json = dict[str, Any]


def leading(control: Control) -> None:
    """Nobody is told that something is done by a control that may not do it, nor keep it."""
    if not control.acting:
        msg = f"control does not lead now: {control.blocked or 'the time of its lease is over'}"
        raise LlmgwError(msg, "ask again in a moment", code="not_leading", status=503)


def unknown(what: str, name: str, known: list[str]) -> NoReturn:
    """Of what `status` shows."""
    raise wording.unknown(what, name, known, SHOWN)


def at(control: Control) -> str:
    """The time for sentences that stay: to the second, of one zone."""
    now = control.now()
    return f"{now.iso(now.mono)[:19]}Z"


def kept(control: Control) -> Json:
    """`warning`: why the word would not outlive this control, null while it does."""
    return {"warning": control.keeper.problem or None}


async def pause(control: Control, why: str = "") -> Json:
    """From here on nothing is ended that nobody asked for (A48); over restarts too, until `resume`."""

    def fold(now: float) -> str:
        leading(control)
        if why or not control.state.paused:
            remark = plain(why, WHY_CHARS)
            said = f"since {at(control)} by the operator" + (f": {remark}" if remark else "")
            control.story.tell("paused", f"paused {said}", level="warning")
            control.fold(Paused(said), now)
        return control.state.paused

    said = await control.ask(fold)
    return {"paused": said} | kept(control)


async def resume(control: Control) -> Json:
    """`was`: what it was paused for; null where it was not."""

    def fold(now: float) -> str:
        leading(control)
        was = control.state.paused
        if was:
            control.story.tell("resumed", f"an operator resumed; it had been paused {was}")
            control.fold(Paused(""), now)
        return was

    was = await control.ask(fold)
    return {"paused": None, "was": was or None} | kept(control)


async def confirm(control: Control, digest: str) -> Json:
    """Let happen what was shown under this digest: what the guard holds back, or the whole plan (A49, A56)."""
    if not DIGEST.fullmatch(digest):
        msg = f"{digest[:80]!r} is no digest"
        raise UsageError(
            msg, "`llmgw status` shows what can be confirmed: sha256: and 64 hex digits"
        )

    def fold(now: float) -> Json:
        leading(control)
        blocked = control.plan.blocked
        mine = blocked_digest(blocked) if blocked else ""
        whole = digest != mine
        if whole and digest not in _plans(control, now):
            raise _other(control, digest, mine)
        names = {r.incarnation: r.replica for r in control.found.replicas}
        some = blocked.incarnations if blocked else frozenset()
        engines = sorted(names.get(i, i) for i in some)
        about = f": {', '.join(engines)}" if engines else ""
        control.story.tell("confirmed", f"an operator confirmed {digest}{about}", digest=digest)
        control.fold(Confirmed(some), now)
        if whole and control.gate.closed:
            control.fold(control.gate.opened(), now)
        return {"confirmed": digest, "engines": engines, "paused": control.state.paused or None}

    said: Json = await control.ask(fold)
    return said | kept(control)


def _plans(control: Control, now: float) -> tuple[str, ...]:
    """Digests under which the plan of this moment was shown: by the dry run, and by `--require-plan`.

    Only while something waits for a yes. The two differ where an engine was lost since the start.
    """
    gate = control.gate
    if control.state.settling or not (control.plan.blocked or gate.closed):
        return ()
    shown = plan_digest(fresh_plan(control, control.catalogs.catalog, now)[0])
    if not gate.closed:
        return (shown,)
    return (shown, gate.look(control.state, now))


def _other(control: Control, digest: str, blocked: str) -> LlmgwError:
    """What could be confirmed instead, as of now."""
    present = control.gate.found if control.gate.closed else blocked
    if control.state.settling:
        msg, hint = "settling is not over, there is no plan to confirm yet", "ask again in a moment"
    elif present:
        msg = f"{digest[:80]} is not what waits to be confirmed: that is {present}"
        hint = f"look at it: `llmgw adopt --dry-run`; then `llmgw confirm {present}`"
    else:
        msg, hint = "nothing is blocked, so there is nothing to confirm", ""
    return LlmgwError(msg, hint, code="other_digest", status=409)


async def clear(control: Control, name: str) -> Json:
    """Forget the failures of a model, and what its runs held; named by itself, an alias or one of its replicas."""

    def fold(now: float) -> Json:
        leading(control)
        model = _model_of(control, name)
        failures = len(control.state.failures.get(model, ()))
        held = learn.peak_bytes(control.state, model)
        known = control.state.catalog.resolve(model) is not None
        if failures or held:
            then = "it may start again" if known else "it is not in the catalog any more; forgotten"
            why = f"an operator cleared {model}: {then}"
            control.story.tell("clear", why, model=model)
            control.fold(Cleared(model), now)
        about = {"model": model, "failures": failures, "learned": held}
        return about | {"in_catalog": known}

    said: Json = await control.ask(fold)
    return said


def _model_of(control: Control, name: str) -> str:
    found = control.state.catalog.resolve(name)
    if found is not None:
        return found.name
    for r in control.found.replicas:
        if name in (r.replica, r.incarnation, r.model):  # a model may be gone from the catalog
            return r.model
    if name in control.state.failures:  # and nothing of it is there any more either
        return name
    unknown("model or replica", name, names(control))


def names(control: Control) -> list[str]:
    """Everything an operator may call a model, a replica or a shard by."""
    models = control.state.catalog.models.values()
    aliases = {a for m in models for a in m.aliases if "*" not in a}
    replicas = {r.replica for r in control.found.replicas}
    shards = {s.report.shard for n in control.state.nodes.values() for s in n.shards}
    return sorted(m.name for m in models) + sorted(aliases) + sorted(replicas) + sorted(shards)


async def forget(control: Control, name: str) -> Json:
    """Remove a node that will not come back; what it ran is not counted any more (A47)."""

    def fold(now: float) -> None:
        leading(control)
        node = control.state.nodes.get(name)
        if node is None:
            unknown("node", name, sorted(control.state.nodes))
        if node.connected:
            msg = f"node {name} is connected and would be back at once"
            raise LlmgwError(msg, "stop its agent first", code="connected", status=409)
        shards = sum(s.holds for s in node.shards)
        why = f"an operator removed node {name}, which was believed to run {shards} shards"
        control.story.tell("node_forgotten", why, level="warning", node=name)
        control.fold(NodeForgotten(name), now)

    await control.ask(fold)
    return {"node": name}


async def end(control: Control) -> Json:
    """Have all engines drained and stopped; says how many still run. Asking again asks only that."""

    def fold(now: float) -> None:
        leading(control)
        if not control.state.ending:
            control.story.tell(
                "ending", "an operator asked for all engines to end", level="warning"
            )
        control.fold(Ending(), now)

    await control.ask(fold)
    running = [s for n in control.state.nodes.values() for s in n.shards if s.holds]
    return {"engines": len(running), "shards": sorted(s.report.shard for s in running)}
