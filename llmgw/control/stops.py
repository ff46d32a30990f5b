"""`llmgw stop`: an operator's drain of named engines, and the release of what cannot be killed (A43, A65).

Answers for: whom a name means, and a word where nothing can be done. It may not choose what else goes, nor end anything
by itself: a drain is a fact, the core finds out when it is over.
"""

from __future__ import annotations

from typing import Any

from llmgw.control.loop import Control
from llmgw.control.verbs import at, kept, leading, names, unknown
from llmgw.core.types.messages import StopShard
from llmgw.core.types.plan import Replica
from llmgw.core.types.state import DrainBegun, Shard, Woken
from llmgw.errors import LlmgwError, UsageError

#: What a name may be of; who gives one means any of them.
ANYTHING = "model, replica or shard"
Json = dict[str, Any]


async def model(control: Control, name: str) -> Json:
    """Every replica of a model, by its name or one of its aliases; a glob is too wide a word for that."""

    def fold(now: float) -> Json:
        leading(control)
        models = control.state.catalog.models.values() if "*" not in name else ()
        known = [m.name for m in models if name in (m.name, *m.aliases)]
        replicas = [r for r in control.found.replicas if r.model in (*known, name)]
        if not known and not replicas:
            unknown(ANYTHING, name, names(control))
        for woken in control.state.woken_s.keys() & {*known}:
            control.fold(Woken(woken, over=True), now)
        return _drained(control, replicas, now)

    said: Json = await control.ask(fold)
    return said | kept(control)


async def replica(control: Control, name: str, rank: int | None = None) -> Json:
    """One replica, by its name or its incarnation; or whole the one that has a shard of this rank."""

    def fold(now: float) -> Json:
        leading(control)
        found = _replicas(control, name)
        if rank is not None:
            # A mistyped shard is no word for its replica: nobody was shown what would go.
            found = [r for r in found if rank in _ranks(control, r.incarnation)]
            if not found:
                unknown(ANYTHING, f"{name}/{rank}", names(control))
        return _drained(control, found, now)

    said: Json = await control.ask(fold)
    return said | kept(control)


async def force(control: Control, name: str, rank: int | None) -> Json:
    """What of one shard cannot be killed or looked at holds nothing any more: an operator's word, sent to its agent."""
    if rank is None:
        msg = f"force releases one shard, and {name} names a replica"
        raise UsageError(msg, f"name the shard: {name}/0")

    def fold(now: float) -> Json:
        leading(control)
        about = frozenset(r.incarnation for r in _replicas(control, name))
        shards = [s for s in _shards(control, about) if s.rank == rank]
        if not shards:
            unknown(ANYTHING, f"{name}/{rank}", names(control))
        if len(shards) > 1:
            places = ", ".join(f"{s.incarnation} on {s.node}" for s in shards)
            msg = f"{name}/{rank} is {len(shards)} shards: {places}"
            hint = f"name one by its incarnation: {shards[0].incarnation}/{rank}"
            raise LlmgwError(msg, hint, code="ambiguous", status=409)
        (shard,) = shards
        return _forced(control, shard, now)

    said: Json = await control.ask(fold)
    return said


def _replicas(control: Control, name: str) -> list[Replica]:
    found = [r for r in control.found.replicas if name in (r.replica, r.incarnation)]
    if not found:
        unknown(ANYTHING, name, names(control))
    return found


def _ranks(control: Control, incarnation: str) -> set[int]:
    """Of its shards, those that have ended too."""
    nodes = control.state.nodes.values()
    return {s.rank for n in nodes for s in n.shards if s.incarnation == incarnation}


def _shards(control: Control, incarnations: frozenset[str]) -> list[Shard]:
    """What holds anything of them, on silent nodes too."""
    nodes = control.state.nodes.values()
    found = [s for n in nodes for s in n.shards if s.holds and s.incarnation in incarnations]
    return sorted(found, key=lambda s: (s.rank, s.node))


def _drained(control: Control, replicas: list[Replica], now: float) -> Json:
    why = f"an operator asked for it at {at(control)}"
    rows = []
    for r in replicas:
        shards = _shards(control, frozenset({r.incarnation}))
        if not shards:
            continue
        control.fold(DrainBegun(r.incarnation, "operator", why), now)
        where = ", ".join(f"{s.report.shard} on {s.node}" for s in shards)
        control.story.tell(
            "stop",
            f"an operator stops {where}; requests in flight finish first",
            replica=r.replica,
            model=r.model,
            incarnation=r.incarnation,
            reason="operator",
        )
        rows.append(
            {
                "replica": r.replica,
                "incarnation": r.incarnation,
                "model": r.model,
                "shards": [_shard(control, s) for s in shards],
            }
        )
    return {"stopping": rows, "wanted": _wanted(control, replicas)}


def _shard(control: Control, shard: Shard) -> Json:
    """`waits`: why its end does not begin yet, null where it does."""
    said = {"shard": shard.report.shard, "node": shard.node, "pid": shard.report.pid}
    return said | {"waits": _waits(control, shard) or None}


def _waits(control: Control, shard: Shard) -> str:
    node = control.state.nodes[shard.node]
    if node.too_old:
        return f"the agent on {shard.node} is too old to be told, upgrade it"
    if not node.connected:
        return f"{shard.node} does not answer, it is stopped when it is back"
    return "it begins when settling is over" if control.state.settling else ""


def _wanted(control: Control, going: list[Replica]) -> Json:
    """Models of which others are started because the catalog says so, with their `min`."""
    out = {r.incarnation for r in going}
    wanted = {}
    for name in sorted({r.model for r in going}):
        of = control.state.catalog.models.get(name)
        stay = [
            r
            for r in control.found.replicas
            if r.model == name and r.kept and r.state != "draining" and r.incarnation not in out
        ]
        if of is not None and len(stay) < of.scaling.min:
            wanted[name] = of.scaling.min
    return wanted


def _forced(control: Control, shard: Shard, now: float) -> Json:
    report = shard.report
    if not control.sessions.reachable(shard.node):
        msg = f"{shard.node} does not answer, so {report.shard} cannot be stopped there"
        hint = f"start its agent; or, if the node is gone for good: llmgw forget {shard.node}"
        raise LlmgwError(msg, hint, code="node_silent", status=409)
    order = StopShard(
        shard=report.shard, incarnation=report.incarnation, reason="operator", force=True
    )
    sent = control.sessions.send(shard.node, order, now)
    if sent:
        control.story.tell(
            "stop",
            f"an operator had {report.shard} on {shard.node} stopped and what cannot be killed released",
            level="warning",
            shard=report.shard,
            node=shard.node,
            incarnation=report.incarnation,
            reason="operator",
        )
    about = {"shard": report.shard, "node": shard.node, "pid": report.pid}
    return {"forced": about, "sent": sent}
