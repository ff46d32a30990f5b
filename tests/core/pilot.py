"""Control for the state machine: it folds, decides and carries out as llmgw.control does, and is judged at every step.

Each finding is an AssertionError that names the statement. Judged by the words of acceptance.md and by what the boxes
truly run, not by what the core believes.
"""

from __future__ import annotations

from msgspec.structs import replace

from llmgw.core import route
from llmgw.core.adopt.survey import Survey, survey
from llmgw.core.check import plan_violations, violations
from llmgw.core.place import start_message
from llmgw.core.reconcile.decide import acknowledged, decide
from llmgw.core.reconcile.fresh import Memory, started
from llmgw.core.reconcile.observe import observe
from llmgw.core.types.catalog import Catalog
from llmgw.core.types.messages import TERMINAL, Command, DrainShard, ForgetShard, StopShard
from llmgw.core.types.plan import (
    Action,
    DrainReplica,
    Plan,
    Replica,
    RollReplica,
    StartReplica,
    StopReplica,
    Wait,
)
from llmgw.core.types.routes import RouteTable
from llmgw.core.types.state import (
    Announced,
    CatalogLoaded,
    DrainBegun,
    Event,
    NodeRegistered,
    Placed,
    Published,
    SessionLost,
    Shard,
    ShardsChanged,
    State,
    Tick,
)
from tests.core.fleet import Box

SETTLE_S = 60.0
ASKED = ("operator", "ending")
#: Facts that are whole in themselves: said twice, they are the same.
TWICE = (SessionLost, CatalogLoaded, Placed, DrainBegun, Published, Announced, Tick)
MERGES = (NodeRegistered, ShardsChanged, SessionLost, CatalogLoaded, Placed)
End = StopReplica | DrainReplica | RollReplica


