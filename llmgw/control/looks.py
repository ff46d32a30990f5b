"""What operators look at: the status, what a restart would do, what a survey finds now (A52-A57).

Answers for: documents out of what is there. `plan` changes nothing anywhere; `adopt` has every agent asked, no more.
"""

from __future__ import annotations

import asyncio
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from llmgw import catalog as catalogs
from llmgw.control.apply import Applied
from llmgw.control.gate import fresh
from llmgw.control.loop import Control
from llmgw.control.picture import memory_of
from llmgw.core.adopt.survey import Survey
from llmgw.core.types.catalog import Catalog
from llmgw.core.types.messages import SendReport
from llmgw.core.types.plan import Action, NapReplica, Plan, StartReplica, Verdict, Wait
from llmgw.core.types.state import State
from llmgw.errors import CatalogError
from llmgw.wire.places import with_places
from llmgw.wire.plan import blocked_digest, by_last_good, plan_document
from llmgw.wire.status import Seen, status_document

#: An operator's survey waits this long for the agents' answers.
SURVEY_S = 10.0

Json = dict[str, Any]


async def status(control: Control, places: str = "") -> Json:
    """A look at what is there; asks nobody and takes no turn. `places`: a model to say of where it could go."""
    # A standby goes by its leader's, and follows its own file by itself.
    edited = await control.edited.look() if control.leading else ""
    now = control.now()
    why, digest = blocked(control)
    document = status_document(
        Seen(
            state=control.state,
            found=control.found,
            plan=control.plan,
            routes=control.routes,
            now=now.mono,
            decided_s=control.decided_s,
            iso=now.iso,
        ),
        name=control.name,
        lease=control.lease.name,
        leader=control.peers.document(now.mono),
        blocked=why,
        confirm=digest,
        catalog_path=str(control.catalogs.path),
        catalog_error=control.catalogs.error,
        warnings=(
            *(said for notice in control.notices if (said := notice())),
            *([edited] if edited else ()),
            *control.refused.said(),
        ),
    )
    document["warnings"] += control.nowhere.said(control.state)
    return with_places(document, control.state, places, now.mono) if places else document


def blocked(control: Control) -> tuple[str, str]:
    """Why nothing, or less than was decided, is carried out, and the digest that an operator may confirm; or ""."""
    held = control.plan.blocked
    if control.leader is not None:
        return "", ""  # a standby: another decides
    if control.blocked:
        return control.blocked, ""
    if control.gate.closed:
        return control.gate.why, control.gate.found
    if held is None:
        return "", ""
    digest = blocked_digest(held)
    return f"{held.why}; llmgw confirm {digest} lets it happen", digest


def plan(control: Control, catalog: Catalog | None = None, *, allow_partial: bool = False) -> Json:
    """What a control that starts now would do, by `catalog` or the one on disk (A52). Changes nothing."""
    problems: tuple[str, ...] = ()
    if catalog is None:
        try:
            catalog, _ = control.catalogs.read()
        except CatalogError as e:
            catalog, problems = control.catalogs.catalog, e.problems
    now = control.now()
    found, judged = fresh_plan(control, catalog, now.mono)
    document = plan_document(
        found,
        source="control",
        generated_at=now.iso(now.mono),
        allow_partial=allow_partial,
        nodes=judged.nodes,
        catalog=catalog,
    )
    document["changes"] = [c.sentence for c in catalogs.diff(control.catalogs.catalog, catalog)]
    return by_last_good(document, problems)


def fresh_plan(control: Control, catalog: Catalog, now: float) -> tuple[Plan, State]:
    """The plan of the dry run as of now, by this catalog, and the state it judges."""
    state = control.state
    return fresh(
        catalog,
        memory_of(state, now),
        state.nodes,
        state.epoch,
        keep_unknown=control.settings.keep_unknown,
    )


class Recorder(Struct):
    """What the passes of one survey found and did, beyond what the last of them shows."""

    verdicts: dict[tuple[str, tuple[str, int]], Verdict]
    actions: list[Action]
    passed: asyncio.Event

    def note(self, found: Survey, applied: Applied) -> None:
        for v in found.verdicts:
            if v.verdict in ("forget", "replace"):
                self.verdicts[v.shard.node, v.shard.key] = v
        self.actions += (d.action for d in applied.done if not isinstance(d.action, Wait))
        self.passed.set()


async def adopt(control: Control, *, allow_partial: bool = False, wait_s: float = SURVEY_S) -> Json:
    """Ask every agent for its complete inventory now, and say what was found and done (`keep` verdicts included)."""
    record = Recorder({}, [], asyncio.Event())

    def begin(now: float) -> dict[str, str]:
        control.done_by.append(record.note)
        asked = {}
        for node in control.sessions.nodes():
            session = control.sessions.of(node)
            if session is not None and control.sessions.reachable(node):
                control.sessions.send(node, SendReport(), now)
                asked[node] = session.id
        return asked

    asked = await control.ask(begin)
    try:
        silent = await _answered(control, asked, record, wait_s)
        now = control.now()
        document: Json = await control.ask(
            lambda _: None,
            lambda _: plan_document(
                _recorded(control.plan, record, silent),
                source="control",
                generated_at=now.iso(now.mono),
                allow_partial=allow_partial,
                nodes=control.state.nodes,
                catalog=control.state.catalog,
            ),
        )
    finally:
        control.done_by.remove(record.note)
    return document


async def _answered(
    control: Control, asked: dict[str, str], record: Recorder, wait_s: float
) -> tuple[str, ...]:
    """Wait until each node asked has registered anew; the names of those that have not in time."""

    def missing() -> tuple[str, ...]:
        out = []
        for node, session_id in asked.items():
            session = control.sessions.of(node)
            if session is None or session.id == session_id:
                out.append(node)
        return tuple(out)

    try:
        async with asyncio.timeout(wait_s):
            while missing():
                record.passed.clear()
                await record.passed.wait()
    except TimeoutError:
        pass
    return missing()


def _recorded(plan: Plan, record: Recorder, silent: tuple[str, ...]) -> Plan:
    """The last plan with what was found and done on the way to it."""
    verdicts = {(v.shard.node, v.shard.key): v for v in plan.verdicts}
    verdicts = record.verdicts | verdicts
    # An order is repeated until it is heard; one row of each is enough.
    actions = {_about(a): a for a in (*record.actions, *plan.actions)}
    return replace(
        plan,
        verdicts=tuple(
            sorted(
                verdicts.values(),
                key=lambda v: (v.shard.node, v.shard.report.replica, v.shard.rank),
            )
        ),
        actions=tuple(actions.values()),
        nodes=tuple(
            replace(n, answered=False, error="did not answer in time") if n.node in silent else n
            for n in plan.nodes
        ),
    )


def _about(action: Action) -> tuple[object, ...]:
    match action:
        case StartReplica():
            return ("start", action.model, action.spots)
        case Wait():
            return ("wait", action.model)
        case NapReplica():
            return (action.step, action.incarnation)
        case _:
            shards = tuple((s.node, s.report.shard) for s in action.shards)
            return (type(action), action.incarnation, shards)
