"""Carries out what `core.supervise` orders of processes, and brings back what came of it as an event. Decides nothing.

Spawn, Signal, Look and Identify are done at once, in the loop's task; Probe and Measure take time and post their answer
later. Identity is checked again at the moment of every signal.
"""

from __future__ import annotations

import asyncio
import errno
import os
import time
from collections.abc import Callable
from pathlib import Path
from signal import Signals
from typing import Literal

import structlog
from msgspec.structs import replace

from llmgw.agent import crash, launch, ports, probe, process, reattach
from llmgw.agent.compute import parse
from llmgw.agent.devices import Devices
from llmgw.agent.logs import Logs
from llmgw.agent.placeholders import Filler, PlaceholderError, redacted, values_of
from llmgw.core.types.messages import Compute
from llmgw.core.types.node import (
    Event,
    Exited,
    Identified,
    NodeFacts,
    Probed,
    Spawned,
    SpawnFailed,
    TreeSeen,
)
from llmgw.core.types.record import Key, Record
from llmgw.errors import LlmgwError

log = structlog.get_logger()
#: How much of a log is read for where the model was put: llama.cpp says it early, and warns a lot before.
COMPUTE_LOG_BYTES = 256 * 1024
#: What makes a start fail now and perhaps not later: no memory, no process, no descriptor, no space.
PASSING = frozenset({errno.EAGAIN, errno.ENOMEM, errno.EMFILE, errno.ENFILE, errno.ENOSPC})
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
        self.marked: dict[int, process.Mark] = {}

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
            prepared = launch.prepare(record, self.facts, fill)
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
            error = f"{prepared.executable} cannot be started on {self.facts.node}: {e.strerror}"
            fatal = e.errno not in PASSING
            return SpawnFailed(key=key, attempt=attempt, error=error, fatal=fatal)
        except ValueError:
            return SpawnFailed(key=key, attempt=attempt, error=NO_WORDS, fatal=True)
        crash.here("after-Spawn")
        ticks = _ticks(child)
        if ticks is None:
            error = "it was started but could not be identified, so it was ended at once"
            return SpawnFailed(key=key, attempt=attempt, error=error)
        self.children[key] = child
        self.known[key] = {child.pid: ticks}
        self.secrets[key] = frozenset(fill.secrets)
        self._watch(record, child.pid, ticks)
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
        shard, said = record.start.shard, ""
        try:
            self._tree(record, self._survey())
            said = redacted(self.logs.last_line(shard), self.secrets_of(record))
        except OSError as e:  # its end is told all the same
            log.warning("cannot look at what an engine left", shard=shard, error=str(e))
        child = self.children.pop(record.key, None)
        code = None if child is None else child.wait()
        crash.here("after-reap")
        self.post(Exited(key=record.key, attempt=record.attempt, code=code, last_line=said))

    # ------------------------------------------------ looking and signalling

    def look(self, record: Record) -> Event:
        key, attempt = record.key, record.attempt
        try:
            tree = self._tree(record, self._survey())
        except OSError as e:
            detail = f"cannot look at its processes: {e}"
            doubtful = (record.pid,) if record.pid else ()
            return TreeSeen(key=key, attempt=attempt, doubtful=doubtful, detail=detail)
        alive = tuple(sorted(tree.alive))
        return TreeSeen(
            key=key, attempt=attempt, alive=alive, doubtful=tree.doubtful, detail=tree.detail
        )

    def signal(self, record: Record, name: str) -> None:
        """To each live process of the tree once."""
        number = Signals[f"SIG{name}"]
        tree = self._tree(record, self._survey())
        sent = [pid for pid, ticks in tree.alive.items() if self._send(pid, ticks, number)]
        log.info("signalled", signal=name, shard=record.start.shard, pids=sorted(sent))

    def _send(self, pid: int, ticks: int, number: Signals) -> bool:
        try:
            return process.send(pid, ticks, number)
        except PermissionError:
            log.warning("may not be signalled", pid=pid, signal=number.name)
            return False

    def _survey(self) -> reattach.Survey:
        survey = reattach.Survey(self.facts.node_id, self.marked)
        self.marked = {m.stat.pid: m for marks in survey.marks.values() for m in marks}
        return survey

    def _tree(self, record: Record, survey: reattach.Survey) -> process.Tree:
        """Remembers members while they are provable, for the time when their leader is gone."""
        known = self.known.setdefault(record.key, {})
        marks = survey.marks.get(record.key, [])
        tree = process.tree_of(record.pid or 0, record.start_ticks, known, marks, survey.stats)
        known.update(tree.alive)
        return tree

    def _members(self, record: Record) -> process.Tree:
        """The session only, without a look into everybody's environment."""
        known = self.known.get(record.key, {})
        stats = process.all_stats()
        return process.tree_of(record.pid or 0, record.start_ticks, known, [], stats)

    def remember_trees(self, records: dict[Key, Record]) -> None:
        """Now and then, so that the children of an engine that is not our child are known when it dies."""
        running = [r for r in records.values() if r.watch.verified and not r.watch.gone]
        if not running:
            return
        try:
            survey = self._survey()
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
            asyncio.get_running_loop().call_soon(self._watch, found, pid, ticks)
        return seen

    def forget(self, key: Key) -> None:
        self._unwatch(key)
        for table in (self.children, self.known, self.secrets):
            table.pop(key, None)

    # ------------------------------------------------ what takes time

    def probe(self, record: Record, *, check: bool) -> None:
        self.tasks.create_task(self._probe(record, check=check))

    async def _probe(self, record: Record, *, check: bool) -> None:
        start, host = record.start, self.facts.address
        seen = await probe.health(host, start.port, start.health)
        if seen.outcome == "ok" and check and start.ready.token:
            name = start.served_name or start.model
            seen = await probe.one_token(host, start.port, name, record.api_key)
        owner: Literal["", "ours", "other"] = ""
        whose, compute = "", None
        if seen.outcome == "ok" and check:
            try:
                # Mostly it is the leader's own; a look at every process would make a newcomer wait.
                owner, whose = ports.owner(start.port, host, [record.pid or 0])
                if owner == "other":
                    owner, whose = ports.owner(start.port, host, self._members(record).alive)
                compute = self._compute(record)
            except (OSError, ValueError) as e:  # its log may hold anything
                log.warning("cannot see its listener or its log", shard=start.shard, error=str(e))
        self.post(
            Probed(
                key=record.key,
                attempt=record.attempt,
                outcome=seen.outcome,
                detail=whose or redacted(seen.detail, self.secrets_of(record)),
                progress=seen.progress,
                owner=owner,
                compute=compute,
            )
        )

    def _compute(self, record: Record) -> Compute | None:
        """What the engine says; where it does not say the bytes, what the driver lists."""
        head = self.logs.head(record.start.shard, COMPUTE_LOG_BYTES)
        said = parse(record.start.compute, head)
        if not self.devices.last.uses or (said is not None and said.gpu_bytes is not None):
            return said
        listed = self.devices.bytes_of(self._members(record).alive)
        if listed is None:
            return said
        return replace(said or Compute(), gpu_bytes=listed)

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
