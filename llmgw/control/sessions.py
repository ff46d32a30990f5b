"""Live registrations of agents: who may register, what is queued for each, who has fallen silent (contract/http.md).

Answers for: one session a node, commands in order until they are acknowledged, the same order not twice while it is
under way. May not decide what to command, nor fold anything: the loop asks, one task at a time.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterable

from msgspec import Struct
from msgspec.structs import replace

from llmgw.control.crash import crash
from llmgw.control.rests import Rests
from llmgw.core.supervise.claims import NAME
from llmgw.core.types.messages import (
    EPOCH_END,
    PROTOCOL_FLOOR,
    Command,
    Events,
    NodeReport,
    SendReport,
    StopShard,
    Token,
)
from llmgw.core.types.state import SESSION_TTL_S
from llmgw.errors import LlmgwError

#: A long poll is answered after this long with nothing in it.
POLL_S = 25.0
#: An order that was carried out and changed nothing (refused, lost) is repeated no sooner.
REPEAT_S = 5.0
#: A session may last for months: what was ordered long ago is forgotten beyond this many.
NUMBERS_KEPT = 1000
#: So many earlier processes of one node's agent are remembered, to tell that one of them is not dead at all.
FORMER_KEPT = 16
#: While two pictures of a node stay different whatever it reports, another report is asked for no sooner.
DISPUTE_S = 60.0

#: kind, shard, incarnation
Key = tuple[str, str, str]


class SessionGoneError(LlmgwError):
    """Register again."""

    code = "session_gone"
    status = 410


class Session(Struct, eq=False):
    """`numbers`: seq and time of the last order of a kind to a shard, so that it is not queued twice.

    `epoch`: the one its agent was told when it registered. `former`: the agent's processes that this one superseded.
    """

    id: str
    report: NodeReport
    came_from: str
    heard_s: float
    epoch: int = 0
    former: tuple[str, ...] = ()
    n: int = -1
    applied: int = 0
    seq: int = 0
    queue: dict[int, Command] = {}
    numbers: dict[Key, tuple[int, float]] = {}
    changed: asyncio.Event | None = None
    gone: bool = False
    #: the newest moment by its agent's clock, and when it came, by that of `Rests`
    at: str = ""
    at_s: float = 0.0
    #: name of the node token that it was opened with, as `node_tokens` has it
    token: str = ""

    @property
    def node(self) -> str:
        return self.report.node

    @property
    def read_only(self) -> bool:
        return self.report.protocol < PROTOCOL_FLOOR

    @property
    def place(self) -> str:
        return _place(self.report, self.came_from)


class Dispute(Struct):
    """Two digests of one node that differ: since when, and in which session, a complete report was asked for."""

    pair: tuple[str, str]
    session: str
    asked_s: float
    said: bool = False


class Sessions:
    def __init__(self) -> None:
        self._by_id: dict[str, Session] = {}
        self._by_node: dict[str, Session] = {}
        #: per node id, the boot in which it registered last, and that registration's number
        self._latest: dict[str, tuple[str, int]] = {}
        self._disputes: dict[str, Dispute] = {}
        self._closing = False

    def recall(self, reports: Iterable[NodeReport]) -> None:
        """What was registered with the control before this one: a call held up over its end is as late (A42)."""
        for report in reports:
            self._latest.setdefault(report.node_id, (report.boot_id, report.registration))

    def check(self, report: NodeReport, came_from: str, now: float) -> None:
        """LlmgwError where it may not register: 409 where somebody else is behind that name or id."""
        if not NAME.fullmatch(report.node):
            msg = f"registration refused: {report.node[:80]!r} is no name of a node"
            raise LlmgwError(msg, "letters, digits, '.', '_', '-' only: llmgw agent --node NAME")
        if not 0 <= report.epoch_seen < EPOCH_END:
            msg = f"registration of {report.node} refused: no control ever led with epoch {report.epoch_seen}"
            raise LlmgwError(msg, "stop its agent, remove token.json from the state dir")
        if not report.node_id:
            msg = f"registration of {report.node} refused: it has no node_id"
            raise LlmgwError(msg, "a node id is a random word kept in the agent's state dir")
        if not report.reattached:
            msg = f"registration of {report.node} refused: its agent has not re-attached its engines yet"
            raise LlmgwError(
                msg, "register when every record is looked at", code="not_reattached", status=409
            )
        boot_id, latest = self._latest.get(report.node_id, ("", 0))
        if report.boot_id and report.boot_id == boot_id and 0 < report.registration <= latest:
            # A call that its agent gave up long ago, delivered late: folded in, it would undo what was started since.
            msg = (
                f"registration {report.registration} of {report.node} refused: {latest}, a newer one of "
                "the same boot, came before it"
            )
            raise LlmgwError(msg, "register anew", code="stale", status=409)
        for old in self._same(report):
            _refuse_double(old, report, came_from, now)

    def open(
        self, report: NodeReport, came_from: str, now: float, epoch: int = 0, token: str = ""
    ) -> Session:
        """A new session in place of those of the same node; `check` has let it in."""
        former: tuple[str, ...] = ()
        for old in self._same(report):
            self._end(old)
            former = old.former
            if report.instance not in ("", old.report.instance):
                former = (*former, old.report.instance)[-FORMER_KEPT:]
        new = Session(
            id=os.urandom(16).hex(),
            report=report,
            came_from=came_from,
            heard_s=now,
            epoch=epoch,
            former=former,
            changed=asyncio.Event(),
            token=token,
        )
        self._by_id[new.id] = self._by_node[report.node] = new
        self._latest[report.node_id] = (report.boot_id, report.registration)
        return new

    def _same(self, report: NodeReport) -> list[Session]:
        return [
            s
            for s in self._by_id.values()
            if s.node == report.node or s.report.node_id == report.node_id
        ]

    def get(self, session_id: str) -> Session:
        session = self._by_id.get(session_id)
        if session is None:
            msg = "this session is over"
            raise SessionGoneError(msg, "register again")
        return session

    def of(self, node: str) -> Session | None:
        return self._by_node.get(node)

    def reachable(self, node: str) -> bool:
        """May be sent a command: an agent below the protocol floor is never (F55)."""
        session = self._by_node.get(node)
        return session is not None and not session.read_only

    def fenced(self, node: str, epoch: int) -> bool:
        """And its agent's report was taken after it had stored this epoch: something may be placed there."""
        return self.reachable(node) and self._by_node[node].epoch >= epoch

    def __len__(self) -> int:
        return len(self._by_id)

    def nodes(self) -> tuple[str, ...]:
        return tuple(self._by_node)

    def heard(self, session: Session, message: Events, now: float) -> bool:
        """Note a sign of life; False for a message older than one that was folded already."""
        session.heard_s = now
        session.applied = max(session.applied, min(message.applied, session.seq))
        if message.n <= session.n:
            return False
        session.n = message.n
        return True

    def differ(self, session: Session, theirs: str, ours: str, now: float) -> bool:
        """Whether a complete report may settle that two digests differ: not when the last one left them as they were.

        An agent that says what this control reads otherwise (a state of a newer version) would else register for ever.
        """
        node_id = session.report.node_id
        old = self._disputes.get(node_id)
        new = Dispute((theirs, ours), session.id, now)
        if old is not None:
            answered = old.session != session.id
            if answered and (old.pair == new.pair or now - old.asked_s < DISPUTE_S):
                return False
            new.said = old.said
        self._disputes[node_id] = new
        return True

    def first_said(self, session: Session) -> bool:
        """True once a dispute: it is news for people."""
        dispute = self._disputes[session.report.node_id]
        said, dispute.said = dispute.said, True
        return not said

    def agree(self, session: Session) -> None:
        self._disputes.pop(session.report.node_id, None)

    def fence(self, epoch: int, now: float) -> None:
        """Ask every agent that was told a lower epoch to report, until it has stored this one and did (design.md 3).

        Asked once only, a node whose disk was full at that moment would obey an older leader for months.
        """
        for session in self._by_id.values():
            if session.epoch < epoch:
                self.send(session.node, SendReport(), now)

    def send(self, node: str, command: Command, now: float) -> bool:
        """Queue it, unless the same is under way; False when it was not queued."""
        session = self._by_node.get(node)
        if session is None or session.read_only:
            return False
        key = _key(command)
        seq, at = session.numbers.get(key, (0, -REPEAT_S))
        if seq > session.applied or now - at < REPEAT_S:
            return False
        if len(session.numbers) > NUMBERS_KEPT:
            session.numbers = {
                k: (n, t)
                for k, (n, t) in session.numbers.items()
                if n > session.applied or now - t < REPEAT_S
            }
        if isinstance(command, StopShard):
            _spare_drain(session, command)
        session.seq += 1
        session.numbers[key] = (session.seq, now)
        session.queue[session.seq] = replace(command, seq=session.seq, session=session.id)
        assert session.changed is not None
        session.changed.set()
        crash(f"after_send_{_kind(command)}")
        return True

    def bound(self, node: str, order: StopShard, rests: Rests) -> StopShard | None:
        """As `Rests` has it for the agent there."""
        session = self._by_node.get(node)
        return None if session is None else rests.bound(order, session.at, session.at_s)

    async def poll(
        self, session: Session, after: int, wait_s: float = POLL_S
    ) -> tuple[Command, ...]:
        """What is queued behind `after`, which acknowledges what is before; () when nothing came."""
        assert session.changed is not None
        if after > session.seq:
            # It counts by another session: what it takes for heard was never sent.
            msg = f"order {after} is acknowledged, {session.seq} were given in this session"
            raise SessionGoneError(msg, "register again")
        for seq in [s for s in session.queue if s <= after]:
            del session.queue[seq]
            crash("after_ack")
        if not session.queue and not session.gone and not self._closing:
            session.changed.clear()
            try:
                async with asyncio.timeout(wait_s):
                    await session.changed.wait()
            except TimeoutError:
                return ()
        if session.gone:
            msg = "this session is over"
            raise SessionGoneError(msg, "register again")
        return tuple(session.queue.values())

    def expired(self, now: float) -> list[Session]:
        """End and return those that were silent for too long."""
        silent = [s for s in self._by_id.values() if now - s.heard_s >= SESSION_TTL_S]
        for session in silent:
            self._end(session)
        return silent

    def revoke(self, token: str) -> list[str]:
        """Nodes that came with it: from the next turn on as silent as one that has died."""
        mine = [s for s in self._by_id.values() if s.token == token]
        for session in mine:
            session.heard_s = -SESSION_TTL_S
        return [s.node for s in mine]

    def end_all(self) -> None:
        for session in list(self._by_id.values()):
            self._end(session)

    def release(self) -> None:
        """Answer every poll that waits or comes: control is on its way out, the sessions are not over."""
        self._closing = True
        for session in self._by_id.values():
            assert session.changed is not None
            session.changed.set()

    def _end(self, session: Session) -> None:
        session.gone = True
        self._by_id.pop(session.id, None)
        if self._by_node.get(session.node) is session:
            del self._by_node[session.node]
        assert session.changed is not None
        session.changed.set()


