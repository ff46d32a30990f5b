"""The laws of core.supervise over any order of events: a small world answers its effects, late or never.

The world has real consequences (a process runs until it is killed or exits, a killed agent loses every answer), so the
sequences are ones that can happen; after every step the laws are checked.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from llmgw.core.supervise import next_due, supervise, unidentified
from llmgw.core.types.catalog import Restart
from llmgw.core.types.messages import DrainShard, ForgetShard, StopShard, Token
from llmgw.core.types.node import (
    CommandReceived,
    DeleteRecord,
    Effect,
    Event,
    Exited,
    GpusSeen,
    Identified,
    Identify,
    Look,
    Measure,
    MemorySeen,
    Probe,
    Probed,
    Session,
    SessionOpened,
    Signal,
    Spawn,
    Spawned,
    SpawnFailed,
    StoreToken,
    Tick,
    TreeSeen,
    WriteRecord,
)
from llmgw.core.types.record import Key, Record
from tests.core.agent_bench import GPU0, GPU1, Bench, on_gpu, start

KEYS: tuple[Key, ...] = (("alpha-1/0", "inc-1"), ("alpha-2/0", "inc-2"))
STARTS = {
    KEYS[0]: start(1, restart=Restart(max=3, backoff_s=5.0), start_timeout_s=30.0),
    KEYS[1]: on_gpu(2, restart=Restart(max=2), start_timeout_s=30.0),
}


class World:
    """Processes and a journal that outlive the agent; answers under way, which do not."""

    def __init__(self) -> None:
        self.disk: dict[Key, Record] = {}
        self.token: Token | None = None
        #: pid -> (key, attempt); a child has the pid of its leader + 1000
        self.alive: dict[int, tuple[Key, int]] = {}
        self.spawns: Counter[tuple[Key, int]] = Counter()
        self.terms: Counter[int] = Counter()
        self.answers: list[Event] = []
        self.next_pid = 100
        self.gave_up: set[Key] = set()
        self.ordered_off: set[Key] = set()
        #: by an operator's word: what is left of them is nobody's any more (A43)
        self.released: set[Key] = set()
        self.boot()

    def boot(self) -> None:
        """An agent process: loads the journal, looks, then registers."""
        self.answers = []
        self.bench = Bench(*self.disk.values(), heard=False, token=self.token)
        for record in unidentified(self.bench.state):
            self.identify(record)
        while self.answers:
            self.feed(self.answers.pop(0))
        session = Session(session="s1", epoch=1, leader_uuid="L1")
        self.feed(SessionOpened(control="http://c1:8801", session=session))
        self.feed(GpusSeen((GPU0, GPU1)))

    def feed(self, event: Event) -> None:
        before = self.bench.state
        self.bench(event)
        if isinstance(event, Tick):
            assert next_due(self.bench.state) > self.bench.now, "a tick that leaves itself due"
        assert supervise(before, event, self.bench.now) == (self.bench.state, self.bench.effects)
        journaled: set[tuple[Key, int]] = set()
        for effect in self.bench.effects:
            self.perform(effect, event, journaled)
        self.check()

    def perform(self, effect: Effect, event: Event, journaled: set[tuple[Key, int]]) -> None:
        match effect:
            case WriteRecord(record):
                self.disk[record.key] = record
                journaled.add((record.key, record.attempt))
            case DeleteRecord(key, released):
                assert released or not self.of(key), "deleted, and it runs"
                self.delete(key)
            case Spawn(record):
                self.spawn(record, journaled)
            case Signal(record, name):
                self.signal(record, name, event)
            case Look(record):
                alive = tuple(self.of(record.key))
                self.answers.append(TreeSeen(key=record.key, attempt=record.attempt, alive=alive))
            case Measure(record):
                used = 8 if self.of(record.key) else 0
                seen = MemorySeen(key=record.key, attempt=record.attempt, used_bytes=used)
                self.answers.append(seen)
            case Probe(record):
                self.probe(record)
            case Identify(record):
                self.identify(record)
            case _:
                self.token = effect.token if isinstance(effect, StoreToken) else self.token

    def delete(self, key: Key) -> None:
        if self.disk.pop(key, None):
            self.ordered_off.add(key)  # an incarnation is not used again

    def spawn(self, record: Record, journaled: set[tuple[Key, int]]) -> None:
        what = (record.key, record.attempt)
        assert what in journaled, "the intent was not journaled before"
        assert self.disk[record.key].intent
        self.spawns[what] += 1
        assert self.spawns[what] == 1, "spawned twice"
        assert not self.of(record.key), "the last attempt still runs"
        assert record.key not in self.gave_up, "given up, and started again"
        assert record.key not in self.ordered_off, "ordered off, and started again"
        self.next_pid += 1
        pid = self.next_pid
        if pid % 5 == 0:
            failed = SpawnFailed(
                key=record.key, attempt=record.attempt, error="no", fatal=pid % 2 == 0
            )
            self.answers.append(failed)
            return
        self.alive[pid] = what
        if pid % 3 == 0:
            self.alive[pid + 1000] = what
        done = Spawned(key=record.key, attempt=record.attempt, pid=pid, start_ticks=pid)
        self.answers.append(done)

    def signal(self, record: Record, name: str, event: Event) -> None:
        assert not isinstance(event, Identified), "signalled from re-attach"
        assert record.watch.verified
        assert self.disk[record.key].signalled, "not journaled before it was sent"
        for pid in self.of(record.key):
            if name == "TERM":
                self.terms[pid] += 1
                assert self.terms[pid] == 1, "a second TERM"
            if pid % 7 and (name == "KILL" or pid % 2):  # one in seven is stuck (F67)
                self.exit(pid, -9 if name == "KILL" else 0)

    def exit(self, pid: int, code: int) -> None:
        key, attempt = self.alive.pop(pid)
        if pid < 1000:
            self.answers.append(Exited(key=key, attempt=attempt, code=code))

    def probe(self, record: Record) -> None:
        up = any(pid < 1000 for pid in self.of(record.key))
        outcome: Any = "ok" if up and len(self.answers) % 3 else "refused"
        self.answers.append(Probed(key=record.key, attempt=record.attempt, outcome=outcome))

    def identify(self, record: Record) -> None:
        pids = self.of(record.key)
        leader = next((p for p in pids if p < 1000), None)
        others = tuple(p for p in pids if p != leader)
        if record.pid is not None:
            same = leader == record.pid
            event = Identified(key=record.key, leader="same" if same else "absent", others=others)
        else:
            event = Identified(key=record.key, pid=leader, start_ticks=leader or 0, others=others)
        if record.watch.story == () and record.attempt == 3:  # now and then it cannot be told
            event = replace(event, error="cannot look")
        self.answers.append(event)

    def of(self, key: Key) -> list[int]:
        return [pid for pid, (whose, _) in sorted(self.alive.items()) if whose == key]

    def check(self) -> None:
        for key, record in self.bench.state.records.items():
            if record.released:
                self.released.add(key)
            elif record.ended:
                assert not self.of(key), "ended, and something of it runs"
            if record.gave_up:
                self.gave_up.add(key)
            if record.desired != "running":
                self.ordered_off.add(key)
            assert self.disk[key] == replace(record, watch=self.disk[key].watch), "not journaled"
        for key, _ in self.alive.values():
            known = key in self.bench.state.records or key in self.released
            assert known, "forgotten, and it runs"


STEPS = st.lists(
    st.tuples(
        st.sampled_from(
            ["answer"] * 6
            + ["tick"] * 4
            + ["start", "start", "stop", "force", "drain", "forget"]
            + ["die", "kill"]
        ),
        st.sampled_from(KEYS),
        st.floats(0.01, 40.0),
        st.integers(0, 9),
    ),
    min_size=5,
    max_size=80,
)


def step(world: World, what: str, key: Key, seconds: float, pick: int) -> None:
    by = {"session": "s1", "epoch": 1, "leader_uuid": "L1"}
    match what:
        case "answer":
            if world.answers:
                world.feed(world.answers.pop(pick % len(world.answers)))
        case "tick":
            world.bench.now += seconds
            world.feed(Tick())
        case "die":
            pids = list(world.alive)
            if pids:
                world.exit(pids[pick % len(pids)], pick - 9)
        case "kill":
            world.boot()
        case "start":
            if key not in world.ordered_off | world.gave_up:
                world.feed(order(STARTS[key], by))
        case _:
            world.feed(order(orders(key)[what], by))


def orders(key: Key) -> dict[str, Any]:
    about: dict[str, Any] = {"shard": key[0], "incarnation": key[1]}
    return {
        "stop": StopShard(**about, reason="law"),
        "force": StopShard(**about, reason="law", force=True),
        "drain": DrainShard(**about, reason="law"),
        "forget": ForgetShard(**about),
    }


def order(command: Any, by: dict[str, Any]) -> Event:
    return CommandReceived(command=replace(command, **by), control="http://c1:8801")


@given(STEPS)
def test_the_laws_hold_whatever_happens(steps: list[tuple[str, Key, float, int]]) -> None:
    world = World()
    for what, key, seconds, pick in steps:
        step(world, what, key, seconds, pick)
    for (
        key
    ) in KEYS:  # at rest: what is ordered off ends, whatever state it was in, if it can be killed
        step(world, "stop", key, 0.0, 0)
    rest(world, 200.0)
    for record in world.bench.state.records.values():
        stuck = any(pid % 7 == 0 for pid in world.of(record.key))
        said = f"{record.key} is {record.state}: {record.watch.story}"
        assert record.ended or stuck, said
    for key in KEYS:  # and by an operator's word whatever it is
        step(world, "force", key, 0.0, 0)
    rest(world, 40.0)
    assert all(r.ended for r in world.bench.state.records.values())
    assert all(key in world.released for key, _ in world.alive.values())


def rest(world: World, seconds: float) -> None:
    for _ in range(int(seconds / 0.5)):
        while world.answers:
            world.feed(world.answers.pop(0))
        world.bench.now += 0.5
        world.feed(Tick())
