"""A bench for the agent's decisions: one state, one clock, and the effects of the last event.

Answers for: short words for events in the tests of core.supervise. It may not decide or check.
"""

from __future__ import annotations

from typing import Any, TypeVar

from msgspec.structs import replace

from llmgw.core.supervise import initial_state, next_due, supervise
from llmgw.core.types.catalog import Stop
from llmgw.core.types.messages import (
    Capacity,
    DrainShard,
    ForgetShard,
    Gpu,
    Resources,
    SendReport,
    Start,
    StopShard,
    Token,
)
from llmgw.core.types.node import (
    AgentState,
    Changed,
    CommandReceived,
    DeleteRecord,
    Effect,
    Event,
    Exited,
    GpusSeen,
    Identified,
    MemorySeen,
    NodeFacts,
    Probed,
    Refuse,
    Session,
    SessionOpened,
    Spawned,
    SpawnFailed,
    Tick,
    TreeSeen,
    WriteRecord,
)
from llmgw.core.types.record import Key, Record

GIB = 1 << 30
C1, C2 = "http://c1:8801", "http://c2:8801"
KEY: Key = ("alpha-1/0", "inc-1")
GPU0 = Gpu(uuid="GPU-0", index=0, name="RTX 3090", memory_bytes=24 * GIB)
GPU1 = Gpu(uuid="GPU-1", index=1, name="RTX 3090", memory_bytes=24 * GIB)
FACTS = NodeFacts(
    node="box1", boot_id="boot-1", capacity=Capacity(host_memory_bytes=64 * GIB, cpu_cores=16)
)
E = TypeVar("E")


def start(n: int = 1, **changes: Any) -> Start:
    """The start of replica alpha-n: a CPU engine on a port of its own."""
    base = Start(
        shard=f"alpha-{n}/0",
        replica=f"alpha-{n}",
        incarnation=f"inc-{n}",
        model="alpha",
        profile="main",
        command=("engine", "--port", "${port}"),
        port=18000 + n,
        epoch=1,
        leader_uuid="L1",
        session="s1",
        stop=Stop(grace_s=20.0),
        start_timeout_s=900.0,
    )
    return replace(base, **changes)


def on_gpu(n: int = 1, *uuids: str, gib: int | None = None, **changes: Any) -> Start:
    memory = None if gib is None else gib * GIB
    gpus = uuids or ("GPU-0",)
    return start(n, gpus=gpus, resources=Resources(gpu_memory_bytes=memory), **changes)