def stamped(command: Command, session: Session, token: Token) -> Command:
    """An order is of the epoch in which its agent said what it runs; the question what that is, of this moment's.

    Where the epoch rose meanwhile, above a leader that the agent may have obeyed since, it has the old order refused.
    """
    asks = isinstance(command, SendReport) or not session.epoch
    epoch = token.epoch if asks else session.epoch
    return replace(command, epoch=epoch, leader_uuid=token.leader_uuid)


def _kind(command: Command) -> str:
    return str(command.__struct_config__.tag)


def _key(command: Command) -> Key:
    kind = _kind(command)
    if isinstance(command, SendReport):
        return (kind, "", "")
    if isinstance(command, StopShard) and command.force:
        kind += " force"  # an ordinary one under way must not swallow an operator's (A43)
    return (kind, command.shard, command.incarnation)


def _spare_drain(session: Session, stop: StopShard) -> None:
    """What is told to end need not be told to drain first, where that is still under way."""
    seq, _ = session.numbers.get(("drain", stop.shard, stop.incarnation), (0, 0.0))
    session.queue.pop(seq, None)


def _place(report: NodeReport, came_from: str) -> str:
    """Where an agent is, for people."""
    return (
        report.address
        if came_from in ("", report.address)
        else f"{report.address} (from {came_from})"
    )


def _refuse_double(old: Session, mine: NodeReport, came_from: str, now: float) -> None:
    """F52, F53: a restarted agent is welcome at once, two agents behind one name or id are not."""
    same_id = mine.node_id == old.report.node_id
    boots = {mine.boot_id, old.report.boot_id} - {""}  # not said is not another one (F55)
    restarted = same_id and len(boots) < 2  # noqa: PLR2004 - two of them differ
    if restarted and not (mine.instance and mine.instance in old.former):
        return  # the flock on its state dir proves that the old one ended
    heard = now - old.heard_s
    if heard >= SESSION_TTL_S:
        return
    what = "has another node id"
    if same_id:
        # The flock does not reach into another container: each would end the other's session for ever.
        what = "took its place" if restarted else "is known under another boot id"
        what += " with the same node id"
    msg = (
        f"node {mine.node} at {_place(mine, came_from)} refused: {old.node} at {old.place} {what} "
        f"and was heard {heard:.0f} s ago"
    )
    hint = (
        "a cloned disk, or a copied state dir? remove the state dir of one of the two"
        if same_id
        else "give one of them another name: llmgw agent --node NAME"
    )
    raise LlmgwError(msg, hint, code="duplicate_node", status=409)
