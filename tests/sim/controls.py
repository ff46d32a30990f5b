"""One control plane: the real `observe` and `decide`, what it keeps in its inventory, and its sessions with agents.

It decides nothing. A pass looks at the whole, publishes, persists, and only then sends; killed at any boundary between two
of these it loses its memory and keeps its inventory. Told to stop leading, it may do one pass more (F21, F22).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from msgspec import Struct
from msgspec.structs import replace

from llmgw.control.picture import memory_of
from llmgw.core.adopt.survey import Survey
from llmgw.core.place import start_message
from llmgw.core.reconcile.fresh import Memory
from llmgw.core.route import incarnations
from llmgw.core.types import messages as m
from llmgw.core.types import plan as p
from llmgw.core.types import state as s
from llmgw.core.types.catalog import Catalog
from llmgw.core.types.routes import Demand, RouteTable
from tests.sim.links import Peer, digest
from tests.sim.network import Unreachable

if TYPE_CHECKING:
    from tests.sim.simulation import Simulation

PASS_S = 0.2
#: A push that got no answer is made again; an order that was carried out and changed nothing is repeated.
AGAIN_S, REPEAT_S = 2.0, 5.0
#: (node, command)
Order = tuple[str, m.Command]


class Inventory(Struct, frozen=True):
    """The file: what a new control starts from."""

    memory: Memory = Memory()
    catalog: Catalog = Catalog()


@dataclass
class Session:
    id: str
    report: m.NodeReport
    peer: Peer
    heard_s: float
    n: int = 0
    seq: int = 0
    applied: int = 0
    queue: list[m.Command] = field(default_factory=list)
    numbers: dict[tuple[str, str, str], tuple[int, float]] = field(default_factory=dict)
    pushing: bool = False
    #: its agent has stored our epoch and answered with its inventory
    fenced: bool = False

    @property
    def node(self) -> str:
        return self.report.node

    def ack(self, applied: int) -> None:
        self.applied = max(self.applied, applied)
        self.queue = [c for c in self.queue if c.seq > applied]


class Control:
    def __init__(self, sim: Simulation, url: str) -> None:
        self.sim = sim
        self.url = url
        self.disk = Inventory()
        self.state: s.State | None = None
        self.catalog = Catalog()
        self.uuid = ""
        self.sessions: dict[str, Session] = {}
        #: per node, its boot and the newest registration of it
        self.latest: dict[str, tuple[str, int]] = {}
        self.table = RouteTable()
        #: for the judge: what gateways have told this very process
        self.gateways: set[str] = set()
        self.used_s: dict[str, float] = {}
        #: incarnations it was told of, by its inventory or an agent, or has placed itself
        self.told: set[str] = set()
        #: the highest table any gateway has told of
        self.table_seen = 0
        self.started_s = 0.0
        #: nodes it waits for by its inventory, and when one registered first, and whether that is over: for the judge
        self.expected: frozenset[str] = frozenset()
        self.remembered = False
        self.last_new_s: float | None = None
        self.settled = False
        self.doom: int | None = None
        self.paused = False
        self.life = 0
        self.ended: dict[str, str] = {}
        self.said: dict[tuple[str, str, int], str] = {}
        self._due = False
        self._count = 0

    @property
    def up(self) -> bool:
        return self.state is not None

    # ------------------------------------------------------------ life

    def start(self) -> None:
        if self.state is not None or not self.sim.lease.take(self.url):
            return
        sim, memory = self.sim, self.disk.memory
        self.life += 1
        self.paused, self.doom, self._due = False, None, False
        self.uuid = f"{self.url}.{self.life}"
        self.catalog = sim.catalog
        epoch = memory.epoch + 1
        self._keep(replace(memory, epoch=epoch))
        state = sim.core.started(
            self.catalog,
            replace(memory, epoch=epoch),
            now=sim.clock.now,
            settle_timeout_s=sim.settle_timeout_s,
            keep_unknown=False,
        )
        self.state = replace(state, leader_uuid=self.uuid)
        self.sessions, self.latest, self.said, self.ended = {}, {}, {}, {}
        self.table = RouteTable()
        self.started_s = sim.clock.now
        self.expected = frozenset(r.node for r, silent in memory.nodes if not silent)
        self.remembered = bool(memory.nodes)
        self.last_new_s, self.settled, self.table_seen = None, False, 0
        self.gateways, self.used_s = set(), {}
        self.told = {x.incarnation for report, _ in memory.nodes for x in report.shards}
        sim.say(self.url, "control starts", f"epoch {epoch}, {len(memory.nodes)} nodes remembered")
        self._tick()

    def crash(self, why: str = "killed") -> None:
        if self.state is None:
            return
        self.sim.say(self.url, "control is gone", why)
        self.state = None
        self.sessions = {}
        self.doom = None
        self.sim.lease.free(self.url)

    def later(self, delay_s: float, act: Callable[[], None]) -> None:
        life = self.life

        def then() -> None:
            if self.state is None or self.life != life:
                return
            if self.paused:
                self.later(1.0, act)
            else:
                act()

        self.sim.clock.after(delay_s, then)

    def _listening(self) -> s.State:
        if self.state is None or self.paused:
            raise Unreachable
        return self.state

    def _keep(self, memory: Memory) -> None:
        self.disk = Inventory(memory, self.catalog)

    def _doomed(self, before: str) -> bool:
        if self.doom is None:
            return False
        self.doom -= 1
        if self.doom >= 0:
            return False
        self.crash(f"killed before {before}")
        return True

    # ------------------------------------------------------------ facts

    def observe(self, event: s.Event) -> None:
        assert self.state is not None
        self.state = self.sim.core.observe(self.state, event, self.sim.clock.now)
        self.sim.judge.settling_for(self)
        self.wake()

    def wake(self) -> None:
        if not self._due:
            self._due = True
            self.later(PASS_S, self._pass)

    def _tick(self) -> None:
        assert self.state is not None
        now = self.sim.clock.now
        for node, session in list(self.sessions.items()):
            if now - session.heard_s >= s.SESSION_TTL_S:
                del self.sessions[node]
                self.sim.say(self.url, "session lost", node)
                self.observe(s.SessionLost(node))
        self.observe(s.Tick())
        self.later(self.sim.tick_s, self._tick)

    def reload(self, catalog: Catalog) -> None:
        if self.state is not None:
            self.catalog = catalog
            self.observe(s.CatalogLoaded(catalog))

    def gateway_gone(self, name: str) -> None:
        if self.state is not None and not self.paused:
            self.observe(s.GatewayGone(name))

    def operate(self) -> None:
        """What an operator does when things are calm: let what gave up start again, end what nobody can read (A39)."""
        if self.state is None:
            return
        for model in list(self.state.failures):
            self.observe(s.Cleared(model))
        for node in self.state.nodes.values():
            for shard in node.shards:
                r = shard.report
                if r.state == "unknown":
                    self._send(
                        node.report.node,
                        m.StopShard(shard=r.shard, incarnation=r.incarnation, reason="operator"),
                    )

    # ------------------------------------------------------------ agents

    def register(self, report: m.NodeReport, peer: Peer) -> m.Registered:
        """With a file lease no older control can be there; with another, the fence must be answered first."""
        state = self._listening()
        node, now = report.node, self.sim.clock.now
        old = self.sessions.get(node)
        if (
            old is not None
            and old.report.boot_id != report.boot_id
            and now - old.heard_s < s.SESSION_TTL_S
        ):
            raise Unreachable  # 409 duplicate_node
        if self._stale(report):
            raise Unreachable  # 409 stale: an old inventory on its way for long
        if report.epoch_seen >= state.epoch and report.leader_uuid not in (None, self.uuid):
            self._higher_epoch(report.epoch_seen)
            state = self._listening()
        self._count += 1
        session = Session(f"{self.uuid}.{self._count}", report, peer, now)
        self.sessions[node] = session
        ours = report.epoch_seen == state.epoch and report.leader_uuid == self.uuid
        session.fenced = ours or self.sim.lease.kind == "file"
        if session.fenced or report.epoch_seen == 0:
            self.sim.say(self.url, "registered", f"{node} {_shards(report)}")
            known = state.nodes.get(node)
            if known is None or not known.settled:
                self.last_new_s = now
            self.told |= {x.incarnation for x in report.shards}
            self.observe(s.NodeRegistered(report))
        if not session.fenced:
            self._send(node, m.SendReport())
        return m.Registered(session=session.id, epoch=state.epoch, leader_uuid=self.uuid)

    def _stale(self, report: m.NodeReport) -> bool:
        """Taken before one that is folded already; `registration` is a time of the node's clock, which is one a boot."""
        boot_id, newest = self.latest.get(report.node, ("", 0))
        if report.boot_id == boot_id and report.registration <= newest:
            return True
        self.latest[report.node] = (report.boot_id, report.registration)
        return False

    def events(self, node: str, events: m.Events) -> m.EventsReply | None:
        state = self._listening()
        session = self.sessions.get(node)
        if session is None or session.id != events.session:
            return None
        if events.n <= session.n:
            return m.EventsReply(epoch=state.epoch)
        session.n, session.heard_s = events.n, self.sim.clock.now
        self.told |= {x.incarnation for x in events.shards}
        session.ack(events.applied)
        there = state.nodes.get(node)
        silent = there is not None and not there.connected
        if events.shards or events.gone or events.refused or events.gpus is not None or silent:
            self.observe(
                s.ShardsChanged(
                    node,
                    events.shards,
                    events.gone,
                    gpus=events.gpus,
                    foreign=events.foreign,
                    refused=events.refused,
                )
            )
        if any(r.reason in ("lower_epoch", "other_leader") for r in events.refused):
            return m.EventsReply(match=False, epoch=state.epoch)
        return m.EventsReply(match=self._same(node, events.digest), epoch=state.epoch)

    def _same(self, node: str, said: str) -> bool:
        there = self.state.nodes.get(node) if self.state is not None else None
        if there is None or not there.settled:
            return True
        known = (x.report for x in there.shards if x.origin == s.REPORTED and not x.missing)
        return digest(known) == said

    def _higher_epoch(self, seen: int) -> None:
        """Somebody led above us: ask the lease. Still ours: take one more; not ours: end."""
        if not self.sim.lease.holds(self.url):
            self.crash("another leads")
            return
        assert self.state is not None
        epoch = max(self.state.epoch, seen) + 1
        self.sim.say(self.url, "takes epoch", f"{epoch}, an agent has seen {seen}")
        self.state = replace(self.state, epoch=epoch)
        self._keep(replace(self.disk.memory, epoch=epoch))
        for node, session in self.sessions.items():
            session.fenced = False
            self._send(node, m.SendReport())

    def demand(self, demand: Demand) -> RouteTable:
        """The answer carries the newest table: a gateway's long-poll, folded in."""
        self._listening()
        self.table_seen = max(self.table_seen, demand.table)
        now = self.sim.clock.now
        self.gateways.add(demand.gateway)
        for replica, age_s in demand.last_byte.items():
            self.used_s[replica] = max(self.used_s.get(replica, 0.0), now - age_s)
        for replica in demand.in_flight:
            self.used_s[replica] = now
        self.observe(s.Demanded(demand))
        return self.table

    # ------------------------------------------------------------ a pass

    def _pass(self) -> None:
        """As llmgw.control.loop has it: decide, apply, announce, persist, send, publish."""
        self._due = False
        state, now, core = self.state, self.sim.clock.now, self.sim.core
        assert state is not None
        if not self.sim.lease.holds(self.url) and not self.sim.lease.late(self.url):
            self.crash("the lease is lost")
            return
        found = core.survey(state)
        plan = core.decide(state, now, found)
        self._say_verdicts(plan)
        self.sim.judge.control_pass(self, found, plan)
        commands = self._apply(plan)
        self._announce(found)
        if self._doomed("persisting"):
            return
        self._remember()
        for node, command in commands:
            if self._doomed(f"sending {type(command).__name__}"):
                return
            self._send(node, command)
        if not self._doomed("publishing"):
            self._publish(found if self.state is state else core.survey(self._listening()))
            self.sim.judge.routes(self)

    def _publish(self, found: Survey) -> None:
        """A new table when anything in it changed; drains count from the first one that shows them (A65)."""
        state = self.state
        assert state is not None
        table = self.sim.core.table(state, found, self.table.version)
        fresh = table != self.table or self.table_seen > table.version or not table.version
        if fresh:
            words = _routes(table)
            if words != _routes(self.table):
                self.sim.say(self.url, "routes", words)
            seen = max(self.table.version, self.table_seen) + 1
            version = max(seen, state.first_version)
            self.table = replace(table, version=version)
        if fresh or any(not d.version for d in state.draining.values()):
            draining = incarnations(self.table, "draining")
            routed = incarnations(self.table, "ready") | draining
            self.observe(s.Published(self.table.version, routed, draining))
        if fresh:
            self.sim.tables(self)

    def _remember(self) -> None:
        """One commit a pass, before anything is sent."""
        state = self.state
        assert state is not None
        memory = memory_of(state, self.sim.clock.now)
        # The file has times of the clock on the wall; here all clocks are one.
        draining = {i: replace(d, version=0) for i, d in state.draining.items()}
        self._keep(replace(memory, failures=state.failures, draining=draining))

    def _apply(self, plan: p.Plan) -> list[Order]:
        """The plan as far as it goes: what is placed or drained enters the picture, commands come out."""
        commands: list[Order] = []
        for action in plan.actions:
            if not self._act(action, commands):
                break
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
            case p.Wait():
                pass
        return True

    def _start(
        self, action: p.StartReplica | p.RollReplica, commands: list[Order], *, roll: bool
    ) -> bool:
        sim, spots = self.sim, action.spots
        if not all(spot.node in self.sessions for spot in spots):
            return False
        assert self.state is not None
        known = {x.report.replica for node in self.state.nodes.values() for x in node.shards}
        replica, incarnation = sim.new_id(action.model, known)
        wanted = self.state.catalog.models[action.model]
        placed = (action.profile, spots)
        for node, start in start_message(self.state, wanted, placed, replica, incarnation):
            where = f"{node} {','.join(start.gpus) or 'cpu'} port {start.port}"
            sim.say(
                self.url, "roll" if roll else "start", f"{start.shard} on {where}: {action.why}"
            )
            sim.judge.starts(self, start, roll=roll)
            self.told.add(incarnation)
            self.observe(s.Placed(node, start))
            commands.append((node, start))
        return True

    def _drain(
        self, action: p.DrainReplica | p.RollReplica, reason: str, commands: list[Order]
    ) -> None:
        self._say_end("drain", action, reason)
        self.sim.judge.ends(self, action, reason)
        if isinstance(action, p.RollReplica) or action.whole:
            self.observe(s.DrainBegun(action.incarnation, reason, action.why))
        commands += (_drain_order(x, reason) for x in action.shards)

    def _stop(self, action: p.StopReplica, commands: list[Order]) -> None:
        self._say_end("stop", action, action.reason)
        self.sim.judge.ends(self, action, action.reason)
        for shard in action.shards:
            r = shard.report
            order = m.StopShard(shard=r.shard, incarnation=r.incarnation, reason=action.reason)
            commands.append((shard.node, order))

    def _repeats(self) -> list[Order]:
        """Fences that were not answered, drains not journaled yet, ended records that nobody waits for any more."""
        state = self.state
        assert state is not None
        unfenced = (node for node, session in self.sessions.items() if not session.fenced)
        commands: list[Order] = [(node, m.SendReport()) for node in unfenced]
        for node in state.nodes.values():
            for shard in node.shards:
                drain = state.draining.get(shard.incarnation)
                if drain is None or state.settling:
                    continue
                if shard.holds and shard.report.desired == "running":
                    commands.append(_drain_order(shard, drain.reason))
        for shard in self.sim.core.acknowledged(state):
            r = shard.report
            commands.append((shard.node, m.ForgetShard(shard=r.shard, incarnation=r.incarnation)))
        return commands

    def _announce(self, found: Survey) -> None:
        state = self.state
        assert state is not None
        lacking = frozenset(v.shard.incarnation for v in found.verdicts if v.verdict == "forget")
        alive = {x.incarnation for node in state.nodes.values() for x in node.shards if x.holds}
        if lacking or set(state.draining) - alive:
            self.observe(s.Announced(lacking))

    # ------------------------------------------------------------ commands

    def _send(self, node: str, command: m.Command) -> None:
        """Queue it, unless the same is under way; what changed nothing is repeated after a while."""
        session, state, now = self.sessions.get(node), self.state, self.sim.clock.now
        if session is None or state is None:
            return
        key = (type(command).__name__, *_about(command))
        seq, at = session.numbers.get(key, (0, -REPEAT_S))
        if seq > session.applied or now - at < REPEAT_S:
            return
        session.seq += 1
        session.numbers[key] = (session.seq, now)
        stamped = replace(
            command,
            seq=session.seq,
            session=session.id,
            epoch=state.epoch,
            leader_uuid=self.uuid,
        )
        self.sim.judge.sends(self, node, stamped)
        session.queue.append(stamped)
        self._push(session)

    def _push(self, session: Session) -> None:
        if session.pushing or not session.queue or self.sessions.get(session.node) is not session:
            return
        session.pushing = True
        commands, life = tuple(session.queue), self.life

        def reply(said: tuple[str, int]) -> None:
            session.pushing = False
            if said[0] != session.id:
                self.later(PASS_S, lambda: self._push(session))
                return
            session.ack(said[1])
            if self.up and self.life == life:
                self._push(session)

        def failed() -> None:
            session.pushing = False
            self.later(AGAIN_S, lambda: self._push(session))

        self.sim.net.call(
            (self.url, session.node),
            lambda: session.peer(session.id, commands),
            reply,
            failed,
        )

    # ------------------------------------------------------------ words

    def _say_verdicts(self, plan: p.Plan) -> None:
        """What changed since the last pass: a trace for people."""
        for v in plan.verdicts:
            key = (v.shard.node, *v.shard.key)
            words = f"{v.verdict}{f' ({v.reason})' if v.reason else ''}"
            if self.said.get(key) != words:
                self.said[key] = words
                self.sim.say(self.url, words, f"{v.shard.report.shard} on {v.shard.node}: {v.why}")

    def _say_end(
        self, word: str, action: p.StopReplica | p.DrainReplica | p.RollReplica, reason: str
    ) -> None:
        nodes = ", ".join(sorted({x.node for x in action.shards}))
        words = f"{action.replica} on {nodes} ({reason})"
        if self.ended.get(f"{action.incarnation} {nodes}") != word:
            self.ended[f"{action.incarnation} {nodes}"] = word
            self.sim.say(self.url, word, f"{words}: {action.why}")


def _shards(report: m.NodeReport) -> str:
    words = (f"{x.shard} {x.state}" for x in report.shards)
    return ", ".join(words) or "nothing"


def _routes(table: RouteTable) -> str:
    words = ", ".join(
        f"{r.replica}{' draining' * (r.state == 'draining')}"
        for model in table.models.values()
        for r in model.replicas
    )
    return f"{words or 'nothing'}{' (partial)' * table.partial}"


def _about(command: m.Command) -> tuple[str, str]:
    if isinstance(command, m.SendReport):
        return ("", "")
    return (command.shard, command.incarnation)


def _drain_order(shard: s.Shard, reason: str) -> Order:
    r = shard.report
    return shard.node, m.DrainShard(shard=r.shard, incarnation=r.incarnation, reason=reason)
