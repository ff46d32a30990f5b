"""Judges what control decides in the state machine, by the words of acceptance.md and by what the boxes truly run.

Each finding is an AssertionError that names the statement. It may not ask the core what it thinks of its own reasons.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from msgspec import Struct

from llmgw.core.types.catalog import Catalog
from llmgw.core.types.messages import TERMINAL, ShardReport
from llmgw.core.types.plan import (
    DrainReplica,
    NapReplica,
    Plan,
    Replica,
    RollReplica,
    StartReplica,
    StopReplica,
    Wait,
)
from llmgw.core.types.routes import RouteTable
from llmgw.core.types.state import Shard, State
from tests.core.fleet import Box

ASKED = ("operator", "ending")
End = StopReplica | DrainReplica | RollReplica


class Facts(Protocol):
    """`since`: by incarnation, since when this control process knows it; `catalog_s`: since when its catalog counts."""

    state: State
    now: float
    boxes: dict[str, Box]
    since: dict[str, float]
    catalog_s: float


class Case(Struct):
    facts: Facts
    plan: Plan
    row: Replica
    action: End

    @property
    def announced(self) -> bool:
        return isinstance(self.action, StopReplica) and self.action.due_s > 0

    def over(self, window_s: float, *also: float) -> bool:
        """A window since this control has known it, and settled."""
        state = self.facts.state
        since = max(self.facts.since[self.row.incarnation], state.settled_s or 0.0, *also, 0.0)
        return self.facts.now >= since + window_s - 0.001


def judge(facts: Facts, plan: Plan) -> None:
    """All that will be carried out of a plan."""
    acts = [a for a in plan.actions if not isinstance(a, Wait) and not a.withheld]
    ends = [a for a in acts if not isinstance(a, StartReplica | NapReplica)]
    starts = [a for a in acts if isinstance(a, StartReplica)]
    for end in ends:
        _needed(facts, plan, end)
    for start in starts:
        _not_there_yet(facts, plan, start)
    _held_back(facts.state, plan, starts, ends)
    _somebody_stays(facts, plan, ends)


def judge_routes(boxes: dict[str, Box], table: RouteTable) -> None:
    """A31, A41: nobody is sent to what a box, having told everything, does not run, nor to a worker."""
    for model in table.models.values():
        for r in model.replicas:
            box = boxes[r.endpoint.removeprefix("http://").partition(":")[0]]
            if box.known:
                there = [s for s in box.running() if s.endpoint == r.endpoint]
                assert there, f"A41: {r.replica} is routed to {r.endpoint}, nothing is there"
                assert any(not s.rank for s in there), f"A31: {r.endpoint} is no leader's"


def judge_verdicts(facts: Facts, plan: Plan) -> None:
    """Each verdict against the report it is about and the catalog, not against any other verdict."""
    catalog = facts.state.catalog
    claimed = {
        v.shard.incarnation for v in plan.verdicts if claims(catalog, v.shard.report)
    }  # as a whole, A15
    for v in plan.verdicts:
        report, box = v.shard.report, facts.boxes[v.shard.node]
        heard = facts.state.nodes[box.name].connected and box.protocol
        if v.shard.missing:
            assert v.verdict == "forget", "A39"
        elif report.node not in (None, box.name):
            assert (v.verdict, v.reason) == ("conflict", "wrong_node"), "A12"
        elif report.state in TERMINAL:
            assert v.verdict == "terminal", "A44"
        elif not heard or report.state == "unknown":
            assert v.verdict == "hold", f"A39, A46, F55: {v.verdict} of {report.shard}"
        else:
            unclaimed = v.shard.incarnation not in claimed
            assert (v.verdict == "unclaimed") == unclaimed, f"A14-A16: {v.why}"
    for r in plan.replicas:
        leads = [s.report.endpoint for s in r.members if not s.rank]
        assert [r.endpoint] == (leads or [""]), "A31"
        ranks = [s.rank for s in r.members]
        assert ranks == sorted(ranks), "A32"
        assert len({s.incarnation for s in r.members}) <= 1, "A27"
        sizes = {s.report.world_size for s in r.members if s.report.world_size}
        assert r.want in sizes or not (sizes and r.claimed), f"A20: {r.want} of {sizes}"
        ran = {s.report.fingerprint for s in r.members} - {""}
        assert not r.drift or _differs(catalog, r, ran), f"A18: {r.drift}"
        held = any(
            v.verdict == "hold" for v in plan.verdicts if v.shard.incarnation == r.incarnation
        )
        if r.members and not held:
            since = [s.report.started_at for s in r.members if s.report.started_at]
            assert r.started_at == min(since, default=""), "A25"


def claims(catalog: Catalog, report: ShardReport) -> bool:
    """Whether the catalog has something that this is, in the words of A14-A16."""
    model = catalog.resolve(report.model)
    if model is None:
        return False
    for p in model.profiles:
        same = report.fingerprint and report.fingerprint in p.fingerprints.values()
        if p.name == report.profile or same:
            ran, today = report.artefact, p.weights_on("")
            return report.model == model.name or not ran or ran == today
    return False


def shards_of(state: State) -> list[Shard]:
    return [s for node in state.nodes.values() for s in node.shards]


# ---------------------------------------------------------------- what is held back


def _held_back(state: State, plan: Plan, starts: list[StartReplica], ends: list[End]) -> None:
    unasked = [a for a in ends if _reason(a) not in ASKED]
    begun = [a for a in unasked if not _finishes(a)]
    assert not (state.paused and begun), "A48: paused"
    assert not (state.withheld and (starts or unasked)), "A56: another world than was asked for"
    counted = [
        a
        for a in begun
        if a.incarnation not in state.confirmed
        and _reason(a) not in ("idle", "evict", "not_running")
        and any(s.was_live for s in a.shards)
    ]
    running = sum(any(s.was_live for s in r.members) for r in plan.replicas)
    assert len(counted) <= max(2, 0.3 * running), "A49: blast radius"


def _somebody_stays(facts: Facts, plan: Plan, ends: list[End]) -> None:
    """A38: of several that serve a model, what nobody asked for leaves one (a roll without room does not, A66)."""
    excused = (*ASKED, "idle", "evict", "drift", "duplicate_rank")
    going = {a.incarnation for a in ends if _reason(a) not in excused}
    for name in facts.state.catalog.models:
        ready = [r for r in plan.replicas if r.model == name and r.claimed and r.state == "ready"]
        left = [r for r in ready if r.incarnation not in going]
        # Each may stand on a port that another's engine has (A45): a conflict, not a copy.
        in_the_way = not any(r.kept for r in ready)
        assert left or not ready or in_the_way, f"A38: nobody serves {name}"


# ---------------------------------------------------------------- starts


def _not_there_yet(facts: Facts, plan: Plan, start: StartReplica) -> None:
    """A2: what runs, is claimed and is known is not started again, up to what is wanted."""
    scaling = facts.state.catalog.models[start.model].scaling
    over = ("draining", "failed", "stopped")
    kept = [r for r in plan.replicas if r.model == start.model and r.kept and r.state not in over]
    planned = sum(isinstance(a, StartReplica) and a.model == start.model for a in plan.actions)
    # A further one is for a queue that lasts, whatever that is: never beyond `max`.
    crowd = scaling.max if len(kept) == len([r for r in kept if r.state == "ready"]) else 0
    assert len(kept) + planned <= max(scaling.min, 1, crowd), f"A2: {start.why}"
    for box in facts.boxes.values():
        node = facts.state.nodes.get(box.name)
        if node is not None and box.known:
            here = {(s.report.shard, s.report.incarnation) for s in node.shards if s.holds}
            assert here >= {(s.shard, s.incarnation) for s in box.running()}, "A1"


# ---------------------------------------------------------------- ends


def _needed(facts: Facts, plan: Plan, a: End) -> None:
    assert a.shards, "A5: an end names what ends"
    for s in a.shards:
        assert facts.state.nodes[s.node].connected, f"F61: {s.node} cannot be heard"
    row = next(r for r in plan.replicas if r.incarnation == a.incarnation)
    if _finishes(a):
        leaving = any(s.report.desired != "running" for s in (*row.members, *a.shards))
        assert leaving or a.incarnation in facts.state.draining, "A65: no drain began"
        return
    reason = _reason(a)
    assert REASONS[reason](Case(facts, plan, row, a)), f"{reason} of {a.replica}: {a.why}"


def _reason(a: End) -> str:
    return "drift" if isinstance(a, RollReplica) else a.reason


def _finishes(a: End) -> bool:
    return isinstance(a, StopReplica) and a.drained


def _unclaimed(case: Case) -> bool:
    """A48: nothing claims it, and its grace is over when it ends."""
    catalog = case.facts.state.catalog
    gone = not any(claims(catalog, s.report) for s in case.action.shards)
    return gone and (case.announced or case.over(catalog.stray_grace_s, case.facts.catalog_s))


def _copy(case: Case) -> bool:
    """A38: only once the kept one can serve; one that never came up just goes."""
    others = (r for r in case.plan.replicas if r.kept and r.model == case.row.model)
    never_up = not any(s.was_live for s in case.action.shards)
    return never_up or any(r.state == "ready" and r is not case.row for r in others)


def _second(case: Case) -> bool:
    (mine,) = case.action.shards
    first = [s for s in case.row.members if s.rank == mine.rank]
    return bool(first) and first[0] is not mine


def _port(case: Case) -> bool:
    others = (s for r in case.plan.replicas if r is not case.row for s in r.members)
    taken = {(s.node, port) for s in others for port in _ports(s)}
    return any((s.node, port) in taken for s in case.action.shards for port in _ports(s))


def _ports(shard: Shard) -> tuple[int, ...]:
    return (shard.report.port, *shard.report.ports.values())


def _idle(case: Case) -> bool:
    """A22: a whole timeout since this control has known it."""
    state, model = case.facts.state, case.row.model
    timeout_s = state.catalog.models[model].scaling.idle_timeout_s
    waiting = any(g.demand.waiting.get(model) for g in state.gateways.values())
    known_s = case.facts.now - case.facts.since[case.row.incarnation]
    return timeout_s is not None and not waiting and known_s >= timeout_s


def _evicted(case: Case) -> bool:
    """A63, A64: on demand, up, beyond its `min`; in use only where somebody waits for another model."""
    state, row = case.facts.state, case.row
    model = state.catalog.models[row.model]
    kept = [r for r in case.plan.replicas if r.model == row.model and r.kept and not r.going]
    waited = any(
        m != row.model and n for g in state.gateways.values() for m, n in g.demand.waiting.items()
    )
    used = any(g.demand.in_flight.get(row.replica) for g in state.gateways.values())
    free = model.on_demand and model.scaling.idle_timeout_s is not None
    up = all(s.report.state in ("ready", "asleep") for s in case.action.shards)
    return free and up and len(kept) > model.scaling.min and (waited or not used)


def _short(case: Case) -> bool:
    lacking = case.row.have < case.row.want and not case.row.held
    window_s = case.facts.state.catalog.assembly_window_s
    return lacking and (case.announced or case.over(window_s))


def _broken(case: Case) -> bool:
    """A34: a rank of it has ended, or is not there."""
    over = ("terminal", "forget")
    same = (v for v in case.plan.verdicts if v.shard.incarnation == case.row.incarnation)
    return any(v.verdict in over for v in same)


def _drifted(case: Case) -> bool:
    ran = {s.report.fingerprint for s in case.action.shards} - {""}
    return _differs(case.facts.state.catalog, case.row, ran)


def _differs(catalog: Catalog, r: Replica, ran: set[str]) -> bool:
    profile = catalog.models[r.model].profile(r.profile)
    return profile is not None and bool(ran - {*profile.fingerprints.values()})


REASONS: dict[str, Callable[[Case], bool]] = {
    "model_removed": _unclaimed,
    "profile_removed": _unclaimed,
    "artefact_mismatch": _unclaimed,
    "duplicate_replica": _copy,
    "duplicate_rank": _second,
    "port_conflict": _port,
    "idle": _idle,
    "evict": _evicted,
    "short_after_window": _short,
    "not_running": _broken,
    "drift": _drifted,
}
