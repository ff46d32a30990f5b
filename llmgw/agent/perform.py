"""Carries out what `core.supervise` orders of processes, and brings back what came of it as an event. Decides nothing.

Spawn, Signal, Look and Identify are done at once, in the loop's task; Probe, Knock and Measure take time and post their
answer later. Identity is checked again at the moment of every signal.
"""

from __future__ import annotations

import asyncio
import errno
import os
import time
from collections.abc import Callable
from pathlib import Path
from signal import Signals

import structlog
from msgspec.structs import replace

from llmgw.agent import asking, by_hand, crash, launch, ports, probe, process, reattach, scopes
from llmgw.agent.containers import Containers
from llmgw.agent.devices import Devices
from llmgw.agent.explain import TAIL_BYTES, explain, lasting
from llmgw.agent.logs import Logs
from llmgw.agent.oom import Ooms
from llmgw.agent.orphans import Orphans
from llmgw.agent.placeholders import (
    Filler,
    PlaceholderError,
    redacted,
    values_of,
)
from llmgw.core.supervise.claims import misordered
from llmgw.core.types.by_hand import ByHand
from llmgw.core.types.messages import Take
from llmgw.core.types.node import (
    Event,
    Exited,
    Identified,
    Knocked,
    NodeFacts,
    Spawned,
    SpawnFailed,
    TreeSeen,
)
from llmgw.core.types.record import Key, Record
from llmgw.errors import LlmgwError

log = structlog.get_logger()
#: What makes a start fail now and perhaps not later: no memory, no process, no descriptor, no space, or a program that
#: is being written at this moment.
PASSING = frozenset(
    {errno.EAGAIN, errno.ENOMEM, errno.EMFILE, errno.ENFILE, errno.ENOSPC, errno.ETXTBSY}
)
WATCH_AGAIN_S = 1.0
NO_WORDS = "its command or environment, filled in, holds what no process can be given (a NUL?)"


