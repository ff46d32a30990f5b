"""Which endpoints gateways may use: a whole table out of the facts, never a delta (A31, A50, design.md 6).

A replica is routed when every wanted shard is up and rank 0 has an endpoint; while control settles, what the last
picture
believed ready stays routed until its node speaks, so a restart never empties the table (F19). May not probe or decide.
"""

from __future__ import annotations

from llmgw.core.adopt.survey import Survey
from llmgw.core.types.catalog import Model
from llmgw.core.types.messages import LIVE, STARTING
from llmgw.core.types.plan import Replica
from llmgw.core.types.routes import RouteModel, RouteReplica, RouteTable
from llmgw.core.types.state import Shard, State


def table(state: State, survey: Survey, version: int) -> RouteTable:
    """The route table as of now. `partial` while settling: the gateway keeps what it knows besides."""
    by_model: dict[str, list[Replica]] = {}
    for r in survey.replicas:
        if r.claimed:
            by_model.setdefault(r.model, []).append(r)
    return RouteTable(
        version=version,
        partial=state.settling,
        models={
            name: _model(state, model, by_model.get(name, []), survey)
            for name, model in sorted(state.catalog.models.items())
        },
    )


def incarnations(routes: RouteTable, state: str) -> frozenset[str]:
    """The incarnations the table shows in `state` (ready or draining)."""
    return frozenset(
        r.incarnation for m in routes.models.values() for r in m.replicas if r.state == state
    )


def _model(state: State, model: Model, replicas: list[Replica], survey: Survey) -> RouteModel:
    routes = tuple(r for r in (_route(model, r, survey) for r in replicas) if r is not None)
    status, why, progress = _status(state, model, replicas, routes)
    return RouteModel(
        aliases=model.aliases,
        kind=model.kind,
        listed=model.listed,
        context=model.context,
        status=status,
        why=why,
        progress=progress,
        wait_timeout_s=model.wait_timeout_s,
        max_in_flight=model.requests.max_in_flight,
        queue=model.requests.queue,
        replicas=routes,
    )


def shards_of(survey: Survey, replica: Replica) -> tuple[Shard, ...]:
    """Members by rank, those on silent nodes included; strays of a rank left out."""
    found = {s.rank: s for s in replica.members}
    for v in survey.verdicts:
        if v.shard.incarnation == replica.incarnation and v.verdict == "hold":
            found.setdefault(v.shard.rank, v.shard)
    return tuple(found[rank] for rank in sorted(found))


def _route(model: Model, replica: Replica, survey: Survey) -> RouteReplica | None:
    shards = shards_of(survey, replica) if replica.held else replica.members
    if len(shards) < replica.want or any(s.report.state not in LIVE for s in shards):
        return None
    lead = shards[0].report
    if lead.rank or not lead.endpoint or lead.state == "unhealthy":
        return None
    profile = model.profile(replica.profile)
    draining = replica.state == "draining" or not replica.kept
    return RouteReplica(
        replica=replica.replica,
        incarnation=replica.incarnation,
        endpoint=lead.endpoint,
        profile=replica.profile,
        state="draining" if draining else "ready",
        weight=profile.weight if profile else 1,
        api_key=(lead.api_key or "") if profile is None or profile.upstream_key else "",
        upstream_model=lead.served_name or "",
    )


def _status(
    state: State, model: Model, replicas: list[Replica], routes: tuple[RouteReplica, ...]
) -> tuple[str, str, float | None]:
    """What a waiting client is told: loaded, loading (with progress), failed (with the last line), unloaded."""
    if any(r.state == "ready" for r in routes):
        return "loaded", "", None
    coming = [s.report for r in replicas if r.kept for s in r.members]
    for report in coming:
        if report.state in STARTING:
            where = next(s.node for r in replicas for s in r.members if s.report is report)
            tried = f" (attempt {report.attempt})" if report.attempt > 1 else ""
            return "loading", f"{report.state} on {where}{tried}", report.progress
    failed = gave_up(state, model)
    if failed:
        return "failed", failed, None
    return "unloaded", "", None


def gave_up(state: State, model: Model) -> str:
    """Why no new start of the model will be tried until somebody clears it, or ""."""
    failures = state.failures.get(model.name, ())
    last = failures[-1] if failures else None
    return last.error if last is not None and last.gave_up else ""
