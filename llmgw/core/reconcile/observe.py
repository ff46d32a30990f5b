"""Fold one fact into control's picture; every event is whole in itself and may come twice (A8-A13, A39-A42).

A registration is the complete inventory of its node: what it lacks does not run there. Nothing is decided here; the
only memory kept beside the facts is since when an on-demand model is wanted (A22) and how often a model failed (A67).
"""

from __future__ import annotations

from typing import assert_never

from msgspec.structs import replace

from llmgw.core.drain import ASKED
from llmgw.core.types.messages import LIVE, TERMINAL, NodeReport, Refusal, ShardReport, Start
from llmgw.core.types.routes import Demand
from llmgw.core.types.state import (
    GATEWAY_GONE_S,
    PLACED,
    QUIET_S,
    REFUSAL_HOLD_S,
    REMEMBERED,
    Announced,
    CatalogLoaded,
    Cleared,
    Confirmed,
    Demanded,
    DrainBegun,
    Draining,
    Ending,
    Event,
    Failure,
    GatewayGone,
    GatewayView,
    Node,
    NodeForgotten,
    NodeRegistered,
    Paused,
    Placed,
    Published,
    Refused,
    SessionLost,
    Shard,
    ShardsChanged,
    State,
    Tick,
    Withheld,
)

#: Failures of a model kept for people, beside those that count towards giving it up.
FAILURES_KEPT = 5


def observe(state: State, event: Event, now: float) -> State:
    """The state with one fact more. Pure; the same event twice changes nothing the second time."""
    return settled(_folded(state, event, now), now)


def _folded(state: State, event: Event, now: float) -> State:  # noqa: C901, PLR0911, PLR0912 - one arm per event
    match event:
        case NodeRegistered(report):
            return _registered(state, report, now)
        case ShardsChanged():
            return _changed(state, event, now)
        case SessionLost(name):
            node = state.nodes.get(name)
            if node is None or not node.connected:
                return state
            return _with(state, replace(node, connected=False, lost_s=now))
        case Placed(name, start):
            return _placed(state, name, start, now)
        case Demanded(demand):
            return _demanded(state, demand, now)
        case GatewayGone(name):
            return _without_gateways(state, frozenset({name}))
        case CatalogLoaded(catalog):
            return _derived(replace(state, catalog=catalog, catalog_s=now), now)
        case DrainBegun(incarnation, reason, why):
            return _draining(state, incarnation, Draining(now, reason, why))
        case Published(version, routed, draining):
            return _published(state, version, routed, draining)
        case Announced(incarnations):
            return _announced(state, incarnations, now)
        case NodeForgotten(name):
            return replace(state, nodes={k: v for k, v in state.nodes.items() if k != name})
        case Cleared(model):
            return replace(state, failures={k: v for k, v in state.failures.items() if k != model})
        case Ending():
            return replace(state, ending=True)
        case Paused(why):
            return replace(state, paused=why)
        case Confirmed(incarnations):
            return replace(state, confirmed=state.confirmed | incarnations)
        case Withheld(why):
            return replace(state, withheld=why)
        case Tick():
            silent = (k for k, g in state.gateways.items() if now - g.heard_s >= GATEWAY_GONE_S)
            refused = tuple(r for r in state.refused if r.until_s > now)
            return _without_gateways(replace(state, refused=refused), frozenset(silent))
        case _:
            assert_never(event)


def remembered(state: State, report: NodeReport, *, unreachable: bool) -> State:
    """A node out of the inventory's last picture: expected, not heard yet, its shards held (A47)."""
    shards = tuple(
        Shard(node=report.node, report=s, origin=REMEMBERED, was_live=s.state in LIVE)
        for s in sorted(report.shards, key=_position)
        if s.state not in TERMINAL
    )
    node = Node(
        report=replace(report, shards=()),
        shards=shards,
        expected=True,
        unreachable_before=unreachable,
    )
    return _with(state, node)


def settled(state: State, now: float) -> State:
    """End settling when every expected node has settled, or time is up (A46, A47); it never begins again."""
    if state.settled_s is not None or waiting_for(state, now):
        return state
    return replace(state, settled_s=now)


def waiting_for(state: State, now: float) -> tuple[str, ...]:
    """The nodes settling waits for, or a word for what else; () when it is over."""
    if now - state.started_s >= state.settle_timeout_s:
        return ()
    expected = [n for n in state.nodes.values() if n.expected and not n.unreachable_before]
    missing = tuple(sorted(n.report.node for n in expected if not n.settled))
    if missing:
        return missing
    if expected:
        return ()
    heard = [n for n in state.nodes.values() if n.settled]
    if heard and all(n.report.epoch_seen == 0 for n in heard):
        return ()
    quiet_since = (
        state.last_registered_s if state.last_registered_s is not None else state.started_s
    )
    if heard and now - quiet_since >= QUIET_S:
        return ()
    return ("any node",)


