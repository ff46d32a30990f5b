"""GPU readings put together with processes: who is foreign, and whether a shard's memory is back (A43, A70).

One reading at a time, in a thread: NVML may block for seconds, and the loop must not (F60). May not decide.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterable, Mapping
from typing import Final, Literal

import structlog
from msgspec.structs import replace

from llmgw.agent import bearers, ports, process
from llmgw.agent.by_hand import Engines, engine_of
from llmgw.agent.gpu import Gpus, Reading, Use
from llmgw.core.types.by_hand import Started
from llmgw.core.types.messages import Foreign
from llmgw.core.types.node import GpusSeen, MemorySeen
from llmgw.core.types.record import Key, Record

#: So much of a command line is for people.
COMMAND_CHARS = 200
log = structlog.get_logger()
STRANGER: Final = "a stranger"


class Devices:
    def __init__(
        self, gpus: Gpus, node_id: str, controls: Iterable[str] = (), home: str = ""
    ) -> None:
        """`controls` as HOST:PORT, `home`: the state dir; by these this fleet's engines are known."""
        self.gpus = gpus
        self.node_id = node_id
        self.fleet = (frozenset(controls), home)
        self.last = Reading(None)
        #: engines that somebody started by hand, at the last look
        self.started: tuple[Started, ...] = ()
        #: and by pid those of an agent that is not here any more, with whose they are
        self.masterless: dict[int, tuple[Started, bearers.Bearer]] = {}
        self._engines = Engines()
        self._lock = asyncio.Lock()

    async def read(self) -> Reading:
        async with self._lock:
            self.last = await asyncio.to_thread(self.gpus.read)
            return self.last

    async def look(self, programs: frozenset[str]) -> None:
        """For listeners that look like engines; what they look like is the catalog's to say, and ours."""
        try:
            self.started = await asyncio.to_thread(self._engines.look, programs)
            self.masterless = await asyncio.to_thread(
                self._engines.masterless, self.node_id, *self.fleet
            )
        except (OSError, ValueError, IndexError) as e:  # the next time, then
            log.warning("cannot look for engines started by hand", error=str(e))

    def seen(self, records: Mapping[Key, Record], known: Mapping[Key, process.Pids]) -> GpusSeen:
        """The last reading as a fact: its GPUs, who uses them that is none of ours, and what ours take too much."""
        holding = {key: r for key, r in records.items() if not r.ended}
        leaders = {r.pid: r for r in records.values() if r.pid}
        ours = {pid: r for key, r in holding.items() for pid in known.get(key, {})} | leaders
        self.gpus.xids.names = {pid: r.start.shard for pid, r in ours.items()}
        pids = {use.pid for use in self.last.uses} | {e.pid for e in self.started}
        whose = {pid: ours.get(pid) or self._whose(pid, leaders, holding) for pid in pids}
        strange = [use for use in self.last.uses if whose[use.pid] == STRANGER]
        others = [e for e in self.started if whose[e.pid] == STRANGER]
        own = [(r, u) for u in self.last.uses if isinstance(r := whose[u.pid], Record)]
        rows = _with_masterless(_with_engines(_foreign(strange), others), self.masterless)
        foreign = (*rows, *_beyond(own))
        resident = _resident(holding, known)
        return GpusSeen(self.last.gpus, foreign, self.last.error, _most(own), resident)

    def memory(self, record: Record) -> MemorySeen:
        """What is in use on the record's GPUs; unknown where nobody can measure. A lost card holds nothing."""
        key, attempt = record.key, record.attempt
        gpus = {g.uuid: g for g in self.last.gpus or ()}
        wanted = set(record.start.gpus)
        if not self.last.measured or not gpus.keys() >= wanted or self.last.blind & wanted:
            return MemorySeen(key=key, attempt=attempt)
        mine = (gpus[uuid] for uuid in record.start.gpus)
        used = sum(g.memory_used_bytes for g in mine if not g.lost)
        pids = {u.pid for u in self.last.uses if u.gpu in record.start.gpus}
        return MemorySeen(key=key, attempt=attempt, used_bytes=used, pids=tuple(sorted(pids)))

    def bytes_of(self, pids: Iterable[int]) -> int | None:
        """GPU memory of these processes; None where the driver lists none of them."""
        mine = set(pids)
        found = [u.memory_bytes for u in self.last.uses if u.pid in mine]
        return sum(found) if found else None

    def _whose(
        self, pid: int, leaders: Mapping[int, Record], holding: Mapping[Key, Record]
    ) -> Record | Literal["nobody", "a stranger"]:
        """By its session, or by the markers of a shard that still holds: what an operator released is a stranger (A70).

        What /proc does not have (another pid namespace, just gone) is nobody; what it does not show is a stranger's.
        """
        try:
            stat = process.read_stat(pid)
            if stat is None:
                return "nobody"
            if stat.sid in leaders:
                return leaders[stat.sid]
            key = process.marked_as(process.environ(pid), self.node_id)
        except OSError:
            return STRANGER
        return holding.get(key, STRANGER) if key else STRANGER


