"""Fold one fact into control's picture; every event is whole in itself and may come twice.

What agents say is `inventory`'s, when settling ends is `settle`'s. Nothing is decided here; the only memory kept beside
the facts is since when an on-demand model is wanted (A22), how often a model failed (A67), and what operators said.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import assert_never

from msgspec.structs import replace

from llmgw.core import cordon, demand, hung, learn
from llmgw.core.asleep import dozing, turned
from llmgw.core.drain import ASKED
from llmgw.core.lost import looked
from llmgw.core.reconcile.failures import gave_out
from llmgw.core.reconcile.inventory import changed, placed, registered, wanted
from llmgw.core.reconcile.settle import settled
from llmgw.core.types.routes import GATEWAY_GONE_S, Demand
from llmgw.core.types.state import (
    Announced,
    Answered,
    CatalogLoaded,
    Cleared,
    Confirmed,
    Cordoned,
    Demanded,
    DozeBegun,
    DrainBegun,
    Draining,
    Ending,
    Event,
    GatewayGone,
    GatewayView,
    NodeForgotten,
    NodeRegistered,
    Paused,
    Placed,
    Published,
    SessionLost,
    Shard,
    ShardsChanged,
    State,
    Tick,
    Turned,
    Withheld,
    Woken,
)

#: Times of so many replicas are kept for a gateway before it is looked at which of them are still there.
REPLICAS_KEPT = 1000


def observe(state: State, event: Event, now: float) -> State:
    """The state with one fact more. Pure; the same event twice changes nothing the second time."""
    state = _folded(state, event, now)
    # Looking for everybody who is expected, at each of a thousand registrations, would cost their square.
    due = isinstance(event, Tick) or now - state.started_s >= state.settle_timeout_s
    if not (state.settling and due):
        return state
    over = settled(state, now)
    return over if over.settling else _pruned(over)


def _folded(state: State, event: Event, now: float) -> State:  # noqa: C901, PLR0911, PLR0912 - one arm per event
    match event:
        case NodeRegistered(report):
            return learn.told(registered(state, report, now), report.shards)
        case ShardsChanged():
            return learn.told(changed(state, event, now), event.shards)
        case SessionLost(name):
            node = state.nodes.get(name)
            if node is None or not node.connected:
                return state
            lost = replace(node, connected=False, lost_s=now)
            return replace(state, nodes=state.nodes | {name: lost})
        case Placed(name, start):
            return placed(state, name, start, now)
        case Demanded(told):
            state = _demanded(state, told, now)
            return _gone(state, told.gateway) if told.ended else state
        case GatewayGone(name):
            return _gone(state, name)
        case CatalogLoaded(catalog):
            state = replace(state, catalog=catalog, catalog_s=now)
            return _pruned(wanted(state, _shards(state), now))
        case DrainBegun(incarnation, reason, why):
            if reason == hung.REASON:
                state = gave_out(state, incarnation, why, now)
            state = demand.anew(state, incarnation, now)
            return _draining(state, incarnation, Draining(now, reason, why))
        case DozeBegun(incarnation, why):
            return dozing(state, incarnation, why, now)
        case Turned():
            return turned(state, event)
        case Published(version, routed, draining):
            return _published(state, version, routed, draining)
        case Answered():
            return _answered(state)
        case Announced(incarnations):
            return _announced(state, incarnations)
        case NodeForgotten(name):
            state = cordon.forgotten(state, name)
            return replace(state, nodes={k: v for k, v in state.nodes.items() if k != name})
        case Cleared(model):
            state = _tried_again(learn.forgotten(state, model), model)
            return replace(state, failures={k: v for k, v in state.failures.items() if k != model})
        case Woken(model, over):
            return demand.woke(state, model, now, over=over)
        case Ending():
            return replace(state, ending=True)
        case Paused(why):
            return replace(state, paused=why)
        case Cordoned(name, gpu, why, ended):
            return cordon.told(state, (name, gpu), why, ended)
        case Confirmed(incarnations):
            return replace(state, confirmed=state.confirmed | incarnations)
        case Withheld(why):
            return replace(state, withheld=why)
        case Tick():
            silent = (k for k, g in state.gateways.items() if now - g.heard_s >= GATEWAY_GONE_S)
            refused = tuple(r for r in state.refused if r.until_s > now)
            unheard = state.unheard if now - state.started_s < GATEWAY_GONE_S else frozenset[str]()
            state = replace(state, refused=refused, unheard=unheard)
            state = _without_gateways(state, frozenset(silent))
            return _pruned(looked(demand.lapsed(state, now), now))
        case _:
            assert_never(event)


def _tried_again(state: State, name: str) -> State:
    """What of its profiles was refused is asked for again; what is short on a node is so whoever asks."""
    model = state.catalog.models.get(name)
    prints = {f for p in model.profiles for f in p.fingerprints.values()} if model else set()
    rest = {f"profile {f}" for f in prints}
    return replace(state, refused=tuple(r for r in state.refused if r.resource not in rest))


def _demanded(state: State, told: Demand, now: float) -> State:
    """The whole present state of one gateway; an older message of it changes nothing."""
    old = state.gateways.get(told.gateway)
    if old is not None and told.n <= old.demand.n:
        return state
    last_byte = dict(old.last_byte_s) if old else {}
    for replica, age_s in told.last_byte.items():
        last_byte[replica] = max(last_byte.get(replica, 0.0), now - age_s)
    for replica, count in told.in_flight.items():
        if count:
            last_byte[replica] = now
    answered = dict(old.answered_s) if old else {}
    for replica, age_s in told.answered.items():
        answered[replica] = max(answered.get(replica, 0.0), now - age_s)
    view = GatewayView(told, now, _of_known(state, last_byte), _of_known(state, answered))
    wanted = {m: now for m, n in told.waiting.items() if n and m in state.catalog.models}
    return replace(
        state,
        asked=demand.heard(state, told, now),
        gateways=state.gateways | {told.gateway: view},
        wanted_s=state.wanted_s | wanted,
    )


def _answered(state: State) -> State:
    rested = {n: g for n, g in state.gateways.items() if g.demand.resting}
    if not rested:
        return state
    over = {n: replace(g, demand=replace(g.demand, resting=())) for n, g in rested.items()}
    return replace(state, gateways=state.gateways | over)


def _gone(state: State, gateway: str) -> State:
    unheard = None if state.unheard is None else state.unheard - {gateway}
    return _without_gateways(replace(state, unheard=unheard), frozenset({gateway}))


def _of_known(state: State, times_s: dict[str, float]) -> dict[str, float]:
    """A name is new at each placement, and a gateway may stay for months: what is over is left out, now and then."""
    if len(times_s) <= REPLICAS_KEPT:
        return times_s
    known = {shard.report.replica for shard in _shards(state)}
    return {replica: at_s for replica, at_s in times_s.items() if replica in known}


def _without_gateways(state: State, names: frozenset[str]) -> State:
    """Out of the count: nobody waits or streams there any more.

    When its replicas were last used stays known, else a model falls asleep with the gateway that it served (A63).
    """
    gone = [view for name, view in state.gateways.items() if name in names]
    if not gone:
        return state
    wanted = dict(state.wanted_s)
    for node in state.nodes.values():
        for shard in node.shards:
            model = state.catalog.resolve(shard.report.model)
            if model is not None and model.on_demand:
                used = [v.last_byte_s.get(shard.report.replica, 0.0) for v in gone]
                wanted[model.name] = max(wanted.get(model.name, 0.0), *used)
    gateways = {k: v for k, v in state.gateways.items() if k not in names}
    return replace(state, gateways=gateways, wanted_s=wanted)


def _draining(state: State, incarnation: str, begun: Draining) -> State:
    """Begun once; the operator's word makes another's drain his own: no gateway's silence holds it up (A65)."""
    old = state.draining.get(incarnation, begun)
    if begun.reason in ASKED and old.reason not in ASKED:
        old = replace(old, reason=begun.reason, why=begun.why)
    state = dozing(state, incarnation, "", begun.since_s)
    return replace(state, draining=state.draining | {incarnation: old})


