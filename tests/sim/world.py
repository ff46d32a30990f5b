"""The truth: hosts, their GPUs and ports, and the engines that really exist on them, whatever anybody believes.

An engine is a tree of two processes, a leader that listens and a worker that holds GPU memory beside it. Nothing here
decides: engines come up, die, hang and linger as their `Manners` and the faults have it.
"""

from __future__ import annotations

from collections.abc import Callable, Container
from dataclasses import dataclass, field

from msgspec.structs import replace
from typing_extensions import override

from llmgw.core.types.messages import Foreign, Gpu, Start
from llmgw.core.types.record import Key
from tests.sim.clock import Clock

GIB = 1 << 30
#: What a sleeper that had its GPU alone still uses of it: a tenth of 24 GiB.
REST = 24 * GIB // 10
HUNG = "it hung"


@dataclass
class Manners:
    """How an engine behaves; the default is a good one. `fails`: exits by itself after so long, before it is ready."""

    load_s: float = 2.0
    fails_s: float | None = None
    #: from TERM to its exit; None: ignores TERM
    term_s: float | None = 0.5
    #: from KILL to its exit: long for a process in uninterruptible sleep
    kill_s: float = 0.0
    #: from its exit until its GPU memory is back
    release_s: float = 0.2
    #: it takes the order to sleep, or to wake, and does neither
    restless: bool = False


def names(start: Start) -> set[str]:
    """What control calls its replica: an older agent that leaves incarnations out has it known by name."""
    return {start.incarnation, f"?{start.model}/{start.replica}"}


