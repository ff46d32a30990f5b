"""Whether this control leads: it takes an epoch, loses its lead, rises above one that was seen, or stands by.

Answers for: nothing is decided or sent without the lease in time, a new epoch at every acquisition, fencing before
settling (design.md 3). A standby knows the fleet as its agents tell it, which serves looks and routes; at promotion
every node is asked anew. May not decide for the fleet.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from functools import cached_property, partial

from msgspec.structs import replace

from llmgw.control import intent, keys
from llmgw.control.catalogs import Catalogs, Used
from llmgw.control.crash import crash
from llmgw.control.gate import Gate
from llmgw.control.keep import Keeper
from llmgw.control.lease import Holder, Lease, LeaseLostError, NotYetError
from llmgw.control.node_tokens import NodeTokens
from llmgw.control.peers import Peers
from llmgw.control.picture import Moment, memory_of
from llmgw.control.sessions import Sessions
from llmgw.control.settings import ControlSettings
from llmgw.control.store import Store, StoreError
from llmgw.control.story import KEPT, Story
from llmgw.core.adopt.survey import Survey
from llmgw.core.reconcile.fresh import Memory, started
from llmgw.core.reconcile.observe import observe
from llmgw.core.types.messages import PROTOCOL_FLOOR, NodeReport
from llmgw.core.types.state import Announced, Event, State

#: Tables of a standby are below those of the leader's epoch, and above those of the epoch before (`first_version`).
WARM = 500_000


class Leads:
    """The part of `Control` that is about leading; what it is made of is set there."""

    settings: ControlSettings
    name: str
    story: Story
    store: Store
    lease: Lease
    sessions: Sessions
    peers: Peers
    keeper: Keeper
    catalogs: Catalogs
    gate: Gate
    clock: Callable[[], float]
    state: State
    leading: bool
    follows: str
    epoch_seen: int
    promoted: asyncio.Event
    published: asyncio.Event
    _led: bool

    def fold(self, event: Event, now: float) -> None:
        self.state = observe(self.state, event, now)

    @cached_property
    def node_tokens(self) -> NodeTokens:
        return NodeTokens(self.settings.state_dir)

    # -- what it may do

    @property
    def acting(self) -> bool:
        """Leads, and its lease has time left at this very moment: asked again before anything is handed out (F22)."""
        return self.leading and self.in_time

    @property
    def in_time(self) -> bool:
        now = self.clock()
        until = self.lease.deadline(now)
        return until is None or now < until

    @property
    def leader(self) -> Holder | None:
        """Who leads instead, as far as is known."""
        return None if self.leading else self.lease.holder

    def authority(self, now: Moment) -> None:
        """Each pass: LeaseLostError where somebody else may lead; else lead if the lease is ours, and not longer."""
        self.lease.renew()
        if self.leading and not self.in_time:
            why = "does not decide: the time of its lease is over and it could not be renewed"
            self.lose(f"{why}: {self.lease.problem}" if self.lease.problem else why, "look at etcd")
        if self.leading:
            return
        if self.lease.held:
            self.lead(now)
        elif not self._led:
            self._follow()

    def _follow(self) -> None:
        leader = self.lease.holder
        if leader is not None:
            where = f" at {leader.place}" if leader.url else ""
            self.follows = f"{leader.name}{where} leads, this control stands by"
            self.story.once("follows", "standby", self.follows)
        else:
            why = self.lease.problem or "no control has the lease"
            self.follows = f"nobody leads as far as this control knows: {why}"
            if self.lease.problem:
                self.story.once("follows", "standby", self.follows, level="warning")

    # -- leading

    def lead(self, now: Moment) -> None:
        """Take a new epoch and start from what is remembered; then every node is asked, which fences (design.md 3)."""
        uuid = os.urandom(16).hex()
        try:
            self._open()
            crash("before_epoch")
            epoch = self.lease.acquire(uuid, self.epoch_seen)
            crash("after_epoch")
            memory = self._known() if self._led else self._remembered(now, epoch)
        except NotYetError as e:
            self.follows = e.message
            return
        except StoreError as e:
            self.lose(f"does not lead, no epoch can be stored: {e.message}", e.hint)
            return
        self.keeper.sources = self.catalogs.sources
        state = started(
            self.catalogs.catalog,
            memory,
            now=now.mono,
            settle_timeout_s=self.settings.settle_timeout_s,
            keep_unknown=self.settings.keep_unknown,
        )
        self.state = replace(
            state,
            epoch=epoch,
            leader_uuid=uuid,
            gateways=self.state.gateways,
            ending=self.state.ending,
        )
        if self._led:
            self.sessions.end_all()
        self.sessions.recall(n.report for n in self.state.nodes.values())
        self.leading = self._led = True
        self.promoted.set()
        self.follows = ""
        self.sessions.fence(epoch, now.mono)
        nodes = ", ".join(sorted(self.state.nodes))
        expected = f"expected: {nodes}" if nodes else "no node is expected yet"
        self.story.tell("leader", f"leads with epoch {epoch}; {expected}", epoch=epoch)
        if self.gate.begins(memory):
            self.fold(self.gate.told(), now.mono)

    def _open(self) -> None:
        """A file that cannot be had keeps nobody from leading whose epochs are elsewhere: nobody else can (F15)."""
        try:
            self.store.open()
        except StoreError:
            if self.lease.name == "file":
                raise

    def _known(self) -> Memory:
        """Led before: its own picture, but for gateways that may have come while another led."""
        return replace(memory_of(self.state, 0.0), gateways=None)

    def _remembered(self, now: Moment, epoch: int) -> Memory:
        """The first time: the inventory, what the leader before left, and what agents have told a standby meanwhile.

        The catalog is read after winning (F34).
        """
        memory, sources = Memory(), dict[str, str]()
        try:
            memory, sources = self.store.memory(now), self.store.sources()
            self.keeper.keys = self.store.keys()
            self.story.recall(self.store.events(KEPT))
        except StoreError as e:
            if self.lease.name == "file":
                raise
            why = f"leads by what the leader before left in the lease store: {e.message}"
            self.story.tell("inventory", why, level="warning", hint=e.hint)
        left = intent.read(
            self.lease.intent, now, partial(self.story.tell, "intent", level="warning")
        )
        self.catalogs.first(sources, Used() if left is None else left.catalog)
        if epoch == 1 and not self.keeper.keys:  # a new file: perhaps the old one was lost
            at, warn = now.iso(now.mono), partial(self.story.tell, "keys", level="warning")
            self.keeper.keys = keys.recalled(self.settings.gateway_dir, at, warn)
        if left is not None:
            if news := keys.overruled(self.keeper.keys, left.keys):
                why = f"API keys as the leader before left them: {news}"
                self.story.tell("keys", why, level="warning")
            self.keeper.keys = left.keys
            # Where nobody has led since, what `llmgw token` wrote meanwhile is the last word.
            ours = memory.epoch and epoch == memory.epoch + 1
            news = "" if ours or left.tokens is None else self.node_tokens.adopt(left.tokens)
            if news:
                why = f"node tokens as the leader before left them: {news}"
                self.story.tell("tokens", why, level="warning")
        elif self.lease.name != "file":  # others led meanwhile, and other gateways may have come
            memory = replace(memory, gateways=None)
        return intent.merged(memory, left, memory_of(self.state, 0.0))

    def lose(self, why: str, hint: str) -> None:
        """Decide nothing until an epoch can be stored or the lease is renewed; routes and sessions go on (F15, F30)."""
        if not self.state.catalog.models:
            # One that never led shows what it would adopt, and does not call it all unclaimed.
            self.state = replace(self.state, catalog=self.catalogs.peek())
        self.leading = False
        self.published.set()  # no gateway is held here: who leads instead has the next table
        self.published = asyncio.Event()
        self.follows = f"{why}; {hint}"
        self.story.once("blocked", "blocked", why, level="warning", hint=hint)

    def fence(self, report: NodeReport, now: float) -> None:
        """An agent knows an epoch that is not ours: ask the lease, and if it is still ours rise above (F16, F33).

        Its own registration is answered with the new epoch; the others are asked to report, which tells them.
        """
        epoch_seen, leader_uuid = report.epoch_seen, report.leader_uuid
        self.epoch_seen = max(self.epoch_seen, epoch_seen)
        ours = (self.state.epoch, self.state.leader_uuid)
        if not self.outranked(report):
            return
        self.lease.renew()
        try:
            epoch = self.lease.acquire(ours[1], epoch_seen)
            crash("epoch_raised")
        except (StoreError, NotYetError) as e:
            self.lose(
                f"does not lead, epoch {epoch_seen} was seen and no higher one can be stored: {e.message}",
                e.hint,
            )
            return
        whom = f"epoch {epoch_seen} of leader {leader_uuid or 'unknown'}"
        why = f"an agent obeyed {whom}; the lease is ours, the epoch is {epoch} now"
        self.story.tell("epoch", why, level="warning", epoch=epoch)
        # What is remembered is older than the fleet, which this report alone tells: the next one has our token (F16).
        self.state = replace(self.state, epoch=epoch, outdated=True, unheard=None)
        self.sessions.fence(epoch, now)

    def outranked(self, report: NodeReport) -> bool:
        """Its agent obeyed another leader of an epoch that ours is not above."""
        seen, ours = report.epoch_seen, self.state.epoch
        same = (seen, report.leader_uuid) == (ours, self.state.leader_uuid)
        return self.leading and seen >= ours and not same

    def unfenced(self, report: NodeReport) -> bool:
        """Taken before its agent stored our epoch: its call may be late, and another have commanded since (A42).

        It does not count; the agent is asked for one that does. Two need no fence. Of epoch 1: who obeyed anybody
        refuses it. A file's lone control: the one before was itself, and its agents close their session with it before
        they say what runs; that first word tells too of a fleet younger than the file (F16).
        """
        alone = self.lease.name == "file" and not self.settings.standby
        if not self.leading or alone or self.state.epoch == 1 or report.protocol < PROTOCOL_FLOOR:
            return False
        token = (report.epoch_seen, report.leader_uuid)
        return token != (self.state.epoch, self.state.leader_uuid)

    # -- standing by

    def stand_by(self, now: Moment) -> None:
        """Nothing is remembered or opened yet: what agents tell from here on is the picture."""
        self.state = started(
            self.catalogs.peek(),
            Memory(),
            now=now.mono,
            settle_timeout_s=self.settings.settle_timeout_s,
            keep_unknown=self.settings.keep_unknown,
        )

    def _dropped(self, found: Survey, now: Moment) -> None:
        """A standby's picture loses what its agents do not run any more; to tell of it is the leader's."""
        lacking = frozenset(v.shard.incarnation for v in found.verdicts if v.verdict == "forget")
        if lacking:
            self.fold(Announced(lacking), now.mono)

    @property
    def lowest_table(self) -> int:
        """No table of ours may have a lower version, nor this one."""
        if self._led:
            return self.state.first_version - 1
        leader = self.lease.holder
        seen = max(self.epoch_seen, self.peers.epoch, leader.epoch if leader else 0)
        return max(seen * 1_000_000 - WARM, 0)

    def lost(self, e: Exception) -> None:
        """Its last act is none: another may lead, and has the inventory."""
        if isinstance(e, LeaseLostError):
            self.leading = False
