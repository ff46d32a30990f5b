"""What must always hold of control's picture, as sentences; used by the tests, the simulator and the loop's own alarm.

A finding is a bug or a lie of an agent, never a normal state. May not repair anything.
"""

from __future__ import annotations

from collections import Counter

from llmgw.core.adopt.survey import Survey
from llmgw.core.capacity import holdings
from llmgw.core.types.plan import VERDICTS, Plan, StartReplica
from llmgw.core.types.state import PLACED, State


def violations(state: State, survey: Survey) -> list[str]:
    """Every broken invariant of the picture: [] when all is well."""
    return [*_one_bucket_each(state, survey), *_one_shard_a_rank(survey), *_nothing_twice(state)]


def _one_bucket_each(state: State, survey: Survey) -> list[str]:
    shards = [(n, s.key) for n, node in state.nodes.items() for s in node.shards]
    verdicts = Counter((v.shard.node, v.shard.key) for v in survey.verdicts)
    out = [
        f"shard {key} of {node} has no verdict" for node, key in shards if not verdicts[node, key]
    ]
    out += [f"shard {k} has {n} verdicts" for k, n in verdicts.items() if n > shards.count(k)]
    out += [f"unknown verdict {v.verdict}" for v in survey.verdicts if v.verdict not in VERDICTS]
    return out


def _one_shard_a_rank(survey: Survey) -> list[str]:
    """A27: any number of repeats leaves the count at most what is wanted."""
    out = []
    for r in survey.replicas:
        ranks = [s.rank for s in r.members]
        if len(set(ranks)) < len(ranks) or r.have > r.want:
            out.append(f"{r.replica} counts ranks {ranks} of {r.want}")
    return out


def _nothing_twice(state: State) -> list[str]:
    """What we placed ourselves never meets another holder: no byte, whole GPU or port twice."""
    out = []
    held = holdings(state)
    for name, node in state.nodes.items():
        placed = [s for s in node.shards if s.origin == PLACED and s.holds]
        for shard in placed:
            ports = [p for o in node.shards if o.holds for p in (o.report.port,) if p]
            if shard.report.port and ports.count(shard.report.port) > 1:
                out.append(f"port {shard.report.port} of {name} is given out twice")
            for uuid in shard.report.gpus:
                there = held[name].gpus[uuid]
                if there.whole and len(there.by) > 1:
                    out.append(f"GPU {uuid} of {name} is held whole and shared: {there.by}")
    return out


def plan_violations(state: State, plan: Plan) -> list[str]:
    """While settling nothing may be started or disturbed (A46)."""
    if not state.settling:
        return []
    return [
        f"{type(a).__name__} while settling: {a.why}"
        for a in plan.actions
        if isinstance(a, StartReplica) or getattr(a, "disturbs", False)
    ]
