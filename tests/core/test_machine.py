"""Any history of restarts (A1-A50): a small fleet and its control, and whatever may happen to both, in any order.

The whole fleet with processes, networks and journals is tests/sim; this one is small, so that what it finds shrinks to
a few lines, and is mostly restarts.
"""

from __future__ import annotations

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule
from msgspec.structs import replace

from llmgw.control.picture import memory_of
from llmgw.core.reconcile.fresh import Memory
from llmgw.core.types.messages import TERMINAL
from llmgw.core.types.routes import Demand
from llmgw.core.types.state import (
    CatalogLoaded,
    Cleared,
    Confirmed,
    Demanded,
    DrainBegun,
    GatewayGone,
    NodeRegistered,
    Paused,
    SessionLost,
    ShardsChanged,
    Withheld,
)
from tests.core.fleet import AGENTS, FOUND, Box, Edits, Key, found
from tests.core.pilot import Pilot

KINDS = st.sampled_from(["whole"] * 6 + list(AGENTS))
BOXES = st.sampled_from(["box1", "box2", "box3"])
PICK = st.integers(0, 5)
CHANGES = ("ready", "loading", "unhealthy", "failed", "unknown", "draining", "stopping")
EDITS = (
    "nodes",
    "alpha",
    "beta",
    "deep",
    "rename",
    "alias",
    "low",
    "change alpha",
    "change beta",
    "change deep",
)


