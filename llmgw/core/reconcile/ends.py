"""What must go, and when: drained ones, losers, unclaimed ones, groups that broke or stayed short, second shards.

May not start anything, nor end what a model only has too much of: that is `decide`'s.
"""

from __future__ import annotations

from msgspec.structs import replace

from llmgw.core import cordon, drain, hung
from llmgw.core.adopt.group import dying, rising
from llmgw.core.asleep import asleep
from llmgw.core.reconcile.scratch import Pass
from llmgw.core.types.plan import DrainReplica, Replica, StopReplica
from llmgw.core.types.state import PLACED, Draining, Shard


def end(p: Pass) -> None:
    """What must go: drained ones, losers, unclaimed ones, what stayed short, second shards of a rank."""
    for r in p.survey.replicas:
        if r.kept and r.have >= r.want and not r.going and not p.state.ending:
            if r.state == "degraded":
                _hung(p, r)
            continue  # nearly all of them, nearly always
        members = stoppable(r.members)
        if members:
            _goes(p, r, members)
    _second_shards(p)


def _goes(p: Pass, r: Replica, members: tuple[Shard, ...]) -> None:
    """Why it goes, the strongest reason first."""
    begun = p.state.draining.get(r.incarnation)
    if begun is not None or r.state == "draining":
        _finish(p, r, members, begun)
    elif p.state.ending:
        why = "the operator asked for all engines to end"
        p.actions.append(drained(r, members, "ending", why))
    elif not r.claimed and cordon.leaves(p.state, r.members):
        p.actions.append(drained(r, members, cordon.REASON, cordon.leaves(p.state, r.members)))
    elif not r.claimed:
        _unclaimed(p, r, members)
    elif not r.kept:
        _loser(p, r, members)
    elif r.held and r.incarnation in p.state.lost:
        _lost(p, r, members)
    elif r.have < r.want and not r.held:
        _incomplete(p, r, members)
    elif r.state == "failed":
        _broken(p, r, members, next(s for s in r.members if dying(s)))


def stoppable(shards: tuple[Shard, ...]) -> tuple[Shard, ...]:
    """Those an order would still change: running, or placed and not yet heard of."""
    return tuple(
        s for s in shards if s.report.desired != "stopped" and s.report.state != "stopping"
    )


def _finish(p: Pass, r: Replica, members: tuple[Shard, ...], begun: Draining | None) -> None:
    """The end of a drain, also of one that only the agent's journal remembers (A65); until then it goes on."""
    since = begun or Draining(
        _told_s(p, members), "draining", "was draining before", p.state.first_version
    )
    why = drain.finished(p.state, r, since, _drain_timeout_s(p, r), p.now)
    if why:
        p.actions.append(_stop(r, members, since.reason, f"{since.why}; {why}", 0.0, drained=True))


def _told_s(p: Pass, members: tuple[Shard, ...]) -> float:
    """When its agents said so last: the limit is a whole one, for control knows nothing of the time before (F26).

    An agent that was replaced by an older one may call by another name what this control drains already.
    """
    told = (node.registered_s for s in members if (node := p.state.nodes.get(s.node)))
    return max((p.state.settled_s or 0.0, *told))


def _drain_timeout_s(p: Pass, r: Replica) -> float:
    model = p.state.catalog.models.get(r.model)
    profile = model.profile(r.profile) if model else None
    return profile.drain_timeout_s if profile else 120.0


def _seen_since_s(p: Pass, shards: tuple[Shard, ...]) -> float:
    """From when a window of theirs counts: the first was seen, and settling was over."""
    return max(min(s.seen_s for s in shards), p.state.settled_s or 0.0)


def _unclaimed(p: Pass, r: Replica, members: tuple[Shard, ...]) -> None:
    """Nothing will ever claim it: stopped after a grace in which an operator can see it coming (A48)."""
    if p.state.keep_unknown or p.state.catalog.keep_unknown:
        return
    since = max(_seen_since_s(p, members), p.state.catalog_s)
    due_s = since + p.state.catalog.stray_grace_s - p.now
    verdict = p.verdict(members[0])
    reason = verdict.reason or "model_removed"
    if due_s <= 0 and any(s.was_live for s in members):
        p.actions.append(drained(r, members, reason, verdict.why))
        return
    p.actions.append(_stop(r, members, reason, verdict.why, max(due_s, 0.0)))


def _loser(p: Pass, r: Replica, members: tuple[Shard, ...]) -> None:
    """Drained, not killed, and only once the kept one is routable (A38). One that never came up is stopped then.

    What we placed and no agent has yet must not come up beside the one that runs (A36): it is stopped at once.
    """
    verdict = p.verdict(members[0])
    reason = verdict.reason or "duplicate_replica"
    if all(s.origin == PLACED for s in members):
        p.actions.append(_stop(r, members, reason, verdict.why, 0.0))
    elif _kept_is_there(p, r):
        if any(_may_serve(s) for s in members):
            p.actions.append(drained(r, members, reason, verdict.why))
        else:
            p.actions.append(_stop(r, members, reason, verdict.why, 0.0))