def _registered(state: State, report: NodeReport, now: float) -> State:
    """Adopt then forget, as one step (A8): new facts replace old ones, what is lacking is marked missing."""
    old = state.nodes.get(report.node)
    before = {s.key: s for s in old.shards} if old else {}
    reported = tuple(_recognised(s, before) for s in report.shards)
    shards = tuple(_seen(report.node, s, before, now) for s in sorted(reported, key=_position))
    lacking = tuple(
        replace(s, missing=True)
        for s in before.values()
        if s.believed and not any(s.may_be(n) for n in shards)
    )
    node = Node(
        report=replace(report, shards=()),
        shards=(*shards, *lacking),
        settled=True,
        connected=True,
        expected=old.expected if old else False,
        heard_s=now,
    )
    is_new = old is None or not old.settled
    state = replace(
        _with(state, node),
        last_registered_s=now if is_new else state.last_registered_s,
        refused=tuple(r for r in state.refused if r.node != report.node),
    )
    return _derived(_failures(state, shards, now), now)


def _position(s: ShardReport) -> tuple[object, ...]:
    """Where it stands in its report must not matter (A10), also for two of one name."""
    about = (s.incarnation, s.rank or 0, s.port, s.pid or 0, s.state, s.started_at)
    return (s.shard, *about, s.model, s.profile, s.fingerprint, s.gpus)


def _recognised(report: ShardReport, before: dict[tuple[str, int], Shard]) -> ShardReport:
    """A record its agent cannot read is the one we knew under that name: unreadable is not absent (A39).

    Its file's name tells the shard and mostly the incarnation, never what it holds. Attempt and port stay as reported,
    for the agent's digest is made of them; the port that we know is held beside it.
    """
    if report.state != "unknown" or report.model:
        return report
    same = (
        s.report
        for s in before.values()
        if s.report.shard == report.shard and report.incarnation in ("", s.report.incarnation)
    )
    old = next(same, None)
    if old is None:
        return report
    ports = old.ports | ({"before": old.port} if old.port else {})
    return replace(
        old,
        state="unknown",
        error=report.error,
        attempt=report.attempt,
        port=report.port,
        ports=ports,
    )


def _seen(
    node: str, report: ShardReport, before: dict[tuple[str, int], Shard], now: float
) -> Shard:
    """One reported shard; what this process knew of it stays (a compute once known, since when it is seen)."""
    shard = Shard(node=node, report=report, seen_s=now)
    old = before.get(shard.key)
    live = report.state in LIVE
    ready_s = now if report.state == "ready" else None
    if old is None or old.origin == REMEMBERED:
        was = old is not None and old.was_live
        return replace(shard, was_live=live or was, ready_s=ready_s)
    if report.compute is None and old.report.compute is not None:
        shard = replace(shard, report=replace(report, compute=old.report.compute))
    if report.api_key is None and old.report.api_key is not None:
        kept = replace(shard.report, api_key=old.report.api_key, served_name=old.report.served_name)
        shard = replace(shard, report=kept)
    return replace(
        shard,
        known=True,
        was_live=old.was_live or live,
        seen_s=old.seen_s,
        ready_s=old.ready_s if old.ready_s is not None else ready_s,
    )


def _changed(state: State, event: ShardsChanged, now: float) -> State:
    """What an agent says in between: changed shards, deleted records, devices, refusals."""
    node = state.nodes.get(event.node)
    if node is None or not node.settled:
        return state
    before = {s.key: s for s in node.shards}
    told = (_recognised(s, before) for s in event.shards)
    fresh = tuple(_seen(event.node, s, before, now) for s in told)
    after = before | {s.key: s for s in fresh}
    gone = set(event.gone)
    dropped = {(r.shard, r.incarnation) for r in event.refused}
    shards = tuple(
        s
        for s in after.values()
        if (s.report.shard, s.report.incarnation) not in gone
        and not (s.origin == PLACED and (s.report.shard, s.report.incarnation) in dropped)
    )
    report = replace(
        node.report,
        gpus=node.report.gpus if event.gpus is None else event.gpus,
        foreign=node.report.foreign if event.foreign is None else event.foreign,
    )
    node = replace(node, report=report, shards=shards, connected=True, heard_s=now)
    state = _with(state, node)
    if event.refused:
        state = replace(state, refused=(*state.refused, *_refusals(event.node, event.refused, now)))
    return _derived(_failures(state, fresh, now), now)


def _refusals(node: str, refused: tuple[Refusal, ...], now: float) -> tuple[Refused, ...]:
    return tuple(
        Refused(node, r.resource or "node", now + REFUSAL_HOLD_S, r.why or r.reason)
        for r in refused
    )