@dataclass
class Engine:
    host: str
    start: Start
    attempt: int
    pid: int
    ticks: int
    boot: str
    born_s: float
    manners: Manners
    #: started by an agent whose markers tell less
    older: bool = False
    leader: bool = True
    worker: bool = True
    #: what the world did to it; "" while nothing is wrong with it
    ailing: str = ""
    hung: bool = False
    #: busy: it answers no probe and serves all the same
    deaf: bool = False
    #: since when it has answered no probe, and when that was over last
    silent_s: float | None = None
    #: some agent has had an answer from it, so clients may be served
    seen_up: bool = False
    well_s: float = -1e6
    #: it has given its GPU memory back but for a tenth, and answers its health check and nobody else
    sleeping: bool = False
    code: int | None = None
    gone_s: float | None = None
    signals: list[str] = field(default_factory=list)

    @property
    def key(self) -> Key:
        return (self.start.shard, self.start.incarnation)

    def is_of(self, incarnation: str) -> bool:
        return incarnation in names(self.start)

    @property
    def alive(self) -> bool:
        return self.leader or self.worker

    @property
    def pids(self) -> tuple[int, ...]:
        return tuple(
            p for p, live in ((self.pid, self.leader), (self.pid + 1, self.worker)) if live
        )

    def falls_silent(self, now: float, *, serving: bool) -> None:
        self.silent_s = now
        if serving:
            self.deaf = True
        else:
            self.hung, self.ailing = True, self.ailing or HUNG

    def speaks(self, now: float) -> None:
        if self.silent_s is not None:
            self.hung, self.deaf, self.silent_s, self.well_s = False, False, None, now

    def recovers(self) -> None:
        """It hung, and is well again if that was all and probes have had the time to see it."""
        if self.ailing == HUNG and not self.hung:
            self.ailing = ""

    def answers(self, now: float) -> bool:
        return self.leader and not self.hung and now >= self.born_s + self.manners.load_s

    def serves(self, now: float) -> bool:
        return self.answers(now) and not self.sleeping

    def holds(self, now: float) -> bool:
        """Whether its GPU memory is still taken."""
        return self.alive or (
            self.gone_s is not None and now < self.gone_s + self.manners.release_s
        )

    def bytes_on(self, gpu: Gpu) -> int:
        given = self.start.resources.gpu_memory_bytes or gpu.memory_bytes
        return given // 10 if self.sleeping else given

    def charged(self) -> Start:
        """Its order, with what it holds of GPU memory now."""
        start = self.start
        if not self.sleeping or not start.gpus:
            return start
        rest = replace(start.resources, gpu_memory_bytes=REST)
        given = start.resources.gpu_memory_bytes
        if given:
            rest = replace(rest, gpu_memory_bytes=given // 10)
        return replace(start, resources=rest)

    @override
    def __str__(self) -> str:
        return f"{self.start.shard} ({self.start.incarnation}) attempt {self.attempt} pid {self.pid} on {self.host}"


@dataclass
class Stranger:
    """A process that is none of ours: a desktop, another engine, whoever got a dead engine's pid."""

    pid: int
    ticks: int
    gpu: str = ""
    memory_bytes: int = 0
    port: int = 0


class Host:
    def __init__(
        self, name: str, gpus: tuple[Gpu, ...], clock: Clock, died_s: dict[str, float]
    ) -> None:
        self.name = name
        self.devices = gpus
        #: cards that fell off the bus (F72)
        self.lost: set[str] = set()
        self.clock = clock
        self.died_s = died_s
        self.boots = 1
        self.booted_s = 0.0
        #: how far its clock on the wall is off; people see it, nothing may go by it (F26, F41)
        self.wall_s = 0.0
        self.up = True
        self.engines: list[Engine] = []
        self.strangers: list[Stranger] = []
        #: /proc cannot be read; the journal cannot be written; NVML does not answer
        self.proc_blind = False
        self.disk_full = False
        self.nvml_blind = False
        self.exited: Callable[[Engine], None] = lambda _: None
        self._next_pid = 100

    @property
    def boot_id(self) -> str:
        return f"{self.name}-boot{self.boots}"

    def live(self, key: Key | None = None) -> list[Engine]:
        return [e for e in self.engines if e.alive and (key is None or e.key == key)]

    def spawn(self, start: Start, attempt: int, manners: Manners) -> Engine:
        self._next_pid += 10
        now = self.clock.now
        engine = Engine(
            host=self.name,
            start=start,
            attempt=attempt,
            pid=self._next_pid,
            ticks=int((now - self.booted_s) * 100),
            boot=self.boot_id,
            born_s=now,
            manners=manners,
        )
        taken = any(s.port == start.port for s in self.strangers)
        self.engines = [e for e in self.engines if e.holds(now)]
        self.engines.append(engine)
        if taken:
            engine.ailing = f"port {start.port} is a stranger's"
            self.clock.after(0.3, lambda: self.dies(engine, 1))
        elif manners.fails_s is not None:
            engine.ailing = "does not start"
            self.clock.after(manners.fails_s, lambda: self.dies(engine, 1))
        return engine

    def dies(self, engine: Engine, code: int, *, worker: bool = True) -> None:
        """The leader is gone, and with it the worker unless that lingers."""
        had_leader = engine.leader
        engine.leader = False
        engine.worker = engine.worker and not worker
        if engine.code is None:
            engine.code = code
        if had_leader:
            self.died_s |= dict.fromkeys(names(engine.start), self.clock.now)
        if not engine.alive and engine.gone_s is None:
            engine.gone_s = self.clock.now
        if had_leader and self.up:
            self.exited(engine)

    def signal(self, engine: Engine, name: str) -> None:
        engine.signals.append(name)
        manners = engine.manners
        if name == "KILL":
            self.clock.after(manners.kill_s, lambda: self.dies(engine, -9))
        elif manners.term_s is not None and not engine.hung:
            self.clock.after(manners.term_s, lambda: self.dies(engine, 0))

    def reboot(self) -> None:
        """Everything dies at once; nobody is told."""
        self.boots += 1
        self.booted_s = self.clock.now
        self._next_pid = 100
        for engine in self.engines:
            engine.leader = engine.worker = False
            self.died_s |= dict.fromkeys(names(engine.start), self.clock.now)
            engine.ailing = engine.ailing or "the host was rebooted"
        self.engines = []
        self.strangers = []
        self.proc_blind = self.nvml_blind = False

    def releases(self, key: Key) -> None:
        """What is left of it is nobody's any more, by an operator's word: a stranger on each of its GPUs (A43, A70)."""
        now = self.clock.now
        for engine in [e for e in self.engines if e.key == key]:
            self.engines.remove(engine)
            for gpu in self.devices:
                if gpu.uuid in engine.start.gpus and engine.holds(now):
                    size = engine.bytes_on(gpu)
                    self.strangers.append(Stranger(engine.pid, engine.ticks, gpu.uuid, size))
            if engine.leader:
                self.strangers.append(Stranger(engine.pid, engine.ticks, port=engine.start.port))

    def leaves(self, stranger: Stranger) -> None:
        self.strangers = [s for s in self.strangers if s is not stranger]

    def takes_pid(self, engine: Engine) -> Stranger:
        """Somebody else got the pid of a dead engine."""
        stranger = Stranger(engine.pid, engine.ticks + 500)
        self.strangers.append(stranger)
        return stranger

    def listener(self, port: int) -> Engine | Stranger | None:
        for stranger in self.strangers:
            if stranger.port == port:
                return stranger
        return next((e for e in self.engines if e.leader and e.start.port == port), None)

    def gpus(self) -> tuple[Gpu, ...] | None:
        """What NVML says: an engine that loads has not taken yet what it will."""
        if self.nvml_blind:
            return None
        return tuple(
            Gpu(
                uuid=g.uuid,
                index=g.index,
                memory_bytes=g.memory_bytes,
                memory_used_bytes=0 if g.uuid in self.lost else min(self._used(g), g.memory_bytes),
                healthy=g.uuid not in self.lost,
                lost=g.uuid in self.lost,
                trouble="it does not answer any more" if g.uuid in self.lost else "",
                numa=g.numa,
            )
            for g in self.devices
        )

    def _used(self, gpu: Gpu) -> int:
        now = self.clock.now
        used = sum(s.memory_bytes for s in self.strangers if s.gpu == gpu.uuid)
        for e in self.engines:
            if gpu.uuid in e.start.gpus and e.holds(now):
                loaded = not e.alive or now >= e.born_s + e.manners.load_s
                used += e.bytes_on(gpu) if loaded else e.bytes_on(gpu) // 10
        return used

    def foreign(self, unknown: Container[Key]) -> tuple[Foreign, ...]:
        """Strangers, and engines of ours that nobody can make out."""
        now = self.clock.now
        lost = tuple(
            Foreign(pid=e.pid, gpu=g.uuid, memory_bytes=e.bytes_on(g), command="x")
            for e in self.engines
            if e.key in unknown and e.holds(now)
            for g in self.devices
            if g.uuid in e.start.gpus
        )
        return lost + tuple(
            Foreign(
                pid=s.pid, gpu=s.gpu, memory_bytes=s.memory_bytes, command="x", port=s.port or None
            )
            for s in self.strangers
            if s.gpu or s.port
        )
