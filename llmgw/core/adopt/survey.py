"""Who owns what runs: every shard gets exactly one verdict, every incarnation at most one replica (A1-A45).

`survey` is a function of the facts of all nodes and one catalog, so the order in which nodes registered, and shards
stand in a report, cannot matter (A10), and the same report twice changes nothing (A11). Identity comes before
liveness: shards are grouped by incarnation and rank first (A28), then claimed through the catalog, then rivals are
ranked by one total order (A38). Nothing is started, stopped or freed here; `reconcile` reads the survey.
"""

from __future__ import annotations

from msgspec import Struct
from msgspec.structs import replace

from llmgw.core.adopt.group import Group, ended, group_of
from llmgw.core.adopt.rivals import Lost, gpu_clashes, rivals
from llmgw.core.types.messages import LIVE, TERMINAL
from llmgw.core.types.plan import Replica, Verdict
from llmgw.core.types.state import PLACED, REMEMBERED, Node, Shard, State


class Bucket(Struct, frozen=True):
    """A verdict reached without looking at any other shard."""

    verdict: str
    why: str
    reason: str | None = None


class Survey(Struct, frozen=True):
    """`replicas`: claimed ones first by name, then (claimed False) groups nothing claims, to be stopped or held."""

    verdicts: tuple[Verdict, ...]
    replicas: tuple[Replica, ...]
    warnings: tuple[str, ...] = ()


def survey(state: State) -> Survey:
    """One verdict per shard and one row per incarnation, from all that is known."""
    verdicts: list[Verdict] = []
    running: dict[str, list[tuple[Shard, bool]]] = {}
    over: dict[str, list[Shard]] = {}
    for name in sorted(state.nodes):
        node = state.nodes[name]
        for shard in node.shards:
            bucket = _bucket(state, node, shard)
            held = bucket is not None and bucket.verdict == "hold"
            if bucket is None or held:
                running.setdefault(shard.incarnation, []).append((shard, held))
            elif bucket.verdict == "terminal":
                over.setdefault(shard.incarnation, []).append(shard)
            if bucket is not None:
                verdicts.append(_verdict(shard, bucket))
    _joined(running)
    groups = [group_of(state, inc, shards) for inc, shards in sorted(running.items())]
    superseded = _superseded(state, groups)
    lost = rivals(state, groups)
    clashes = gpu_clashes(state, groups)
    replicas = []
    warnings: list[str] = []
    for g in groups:
        loser = lost.get(g.incarnation)
        kept = g.replica.claimed and loser is None
        rival = loser.to.incarnation if loser else ""
        replicas.append(replace(g.replica, kept=kept, rival=rival))
        verdicts += _group_verdicts(g, loser or clashes.get(g.incarnation), superseded)
        warnings += _disagreements(g)
    replicas += [
        ended(state.catalog, inc, shards) for inc, shards in over.items() if inc not in running
    ]
    replicas.sort(key=lambda r: (not r.claimed, r.replica, not r.kept, r.incarnation))
    verdicts.sort(
        key=lambda v: (
            v.shard.node,
            v.shard.report.replica,
            v.shard.rank,
            not v.shard.missing,
            v.shard.incarnation,
        )
    )
    return Survey(tuple(verdicts), tuple(replicas), tuple(warnings))


def _bucket(state: State, node: Node, shard: Shard) -> Bucket | None:
    """The verdict that needs no other shard, or None: it runs and waits to be claimed."""
    report = shard.report
    if shard.missing:
        return Bucket(
            "forget",
            f"we believed {report.state}; the agent on {shard.node} does not run it",
            "not_running",
        )
    if shard.misplaced:
        return Bucket(
            "conflict",
            f"it names node {report.node}, but {shard.node} reported it",
            "wrong_node",
        )
    if report.state in TERMINAL:
        return Bucket("terminal", f"ended: {report.error or report.state}")
    if node.too_old:
        return Bucket(
            "hold",
            f"the agent speaks protocol {node.report.protocol}: adopted read-only, upgrade it",
            "protocol_too_old",
        )
    if shard.origin == REMEMBERED or not node.connected:
        if state.settling and not node.unreachable_before:
            return Bucket("hold", f"{shard.node} has not registered yet", "settling")
        return Bucket("hold", f"{shard.node} does not answer; it is left alone", "node_silent")
    if report.state == "unknown" or not report.model:
        lacks = "its state is not known" if report.model else "its agent does not say what it runs"
        return Bucket("hold", f"cannot tell: {report.error or lacks}")
    return None


def _joined(running: dict[str, list[tuple[Shard, bool]]]) -> None:
    """A half whose older agent leaves the incarnation out belongs to the one half of its replica that has one (F55).

    Else the replica is torn apart while agents are upgraded node by node (A26). Only ranks that the world lacks join:
    anything else is a copy, for the rivals to judge (A37).
    """
    nameless = [inc for inc, found in running.items() if not found[0][0].report.incarnation]
    for inc in nameless:
        mine = running[inc]
        about = (mine[0][0].report.model, mine[0][0].report.replica)
        named = [
            k
            for k, found in running.items()
            if k not in nameless and about == (found[0][0].report.model, found[0][0].report.replica)
        ]
        both = [s for k in (inc, *named) for s, _ in running[k]]
        sizes = {s.report.world_size for s in both if s.report.world_size}
        ranks = [s.rank for s in both]
        lacked = len(sizes) == 1 and max(ranks) < min(sizes) and len(set(ranks)) == len(ranks)
        if len(named) == 1 and lacked:
            running[named[0]] += running.pop(inc)


