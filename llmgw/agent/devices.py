"""GPU readings put together with processes: who is foreign, and whether a shard's memory is back (A43, A70).

One reading at a time, in a thread: NVML may block for seconds, and the loop must not (F60). May not decide.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterable, Mapping

from llmgw.agent import ports, process
from llmgw.agent.gpu import Gpus, Reading, Use
from llmgw.core.types.messages import Foreign
from llmgw.core.types.node import GpusSeen, MemorySeen
from llmgw.core.types.record import Key, Record


class Devices:
    def __init__(self, gpus: Gpus, node_id: str) -> None:
        self.gpus = gpus
        self.node_id = node_id
        self.last = Reading(None)
        self._lock = asyncio.Lock()

    async def read(self) -> Reading:
        async with self._lock:
            self.last = await asyncio.to_thread(self.gpus.read)
            return self.last

    def seen(self, records: Mapping[Key, Record], known: Mapping[Key, process.Pids]) -> GpusSeen:
        """The last reading as a fact: its GPUs, and who uses them that is none of ours."""
        ours = {r.pid for r in records.values() if r.pid}
        holding = {key for key, r in records.items() if not r.ended}
        members = {pid for key in holding for pid in known.get(key, {})}
        strange = [
            use
            for use in self.last.uses
            if use.pid not in ours | members and not self._ours(use.pid, ours, holding)
        ]
        return GpusSeen(self.last.gpus, tuple(_foreign(strange)))

    def memory(self, record: Record) -> MemorySeen:
        """What is in use on the record's GPUs; unknown where nobody can measure. A lost card holds nothing."""
        key, attempt = record.key, record.attempt
        gpus = {g.uuid: g for g in self.last.gpus or ()}
        if not self.last.measured or not gpus.keys() >= set(record.start.gpus):
            return MemorySeen(key=key, attempt=attempt)
        mine = (gpus[uuid] for uuid in record.start.gpus)
        used = sum(g.memory_used_bytes for g in mine if g.healthy)
        pids = {u.pid for u in self.last.uses if u.gpu in record.start.gpus}
        return MemorySeen(key=key, attempt=attempt, used_bytes=used, pids=tuple(sorted(pids)))

    def bytes_of(self, pids: Iterable[int]) -> int | None:
        """GPU memory of these processes; None where the driver lists none of them."""
        mine = set(pids)
        found = [u.memory_bytes for u in self.last.uses if u.pid in mine]
        return sum(found) if found else None

    def _ours(self, pid: int, leaders: set[int], holding: set[Key]) -> bool:
        """By its session, or by the markers of a shard that still holds: what an operator released is a stranger (A70).

        What /proc does not have (another pid namespace, just gone) is nobody; what it does not show is a stranger's.
        """
        try:
            stat = process.read_stat(pid)
            if stat is None or stat.sid in leaders:
                return True
            return process.marked_as(process.environ(pid), self.node_id) in holding
        except OSError:
            return False


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
            command=process.command_line(use.pid)[:200],
            port=port,
        )
