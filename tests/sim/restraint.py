"""What control must hold back, and what it must not put off, judged from the words of A22-A24, A46-A50 and A56.

Nothing here asks the core whether it held back: it counts what a pass carried out.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from llmgw.core.adopt.survey import Survey
from llmgw.core.types import plan as p
from llmgw.core.types.messages import LIVE, Start
from llmgw.core.types.routes import GATEWAY_GONE_S, RouteTable
from llmgw.core.types.state import Shard, State

if TYPE_CHECKING:
    from tests.sim.controls import Control
    from tests.sim.gateways import Gateway
    from tests.sim.simulation import Simulation

Ended = p.StopReplica | p.DrainReplica | p.RollReplica
#: Ends that people asked for, what a fleet does every day, and what is over with what died: not counted (A49, A34).
ASKED = ("operator", "ending")
#: All that people asked for; a drained place waits for silent gateways like any drain (A65).
WILLED = (*ASKED, "cordon")
DAILY = ("idle", "evict", "not_running")
#: A49: one pass may end so many, or this share, of what runs.
FEW, SHARE = 2, 0.3
#: F64: what an engine that answers nobody has to get well in, and what its agent takes to find that out: three probes
#: that are slow to fail.
HUNG_S, FOUND_S = 60.0, 36.0
#: Between a time that is over and the pass that acts on it.
LAG_S = 12.0


def reason_of(action: p.StartReplica | Ended) -> str:
    if isinstance(action, p.StartReplica):
        return ""
    return "drift" if isinstance(action, p.RollReplica) else action.reason


def withheld(control: Control, begun: Iterable[p.Action]) -> str:
    """What was carried out though an operator paused it, or the plan was another than required; or ""."""
    state = control.picture
    for action in begun:
        if isinstance(action, p.Wait):
            continue
        if isinstance(action, p.NapReplica):
            if action.step != "stay" and (
                state.withheld or (state.paused and action.step != "wake")
            ):
                return f"{action.step} of {action.replica}, though {state.withheld or state.paused}"
            continue
        ends = not isinstance(action, p.StartReplica)
        if reason_of(action) in WILLED:
            continue
        if state.withheld:
            return f"{_words(action)}, though {state.withheld}"
        # Nobody is served by what is drained already.
        over = isinstance(action, p.StopReplica) and action.drained
        if state.paused and ends and not over:
            return f"{_words(action)}, though paused {state.paused}"
    return ""


def beyond_the_guard(control: Control, found: Survey, begun: Iterable[p.Action]) -> str:
    """How many running replicas this pass ends that nobody asked for and nobody confirmed; "" within the limit."""
    confirmed = control.sim.people.confirmed
    unasked = [
        a
        for a in begun
        if isinstance(a, Ended)
        and reason_of(a) not in (*WILLED, *DAILY)
        and not (isinstance(a, p.StopReplica) and a.drained)
        and any(s.was_live for s in a.shards)
        and a.incarnation not in confirmed
    ]
    if len(unasked) <= FEW:
        return ""
    running = sum(any(s.was_live for s in r.members) for r in found.replicas)
    if len(unasked) <= max(FEW, SHARE * running):
        return ""
    return f"{len(unasked)} of {running} in one pass: {', '.join(_words(a) for a in unasked)}"


def _words(action: p.StartReplica | Ended) -> str:
    if isinstance(action, p.StartReplica):
        return f"start of {action.model} ({action.why})"
    return f"{type(action).__name__} of {action.replica} for {reason_of(action)}"


def on_drained(control: Control, node: str, start: Start) -> str:
    """That an operator drained the place of a start; or ""."""
    places = {(node, ""), *((node, gpu) for gpu in start.gpus)} & control.heard.drained
    return f"{start.shard} on {node} {', '.join(start.gpus)}, drained: {places}" if places else ""


def sleepless(control: Control, found: Survey, plan: p.Plan) -> str:
    """An on-demand replica that nobody has used for longer than its timeout, and stays up (A23, A24, A63); or ""."""
    state, now = control.picture, control.now_s
    if now - control.started_s < GATEWAY_GONE_S + LAG_S or state.settling or held_up(state, now):
        return ""
    ends = {a.incarnation for a in plan.actions if isinstance(a, Ended | p.NapReplica)}
    ends |= state.dozing.keys()  # out of the routes already, as one that is drained
    # An upgraded agent that names incarnations again, or a node that was forgotten, brings them anew.
    # One that wakes, for a request or by an operator's word, comes up anew.
    there = {r.incarnation for r in found.replicas if r.state != "asleep"}
    control.heard.up_s = {inc: s for inc, s in control.heard.up_s.items() if inc in there}
    for r in found.replicas:
        model = state.catalog.models.get(r.model)
        if model is None or not r.kept or r.held or not r.complete_and_ready:
            continue
        up_s = control.heard.up_s.setdefault(r.incarnation, now)
        timeout = model.scaling.idle_timeout_s
        if timeout is None or not model.on_demand or model.scaling.min or r.incarnation in ends:
            continue
        if any(g.demand.waiting.get(r.model) for g in state.gateways.values()):
            continue
        used = control.heard.used_s.get(r.replica, 0.0)
        waited = control.heard.waited_s.get(r.model, 0.0)
        since = max(up_s, used, waited, state.catalog_s, control.started_s)
        if now - since > max(timeout, model.scaling.min_up_s) + LAG_S:
            unused = f"last used, wanted or adopted {now - since:.0f} s ago"
            return f"{r.replica} was {unused}, idle_timeout is {timeout:g} s"
    return ""


def hung(control: Control, found: Survey, plan: p.Plan) -> str:
    """An engine that has answered nobody for longer than F64 allows, and nobody ends it; or "".

    Counted while nothing is in the way: its agent is heard and can look, no gateway is silent, nobody said pause.
    """
    state, now, seen = control.picture, control.now_s, control.heard.hung_s
    ends = {a.incarnation for a in plan.actions if isinstance(a, Ended)} | state.draining.keys()
    free = not (state.settling or held_up(state, now) or plan.blocked)
    # Rank 0 speaks for its group: of the others nobody asks anything.
    everywhere = (e for h in control.sim.hosts.values() for e in h.live())
    deaf = {e.key[1]: e for e in everywhere if e.hung and e.leader and not e.start.rank}
    there = {}
    for r in found.replicas if free else ():
        engine = deaf.get(r.incarnation)
        up = r.kept and not r.held and not r.going and r.incarnation not in ends
        # A sleeper is asked nothing, and one that wakes has the time of a start.
        up = up and r.state not in ("asleep", "starting")
        if engine is None or not up or not all(_hears(control, s) for s in r.members):
            continue
        # A node that registers anew may have been silent, and brings the network with it.
        sessions = [control.sessions.of[s.node].id for s in r.members]
        key = " ".join((r.incarnation, *sessions))
        since = there[key] = seen.get(key, now)
        if now - since > HUNG_S + FOUND_S + LAG_S:
            control.heard.hung_s = there
            return f"{engine} has answered nobody for {now - since:.0f} s"
    control.heard.hung_s = there
    return ""


def _hears(control: Control, shard: Shard) -> bool:
    """Its agent is there, can look at it, and this control has a session with it; it has come up."""
    agent, told = control.sim.agents[shard.node], control.sessions.of.get(shard.node)
    link = agent.links.get(control.url)
    heard = agent.up and not agent.frozen and link is not None and told is not None
    came_up = shard.report.state in LIVE and shard.report.desired == "running"
    return heard and link is not None and told is not None and link.session == told.id and came_up


def held_up(state: State, now: float) -> bool:
    """Somebody may wait or be served, for all that is known; or nothing is to be ended."""
    silent = any(
        LAG_S / 2 < now - g.heard_s < GATEWAY_GONE_S + LAG_S for g in state.gateways.values()
    )
    return silent or bool(state.paused or state.withheld)


def taken_away(sim: Simulation, gateway: Gateway, table: RouteTable, before: RouteTable) -> str:
    """A route to an engine that answers, which the table of a control that settles took away (A50, F19); or ""."""
    sender = next((c for c in sim.controls.values() if c.table is table), None)
    if sender is None or sender.state is None or not sender.state.settling:
        return ""
    now = {r.incarnation for m in gateway.table.models.values() for r in m.replicas}
    for model in before.models.values():
        for route in model.replicas:
            engine = sim.engine_at(route.endpoint)
            serves = engine is not None and engine.is_of(route.incarnation)
            if serves and route.state == "ready" and route.incarnation not in now:
                return f"{gateway.name} has no route to {engine} any more, {sender.url} settles"
    return ""
