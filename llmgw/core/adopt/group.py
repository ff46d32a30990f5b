"""All shards of one incarnation as one replica: one shard a rank, state derived (A20, A25-A32, A61).

Knows one group and the facts about it; rivals between groups are `rivals`' business.
"""

from __future__ import annotations

from collections.abc import Iterable

from msgspec import Struct
from msgspec.structs import replace

from llmgw.core.adopt.claim import Claim, claimed, drift_of, wanted_shards
from llmgw.core.types.catalog import Catalog
from llmgw.core.types.messages import LIVE, STARTING
from llmgw.core.types.plan import Replica
from llmgw.core.types.state import Shard, State

#: sorts after every ISO time: an unknown age counts as youngest (A25)
YOUNGEST = "~"


class Group(Struct):
    """Scratch of one pass: all shards of one incarnation that run or may run."""

    incarnation: str
    claim: Claim
    counted: dict[int, Shard]
    rivals: list[Shard]
    held: dict[int, Shard]
    replica: Replica


def group_of(state: State, incarnation: str, found: list[tuple[Shard, bool]]) -> Group:
    """One incarnation: claimed as a whole (A15), one shard a rank (A27)."""
    found.sort(key=lambda sb: (sb[0].rank, sb[1], _shard_order(state, sb[0])))
    shards = [s for s, _ in found]
    claim = claimed(state.catalog, shards)
    counted: dict[int, Shard] = {}
    rivals: list[Shard] = []
    held: dict[int, Shard] = {}
    for shard, is_held in found:
        if is_held:
            held.setdefault(shard.rank, shard)
        elif shard.rank in counted:
            rivals.append(shard)
        else:
            counted[shard.rank] = shard
    want = wanted_shards(claim.profile, shards)
    if claim.reason is None:
        rivals += [counted.pop(rank) for rank in sorted(counted) if rank >= want]
    else:
        # Nothing says how many an unclaimed one had: each is its member, else nobody would ever stop it (A48).
        want = max(want, *(rank + 1 for rank in counted), 1)
    group = Group(incarnation, claim, counted, rivals, held, _EMPTY)
    group.replica = _replica(state, group, want)
    return group


def _shard_order(state: State, shard: Shard) -> tuple[bool, bool, float, str, str]:
    """Of two shards of one rank: the ready one, the longest running, the lowest node (A38).

    One that was never heard of when settling was over comes last, whatever age it claims: an incarnation is placed
    once, so it is a copy or a lie, and must not take the place of what runs.
    """
    report = shard.report
    settled_s = state.settled_s
    return (
        report.state != "ready",
        report.state not in LIVE,
        max(shard.seen_s, settled_s) if settled_s is not None else 0.0,
        report.started_at or YOUNGEST,
        shard.node,
    )


_EMPTY = Replica(replica="", incarnation="", model="", profile="", have=0, want=0, state="stopped")


def _replica(state: State, g: Group, want: int) -> Replica:
    members = tuple(g.counted[r] for r in sorted(g.counted))
    everyone = members or tuple(g.held.values()) or tuple(g.rivals)
    there = (*members, *g.held.values())
    lead = everyone[0].report
    claim = g.claim
    is_claimed = claim.reason is None
    rank0 = g.counted.get(0)
    endpoint = rank0.report.endpoint if rank0 else ""
    return Replica(
        replica=lead.replica,
        incarnation=g.incarnation,
        model=claim.model.name if claim.model and is_claimed else lead.model,
        profile=claim.profile.name if claim.profile and is_claimed else lead.profile,
        have=len(members),
        want=want,
        state=_state(state, g, members, want),
        endpoint=endpoint,
        members=members,
        claimed=is_claimed,
        kept=is_claimed,
        held=bool(set(g.held) - set(g.counted)),
        drift=drift_of(claim.profile, members) if claim.profile and is_claimed else "",
        started_at=min((s.report.started_at for s in there if s.report.started_at), default=""),
        in_flight=sum(v.demand.in_flight.get(lead.replica, 0) for v in state.gateways.values()),
    )


def _state(state: State, g: Group, members: tuple[Shard, ...], want: int) -> str:
    """Derived, never assigned (A25, A61): ready only if every wanted shard is ready."""
    if leaving(state, g.incarnation, members):
        return "draining"
    if set(g.held) - set(g.counted):
        return "degraded"
    states = {s.report.state for s in members}
    if len(members) < want:
        return "assembling"
    if states & STARTING:
        return "starting"
    return "ready" if states == {"ready"} else "degraded"


def leaving(state: State, incarnation: str, members: Iterable[Shard]) -> bool:
    """On its way out: drained by us, or its agent has it in the journal (A65 survives restarts)."""
    return incarnation in state.draining or any(
        s.report.desired != "running" or s.report.state in ("draining", "stopping") for s in members
    )


def ended(catalog: Catalog, incarnation: str, shards: list[Shard]) -> Replica:
    claim = claimed(catalog, shards)
    lead = shards[0].report
    failed = any(s.report.state == "failed" for s in shards)
    return replace(
        _EMPTY,
        replica=lead.replica,
        incarnation=incarnation,
        model=claim.model.name if claim.model and claim.reason is None else lead.model,
        profile=claim.profile.name if claim.profile and claim.reason is None else lead.profile,
        want=wanted_shards(claim.profile, shards),
        state="failed" if failed else "stopped",
        claimed=claim.reason is None,
        kept=False,
    )