class Performer:
    """`post` puts an event into the loop's queue; `tasks` holds what takes time."""

    def __init__(
        self,
        *,
        facts: NodeFacts,
        state_dir: Path,
        logs: Logs,
        devices: Devices,
        post: Callable[[Event], None],
        tasks: asyncio.TaskGroup,
        adopts: bool = False,
    ) -> None:
        self.facts = facts
        self.state_dir = state_dir
        self.logs = logs
        self.devices = devices
        self.post = post
        self.tasks = tasks
        self.children: dict[Key, launch.Child] = {}
        self.pidfds: dict[Key, int] = {}
        self.known: dict[Key, process.Pids] = {}
        self.secrets: dict[Key, frozenset[str]] = {}
        self.looks = reattach.Looks(facts.node_id)
        self.orphans = Orphans(adopts=adopts)
        self.ooms = Ooms()
        self.containers = Containers(self)

    # ------------------------------------------------ spawn

    def spawn(self, record: Record) -> Event:
        key, attempt = record.key, record.attempt
        fill = self.filler(record)
        try:
            taken = ports.busy(record.ports)
            if taken:
                port, who = next(iter(taken.items()))
                return SpawnFailed(
                    key=key, attempt=attempt, error=f"port {port} is in use by {who}", fatal=True
                )
            prepared = launch.prepare(record, self.facts, fill, self.devices.last.gpus or ())
        except LlmgwError as e:
            error = f"{e.message} - {e.hint}" if e.hint else e.message
            said = redacted(error, frozenset(fill.secrets))
            return SpawnFailed(key=key, attempt=attempt, error=said, fatal=True)
        except ValueError:  # a NUL out of a file, say; its words may hold the secret
            return SpawnFailed(key=key, attempt=attempt, error=NO_WORDS, fatal=True)
        try:
            fd = self.logs.open_for_attempt(record.start.shard)
            try:
                child = launch.spawn(prepared, fd)
            finally:
                os.close(fd)
        except OSError as e:
            error = launch.cannot_run(prepared.executable, record.start, self.facts.node, e)
            fatal = e.errno not in PASSING
            return SpawnFailed(key=key, attempt=attempt, error=error, fatal=fatal)
        except ValueError:
            return SpawnFailed(key=key, attempt=attempt, error=NO_WORDS, fatal=True)
        crash.here("after-Spawn")
        ticks = _ticks(child)
        if ticks is None:
            error = "it was started but could not be identified, so it was ended at once"
            return SpawnFailed(key=key, attempt=attempt, error=error)
        self.looks.over()  # it is in none
        self.children[key] = child
        self.known[key] = {child.pid: ticks}
        self.secrets[key] = frozenset(fill.secrets)
        self._watch(record, child.pid, ticks)
        self.tasks.create_task(scopes.keep(record, child.pid))
        return Spawned(
            key=key,
            attempt=attempt,
            pid=child.pid,
            start_ticks=ticks,
            at=time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
            artefact=prepared.artefact,
        )

    def filler(self, record: Record) -> Filler:
        log_path = self.logs.path(record.start.shard)
        gpus = self.devices.last.gpus or ()
        values = values_of(record, self.facts, gpus, self.state_dir, log_path)
        return Filler(values, os.environ)

    def secrets_of(self, record: Record) -> frozenset[str]:
        """What must not be shown of this engine; after a re-attach gathered anew."""
        if record.key not in self.secrets:
            fill = self.filler(record)
            for text in (*record.start.command, *record.start.env.values(), record.start.weights):
                try:
                    fill(text.replace("${weights}", ""))
                except PlaceholderError as e:
                    log.debug(
                        "a secret is not known any more", shard=record.start.shard, error=str(e)
                    )
            self.secrets[record.key] = frozenset(fill.secrets)
        return self.secrets[record.key] | ({record.api_key} if record.api_key else frozenset())

    # ------------------------------------------------ watching

    def _watch(self, record: Record, pid: int, ticks: int) -> None:
        """Post `Exited` when the leader ends; the pidfd cannot become a stranger's."""
        self._unwatch(record.key)
        try:
            fd = process.open_pidfd(pid, ticks)
        except OSError as e:
            log.warning(
                "cannot watch an engine, trying again", shard=record.start.shard, error=str(e)
            )
            asyncio.get_running_loop().call_later(WATCH_AGAIN_S, self._watch, record, pid, ticks)
            return
        if fd is None:
            self._ended(record)
            return
        self.pidfds[record.key] = fd
        asyncio.get_running_loop().add_reader(fd, self._ended, record)

    def _unwatch(self, key: Key) -> None:
        fd = self.pidfds.pop(key, None)
        if fd is not None:
            asyncio.get_running_loop().remove_reader(fd)
            os.close(fd)

    def _ended(self, record: Record) -> None:
        """Its session is looked at while the dead leader still keeps its number taken; then it is reaped."""
        self._unwatch(record.key)
        ports.left(record.ports)
        now, shard, left = self.containers.now(record), record.start.shard, ""
        seen = None if now.ended else self._gone(now) or self.look(now)
        # Of one that was told to end nobody asks why it ended; and of a taken-over one the last words went elsewhere.
        asked = not (record.by_hand or now.ending)
        try:
            if asked:
                left = self.logs.end(shard, TAIL_BYTES)
        except OSError as e:  # its end is told all the same
            log.warning("cannot read what an engine said last", shard=shard, error=str(e))
        child = self.children.pop(record.key, None)
        code = None if child is None else child.wait()
        crash.here("after-reap")
        program = next(iter(record.start.command), "the engine")
        said = redacted(explain(program, code, left), self.secrets_of(record))
        ended = Exited(key=record.key, attempt=record.attempt, code=code, last_line=said, seen=seen)
        stays = lasting(code, left, record.start.command)
        self.post(replace(ended, lasting=stays, out_of_memory=self.ooms.recent()))

    # ------------------------------------------------ looking and signalling

    def look(self, record: Record) -> TreeSeen:
        key, attempt = record.key, record.attempt
        try:
            tree = self._tree(record, self.looks.survey())
        except OSError as e:
            detail = f"cannot look at its processes: {e}"
            doubtful = (record.pid,) if record.pid else ()
            return TreeSeen(key=key, attempt=attempt, doubtful=doubtful, detail=detail)
        alive = tuple(sorted(tree.alive))
        return TreeSeen(
            key=key, attempt=attempt, alive=alive, doubtful=tree.doubtful, detail=tree.detail
        )

    def signal(self, record: Record, name: str) -> None:
        """To each live process of the tree once.

        First to our own child, which needs no look at all others (P9) and keeps its number until it is reaped. Who has
        neither its session nor its environment is known as its descendant alone: before it may be gone.
        """
        number = Signals[f"SIG{name}"]
        pid = record.pid if record.key in self.children else None
        born = process.below(pid) if pid else None
        first = {} if pid is None or born is None else {pid: record.start_ticks}
        self.known.setdefault(record.key, {}).update(born or {})
        sent = [pid for pid, ticks in first.items() if self._send(pid, ticks, number)]
        rest = self._tree(record, self.looks.survey()).alive
        sent += [p for p, t in rest.items() if p not in first and self._send(p, t, number)]
        log.info("signalled", signal=name, shard=record.start.shard, pids=sorted(sent))

    def _send(self, pid: int, ticks: int, number: Signals) -> bool:
        try:
            return process.send(pid, ticks, number)
        except PermissionError:
            log.warning("may not be signalled", pid=pid, signal=number.name)
            return False

    def _tree(self, record: Record, survey: reattach.Survey) -> process.Tree:
        """Remembers members while they are provable, for the time when their leader is gone."""
        known = self.known.setdefault(record.key, {})
        marks = survey.marks.get(record.key, [])
        tree = by_hand.tree_of(record, known, marks, survey.stats)
        known.update(tree.alive)
        return tree

    def _members(self, record: Record) -> process.Tree:
        """Without a look into everybody's environment."""
        if self.containers.mine(record):
            return process.Tree(self.containers.members(record.key), (), "same")
        known = self.known.get(record.key, {})
        stats = process.all_stats()
        return by_hand.tree_of(record, known, [], stats)

    def _leaders(self) -> frozenset[int]:
        return frozenset(child.pid for child in self.children.values())

    def _gone(self, record: Record) -> TreeSeen | None:
        own = record.key in self.children
        known = self.known.get(record.key, {})
        return self.orphans.gone(record, known, self._leaders()) if own else None

    def reap(self) -> None:
        self.orphans.reap(self._leaders())

    def remember_trees(self, records: dict[Key, Record]) -> None:
        """Now and then, so that the children of an engine that is not our child are known when it dies."""
        self.ooms.note()
        self.containers.remember()
        running = [r for r in records.values() if r.watch.verified and not r.watch.gone]
        running = [r for r in running if not self.containers.mine(r)]
        if not running:
            return
        for record in running:
            if record.key not in self.pidfds and record.pid and not record.watch.exited:
                self._watch(record, record.pid, record.start_ticks)  # nobody would see its end
        try:
            survey = self.looks.survey()
            for record in running:
                self._tree(record, survey)
        except OSError as e:  # the next time, then
            log.warning("cannot look at the engines' processes", error=str(e))

    def identify(self, record: Record, survey: reattach.Survey | None = None) -> Identified:
        known = self.known.get(record.key, {})
        seen = reattach.evidence(record, self.facts.node_id, known, survey)
        pid = seen.pid if record.pid is None else record.pid
        ticks = seen.start_ticks if record.pid is None else record.start_ticks
        if pid is not None and (seen.leader == "same" or seen.pid is not None):
            found = replace(record, pid=pid, start_ticks=ticks)
            seen = replace(seen, address=reattach.listens_at(record, seen, self.facts))
            asyncio.get_running_loop().call_soon(self._watch, found, pid, ticks)
            if record.by_hand:
                self._settle_in(record, survey or self.looks.survey())
            else:
                self.tasks.create_task(scopes.keep(found, pid))
        return seen

    def _settle_in(self, record: Record, survey: reattach.Survey) -> None:
        """Of a taken-over one: who descends from it is known from now on, and its log says where its output is."""
        try:
            self._tree(record, survey)
            self.logs.note(
                record.start.shard,
                f"llmgw: pid {record.pid} was started by hand and taken over, its output goes to "
                f"{by_hand.output_of(record.pid or 0)}",
            )
        except OSError as e:
            log.warning("cannot note a taken-over engine", shard=record.start.shard, error=str(e))

    async def examine(self, take: Take) -> ByHand:
        """The process that a `Take` names, as it is just now."""
        start, last = take.start, self.devices.last
        no = misordered(start)
        if no is not None:
            return ByHand(error=no[2])
        record = Record(start=start, by_hand=True)
        fill = self.filler(record)
        try:
            weights = fill.shown(start.weights)
        except LlmgwError as e:
            return ByHand(error=e.message)
        uses: dict[int, tuple[str, ...]] = {}
        for use in last.uses:
            uses[use.pid] = (*uses.get(use.pid, ()), use.gpu)
        gpus = None if last.gpus is None else uses
        seen = await asyncio.to_thread(by_hand.examine, take, self.facts.address, gpus)
        if seen.error or not seen.start_ticks:
            return seen
        health = await probe.health(self.facts.address, start.port, start.health)
        return replace(
            seen,
            weights=weights,
            values=dict(fill.values),
            health=health.outcome,
            health_detail=redacted(health.detail, frozenset({seen.api_key})),
        )

    def forget(self, key: Key) -> None:
        self._unwatch(key)
        self.containers.forget(key)
        for table in (self.children, self.known, self.secrets):
            table.pop(key, None)

    # ------------------------------------------------ what takes time

    def probe(self, record: Record, *, check: bool, token: bool = False) -> None:
        self.tasks.create_task(self._probe(record, check=check, token=token))

    async def _probe(self, record: Record, *, check: bool, token: bool) -> None:
        self.post(await asking.asked(self, record, check=check, token=token))

    def pids_of(self, record: Record) -> tuple[int, ...]:
        return tuple(self._members(record).alive)

    def knock(self, record: Record) -> None:
        self.tasks.create_task(self._knock(record))

    async def _knock(self, record: Record) -> None:
        """At the addresses that the engine itself will be given (`${workers}`)."""
        ranks = [p for p in record.start.peers if p.rank and p.rank != record.start.rank]
        answers = await asyncio.gather(
            *(probe.listens(p.fabric_address or p.address, p.port) for p in ranks)
        )
        missing = tuple(
            f"rank {p.rank} on {p.node} at {p.fabric_address or p.address}:{p.port}: {why}"
            for p, why in zip(ranks, answers, strict=True)
            if why
        )
        self.post(Knocked(key=record.key, attempt=record.attempt, missing=missing))

    def measure(self, record: Record, records: Callable[[], dict[Key, Record]]) -> None:
        self.tasks.create_task(self._measure(record, records))

    async def _measure(self, record: Record, records: Callable[[], dict[Key, Record]]) -> None:
        await self.devices.read()
        self.post(self.devices.seen(records(), self.known))
        self.post(self.devices.memory(record))


def _ticks(child: launch.Child) -> int | None:
    """Start ticks of our own new child: until it is reaped it is there, if only as a zombie."""
    try:
        stat = process.read_stat(child.pid)
    except OSError:
        stat = None
    if stat is None:
        child.kill()
        child.wait()
        return None
    return stat.ticks
