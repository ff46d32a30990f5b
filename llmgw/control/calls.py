"""What each request does in the writer's turn, and what it is told afterwards (contract/http.md).

Answers for: turning messages into facts and facts into answers. It may not know HTTP, nor decide for the fleet.
"""

from __future__ import annotations

from typing import Any

from llmgw.control.loop import Control
from llmgw.control.sessions import Session
from llmgw.core.types.messages import (
    PROTOCOL,
    Events,
    EventsReply,
    NodeReport,
    Registered,
)
from llmgw.core.types.routes import Demand
from llmgw.core.types.state import (
    PLACED,
    CatalogLoaded,
    Cleared,
    Demanded,
    Ending,
    Node,
    NodeForgotten,
    NodeRegistered,
    ShardsChanged,
)
from llmgw.errors import LlmgwError
from llmgw.wire import shards_digest

#: Refusals after which an agent is asked for its epoch again (design.md 3).
_OTHER_EPOCH = frozenset({"lower_epoch", "other_leader"})

Json = dict[str, Any]


async def register(control: Control, report: NodeReport, came_from: str) -> Registered:
    """Fold the complete inventory in, under an epoch above any that its agent obeyed; then answer with verdicts."""

    def fold(now: float) -> Session:
        control.sessions.check(report, came_from, now)
        control.fence(report, now)
        for name in control.sessions.formerly(report):
            why = f"{name} is called {report.node} now, by its node id"
            control.story.tell("renamed", why, node=report.node)
            control.fold(NodeForgotten(name), now)
        control.fold(NodeRegistered(report), now)
        control.rivals.pop(report.node, None)
        return control.sessions.open(report, came_from, now)

    def answer(session: Session) -> Registered:
        return Registered(
            session=session.id,
            epoch=control.state.epoch,
            leader_uuid=control.state.leader_uuid,
            leader=control.leading,
            lease=control.lease.name,
            protocol=PROTOCOL,
            read_only=session.read_only,
            verdicts=tuple(
                {
                    "shard": v.shard.report.shard,
                    "incarnation": v.shard.report.incarnation,
                    "verdict": v.verdict,
                    "reason": v.reason,
                    "why": v.why,
                }
                for v in control.verdicts(report.node)
            ),
        )

    said: Registered = await control.ask(fold, answer)
    return said


async def events(control: Control, message: Events) -> EventsReply:
    """Fold what changed; a digest that differs from our picture asks for a complete report."""
    control.sessions.get(message.session)  # 410 before anything waits
    urgent = bool(message.shards or message.gone or message.refused)
    match: bool = await control.ask(lambda now: _changed(control, message, now), urgent=urgent)
    return EventsReply(match=match, epoch=control.state.epoch)


def _changed(control: Control, message: Events, now: float) -> bool:
    session = control.sessions.get(message.session)
    if not control.sessions.heard(session, message, now):
        return True
    control.fold(
        ShardsChanged(
            session.node,
            message.shards,
            message.gone,
            message.gpus,
            message.foreign,
            message.refused,
        ),
        now,
    )
    for refusal in message.refused:
        control.teller.refused(session.node, refusal)
        if refusal.reason == "two_leaders":
            control.rivals[session.node] = f"{session.node} obeys another control: {refusal.why}"
    if any(r.reason in _OTHER_EPOCH for r in message.refused):
        return False
    return not message.digest or message.digest == _digest(control.state.nodes[session.node])


def _digest(node: Node) -> str:
    """Of what the agent has told; what was only placed it may not know yet."""
    return shards_digest(
        tuple(s.report for s in node.shards if not s.missing and s.origin != PLACED)
    )


async def demand(control: Control, message: Demand) -> None:
    old = control.state.gateways.get(message.gateway)
    told = (message.waiting, message.table)
    urgent = old is None or told != (old.demand.waiting, old.demand.table)

    def fold(now: float) -> None:
        control.table_seen = max(control.table_seen, message.table)
        control.fold(Demanded(message), now)

    await control.ask(fold, urgent=urgent)


async def reload(control: Control) -> Json:
    """Take the catalog on disk, or keep the one in use and say what is wrong with it (CatalogError)."""

    def fold(now: float) -> None:
        control.catalogs.reload()
        control.keeper.sources = control.catalogs.sources
        control.fold(CatalogLoaded(control.catalogs.catalog), now)

    await control.ask(fold)
    return {"path": str(control.catalogs.path), "version": control.catalogs.catalog.digest[:12]}


async def clear(control: Control, name: str) -> Json:
    """Forget the failures of a model, named by itself, an alias or one of its replicas."""

    def fold(now: float) -> str:
        model = _model_of(control, name)
        control.story.tell("clear", f"an operator cleared {model}: it may start again", model=model)
        control.fold(Cleared(model), now)
        return model

    return {"model": await control.ask(fold)}


def _model_of(control: Control, name: str) -> str:
    found = control.state.catalog.resolve(name)
    if found is not None:
        return found.name
    for r in control.found.replicas:
        if name in (r.replica, r.incarnation, r.model):  # a model may be gone from the catalog
            return r.model
    known = ", ".join(sorted(control.state.catalog.models)) or "none"
    msg = f"there is no model or replica called {name}"
    raise LlmgwError(msg, f"models: {known}", code="not_found", status=404)


async def forget(control: Control, name: str) -> Json:
    """Remove a node that will not come back; what it ran is not counted any more (A47)."""

    def fold(now: float) -> None:
        node = control.state.nodes.get(name)
        if node is None:
            known = ", ".join(sorted(control.state.nodes)) or "none"
            msg = f"there is no node called {name}"
            raise LlmgwError(msg, f"nodes: {known}", code="not_found", status=404)
        if node.connected:
            msg = f"node {name} is connected and would be back at once"
            raise LlmgwError(msg, "stop its agent first", code="connected", status=409)
        shards = sum(s.holds for s in node.shards)
        why = f"an operator removed node {name}, which was believed to run {shards} shards"
        control.story.tell("node_forgotten", why, level="warning", node=name)
        control.fold(NodeForgotten(name), now)

    await control.ask(fold)
    return {"node": name}


async def end(control: Control) -> Json:
    """Have all engines drained and stopped; says how many still run. Asking again asks only that."""

    def fold(now: float) -> None:
        if not control.state.ending:
            control.story.tell(
                "ending", "an operator asked for all engines to end", level="warning"
            )
        control.fold(Ending(), now)

    await control.ask(fold)
    running = [s for n in control.state.nodes.values() for s in n.shards if s.holds]
    return {"engines": len(running), "shards": sorted(s.report.shard for s in running)}
