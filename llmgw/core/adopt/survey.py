"""Who owns what runs: every shard gets exactly one verdict, every incarnation at most one replica (A1-A45).

`survey` is a function of the facts of all nodes and one catalog, so the order in which nodes registered, and shards
stand in a report, cannot matter (A10), and the same report twice changes nothing (A11). Identity comes before
liveness: shards are grouped by incarnation and rank first (A28), then claimed through the catalog, then rivals are
ranked by one total order (A38). Nothing is started, stopped or freed here; `reconcile` reads the survey.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from operator import attrgetter

from msgspec import Struct
from msgspec.structs import replace

from llmgw.core.adopt.group import Gatherer, ended, rising
from llmgw.core.adopt.rivals import Lost, crowded, gpu_clashes, rivals
from llmgw.core.asleep import words
from llmgw.core.endpoint import left_behind
from llmgw.core.types.catalog import Catalog
from llmgw.core.types.messages import LIVE, TERMINAL
from llmgw.core.types.plan import Replica, Verdict
from llmgw.core.types.state import NAMELESS, PLACED, Node, Shard, State

#: A verdict, why, and a reason of the closed list: reached without looking at any other shard.
Bucket = tuple[str, str, str | None]


class Survey(Struct, frozen=True):
    """`replicas`: claimed ones first by name, then (claimed False) groups nothing claims, to be stopped or held."""

    verdicts: tuple[Verdict, ...]
    replicas: tuple[Replica, ...]
    warnings: tuple[str, ...] = ()


class Sorted(Struct):
    """All shards, sorted out by what can be said of each alone.

    `said`: by `id` of the shard; `first` and `more`: what runs or may run, by incarnation; `over`: what has ended.
    """

    said: dict[int, Verdict]
    first: dict[str, Shard]
    more: dict[str, list[Shard]]
    over: dict[str, list[Shard]]


def survey(state: State) -> Survey:
    """One verdict per shard and one row per incarnation, from all that is known."""
    there = _sorted_out(state)
    _joined(there.first, there.more)
    replicas, seconds = _gathered(state, there)
    if there.over:
        replicas = [_broken(r, there.over.get(r.incarnation, ())) for r in replicas]
    full = [name for name, node in state.nodes.items() if crowded(node, state.catalog)]
    lost = rivals(state, replicas, full)
    if lost:
        replicas = [_lost(r, lost[r.incarnation]) if r.incarnation in lost else r for r in replicas]
    _judge(state, replicas, gpu_clashes(state, replicas, full) | lost, there.said)
    for r in replicas if seconds else ():
        for shard in seconds.get(r.incarnation, ()):
            there.said[id(shard)] = _verdict(shard, _second(r, shard), r)
    warnings = sorted(w for r in replicas if r.have > 1 for w in _disagreements(r))
    warnings += sorted(_left_behind(state, replicas))
    for incarnation, shards in there.over.items():
        if incarnation not in there.first:
            replicas.append(ended(state.catalog, incarnation, shards))
    said = there.said
    verdicts = [said[id(s)] for name in sorted(state.nodes) for s in state.nodes[name].shards]
    return Survey(tuple(verdicts), tuple(_in_order(replicas)), tuple(warnings))


def _sorted_out(state: State) -> Sorted:
    out = Sorted({}, {}, {}, {})
    said, first = out.said, out.first
    for node in state.nodes.values():
        silent = _silent(state, node)
        for shard in node.shards:
            bucket = _bucket(shard, silent)
            if bucket is not None:
                said[id(shard)] = _verdict(shard, bucket)
                if bucket[0] == "terminal":
                    out.over.setdefault(shard.incarnation, []).append(shard)
                if bucket[0] != "hold":
                    continue
            incarnation = shard.report.incarnation or shard.incarnation
            other = first.setdefault(incarnation, shard)
            if other is not shard:
                out.more.setdefault(incarnation, [other]).append(shard)
    return out


def _gathered(state: State, there: Sorted) -> tuple[list[Replica], dict[str, list[Shard]]]:
    gather, unsure, more = Gatherer(state), frozenset(there.said), there.more
    replicas = []
    for incarnation, shard in there.first.items():
        if incarnation in more:
            replicas.append(gather.several(incarnation, more[incarnation], unsure))
        elif id(shard) in unsure:
            replicas.append(gather.several(incarnation, [shard], unsure))
        else:
            replicas.append(gather.one(incarnation, shard))
    return replicas, gather.seconds


def _broken(r: Replica, over: Sequence[Shard]) -> Replica:
    """A group of which a rank has ended is over (A34, A61), once no member of it still starts (F78).

    Else it would be counted on again in the moment in which its stopping rank is gone, and what was started for it
    stopped.
    """
    if r.have == r.want or not r.members:
        return r
    there = {s.rank for s in r.members}
    lost = any(s.rank < r.want and s.rank not in there for s in over)
    if not lost or any(map(rising, r.members)):
        return r
    return replace(r, state="failed")


def _lost(r: Replica, loser: Lost) -> Replica:
    return replace(r, kept=False, rival=loser.to.incarnation)


def _judge(
    state: State, replicas: list[Replica], lost: dict[str, Lost], said: dict[int, Verdict]
) -> None:
    """A verdict for each member of each replica."""
    superseded = _superseded(state, replicas)
    for r in replicas:
        bucket = _shared(r, lost) if lost or not r.claimed else None
        for shard in r.members:
            found = bucket or _claimed_bucket(state, r, shard, superseded)
            said[id(shard)] = _verdict(shard, found, r)


_NAME = attrgetter("replica")
#: the kept one of a name before those that lost to it
_RANKED = attrgetter("replica", "rival", "incarnation")


def _in_order(replicas: list[Replica]) -> list[Replica]:
    """By name, claimed ones first."""
    alike = len({r.replica for r in replicas}) < len(replicas)
    replicas = sorted(replicas, key=_RANKED if alike else _NAME)
    others = [r for r in replicas if not r.claimed]
    return [r for r in replicas if r.claimed] + others if others else replicas


def _silent(state: State, node: Node) -> Bucket | None:
    """The verdict of all that runs on a node that cannot be asked, or None."""
    name = node.report.node
    if node.too_old:
        protocol = node.report.protocol
        why = f"the agent speaks protocol {protocol}: adopted read-only, upgrade it"
        return ("hold", why, "protocol_too_old")
    if node.connected:
        return None
    if state.settling and not node.unreachable_before:
        return ("hold", f"{name} has not registered yet", "settling")
    return ("hold", f"{name} does not answer; it is left alone", "node_silent")


def _bucket(shard: Shard, silent: Bucket | None) -> Bucket | None:
    """The verdict that needs no other shard, or None: it runs and waits to be claimed."""
    report = shard.report
    if shard.missing:
        why = f"we believed {report.state}; the agent on {shard.node} does not run it"
        return ("forget", why, "not_running")
    if report.node is not None and shard.misplaced:
        why = f"it names node {report.node}, but {shard.node} reported it"
        return ("conflict", why, "wrong_node")
    if report.state in TERMINAL:
        return ("terminal", f"ended: {report.error or report.state}", None)
    if silent is not None:
        return silent
    if report.state == "unknown" or not report.model:
        lacks = "its state is not known" if report.model else "its agent does not say what it runs"
        return ("hold", f"cannot tell: {report.error or lacks}", None)
    return None


def _joined(first: dict[str, Shard], more: dict[str, list[Shard]]) -> None:
    """A half whose older agent leaves the incarnation out belongs to the one half of its replica that has one (F55).

    Else the replica is torn apart while agents are upgraded node by node (A26). Only ranks that the world lacks join:
    anything else is a copy, for the rivals to judge (A37).
    """
    nameless = {inc: _about(s) for inc, s in first.items() if inc.startswith(NAMELESS)}
    for inc, about in nameless.items():
        named = [k for k, s in first.items() if k not in nameless and about == _about(s)]
        both = [s for k in (inc, *named) for s in more.get(k, [first[k]])]
        sizes = {s.report.world_size for s in both if s.report.world_size}
        ranks = [s.rank for s in both]
        # Found by their markers, without a record, neither half may say how many they are.
        fits = len(sizes) < 2 and all(rank < size for rank in ranks for size in sizes)  # noqa: PLR2004
        lacked = fits and len(set(ranks)) == len(ranks)
        if len(named) == 1 and lacked:
            more[named[0]] = both
            more.pop(inc, None)
            del first[inc]


def _about(shard: Shard) -> tuple[str, str]:
    return (shard.report.model, shard.report.replica)


def _superseded(state: State, replicas: list[Replica]) -> dict[str, Shard]:
    """By replica id, what we placed or believed and the fleet does not run: the fleet's copy replaces it (A4, A36)."""
    gone = {s.report.replica: s for n in state.nodes.values() for s in n.shards if s.missing}
    for r in replicas:
        members = r.members
        if members and members[0].origin == PLACED and not members[0].rank:
            placed = all(s.origin == PLACED and not s.was_live for s in members)
            gone |= {r.replica: members[0]} if placed else {}
    return gone


