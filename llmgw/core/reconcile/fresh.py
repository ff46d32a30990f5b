"""The picture of a control plane that starts now: what its inventory remembers, and the reports it would get.

The dry run, offline or of a running control, is `decide` of this (A52): settling counts as over, nothing is `known`
before.
"""

from __future__ import annotations

from collections.abc import Iterable
from math import inf

from msgspec import Struct
from msgspec.structs import replace

from llmgw.core.reconcile.inventory import remembered
from llmgw.core.reconcile.observe import observe
from llmgw.core.types.catalog import Catalog
from llmgw.core.types.messages import NodeReport
from llmgw.core.types.state import Draining, Failure, NodeRegistered, State, Tick


class Memory(Struct, frozen=True, kw_only=True):
    """What the inventory keeps and the fleet cannot tell. `nodes`: last picture, and whether it was unreachable then.

    Times in `failures`, `draining`, `woken_s` are monotonic seconds of the reader's clock (negative: before its start).
    """

    nodes: tuple[tuple[NodeReport, bool], ...] = ()
    epoch: int = 0
    failures: dict[str, tuple[Failure, ...]] = {}
    draining: dict[str, Draining] = {}
    paused: str = ""
    confirmed: frozenset[str] = frozenset()
    cordoned: dict[tuple[str, str], str] = {}
    woken_s: dict[str, float] = {}
    learned: dict[str, int] = {}
    #: those that were counted, by name; None where that is not known
    gateways: frozenset[str] | None = None


def started(
    catalog: Catalog, memory: Memory, *, now: float, settle_timeout_s: float, keep_unknown: bool
) -> State:
    """A control plane that has just started: it knows what it remembers, and has heard nobody.

    What it remembers was dated by a clock on the wall, which may have been set since (F26): a drain has its whole limit
    from here on, and no failure lies ahead.
    """
    failures = {
        model: tuple(replace(f, at_s=min(f.at_s, now)) for f in seen)
        for model, seen in memory.failures.items()
    }
    state = State(
        catalog=catalog,
        epoch=memory.epoch,
        epoch_before=memory.epoch,
        started_s=now,
        settle_timeout_s=settle_timeout_s,
        keep_unknown=keep_unknown,
        failures=failures,
        draining={i: replace(d, since_s=now) for i, d in memory.draining.items()},
        paused=memory.paused,
        confirmed=memory.confirmed,
        cordoned=memory.cordoned,
        woken_s={m: min(at_s, now) for m, at_s in memory.woken_s.items()},
        learned=memory.learned,
        unheard=memory.gateways,
    )
    for report, unreachable in memory.nodes:
        state = remembered(state, report, unreachable=unreachable)
    return state


def after_settling(
    catalog: Catalog,
    memory: Memory,
    reports: Iterable[NodeReport],
    *,
    keep_unknown: bool = False,
) -> State:
    """Started, all reports in, one registration each in that order, settling over. Time stands at 0."""
    state = started(catalog, memory, now=0.0, settle_timeout_s=inf, keep_unknown=keep_unknown)
    for report in reports:
        heard = report.reattached
        state = observe(state, NodeRegistered(report), 0.0) if heard else _unheard(state, report)
    state = observe(replace(state, settled_s=0.0), Tick(), 0.0)
    nodes = {
        name: replace(node, shards=tuple(replace(s, known=False) for s in node.shards))
        for name, node in state.nodes.items()
    }
    return replace(state, nodes=nodes)


def _unheard(state: State, report: NodeReport) -> State:
    """An agent that is still re-attaching does not know yet what runs (A13): it counts as not heard.

    What was believed there stays believed: its early report may be empty.
    """
    old = state.nodes.get(report.node)
    listed = {s.shard for s in report.shards}
    before = tuple(
        s.report for s in (old.shards if old else ()) if s.report.shard not in listed and s.holds
    )
    whole = replace(report, shards=(*report.shards, *before))
    return remembered(state, whole, unreachable=False)
