"""What each request does in the writer's turn, and what it is told afterwards (contract/http.md).

Answers for: turning messages into facts and facts into answers. It may not know HTTP, nor decide for the fleet.
"""

from __future__ import annotations

from typing import Any

from llmgw.control.crash import crash
from llmgw.control.loop import Control
from llmgw.control.node_tokens import ANYONE
from llmgw.control.sessions import Session
from llmgw.core.asleep import told
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
    Cordoned,
    Demanded,
    Node,
    NodeForgotten,
    NodeRegistered,
    ShardsChanged,
)
from llmgw.wire import shards_digest

#: Refusals after which an agent is asked for its epoch again (design.md 3).
_OTHER_EPOCH = frozenset({"lower_epoch", "other_leader"})

Json = dict[str, Any]


async def register(
    control: Control, report: NodeReport, came_from: str, who: str = ANYONE
) -> Registered:
    """Fold the complete inventory in, under an epoch above any that its agent obeyed; then answer with verdicts."""
    if control.outranked(report):
        await control.lease.rise(report.epoch_seen)  # beside the writer: a store may take its time

    def fold(now: float) -> Session:
        control.sessions.check(report, came_from, now)
        control.node_tokens.claim(who, report)
        control.fence(report, now)
        for name in _former_names(control, report):
            why = f"{name} is called {report.node} now, by its node id"
            control.story.tell("renamed", why, node=report.node)
            for (node, gpu), said in control.state.cordoned.items():
                if node == name:  # the operator drained a box, not a name
                    control.fold(Cordoned(report.node, gpu, said), now)
            control.fold(NodeForgotten(name), now)
        if control.unfenced(report):
            return control.sessions.open(report, came_from, now, token=who)
        control.fold(NodeRegistered(report), now)
        crash("registration_folded")
        control.rivals.pop(report.node, None)
        return control.sessions.open(report, came_from, now, control.state.epoch, who)

    def answer(session: Session) -> Registered:
        crash("before_register_answer")
        return Registered(
            session=session.id,
            epoch=control.state.epoch,
            leader_uuid=control.state.leader_uuid,
            leader=control.leading,
            lease=control.lease.id,
            protocol=PROTOCOL,
            read_only=session.read_only,
            programs=control.catalogs.programs,
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


def _former_names(control: Control, report: NodeReport) -> list[str]:
    """Under which this node is known besides: it was renamed, perhaps while control was down (F54)."""
    return [
        name
        for name, node in control.state.nodes.items()
        if name != report.node and node.report.node_id == report.node_id
    ]


async def events(control: Control, message: Events) -> EventsReply:
    """Fold what changed; a digest that differs from our picture asks for a complete report."""
    control.sessions.get(message.session)  # 410 before anything waits
    urgent = bool(message.shards or message.gone or message.refused)
    match: bool = await control.ask(lambda now: _changed(control, message, now), urgent=urgent)
    programs = control.catalogs.programs
    return EventsReply(match=match, epoch=control.state.epoch, programs=programs)


def _changed(control: Control, message: Events, now: float) -> bool:
    session = control.sessions.get(message.session)
    if not control.sessions.heard(session, message, now):
        return True
    session.at, session.at_s = message.at, control.rests.clock()
    crash("before_events")
    control.fold(
        ShardsChanged(
            session.node,
            message.shards,
            message.gone,
            message.gpus,
            message.foreign,
            message.refused,
            message.gpus_error,
        ),
        now,
    )
    crash("events_folded")
    for refusal in message.refused:
        control.teller.refused(session.node, refusal)
        for hear in control.on_refusal:
            hear(refusal)
        if refusal.reason == "two_leaders":
            control.rivals[session.node] = f"{session.node} obeys another control: {refusal.why}"
    if any(r.reason in _OTHER_EPOCH for r in message.refused):
        return False
    return _alike(control, session, message.digest, now)


def _alike(control: Control, session: Session, theirs: str, now: float) -> bool:
    """False asks for a complete report; not again where the last one left both pictures as they were."""
    there = control.state.nodes.get(session.node)
    if there is None or not there.settled:
        return True  # its complete report is asked for already
    ours = _digest(there)
    if not theirs or theirs == ours:
        control.sessions.agree(session)
        return True
    if control.sessions.differ(session, theirs, ours, now):
        return False
    if control.sessions.first_said(session):
        why = (
            f"the agent on {session.node} and control read its shards differently, and a complete "
            "report did not settle it: are they of different versions?"
        )
        control.story.tell("digest", why, level="warning", node=session.node)
    return True


def _digest(node: Node) -> str:
    """Of what the agent has told; what was only placed it may not know yet."""
    return shards_digest(
        tuple(told(s) for s in node.shards if not s.missing and s.origin != PLACED)
    )


async def demand(control: Control, message: Demand) -> None:
    old = control.state.gateways.get(message.gateway)
    told = (message.waiting, message.table)
    urgent = old is None or message.ended or told != (old.demand.waiting, old.demand.table)

    def fold(now: float) -> None:
        control.table_seen = max(control.table_seen, message.table)
        control.fold(Demanded(control.rests.taken(message)), now)

    await control.ask(fold, urgent=urgent)
