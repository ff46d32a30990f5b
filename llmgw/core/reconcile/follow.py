"""A start that is ordered together with the stops that make its room: its agent keeps it back until they have ended.

One way less to wait for when two models that do not fit beside each other are swapped. It is placed as any other, so
what it asks for is held from now on. May not end anything, and looks only at what is being stopped already.
"""

from __future__ import annotations

from msgspec.structs import replace

from llmgw.core.asleep import not_to_be_woken, stuck
from llmgw.core.place import NoRoom, Placement, find
from llmgw.core.reconcile.scratch import Pass
from llmgw.core.types.catalog import Model
from llmgw.core.types.plan import Replica, StopReplica
from llmgw.core.types.record import STUCK
from llmgw.core.types.state import Shard

Keys = tuple[tuple[str, str], ...]


def following(p: Pass, model: Model) -> tuple[Placement, Keys] | None:
    """Where it goes once some that are being stopped there have ended, and which; None where that makes no room.

    Nor where one of its own that sleeps can wake then: that is sooner than a load.
    """
    going = p.fleet.once("being stopped", lambda: _being_stopped(p))
    answer = _without(p, model, going) if going and not _wakes(p, model, going) else None
    if answer is None:
        return None
    node = answer.spots[0].node
    mine = [r for r in going if any(s.node == node for s in r.members)]
    for r in tuple(mine):  # none that it need not wait for
        fewer = [o for o in mine if o is not r]
        other = _without(p, model, fewer) if fewer else None
        if other is not None and other.spots[0].node == node:
            mine = fewer
    # Not where it takes the end of others as well, behind the same breaker.
    answer = _without(p, model, mine)
    if answer is None or answer.spots[0].node != node:
        return None
    names = ", ".join(r.replica for r in mine)
    why = f"{answer.why}, once {names} {'has' if len(mine) == 1 else 'have'} ended"
    keys = tuple((s.report.shard, s.incarnation) for r in mine for s in r.members if s.node == node)
    return Placement(answer.profile, answer.spots, why), keys


def _being_stopped(p: Pass) -> list[Replica]:
    """Replicas all of whose shards are, by what their agents say or by what this pass orders for certain."""
    ordered = {
        a.incarnation
        for a in p.actions
        if isinstance(a, StopReplica) and a.drained and a.due_s <= 0
    }
    return [
        r
        for r in p.survey.replicas
        if r.members
        and (r.going or r.incarnation in ordered)
        and all(s.incarnation in ordered or _stops(s) for s in r.members)
        and all(_follows(p, s) for s in r.members)
    ]


def _stops(shard: Shard) -> bool:
    return shard.report.desired == "stopped" or shard.report.state == "stopping"


def _follows(p: Pass, shard: Shard) -> bool:
    """Its agent can be told, and the shard ends by itself."""
    node, report = p.state.nodes[shard.node], shard.report
    ends = report.state != "unknown" and STUCK not in (report.error or "")
    return node.usable and node.report.follows and bool(report.incarnation) and ends


def _wakes(p: Pass, model: Model, some: list[Replica]) -> bool:
    """Whether a sleeper of the model can wake where it lies once these have ended."""
    mine = [r for r in p.asleep.get(model.name, ()) if not stuck(p.state, model, r)]
    if not mine:
        return False
    fleet = p.fleet
    mark = fleet.mark()
    for r in some:
        fleet.free(r)
    then = replace(p.state, nodes=dict(fleet.nodes))
    able = any(not not_to_be_woken(then, fleet.held, r) for r in mine)
    fleet.reset(mark)
    return able


def _without(p: Pass, model: Model, some: list[Replica]) -> Placement | None:
    """Where it fits once these have ended, on one node, with ports that none of them has: theirs are let go last."""
    fleet = p.fleet
    mark = fleet.mark()
    names = {s.node for r in some for s in r.members}
    ports = {name: fleet.held[name].ports for name in names}
    for r in some:
        fleet.free(r)
    for name in names:
        fleet.hold(name, replace(fleet.held[name], ports=ports[name]))
    answer = find(fleet, model, words=False)
    fleet.reset(mark)
    if isinstance(answer, NoRoom) or len(answer.spots) > 1 or answer.spots[0].node not in names:
        return None
    return answer
