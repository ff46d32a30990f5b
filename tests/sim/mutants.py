"""Cores with one law taken out each: what the simulator must find, else it watches nothing."""

from __future__ import annotations

from typing import Any, NamedTuple

from msgspec.structs import replace

from llmgw.core.adopt.survey import Survey, survey
from llmgw.core.reconcile.decide import decide
from llmgw.core.reconcile.fresh import Memory, started
from llmgw.core.reconcile.observe import observe
from llmgw.core.route import table
from llmgw.core.supervise import supervise
from llmgw.core.types import node as n
from llmgw.core.types.catalog import Catalog
from llmgw.core.types.messages import LIVE, TERMINAL
from llmgw.core.types.plan import DrainReplica, Plan
from llmgw.core.types.routes import RouteReplica, RouteTable
from llmgw.core.types.state import (
    PLACED,
    DrainBegun,
    Event,
    Node,
    NodeRegistered,
    Shard,
    State,
    Tick,
)
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


# ---------------------------------------------------------------- identity, and one step


def known_by_name(state: State) -> Survey:
    """Shards of one replica's name are one replica, whatever their incarnations (A27, A28, F75)."""
    first: dict[tuple[str, str], str] = {}

    def named(shard: Shard) -> Shard:
        r = shard.report
        if not shard.holds:
            return shard
        incarnation = first.setdefault((r.model, r.replica), r.incarnation)
        return replace(shard, report=replace(r, incarnation=incarnation))

    nodes = {
        name: replace(node, shards=tuple(map(named, node.shards)))
        for name, node in state.nodes.items()
    }
    return survey(replace(state, nodes=nodes))


def liveness_first(state: State, event: Event, now: float) -> State:
    """What is not up in a registration is not recognised, and so let go (A28)."""
    if isinstance(event, NodeRegistered):
        up = tuple(s for s in event.report.shards if s.state in LIVE | TERMINAL)
        event = NodeRegistered(replace(event.report, shards=up))
    return observe(state, event, now)


def unknown_is_different(state: State, event: Event, now: float) -> State:
    """A fingerprint that an older agent does not tell is taken for another one (A18)."""
    if isinstance(event, NodeRegistered):
        shards = tuple(
            s if s.fingerprint or s.state == "unknown" else replace(s, fingerprint="1:untold")
            for s in event.report.shards
        )
        event = NodeRegistered(replace(event.report, shards=shards))
    return observe(state, event, now)


def adopted_then_forgotten(state: State, event: Event, now: float) -> State:
    """Forgetting is a second step: what was placed or reported after the first is forgotten with the rest (A8)."""
    after = observe(state, event, now)
    if isinstance(event, NodeRegistered):
        node = after.nodes[event.report.node]
        listed = {s.key for s in node.shards if not s.missing}
        shards = tuple(replace(s, missing=False) for s in node.shards)
        report = replace(node.report, extra={"listed": listed, "until_s": now + 1.0})
        return _with(after, replace(node, report=report, shards=shards))
    if isinstance(event, Tick):
        for node in after.nodes.values():
            if node.report.extra.get("until_s", now) < now:
                after = _with(after, _forgotten(node))
    return after


def _forgotten(node: Node) -> Node:
    listed = node.report.extra["listed"]
    shards = tuple(replace(s, missing=s.missing or s.key not in listed) for s in node.shards)
    return replace(node, report=replace(node.report, extra={}), shards=shards)


def _with(state: State, node: Node) -> State:
    return replace(state, nodes=state.nodes | {node.report.node: node})


def a_pid_is_enough(state: n.AgentState, event: n.Event, now: float) -> Stepped:
    """Whoever has the pid of an engine is taken for it (F38)."""
    if isinstance(event, n.Identified) and event.leader == "other":
        event = replace(event, leader="same")
    return supervise(state, event, now)


# ---------------------------------------------------------------- what is held, and held back


def ending_holds_nothing(state: State, now: float, found: Survey) -> Plan:
    """What is being stopped is as good as gone: its GPU and port are given out again (A43)."""

    def over(shard: Shard) -> Shard:
        leaving = shard.report.desired == "stopped" or shard.report.state == "stopping"
        return replace(shard, missing=True) if leaving else shard

    nodes = {
        name: replace(node, shards=tuple(map(over, node.shards)))
        for name, node in state.nodes.items()
    }
    return decide(replace(state, nodes=nodes), now, found)


