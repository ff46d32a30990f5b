"""The plan as a document: `llmgw.plan/1` of contract/cli.md, with its digest and exit code.

Answers for the shape, the order and the digests; the words in it come from the core. The same document comes from a
running control and from the offline dry run, so both print the same thing.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any, assert_never

from llmgw.core.adopt.foreign import Engine, engines, nearest, one_too_many
from llmgw.core.reconcile.guard import rolled
from llmgw.core.types.catalog import Catalog
from llmgw.core.types.plan import (
    DIFFERENCES,
    QUIET,
    VERDICTS,
    Action,
    Blocked,
    DrainReplica,
    NapReplica,
    Plan,
    Replica,
    RollReplica,
    StartReplica,
    StopReplica,
    Verdict,
    Wait,
)
from llmgw.core.types.state import Node, Shard
from llmgw.errors import EXIT_DIFFERENCE, EXIT_OK, EXIT_UNKNOWN
from llmgw.wire.steady import steady

SCHEMA = "llmgw.plan/1"
COUNTED_ACTIONS = ("start", "stop", "drain", "roll", "wait", "wake")


def plan_document(
    plan: Plan,
    *,
    source: str,
    generated_at: str,
    allow_partial: bool = False,
    nodes: Mapping[str, Node] | None = None,
    catalog: Catalog | None = None,
) -> dict[str, Any]:
    """`source` is control, agents or file; `generated_at` an ISO-8601 UTC time of the caller's clock.

    `nodes` of the state that was judged give GPUs their index and name the processes that are not ours (A70), and
    `catalog` says which of those could be taken over.
    """
    nodes = nodes or {}
    then = _what_follows(plan)
    shards = [_shard(v, then) for v in sorted(plan.verdicts, key=_place)]
    actions = [row for a in plan.actions if not _asleep(a) for row in _action(a)]
    summary = {v: sum(s["verdict"] == v for s in shards) for v in VERDICTS}
    summary |= {a: sum(x["action"] == a for x in actions) for a in COUNTED_ACTIONS}
    return {
        "schema": SCHEMA,
        "generated_at": generated_at,
        "source": source,
        "complete": plan.complete,
        "digest": digest(shards, actions),
        "epoch_seen": plan.epoch_seen,
        "nodes": [
            {"node": n.node, "answered": n.answered, "shards": n.shards, "error": n.error}
            for n in plan.nodes
        ],
        "shards": shards,
        "replicas": [_replica(r) for r in plan.replicas if r.claimed],
        "actions": actions,
        "gpus": [g for name in sorted(nodes) for g in _gpus(nodes[name])],
        "foreign": [f for name in sorted(nodes) for f in _foreign(nodes[name], catalog, plan)],
        "summary": summary,
        "disturbs": _disturbed(plan),
        "blocked": _blocked(plan),
        "warnings": [steady(w) for w in plan.warnings],
        "problems": [],
        "exit_code": exit_code(plan, allow_partial=allow_partial),
    }


def by_last_good(document: dict[str, Any], problems: tuple[str, ...]) -> dict[str, Any]:
    """The same, saying that the catalog on disk has `problems` and it was judged by the last good one (F11)."""
    document["problems"] = list(problems)
    if problems:
        why = "the catalog on disk is not valid, this is judged by the last good one"
        document["warnings"] = [f"{why}: {p}" for p in problems] + document["warnings"]
        document["exit_code"] = document["exit_code"] or EXIT_DIFFERENCE
    return document


def exit_code(plan: Plan, *, allow_partial: bool = False) -> int:
    """3 (incomplete) wins over 1 (a difference), unless partial answers are allowed (A55, A57).

    A roll that only waits for other starts is one: what is going to be replaced is no "nothing to do".
    """
    if not plan.complete and not allow_partial:
        return EXIT_UNKNOWN
    listed = any(bool(a.rolls) if isinstance(a, Wait) else not _asleep(a) for a in plan.actions)
    differs = listed or any(v.verdict in DIFFERENCES for v in plan.verdicts)
    return EXIT_DIFFERENCE if differs else EXIT_OK


def plan_digest(plan: Plan) -> str:
    """The digest of its document."""
    shards = [_shard(v, {}) for v in plan.verdicts]
    return digest(shards, [row for a in plan.actions if not _asleep(a) for row in _action(a)])


def digest(shards: list[dict[str, Any]], actions: list[dict[str, Any]]) -> str:
    """Of what would change only: the same for any order of registrations, and while nothing differs."""
    changed = sorted(
        [s["verdict"], s["reason"] or "", s["shard"]] for s in shards if s["verdict"] not in QUIET
    )
    done = sorted(
        [a["action"], a["model"] or "", a["replica"] or "", a["node"] or ""]
        for a in actions
        if a["action"] != "wait"
    )
    return _sha256([changed, done])


def blocked_digest(blocked: Blocked) -> str:
    """What `llmgw confirm` names: the very engines that were shown, whatever the sentence about them counts."""
    return _sha256(sorted(blocked.incarnations))


def _sha256(value: object) -> str:
    text = json.dumps(value, separators=(",", ":"))
    return "sha256:" + hashlib.sha256(text.encode()).hexdigest()


def _blocked(plan: Plan) -> dict[str, Any] | None:
    if plan.blocked is None:
        return None
    names = {r.incarnation: r.replica for r in plan.replicas}
    engines = sorted(names.get(i, i) for i in plan.blocked.incarnations)
    return {
        "digest": blocked_digest(plan.blocked),
        "why": steady(plan.blocked.why),
        "engines": engines,
    }


def _asleep(action: Action) -> bool:
    """Idle drains and naps are what on-demand models do all day; a dry run does not list them."""
    if isinstance(action, NapReplica):
        return action.step != "wake"
    return isinstance(action, DrainReplica) and action.idle


def _disturbed(plan: Plan) -> int:
    """Running engines that would be stopped, drained or rolled."""
    hit: set[tuple[str, str]] = set()
    for a in plan.actions:
        if isinstance(a, StopReplica | DrainReplica | RollReplica) and (
            isinstance(a, RollReplica) or a.disturbs
        ):
            hit |= {(s.node, s.report.shard + s.incarnation) for s in a.shards if s.was_live}
    over_time = rolled(plan, plan.actions)
    for r in plan.replicas:
        if r.incarnation in over_time:
            hit |= {(s.node, s.report.shard + s.incarnation) for s in r.members if s.was_live}
    return len(hit)


def _gpus(node: Node) -> list[dict[str, Any]]:
    devices = node.report.gpus or ()
    return [
        {"node": node.report.node, "uuid": g.uuid, "index": g.index, "name": g.name}
        for g in devices
    ]


def _foreign(node: Node, catalog: Catalog | None, plan: Plan) -> list[dict[str, Any]]:
    """A row a process and GPU; of an engine that somebody started what it is most like, and how to take it over."""
    report = node.report
    rows = []
    said = {e.pid: _likeness(node, e, catalog, plan) for e in engines(report)}
    for f in sorted(report.foreign, key=lambda f: (f.gpu, f.pid)):
        if f.shard:
            continue
        engine = (f.by_hand and f.by_hand.pid) or f.pid
        row = {
            "node": report.node,
            "pid": f.pid,
            "gpu": f.gpu,
            "memory": f.memory_bytes,
            "command": f.command,
            "port": f.port,
            "engine": (f.by_hand and f.by_hand.pid) or None,
            "why": f.why or None,
        }
        rows.append(row | said.get(engine, NOTHING_LIKE_IT))
    return rows


NOTHING_LIKE_IT: dict[str, Any] = {
    "matches": None, "nearest": None, "differs": [], "adopt": None, "in_the_way": None,
}  # fmt: skip


def _likeness(node: Node, engine: Engine, catalog: Catalog | None, plan: Plan) -> dict[str, Any]:
    like = nearest(catalog, node.report, engine) if catalog is not None else None
    if like is None or catalog is None:
        return NOTHING_LIKE_IT
    alike = not like.differing
    full = one_too_many(plan, catalog.models[like.model]) if alike else ""
    line = f"llmgw adopt {node.report.node}:{engine.pid} --as {like.name}"
    return {
        "matches": like.name if alike else None,
        "nearest": like.name,
        "differs": [{"what": f.what, "wanted": f.wanted, "runs": f.runs} for f in like.differing],
        "adopt": line if alike and not full else None,
        "in_the_way": full or None,
    }


def _place(v: Verdict) -> tuple[object, ...]:
    s = v.shard
    return (s.node, s.report.replica, s.rank, not s.missing, s.incarnation)


def _key(shard: Shard) -> tuple[str, str, str]:
    return shard.node, shard.report.shard, shard.incarnation


Follows = Mapping[tuple[str, str, str], dict[str, Any]]


def _what_follows(plan: Plan) -> Follows:
    """What is done with each shard that goes on for now: at once, or with a roll in its turn."""
    found: dict[tuple[str, str, str], dict[str, Any]] = {}
    over_time = rolled(plan, plan.actions)
    drifts = {r.incarnation: r.drift for r in plan.replicas}
    for r in (r for r in plan.replicas if r.incarnation in over_time):
        blocked = plan.blocked
        why = blocked.why if blocked is not None and r.incarnation in blocked.incarnations else ""
        found |= {_key(s): _then("roll", r.drift, why) for s in r.members}
    for a in plan.actions:
        if isinstance(a, RollReplica):
            why = drifts.get(a.incarnation, "") or a.why
            found |= {_key(s): _then("roll", why, a.withheld) for s in a.shards}
        elif isinstance(a, StopReplica | DrainReplica) and not _asleep(a):
            word = "stop" if isinstance(a, StopReplica) else "drain"
            found |= {_key(s): _then(word, a.why, a.withheld) for s in a.shards}
    return found


def _then(action: str, why: str, withheld: str) -> dict[str, Any]:
    return {"action": action, "why": steady(why), "withheld": steady(withheld) or None}


def _shard(v: Verdict, then: Follows) -> dict[str, Any]:
    """`then`: of one that goes on for now, the end that it comes to all the same."""
    report = v.shard.report
    return {
        "shard": report.shard,
        "replica": report.replica,
        "incarnation": report.incarnation,
        "rank": v.shard.rank,
        "node": v.shard.node,
        "model": v.model,
        "profile": v.profile,
        "gpus": list(report.gpus),
        "port": report.port,
        "pid": report.pid,
        "state": report.state,
        "verdict": v.verdict,
        "reason": v.reason,
        "why": steady(v.why),
        "then": then.get(_key(v.shard)) if v.verdict in ("adopt", "join", "keep") else None,
    }


def _replica(r: Replica) -> dict[str, Any]:
    return {
        "replica": r.replica,
        "incarnation": r.incarnation,
        "model": r.model,
        "profile": r.profile,
        "have": r.have,
        "want": r.want,
        "state": r.state,
        "endpoint": r.endpoint,
    }


def _action(action: Action) -> list[dict[str, Any]]:
    """One row per replica; a stop or drain names the node of its leader, a start that of rank 0."""
    match action:
        case StartReplica():
            spot = action.spots[0]
            return [_row("start", action, None, spot.node, spot.gpus)]
        case StopReplica():
            return [
                _of_shards("stop", action, action.shards, action.due_s, disturbs=action.disturbs)
            ]
        case DrainReplica():
            return [_of_shards("drain", action, action.shards, 0.0, disturbs=action.disturbs)]
        case RollReplica():
            return [_of_shards("roll", action, action.shards, 0.0, disturbs=True)]
        case NapReplica():
            return [_of_shards("wake", action, action.shards, 0.0, disturbs=False)]
        case Wait():
            return [_row("wait", action, None, None, ())]
        case _:
            assert_never(action)


def _of_shards(
    word: str,
    action: StopReplica | DrainReplica | RollReplica | NapReplica,
    shards: tuple[Shard, ...],
    due_s: float,
    *,
    disturbs: bool,
) -> dict[str, Any]:
    lead = shards[0]
    row = _row(word, action, action.replica, lead.node, lead.report.gpus)
    return row | {"due_s": due_s, "disturbs": disturbs, "incarnation": action.incarnation}


def _row(
    word: str, action: Action, replica: str | None, node: str | None, gpus: tuple[str, ...]
) -> dict[str, Any]:
    return {
        "action": word,
        "replica": replica,
        "model": action.model,
        "profile": action.profile,
        "node": node,
        "gpus": list(gpus),
        "why": steady(action.why),
        "due_s": 0.0,
        "disturbs": isinstance(action, Wait) and bool(action.rolls),
        "withheld": None if isinstance(action, Wait) else steady(action.withheld) or None,
    }
