"""What control knows, as a document: `llmgw.status/1` of contract/cli.md.

Answers for: the shape, and warnings that follow from facts alone (A69, F55, F63). Clocks are passed in; nothing is
decided or asked; the words of states and reasons come from the core.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from msgspec import Struct, to_builtins

from llmgw.core import cordon, drain, failed, idle, lost
from llmgw.core.adopt.survey import Survey
from llmgw.core.asleep import asleep
from llmgw.core.capacity import GpuHeld, Held, holdings
from llmgw.core.reconcile.beside import nor_room
from llmgw.core.roll import HALTED
from llmgw.core.types.catalog import Model
from llmgw.core.types.messages import Foreign, Gpu
from llmgw.core.types.plan import (
    NapReplica,
    Plan,
    Replica,
    RollReplica,
    StartReplica,
    StopReplica,
    Wait,
)
from llmgw.core.types.record import STUCK
from llmgw.core.types.routes import RouteModel, RouteTable
from llmgw.core.types.state import REMEMBERED, Failure, Node, Shard, State
from llmgw.wire.devices import devices, fallen_back

SCHEMA = "llmgw.status/1"
#: As long as a drain may take where the catalog does not know the profile any more.
DRAIN_TIMEOUT_S = 120.0

Json = dict[str, Any]


class Seen(Struct, frozen=True, kw_only=True):
    """One moment of control. `iso` turns its monotonic seconds into text; `decided_s`: when the plan was made."""

    state: State
    found: Survey
    plan: Plan
    routes: RouteTable
    now: float
    decided_s: float
    iso: Callable[[float], str]


def status_document(
    seen: Seen,
    *,
    name: str,
    lease: str,
    leader: Json | None = None,
    blocked: str = "",
    confirm: str = "",
    catalog_path: str = "",
    catalog_error: str = "",
    warnings: tuple[str, ...] = (),
) -> Json:
    """`warnings` are the shell's own, put before those that follow from the facts.

    `blocked` says why nothing, or less than was decided, is carried out; `confirm`: the digest that lets it be.
    """
    state = seen.state
    held = holdings(state)
    shards: dict[str, list[Shard]] = {}
    for node in state.nodes.values():
        for shard in node.shards:
            if not shard.missing:
                shards.setdefault(shard.incarnation, []).append(shard)
    settling = {"since": seen.iso(state.started_s), "waiting_for": list(seen.plan.settling_for)}
    return {
        "schema": SCHEMA,
        "generated_at": seen.iso(seen.now),
        "started_at": seen.iso(state.started_s),
        "leader": leader or {"name": name, "epoch": state.epoch, "lease": lease, "standbys": []},
        "settling": settling if state.settling else None,
        "blocked": blocked or None,
        "confirm": confirm or None,
        "paused": state.paused or None,
        "catalog": {
            "path": catalog_path,
            "version": state.catalog.digest[:12],
            "error": catalog_error or None,
        },
        "nodes": [_node(seen, n, node, held[n]) for n, node in sorted(state.nodes.items())],
        "models": [_model(seen, m) for _, m in sorted(state.catalog.models.items())],
        "replicas": [
            _replica(seen, r, shards.get(r.incarnation, []))
            for r in seen.found.replicas
            if r.state != "stopped"
        ],
        "stops_pending": list(_stops_pending(seen, shards)),
        "warnings": [*warnings, *_warnings(seen)],
    }


# ---------------------------------------------------------------- nodes


def node_state(state: State, node: Node) -> str:
    if node.connected:
        if (node.report.node, "") in state.cordoned and not node.too_old:
            return "draining" if cordon.left(node) else "drained"
        return "read-only" if node.too_old else "ready"
    waited_for = state.settling and node.lost_s is None and not node.unreachable_before
    return "expected" if waited_for else "unreachable"


def _node(seen: Seen, name: str, node: Node, held: Held) -> Json:
    report = node.report
    since = node.heard_s if node.connected else node.lost_s
    measured = [g.power_w for g in report.gpus or () if g.power_w is not None]
    return {
        "node": name,
        "state": node_state(seen.state, node),
        "since": None if since is None else seen.iso(since),
        "version": report.version,
        "address": report.address,
        "drained": seen.state.cordoned.get((name, "")),
        "gpus": [
            _gpu(g, held.gpus.get(g.uuid, GpuHeld()), seen.state.cordoned.get((name, g.uuid)))
            for g in report.gpus or ()
        ],
        "power_w": sum(measured) if measured else None,
        "power_reserved_w": held.power_w,
        "power_budget_w": report.capacity.power_w,
        "foreign": [_foreign(f) for f in report.foreign],
        "engines": sum(s.holds for s in node.shards),
    }


def _gpu(gpu: Gpu, held: GpuHeld, drained: str | None) -> Json:
    return {
        "uuid": gpu.uuid,
        "index": gpu.index,
        "name": gpu.name,
        "memory": gpu.memory_bytes,
        "reserved": gpu.memory_bytes if held.whole else held.reserved_bytes,
        "used": gpu.memory_used_bytes,
        "foreign": held.foreign_bytes,
        "healthy": gpu.healthy,
        "lost": gpu.lost,
        "trouble": gpu.trouble or None,
        "unified": gpu.unified,
        "drained": drained,
        "engines": len(held.by),
        "driver": gpu.driver or None,
        "link": gpu.link or None,
        "power_w": gpu.power_w,
        "power_limit_w": gpu.power_limit_w,
    }


def _foreign(process: Foreign) -> Json:
    """A process on a GPU that is not ours (A70); with a shard what one of ours holds beyond what it was given (F73)."""
    return {
        "pid": process.pid,
        "gpu": process.gpu or None,
        "memory": process.memory_bytes,
        "command": process.command,
        "port": process.port,
        "shard": process.shard or None,
        "why": process.why or None,
    }


# ---------------------------------------------------------------- models and replicas


def _model(seen: Seen, model: Model) -> Json:
    route = seen.routes.models.get(model.name, RouteModel())
    ready = [
        r
        for r in seen.found.replicas
        if r.model == model.name and r.kept and r.complete_and_ready and r.claimed
    ]
    waits = _waits(seen.plan, model.name)
    state, why = route.status, route.why
    if waits and state == "unloaded":
        nor = nor_room(seen.state, model, seen.now)
        state, why = "waiting", f"{waits}; {nor}" if nor else waits
    elif state == "unloaded" and _sleepers(seen, model):
        state = "asleep"
    elif state == "unloaded" and not why:
        # Nobody waits for it, and whoever asks will be told the same: its file was not there.
        why = next((f.error for f in reversed(_absent(seen, model, route))), "")
    elif state == "loading" and route.progress is not None:
        why = f"{why}, {route.progress * 100:.0f}%"
    until = [idle.idle_until_s(seen.state, model, r) for r in ready]
    sleeps = [u for u in until if u is not None]
    return {
        "name": model.name,
        "aliases": list(model.aliases),
        "state": state,
        "min": model.scaling.min,
        "max": model.scaling.max,
        "ready": len(ready),
        "waiting": idle.waiting(seen.state, model.name),
        "idle_until": seen.iso(max(sleeps)) if sleeps else None,
        "why": why or waits or None,
    }


def _absent(seen: Seen, model: Model, route: RouteModel) -> tuple[Failure, ...]:
    """Files found missing that count still; of what is up or on its way nothing has to be said."""
    up = route.status in ("loaded", "loading")
    return () if up or _sleepers(seen, model) else failed.absent(seen.state, model, seen.now)


def _sleepers(seen: Seen, model: Model) -> bool:
    return any(r.model == model.name and r.kept and asleep(r) for r in seen.found.replicas)


def _waits(plan: Plan, model: str) -> str:
    """Why a start that is wanted is not made now, or ""."""
    for action in plan.actions:
        if action.model == model and isinstance(action, Wait):
            return action.why
        if action.model == model and isinstance(action, StartReplica) and action.withheld:
            return f"{action.why}; held back"
    return ""


def _replica(seen: Seen, r: Replica, shards: list[Shard]) -> Json:
    # What is only remembered was not seen by this control, and since when it was is not known.
    first = min((s.seen_s for s in shards if s.origin != REMEMBERED), default=None)
    seen_at = None if first is None else seen.iso(first)
    started = min((s.report.started_at for s in shards if s.report.started_at), default="")
    return {
        "replica": r.replica,
        "incarnation": r.incarnation,
        "model": r.model,
        "profile": r.profile,
        "state": r.state,
        "have": r.have,
        "want": r.want,
        "endpoint": r.endpoint or None,
        "in_flight": r.in_flight,
        "since": started or seen_at,
        "adopted_at": seen_at,
        "drift": r.drift or None,
        "breaker": _breaker(seen.state, r.replica),
        "breaker_why": _breaker_why(seen.state, r.replica),
        "shards": [_shard(s) for s in sorted(shards, key=lambda s: (s.rank, s.node))],
    }


def _breaker(state: State, replica: str) -> str:
    """The worst that any gateway says."""
    said = {g.demand.breaker.get(replica, "closed") for g in state.gateways.values()}
    return next((w for w in ("open", "half-open") if w in said), "closed")


def _breaker_why(state: State, replica: str) -> str | None:
    said = (g.demand.breaker_why.get(replica) for _, g in sorted(state.gateways.items()))
    return next(filter(None, said), None)


def _shard(shard: Shard) -> Json:
    report = shard.report
    return {
        "shard": report.shard,
        "node": shard.node,
        "gpus": list(report.gpus),
        "port": report.port,
        "pid": report.pid,
        "state": report.state,
        "attempt": report.attempt,
        "progress": report.progress,
        "compute": None if report.compute is None else to_builtins(report.compute),
        "gpu_peak": report.gpu_peak_bytes,
        "host_peak": report.host_peak_bytes,
        "error": report.error,
        "asleep": None if report.asleep is None else to_builtins(report.asleep),
    }


# ---------------------------------------------------------------- what is coming, and what is odd


def _stops_pending(seen: Seen, shards: dict[str, list[Shard]]) -> Iterator[Json]:
    """Announced ends with their time (A48), and drains with the latest moment they end.

    One that is due and held back has no time: it comes when it is let.
    """
    for action in seen.plan.actions:
        if isinstance(action, StartReplica | NapReplica | Wait):
            continue
        due_s = action.due_s if isinstance(action, StopReplica) else 0.0
        if due_s <= 0 and not action.withheld:
            continue
        at = seen.iso(seen.decided_s + due_s) if due_s > 0 else None
        reason = "drift" if isinstance(action, RollReplica) else action.reason
        for shard in action.shards:
            yield _stop(shard, reason, action.why, at, action.withheld)
    of = {r.incarnation: r for r in seen.found.replicas}
    for incarnation, begun in sorted(seen.state.draining.items()):
        r = of.get(incarnation)
        waits = "" if r is None else drain.waits(seen.state, r, begun, seen.now)
        said = f"draining: {begun.why}{'; ' if waits else ''}{waits}"
        for shard in shards.get(incarnation, ()):
            if shard.holds:
                at = seen.iso(begun.since_s + _drain_timeout_s(seen.state, shard))
                yield _stop(shard, begun.reason, said, at) | {"waits": waits or None}


def _stop(shard: Shard, reason: str, why: str, at: str | None, withheld: str = "") -> Json:
    about = {"shard": shard.report.shard, "node": shard.node, "reason": reason, "why": why}
    return about | {"at": at, "withheld": withheld or None, "waits": None}


def _drain_timeout_s(state: State, shard: Shard) -> float:
    model = state.catalog.resolve(shard.report.model)
    profile = model.profile(shard.report.profile) if model else None
    return profile.drain_timeout_s if profile else DRAIN_TIMEOUT_S


def _warnings(seen: Seen) -> Iterator[str]:
    yield from seen.plan.warnings
    state = seen.state
    if state.ending:
        yield "an operator asked for all engines to end: nothing is started until control is restarted"
    silent = [
        n for n, node in sorted(state.nodes.items()) if node_state(state, node) == "unreachable"
    ]
    if len(silent) > 1 and len(silent) == len(state.nodes):
        yield f"none of {len(silent)} nodes answers: the fault is probably on this side; nothing is stopped"
    yield from filter(None, (lost.said(state, name, seen.now) for name in silent))
    for name, node in sorted(state.nodes.items()):
        if node.too_old:
            yield (
                f"the agent on {name} is too old (protocol {node.report.protocol}): "
                "its engines are left alone, upgrade it"
            )
        if node.connected:
            yield from devices(name, node)
        for shard in node.shards:
            yield from fallen_back(name, shard)
            if STUCK in (shard.report.error or "") and shard.holds:
                yield f"{shard.report.shard} on {name} does not end: {shard.report.error}"
    yield from _lacking(seen)
    yield from _halted(seen.plan)
    for v in seen.found.verdicts:
        if v.verdict in ("conflict", "stray"):
            yield f"{v.shard.report.shard} on {v.shard.node}: {v.verdict}: {v.why}"


def _lacking(seen: Seen) -> Iterator[str]:
    """Nobody need have asked again for it: the next one who does is refused. Of one that waits its own line says it."""
    for model in seen.state.catalog.models.values() if seen.state.failures else ():
        route = seen.routes.models.get(model.name, RouteModel())
        if not _waits(seen.plan, model.name):
            yield from (f"{model.name}: {f.error}" for f in _absent(seen, model, route))


def _halted(plan: Plan) -> Iterator[str]:
    """The old ones serve on, so that nothing else says that the edited catalog is not what runs."""
    for action in plan.actions:
        if isinstance(action, Wait) and action.why.startswith(f"roll: {HALTED}"):
            yield f"{action.model}: {action.why}"