def renewed_on_merge(state: State, event: Event, now: float) -> State:
    """Each registration gives what it reports a whole idle timeout again (A23)."""
    after = observe(state, event, now)
    if not isinstance(event, NodeRegistered):
        return after
    return replace(after, wanted_s=dict.fromkeys(after.wanted_s, now))


def nobody_asks(state: State, now: float, found: Survey) -> Plan:
    """Any number of running engines is ended in one pass that nobody asked for (A49)."""
    everybody = frozenset(r.incarnation for r in found.replicas)
    return decide(replace(state, confirmed=everybody), now, found)


def deaf_to_the_operator(state: State, now: float, found: Survey) -> Plan:
    """What is paused, or was to wait for a confirmation, is carried out (A48, A56)."""
    return decide(replace(state, paused="", withheld=""), now, found)


def restarts_alone(state: n.AgentState, event: n.Event, now: float) -> Stepped:
    """After its own restart an agent starts dead engines again before any control is heard (F36)."""
    return supervise(replace(state, control_heard=True), event, now)


def whole_table_while_settling(state: State, found: Survey, version: int) -> RouteTable:
    """A control that has not heard everybody yet takes the other routes away (A50, F19)."""
    return replace(table(state, found, version), partial=False)


def patient_for_ever(state: State, now: float, found: Survey) -> Plan:
    """What hangs is left alone (F64)."""
    plan = decide(state, now, found)
    kept = (a for a in plan.actions if not isinstance(a, DrainReplica) or a.reason != "hung")
    return replace(plan, actions=tuple(kept))


def impatient(state: State, now: float, found: Survey) -> Plan:
    """A failed probe is enough, also of one that serves (F64)."""
    ill = {
        s.incarnation
        for node in state.nodes.values()
        for s in node.shards
        if s.unhealthy_s is not None
    }
    rows = tuple(
        replace(r, members=tuple(_long_ill(s) for s in r.members)) if r.incarnation in ill else r
        for r in found.replicas
    )
    gateways = {k: replace(g, answered_s={}) for k, g in state.gateways.items()}
    return decide(replace(state, gateways=gateways), now, replace(found, replicas=rows))


def _long_ill(shard: Shard) -> Shard:
    return shard if shard.unhealthy_s is None else replace(shard, unhealthy_s=-1e6)


def undrained(catalog: Catalog, memory: Memory, **k: Any) -> State:
    """What an operator drained is forgotten with the control he told (design.md 1)."""
    return started(catalog, replace(memory, cordoned={}), **k)


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
    "known by name": Mutant(
        Core(survey=known_by_name),
        ("the picture is whole", "no engine restarted needlessly"),
    ),
    "liveness first": Mutant(
        Core(observe=liveness_first),
        ("every running engine is owned, stopping or quarantined", "nothing is started twice"),
    ),
    "adopted, then forgotten": Mutant(
        Core(observe=adopted_then_forgotten),
        ("every running engine is owned, stopping or quarantined", "nothing is started twice"),
    ),
    "a pid is enough": Mutant(
        Core(supervise=a_pid_is_enough),
        ("routes only to live owned endpoints", "at rest the fleet is what the catalog wants"),
    ),
    "ending holds nothing": Mutant(Core(decide=ending_holds_nothing), ("the picture is whole",)),
    "unknown is different": Mutant(
        Core(observe=unknown_is_different), ("no engine restarted needlessly",)
    ),
    "renewed on merge": Mutant(
        Core(observe=renewed_on_merge), ("what is idle goes to sleep in time",)
    ),
    "nobody asks": Mutant(
        Core(decide=nobody_asks), ("no more ends in one pass than the guard allows",)
    ),
    "deaf to the operator": Mutant(
        Core(decide=deaf_to_the_operator), ("what is withheld is not carried out",)
    ),
    "patient for ever": Mutant(Core(decide=patient_for_ever), ("what hangs is given up in time",)),
    "impatient": Mutant(Core(decide=impatient), ("no engine restarted needlessly",)),
    "undrained": Mutant(Core(started=undrained), ("nothing is started on what is drained",)),
    "restarts alone": Mutant(
        Core(supervise=restarts_alone), ("nothing dead is restarted before control is heard",)
    ),
    "whole table while settling": Mutant(
        Core(table=whole_table_while_settling), ("a restart takes no route away",)
    ),
}
