"""Was it needed? A start and an end of an engine, judged by the truth and the catalog when they are ordered."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import TYPE_CHECKING

from msgspec import Struct

from llmgw.core.types.catalog import Model
from llmgw.core.types.messages import TERMINAL, ShardReport, Start
from llmgw.core.types.plan import DrainReplica, RollReplica, StopReplica
from tests.sim import older
from tests.sim.claims import Claim, claim
from tests.sim.world import Engine, names

if TYPE_CHECKING:
    from tests.sim.controls import Control

#: What a gateway has seen may take so long to reach control: its posts every few seconds, and a late message.
DEMAND_LAG_S = 14.0
#: F64: the least that an engine has, from its first failed probe, to get well in.
HUNG_S = 60.0
#: More than so many that wait for each of its replicas may have another one started.
QUEUE = 4
#: From coming up until control can know of it, at most: probes that are slow, and a message.
SEEN_S = 6.0
#: What happens on a node is told, or its silence noticed, so long after.
TOLD_S = 25.0


class Order(Struct, frozen=True, kw_only=True):
    """Who is to end, and why; `needless` says why it need not."""

    reason: str
    why: str
    at_s: float
    drain_timeout_s: float
    needless: str = ""


def alive(control: Control, model: str) -> Iterator[Start]:
    """Every shard anywhere that somebody means to run for the model: from the agents' books, and from what is there.

    Not what control drains, nor what its agent told it is on its way out or has ended: a journal may be behind (a full
    disk, then a kill), or lost. A group of which one rank is on its way out, or gone, is over (A34).
    """
    picture = control.picture
    shards = (x for node in picture.nodes.values() for x in node.shards)
    over = {*picture.draining, *control.heard.stopped}
    over |= {x.incarnation for x in shards if _leaving(x.report)}
    found: list[Start] = []
    for agent in control.sim.agents.values():
        there = {e.key: (e.start, e.start.weights) for e in agent.host.live()}
        for record in agent.records.values():
            start, _ = there.get(record.key, (record.start, ""))
            there[record.key] = (start, record.artefact)
            if record.ended or record.desired != "running" or record.state == "stopping":
                del there[record.key]
                over.add(record.start.incarnation)
        for known in there.values():
            start, artefact = older.start(agent.version, *known)
            claims = claim(picture.catalog, start, agent.facts.node, artefact)
            if claims is not None and claims[0].name == model:
                found.append(start)
    ranks = Counter(start.incarnation for start in found)
    for start in found:
        if ranks[start.incarnation] >= start.world_size and not over & names(start):
            yield start


def _leaving(report: ShardReport) -> bool:
    return report.desired != "running" or report.state in TERMINAL


def why_start(control: Control, start: Start, *, roll: bool) -> str:
    """Why this start is one too many, or ""."""
    state = control.picture
    model = state.catalog.models[start.model]
    # What no agent and no inventory has told this process is no reproach to it.
    known = (x for x in alive(control, start.model) if x.incarnation in control.heard.incarnations)
    # Copies of one replica id count once: one of them goes (A37, A38).
    away = _must_leave(control) | _lost_ones(control, model) | _sleepers(control)
    there = {x.replica: x for x in known if x.incarnation not in away}
    if roll:
        today = {f for p in model.profiles for f in p.fingerprints.values()}
        died = any(x.fingerprint not in today for x in _just_died(control, model))
        # Its agent may have begun to end it, and a report from before that be all that control has heard. What control
        # itself ends, or was told is ending, it may not roll as well.
        ending = {*state.draining, *control.heard.stopped}
        held = (x for node in state.nodes.values() for x in node.shards if x.holds)
        shards = (x for x in held if x.incarnation not in ending)
        told = (x.report for x in shards if state.catalog.resolve(x.report.model) is model)
        died = died or any(x.fingerprint not in today and x.desired == "running" for x in told)
        drifted = died or any(_drifted(model, x) for x in there.values())
        return "" if drifted else f"a roll, and nothing of {sorted(there)} has drifted"
    waiting = sum(g.demand.waiting.get(model.name, 0) for g in state.gateways.values())
    wanted = model.scaling.min or (1 if waiting or model.name in state.woken_s else 0)
    if there and waiting > QUEUE * len(there):
        wanted = max(wanted, min(len(there) + 1, model.scaling.max))
    if len(there) < wanted:
        return ""
    return f"{wanted} wanted, {sorted(there)} run or are on their way"


def _sleepers(control: Control) -> set[str]:
    """They serve nobody; one that cannot wake where it lies goes for the one that is started (`reconcile.nap`)."""
    everywhere = (e for h in control.sim.hosts.values() for e in h.live())
    return {e.key[1] for e in everywhere if e.sleeping}


def _must_leave(control: Control) -> set[str]:
    """Engines on what is drained as far as this control knows: they are replaced before they go."""
    cordoned, sim = control.picture.cordoned, control.sim
    starts = [(k, r.start) for k, a in sim.agents.items() for r in a.records.values()]
    starts += [(k, e.start) for k, h in sim.hosts.items() for e in h.live()]
    return {
        start.incarnation
        for name, start in starts
        if (name, "") in cordoned or any((name, gpu) in cordoned for gpu in start.gpus)
    }


def _lost_ones(control: Control, model: Model) -> set[str]:
    """Engines of the model on nodes that have been silent for its `lost_after` (F61)."""
    state, after_s = control.picture, model.lost_after_s
    if after_s is None:
        return set()
    silent = (n for n in state.nodes.values() if not n.connected)
    since = ((n, n.lost_s if n.lost_s is not None else state.settled_s) for n in silent)
    gone = [n for n, s in since if s is not None and control.now_s - s >= after_s]
    return {x.incarnation for n in gone for x in n.shards}


def _just_died(control: Control, model: Model) -> list[ShardReport]:
    """What ended so short a time ago that nobody can have told control: it still believes in it."""
    now, died_s, agents = control.sim.clock.now, control.sim.died_s, control.sim.agents
    return [
        x.report
        for name, node in control.picture.nodes.items()
        for x in node.shards
        if x.holds
        and x.report.model in (model.name, *model.aliases)
        and x.incarnation in died_s
        and now - max(died_s[x.incarnation], agents[name].awake_s) < TOLD_S
    ]


def _drifted(model: Model, start: Start) -> bool:
    profile = model.profile(start.profile)
    return profile is not None and profile.fingerprint_on("") != start.fingerprint


def why_stop(
    control: Control,
    action: StopReplica | DrainReplica | RollReplica,
    reason: str,
) -> str:
    """Why this end is not needed, or ""."""
    engines = [
        e for h in control.sim.hosts.values() for e in h.live() if e.is_of(action.incarnation)
    ]
    if not engines:
        return ""
    judges = {
        "idle": _idle,
        "evict": _evict,
        "drift": _drift,
        "model_removed": _unclaimed,
        "profile_removed": _unclaimed,
        "artefact_mismatch": _unclaimed,
        "duplicate_replica": _duplicate,
        "short_after_window": _short,
        "not_running": _broken,
        "node_silent": _short,
        "duplicate_rank": _second,
        "hung": _hung,
    }
    if reason in ("operator", "cordon"):
        people = control.sim.people
        # Of a group also what has died there and nobody has told yet, and what is not there yet: it leaves as one.
        places = {(e.host, e.start.gpus) for e in engines}
        places |= {(x.node, x.report.gpus) for x in action.shards}
        asked = any(people.may_leave(*place) for place in places)
        return "" if asked or action.incarnation in people.stopped else "no operator asked for it"
    if reason == "port_conflict":
        alone = [_port(control, e) for e in engines]
        return "" if not all(alone) else alone[0]
    judged = judges.get(reason)
    if judged is None:
        return "" if reason in ("ending", "draining") else f"for {reason}?"
    return judged(control, engines[0])


def _idle(control: Control, engine: Engine) -> str:
    sim, now = control.sim, control.now_s
    model = control.picture.catalog.resolve(engine.start.model)
    if engine.sleeping:
        return ""  # it serves nobody, and cannot wake where it lies
    if model is None or not model.on_demand or model.scaling.idle_timeout_s is None:
        return f"{engine.start.model} is not on demand"
    timeout = model.scaling.idle_timeout_s
    replica = engine.start.replica
    heard = [g for g in sim.gateways if g.up and not sim.judge.forgotten(g)]
    used = control.heard.used_s.get(replica, 0.0)
    old = [r for g in heard for r in g.on(engine) if sim.clock.now - r.began_s > DEMAND_LAG_S]
    if old:
        return f"{len(old)} requests run on it"
    if now - used < timeout - DEMAND_LAG_S:
        return f"used {now - used:.0f} s ago, idle_timeout is {timeout:.0f} s"
    if now - control.started_s < timeout:
        return f"this control adopted it less than {now - control.started_s:.0f} s ago (A22)"
    return ""


def _evict(control: Control, engine: Engine) -> str:
    """A63, A64: never what loads, is pinned or has just come up; what serves only once others have waited for long."""
    sim, now = control.sim, control.now_s
    model = control.picture.catalog.resolve(engine.start.model)
    if model is None or not model.on_demand or model.scaling.idle_timeout_s is None:
        return f"{engine.start.model} is not on demand, or pinned"
    came_up_s = engine.born_s + engine.manners.load_s
    up_s = sim.clock.now - came_up_s
    if up_s < 0:
        return "it loads"
    if up_s < model.scaling.min_up_s - SEEN_S and now - control.started_s > up_s + TOLD_S:
        return f"it came up {up_s:.0f} s ago, min_up is {model.scaling.min_up_s:g} s"
    heard = [g for g in sim.gateways if g.up and not sim.judge.forgotten(g)]
    old = [r for g in heard for r in g.on(engine) if sim.clock.now - r.began_s > DEMAND_LAG_S]
    asked = control.heard.asked_s.items()
    waited_s = max((now - at for m, at in asked if m != model.name), default=0.0)
    if old and waited_s < model.scaling.yield_after_s:
        return f"{len(old)} requests run on it, and nobody has waited longer than {waited_s:.0f} s"
    return ""


def _claim(control: Control, engine: Engine) -> Claim | None:
    agent = control.sim.agents[engine.host]
    record = agent.records.get(engine.key)
    artefact = record.artefact if record is not None else engine.start.weights
    start, artefact = older.start(agent.version, engine.start, artefact)
    return claim(control.picture.catalog, start, engine.host, artefact)


def _drift(control: Control, engine: Engine) -> str:
    found = _claim(control, engine)
    if found is None:
        return f"{engine.start.model} has no such profile"
    same = found[1].fingerprint_on(engine.host) == engine.start.fingerprint
    return f"its fingerprint is today's, {engine.start.fingerprint}" if same else ""


def _unclaimed(control: Control, engine: Engine) -> str:
    found = _claim(control, engine)
    return "" if found is None else f"{engine.start.model} is {found[0].name}'s"


def _duplicate(control: Control, engine: Engine) -> str:
    """More than `max`, or one id twice; and another of them serves."""
    model = control.picture.catalog.resolve(engine.start.model)
    if model is None:
        return "its model is gone"
    others = {x.incarnation: x.replica for x in alive(control, model.name)}
    others |= {x.incarnation: x.replica for x in _just_died(control, model)}
    others.pop(engine.key[1], None)
    twins = [replica for replica in others.values() if replica == engine.start.replica]
    if len(others) + 1 <= model.scaling.max and not twins and not _drifted(model, engine.start):
        return f"{len(others)} others run, max is {model.scaling.max}"
    return "" if others else "nothing else runs"


def _second(control: Control, engine: Engine) -> str:
    """Of one incarnation and rank, and another of it is there (A27): a name is not enough."""
    start = engine.start
    known = (x for node in control.picture.nodes.values() for x in node.shards if x.holds)
    same = [x for x in known if x.incarnation in names(start) and x.rank == start.rank]
    beyond = start.rank >= start.world_size
    return "" if beyond or len(same) > 1 else f"it is the only rank {start.rank} of its incarnation"


def _short(control: Control, engine: Engine) -> str:
    """Every rank runs on a node that is there for this control."""
    nodes = control.picture.nodes
    there = [h for k, h in control.sim.hosts.items() if k in nodes and nodes[k].settled]
    ranks = {e.start.rank for h in there for e in h.live() if e.key[1] == engine.key[1]}
    silent = [k for k, node in nodes.items() if not node.connected]
    want = engine.start.world_size
    return "" if len(ranks) < want or silent else f"all {want} ranks run"


def _broken(control: Control, engine: Engine) -> str:
    """A group, and one of its ranks has ended, or is being ended for it failed (A34): whatever was told of it."""
    records = [r for a in control.sim.agents.values() for r in a.records.values()]
    failing = {r.key for r in records if r.ending == "failed"}
    ranks = {
        e.start.rank
        for h in control.sim.hosts.values()
        for e in h.live()
        if e.key[1] == engine.key[1] and e.leader and e.key not in failing
    }
    want = engine.start.world_size
    return "" if len(ranks) < want else f"all {want} ranks run"


def _hung(control: Control, engine: Engine) -> str:
    """F64: some rank of it has answered no probe for as long as it may, and no client has had anything from it."""
    sim, now = control.sim, control.sim.clock.now
    group = [e for h in sim.hosts.values() for e in h.live() if e.key[1] == engine.key[1]]
    well = [e for e in group if e.silent_s is None and now - e.well_s > TOLD_S + DEMAND_LAG_S]
    for_s = max((now - e.silent_s for e in group if e.silent_s is not None), default=0.0)
    if len(well) == len(group):
        return "all of it is well"
    if for_s and for_s < HUNG_S:
        return f"it has been silent for {for_s:.0f} s"
    heard = [g for g in sim.gateways if g.up and not sim.judge.forgotten(g)]
    served_s = [now - g.answered_s.get(engine.start.replica, -1e6) for g in heard]
    if served_s and min(served_s) < HUNG_S - DEMAND_LAG_S:
        return f"a client had something from it {min(served_s):.0f} s ago"
    return ""


def _port(control: Control, engine: Engine) -> str:
    there = control.sim.hosts[engine.host].live()
    same = [e for e in there if e.start.port == engine.start.port]
    return "" if len(same) > 1 else f"it alone has port {engine.start.port}"