class Restarts(RuleBasedStateMachine):
    """One control at a time over three boxes."""

    def __init__(self) -> None:
        super().__init__()
        self.boxes = {name: Box(name) for name in ("box1", "box2", "box3")}
        self.edits = Edits()
        self.said = 0
        self.control = Pilot(self.boxes, self.edits.catalog(), Memory(epoch=1), 0.0)
        self.memories: list[Memory] = []

    # ------------------------------------------------------------ agents

    @initialize(engines=st.lists(st.tuples(BOXES, PICK, st.integers(0, 1)), max_size=5))
    def a_fleet_that_runs(self, engines: list[tuple[str, int, int]]) -> None:
        for name, which, rank in engines:
            port = 2 * len(self.boxes[name].shards)
            self.appears(
                name=name, which=which, rank=rank, incarnation="i", port=port, state="ready"
            )
        for name in self.boxes:
            self.registers(name)
        self.looks()

    @rule(name=BOXES, agent=KINDS)
    def registers(self, name: str, agent: str = "whole") -> None:
        box = self.boxes[name]
        box.registered, box.cut, box.agent = True, False, agent
        self.control.fold(NodeRegistered(box.report()))
        box.told = dict(box.shards)

    @rule(name=BOXES)
    def session_is_lost(self, name: str) -> None:
        self.boxes[name].registered = False
        self.control.fold(SessionLost(name))

    @rule(name=BOXES)
    def line_is_cut(self, name: str) -> None:
        self.boxes[name].cut = True

    @rule(name=BOXES)
    def works(self, name: str) -> None:
        self.boxes[name].work()
        self._tells(name)

    @rule()
    def all_work(self) -> None:
        for name in self.boxes:
            self.works(name)

    @rule(name=BOXES, pick=PICK, state=st.sampled_from(CHANGES))
    def changes(self, name: str, pick: int, state: str) -> None:
        key = self._pick(name, pick)
        if key is None or self.boxes[name].shards[key].state in TERMINAL:
            return
        old = self.boxes[name].shards[key]
        desired = {"draining": "draining", "stopping": "stopped"}.get(state, old.desired)
        if desired == "running" or old.desired == "running":
            self.boxes[name].put(replace(old, state=state, desired=desired))
            self._tells(name)

    @rule(name=BOXES, pick=PICK)
    def vanishes(self, name: str, pick: int) -> None:
        """With its record: an agent on a new disk. Told by its next registration."""
        key = self._pick(name, pick)
        if key is not None:
            del self.boxes[name].shards[key]
            self.session_is_lost(name)

    @rule(name=BOXES, agent=KINDS)
    def agent_restarts(self, name: str, agent: str = "whole") -> None:
        self.session_is_lost(name)
        self.registers(name, agent)

    @rule()
    def orders_are_lost_and_all_agents_come_back(self) -> None:
        for name in self.boxes:
            self.line_is_cut(name)
        self.looks()
        for name in self.boxes:
            self.agent_restarts(name)

    @rule(name=BOXES, wiped=st.booleans())
    def reboots(self, name: str, *, wiped: bool) -> None:
        """What ran has ended; its records may go with the disk after they were told of."""
        box = self.boxes[name]
        for s in list(box.running()):
            box.put(replace(s, state="stopped" if s.desired == "stopped" else "failed"))
        self.agent_restarts(name)
        if wiped:
            box.shards.clear()
            self.agent_restarts(name)

    @rule(name=BOXES, pick=PICK)
    def is_placed_anew_by_another(self, name: str, pick: int) -> None:
        """F75: the same replica of another incarnation, in the place of the one that was there."""
        key = self._pick(name, pick)
        if key is not None and not key[1].endswith("+"):
            old = self.boxes[name].shards.pop(key)
            self.boxes[name].put(replace(old, incarnation=f"{key[1]}+"))
            self.agent_restarts(name)

    @rule(
        name=BOXES,
        which=st.integers(0, len(FOUND) - 1),
        rank=st.integers(0, 1),
        incarnation=st.sampled_from(["i", "j"]),
        port=st.integers(0, 2),
        state=st.sampled_from(["ready", "ready", "loading", "failed"]),
    )
    def appears(
        self, *, name: str, which: int, rank: int, incarnation: str, port: int, state: str
    ) -> None:
        """What another control started, or this one before it lost its memory; told by the next registration."""
        box = self.boxes[name]
        report = found(box, which, rank, incarnation=incarnation, port=port, state=state)
        if not any(s.shard == report.shard for s in box.shards.values()):
            box.put(report)
            self.session_is_lost(name)

    def _pick(self, name: str, pick: int) -> Key | None:
        keys = sorted(self.boxes[name].shards)
        return keys[pick % len(keys)] if keys else None

    def _tells(self, name: str) -> None:
        """What changed since it was last heard; nothing where nobody listens."""
        box = self.boxes[name]
        if not box.registered or box.cut or box.told is None:
            return
        news = tuple(box.says(s) for k, s in box.shards.items() if box.told.get(k) != s)
        gone = tuple(k for k in box.told if k not in box.shards)
        self.control.fold(ShardsChanged(name, shards=news, gone=gone))
        box.told = dict(box.shards)

    # ------------------------------------------------------------ control

    @rule(
        memory=st.sampled_from(["last", "last", "old", "lost"]),
        registering=st.permutations(["box1", "box2", "box3"]),
        count=st.integers(0, 3),
    )
    def control_restarts(self, memory: str, registering: list[str], count: int) -> None:
        last = memory_of(self.control.state, self.control.now)
        last = replace(last, draining={i: replace(d, version=0) for i, d in last.draining.items()})
        self.memories.append(last)
        remembered = {"last": last, "old": self.memories[0], "lost": Memory()}[memory]
        now = self.control.now + 1.0
        self.control = Pilot(self.boxes, self.edits.catalog(), remembered, now)
        for box in self.boxes.values():
            box.registered, box.told = False, None
        for name in registering[:count]:
            self.registers(name)
            self.looks()

    @rule()
    def looks(self) -> None:
        self.control.run()
        for name in self.boxes:
            self._tells(name)

    @rule(seconds=st.sampled_from([1.0, 16.0, 61.0, 95.0, 130.0]))
    def time_passes(self, seconds: float) -> None:
        self.control.now += seconds
        self.looks()

    @rule(what=st.sampled_from(EDITS))
    def catalog_is_edited(self, what: str) -> None:
        self.edits.toggle(what)
        self.control.fold(CatalogLoaded(self.edits.catalog()))

    @rule(what=st.sampled_from(EDITS))
    def catalog_is_edited_while_control_is_down(self, what: str) -> None:
        self.edits.toggle(what)
        self.control_restarts("last", ["box1", "box2", "box3"], 3)

    # ------------------------------------------------------------ gateways and operators

    @rule(waiting=st.booleans(), used=st.booleans())
    def gateway_says(self, waiting: bool, used: bool) -> None:
        self.said += 1
        serving = {
            s.replica: 1 for b in self.boxes.values() for s in b.running() if s.model == "beta"
        }
        self.control.fold(
            Demanded(
                Demand(
                    gateway="g",
                    n=self.said,
                    table=self.control.state.first_version + self.control.version,
                    waiting={"beta": 1} if waiting else {},
                    in_flight=serving if used else {},
                )
            )
        )

    @rule()
    def gateway_goes(self) -> None:
        self.control.fold(GatewayGone("g"))

    @rule(why=st.sampled_from(["", "by ann"]))
    def operator_pauses(self, why: str) -> None:
        self.control.fold(Paused(why))

    @rule(why=st.sampled_from(["", "another world"]))
    def operator_demands_a_plan(self, why: str) -> None:
        self.control.fold(Withheld(why))

    @rule()
    def operator_confirms(self) -> None:
        _, plan = self.control.look()
        if plan.blocked is not None:
            self.control.fold(Confirmed(plan.blocked.incarnations))

    @rule(name=BOXES, pick=PICK)
    def operator_drains(self, name: str, pick: int) -> None:
        key = self._pick(name, pick)
        if key is not None and any(
            s.incarnation == key[1] for n in self.control.state.nodes.values() for s in n.shards
        ):
            self.control.fold(DrainBegun(key[1], "operator", "asked"))

    @rule(model=st.sampled_from(["alpha", "beta", "deep"]))
    def operator_clears(self, model: str) -> None:
        self.control.fold(Cleared(model))

    # ------------------------------------------------------------ always

    @invariant()
    def the_picture_is_whole(self) -> None:
        self.control.look()


TestRestarts = Restarts.TestCase
TestRestarts.settings = settings(
    max_examples=2 * settings.default.max_examples, stateful_step_count=40
)
