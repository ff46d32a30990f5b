"""One node's agent: the real `supervise`, its effects performed on a `Host`, its journal, and its talk with controls.

It decides nothing. At any boundary of an effect it may be killed, and keeps its journal, or stopped, and goes on later.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from msgspec.structs import replace

from llmgw.clock import Stamps
from llmgw.core.supervise import durable, initial_state, next_due, unidentified
from llmgw.core.supervise.follow import Following
from llmgw.core.supervise.report import node_report
from llmgw.core.types import node as n
from llmgw.core.types.messages import Command, Foreign, Gpu, NodeReport, Refusal, Start, Token
from llmgw.core.types.record import Key, Record
from tests.sim import evidence, older
from tests.sim.clock import iso
from tests.sim.gateways import SLOW
from tests.sim.links import Link
from tests.sim.process import Process
from tests.sim.world import Engine, Host

if TYPE_CHECKING:
    from tests.sim.simulation import Simulation

HEARTBEAT_S = 5.0
#: The boundaries at which it may be killed or stopped (`Process.trap`).
POINTS = tuple(
    f"{when}-{effect.__name__}"
    for effect in (
        *(n.StoreToken, n.WriteRecord, n.DeleteRecord, n.Spawn, n.Signal, n.Look, n.Measure),
        *(n.Probe, n.Knock, n.CallDoor, n.Identify, n.Refuse, n.Register, n.Changed),
    )
    for when in ("before", "after")
)


class Agent(Process):
    def __init__(self, sim: Simulation, host: Host, facts: n.NodeFacts) -> None:
        super().__init__(sim.clock, sim.struck)
        self.sim = sim
        self.host = host
        self.facts = facts
        self.luck = sim.dice.stream("agent", facts.node)
        self.journal: dict[Key, Record] = {}
        self.token: Token | None = None
        self.state: n.AgentState | None = None
        self.stamps = Stamps(lambda: sim.clock.now / SLOW)
        self.links: dict[str, Link] = {}
        #: which fields its version does not know yet (F55)
        self.version = older.TODAY
        #: a leader has answered this process
        self.heard_leader = False
        self._ticks_at = float("inf")
        self._watched: dict[Key, tuple[Engine, int]] = {}
        self._unwritten: set[Key] = set()
        self.following = Following()
        host.exited = self._exited

    @property
    def records(self) -> dict[Key, Record]:
        """What this node answers for: in memory, else what the journal says."""
        return self.state.records if self.state is not None else self.journal

    # ------------------------------------------------------------ life

    def start(self) -> None:
        if self.up:
            return
        lost = [e for e in self.host.live() if e.key not in self.journal]
        if self.host.proc_blind and lost:
            # It has to sweep /proc for engines of which it has no record, and ends when it cannot.
            self.sim.say(self.facts.node, "agent cannot start", "/proc cannot be read")
            self.sim.clock.after(2.0, self.start)
            return
        self.begins()
        self.stamps = Stamps(lambda: self.sim.clock.now / SLOW)
        facts = replace(
            self.facts, boot_id=self.host.boot_id, instance=f"{self.facts.node}.{self.life}"
        )
        found = evidence.orphans(self.host, self.journal)
        self.state = initial_state(facts, (*self.journal.values(), *found), self.token)
        self.heard_leader = False
        self._watched, self._unwritten, self._ticks_at = {}, set(), float("inf")
        self.following = Following()
        self.links = {url: Link(self, url) for url in self.sim.urls}
        self.sim.say(self.facts.node, "agent starts", f"{len(self.journal)} records in its journal")
        self._see_gpus(self.host.gpus(), self._foreign())
        for record in unidentified(self.state):
            self._identify(record)
        self._registers()
        self.later(HEARTBEAT_S, self._heartbeat)

    def crash(self, why: str = "killed") -> None:
        if not self.up:
            return
        self.sim.say(self.facts.node, "agent is gone", why)
        self.ends()
        self.state = None

    # ------------------------------------------------------------ the core

    def feed(self, event: n.Event) -> None:
        """One fact to `supervise`, and what it wants done. A command whose journal entry fails is refused whole."""
        if self.frozen:
            self.hold(lambda: self.feed(event))
            return
        before = self.state
        if before is None:
            return
        after, effects = self.sim.core.supervise(before, event, self.sim.clock.now)
        if isinstance(event, n.CommandReceived) and self.host.disk_full and _durables(effects):
            self._cannot_journal(event)
            return
        self.state = after
        self.sim.judge.agent_step(self, before, event, effects)
        if self.trapped:
            self.go(self._stepwise(effects))
            return
        for effect in effects:
            self._perform(effect)
        self._wind()

    def _stepwise(self, effects: tuple[n.Effect, ...]) -> Iterator[str]:
        for effect in effects:
            name = type(effect).__name__
            yield f"before-{name}"
            self._perform(effect)
            yield f"after-{name}"
        self._wind()

    def command(self, control: str, command: Command) -> None:
        assert self.state is not None
        event = n.CommandReceived(command=command, control=control, fresh_key="key")
        if self.following.keeps(self.state, event):
            self.sim.say(self.facts.node, "start is kept", getattr(command, "shard", ""))
            return
        self._ordered(event)

    def _ordered(self, event: n.CommandReceived) -> None:
        command, busy = event.command, {}
        if isinstance(command, Start):
            there = self.host.listener(command.port)
            busy = {command.port: f"pid {there.pid}"} if there is not None else {}
        self.feed(replace(event, ports_busy=busy))

    def _wind(self) -> None:
        """Ask for a Tick when one is due."""
        for late in self.following.due(self.state) if self.state is not None else ():
            self._ordered(late)
        if self.state is None:
            return
        due = next_due(self.state)
        if due < self._ticks_at and due != float("inf"):
            self._ticks_at = due
            self.later(max(due - self.sim.clock.now, 0.001), lambda: self._tick(due))

    def _tick(self, due: float) -> None:
        if due == self._ticks_at:
            self._ticks_at = float("inf")
        self.feed(n.Tick())

    # ------------------------------------------------------------ effects

    def _perform(self, effect: n.Effect) -> None:  # noqa: C901, PLR0912 - one arm per effect
        match effect:
            case n.StoreToken(token):
                self.token = token
            case n.WriteRecord(record):
                self._write(record)
            case n.DeleteRecord(key):
                self.journal.pop(key, None)
                self._unwritten.discard(key)
                for link in self.links.values():
                    link.gone.append(key)
                    link.post_soon()
            case n.Spawn(record):
                self._spawn(record)
            case n.Signal(record, name):
                for engine in self.host.live(record.key):
                    self.sim.judge.signal(self, record, engine, name)
                    self.sim.say(self.facts.node, name, str(engine))
                    self.host.signal(engine, name)
            case n.Look(record):
                self._answer(lambda: evidence.tree(self.host, record), 0.02)
            case n.Measure(record):
                self._answer(lambda: self._measured(record), 0.02)
            case n.Probe(record, check, token):
                self._answer(
                    lambda: evidence.probe(self.host, record, check=check, token=token),
                    self._patience_s(record),
                )
            case n.CallDoor(record, which):
                self._door(record, which)
            case n.Knock(record):
                self._answer(lambda: evidence.knocked(self.sim.hosts, record), 0.05)
            case n.Identify(record):
                self._identify(record)
            case n.Refuse(control, refusal):
                self._refuse(control, refusal)
            case n.Register(control):
                self.links[control].register()
            case n.Changed(keys):
                for link in self.links.values():
                    link.dirty |= set(keys)
                    link.post_soon()

    def _answer(self, look: Callable[[], n.Event | None], delay_s: float) -> None:
        """Look after a while, and tell at once."""

        def then() -> None:
            seen = look()
            if seen is not None:
                self.feed(seen)

        self.later(delay_s, then)

    def _door(self, record: Record, which: n.DoorName) -> None:
        """What it does at its door it does also if its agent is killed then."""

        def acts() -> None:
            there = self.host.listener(record.start.port)
            if isinstance(there, Engine) and there.key == record.key and not there.hung:
                turned = there.sleeping if there.manners.restless else which == "sleep"
                if turned != (which == "sleep"):
                    there.ailing = there.ailing or f"it does not {which}"
                if turned != there.sleeping:
                    self.sim.judge.turns(self, record, there)
                    there.sleeping = turned
                    self.sim.say(self.facts.node, "sleeps" if turned else "wakes", str(there))

        if which != "ask":
            self.sim.clock.after(0.3, acts)
        self._answer(lambda: self._turned(record, which), 0.5)

    def _patience_s(self, record: Record) -> float:
        """Answers of what is up and well, or loads, are slow in coming: it keeps the simulator quick."""
        if not self.sim.slow_probes:
            return 0.05
        if record.state == "ready" and record.watch.owned:
            return self.luck.uniform(3.0, 10.0)
        return self.luck.uniform(0.05, 1.0)

    def _moment_s(self) -> float:
        """How long a spawn or a look at processes takes."""
        return 0.05 if self.luck.random() < 0.9 else self.luck.uniform(0.1, 1.5)

    def _write(self, record: Record) -> None:
        if self.host.disk_full:
            self._unwritten.add(record.key)
            return
        self._unwritten.discard(record.key)
        self.journal[record.key] = durable(record)

    def _spawn(self, record: Record) -> None:
        key, attempt = record.key, record.attempt
        if key in self._unwritten:
            failed = n.SpawnFailed(key=key, attempt=attempt, error="its intent cannot be journaled")
            self._answer(lambda: failed, 0.0)
            return
        there = self.host.listener(record.start.port)
        if there is not None or self.luck.random() < self.sim.habits.exec_fails:
            why = f"port {record.start.port} is taken" if there else "exec failed: no such file"
            failed = n.SpawnFailed(key=key, attempt=attempt, error=why, fatal=there is not None)
            self._answer(lambda: failed, 0.01)
            return
        manners = self.sim.behave(record.start, attempt)
        self.sim.judge.spawns(self, record)
        engine = self.host.spawn(record.start, attempt, manners)
        self.sim.say(self.facts.node, "engine starts", str(engine))

        def told() -> n.Event:
            self._watch(engine, attempt)
            return n.Spawned(
                key=key,
                attempt=attempt,
                pid=engine.pid,
                start_ticks=engine.ticks,
                at=iso(engine.born_s + self.host.wall_s),
                artefact=record.start.weights,
            )

        self._answer(told, self._moment_s())

    def _identify(self, record: Record) -> None:
        def told() -> None:
            seen, engine = evidence.identify(self.host, record)
            if engine is not None:
                # A torn record does not know its attempt; its engine's markers do.
                by_markers = record.partial and seen.rebuilt is not None
                self._watch(engine, seen.told.attempt if by_markers else record.attempt)
            self.feed(seen)
            self._registers()

        self.later(self._moment_s(), told)

    def _watch(self, engine: Engine, attempt: int) -> None:
        """A pidfd is opened before the ticks are compared, so an end in between is told after."""
        self._watched[engine.key] = (engine, attempt)
        if not engine.leader:
            self.later(0.01, lambda: self._exited(engine))

    def _exited(self, engine: Engine) -> None:
        watched, attempt = self._watched.get(engine.key, (None, 0))
        if self.state is not None and watched is engine:
            record = self.state.records.get(engine.key)
            seen = evidence.tree(self.host, record) if record is not None else None
            gone = n.Exited(key=engine.key, attempt=attempt, code=engine.code, seen=seen)
            self.later(0.01, lambda: self.feed(gone))

    def _refuse(self, control: str, refusal: Refusal) -> None:
        self.sim.say(self.facts.node, "refuses", f"{refusal.shard} {refusal.reason}: {refusal.why}")
        link = self.links[control]
        link.refused.append(refusal)
        link.post_soon()

    def _cannot_journal(self, event: n.CommandReceived) -> None:
        command = event.command
        key = (getattr(command, "shard", ""), getattr(command, "incarnation", ""))
        why = "the journal cannot be written: no space left on device"
        self._refuse(
            event.control,
            Refusal(
                seq=command.seq,
                shard=key[0],
                incarnation=key[1],
                reason="cannot_journal",
                why=why,
            ),
        )

    # ------------------------------------------------------------ talk

    def snapshot(self) -> NodeReport:
        assert self.state is not None
        return older.report(self.version, node_report(self.state, for_register=True))

    def _foreign(self) -> tuple[Foreign, ...]:
        """Whose processes it cannot tell, because the record of their engine cannot be read, are strangers to it."""
        return self.host.foreign({r.key for r in self.records.values() if r.unreadable})

    def _look_at_gpus(self) -> None:
        assert self.state is not None
        gpus, foreign = self.host.gpus(), self._foreign()
        if gpus != self.state.gpus or foreign != self.state.foreign:
            for link in self.links.values():
                link.devices = True
            self._see_gpus(gpus, foreign)

    def _measured(self, record: Record) -> n.MemorySeen:
        """A fresh `GpusSeen` first, as `types.node` has it: else control hears of an end before the room."""
        self._look_at_gpus()
        return evidence.memory(self.host, record)

    def _turned(self, record: Record, which: n.DoorName) -> n.DoorAnswered:
        """The same, for what fell asleep has just given back."""
        self._look_at_gpus()
        return evidence.door(self.host, record, which)

    def _see_gpus(self, gpus: tuple[Gpu, ...] | None, foreign: tuple[Foreign, ...]) -> None:
        error = "" if gpus is not None else "the driver does not answer"
        self.feed(n.GpusSeen(gpus, foreign, error))

    def _registers(self) -> None:
        if self.state is not None and self.state.reattached:
            for link in self.links.values():
                if not link.session:
                    link.register()

    def _heartbeat(self) -> None:
        self._look_at_gpus()
        if self.state is None:
            return  # killed on the way
        for key in sorted(self._unwritten & self.state.records.keys()):
            self._write(self.state.records[key])
        for link in self.links.values():
            link.heartbeat()
        self.later(HEARTBEAT_S, self._heartbeat)


def _durables(effects: tuple[n.Effect, ...]) -> bool:
    return any(isinstance(e, n.StoreToken | n.WriteRecord | n.DeleteRecord) for e in effects)
