"""A control of the model: the real `started`, `observe`, `survey`, `decide`, `Performer` and memory of the fleet.

Modelled here: its turn, the lease's answer, the queue of a session, and ids that are the same in every run. May not
know what an agent thinks.
"""

from __future__ import annotations

from typing import NamedTuple

from msgspec.structs import replace
from typing_extensions import override

from llmgw.control.apply import Applied, Done, Performer
from llmgw.control.intent import Intent, merged
from llmgw.control.picture import memory_of
from llmgw.core.adopt.survey import survey
from llmgw.core.asleep import told
from llmgw.core.place import start_message
from llmgw.core.reconcile.decide import decide
from llmgw.core.reconcile.fresh import Memory, started
from llmgw.core.reconcile.observe import observe
from llmgw.core.types import state as s
from llmgw.core.types.catalog import Catalog, Model, Profile, Scaling
from llmgw.core.types.messages import (
    Command,
    ForgetShard,
    NodeReport,
    Refusal,
    SendReport,
    ShardReport,
    StopShard,
)
from llmgw.core.types.plan import RollReplica, StartReplica
from llmgw.wire import shards_digest
from tests.model.agent import GIB, NOW
from tests.model.rules import Rules
from tests.model.values import Ctl, Session, bare, box, put

#: One model, wanted once; two of it fit one card, so that nothing but the fence keeps a second one off.
PROFILE = Profile(
    name="p",
    command=("engine",),
    gpus=1,
    gpu_memory_bytes=8 * GIB,
    fingerprints={"default": "f"},
)
CATALOG = Catalog(models={"m": Model(name="m", profiles=(PROFILE,), scaling=Scaling(min=1, max=1))})
FENCED = frozenset({"lower_epoch", "other_leader"})


class Turn(NamedTuple):
    """A control after a turn, and the nodes that it decided something about."""

    control: Ctl
    about: frozenset[str] = frozenset()


def new(name: str, nodes: int) -> Ctl:
    """Stands by, and remembers nobody."""
    return _standing(name, nodes, Memory())


def ended(control: Ctl) -> Ctl:
    """Its process exits and is started again: it knows no more than its inventory, and which calls were before."""
    fresh = _standing(control.name, len(control.sessions), control.memory.value)
    return fresh._replace(latest=control.latest)


def _standing(name: str, nodes: int, memory: Memory) -> Ctl:
    return Ctl(name, box(_started(Memory())), (None,) * nodes, (0,) * nodes, box(memory))


def _started(memory: Memory) -> s.State:
    return started(CATALOG, memory, now=NOW, settle_timeout_s=1e9, keep_unknown=False)


# ---------------------------------------------------------------- leading


def leads(rules: Rules, control: Ctl, epoch: int, uuid: str, known: frozenset[str] | None) -> Turn:
    """The lease is its own now: what it remembers, and what it was told as a standby, is asked for anew."""
    warm = memory_of(control.state.value, 0.0)
    left = None if known is None else Intent(nodes=known)
    memory = warm if control.led else merged(control.memory.value, left, warm)
    state = replace(_started(memory), epoch=epoch, leader_uuid=uuid)
    sessions = (None,) * len(control.sessions) if control.led else control.sessions
    control = control._replace(state=box(state), sessions=sessions, leads=True, led=True)
    return turned(rules.promoted(control))


def rises(control: Ctl, epoch: int) -> Ctl:
    """As `Leads.fence`: the lease is still its own, an agent has seen an epoch that its own is not above."""
    return control._replace(
        state=box(replace(control.state.value, epoch=epoch, outdated=True, unheard=None))
    )


def quiet(control: Ctl) -> Turn:
    """No further node has registered for so long that it waits for none (A47)."""
    later = observe(control.state.value, s.Tick(), NOW + s.QUIET_S)
    return turned(control._replace(state=box(later)))


def turned(control: Ctl) -> Turn:
    """Passes until one changes nothing, as the loop's do after each fact; with no time between them."""
    about: frozenset[str] = frozenset()
    while True:
        before = control
        control, more = _pass(control)
        about |= more
        if control == before:
            return Turn(control, about)


def _pass(control: Ctl) -> tuple[Ctl, frozenset[str]]:
    state = observe(control.state.value, s.Tick(), NOW)
    found = survey(state)
    lacking = frozenset(v.shard.incarnation for v in found.verdicts if v.verdict == "forget")
    if not control.leads:
        state = observe(state, s.Announced(lacking), NOW) if lacking else state
        return control._replace(state=box(state)), frozenset()
    plan = decide(state, NOW, found)
    if control.rivals:
        applied = Applied(state, [(f"n{i}", SendReport()) for i in sorted(control.rivals)])
    else:
        sessions = control.sessions
        performer = Ours(lambda name: _fenced(sessions[int(name[1:])], state.epoch), 0.0)
        applied = performer.apply(state, plan, NOW)
    state = observe(applied.state, s.Announced(lacking), NOW) if lacking else applied.state
    control = control._replace(state=box(state), memory=box(memory_of(state, 0.0)))
    about = set()
    for name, command in applied.commands:
        control = sent(control, int(name[1:]), command)
        if not isinstance(command, ForgetShard | SendReport):
            about.add(name)
    for at, session in enumerate(control.sessions):
        if session is not None and session.told < state.epoch and not control.rivals:
            control = sent(control, at, SendReport())
    return control, frozenset(about)