def _shared(r: Replica, lost: dict[str, Lost]) -> Bucket | None:
    """The verdict of all its members: alike where nothing claims it or it lost."""
    if r.reason is not None:
        return ("unclaimed", f"unclaimed: {r.claim}", r.reason)
    return _lost_bucket(lost[r.incarnation]) if r.incarnation in lost else None


def _second(r: Replica, shard: Shard) -> Bucket:
    if r.reason is not None:
        return ("unclaimed", f"unclaimed: {r.claim}", r.reason)
    first = next((s for s in r.members if s.rank == shard.rank), None)
    where = f"is on {first.node}" if first else f"is not one of the {r.want} wanted"
    why = f"rank {shard.rank} of {r.replica} {where}"
    # Of one name on one node no order can mean the one without the other: a person has to look.
    apart = first is not None and (first.node, first.report.shard) != (
        shard.node,
        shard.report.shard,
    )
    up = apart and first is not None and first.report.state in LIVE
    return ("stray" if up else "conflict", why, "duplicate_rank")


def _lost_bucket(loser: Lost) -> Bucket:
    """A stray competes with one that is up; while none is up it is a conflict (contract/cli.md)."""
    exclusive = loser.reason in ("port_conflict", "gpu_conflict")
    up = loser.to.complete_and_ready and not exclusive
    return ("stray" if up else "conflict", loser.why, loser.reason)


