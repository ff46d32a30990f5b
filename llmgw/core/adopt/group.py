"""All shards of one incarnation as one replica: one shard a rank, state derived (A20, A25-A32, A61).

Knows one group and the facts about it; rivals between groups are `rivals`' business.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable

from msgspec.structs import replace

from llmgw.core.adopt.claim import Claim, Claims, claimed, drift_of, wanted_shards
from llmgw.core.types.catalog import Catalog, Profile
from llmgw.core.types.messages import LIVE, STARTING
from llmgw.core.types.plan import Replica
from llmgw.core.types.state import REPORTED, Shard, State

#: sorts after every ISO time: an unknown age counts as youngest (A25)
YOUNGEST = "~"


def since(started_at: str) -> str:
    """An ISO time as a key of its order: "…:00.5Z" comes after "…:00Z", as text it would not."""
    return started_at.removesuffix("Z") or YOUNGEST


class Gatherer:
    """Makes replicas for one pass; knows what all of them ask for: the claims, and what gateways have in flight.

    `seconds`: by incarnation, shards of a rank that has one, or of none that is wanted.
    """

    def __init__(self, state: State) -> None:
        self._state = state
        self._claims = Claims(state.catalog)
        self._in_flight: dict[str, int] = {}
        self.seconds: dict[str, list[Shard]] = {}
        for gateway in state.gateways.values():
            for replica, count in gateway.demand.in_flight.items():
                self._in_flight[replica] = self._in_flight.get(replica, 0) + count

    def one(self, incarnation: str, shard: Shard) -> Replica:
        """By far the most have one shard: what `several` makes of it, in a third of the time (P8)."""
        report = shard.report
        claim, drift = self._claims.of_one(shard)
        want = report.world_size or wanted_shards(claim.profile, ())
        if want != 1 or report.rank:
            return self.several(incarnation, [shard], ())
        state = report.state
        if state != "ready" or report.desired != "running" or incarnation in self._state.draining:
            state = _state(self._state, incarnation, (shard,), 1)
        if claim.reason is not None or self._in_flight:
            return self._row(incarnation, (shard,), claim, drift, (1, state, report.started_at))
        return Replica(
            replica=report.replica,
            incarnation=incarnation,
            model=claim.name,
            profile=claim.profile_name,
            have=1,
            want=1,
            state=state,
            endpoint=report.endpoint,
            members=(shard,),
            claim=claim.why,
            drift=drift,
            started_at=report.started_at,
        )

    def several(self, incarnation: str, found: list[Shard], unsure: Collection[int]) -> Replica:
        """One incarnation: claimed as a whole (A15), one shard a rank (A27). `unsure`: `id`s of held ones."""
        shards = sorted(
            found, key=lambda s: (s.rank, id(s) in unsure, _shard_order(self._state, s, None))
        )
        claim = self._claims.of(shards)
        if len({s.rank for s in shards}) < len(shards):
            today = claim.owner
            shards.sort(
                key=lambda s: (s.rank, id(s) in unsure, _shard_order(self._state, s, today))
            )
        counted: dict[int, Shard] = {}
        rivals: list[Shard] = []
        held: dict[int, Shard] = {}
        for shard in shards:
            if id(shard) in unsure:
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
        if rivals:
            self.seconds[incarnation] = rivals
        members = tuple(counted[r] for r in sorted(counted))
        state = _state(self._state, incarnation, members, want)
        silent = bool(held.keys() - counted.keys())
        if silent and state != "draining":
            state = "degraded"
        there = (*members, *held.values())
        oldest = min((s.report.started_at for s in there), key=since, default="")
        drift = drift_of(claim.owner, members)
        row = self._row(incarnation, there or (rivals[0],), claim, drift, (want, state, oldest))
        endpoint = counted[0].report.endpoint if 0 in counted else ""
        return replace(row, have=len(members), members=members, endpoint=endpoint, held=silent)

    def _row(
        self,
        incarnation: str,
        shards: tuple[Shard, ...],
        claim: Claim,
        drift: str,
        about: tuple[int, str, str],
    ) -> Replica:
        lead, own = shards[0].report, claim.reason is None
        want, state, since = about
        return Replica(
            replica=lead.replica,
            incarnation=incarnation,
            model=claim.name if own else lead.model,
            profile=claim.profile_name if own else lead.profile,
            have=len(shards),
            want=want,
            state=state,
            endpoint=lead.endpoint,
            members=shards,
            claimed=own,
            claim=claim.why,
            reason=claim.reason,
            kept=own,
            drift=drift,
            started_at=since,
            in_flight=self._in_flight.get(lead.replica, 0),
        )


def _shard_order(
    state: State, shard: Shard, profile: Profile | None
) -> tuple[bool, bool, float, bool, str, str]:
    """Of two shards of one rank: the ready one, today's profile, the longest running, the lowest node (A38).

    One that was never heard of when settling was over comes last, whatever age it claims: an incarnation is placed
    once, so it is a copy or a lie, and must not take the place of what runs.
    """
    report = shard.report
    settled_s = state.settled_s
    return (
        report.state != "ready",
        report.state not in LIVE,
        max(shard.seen_s, settled_s) if settled_s is not None else 0.0,
        bool(drift_of(profile, (shard,))),
        since(report.started_at),
        shard.node,
    )


def dying(shard: Shard) -> bool:
    """It failed, nobody ordered its end, and what is left of it is torn down: a group loses a rank by that (A34)."""
    return shard.report.state == "stopping" and shard.report.desired == "running"


def rising(shard: Shard) -> bool:
    """Its process is on its way up, and slow peers must not set off restart storms (F78).

    What its agent has not spawned yet is no process: a leader that waits for workers, one of which has ended, waits for
    nothing.
    """
    state = shard.report.state
    return state in STARTING and not (state == "pending" and shard.origin == REPORTED)


_READY = {"ready"}
_ASLEEP = {"asleep"}
_ON_THEIR_WAY_OUT = frozenset({"draining", "stopping"})
_EMPTY = Replica(replica="", incarnation="", model="", profile="", have=0, want=0, state="stopped")


def _state(state: State, incarnation: str, members: tuple[Shard, ...], want: int) -> str:
    """Derived, never assigned (A25, A61): ready only if every wanted shard is ready."""
    left = members if want == 1 else tuple(s for s in members if not dying(s))
    if leaving(state, incarnation, left):
        return "draining"
    if len(members) < want:
        return "assembling"
    if len(left) < want:
        return "starting" if any(map(rising, left)) else "failed"
    states = {s.report.state for s in members}
    if states == _READY:
        return "ready"
    if states == _ASLEEP:
        return "asleep"
    return "starting" if states & STARTING else "degraded"


def leaving(state: State, incarnation: str, members: Iterable[Shard]) -> bool:
    """On its way out: drained by us, or its agent has it in the journal (A65 survives restarts)."""
    if incarnation in state.draining:
        return True
    for shard in members:
        report = shard.report
        if report.desired != "running" or report.state in _ON_THEIR_WAY_OUT:
            return True
    return False


def ended(catalog: Catalog, incarnation: str, shards: list[Shard]) -> Replica:
    claim = claimed(catalog, shards)
    lead = shards[0].report
    failed = any(s.report.state == "failed" for s in shards)
    return replace(
        _EMPTY,
        replica=lead.replica,
        incarnation=incarnation,
        model=claim.name if claim.reason is None else lead.model,
        profile=claim.profile_name if claim.reason is None else lead.profile,
        want=wanted_shards(claim.profile, shards),
        state="failed" if failed else "stopped",
        claimed=claim.reason is None,
        kept=False,
    )