def _fenced(session: Session | None, epoch: int) -> bool:
    return session is not None and session.told >= epoch


class Ours(Performer):
    """With ids that tell who had it started, and a port for each: an agent would refuse a second engine on one."""

    @override
    def _start(self, out: Applied, action: StartReplica | RollReplica, now: float) -> Done | None:
        if not all(self.reachable(spot.node) for spot in action.spots):
            return None
        state = out.state
        taken = [x.incarnation for node in state.nodes.values() for x in node.shards]
        count = 1 + sum(i.startswith(f"{state.leader_uuid}.") for i in taken)
        incarnation = f"{state.leader_uuid}.{count}"
        model = state.catalog.models[action.model]
        placement = (action.profile, action.spots)
        for node, start in start_message(state, model, placement, incarnation, incarnation):
            port = 18000 + 10 * int(state.leader_uuid[1:]) + count
            start = replace(start, port=port)  # noqa: PLW2901 - the one that is sent
            out.state = observe(out.state, s.Placed(node, start), now)
            out.commands.append((node, start))
        return Done(action, incarnation, incarnation)


# ---------------------------------------------------------------- what agents say


def registered(
    rules: Rules, control: Ctl, node: int, report: NodeReport, ids: tuple[str, int]
) -> Turn:
    """`ids`: the lease's kind, and the number of the call; it is not stale, and nobody outranks us by now."""
    lease, number = ids
    state = control.state.value
    taken = not (control.leads and rules.unfenced(state, lease, report))
    if taken:
        state = observe(state, s.NodeRegistered(bare(report)), NOW)
    session = Session(number, state.epoch if taken else 0)
    control = control._replace(
        state=box(state),
        sessions=put(control.sessions, node, session),
        latest=put(control.latest, node, number),
        seen=max(control.seen, report.epoch_seen),
        rivals=control.rivals - {node} if taken else control.rivals,
    )
    return turned(control)


class Told(NamedTuple):
    shards: tuple[ShardReport, ...]
    gone: tuple[tuple[str, str], ...]
    refused: tuple[Refusal, ...]
    all: tuple[ShardReport, ...]


def heard(control: Ctl, node: int, said: Told) -> tuple[Turn, bool]:
    """News of an agent, and whether the two pictures match afterwards."""
    change = s.ShardsChanged(f"n{node}", said.shards, said.gone, None, None, said.refused)
    rivals = {node} if any(x.reason == "two_leaders" for x in said.refused) else set()
    control = control._replace(
        state=box(observe(control.state.value, change, NOW)), rivals=control.rivals | rivals
    )
    match = alike(control, node, said.all) and not any(x.reason in FENCED for x in said.refused)
    return turned(control), match


def alike(control: Ctl, node: int, theirs: tuple[ShardReport, ...]) -> bool:
    there = control.state.value.nodes.get(f"n{node}")
    if there is None or not there.settled:
        return True
    ours = (told(x) for x in there.shards if not x.missing and x.origin != s.PLACED)
    return shards_digest(tuple(ours)) == shards_digest(theirs)


# ---------------------------------------------------------------- the queue of a session


def sent(control: Ctl, node: int, command: Command) -> Ctl:
    """Queued, unless the same was in this session: with no time passing nothing is repeated."""
    session = control.sessions[node]
    key = _key(command)
    if session is None or key in session.ordered:
        return control
    seq = session.seq + 1
    session = session._replace(
        seq=seq, queue=(*session.queue, (seq, box(command))), ordered=session.ordered | {key}
    )
    return control._replace(sessions=put(control.sessions, node, session))


def acknowledged(control: Ctl, node: int, seq: int) -> Ctl:
    session = control.sessions[node]
    assert session is not None
    queue = tuple(item for item in session.queue if item[0] > seq)
    return control._replace(sessions=put(control.sessions, node, session._replace(queue=queue)))


def stopped(control: Ctl) -> tuple[Ctl, int] | None:
    """An operator has its leader stop the engine that it knows of; another is started when that has ended."""
    if not control.leads:
        return None
    for name, node in sorted(control.state.value.nodes.items()):
        for shard in node.shards:
            if shard.holds and shard.origin == s.REPORTED and control.sessions[int(name[1:])]:
                order = StopShard(
                    shard=shard.report.shard,
                    incarnation=shard.report.incarnation,
                    reason="operator",
                )
                return sent(control, int(name[1:]), order), int(name[1:])
    return None


def _key(command: Command) -> tuple[str, ...]:
    kind = str(command.__struct_config__.tag)
    if isinstance(command, SendReport):
        return (kind,)
    return (kind, command.shard, command.incarnation)