def _not_reported(state: State, shard: Shard) -> str:
    """Of what follows others its agent says nothing before they have ended."""
    there = state.nodes[shard.node].shards if shard.after else ()
    still = {(s.report.shard, s.incarnation) for s in there if s.holds}
    names = [name for name, incarnation in shard.after if (name, incarnation) in still]
    if not names:
        return "its agent has not reported it yet"
    return f"it starts once {', '.join(names)} {'has' if len(names) == 1 else 'have'} ended"


def _claimed_bucket(state: State, r: Replica, shard: Shard, superseded: dict[str, Shard]) -> Bucket:
    report = shard.report
    differs = _disagrees(state.catalog, r, shard) if r.have > 1 else None
    if differs is not None:
        return differs
    if shard.origin == PLACED:
        return ("keep", f"placed, {_not_reported(state, shard)}", None)
    reason = "drift" if r.drift else None
    if shard.known:
        return ("keep", f"known, {report.state}", reason)
    older = superseded.get(r.replica) if superseded else None
    if older is not None and older.incarnation != r.incarnation:
        why = (
            f"the fleet runs {r.replica} at {r.endpoint or 'no endpoint yet'}; "
            f"nothing of it runs at {older.report.endpoint or older.node}, where we had it"
        )
        return ("replace", why, "stale_incarnation")
    if report.rank:
        return ("join", f"{r.have} of {r.want} shards", reason)
    since = f"running since {report.started_at}" if report.started_at else "running"
    if report.state == "asleep":
        since = f"{since}, {words(shard)}"
    why = f"{since}, {r.drift or r.claim}"
    if r.have < r.want:
        why += f"; {r.have} of {r.want} shards"
    return ("adopt", why, reason)


def _disagrees(catalog: Catalog, r: Replica, shard: Shard) -> Bucket | None:
    """Pool, fabric, fingerprint: the first that says one counts, another value is a conflict, named (A17)."""
    members = r.members
    for what, reason in (("pool", None), ("fabric", "fabric_conflict")):
        first = next((v for s in members if (v := getattr(s.report, what))), "")
        mine = getattr(shard.report, what)
        if mine and mine != first:
            return ("conflict", f"it is on {what} {mine}, the replica on {first}", reason)
    lead = next((s for s in members if s.report.fingerprint), shard)
    ran, theirs = shard.report.fingerprint, lead.report.fingerprint
    profile = catalog.models[r.model].profile(r.profile)
    if not ran or profile is None:
        return None
    today, there = (profile.fingerprint_on(s.node) for s in (shard, lead))
    # Weights may differ by node, and then fingerprints do: what today's would be on each node tells.
    alike = ran == theirs if today == there else (ran == today) == (theirs == there)
    if alike:
        return None
    why = f"its fingerprint is {ran[:10]}, {lead.report.shard} has {theirs[:10]}"
    return ("conflict", why, "drift")


def _left_behind(state: State, replicas: Sequence[Replica]) -> Iterator[str]:
    for r in replicas:
        if r.endpoint and r.claimed:
            said = left_behind(r, state.nodes[r.members[0].node].report)
            if said:
                yield said


def _disagreements(r: Replica) -> list[str]:
    pools = sorted({s.report.pool for s in r.members if s.report.pool})
    if len(pools) > 1:
        return [f"{r.replica}: its shards name pools {', '.join(pools)}"]
    return []


def _verdict(shard: Shard, bucket: Bucket, replica: Replica | None = None) -> Verdict:
    verdict, why, reason = bucket
    of = replica or shard.report
    return Verdict(
        shard=shard, verdict=verdict, why=why, reason=reason, model=of.model, profile=of.profile
    )