def _most(own: Iterable[tuple[Record, Use]]) -> dict[Key, int]:
    """What each engine of ours holds on the GPU where that is most."""
    held: dict[tuple[Key, str], int] = {}
    for record, use in own:
        held[record.key, use.gpu] = held.get((record.key, use.gpu), 0) + use.memory_bytes
    most: dict[Key, int] = {}
    for (key, _), size in held.items():
        most[key] = max(most.get(key, 0), size)
    return most


def _resident(records: Iterable[Key], known: Mapping[Key, process.Pids]) -> dict[Key, int]:
    """What each engine of ours holds of the host's memory; without a word of one that is not there."""
    found = ((key, process.resident_bytes(known.get(key, {}))) for key in records)
    return {key: size for key, size in found if size}


def _beyond(own: Iterable[tuple[Record, Use]]) -> Iterable[Foreign]:
    """What engines of ours hold on GPUs beyond what they were given: nobody else may count on it (F73).

    One that has its GPU whole, or was given nobody knows what, is within it on its own GPUs.
    """
    held: dict[tuple[Key, str], list[Use]] = {}
    records = {r.key: r for r, _ in own}
    for record, use in own:
        held.setdefault((record.key, use.gpu), []).append(use)
    for (key, gpu), uses in held.items():
        start = records[key].start
        given = start.resources.gpu_memory_bytes or 0
        its_own = gpu in start.gpus
        if its_own and (not given or records[key].partial):
            continue
        size = sum(u.memory_bytes for u in uses) - (given if its_own else 0)
        if size > 0:
            pid = max(uses, key=lambda u: u.memory_bytes).pid
            command = process.command_line(pid)[:COMMAND_CHARS]
            yield Foreign(pid=pid, gpu=gpu, memory_bytes=size, command=command, shard=start.shard)


def _with_engines(rows: Iterable[Foreign], engines: list[Started]) -> Iterable[Foreign]:
    """Each GPU user with the engine it belongs to, and each engine that uses none."""
    by_pid = {e.pid: e for e in engines}
    shown = set()
    for row in rows:
        engine = engine_of(row.pid, by_pid)
        shown.add(row.pid)
        yield replace(row, by_hand=engine) if engine else row
    for e in engines:
        if e.pid not in shown:
            command = " ".join(e.argv)[:COMMAND_CHARS]
            yield Foreign(pid=e.pid, command=command, port=e.port, by_hand=e)


def _with_masterless(
    rows: Iterable[Foreign], engines: Mapping[int, tuple[Started, bearers.Bearer]]
) -> Iterable[Foreign]:
    """Whose they are: nobody's on this host, so they are in no other list (A1). Their ports are held like any."""
    started = {pid: one for pid, (one, _) in engines.items()}
    shown = set()
    for row in rows:
        engine = engine_of(row.pid, started) if started else None
        if engine is None:
            yield row
            continue
        shown.add(row.pid)
        why = bearers.why(engines[engine.pid][1])
        yield replace(row, port=engine.port if row.pid == engine.pid else row.port, why=why)
    for pid, (one, bearer) in engines.items():
        if pid not in shown:
            command = " ".join(one.argv)[:COMMAND_CHARS]
            yield Foreign(pid=pid, command=command, port=one.port, why=bearers.why(bearer))


def _foreign(uses: list[Use]) -> Iterable[Foreign]:
    listening = {}
    if uses:
        with contextlib.suppress(OSError):  # its port is for people
            listening = {s.inode: s.port for s in ports.sockets() if s.state == ports.LISTEN}
    for use in uses:
        port = next((listening[i] for i in ports.inodes(use.pid) if i in listening), None)
        yield Foreign(
            pid=use.pid,
            gpu=use.gpu,
            memory_bytes=use.memory_bytes,
            command=process.command_line(use.pid)[:COMMAND_CHARS],
            port=port,
        )
