"""`llmgw wake`: a model is wanted as if a request had come for it; or what would become of that, nothing changed (A64).

Answers for: whom a name means, and the decision of the very pass that it set off. It may not decide: the core does, and
the dry run asks the same function with the same facts.
"""

from __future__ import annotations

from typing import Any

from llmgw.control.loop import Control
from llmgw.control.verbs import kept, leading, names, unknown
from llmgw.core import helps
from llmgw.core.asleep import asleep
from llmgw.core.reconcile import beside
from llmgw.core.reconcile.decide import decide
from llmgw.core.reconcile.observe import observe
from llmgw.core.types.catalog import Model
from llmgw.core.types.plan import DrainReplica, NapReplica, Plan, Replica, Spot, StartReplica, Wait
from llmgw.core.types.state import State, Woken

SCHEMA = "llmgw.wake/1"
BEFORE = ", before: "
Json = dict[str, Any]


async def wake(control: Control, name: str, *, dry_run: bool = False) -> Json:
    """`state`: ready, loading, starts, waits, failed, no_room or settling; `evicts`: who goes, or would go, for it."""

    def fold(now: float) -> Json:
        leading(control)
        model = control.state.catalog.resolve(name) if "*" not in name else None
        if model is None:
            unknown("model", name, names(control))
        event = Woken(model.name)
        if dry_run:
            state = observe(control.state, event, now)
            return document(decide(state, now), state, model, now, dry_run=True)
        if model.on_demand:
            why = f"an operator wakes {model.name}"
            control.story.tell("wake", why, model=model.name)
        control.fold(event, now)
        return {"model": model.name}

    def answer(said: Json) -> Json:
        model = control.state.catalog.models[said["model"]]
        if dry_run:
            return said
        now = control.now().mono
        return document(control.plan, control.state, model, now, dry_run=False) | kept(control)

    # Without a pass of its own: a dry run changes nothing, not even when the next pass comes.
    done: Json = await control.ask(fold, answer, urgent=not dry_run)
    return done


def document(plan: Plan, state: State, model: Model, now: float, *, dry_run: bool) -> Json:
    """What the plan has for the model, in one word and one sentence, and with places.

    Its agent may refuse it a moment later for what it was refused for before: whoever asks need not find that out by
    himself.
    """
    word, why, profile, spots, first = _decision(plan, state, model)
    why = f"{why}{_known(state, model, now, word, why)}"
    return {
        "schema": SCHEMA,
        "model": model.name,
        "dry_run": dry_run,
        "state": word,
        "why": why,
        "profile": profile,
        "places": [_place(state, s) for s in spots],
        "evicts": [_evicted(plan, state, replica) for replica in first],
    }


Decision = tuple[str, str, str | None, tuple[Spot, ...], tuple[str, ...]]


def _decision(plan: Plan, state: State, model: Model) -> Decision:
    mine = [a for a in plan.actions if a.model == model.name]
    for a in mine:
        if isinstance(a, StartReplica):
            held = f"; held back: {a.withheld}" if a.withheld else ""
            return ("waits" if held else "starts", f"{a.why}{held}", a.profile, a.spots, ())
    for a in mine:
        if isinstance(a, NapReplica) and a.step == "wake":
            held = f"; held back: {a.withheld}" if a.withheld else ""
            return ("waits" if held else "loading", f"{a.why}{held}", a.profile, (), ())
    there = [r for r in plan.replicas if r.model == model.name and r.kept and not r.going]
    there = [r for r in there if not asleep(r)]  # of one that cannot wake now the plan says why
    for r in sorted(there, key=lambda r: not r.complete_and_ready):
        where = ", ".join(f"{s.report.shard} on {s.node}" for s in r.members)
        if r.complete_and_ready:
            return "ready", f"{where} is {r.state}", r.profile, (), ()
        return "loading", f"{where} is {r.state}{_tries(r)}", r.profile, (), ()
    if state.settling:
        waits = ", ".join(plan.settling_for)
        return "settling", f"settling is not over, it waits for {waits}", None, (), ()
    for a in mine:
        if isinstance(a, Wait):
            return _waits(a), a.why, a.profile, a.spots, a.first
    why = "an operator asked for all engines to end" if state.ending else "nothing is decided yet"
    return "waits", why, None, (), ()


def _tries(replica: Replica) -> str:
    """What its agent has met so far, which starts it again in place."""
    said = (
        f"; attempt {s.report.attempt}{BEFORE}{s.report.error}"
        for s in replica.members
        if s.report.error
    )
    return next(said, "")


def _known(state: State, model: Model, now: float, word: str, why: str) -> str:
    """What is known of it beside that, where it does not run and the sentence does not say so."""
    if word == "waits" and (nor := beside.nor_room(state, model, now)):
        return f"; {nor}"
    told = word == "ready" or BEFORE in why
    last = "" if told else beside.before(state, model, now)
    return f"; it was tried {last}" if last and last.partition(": ")[2] not in why else ""


def _waits(a: Wait) -> str:
    """A file that is not there is no matter of room."""
    if a.hopeless:
        return "failed" if helps.absent(a.why) else "no_room"
    return "failed" if "llmgw clear" in a.why else "waits"


def _place(state: State, spot: Spot) -> Json:
    node = state.nodes.get(spot.node)
    index = {g.uuid: g.index for g in (node.report.gpus if node else None) or ()}
    gpus = [{"uuid": u, "index": index.get(u)} for u in spot.gpus]
    return {"node": spot.node, "rank": spot.rank, "gpus": gpus, "port": spot.port}


def _evicted(plan: Plan, state: State, replica: str) -> Json:
    """`when`: now, ends (it goes, or falls asleep, already), or later (it is busy, loads or has just come up)."""
    for a in plan.actions:
        if not isinstance(a, DrainReplica | NapReplica) or a.replica != replica:
            continue
        if isinstance(a, DrainReplica) or a.step == "doze":
            return _row(a.replica, a.model, "now", a.why)
    row = next((r for r in plan.replicas if r.replica == replica), None)
    under_way = state.draining | state.dozing
    drain = under_way.get(row.incarnation) if row else None
    model = row.model if row else ""
    if drain is not None or (row is not None and (row.going or asleep(row))):
        return _row(replica, model, "ends", drain.why if drain else "on its way out")
    return _row(replica, model, "later", "it is busy, loads or has just come up")


def _row(replica: str, model: str, when: str, why: str) -> Json:
    return {"replica": replica, "model": model, "when": when, "why": why}