class Bench:
    """`effects` are those of the last event; `log` has all of them in order."""

    def __init__(self, *records: Record, heard: bool = True, token: Token | None = None) -> None:
        self.now = 1000.0
        self.state: AgentState = initial_state(FACTS, records, token)
        self.effects: tuple[Effect, ...] = ()
        self.log: list[Effect] = []
        if heard:
            self.session(C1, "s1", "L1")
            self(GpusSeen((GPU0, GPU1)))

    def __call__(self, event: Event, after_s: float = 0.0) -> Bench:
        self.now += after_s
        self.state, self.effects = supervise(self.state, event, self.now)
        self.log += self.effects
        return self

    def session(self, control: str, session: str, uuid: str, **more: Any) -> Bench:
        opened = Session(session=session, leader_uuid=uuid, epoch=1, **more)
        return self(SessionOpened(control=control, session=opened))

    # ------------------------------------------------ what is there

    @property
    def record(self) -> Record:
        return self.state.records[KEY]

    def of(self, kind: type[E]) -> list[E]:
        return [e for e in self.effects if isinstance(e, kind)]

    def one(self, kind: type[E]) -> E:
        found = self.of(kind)
        assert len(found) == 1, f"one {kind.__name__} wanted: {self.effects}"
        return found[0]

    def kinds(self) -> list[str]:
        return [type(e).__name__ for e in self.effects]

    def refusal(self) -> tuple[str, str, str]:
        refusal = self.one(Refuse).refusal
        return refusal.reason, refusal.resource, refusal.why

    def journaled(self) -> dict[Key, Record]:
        """What a new process would load: all writes so far, less the deleted."""
        out: dict[Key, Record] = {}
        for e in self.log:
            if isinstance(e, WriteRecord):
                out[e.record.key] = e.record
            elif isinstance(e, DeleteRecord):
                out.pop(e.key, None)
        return out

    def restarted(self, *, heard: bool = False) -> Bench:
        """Another process with the same journal, before anything is identified."""
        return Bench(*self.journaled().values(), heard=heard)

    # ------------------------------------------------ what happens

    def command(self, command: Any, control: str = C1, **facts: Any) -> Bench:
        return self(CommandReceived(command=command, control=control, **facts))

    def start(self, n: int = 1, **changes: Any) -> Bench:
        return self.command(start(n, **changes))

    def stop(
        self, grace_s: float | None = None, incarnation: str = "inc-1", *, force: bool = False
    ) -> Bench:
        about: dict[str, Any] = {"shard": "alpha-1/0", "incarnation": incarnation, **BY}
        return self.command(StopShard(reason="test", grace_s=grace_s, force=force, **about))

    def drain(self) -> Bench:
        return self.command(DrainShard(shard="alpha-1/0", incarnation="inc-1", reason="t", **BY))

    def forget(self, incarnation: str = "inc-1") -> Bench:
        return self.command(ForgetShard(shard="alpha-1/0", incarnation=incarnation, **BY))

    def report(self, **by: Any) -> Bench:
        return self.command(SendReport(**{**BY, **by}))

    def spawned(self, key: Key = KEY, pid: int = 4711) -> Bench:
        attempt = self.state.records[key].attempt
        return self(Spawned(key=key, attempt=attempt, pid=pid, start_ticks=99, at="T0"))

    def spawn_failed(self, error: str, *, fatal: bool = False) -> Bench:
        attempt = self.record.attempt
        return self(SpawnFailed(key=KEY, attempt=attempt, error=error, fatal=fatal))

    def probe(self, outcome: Any = "ok", **more: Any) -> Bench:
        more = {"owner": "ours", **more} if outcome == "ok" else more
        return self(Probed(key=KEY, attempt=self.record.attempt, outcome=outcome, **more))

    def exited(self, code: int | None = 1, last_line: str = "", **facts: Any) -> Bench:
        attempt = self.record.attempt
        return self(Exited(key=KEY, attempt=attempt, code=code, last_line=last_line, **facts))

    def tree(self, *alive: int, doubtful: tuple[int, ...] = (), after_s: float = 0.0) -> Bench:
        attempt = self.record.attempt
        return self(TreeSeen(key=KEY, attempt=attempt, alive=alive, doubtful=doubtful), after_s)

    def memory(self, used: int | None, *pids: int, after_s: float = 0.5) -> Bench:
        attempt = self.record.attempt
        return self(MemorySeen(key=KEY, attempt=attempt, used_bytes=used, pids=pids), after_s)

    def identified(self, key: Key = KEY, **facts: Any) -> Bench:
        return self(Identified(key=key, **facts))

    def tick(self, after_s: float = 0.0) -> Bench:
        return self(Tick(), after_s)

    def due(self) -> float:
        """Seconds until a tick is wanted."""
        return next_due(self.state) - self.now

    # ------------------------------------------------ often needed

    def ready(self, **changes: Any) -> Bench:
        """One engine, started and answering, its first probes done."""
        self.start(**changes).spawned().tick(0.1).probe()
        assert self.record.state == "ready"
        return self

    def gone(self, code: int | None = 0) -> Bench:
        """Its leader exits and nothing of it is left."""
        return self.exited(code).tree()

    def changed(self) -> tuple[Key, ...]:
        return self.one(Changed).keys


BY: dict[str, Any] = {"session": "s1", "epoch": 1, "leader_uuid": "L1"}
