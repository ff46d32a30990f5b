"""The dry run is the outcome (A52): over random worlds that stand still, in any order of arrival.

What is compared: the document that `llmgw adopt --dry-run` prints, with its digest, and the same document made of what
a control says and decides that starts with that memory and gets those reports: the plan of its first pass after
settling, with what it announced as forgotten, and dropped, while it settled. Of what it claims one thing may differ: it
says `keep` of what it has heard of twice.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from llmgw.core.reconcile.decide import decide
from llmgw.core.reconcile.fresh import after_settling, started
from llmgw.core.reconcile.observe import observe
from llmgw.core.types.messages import NodeReport
from llmgw.core.types.plan import Plan, Verdict
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
    shown = document(plan)
    del shown["nodes"]  # how many shards: those that were forgotten are out of the picture
    return shown


class Control:
    """What control does with facts, as llmgw.control.loop: a pass at each tick, forgets announced and dropped."""

    def __init__(self, world: World) -> None:
        self.state = started(
            world.catalog, world.memory, now=0.0, settle_timeout_s=SETTLE_S, keep_unknown=False
        )
        self.forgotten: dict[tuple[Any, ...], Verdict] = {}

    def run(self, timeline: Timeline) -> Plan:
        """The plan of the first pass after settling, with the verdicts it and the passes before it gave."""
        now = 0.0
        for now, event in timeline:
            self.state = observe(self.state, event, now)
            if isinstance(event, Tick) and self.state.settling:
                assert not self.look(now).actions
        self.state = observe(self.state, Tick(), now)
        assert not self.state.settling
        plan = self.look(now)
        given = self.forgotten | {_position(v): v for v in plan.verdicts}
        return replace(plan, verdicts=tuple(given[at] for at in sorted(given)))

    def look(self, now: float) -> Plan:
        plan = decide(self.state, now)
        lacking = {_position(v): v for v in plan.verdicts if v.verdict == "forget"}
        if lacking:
            names = frozenset(v.shard.incarnation for v in lacking.values())
            self.state = observe(self.state, Announced(names), now)
        self.forgotten |= lacking
        return plan


def _position(v: Verdict) -> tuple[Any, ...]:
    return (v.shard.node, v.shard.report.shard, not v.shard.missing, v.shard.incarnation)


@given(worlds(silent=False))
def test_a52_any_order_of_registrations_comes_to_what_the_dry_run_said(world: World) -> None:
    said = dry_run(world)
    for order in itertools.permutations(world.reports):
        plan = Control(world).run([(0.0, NodeRegistered(r)) for r in order])
        assert document(plan) == document(said)
        assert plan == said


@st.composite
def arrivals(draw: st.DrawFn, world: World) -> Timeline:
    """All reports, in any order and more than once, with all that may happen besides and changes nothing."""
    events: list[Event] = []
    for report in draw(st.permutations(world.reports)):
        events.append(NodeRegistered(report))
        for what in draw(st.lists(st.integers(0, 5), max_size=3)):
            events += _nothing_new(what, world, report)
    return [(0.0, e) for e in events]


def _nothing_new(what: int, world: World, report: NodeReport) -> list[Event]:
    backwards = replace(report, shards=report.shards[::-1])
    match what:
        case 0:
            return [NodeRegistered(report)]
        case 1:
            return [SessionLost(report.node), NodeRegistered(backwards)]
        case 2:
            return [ShardsChanged(report.node, shards=report.shards)]
        case 3:
            return [CatalogLoaded(world.catalog)]
        case _:
            return [Tick()]


@given(worlds(silent=False), st.data())
def test_a52_repeats_ticks_and_a_reload_of_the_same_catalog_change_nothing(
    world: World, data: st.DataObject
) -> None:
    plan = Control(world).run(data.draw(arrivals(world)))
    assert alike(plan) == alike(dry_run(world))