class Pilot:
    def __init__(self, boxes: dict[str, Box], catalog: Catalog, memory: Memory, now: float) -> None:
        self.boxes = boxes
        self.now = now
        self.started_s = now
        self.version = 0
        self.placed = 0
        self.state = started(
            catalog, memory, now=now, settle_timeout_s=SETTLE_S, keep_unknown=False
        )
        #: by incarnation, since when this control process knows it
        self.since: dict[str, float] = {}
        self.catalog_s = now

    # ------------------------------------------------------------ facts

    def fold(self, event: Event) -> None:
        before, now = self.state, self.now
        after = observe(before, event, now)
        if isinstance(event, TWICE):
            assert observe(after, event, now) == after, "A11: the same fact twice is one"
        if isinstance(event, MERGES):
            for name, since in after.wanted_s.items():
                assert since == before.wanted_s.get(name, now), "A23: merges do not renew"
        if isinstance(event, NodeRegistered):
            self._registered(event, after)
        if isinstance(event, CatalogLoaded):
            self.catalog_s = now
        self.state = after
        for shard in _shards(after):
            self.since.setdefault(shard.incarnation, now)

    def _registered(self, event: NodeRegistered, after: State) -> None:
        report, now = event.report, self.now
        there = {(s.report.shard, s.report.incarnation): s for s in after.nodes[report.node].shards}
        for s in report.shards:
            shard = there[s.shard, s.incarnation]
            assert shard.holds == (s.state not in TERMINAL), "A1, A44"
        backwards = NodeRegistered(replace(report, shards=report.shards[::-1]))
        assert observe(self.state, backwards, now) == after, "A10: the order of shards"
        twice = observe(after, event, now)
        assert observe(twice, event, now) == twice, "A11: the same report again"
        assert twice.wanted_s == after.wanted_s, "A23: reconnects do not renew"

    # ------------------------------------------------------------ a pass

    def look(self) -> tuple[Survey, Plan]:
        found = survey(self.state)
        plan = decide(self.state, self.now, found)
        assert violations(self.state, found) == []
        assert plan_violations(self.state, plan) == [], "A46"
        return found, plan

    def run(self) -> None:
        self.fold(Tick())
        found, plan = self.look()
        self._judge(plan)
        commands: list[tuple[str, Command]] = []
        for action in plan.actions:
            if isinstance(action, Wait) or action.withheld:
                continue
            if not self._act(action, commands):
                break
        self._announce(plan)
        self._send(commands + self._repeats())
        self._publish(found)

    def _act(self, action: Action, commands: list[tuple[str, Command]]) -> bool:
        match action:
            case StartReplica() | RollReplica(spots=(_, *_)):
                return self._start(action, commands)
            case RollReplica():
                self._drain(action, "drift", commands)
            case DrainReplica():
                self._drain(action, action.reason, commands)
            case StopReplica(due_s=0.0):
                for s in action.shards:
                    order = StopShard(
                        shard=s.report.shard,
                        incarnation=s.report.incarnation,
                        reason=action.reason,
                    )
                    commands.append((s.node, order))
            case _:
                pass
        return True

    def _start(
        self, action: StartReplica | RollReplica, commands: list[tuple[str, Command]]
    ) -> bool:
        if not all(self.boxes[s.node].registered for s in action.spots):
            return False
        self.placed += 1
        n = f"{self.started_s:.0f}x{self.placed}"
        model = self.state.catalog.models[action.model]
        orders = start_message(
            self.state, model, (action.profile, action.spots), f"{model.name}-{n}", f"new-{n}"
        )
        for name, order in orders:
            self.fold(Placed(name, order))
            commands.append((name, order))
        return True

    def _drain(
        self, action: DrainReplica | RollReplica, reason: str, commands: list[tuple[str, Command]]
    ) -> None:
        if isinstance(action, RollReplica) or action.whole:
            self.fold(DrainBegun(action.incarnation, reason, action.why))
        commands += (_drain_order(s, reason) for s in action.shards)

    def _repeats(self) -> list[tuple[str, Command]]:
        state = self.state
        again = [
            _drain_order(s, state.draining[s.incarnation].reason)
            for s in _shards(state)
            if s.incarnation in state.draining and s.holds and s.report.desired == "running"
        ]
        commands: list[tuple[str, Command]] = [] if state.settling else again
        for s in acknowledged(state):
            r = s.report
            commands.append((s.node, ForgetShard(shard=r.shard, incarnation=r.incarnation)))
        return commands

    def _send(self, commands: list[tuple[str, Command]]) -> None:
        for name, command in commands:
            box = self.boxes[name]
            if not box.registered or box.cut:
                continue
            refusal = box.obey(command)
            if refusal is not None:
                assert not box.known, f"asked for what it knew to be taken: {refusal}"
                self.fold(ShardsChanged(name, refused=(refusal,)))

    def _announce(self, plan: Plan) -> None:
        lacking = frozenset(v.shard.incarnation for v in plan.verdicts if v.verdict == "forget")
        if lacking:
            self.fold(Announced(lacking))

    def _publish(self, found: Survey) -> None:
        table = route.table(self.state, found, self.version + 1)
        self._routes(table)
        self.version += 1
        draining = route.incarnations(table, "draining")
        routed = route.incarnations(table, "ready") | draining
        version = self.state.first_version + self.version
        self.fold(Published(version, routed, draining))

    # ------------------------------------------------------------ judgement

    def _routes(self, table: RouteTable) -> None:
        """A41: nobody is sent to what a box, having told everything, does not run."""
        for model in table.models.values():
            for r in model.replicas:
                name = r.endpoint.removeprefix("http://").partition(":")[0]
                box = self.boxes.get(name)
                if box is not None and box.known:
                    live = [s for s in box.running() if s.endpoint == r.endpoint]
                    assert live, f"A41: {r.replica} is routed to {r.endpoint}, nothing is there"

    def _judge(self, plan: Plan) -> None:
        acts = [a for a in plan.actions if not isinstance(a, Wait) and not a.withheld]
        ends = [a for a in acts if isinstance(a, End)]
        for a in ends:
            self._needed(plan, a)
        for a in acts:
            if isinstance(a, StartReplica):
                self._not_there_yet(plan, a)
        self._held_back(plan, acts)
        self._somebody_stays(plan, ends)

    def _held_back(self, plan: Plan, acts: list[Action]) -> None:
        state = self.state
        begun = [a for a in acts if isinstance(a, End) and not _finishes(a)]
        unasked = [a for a in begun if isinstance(a, RollReplica) or a.reason not in ASKED]
        assert not (state.paused and unasked), "A48: paused"
        if state.withheld:
            others = [a for a in acts if not isinstance(a, StopReplica | DrainReplica)]
            others += [a for a in acts if isinstance(a, StopReplica) and a.reason not in ASKED]
            assert not unasked
            assert not others, "A56: another world than was asked for"
        counted = [
            a
            for a in unasked
            if a.incarnation not in state.confirmed
            and (isinstance(a, RollReplica) or a.reason not in ("idle", "not_running"))
            and any(s.was_live for s in a.shards)
        ]
        running = sum(any(s.was_live for s in r.members) for r in plan.replicas)
        assert len(counted) <= max(2, 0.3 * running), "A49: blast radius"

    def _somebody_stays(self, plan: Plan, ends: list[End]) -> None:
        """A38: of several that serve a model, a pass that nobody asked for leaves one (A66 says when a roll may not)."""
        going = {
            a.incarnation
            for a in ends
            if not (isinstance(a, RollReplica) or a.reason in (*ASKED, "idle"))
            and not (isinstance(a, DrainReplica) and not a.whole)
        }
        for name in self.state.catalog.models:
            ready = [
                r for r in plan.replicas if r.model == name and r.claimed and r.state == "ready"
            ]
            left = [r for r in ready if r.incarnation not in going]
            assert left or not ready or _all_in_the_way(plan, ready), f"A38: nobody serves {name}"

    def _not_there_yet(self, plan: Plan, start: StartReplica) -> None:
        """A2: what runs, is claimed and is known is not started again, up to what is wanted."""
        scaling = self.state.catalog.models[start.model].scaling
        kept = [
            r
            for r in plan.replicas
            if r.model == start.model
            and r.kept
            and r.state not in ("draining", "failed", "stopped")
        ]
        planned = sum(isinstance(a, StartReplica) and a.model == start.model for a in plan.actions)
        assert len(kept) + planned <= max(scaling.min, 1), f"A2: {start.why}"
        for box in self.boxes.values():
            node = self.state.nodes.get(box.name)
            if node is None or not box.known:
                continue
            here = {s.incarnation for s in node.shards if s.holds}
            assert here >= {s.incarnation for s in box.running()}, "A1: not represented"

    def _needed(self, plan: Plan, a: End) -> None:
        reason = "drift" if isinstance(a, RollReplica) else a.reason
        rows = {r.incarnation: r for r in plan.replicas}
        assert a.shards, "A5: an end names what ends"
        if _finishes(a):
            begun = a.incarnation in self.state.draining
            assert begun or all(s.report.desired != "running" for s in a.shards), "A65"
            return
        assert reason in self.REASONS, reason
        said = self.REASONS[reason](self, plan, rows[a.incarnation], a)
        assert said, f"{reason} is not true of {a.replica}: {a.why}"

    def _unclaimed(self, plan: Plan, r: Replica, a: End) -> bool:
        """A48: nothing claims it, and its grace is over when it ends."""
        since = max(self.since[r.incarnation], self.state.settled_s or 0.0, self.catalog_s)
        due = since + self.state.catalog.stray_grace_s
        early = isinstance(a, StopReplica) and a.due_s > 0
        model = self.state.catalog.resolve(a.shards[0].report.model)
        gone = model is None or model.profile(a.shards[0].report.profile) is None
        moved = model is not None and model.name != a.shards[0].report.model
        return (gone or moved) and (early or self.now >= due - 0.001)

    def _copy(self, plan: Plan, r: Replica, a: End) -> bool:
        others = [k for k in plan.replicas if k.kept and k.model == r.model and k is not r]
        return any(k.complete_and_ready for k in others) or not any(s.was_live for s in a.shards)

    def _second(self, plan: Plan, r: Replica, a: End) -> bool:
        (mine,) = a.shards
        counts = [s for s in r.members if s.rank == mine.rank]
        return bool(counts) and counts[0] is not mine

    def _port(self, plan: Plan, r: Replica, a: End) -> bool:
        mine = {(s.node, s.report.port) for s in a.shards}
        return any(
            (s.node, s.report.port) in mine for k in plan.replicas if k is not r for s in k.members
        )

    def _idle(self, plan: Plan, r: Replica, a: End) -> bool:
        """A22: a whole timeout since this control has known it."""
        timeout_s = self.state.catalog.models[r.model].scaling.idle_timeout_s
        waited = any(g.demand.waiting.get(r.model) for g in self.state.gateways.values())
        assert timeout_s is not None
        return not waited and self.now - self.since[r.incarnation] >= timeout_s

    def _short(self, plan: Plan, r: Replica, a: End) -> bool:
        since = max(self.since[r.incarnation], self.state.settled_s or 0.0)
        over = self.now >= since + self.state.catalog.assembly_window_s - 0.001
        early = isinstance(a, StopReplica) and a.due_s > 0
        return r.have < r.want and not r.held and (early or over)

    def _broken(self, plan: Plan, r: Replica, a: End) -> bool:
        ended = ("terminal", "forget")
        return any(
            v.shard.incarnation == r.incarnation and v.verdict in ended for v in plan.verdicts
        )

    def _drifted(self, plan: Plan, r: Replica, a: End) -> bool:
        profile = self.state.catalog.models[r.model].profile(r.profile)
        assert profile is not None
        return any(s.report.fingerprint != profile.fingerprint_on(s.node) for s in a.shards)

    REASONS = {
        "model_removed": _unclaimed,
        "profile_removed": _unclaimed,
        "artefact_mismatch": _unclaimed,
        "duplicate_replica": _copy,
        "duplicate_rank": _second,
        "port_conflict": _port,
        "idle": _idle,
        "short_after_window": _short,
        "not_running": _broken,
        "drift": _drifted,
    }


def _finishes(a: End) -> bool:
    return isinstance(a, StopReplica) and a.drained


def _all_in_the_way(plan: Plan, ready: list[Replica]) -> bool:
    """Each stands on a port that another's engine has (A45): a conflict, not a copy."""
    return all(not r.kept for r in ready) and any(r.rival for r in ready)


def _shards(state: State) -> list[Shard]:
    return [s for node in state.nodes.values() for s in node.shards]


def _drain_order(s: Shard, reason: str) -> tuple[str, Command]:
    r = s.report
    return s.node, DrainShard(shard=r.shard, incarnation=r.incarnation, reason=reason)