def _kept_is_there(p: Pass, loser: Replica) -> bool:
    """The kept one can be routed; of two that sleep neither serves anybody, and one of them is enough."""
    kept = (k for k in p.survey.replicas if k.incarnation == loser.rival)
    return any(k.complete_and_ready or (asleep(k) and asleep(loser)) for k in kept)


def _may_serve(shard: Shard) -> bool:
    """It came up, or its agent has only just found it again and cannot tell yet (F43)."""
    return shard.was_live or shard.report.state == "starting"


def _lost(p: Pass, r: Replica, members: tuple[Shard, ...]) -> None:
    """What is left of a group. Control alone may not hear the others, and streams go on: they have their time (A65)."""
    why = f"{r.have} of {r.want} shards; the others are on nodes that count as lost"
    if any(map(_may_serve, members)):
        p.actions.append(drained(r, members, "node_silent", why))
    else:
        p.actions.append(_stop(r, members, "node_silent", why, 0.0))


def _incomplete(p: Pass, r: Replica, members: tuple[Shard, ...]) -> None:
    """A group that lacks a rank: broken for good, or not all heard yet."""
    ranks = {s.rank for s in members}  # a second shard of a rank that has one is no loss
    ended = [s for s in p.over.get(r.incarnation, ()) if s.rank < r.want and s.rank not in ranks]
    if ended:
        _broken(p, r, members, ended[0])
    else:
        _short(p, r, members)


def _broken(p: Pass, r: Replica, members: tuple[Shard, ...], gone: Shard) -> None:
    """A group of which one has ended is one world that is over (F77): the rest goes at once, to start anew together.

    Not while another member still starts: slow peers must not set off restart storms (A34, F78); how often in all, the
    failures of the model say.
    """
    if any(map(rising, members)):
        return
    said = "the agent does not run it" if gone.missing else gone.report.error or "it has ended"
    why = f"rank {gone.rank} on {gone.node} is gone ({said}); the group restarts together"
    p.actions.append(_stop(r, members, "not_running", why, 0.0))


def _hung(p: Pass, r: Replica) -> None:
    """Alive, and deaf for too long: drained as any other, so that what it still serves may end, and replaced (F64)."""
    why = hung.why(p.state, r, p.now)
    if why:
        p.actions.append(drained(r, stoppable(r.members), hung.REASON, why))


def _short(p: Pass, r: Replica, members: tuple[Shard, ...]) -> None:
    """Short after the assembly window: its remaining shards are stopped, to be replaced elsewhere (A33)."""
    due_s = _seen_since_s(p, members) + p.state.catalog.assembly_window_s - p.now
    why = f"{r.have} of {r.want} shards; the others have not come within the assembly window"
    p.actions.append(_stop(r, members, "short_after_window", why, max(due_s, 0.0)))


def _second_shards(p: Pass) -> None:
    """A second shard of a rank is nobody's endpoint: drained once the one that counts is up, then stopped.

    What it still serves cannot be told from the other's requests (one replica id), so it gets the whole time.
    """
    seconds = [v for v in p.survey.verdicts if v.reason == "duplicate_rank"]
    rows = {r.incarnation: r for r in p.survey.replicas} if seconds else {}
    for v in seconds:
        if v.verdict != "stray" or not stoppable((v.shard,)):
            continue
        r = rows[v.shard.incarnation]
        if v.shard.report.desired == "running":
            part = drained(r, (v.shard,), "duplicate_rank", v.why)
            p.actions.append(replace(part, whole=False))
            continue
        due_s = max(_seen_since_s(p, (v.shard,)) + _drain_timeout_s(p, r) - p.now, 0.0)
        p.actions.append(_stop(r, (v.shard,), "duplicate_rank", v.why, due_s, drained=True))


def _stop(
    r: Replica,
    members: tuple[Shard, ...],
    reason: str,
    why: str,
    due_s: float,
    *,
    drained: bool = False,
) -> StopReplica:
    return StopReplica(
        replica=r.replica,
        incarnation=r.incarnation,
        model=r.model,
        profile=r.profile,
        shards=members,
        reason=reason,
        why=why,
        due_s=due_s,
        disturbs=not drained and any(s.was_live for s in members),
        drained=drained,
    )


def drained(
    r: Replica, members: tuple[Shard, ...], reason: str, why: str, *, asleep: bool = False
) -> DrainReplica:
    return DrainReplica(
        replica=r.replica,
        incarnation=r.incarnation,
        model=r.model,
        profile=r.profile,
        shards=members,
        reason=reason,
        why=why,
        idle=asleep,
        disturbs=not asleep,
    )