def _placed(state: State, name: str, start: Start, now: float) -> State:
    """Held from this moment on: work in flight is held (design.md 2)."""
    node = state.nodes[name]
    report = ShardReport(
        shard=start.shard,
        replica=start.replica,
        incarnation=start.incarnation,
        attempt=start.attempt,
        rank=start.rank,
        world_size=start.world_size,
        model=start.model,
        profile=start.profile,
        fingerprint=start.fingerprint,
        pool=start.pool,
        fabric=start.fabric,
        gpus=start.gpus,
        hcas=start.hcas,
        port=start.port,
        ports=start.ports,
        state="pending",
        resources=start.resources,
    )
    shard = Shard(node=name, report=report, origin=PLACED, known=True, seen_s=now)
    if any(s.key == shard.key for s in node.shards):
        return state
    return _derived(_with(state, replace(node, shards=(*node.shards, shard))), now)


def _demanded(state: State, demand: Demand, now: float) -> State:
    """The whole present state of one gateway; an older message of it changes nothing."""
    old = state.gateways.get(demand.gateway)
    if old is not None and demand.n <= old.demand.n:
        return state
    last_byte = dict(old.last_byte_s) if old else {}
    for replica, age_s in demand.last_byte.items():
        last_byte[replica] = max(last_byte.get(replica, 0.0), now - age_s)
    for replica, count in demand.in_flight.items():
        if count:
            last_byte[replica] = now
    view = GatewayView(demand, now, last_byte)
    wanted = {m: now for m, n in demand.waiting.items() if n and m in state.catalog.models}
    return replace(
        state,
        gateways=state.gateways | {demand.gateway: view},
        wanted_s=state.wanted_s | wanted,
    )


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
    return replace(state, draining=state.draining | {incarnation: old})


def _published(
    state: State, version: int, routed: frozenset[str], draining: frozenset[str]
) -> State:
    """A drain counts from the first table that shows it; one that was never routed from any table."""
    shown = {
        inc: replace(d, version=version)
        if not d.version and (inc in draining or inc not in routed)
        else d
        for inc, d in state.draining.items()
    }
    return replace(state, routed=routed, draining=shown)


def _announced(state: State, incarnations: frozenset[str], now: float) -> State:
    """Forgets, and ends that are recorded, leave the picture; the agent's own record is acknowledged apart."""
    nodes = {
        name: replace(
            node,
            shards=tuple(
                s for s in node.shards if not (s.missing and s.incarnation in incarnations)
            ),
        )
        for name, node in state.nodes.items()
    }
    return _derived(replace(state, nodes=nodes), now)


def _derived(state: State, now: float) -> State:
    """What is kept beside the facts, cut to what still runs.

    An on-demand model that runs has a `wanted` entry; one is made once and never renewed here (A22, A23).
    """
    runs: set[str] = set()
    there: set[str] = set()
    for node in state.nodes.values():
        for shard in node.shards:
            there.add(shard.incarnation)
            model = state.catalog.resolve(shard.report.model) if shard.holds else None
            if model is not None and model.on_demand:
                runs.add(model.name)
    wanted = {m: state.wanted_s.get(m, now) for m in runs}
    waited = {m: t for m, t in state.wanted_s.items() if m not in runs and _waits(state, m)}
    draining = {inc: d for inc, d in state.draining.items() if inc in there}
    confirmed = state.confirmed & there
    return replace(state, wanted_s=wanted | waited, draining=draining, confirmed=confirmed)


def _waits(state: State, model: str) -> bool:
    return any(g.demand.waiting.get(model) for g in state.gateways.values())


def _failures(state: State, shards: tuple[Shard, ...], now: float) -> State:
    """Count each failed incarnation once, under its canonical model (A67): given up already while it is torn down."""
    failures = dict(state.failures)
    for shard in shards:
        report = shard.report
        model = state.catalog.resolve(report.model)
        if model is None or (report.state != "failed" and not report.gave_up):
            continue
        seen = failures.get(model.name, ())
        if any(f.incarnation == shard.incarnation and f.gave_up >= report.gave_up for f in seen):
            continue
        seen = tuple(f for f in seen if f.incarnation != shard.incarnation)
        error = report.error or "failed"
        failure = Failure(
            shard.incarnation, report.profile, now, error, report.gave_up, report.fingerprint
        )
        keep = max((p.restart.max for p in model.profiles), default=0) + FAILURES_KEPT
        by_time = sorted((*seen, failure), key=lambda f: (f.at_s, f.incarnation))  # A10
        failures[model.name] = tuple(by_time[-keep:])
    return replace(state, failures=failures)


def _with(state: State, node: Node) -> State:
    return replace(state, nodes=state.nodes | {node.report.node: node})
