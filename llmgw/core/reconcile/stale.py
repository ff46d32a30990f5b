"""What is still on its way up by a profile that is not today's: ended at once, it would be rolled the moment it is up.

So a catalog that is taken back goes back at once: the new one that does not come up holds neither the model's place nor
its room until it is given up (A66). May not touch what has ever served.
"""

from __future__ import annotations

from llmgw.core.reconcile.ends import drained, stoppable
from llmgw.core.reconcile.scratch import Pass
from llmgw.core.types.catalog import Model
from llmgw.core.types.messages import STARTING
from llmgw.core.types.plan import Replica, StopReplica
from llmgw.core.types.state import Shard


def ended(p: Pass, model: Model) -> None:
    if model.on_change != "roll":
        return
    for r in p.kept.get(model.name, []):
        if r.drift and not r.held and all(map(_rising, r.members)):
            _end(p, r)


def _rising(shard: Shard) -> bool:
    return shard.report.state in STARTING and not shard.was_live


def _end(p: Pass, r: Replica) -> None:
    """One that its agent has only just found again may serve, which nobody can tell yet (F43): it is drained."""
    members = stoppable(r.members)
    why = f"{r.drift}; it is {r.members[0].report.state}, nobody is on it yet"
    if any(s.report.state == "starting" for s in members):
        p.actions.append(drained(r, members, "drift", why))
        return
    p.actions.append(
        StopReplica(
            replica=r.replica,
            incarnation=r.incarnation,
            model=r.model,
            profile=r.profile,
            shards=members,
            reason="drift",
            why=why,
        )
    )
