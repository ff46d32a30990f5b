"""Control for the state machine: it folds, decides and carries out as llmgw.control does.

What holds of every fact is asserted here, with the statement it breaks; what is decided is judged by tests.core.judge.
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
    RollReplica,
    StartReplica,
    StopReplica,
    Wait,
)
from llmgw.core.types.state import (
    PLACED,
    QUIET_S,
    REMEMBERED,
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
from tests.core.judge import judge, judge_routes, judge_verdicts, shards_of

SETTLE_S = 60.0
#: Facts that are whole in themselves: said twice, they are the same.
TWICE = (SessionLost, CatalogLoaded, Placed, DrainBegun, Published, Announced, Tick)
MERGES = (NodeRegistered, ShardsChanged, SessionLost, CatalogLoaded, Placed)


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
        #: A47: nodes to wait for, and when one was first heard of last
        self.expected = {r.node for r, unreachable in memory.nodes if not unreachable}
        self.remembered = {r.node for r, _ in memory.nodes}
        self.last_new_s = now

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
        if after.settled_s is not None and before.settled_s is None:
            self._settled(after)
        self.state = after
        for shard in shards_of(after):
            self.since.setdefault(shard.incarnation, now)

    def _registered(self, event: NodeRegistered, after: State) -> None:
        report, now = event.report, self.now
        if self.boxes[report.node].told is None:
            self.last_new_s = now
        there = {(s.report.shard, s.report.incarnation): s for s in after.nodes[report.node].shards}
        before = self.state.nodes.get(report.node)
        old = {s.key: s for s in before.shards} if before else {}
        for s in report.shards:
            shard = there[s.shard, s.incarnation]
            assert shard.holds == (s.state not in TERMINAL), "A1, A44"
            was = old.get(shard.key)
            same = was is not None and was.origin != REMEMBERED
            assert shard.known == same, "A28: recognised by what it is, not by how it is"
            assert shard.seen_s == (was.seen_s if was and same else now)
        for was in old.values():
            lacking = not any(was.may_be(s) for s in there.values() if not s.missing)
            believed = was.holds and was.origin != PLACED and not was.misplaced
            if lacking and (believed or was.missing):
                assert there[was.report.shard, was.report.incarnation].missing, "A39"
            elif lacking:
                assert (was.report.shard, was.report.incarnation) not in there, "A39, A40"
        backwards = NodeRegistered(replace(report, shards=report.shards[::-1]))
        assert observe(self.state, backwards, now) == after, "A10: the order of shards"
        twice = observe(after, event, now)
        assert observe(twice, event, now) == twice, "A11: the same report again"
        assert twice.wanted_s == after.wanted_s, "A23: reconnects do not renew"

    def _settled(self, after: State) -> None:
        """A46, A47, in their words: all that were expected are heard, or time is up, or it has been quiet."""
        heard = {name for name, box in self.boxes.items() if box.told is not None}
        waited = self.now - self.started_s >= SETTLE_S
        quiet = bool(heard) and self.now - self.last_new_s >= QUIET_S
        known = self.expected or self.remembered
        all_heard = bool(known) and known <= heard
        assert waited or all_heard or (not self.expected and quiet), "A46, A47"
        assert after.settled_s == self.now

    # ------------------------------------------------------------ a pass

    def look(self) -> tuple[Survey, Plan]:
        found = survey(self.state)
        plan = decide(self.state, self.now, found)
        assert violations(self.state, found) == []
        assert plan_violations(self.state, plan) == [], "A46"
        judge_verdicts(self, plan)
        return found, plan

    def run(self) -> None:
        self.fold(Tick())
        found, plan = self.look()
        judge(self, plan)
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
        if not all(
            self.boxes[s.node].registered and self.boxes[s.node].protocol for s in action.spots
        ):
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
            for s in shards_of(state)
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
            if not box.registered or box.cut or not box.protocol:
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
        judge_routes(self.boxes, table)
        self.version += 1
        draining = route.incarnations(table, "draining")
        routed = route.incarnations(table, "ready") | draining
        version = self.state.first_version + self.version
        self.fold(Published(version, routed, draining))


def _drain_order(s: Shard, reason: str) -> tuple[str, Command]:
    r = s.report
    return s.node, DrainShard(shard=r.shard, incarnation=r.incarnation, reason=reason)
