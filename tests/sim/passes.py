"""What control does with a plan, as llmgw.control.loop: decide, apply, announce, persist, send, publish, answer.

Between any two of these it may be killed or stopped. It decides nothing: the plan is the core's.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from msgspec.structs import replace

from llmgw.control.apply import _confirmed as confirmed
from llmgw.control.apply import nap_order
from llmgw.control.keep import LATER_S
from llmgw.control.picture import memory_of
from llmgw.core.adopt.survey import Survey
from llmgw.core.evict import unplaceable
from llmgw.core.place import start_message
from llmgw.core.route import incarnations, refusing
from llmgw.core.types import messages as m
from llmgw.core.types import plan as p
from llmgw.core.types import state as s
from llmgw.core.types.routes import RouteTable
from tests.sim import restraint
from tests.sim.restraint import WILLED

if TYPE_CHECKING:
    from tests.sim.controls import Control

#: (node, command)
Order = tuple[str, m.Command]
Ended = p.StopReplica | p.DrainReplica | p.RollReplica


class Passes:
    def __init__(self, control: Control) -> None:
        self.control = control
        self.sim = control.sim
        #: what was told to people already
        self._verdicts: dict[tuple[str, str, int], str] = {}
        self._ends: dict[str, str] = {}
        #: what this pass starts and ends
        self._begun: list[p.Action] = []

    def steps(self) -> Iterator[str]:
        """One turn."""
        control = self.control
        before = control.picture.draining.keys()
        yield from self._pass()
        rests = any(g.demand.resting for g in control.picture.gateways.values())
        if rests and control.picture.draining.keys() - before:
            yield from self._pass()
        yield "before-answer"
        control.answers()

    def _pass(self) -> Iterator[str]:
        control, core, now = self.control, self.sim.core, self.control.now_s
        yield "before-survey"
        control.state = state = core.observe(control.picture, s.Tick(), now)
        found = core.survey(state)
        yield "before-decide"
        control.plan = plan = core.decide(state, now, found)
        self._tell(plan)
        self.sim.judge.control_pass(control, found, plan)
        commands = self._apply(plan)
        self.sim.judge.carried_out(control, found, self._begun)
        self._announce(found)
        yield "before-persist"
        kept = self._remember(commands)
        for node, command in commands:
            yield "before-send"
            if control.rests.ends(command):
                bound = control.sessions.bound(node, command)
                if bound is None:
                    continue
                command = bound  # noqa: PLW2901
            # Until its end is recorded here, the agent's record of an ended shard is the only one there is.
            if kept or not isinstance(command, m.ForgetShard):
                control.sessions.send(node, command)
        yield "before-publish"
        self._publish(found if control.state is state else core.survey(control.picture))
        self.sim.judge.routes(control)

    # ------------------------------------------------------------ apply

    def _apply(self, plan: p.Plan) -> list[Order]:
        """The plan as far as it goes: what is placed or drained enters the picture, commands come out."""
        commands: list[Order] = []
        self._begun = []
        for action in plan.actions:
            if isinstance(action, p.Wait) or action.withheld:
                continue
            if not self._act(action, commands):
                break
            if not isinstance(action, p.StopReplica) or action.due_s <= 0:
                self._begun.append(action)
        control = self.control
        still = confirmed(control.picture, plan)
        if still != control.picture.confirmed:
            control.state = replace(control.picture, confirmed=still)
        return commands + self._repeats()

    def _act(self, action: p.Action, commands: list[Order]) -> bool:
        match action:
            case p.StartReplica():
                return self._start(action, commands, roll=False)
            case p.RollReplica(spots=()):
                self._drain(action, "drift", commands)
            case p.RollReplica():
                return self._start(action, commands, roll=True)
            case p.DrainReplica():
                self._drain(action, action.reason, commands)
            case p.StopReplica():
                if action.due_s <= 0:
                    self._stop(action, commands)
            case p.NapReplica():
                self._nap(action)
            case p.Wait():
                pass
        return True

    def _start(
        self, action: p.StartReplica | p.RollReplica, commands: list[Order], *, roll: bool
    ) -> bool:
        control, sim, spots = self.control, self.sim, action.spots
        if not all(control.sessions.answered(spot.node) for spot in spots):
            return False
        state = control.picture
        known = {x.report.replica for node in state.nodes.values() for x in node.shards}
        replica, incarnation = sim.new_id(action.model, known)
        model, placed = state.catalog.models[action.model], (action.profile, spots)
        after = action.after if isinstance(action, p.StartReplica) else ()
        for node, order in start_message(state, model, placed, replica, incarnation):
            start = replace(order, after=after)
            where = f"{node} {','.join(start.gpus) or 'cpu'} port {start.port}"
            word = "roll" if roll else "start"
            sim.say(control.url, word, f"{start.shard} on {where}: {action.why}")
            sim.judge.starts(control, start, roll=roll)
            said = restraint.on_drained(control, node, start)
            sim.judge.require("nothing is started on what is drained", not said, said)
            control.heard.incarnations.add(incarnation)
            control.observe(s.Placed(node, start))
            commands.append((node, start))
        return True

    def _drain(
        self, action: p.DrainReplica | p.RollReplica, reason: str, commands: list[Order]
    ) -> None:
        self._tell_end("drain", action, reason)
        self.sim.judge.ends(self.control, action, reason)
        if isinstance(action, p.RollReplica) or action.whole:
            self.control.observe(s.DrainBegun(action.incarnation, reason, action.why))
        commands += (_drain_order(x, reason) for x in action.shards)

    def _nap(self, action: p.NapReplica) -> None:
        if action.step in ("doze", "stay"):
            why = action.why if action.step == "doze" else ""
            self.control.observe(s.DozeBegun(action.incarnation, why))
            return
        for shard in action.shards:
            words = f"{action.replica} on {shard.node}: {action.why}"
            self.sim.say(self.control.url, action.step, words)
            to = "asleep" if action.step == "sleep" else "loading"
            self.control.observe(s.Turned(shard.node, shard.key, to))

    def _stop(self, action: p.StopReplica, commands: list[Order]) -> None:
        self._tell_end("stop", action, action.reason)
        self.sim.judge.ends(self.control, action, action.reason)
        if action.reason != "duplicate_rank":  # the rest of it stays
            self.control.heard.stopped.add(action.incarnation)
        for shard in action.shards:
            r = shard.report
            order = m.StopShard(shard=r.shard, incarnation=r.incarnation, reason=action.reason)
            commands.append((shard.node, order))

    def _repeats(self) -> list[Order]:
        """Fences not answered, drains not journaled yet, ended records that nobody waits for any more."""
        state, sessions = self.control.picture, self.control.sessions.of
        unfenced = (node for node, session in sessions.items() if not session.fenced)
        commands: list[Order] = [(node, m.SendReport()) for node in unfenced]
        for node in state.nodes.values():
            for shard in node.shards:
                if shard.turned:
                    commands.append(nap_order(shard))
                drain = state.draining.get(shard.incarnation)
                if drain is None or state.settling:
                    continue
                if state.withheld and drain.reason not in WILLED:
                    continue
                if shard.holds and shard.report.desired == "running":
                    self.sim.judge.reminded(shard, drain)
                    commands.append(_drain_order(shard, drain.reason))
        for shard in () if state.withheld else self.sim.core.acknowledged(state):
            r = shard.report
            commands.append((shard.node, m.ForgetShard(shard=r.shard, incarnation=r.incarnation)))
        return commands

    # ------------------------------------------------------------ announce, persist, publish

    def _announce(self, found: Survey) -> None:
        state = self.control.picture
        lacking = frozenset(v.shard.incarnation for v in found.verdicts if v.verdict == "forget")
        alive = {x.incarnation for node in state.nodes.values() for x in node.shards if x.holds}
        if lacking or set(state.draining) - alive:
            self.control.observe(s.Announced(lacking))

    def _remember(self, commands: list[tuple[str, m.Command]]) -> bool:
        """One commit a pass, before anything is sent; a full disk holds nothing up (F13, F15).

        Without the drains that control began by itself just now, unless a start is sent, or the stop of one of them.
        """
        state = self.control.picture
        memory = memory_of(state, 0.0)
        draining = {i: replace(d, version=0) for i, d in state.draining.items()}
        soon = self.control.now_s - LATER_S
        late = {i for i, d in draining.items() if d.reason not in WILLED and d.since_s > soon}
        if not any(
            isinstance(c, m.Start) or (isinstance(c, m.StopShard) and c.incarnation in late)
            for _, c in commands
        ):
            draining = {i: d for i, d in draining.items() if i not in late}
        memory = replace(
            memory,
            failures=state.failures,
            draining=draining,
            paused=state.paused,
            confirmed=state.confirmed,
        )
        if not self.sim.lease.away:
            self.sim.lease.gateways = memory.gateways
        return self.control.keep(memory)

    def _publish(self, found: Survey) -> None:
        """A new table when anything in it changed; drains count from the first one that shows them (A65)."""
        control, state, old = self.control, self.control.picture, self.control.table
        table = self.sim.core.table(state, found, old.version)
        table = refusing(table, unplaceable(control.plan))
        fresh = table != old or control.table_seen > old.version or not old.version
        if fresh:
            if _routes(table) != _routes(old):
                self.sim.say(control.url, "routes", _routes(table))
            version = max(old.version + 1, control.table_seen + 1, state.first_version)
            control.table = replace(table, version=version)
        begun = (*state.draining.values(), *state.dozing.values())
        if fresh or any(not d.version for d in begun):
            draining = incarnations(control.table, "draining")
            routed = incarnations(control.table, "ready") | draining
            control.observe(s.Published(control.table.version, routed, draining))
        if fresh:
            self.sim.tables(control)

    # ------------------------------------------------------------ words

    def _tell(self, plan: p.Plan) -> None:
        """Verdicts that changed since the last pass."""
        for v in plan.verdicts:
            key = (v.shard.node, *v.shard.key)
            words = f"{v.verdict}{f' ({v.reason})' if v.reason else ''}"
            if self._verdicts.get(key) != words:
                self._verdicts[key] = words
                where = f"{v.shard.report.shard} on {v.shard.node}"
                self.sim.say(self.control.url, words, f"{where}: {v.why}")

    def _tell_end(self, word: str, action: Ended, reason: str) -> None:
        nodes = ", ".join(sorted({x.node for x in action.shards}))
        key = f"{action.incarnation} {nodes}"
        if self._ends.get(key) != word:
            self._ends[key] = word
            words = f"{action.replica} on {nodes} ({reason}): {action.why}"
            self.sim.say(self.control.url, word, words)


def _routes(table: RouteTable) -> str:
    words = ", ".join(
        f"{r.replica}{' draining' * (r.state == 'draining')}"
        for model in table.models.values()
        for r in model.replicas
    )
    return f"{words or 'nothing'}{' (partial)' * table.partial}"


def _drain_order(shard: s.Shard, reason: str) -> Order:
    r = shard.report
    return shard.node, m.DrainShard(shard=r.shard, incarnation=r.incarnation, reason=reason)
