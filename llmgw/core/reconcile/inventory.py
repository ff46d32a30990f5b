"""Facts about nodes and their shards: what agents report, what was remembered of them, what was just placed there.

A registration is the complete inventory of its node: what it lacks does not run there (A8-A13, A39-A42). Each function
costs by the node it is about, never by the fleet: ten thousand shards register one node at a time. Nothing is decided.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from operator import attrgetter
from typing import Any

from msgspec.structs import replace

from llmgw.core.asleep import believed, heeded, late
from llmgw.core.reconcile.failures import absent, counted
from llmgw.core.types.messages import (
    LIVE,
    STARTING,
    TERMINAL,
    NodeReport,
    Refusal,
    ShardReport,
    Start,
)
from llmgw.core.types.state import (
    NAMELESS,
    PLACED,
    REFUSAL_HOLD_S,
    REMEMBERED,
    Node,
    Refused,
    Shard,
    ShardsChanged,
    State,
)
from llmgw.core.weights import NO_WEIGHTS

#: Refusals that say who may command, which ids are taken, or what one process is: the next try is another in that.
_OF_WHO_ASKS = frozenset(
    {
        "lower_epoch",
        "other_leader",
        "two_leaders",
        "other_session",
        "shard_held",
        "attempt_held",
        "not_taken",
    }
)

Before = dict[tuple[str, int], Shard]


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
    return replace(state, nodes=state.nodes | {report.node: node})


def registered(state: State, report: NodeReport, now: float) -> State:
    """Adopt then forget, as one step (A8): new facts replace old ones, what is lacking is marked missing."""
    old = state.nodes.get(report.node)
    before = {s.key: believed(s) for s in old.shards} if old else {}
    shards = _taken_in(report.node, report.shards, before, now)
    if before:
        shards = _with_lacking(shards, before)
    node = Node(
        report=replace(report, shards=()),
        shards=shards,
        settled=True,
        connected=True,
        expected=old.expected if old else False,
        unreachable_before=old.unreachable_before if old else False,
        heard_s=now,
        registered_s=now,
    )
    is_new = old is None or not old.settled
    backup = not state.outdated and _obeyed_a_later_control(state, report)
    state = replace(
        state,
        nodes=state.nodes | {report.node: node},
        last_registered_s=now if is_new else state.last_registered_s,
        outdated=state.outdated or backup,
        unheard=None if backup else state.unheard,
        refused=tuple(r for r in state.refused if r.node != report.node),
    )
    return counted(wanted(state, shards, now), shards, now)


def _obeyed_a_later_control(state: State, report: NodeReport) -> bool:
    return report.epoch_seen > state.epoch_before and report.leader_uuid != state.leader_uuid


def _taken_in(
    node: str, told: tuple[ShardReport, ...], before: Before, now: float
) -> tuple[Shard, ...]:
    """In an order of their own: where they stand in a report must not matter (A10), also for two of one name."""
    order: Callable[[ShardReport], Any] = _BY_NAME
    if len({s.shard for s in told}) < len(told):
        order, told = _position, _each_once(told)
    told = tuple(sorted(told, key=order))
    if not before:
        return tuple([_first_seen(node, s, now) for s in told])
    reports = (_recognised(s, before) if s.state == "unknown" else s for s in told)
    return tuple(_seen(node, r, before, now) for r in reports)


def _with_lacking(shards: tuple[Shard, ...], before: Before) -> tuple[Shard, ...]:
    here = {s.key for s in shards}
    lacking = [
        replace(s, missing=True)
        for key, s in before.items()
        if key not in here and s.believed and not any(s.may_be(n) for n in shards)
    ]
    return _in_order((*shards, *lacking)) if lacking else shards


def _each_once(told: tuple[ShardReport, ...]) -> tuple[ShardReport, ...]:
    """One process listed twice is one shard (A11, A29): its copy would be a stray, and drained with it."""
    same = {
        (s.shard, s.incarnation, s.attempt, s.pid, s.port): s for s in sorted(told, key=_position)
    }
    return tuple(same.values())


_BY_NAME = attrgetter("shard")


def _position(s: ShardReport) -> tuple[object, ...]:
    about = (s.incarnation, s.rank or 0, s.port, s.pid or 0, s.state, s.started_at)
    return (s.shard, *about, s.model, s.profile, s.fingerprint, s.gpus)


def _in_order(shards: Iterable[Shard]) -> tuple[Shard, ...]:
    """As a registration orders them; of one name what is missing comes first."""
    return tuple(sorted(shards, key=lambda s: (s.report.shard, not s.missing, s.incarnation)))


def _recognised(report: ShardReport, before: dict[tuple[str, int], Shard]) -> ShardReport:
    """A record its agent cannot read is the one we knew under that name: unreadable is not absent (A39).

    Its file's name tells the shard and mostly the incarnation, never what it holds. Attempt and port stay as reported,
    for the agent's digest is made of them; the port that we know is held beside it. It is routed no more: had its
    process been found by its markers, it would not be unreadable.
    """
    same = (
        s.report
        for s in before.values()
        if s.report.shard == report.shard and report.incarnation in ("", s.report.incarnation)
    )
    old = next(same, None)
    if old is None:
        return report
    ports = old.ports | ({"before": old.port} if old.port else {})
    if report.model:
        return replace(
            report,
            gpus=report.gpus or old.gpus,
            ports=report.ports if report.port else ports,
            resources=report.resources or old.resources,
            endpoint=report.endpoint or old.endpoint,
        )
    return replace(
        old,
        state="unknown",
        error=report.error,
        attempt=report.attempt,
        port=report.port,
        ports=ports,
        endpoint="",
    )


def _first_seen(node: str, report: ShardReport, now: float) -> Shard:
    state = report.state
    return Shard(
        node=node,
        report=report,
        was_live=state in LIVE,
        seen_s=now,
        ready_s=now if state == "ready" else None,
        unhealthy_s=now if state == "unhealthy" else None,
    )


def _seen(node: str, report: ShardReport, before: Before, now: float) -> Shard:
    """One reported shard; what this process knew of it stays (a compute once known, since when it is seen)."""
    shard = _first_seen(node, report, now)
    old = _known_as(shard, before)
    if old is None:
        return shard
    was_live = old.was_live or shard.was_live
    if old.origin == REMEMBERED:
        return replace(shard, was_live=was_live)
    if late(old, report):
        return old
    return replace(
        shard,
        report=_with_known(report, old.report),
        ours=old.ours,
        loaded_s=now if _loaded(old.report, report) else old.loaded_s,
        known=True,
        was_live=was_live,
        seen_s=old.seen_s,
        ready_s=old.ready_s if old.ready_s is not None else shard.ready_s,
        unhealthy_s=_earlier(old.unhealthy_s, shard.unhealthy_s),
    )


def _loaded(old: ShardReport, new: ShardReport) -> bool:
    """Also after a restart in its place: the load was paid for anew."""
    return new.state == "ready" and old.state in STARTING


def _earlier(before_s: float | None, now_s: float | None) -> float | None:
    """Since when what is so now has been so."""
    return now_s if now_s is None or before_s is None else before_s


def _known_as(shard: Shard, before: Before) -> Shard | None:
    """The same shard as we had it, also where its agent leaves the incarnation out now, or did before (F55)."""
    old = before.get(shard.key)
    if old is not None:
        return old
    report = shard.report
    if report.incarnation:
        return before.get((f"{NAMELESS}{report.model}/{report.replica}", shard.rank))
    same = (s for s in before.values() if s.report.shard == report.shard and s.holds)
    return next(same, None)


def _with_known(report: ShardReport, old: ShardReport) -> ShardReport:
    """What its agent told before: of one attempt the first compute (A29), else what it leaves out now."""
    if old.compute is not None and (report.compute is None or report.attempt == old.attempt):
        report = replace(report, compute=old.compute)
    if report.api_key is None and old.api_key is not None:
        report = replace(report, api_key=old.api_key, served_name=old.served_name)
    return report


def changed(state: State, event: ShardsChanged, now: float) -> State:
    """What an agent says in between: changed shards, deleted records, devices, refusals."""
    node = state.nodes.get(event.node)
    if node is None or not node.settled:
        return state
    before = {s.key: s for s in heeded(node.shards, event.refused)}
    fresh = _taken_in(event.node, event.shards, before, now)
    after = before | {s.key: s for s in fresh}
    for shard in fresh:
        old = _known_as(shard, before)
        if old is not None and old.key != shard.key:
            after.pop(old.key, None)
    gone = {*event.gone}
    dropped = {(r.shard, r.incarnation): r for r in event.refused}
    told = (
        _refused(s, dropped.get((s.report.shard, s.report.incarnation)))
        for s in after.values()
        if (s.report.shard, s.report.incarnation) not in gone
    )
    shards = tuple(s for s in told if s is not None)
    report = replace(
        node.report,
        gpus=node.report.gpus if event.gpus is None else event.gpus,
        gpus_error=node.report.gpus_error if event.gpus_error is None else event.gpus_error,
        foreign=node.report.foreign if event.foreign is None else event.foreign,
    )
    refused = tuple(_refusals(node, event.refused, now))
    for shard in node.shards:
        no = dropped.get((shard.report.shard, shard.report.incarnation))
        if no is not None and no.reason == NO_WEIGHTS and shard.origin == PLACED:
            state = absent(state, shard, no.why or no.reason, now)
    node = replace(
        node,
        report=report,
        shards=shards if after.keys() == before.keys() else _in_order(shards),
        connected=True,
        heard_s=now,
    )
    state = replace(
        state,
        nodes=state.nodes | {event.node: node},
        refused=(*state.refused, *refused) if refused else state.refused,
    )
    return counted(wanted(state, fresh, now), fresh, now)


def _refused(shard: Shard, no: Refusal | None) -> Shard | None:
    """What was placed and refused is gone; one rank of a group stays as ended, till the others have gone too (A34).

    Else they would wait for it through the whole assembly window, and hold what they were given.
    """
    if no is None or shard.origin != PLACED:
        return shard
    if (shard.report.world_size or 1) == 1:
        return None
    why = f"refused: {no.why or no.reason}"
    return replace(shard, report=replace(shard.report, state="stopped", error=why))


def _refusals(node: Node, refused: tuple[Refusal, ...], now: float) -> Iterable[Refused]:
    """What the node cannot take for a while: what is named, else the profile of the start that was refused.

    The whole node only where it can write nothing down: its other models may well run.
    """
    placed = {
        (s.report.shard, s.report.incarnation): s.report.fingerprint
        for s in node.shards
        if s.origin == PLACED
    }
    for r in refused:
        resource = "node" if r.reason == "cannot_journal" else r.resource
        if not resource and r.reason not in _OF_WHO_ASKS:
            fingerprint = placed.get((r.shard, r.incarnation))
            resource = "" if fingerprint is None else f"profile {fingerprint}"
        if resource:
            until_s = now + REFUSAL_HOLD_S
            yield Refused(node.report.node, resource, until_s, r.why or r.reason)


def placed(state: State, name: str, start: Start, now: float) -> State:
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
    shard = Shard(
        node=name,
        report=report,
        origin=PLACED,
        ours=True,
        known=True,
        after=start.after,
        seen_s=now,
    )
    if any(s.key == shard.key for s in node.shards):
        return state
    node = replace(node, shards=_in_order((*node.shards, shard)))
    return wanted(replace(state, nodes=state.nodes | {name: node}), (shard,), now)


def wanted(state: State, shards: Iterable[Shard], now: float) -> State:
    """An on-demand model that runs has a `wanted` entry; one is made once and never renewed here (A22, A23)."""
    fresh: dict[str, float] = {}
    resolve, before = state.catalog.resolve, state.wanted_s
    for shard in shards:
        name = shard.report.model
        if name in before or not shard.holds:
            continue
        model = resolve(name)
        if model is not None and model.on_demand and model.name not in before:
            fresh[model.name] = now
    return replace(state, wanted_s=state.wanted_s | fresh) if fresh else state
