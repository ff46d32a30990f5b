"""An agent's conversation with one control: register, events one at a time, commands by `seq` (contract/http.md).

As the real one does, it ends the session on any failure and begins with a full register again, after a back-off.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

from msgspec.structs import replace

from llmgw.agent.orders import in_time
from llmgw.core.supervise.report import shard_report
from llmgw.core.types.messages import (
    Command,
    Events,
    EventsReply,
    Refusal,
    Registered,
    ShardReport,
)
from llmgw.core.types.node import Session, SessionLost, SessionOpened
from llmgw.core.types.record import Key
from tests.sim import older
from tests.sim.network import Unreachable

if TYPE_CHECKING:
    from tests.sim.agents import Agent

#: Full jitter, doubling up to the cap of the contract.
BACKOFF_S, BACKOFF_CAP_S = 0.25, 5.0
#: (session, commands) -> (session, applied)
Peer = Callable[[str, tuple[Command, ...]], tuple[str, int]]


class Link:
    def __init__(self, agent: Agent, url: str) -> None:
        self.agent = agent
        self.url = url
        self.session = ""
        self.applied = 0
        self.n = 0
        self.dirty: set[Key] = set()
        self.gone: list[Key] = []
        self.refused: list[Refusal] = []
        self.devices = False
        self._registering = False
        self._posting = False
        self._asked = 0
        self._failures = 0
        self._luck = agent.sim.dice.stream("link", agent.facts.node, url)

    @property
    def quiet(self) -> bool:
        """Control has heard everything we had to say."""
        return bool(self.session) and not (
            self.dirty or self.gone or self.refused or self._posting or self._registering
        )

    # ------------------------------------------------------------ register

    def register(self) -> None:
        """Close the old session's intake, then the snapshot, in one step (A42)."""
        agent = self.agent
        if agent.state is None or self._registering or not agent.state.reattached:
            return
        self._registering, self._posting = True, False
        self.session = ""
        # Also before there was one: a registration whose reply was lost may have opened it at control.
        agent.following.lost(self.url)
        agent.feed(SessionLost(self.url))
        if not agent.up:
            return
        self._asked += 1
        asked, life = self._asked, agent.life
        report = replace(agent.snapshot(), registration=agent.sim.clock.steps)
        self.dirty, self.gone = set(), []

        def failed() -> None:
            if self._asked == asked:
                self._registering = False
                self._back_off()

        def reply(said: Registered) -> None:
            if self._asked == asked:
                self._opened(said)

        control = agent.sim.controls[self.url]
        agent.sim.net.call(
            (agent.facts.node, self.url),
            lambda: control.sessions.register(report, self._peer(life)),
            reply,
            failed,
            agent,
        )

    def _back_off(self) -> None:
        most = min(BACKOFF_CAP_S, BACKOFF_S * 2**self._failures)
        self._failures = min(self._failures + 1, 10)
        self.agent.later(self._luck.uniform(0.0, most), self._retry)

    def _retry(self) -> None:
        control = self.agent.sim.controls[self.url]
        if self.session or self.agent.links.get(self.url) is not self:
            return
        if control.up:
            self.register()
        else:  # refused at once, again and again: until somebody listens there is nothing to see
            control.missed.append(self._back_off)

    def _opened(self, said: Registered) -> None:
        self.agent.heard_leader = self.agent.heard_leader or said.leader
        self._registering, self._failures = False, 0
        self.session, self.applied, self.n = said.session, 0, 0
        self.agent.feed(
            SessionOpened(
                control=self.url,
                session=Session(
                    session=said.session,
                    epoch=said.epoch,
                    leader_uuid=said.leader_uuid,
                    leader=said.leader,
                    lease=self.agent.sim.lease.kind,
                ),
            )
        )
        self.post_soon()

    # ------------------------------------------------------------ events

    def post_soon(self) -> None:
        if self.session and not self._posting:
            self._posting = True
            session = self.session
            self.agent.later(0.05, lambda: self._post() if self.session == session else None)

    def heartbeat(self) -> None:
        if self.session and not self._posting:
            self._posting = True
            self._post()

    def _post(self) -> None:
        agent = self.agent
        assert agent.state is not None
        self.n += 1
        records, version = agent.state.records, agent.version
        dirty, gone, refused, devices = self.dirty, self.gone, self.refused, self.devices
        self.dirty, self.gone, self.refused, self.devices = set(), [], [], False
        shards = tuple(
            older.shard(version, shard_report(records[k], secrets=True))
            for k in sorted(dirty)
            if k in records
        )
        events = Events(
            session=self.session,
            n=self.n,
            applied=self.applied,
            shards=shards,
            gone=tuple(older.key(version, k) for k in gone),
            gpus=agent.state.gpus if devices else None,
            gpus_error=agent.state.gpus_error if devices else None,
            foreign=agent.state.foreign if devices else None,
            refused=tuple(refused),
            digest=digest(older.shard(version, shard_report(r)) for r in records.values()),
            at=agent.stamps.now() if version == older.TODAY else "",
        )
        session = self.session

        def failed() -> None:
            if self.session == session:
                self.session, self._posting = "", False
                self.refused = [*refused, *self.refused]
                self._back_off()

        def reply(said: EventsReply | None) -> None:
            if self.session != session:
                return
            self._posting = False
            if said is None or not said.match:
                self.register()
            elif self.dirty or self.gone or self.refused:
                self.post_soon()

        control = agent.sim.controls[self.url]
        agent.sim.net.call(
            (agent.facts.node, self.url),
            lambda: control.sessions.events(agent.facts.node, events),
            reply,
            failed,
            agent,
        )

    # ------------------------------------------------------------ commands

    def _peer(self, life: int) -> Peer:
        """Where control's answers to this very process go."""

        def deliver(session: str, commands: tuple[Command, ...]) -> tuple[str, int]:
            if not self.agent.up or self.agent.life != life:
                raise Unreachable
            self.agent.awake()
            return self._deliver(session, commands)

        return deliver

    def _deliver(self, session: str, commands: tuple[Command, ...]) -> tuple[str, int]:
        """A batch of commands; the answer says up to which they are journaled."""
        for command in commands:
            if session != self.session:
                break
            if command.seq > self.applied:
                self.applied = command.seq
                known = older.understood(self.agent.version, command, self.agent.records)
                self.agent.command(self.url, in_time(known, self.agent.stamps))
                if not self.agent.up or self.agent.frozen:
                    break
        return self.session, self.applied


def digest(shards: Iterable[ShardReport]) -> str:
    """The two pictures of a node, compared in one word (anti-entropy)."""
    lines = sorted(f"{s.shard} {s.incarnation} {s.attempt} {s.state} {s.port}" for s in shards)
    return "\n".join(lines)
