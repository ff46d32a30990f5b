"""What must hold at every step, judged from the truth of the world and not from what anybody believes.

Each finding raises `Broken` with the invariant's name. An invariant is never weakened to let a run pass; where the
design itself allows an exception, the exception is written beside the check with its number.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import TYPE_CHECKING

from llmgw.core import check
from llmgw.core.adopt.survey import Survey
from llmgw.core.types import messages as m
from llmgw.core.types import node as n
from llmgw.core.types import plan as p
from llmgw.core.types.record import Key, Record
from llmgw.core.types.routes import GATEWAY_GONE_S, GATEWAY_SILENT_S, RouteReplica, RouteTable
from llmgw.core.types.sleep import SleepShard, WakeShard
from llmgw.core.types.state import QUIET_S, Draining, Shard
from tests.sim import restraint, room
from tests.sim.orders import Order, why_start, why_stop
from tests.sim.rest import findings
from tests.sim.world import Engine, Host

if TYPE_CHECKING:
    from tests.sim.agents import Agent
    from tests.sim.controls import Control
    from tests.sim.gateways import Gateway
    from tests.sim.simulation import Simulation

#: A route may point at what died so short a time ago: the node must have the time to say so.
ROUTE_LAG_S = 25.0
Ended = p.StopReplica | p.DrainReplica | p.RollReplica


class Broken(Exception):  # noqa: N818 - it is the finding, not an error
    def __init__(self, invariant: str, said: str) -> None:
        super().__init__(f"{invariant}: {said}")
        self.invariant = invariant


class Judge:
    def __init__(self, sim: Simulation) -> None:
        self.sim = sim
        self.epochs: dict[str, int] = {}
        self.orders: dict[str, Order] = {}
        #: when its end was first ordered, whatever became of that
        self.begun_s: dict[str, float] = {}
        #: ordered to end, and the record that knew of it is gone: each is to be ordered anew
        self.lapsed: list[Engine] = []
        self.unneeded: dict[str, str] = {}
        #: the headline: healthy, claimed, wanted, and yet ended by our doing
        self.needless = 0
        self.spawned = 0
        self.checks: Counter[str] = Counter()
        self.turned: Counter[str] = Counter()
        #: what of a picture was judged last
        self._looked: tuple[object, object] = (None, None)

    def require(self, invariant: str, holds: object, said: str) -> None:
        self.checks[invariant] += 1
        if not holds:
            raise Broken(invariant, said)

    # ------------------------------------------------------------ agents

    def agent_step(
        self, agent: Agent, before: n.AgentState, event: n.Event, effects: tuple[n.Effect, ...]
    ) -> None:
        after = agent.state
        assert after is not None
        if isinstance(event, n.CommandReceived):
            self._obeys(agent, event, effects)
        for key, old in before.records.items():
            new = after.records.get(key)
            if new is old or old.ended or (new is not None and not new.ended):
                continue
            if new is not None and new.released:
                agent.host.releases(key)
            else:
                self._freed(agent.host, key)

    def _obeys(self, agent: Agent, event: n.CommandReceived, effects: tuple[n.Effect, ...]) -> None:
        """No effect of a lower epoch (F21); what an accepted start asks for is not given out already."""
        command, node = event.command, agent.facts.node
        refused = all(isinstance(e, n.Refuse) for e in effects)
        seen = self.epochs.get(node, 0)
        if refused:
            return
        self.require(
            "no effect of a lower epoch",
            command.epoch >= seen,
            f"{node} has seen epoch {seen} and obeys a {type(command).__name__} of epoch {command.epoch}",
        )
        self.epochs[node] = max(seen, command.epoch)
        if isinstance(command, m.Start):
            self.granted(agent, command)

    def granted(self, agent: Agent, start: m.Start) -> None:
        why = self.unneeded.get(start.incarnation)
        self.require(
            "nothing is started twice", not why, f"{start.shard} on {agent.host.name}: {why}"
        )
        # A record rebuilt from markers does not know its resources; its engine, if there is one, is counted.
        there = (r for r in agent.records.values() if not r.ended and not r.partial)
        records = {r.key: room.charged(r) for r in there}
        room.granted(self, agent.host, records, start)
        room.not_overdrawn(self, agent, records, start)

    def turns(self, agent: Agent, record: Record, engine: Engine) -> None:
        """Before it falls asleep, or wakes: nobody is on it, or its memory is its own again."""
        self.turned["wakes" if engine.sleeping else "falls asleep"] += 1
        if engine.sleeping:
            there = (r for r in agent.records.values() if not r.ended and not r.partial)
            records = {r.key: room.charged(r) for r in there} | {record.key: record.start}
            room.granted(self, agent.host, records, record.start)
            return
        heard = [g for g in self.sim.gateways if not self.forgotten(g)]
        cut = [r for g in heard for r in g.on(engine)]
        self.require("no stream is cut", not cut, f"{engine} falls asleep, {len(cut)} in flight")

    def sent(self, gateway: Gateway, engine: Engine) -> None:
        """Nor by one that is out of the count, for which no sleep waits (`GATEWAY_WORD_S`)."""
        what = f"by {gateway.name} to {engine}"
        self.require("no request is sent to a sleeper", not engine.sleeping, what)

    def _freed(self, host: Host, key: Key) -> None:
        left = host.live(key)
        self.require(
            "freed means no process",
            not left,
            f"{key} counts as ended on {host.name}, and {[str(e) for e in left]} is there",
        )

    def spawns(self, agent: Agent, record: Record) -> None:
        """Called before the process is there: at most one tree of a shard, and its room is its own."""
        self.spawned += 1
        host, key = agent.host, record.key
        self.require(
            "nothing dead is restarted before control is heard",
            agent.heard_leader or not record.failures,
            f"{agent.facts.node} starts attempt {record.attempt} of {key} (F36)",
        )
        self.require("one tree a shard", not host.live(key), f"{key} runs already on {host.name}")
        room.granted(self, host, {key: record.start}, record.start)
        for other in self.sim.hosts.values():
            twin = [e for e in other.live() if e.key == key and e.host != host.name]
            self.require("one incarnation", not twin, f"{key} is on {other.name} and {host.name}")

    def signal(self, agent: Agent, record: Record, engine: Engine, name: str) -> None:
        self.require(
            "nothing not ours is signalled",
            engine.key == record.key,
            f"{agent.facts.node} sends {name} for {record.key} to {engine}",
        )
        self.require(
            "at most one TERM", name == "KILL" or "TERM" not in engine.signals, f"to {engine}"
        )
        if not engine.ailing and not engine.signals:
            self._ended_by_us(record, engine, name)

    def _ended_by_us(self, record: Record, engine: Engine, name: str) -> None:
        """A healthy engine: ordered to end, for a reason that is true, and nobody is on it."""
        order = self._order(engine)
        if order is None or order.needless:
            self.needless += 1
            why = order.needless if order else f"nobody ordered it ({record.error})"
            self.require(
                "no engine restarted needlessly", holds=False, said=f"{name} to {engine}: {why}"
            )
        assert order is not None
        heard = [g for g in self.sim.gateways if not self.forgotten(g)]
        if order.reason in restraint.ASKED:
            heard = [g for g in heard if self._told(g)]
        cut = [r for g in heard for r in g.on(engine)]
        now = self.sim.clock.now
        timed_out = now - order.at_s >= order.drain_timeout_s - 0.001
        self.require(
            "no stream is cut",
            not cut or timed_out or order.reason in CUTTING,
            f"{name} to {engine}, {len(cut)} in flight, ordered {now - order.at_s:.1f} s ago: {order.why}",
        )

    def forgets(self, engine: Engine) -> None:
        """The record of this one is gone; the other ranks of its group may be on their way out by theirs."""
        if self._order(engine) is not None:
            self.lapsed.append(engine)

    def _again(self, incarnation: str, shards: Iterable[Shard]) -> bool:
        """Whether some of these were forgotten; from now on they are ordered again."""
        names = {x.report.shard for x in shards}
        left = [e for e in self.lapsed if not (e.is_of(incarnation) and e.key[0] in names)]
        again, self.lapsed = len(left) < len(self.lapsed), left
        return again

    def _order(self, engine: Engine) -> Order | None:
        if any(e is engine for e in self.lapsed):
            return None
        named = (order for inc, order in self.orders.items() if engine.is_of(inc))
        return self.orders.get(engine.key[1]) or next(named, None)

    def _told(self, gateway: Gateway) -> bool:
        """An operator's stop waits for no silent gateway (A65)."""
        leader = self.sim.leader
        if leader is None or leader.state is None:
            return False
        view = leader.picture.gateways.get(gateway.name)
        return view is not None and leader.now_s - view.heard_s < GATEWAY_SILENT_S

    def forgotten(self, gateway: Gateway) -> bool:
        """Silent for 60 s is out of the count by contract/http.md."""
        since_s = gateway.silent_since_s
        return since_s is not None and self.sim.clock.now - since_s >= GATEWAY_GONE_S

    # ------------------------------------------------------------ controls

    def sends(self, control: Control, node: str, command: m.Command) -> None:
        asked = isinstance(command, m.StopShard) and command.reason in restraint.ASKED
        turned = isinstance(command, SleepShard | WakeShard)
        if (turned or isinstance(command, m.Start | m.StopShard | m.DrainShard)) and not asked:
            waiting = self.settling_for(control)
            self.require(
                "nothing is started or disturbed while settling",
                not waiting,
                f"{control.url} sends {type(command).__name__} {command.shard} to {node}, waiting for {waiting}",
            )

    def settling_for(self, control: Control) -> str:
        """What settling still waits for; once over it does not begin again. Asked at every registration."""
        if not control.heard.settled:
            waiting = self._settling_for(control)
            control.heard.settled = not waiting
            return waiting
        return ""

    def _settling_for(self, control: Control) -> str:
        """From the words of A46 and A47 and not from the core's answer."""
        state, now = control.picture, control.now_s
        if now - control.started_s >= self.sim.settle_timeout_s:
            return ""
        settled = {k for k, node in state.nodes.items() if node.settled}
        waited = control.heard.expected - settled
        if waited:
            return ", ".join(sorted(waited))
        if settled and control.heard.remembered:
            return ""  # those unreachable in the last picture are not waited for, their shards stay held
        heard = [state.nodes[k] for k in settled]
        if heard and all(node.report.epoch_seen == 0 for node in heard):
            return ""
        last = control.heard.last_new_s
        return "" if heard and last is not None and now - last >= QUIET_S else "any node"

    def starts(self, control: Control, start: m.Start, *, roll: bool) -> None:
        """Remember whether it was needed when it was decided; judged when an agent obeys it."""
        why = why_start(control, start, roll=roll)
        if why:
            self.unneeded[start.incarnation] = f"{control.url}: {why}"

    def ends(self, control: Control, action: Ended, reason: str) -> None:
        """Remember who ordered an end and whether its reason is true; judged when a healthy engine is signalled."""
        again = self._again(action.incarnation, action.shards)
        if action.incarnation in self.orders and reason not in CUTTING and not again:
            return  # a group that drains and loses a rank meanwhile has another reason from then on
        state, at_s = control.picture, self.sim.clock.now
        begun = state.draining.get(action.incarnation)
        if begun is not None:  # ordered, and judged, before a journal that knew of it was lost
            at_s = self.begun_s.get(action.incarnation, at_s)
        elif reason == "draining" and state.settled_s is not None:
            # Only a journal remembers it: it gets its whole time again, from when this control settled.
            at_s = state.settled_s
        self.begun_s.setdefault(action.incarnation, at_s)
        needless = "" if begun is not None else why_stop(control, action, reason)
        if reason == "evict":
            gone = f"{action.replica}: {needless}; {action.why}"
            self.require("nobody is evicted who may not go", not needless, gone)
        self.orders[action.incarnation] = Order(
            reason=reason,
            why=action.why,
            at_s=at_s,
            drain_timeout_s=self.sim.drain_timeout_s(action.model, action.profile),
            needless=needless,
        )

    def reminded(self, shard: Shard, drain: Draining) -> None:
        """Ordered and judged long ago; since then a journal that knew of it was lost, and the inventory was not."""
        if self._again(shard.incarnation, (shard,)) or shard.incarnation not in self.orders:
            r = shard.report
            self.orders[shard.incarnation] = Order(
                reason=drain.reason,
                why=drain.why,
                at_s=self.begun_s.get(shard.incarnation, self.sim.clock.now),
                drain_timeout_s=self.sim.drain_timeout_s(r.model, r.profile),
            )

    def asked(self, shard: Shard) -> None:
        """An operator's order that takes no plan, and waits for nobody."""
        if self._again(shard.incarnation, (shard,)) or shard.incarnation not in self.orders:
            now = self.sim.clock.now
            why = f"an operator forces {shard.report.shard}"
            self.orders[shard.incarnation] = Order(
                reason="force", why=why, at_s=now, drain_timeout_s=0.0
            )

    def control_pass(self, control: Control, found: Survey, plan: p.Plan) -> None:
        state = control.picture
        looked, self._looked = self._looked, (state.nodes, state.catalog)
        if looked[0] is not state.nodes or looked[1] is not state.catalog:  # else it was looked at
            for said in check.violations(state, found):
                self.require("the picture is whole", holds=False, said=said)
        for said in check.plan_violations(state, plan):
            self.require("nothing is started or disturbed while settling", holds=False, said=said)
        claims = Counter((r.model, r.replica) for r in found.replicas if r.kept and r.members)
        twice = [c for c, count in claims.items() if count > 1]
        self.require("one incarnation a claim", not twice, f"{twice} kept twice")
        self._owned(control)
        late = restraint.sleepless(control, found, plan)
        self.require("what is idle goes to sleep in time", not late, late)
        late = restraint.hung(control, found, plan)
        self.require("what hangs is given up in time", not late, late)

    def carried_out(self, control: Control, found: Survey, begun: list[p.Action]) -> None:
        """What one pass did of its plan."""
        if begun:
            said = restraint.withheld(control, begun)
            self.require("what is withheld is not carried out", not said, said)
            said = restraint.beyond_the_guard(control, found, begun)
            self.require("no more ends in one pass than the guard allows", not said, said)

    def adopts(self, gateway: Gateway, table: RouteTable, before: RouteTable) -> None:
        said = restraint.taken_away(self.sim, gateway, table, before)
        self.require("a restart takes no route away", not said, said)

    def _owned(self, control: Control) -> None:
        """Every running engine is in the picture of a control that its agent has told everything."""
        state = control.picture
        for name, agent in self.sim.agents.items():
            link = agent.links.get(control.url)
            there = state.nodes.get(name)
            session = control.sessions.of.get(name)
            if not agent.up or link is None or there is None or not there.settled:
                continue
            if session is None or session.id != link.session or not link.quiet or agent.frozen:
                continue
            known = {(x.report.shard, x.report.incarnation) for x in there.shards if x.holds}
            for engine in agent.host.live():
                self.require(
                    "every running engine is owned, stopping or quarantined",
                    engine.key in known or (engine.key[0], "") in known,
                    f"{engine} is not in {control.url}'s picture of {name}: {sorted(known)}",
                )

    def routes(self, control: Control) -> None:
        """Routes only to live owned endpoints, once the node has had the time to report."""
        state = control.picture
        if state.settling:
            return
        for model in control.table.models.values():
            for route in model.replicas:
                if route.state == "ready" and not self._runs(control, route):
                    lag = self.sim.clock.now - self.sim.died_s.get(route.incarnation, 0.0)
                    self.require(
                        "routes only to live owned endpoints",
                        lag < ROUTE_LAG_S,
                        f"{control.url} routes {route.replica} to {route.endpoint}, dead for {lag:.0f} s",
                    )

    def _runs(self, control: Control, route: RouteReplica) -> bool:
        """Its engine listens there, or its node cannot tell us that it does not."""
        node, _, port = route.endpoint.removeprefix("http://").partition(":")
        agent = self.sim.agents[node]
        listener = agent.host.listener(int(port))
        if isinstance(listener, Engine) and listener.is_of(route.incarnation):
            return True
        there = control.state.nodes.get(node) if control.state is not None else None
        if there is not None and any(
            s.report.state == "unknown" and s.incarnation == route.incarnation for s in there.shards
        ):
            return True  # its agent cannot look (F45)
        link, told = agent.links.get(control.url), control.sessions.of.get(node)
        if link is None or told is None or there is None or not agent.up or agent.frozen:
            return True
        heard = told.fenced and told.id == link.session  # else its inventory is not folded yet
        return not (there.settled and there.connected and heard)

    # ------------------------------------------------------------ the end

    def at_rest(self) -> None:
        """Faults have stopped and time has passed: the fleet is what the catalog wants."""
        for said in findings(self.sim):
            self.require("at rest the fleet is what the catalog wants", holds=False, said=said)


#: Ends that do not wait for streams: of what is short, and when an operator ends it all.
CUTTING = frozenset({"short_after_window", "not_running", "ending", "force"})
