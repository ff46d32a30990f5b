"""Cores with one law taken out each: what the simulator must find, else it watches nothing."""

from __future__ import annotations

from typing import Any, NamedTuple

from msgspec.structs import replace

from llmgw.core.adopt.survey import Survey
from llmgw.core.reconcile.decide import decide
from llmgw.core.reconcile.fresh import started
from llmgw.core.reconcile.observe import observe
from llmgw.core.route import table
from llmgw.core.supervise import supervise
from llmgw.core.types import node as n
from llmgw.core.types.plan import Plan
from llmgw.core.types.routes import RouteReplica, RouteTable
from llmgw.core.types.state import PLACED, DrainBegun, Event, Node, Shard, State
from tests.sim.simulation import Core

Stepped = tuple[n.AgentState, tuple[n.Effect, ...]]


def _holds_nothing(shard: Shard) -> Shard:
    if shard.origin != PLACED:
        return shard
    return replace(shard, report=replace(shard.report, gpus=(), port=0, ports={}, state="ready"))


def in_flight_is_free(state: State, now: float, found: Survey) -> Plan:
    """What was placed and not reported yet holds nothing ("work in flight is held", design.md 2)."""
    nodes = {
        name: replace(node, shards=tuple(_holds_nothing(s) for s in node.shards))
        for name, node in state.nodes.items()
    }
    return decide(replace(state, nodes=nodes), now, found)


def no_settling(*args: Any, **kwargs: Any) -> State:
    """A control that starts to decide at once (A46)."""
    return replace(started(*args, **kwargs), settled_s=kwargs["now"])


def silence_is_death(state: State, event: Event, now: float) -> State:
    """A node that is not heard any more runs nothing (F61): its shards are dropped, its model started elsewhere."""
    after = observe(state, event, now)
    lost = {k for k, node in after.nodes.items() if not node.connected and node.lost_s is not None}
    nodes = {k: replace(node, shards=()) if k in lost else node for k, node in after.nodes.items()}
    return replace(after, nodes=nodes)


def gone_when_told(state: n.AgentState, event: n.Event, now: float) -> Stepped:
    """The end of the leader is taken for the end of the tree, unverified (F65)."""
    if isinstance(event, n.TreeSeen):
        event = replace(event, alive=(), doubtful=())
    return supervise(state, event, now)


def any_epoch(state: n.AgentState, event: n.Event, now: float) -> Stepped:
    """The agent obeys whoever has a session, of whatever epoch (F21)."""
    if isinstance(event, n.CommandReceived) and state.token is not None:
        command = event.command
        low = command.epoch < state.token.epoch or command.leader_uuid != state.token.leader_uuid
        state = replace(state, token=None) if low else state
    return supervise(state, event, now)


def unreadable_is_absent(state: n.AgentState, event: n.Event, now: float) -> Stepped:
    """What cannot be looked at is taken for gone (F45)."""
    if isinstance(event, n.Identified) and event.error:
        event = replace(event, error="", leader="absent", pid=None, others=(), doubtful=())
    return supervise(state, event, now)


def wanted_long_ago(state: State, event: Event, now: float) -> State:
    """An adopted on-demand model gets no idle timeout of its own (A22)."""
    after = observe(state, event, now)
    fresh = after.wanted_s.keys() - state.wanted_s.keys()
    quiet = {m for m in fresh if not any(g.demand.waiting.get(m) for g in after.gateways.values())}
    nodes = {k: _never_ready(node) for k, node in after.nodes.items()} if quiet else after.nodes
    wanted = after.wanted_s | dict.fromkeys(quiet, -1e6)
    return replace(after, wanted_s=wanted, nodes=nodes)


def _never_ready(node: Node) -> Node:
    return replace(node, shards=tuple(replace(s, ready_s=None) for s in node.shards))


def drains_end_at_once(state: State, event: Event, now: float) -> State:
    """A drained replica is stopped while requests run on it (A65)."""
    after = observe(state, event, now)
    if isinstance(event, DrainBegun) and event.incarnation in after.draining:
        begun = replace(after.draining[event.incarnation], since_s=-1e6)
        after = replace(after, draining=after.draining | {event.incarnation: begun})
    return after


def old_ones_stay_routed(state: State, found: Survey, version: int) -> RouteTable:
    """What has ended stays in the table: the endpoint of a replica is never taken out (A41)."""
    routes = table(state, found, version)
    models = dict(routes.models)
    for node in state.nodes.values():
        for shard in node.shards:
            r = shard.report
            if r.state == "failed" and r.endpoint and r.model in models:
                dead = RouteReplica(
                    replica=r.replica, endpoint=r.endpoint, incarnation=r.incarnation
                )
                there = models[r.model]
                models[r.model] = replace(there, replicas=(*there.replicas, dead))
    return replace(routes, models=models)


class Mutant(NamedTuple):
    core: Core
    #: any of these invariants is a right answer
    found_by: tuple[str, ...]


MUTANTS: dict[str, Mutant] = {
    "in flight is free": Mutant(Core(decide=in_flight_is_free), ("the picture is whole",)),
    "no settling": Mutant(
        Core(started=no_settling), ("nothing is started or disturbed while settling",)
    ),
    "silence is death": Mutant(
        Core(observe=silence_is_death),
        ("nothing is started twice", "every running engine is owned, stopping or quarantined"),
    ),
    "gone when told": Mutant(
        Core(supervise=gone_when_told),
        ("freed means no process", "one tree a shard", "no whole GPU twice"),
    ),
    "any epoch": Mutant(Core(supervise=any_epoch), ("no effect of a lower epoch",)),
    "unreadable is absent": Mutant(
        Core(supervise=unreadable_is_absent), ("freed means no process", "one tree a shard")
    ),
    "wanted long ago": Mutant(Core(observe=wanted_long_ago), ("no engine restarted needlessly",)),
    "drains end at once": Mutant(Core(observe=drains_end_at_once), ("no stream is cut",)),
    "old ones stay routed": Mutant(
        Core(table=old_ones_stay_routed), ("routes only to live owned endpoints",)
    ),
}
