"""Look at the whole and say what to do: verdicts, replicas, an ordered list of actions, each with `why`.

Level-triggered: nothing is remembered of what was asked before; what is under way shows in the facts. Nothing is
started or
disturbed while settling (A46). The same function serves the loop and the dry run (A52); no flag reaches it.
"""

from __future__ import annotations

from msgspec.structs import replace

from llmgw.core import demand, evict, failed, idle, roll
from llmgw.core.adopt.survey import Survey, survey
from llmgw.core.place import NoRoom, Placement
from llmgw.core.reconcile import move, nap, stale
from llmgw.core.reconcile.ends import drained, end, stoppable
from llmgw.core.reconcile.follow import following
from llmgw.core.reconcile.guard import guarded
from llmgw.core.reconcile.scratch import Pass
from llmgw.core.reconcile.settle import waiting_for
from llmgw.core.types.catalog import Model
from llmgw.core.types.messages import TERMINAL
from llmgw.core.types.plan import (
    NodeView,
    Plan,
    Replica,
    RollReplica,
    Wait,
)
from llmgw.core.types.state import Node, Shard, State


def decide(state: State, now: float, found: Survey | None = None) -> Plan:
    """The plan of this moment. `found` spares a second survey where the caller has one of this very state."""
    found = found or survey(state)
    p = Pass(state, now, found)
    if not state.settling:
        end(p)
        _all_models(p)
    actions, blocked = guarded(state, found, p.actions)
    return Plan(
        nodes=_nodes(state),
        verdicts=found.verdicts,
        replicas=found.replicas,
        actions=actions,
        blocked=blocked,
        settling_for=waiting_for(state, now) if state.settling else (),
        warnings=found.warnings,
        epoch_seen=max((n.report.epoch_seen for n in state.nodes.values()), default=0),
    )


def _nodes(state: State) -> tuple[NodeView, ...]:
    return tuple(
        NodeView(
            node=name,
            answered=node.connected,
            shards=sum(not s.missing for s in node.shards),
            error=_unheard(node),
        )
        for name, node in sorted(state.nodes.items())
    )


def _unheard(node: Node) -> str | None:
    if node.connected:
        return None
    return "no answer" if node.report.reattached else "still re-attaching its engines"


def _all_models(p: Pass) -> None:
    """Starts of all models first, the most important one first; then moves and rolls of what runs; sleeps last."""
    if p.state.ending:
        return
    models = sorted(p.state.catalog.models.values(), key=lambda m: demand.turn(p.state, m))
    for model in models:
        _start(p, model)
    for model in models:
        nap.leave(p, model)
        if not move.away(p, model):
            stale.ended(p, model)
            _roll(p, model)
    for model in models:
        _sleep(p, model)


def _start(p: Pass, model: Model) -> None:
    """Start what is wanted and not there. A held, assembling or pending replica is there (A46, F61)."""
    kept = p.kept.get(model.name, [])
    wanted = demand.wanted(p.state, model, kept, p.now)
    for n in range(len(kept), wanted.count):
        reason = f"{wanted.why}, {n} running"
        sleeper = nap.wakes(p, model, reason)
        if sleeper is not None:
            p.actions.append(sleeper)
            if isinstance(sleeper, Wait):
                return
            continue
        said = _not_yet(p, model)
        answer = NoRoom(model.profiles[0].name, said) if said else p.place(model)
        if isinstance(answer, Placement):
            p.starts.start(model, answer, reason)
            nap.replaced(p, model, reason)
            continue
        if answer.soon:
            p.starts.wait(model, answer, reason, wanted.count - n)
            return
        wait = Wait(model=model.name, profile=model.profiles[0].name, why=f"{reason}; {answer.why}")
        makes_room = n < wanted.first and not said
        if makes_room and (there := following(p, model)) is not None:
            p.starts.follow(model, *there, reason)
            nap.replaced(p, model, reason)
            continue
        p.actions.append(_made_room(p, model, wait) if makes_room else wait)
        return


