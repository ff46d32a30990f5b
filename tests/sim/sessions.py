"""Control's side of the talk with agents: registrations, events, the commands queued for each (contract/http.md).

As llmgw.control has it, with one thing more where the lease can move to another host: there a registration counts only
when the agent has stored our epoch (design.md 3, "promotion fences first").
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from msgspec.structs import replace

from llmgw.core.asleep import told
from llmgw.core.types import messages as m
from llmgw.core.types import state as s
from tests.sim.links import Peer, digest
from tests.sim.network import Answer, Unreachable

if TYPE_CHECKING:
    from tests.sim.controls import Control

#: A push that got no answer is made again; an order that was carried out and changed nothing is repeated.
SOON_S, AGAIN_S, REPEAT_S = 0.2, 2.0, 5.0
#: A control that may not lead ends, and is started again after this.
RESTART_S = 2.0


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
    #: per kind and shard: seq and time of the last order
    numbers: dict[tuple[str, str, str], tuple[int, float]] = field(default_factory=dict)
    pushing: bool = False
    at: str = ""
    at_s: float = 0.0
    #: its agent has stored our epoch and answered with its inventory
    fenced: bool = False

    @property
    def read_only(self) -> bool:
        return self.report.protocol < m.PROTOCOL_FLOOR

    def ack(self, applied: int) -> None:
        self.applied = max(self.applied, applied)
        self.queue = [c for c in self.queue if c.seq > applied]


class Sessions:
    def __init__(self, control: Control) -> None:
        self.control = control
        self.sim = control.sim
        self.of: dict[str, Session] = {}
        #: per node, its boot and the newest registration of it
        self._latest: dict[str, tuple[str, int]] = {}
        self._count = 0

    def recall(self, reports: Iterable[m.NodeReport]) -> None:
        """A call held up over the end of the control before this one is as late (A42)."""
        for report in reports:
            self._latest[report.node] = (report.boot_id, report.registration)

    # ------------------------------------------------------------ what agents say

    def register(self, report: m.NodeReport, peer: Peer) -> Answer:
        control, now = self.control, self.control.now_s
        control.listening()
        if self._double(report) or self._stale(report):
            raise Unreachable  # 409
        other = report.leader_uuid not in (None, control.uuid)
        if other and report.epoch_seen >= control.picture.epoch and not control.standing:
            self._rise(report.epoch_seen)
        state = control.listening()
        self._count += 1
        session = Session(f"{control.uuid}.{self._count}", report, peer, now)
        self.of[report.node] = session
        ours = report.epoch_seen == state.epoch and report.leader_uuid == control.uuid
        # Of epoch 1 nobody led before, and a file's control here has no standby: there is nobody to fence off.
        nobody = state.epoch == 1 or self.sim.lease.kind == "file"
        session.fenced = ours or nobody or session.read_only
        if session.fenced or control.standing:
            self._fold(state, report)
        if not session.fenced and not control.standing:
            self.send(report.node, m.SendReport())
        lease = self.sim.lease.kind

        def said() -> m.Registered:
            epoch = control.picture.epoch
            return m.Registered(
                session=session.id,
                epoch=epoch,
                leader_uuid=control.uuid,
                leader=not control.standing,
                lease=lease,
                read_only=session.read_only,
            )

        return control.owes(Answer(said))

    def _fold(self, state: s.State, report: m.NodeReport) -> None:
        control = self.control
        words = ", ".join(f"{x.shard} {x.state}" for x in report.shards) or "nothing"
        if not control.standing:
            self.sim.say(control.url, "registered", f"{report.node} {words}")
        known = state.nodes.get(report.node)
        if known is None or not known.settled:
            control.heard.last_new_s = self.control.now_s
        self._told(report.node, report.shards)
        # A stop that was lost on its way (F79): by the agent's whole word it is still wanted, and judged anew.
        up = (x for x in report.shards if x.state in m.LIVE or x.state in m.STARTING)
        control.heard.stopped -= {x.incarnation for x in up if x.desired == "running"}
        control.observe(s.NodeRegistered(report))

    def _told(self, node: str, shards: Iterable[m.ShardReport]) -> None:
        """For the judge; an older agent leaves incarnations out, and names them all the same by their shards."""
        heard = self.control.heard.incarnations
        heard |= {x.incarnation for x in shards if x.model}
        if "" in heard:
            heard.discard("")
            named = {x.shard for x in shards if not x.incarnation}
            heard |= {inc for shard, inc in self.sim.agents[node].records if shard in named}

    def _double(self, report: m.NodeReport) -> bool:
        """Another machine, or another boot, of a node that was heard just now: two of one name or id (F52, F53)."""
        old = self.of.get(report.node)
        if old is None:
            return False
        same = old.report.boot_id == report.boot_id and old.report.node_id == report.node_id
        return not same and self.control.now_s - old.heard_s < s.SESSION_TTL_S

    def _stale(self, report: m.NodeReport) -> bool:
        """Taken before one that is folded already; `registration` is a time of the node's clock, one clock a boot."""
        boot_id, newest = self._latest.get(report.node, ("", 0))
        if report.boot_id == boot_id and report.registration <= newest:
            return True
        self._latest[report.node] = (report.boot_id, report.registration)
        return False

    def events(self, node: str, events: m.Events) -> m.EventsReply | Answer | None:
        """None: 410, register again. News are answered when the pass that they set off is over."""
        control = self.control
        state = control.listening()
        session = self.of.get(node)
        if session is None or session.id != events.session:
            return None
        if events.n <= session.n:
            return m.EventsReply(epoch=state.epoch)
        session.n, session.heard_s = events.n, self.control.now_s
        session.at, session.at_s = events.at, control.rests.clock()
        session.ack(events.applied)
        self._told(node, events.shards)
        there = state.nodes.get(node)
        silent = there is not None and not there.connected
        news = bool(events.shards or events.gone or events.refused)
        if news or events.gpus is not None or events.gpus_error is not None or silent:
            change = s.ShardsChanged(
                node,
                events.shards,
                events.gone,
                events.gpus,
                events.foreign,
                events.refused,
                events.gpus_error,
            )
            control.observe(change, urgent=news)
        other = any(r.reason in ("lower_epoch", "other_leader") for r in events.refused)
        match = not other and self._same(node, events.digest)

        def said() -> m.EventsReply:
            return m.EventsReply(match=match, epoch=control.picture.epoch)

        return control.owes(Answer(said)) if news else said()

    def _same(self, node: str, said: str) -> bool:
        there = self.control.picture.nodes.get(node)
        if there is None or not there.settled:
            return True
        known = (told(x) for x in there.shards if x.origin != s.PLACED and not x.missing)
        return digest(known) == said

    def _rise(self, seen: int) -> None:
        """Somebody led above us: ask the lease. Still ours: take one more; not ours: end."""
        control = self.control
        if not self.sim.lease.holds(control.url):
            control.crash("another leads", again_s=RESTART_S)
            return
        epoch = control.next_epoch(max(control.picture.epoch, seen))
        self.sim.say(control.url, "takes epoch", f"{epoch}, an agent has seen {seen}")
        if not control.keep_epoch(epoch):
            control.crash("no higher epoch can be stored", again_s=RESTART_S)
            return
        control.state = replace(control.picture, epoch=epoch, outdated=True, unheard=None)
        for node, session in self.of.items():
            session.fenced = False
            self.send(node, m.SendReport())

    def unfence(self) -> None:
        """Its control leads from here on: what agents told a standby counts for nothing until they answer its fence."""
        for session in self.of.values():
            session.fenced = False

    def expired(self) -> list[str]:
        """End and name those that were silent for too long."""
        now = self.control.now_s
        silent = [k for k, x in self.of.items() if now - x.heard_s >= s.SESSION_TTL_S]
        for node in silent:
            del self.of[node]
        return silent

    # ------------------------------------------------------------ commands

    def answered(self, node: str) -> bool:
        """Something may be placed there: its agent has stored our epoch, and is not below the floor (F55)."""
        session = self.of.get(node)
        return session is not None and session.fenced and not session.read_only

    def bound(self, node: str, order: m.StopShard) -> m.StopShard | None:
        session = self.of.get(node)
        if session is None:
            return None
        return self.control.rests.bound(order, session.at, session.at_s)

    def send(self, node: str, command: m.Command) -> None:
        """Queue it, unless the same is under way; what changed nothing is repeated after a while."""
        session, now = self.of.get(node), self.control.now_s
        if session is None or not self.control.up or session.read_only:
            return
        key = (type(command).__name__, *_about(command))
        seq, at = session.numbers.get(key, (0, -REPEAT_S))
        if seq > session.applied or now - at < REPEAT_S:
            return
        if isinstance(command, m.StopShard):
            drain, _ = session.numbers.get((m.DrainShard.__name__, *_about(command)), (0, 0.0))
            session.queue = [c for c in session.queue if c.seq != drain]
        session.seq += 1
        session.numbers[key] = (session.seq, now)
        stamped = replace(
            command,
            seq=session.seq,
            session=session.id,
            epoch=self.control.picture.epoch,
            leader_uuid=self.control.uuid,
        )
        self.sim.judge.sends(self.control, node, stamped)
        session.queue.append(stamped)
        self._push(session)

    def _push(self, session: Session) -> None:
        """Answer the agent's long poll; what was not acknowledged goes out again."""
        node, control = session.report.node, self.control
        if session.pushing or not session.queue or self.of.get(node) is not session:
            return
        if control.lapsed:
            return  # looked at when it is handed out (F22)
        session.pushing = True
        commands = tuple(session.queue)

        def reply(said: tuple[str, int]) -> None:
            session.pushing = False
            if said[0] != session.id:  # it has not got its session yet
                control.later(SOON_S, lambda: self._push(session))
                return
            session.ack(said[1])
            self._push(session)

        def failed() -> None:
            session.pushing = False
            control.later(AGAIN_S, lambda: self._push(session))

        ends = (control.url, node)
        self.sim.net.call(ends, lambda: session.peer(session.id, commands), reply, failed, control)


def _about(command: m.Command) -> tuple[str, str]:
    if isinstance(command, m.SendReport):
        return ("", "")
    # An ordinary stop under way must not swallow an operator's (A43).
    force = " force" if isinstance(command, m.StopShard) and command.force else ""
    return (command.shard + force, command.incarnation)