def _published(
    state: State, version: int, routed: frozenset[str], draining: frozenset[str]
) -> State:
    """A drain counts from the first table that shows it; one that was never routed from any table."""
    shown, dozing = (
        {
            inc: replace(d, version=version)
            if not d.version and (inc in draining or inc not in routed)
            else d
            for inc, d in some.items()
        }
        for some in (state.draining, state.dozing)
    )
    return replace(state, routed=routed, draining=shown, dozing=dozing)


def _announced(state: State, incarnations: frozenset[str]) -> State:
    """Forgets, and ends that are recorded, leave the picture; the agent's own record is acknowledged apart.

    Not while settling: what other nodes tell of the same replica is judged by them too, whoever comes first (A10), and
    a group of which one rank is gone goes when settling is over, as the dry run said (A34, A52).
    """
    if state.settling:
        return state
    nodes = {
        name: replace(
            node,
            shards=tuple(
                s for s in node.shards if not (s.missing and s.incarnation in incarnations)
            ),
        )
        for name, node in state.nodes.items()
    }
    return _pruned(replace(state, nodes=nodes))


def _pruned(state: State) -> State:
    """What is kept beside the facts, cut to what still runs or is waited for."""
    left = {m for m in state.wanted_s if not _waits(state, m)}
    watched = bool(state.draining or state.dozing or state.confirmed)
    there: set[str] = set()
    for node in state.nodes.values():
        if not left and not watched:
            break
        for shard in node.shards:
            if watched:
                there.add(shard.incarnation)
            if left and shard.holds:
                model = state.catalog.resolve(shard.report.model)
                if model is not None and model.on_demand:
                    left.discard(model.name)
    wanted_s = {m: t for m, t in state.wanted_s.items() if m not in left}
    if state.settling:  # what the others are about may not have been heard of yet
        return replace(state, wanted_s=wanted_s)
    draining = {inc: d for inc, d in state.draining.items() if inc in there}
    if state.dozing:
        state = replace(state, dozing={i: d for i, d in state.dozing.items() if i in there})
    return replace(state, wanted_s=wanted_s, draining=draining, confirmed=state.confirmed & there)


def _waits(state: State, model: str) -> bool:
    return any(g.demand.waiting.get(model) for g in state.gateways.values())


def _shards(state: State) -> Iterator[Shard]:
    return (s for node in state.nodes.values() for s in node.shards)
