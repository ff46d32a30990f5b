"""The dry run is the outcome (A52): over random worlds that stand still, in any order of arrival.

What is compared: the document that `llmgw adopt --dry-run` prints, with its digest, and the same document made of what
a control says and decides that starts with that memory and gets those reports: the plan of its first pass after
settling. Of what it claims one thing may differ: it says `keep` of what it has heard of twice.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterable
from random import Random
from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from llmgw.core.reconcile.decide import decide
from llmgw.core.reconcile.fresh import after_settling, started
from llmgw.core.reconcile.observe import observe
from llmgw.core.types.messages import NodeReport
from llmgw.core.types.plan import Plan
from llmgw.core.types.state import (
    Announced,
    CatalogLoaded,
    Event,
    NodeRegistered,
    SessionLost,
    ShardsChanged,
    Tick,
)
from llmgw.wire.plan import plan_document
from tests.core.worlds import World, worlds

SETTLE_S = 60.0
Timeline = Iterable[tuple[float, Event]]


def dry_run(world: World) -> Plan:
    return decide(after_settling(world.catalog, world.memory, world.reports), 0.0)


def document(plan: Plan) -> dict[str, Any]:
    return plan_document(plan, source="file", generated_at="")


def alike(plan: Plan) -> dict[str, Any]:
    """The document where it does not matter when, and how often, something claimed was heard of."""
    claimed = ("adopt", "join", "keep", "replace")
    plan = replace(
        plan,
        verdicts=tuple(
            replace(v, verdict="keep", reason=None, why="") if v.verdict in claimed else v
            for v in plan.verdicts
        ),
    )
    return document(plan)


class Control:
    """What control does with facts, as llmgw.control.loop: a pass at each tick, what it forgets is announced."""

    def __init__(self, world: World) -> None:
        self.state = started(
            world.catalog, world.memory, now=0.0, settle_timeout_s=SETTLE_S, keep_unknown=False
        )

    def run(self, timeline: Timeline) -> Plan:
        """The plan of the first pass after settling."""
        now = 0.0
        for now, event in timeline:
            self.state = observe(self.state, event, now)
            if isinstance(event, Tick) and self.state.settling:
                assert not self.look(now).actions
        self.state = observe(self.state, Tick(), now)
        assert not self.state.settling
        return self.look(now)

    def look(self, now: float) -> Plan:
        plan = decide(self.state, now)
        lacking = {v.shard.incarnation for v in plan.verdicts if v.verdict == "forget"}
        self.state = observe(self.state, Announced(frozenset(lacking)), now)
        return plan


@given(worlds(silent=False))
def test_a52_any_order_of_registrations_comes_to_what_the_dry_run_said(world: World) -> None:
    said = dry_run(world)
    for order in itertools.permutations(world.reports):
        plan = Control(world).run([(0.0, NodeRegistered(r)) for r in order])
        assert document(plan) == document(said)
        assert plan == said


def _nothing_new(what: int, world: World, report: NodeReport) -> list[Event]:
    match what:
        case 0:
            return [NodeRegistered(report)]
        case 1:
            backwards = replace(report, shards=report.shards[::-1])
            return [SessionLost(report.node), NodeRegistered(backwards)]
        case 2:
            return [ShardsChanged(report.node, shards=report.shards)]
        case 3:
            return [CatalogLoaded(world.catalog)]
        case _:
            return [Tick()]


@st.composite
def arrivals(draw: st.DrawFn, world: World, last: int = 3) -> list[Event]:
    """All reports in any order, some of them again, and what else may happen that is nothing new (4: passes too)."""
    events: list[Event] = []
    for report in draw(st.permutations(world.reports)):
        events.append(NodeRegistered(report))
        for what in draw(st.lists(st.integers(0, last), max_size=3)):
            events += _nothing_new(what, world, report)
    return events


@given(worlds(silent=False), st.data())
def test_a52_repeats_passes_and_a_reload_of_the_same_catalog_change_nothing(
    world: World, data: st.DataObject
) -> None:
    plan = Control(world).run([(0.0, e) for e in data.draw(arrivals(world, 4))])
    assert alike(plan) == alike(dry_run(world))


@given(worlds(under_way=False), st.data())
def test_a52_a55_with_nodes_that_do_not_answer_it_is_what_the_end_of_settling_brings(
    world: World, data: st.DataObject
) -> None:
    """Also of a lost inventory. Nothing is under way here: a drain or a back-off goes on while control waits."""
    events = data.draw(arrivals(world))
    pause_s = data.draw(st.floats(0.0, SETTLE_S / (len(events) + 1)))
    plan = Control(world).run(
        [*((n * pause_s, e) for n, e in enumerate(events)), (SETTLE_S, Tick())]
    )
    said = dry_run(world)
    assert alike(plan) == alike(said)
    answered = {r.node for r in world.reports}
    silent = {r.node for r, _ in world.memory.nodes} - answered
    assert {n.node for n in said.nodes if not n.answered} == silent
    assert document(said)["complete"] == (not silent)
    for v in said.verdicts:
        held = v.verdict == "hold" or v.reason == "wrong_node"
        assert held if v.shard.node in silent else v.reason != "node_silent"


@given(worlds(), st.randoms(use_true_random=False))
def test_a56_the_document_and_its_digest_are_the_same_to_the_byte_in_any_order(
    world: World, random: Random
) -> None:
    def shuffled(report: NodeReport) -> NodeReport:
        return replace(report, shards=tuple(random.sample(report.shards, len(report.shards))))

    memory, models = world.memory, world.catalog.models
    mixed = World(
        replace(world.catalog, models=dict(random.sample(list(models.items()), len(models)))),
        replace(memory, nodes=tuple(random.sample(memory.nodes, len(memory.nodes)))),
        tuple(shuffled(r) for r in random.sample(world.reports, len(world.reports))),
    )
    assert json.dumps(document(dry_run(mixed))) == json.dumps(document(dry_run(world)))


@given(worlds())
def test_a56_a57_digest_and_exit_code_say_whether_anything_would_be_done(world: World) -> None:
    """What only waits or is held is no difference; an incomplete plan is neither yes nor no."""
    shown = document(dry_run(world))
    quiet = {"adopt", "join", "keep", "hold", "terminal", "wait"}
    changes = [s for s in shown["shards"] if s["verdict"] not in quiet]
    changes += [a for a in shown["actions"] if a["action"] not in quiet]
    assert (shown["digest"] == document(Plan())["digest"]) == (not changes)
    assert shown["exit_code"] == (int(bool(changes)) if shown["complete"] else 3)
