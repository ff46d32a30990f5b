"""Which endpoints gateways may use: a whole table out of the facts, never a delta (A31, A50, design.md 6).

A replica is routed when every wanted shard is up and rank 0 has an endpoint; while control settles, what the last
picture believed ready stays routed until its node speaks, so a restart never empties the table (F19). May not probe or
decide.
"""

from __future__ import annotations

from collections.abc import Mapping

from msgspec.structs import replace

from llmgw.core import asleep
from llmgw.core.endpoint import address, loopback
from llmgw.core.failed import gave_up
from llmgw.core.idle import answered_s
from llmgw.core.types.catalog import Model
from llmgw.core.types.messages import STARTING
from llmgw.core.types.plan import Judged, Replica
from llmgw.core.types.routes import RouteModel, RouteReplica, RouteTable
from llmgw.core.types.state import PLACED, Shard, State

#: A shard that answers. An unhealthy rank spoils its whole replica: `/health` of rank 0 is 200 while another hangs.
ANSWERS = frozenset({"ready", "draining"})


def table(state: State, survey: Judged, version: int) -> RouteTable:
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


def refusing(routes: RouteTable, no_room: Mapping[str, str]) -> RouteTable:
    """The table with what to tell those who ask for models that nobody could make room for (`evict.unplaceable`)."""
    if not no_room:
        return routes
    told = {
        name: replace(routes.models[name], why=why, no_room=why)
        for name, why in no_room.items()
        if name in routes.models and not routes.models[name].replicas
    }
    return replace(routes, models=routes.models | told)


def incarnations(routes: RouteTable, state: str) -> frozenset[str]:
    """The incarnations the table shows in `state` (ready or draining)."""
    return frozenset(
        r.incarnation for m in routes.models.values() for r in m.replicas if r.state == state
    )


def _model(state: State, model: Model, replicas: list[Replica], survey: Judged) -> RouteModel:
    found = (_route(state, model, r, survey) for r in replicas)
    routes = tuple(r for r in found if r is not None)
    status, why, progress = _status(state, model, replicas, routes, survey)
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
        sticky_prefix_bytes=model.sticky_prefix_bytes,
        replicas=routes,
    )


def shards_of(survey: Judged, replica: Replica) -> tuple[Shard, ...]:
    """Wanted shards by rank, those on silent nodes included; strays of a rank left out."""
    found = {s.rank: s for s in replica.members}
    if replica.held:
        for v in survey.verdicts:
            if v.verdict == "hold" and _is_of(survey, v.shard, replica):
                found.setdefault(v.shard.rank, v.shard)
    return tuple(found[rank] for rank in sorted(found) if rank in range(replica.want))


def _is_of(survey: Judged, shard: Shard, replica: Replica) -> bool:
    """An older agent leaves the incarnation out (F55): its shard is of that name's where it makes none by itself."""
    if shard.report.incarnation or shard.incarnation == replica.incarnation:
        return shard.incarnation == replica.incarnation
    alike = shard.report.replica == replica.replica
    return alike and all(r.incarnation != shard.incarnation for r in survey.replicas)


def _route(state: State, model: Model, replica: Replica, survey: Judged) -> RouteReplica | None:
    shards = shards_of(survey, replica)
    if len(shards) < replica.want or not all(_answers(state, s) for s in shards):
        return None
    lead = shards[0].report
    if not lead.endpoint:
        return None
    profile = model.profile(replica.profile)
    assert profile is not None
    own = loopback(address(lead.endpoint))
    return RouteReplica(
        replica=replica.replica,
        incarnation=replica.incarnation,
        endpoint=lead.endpoint,
        loopback=state.nodes[shards[0].node].report.loopback if own else "",
        profile=replica.profile,
        state="draining" if _going(state, replica, shards, survey) else "ready",
        weight=profile.weight,
        api_key=(lead.api_key or "") if profile.upstream_key else "",
        upstream_model=lead.served_name or "",
        unheard=any(_may_sleep(state, s) for s in shards),
        sleeps=any(s.report.sleep for s in shards),
    )


def _may_sleep(state: State, shard: Shard) -> bool:
    """By the order of another control, for all that this one knows: its node was heard last before this one led.

    What this one orders is in its picture first; a standby orders nothing, and what its agents tell is all it knows.
    """
    node = state.nodes[shard.node]
    ours = state.epoch and node.settled and not state.outdated
    return bool(shard.report.sleep) and not node.connected and not ours


def _answers(state: State, shard: Shard) -> bool:
    """What nobody can look at just now and was up goes on being served (F45); gateways notice if it is not there.

    So does what fails its probes and yet sends good answers: it is busy, not hung (F64).
    """
    told = shard.report.state
    if told == "unhealthy" and shard.unhealthy_s is not None:
        served_s = answered_s(state, shard.report.replica)
        return served_s is not None and served_s > shard.unhealthy_s
    return told in ANSWERS or (told == "unknown" and shard.was_live and not shard.report.asleep)


def _going(state: State, replica: Replica, shards: tuple[Shard, ...], survey: Judged) -> bool:
    """On its way out, also where only the last picture of a silent node says so; or lost to one that is ready (A38).

    Nothing new goes to what counts as lost, else nobody would wait for its replacement (F61).
    """
    if replica.incarnation in state.dozing:
        return True
    if replica.state == "draining" or (replica.held and replica.incarnation in state.lost):
        return True
    if any(s.report.state == "draining" or s.report.desired != "running" for s in shards):
        return True
    # The loser serves until the one that is kept can: else nobody would.
    winners = (r for r in survey.replicas if r.incarnation == replica.rival)
    return not replica.kept and any(r.complete_and_ready for r in winners)


def _words(state: State, replica: Replica) -> str:
    if replica.incarnation in state.dozing:
        return "about to sleep"
    return asleep.words(replica.members[0]) if asleep.asleep(replica) else replica.state


def _status(
    state: State,
    model: Model,
    replicas: list[Replica],
    routes: tuple[RouteReplica, ...],
    survey: Judged,
) -> tuple[str, str, float | None]:
    """What a waiting client is told: loaded, loading (with progress), failed (with the last line), unloaded."""
    if any(r.state == "ready" for r in routes):
        return "loaded", "", None
    lost = {r.incarnation for r in replicas if r.held} & state.lost
    coming = [r for r in replicas if r.kept and not r.going and r.incarnation not in lost]
    for shard in (s for r in coming for s in shards_of(survey, r)):
        report = shard.report
        if report.state in STARTING:
            tried = f" (attempt {report.attempt})" if report.attempt > 1 else ""
            lacked = _lacked(state, model, shard)
            return "loading", f"{report.state} on {shard.node}{tried}{lacked}", report.progress
    if coming:
        return "unloaded", f"{coming[0].replica} is {_words(state, coming[0])}", None
    said = gave_up(state, model)
    return ("failed" if said else "unloaded"), said, None


def _lacked(state: State, model: Model, shard: Shard) -> str:
    """Its agent looks again for the file that was not there, and has not answered yet: `status` names it meanwhile."""
    if shard.origin != PLACED:
        return ""
    seen = state.failures.get(model.name, ())
    return next((f": {f.error}" for f in reversed(seen) if f.absent == shard.node), "")