def _made_room(p: Pass, model: Model, wait: Wait) -> Wait:
    """Who goes for it, and its place held for it once they have gone (A64)."""
    waited_s = demand.waited_s(p.state, model.name, p.now)
    asks = evict.Asks(model, waited_s, wait.why, frozenset(p.waking))
    leaving = p.leaving(announced=True)
    way = evict.way(p.fleet, p.survey.replicas, asks, leaving, p.now)
    for r, why in way.go:
        if not nap.makes_room(p, model, r, why):
            p.actions.append(drained(r, stoppable(r.members), evict.REASON, why))
    if way.hold is not None:
        profile = model.profile(way.hold.profile)
        assert profile is not None
        p.fleet.take(model, profile, way.hold.spots, starts=False)
    spots = way.then.spots if way.then is not None else ()
    return replace(wait, why=way.why, first=way.first, spots=spots, hopeless=way.hopeless)


def _not_yet(p: Pass, model: Model) -> str:
    """Why no start of the model may be tried now: given up, or backing off (A67). What would come then: `beside`."""
    said = failed.gave_up(p.state, model)
    if said:
        return f"failed ({said}); llmgw clear {model.name} lets it start again"
    return failed.backing_off(p.state, model, p.now)


def _roll(p: Pass, model: Model) -> None:
    if not any(r.drift for r in p.kept.get(model.name, [])):
        return
    kept = p.staying(model)
    ending = p.ending(model)
    old = roll.surplus(p.state, model, kept, ending)
    if old is not None:
        why = f"{old.drift}; its replacement is ready"
        p.actions.append(drained(old, stoppable(old.members), "drift", why))
        return
    step = roll.step(p.fleet, model, kept, p.rolls, ending)
    if step is None:
        return
    p.actions.append(step)
    p.rolls += isinstance(step, RollReplica) or bool(step.rolls)
    if isinstance(step, RollReplica):
        p.counted(model, Placement(step.profile, step.spots, step.why))


def _sleep(p: Pass, model: Model) -> None:
    """An on-demand replica beyond `min` that nobody has used for its timeout is put to sleep, or drained (A63)."""
    for r, why in _idle(p, model):
        if not nap.dozes(p, model, r, why):
            p.actions.append(drained(r, stoppable(r.members), "idle", why, asleep=True))
    nap.stays(p, model)


def _idle(p: Pass, model: Model) -> list[tuple[Replica, str]]:
    timeout_s = model.scaling.idle_timeout_s
    if timeout_s is None or p.now < p.state.wanted_s.get(model.name, 0.0) + timeout_s:
        return []
    kept = [r for r in p.kept.get(model.name, []) if not r.held and r.complete_and_ready]
    if len(kept) <= model.scaling.min:
        return []  # nearly always: what leaves need not be looked for
    leaving = p.leaving() | p.dozing  # of this model only what falls asleep for another
    kept = [r for r in kept if r.incarnation not in leaving]
    kept.sort(key=lambda r: (idle.idle_since_s(p.state, r), r.incarnation))
    found = []
    for r in kept[: max(len(kept) - model.scaling.min, 0)]:
        until = idle.idle_until_s(p.state, model, r)
        if until is None or p.now < until or idle.busy(p.state, r, p.now):
            continue
        since = p.now - idle.idle_since_s(p.state, r)
        why = f"idle for {since:.0f} s, idle_timeout is {model.scaling.idle_timeout_s:g} s"
        found.append((r, why))
    return found


def acknowledged(state: State) -> tuple[Shard, ...]:
    """Ended shards whose record the agent may delete: their end is in our picture, or an operator cleared it.

    What gave up stays for people to see and clear, while the catalog has its model.
    Of a group's only shard of a rank not before the others have ended: it is the fact that ends them (A34).
    """
    over = [
        s
        for node in state.nodes.values()
        if node.usable
        for s in node.shards
        if s.report.state in TERMINAL and not s.missing
    ]
    if not over:
        return ()
    recorded = {f.incarnation for failures in state.failures.values() for f in failures}
    alive: dict[str, set[int]] = {}
    for node in state.nodes.values():
        for s in node.shards:
            if s.holds:
                alive.setdefault(s.incarnation, set()).add(s.rank)
    return tuple(
        s
        for s in over
        if s.rank in alive.get(s.incarnation, {s.rank})
        and not (s.report.gave_up and s.incarnation in recorded and _in_catalog(state, s))
    )


def _in_catalog(state: State, shard: Shard) -> bool:
    return state.catalog.resolve(shard.report.model) is not None