def _superseded(state: State, groups: list[Group]) -> dict[str, Shard]:
    """By replica id, what we placed or believed and the fleet does not run: the fleet's copy replaces it (A4, A36)."""
    gone = {s.report.replica: s for n in state.nodes.values() for s in n.shards if s.missing}
    placed = {
        g.replica.replica: g.counted[0]
        for g in groups
        if 0 in g.counted and all(s.origin == PLACED and not s.was_live for s in g.counted.values())
    }
    return gone | placed


def _group_verdicts(g: Group, loser: Lost | None, superseded: dict[str, Shard]) -> list[Verdict]:
    out = []
    for rank, shard in sorted(g.counted.items()):
        bucket = (
            _claimed_bucket(g, rank, shard, superseded) if loser is None else _lost_bucket(loser)
        )
        if g.claim.reason is not None:
            bucket = Bucket("unclaimed", f"unclaimed: {g.claim.why}", g.claim.reason)
        out.append(_verdict(shard, bucket, g.replica))
    for shard in g.rivals:
        first = g.counted.get(shard.rank)
        up = first is not None and first.report.state in LIVE
        where = f"is on {first.node}" if first else f"is not one of the {g.replica.want} wanted"
        bucket = Bucket(
            "stray" if up else "conflict",
            f"rank {shard.rank} of {g.replica.replica} {where}",
            "duplicate_rank",
        )
        if g.claim.reason is not None:
            bucket = Bucket("unclaimed", f"unclaimed: {g.claim.why}", g.claim.reason)
        out.append(_verdict(shard, bucket, g.replica))
    return out


def _lost_bucket(loser: Lost) -> Bucket:
    """A stray competes with one that is up; while none is up it is a conflict (contract/cli.md)."""
    exclusive = loser.reason in ("port_conflict", "gpu_conflict")
    up = loser.to.complete_and_ready and not exclusive
    return Bucket("stray" if up else "conflict", loser.why, loser.reason)


def _claimed_bucket(g: Group, rank: int, shard: Shard, superseded: dict[str, Shard]) -> Bucket:
    r, report = g.replica, shard.report
    differs = _disagrees(g, shard)
    if differs is not None:
        return differs
    if shard.origin == PLACED:
        return Bucket("keep", "placed, its agent has not reported it yet")
    if shard.known:
        return Bucket("keep", f"known, {report.state}", "drift" if r.drift else None)
    older = superseded.get(r.replica)
    if older is not None and older.incarnation != r.incarnation:
        return Bucket(
            "replace",
            f"the fleet runs {r.replica} at {r.endpoint or 'no endpoint yet'}; "
            f"nothing of it runs at {older.report.endpoint or older.node}, where we had it",
            "stale_incarnation",
        )
    if rank:
        return Bucket("join", f"{r.have} of {r.want} shards", "drift" if r.drift else None)
    since = f"running since {report.started_at}" if report.started_at else "running"
    why = f"{since}, {r.drift or g.claim.why}"
    if r.have < r.want:
        why += f"; {r.have} of {r.want} shards"
    return Bucket("adopt", why, "drift" if r.drift else None)


def _disagrees(g: Group, shard: Shard) -> Bucket | None:
    """Pool, fabric, fingerprint: the first that says one counts, another value is a conflict, named (A17)."""
    members = g.replica.members
    for what, reason in (("pool", None), ("fabric", "fabric_conflict")):
        first = next((v for s in members if (v := getattr(s.report, what))), "")
        mine = getattr(shard.report, what)
        if mine and mine != first:
            return Bucket("conflict", f"it is on {what} {mine}, the replica on {first}", reason)
    lead = next((s for s in members if s.report.fingerprint), shard)
    ran, theirs = shard.report.fingerprint, lead.report.fingerprint
    if not ran or g.claim.profile is None:
        return None
    today, there = (g.claim.profile.fingerprint_on(s.node) for s in (shard, lead))
    # Weights may differ by node, and then fingerprints do: what today's would be on each node tells.
    alike = ran == theirs if today == there else (ran == today) == (theirs == there)
    if alike:
        return None
    why = f"its fingerprint is {ran[:10]}, {lead.report.shard} has {theirs[:10]}"
    return Bucket("conflict", why, "drift")


def _disagreements(g: Group) -> list[str]:
    pools = sorted({s.report.pool for s in g.counted.values() if s.report.pool})
    if len(pools) > 1:
        return [f"{g.replica.replica}: its shards name pools {', '.join(pools)}"]
    return []


def _verdict(shard: Shard, bucket: Bucket, replica: Replica | None = None) -> Verdict:
    return Verdict(
        shard=shard,
        verdict=bucket.verdict,
        why=bucket.why,
        reason=bucket.reason,
        model=replica.model if replica else shard.report.model,
        profile=replica.profile if replica else shard.report.profile,
    )
