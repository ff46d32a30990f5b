"""An agent of the model: the real `supervise` and a box whose engines start and end at once.

Modelled here: an engine that is spawned runs and loads for ever, one that gets a TERM is gone at once; the journal is
what the records say. What the laws ask about is noted as it happens. May not decide.
"""

from __future__ import annotations

from collections import deque

from msgspec.structs import replace

from llmgw.core.supervise import initial_state, next_due, supervise, unidentified
from llmgw.core.supervise.fence import REIGN_S
from llmgw.core.types import node as n
from llmgw.core.types.messages import Capacity, Gpu, SendReport
from llmgw.core.types.record import Key
from tests.model.rules import Rules
from tests.model.values import Agt, Link, Orders, box, put

NOW = 1000.0
GIB = 1 << 30
#: By which an agent says that this control is not to be obeyed.
FENCE = frozenset({"lower_epoch", "other_leader", "two_leaders", "other_session"})


def new(node: str, controls: int) -> Agt:
    capacity = Capacity(cpu_cores=16, host_memory_bytes=64 * GIB)
    facts = n.NodeFacts(node=node, node_id=f"id-{node}", boot_id="boot", capacity=capacity)
    agent = Agt(node, box(initial_state(facts)), (Link(),) * controls)
    card = Gpu(uuid=f"{node}-0", memory_bytes=24 * GIB)
    return fed(Rules(), agent, n.GpusSeen((card,)))


def restarted(rules: Rules, agent: Agt) -> Agt:
    """Another process with the same journal: its links and what it had not told yet are gone."""
    old = agent.core.value
    fresh = initial_state(old.facts, old.records.values(), old.token)
    agent = agent._replace(core=box(fresh), links=(Link(),) * len(agent.links))
    agent = fed(rules, agent, n.GpusSeen(old.gpus))
    for record in unidentified(fresh):
        there = record.key in agent.alive
        seen = n.Identified(key=record.key, leader="same" if there else "absent")
        agent = fed(rules, agent, seen)
    return agent


def ordered(rules: Rules, agent: Agt, orders: Orders, leases: tuple[str, ...]) -> Agt:
    """What a poll brought, as a link takes it: news of who leads, then each command that is new in its session."""
    to, link = orders.to, agent.links[orders.to]
    mine = link.number == orders.number
    if mine and (link.leader, link.epoch) != (orders.leader, orders.epoch):
        link = link._replace(leader=orders.leader, epoch=orders.epoch)
        agent = agent._replace(links=put(agent.links, to, link))
        agent = fed(rules, agent, _opened(to, link, leases), leases)
    for seq, boxed in orders.commands:
        if mine and seq <= agent.links[to].seq:
            continue
        command = replace(
            boxed.value,
            seq=seq,
            session=_session(orders.number),
            epoch=orders.epoch if isinstance(boxed.value, SendReport) else orders.under,
            leader_uuid=orders.leader_uuid,
        )
        event = n.CommandReceived(command=command, control=_url(to))
        after = _judged(agent, fed(rules, agent, event, leases), event, mine=mine)
        agent = after if len(set(leases)) == 1 else _of_files(agent, after, to)
        if mine:
            link = agent.links[to]._replace(seq=seq)
            agent = agent._replace(links=put(agent.links, to, link))
    return agent


def opened(rules: Rules, agent: Agt, to: int, link: Link, leases: tuple[str, ...]) -> Agt:
    agent = fed(rules, agent, _opened(to, link, leases), leases)
    return agent._replace(links=put(agent.links, to, link))


def closed(rules: Rules, agent: Agt, to: int, leases: tuple[str, ...]) -> Agt:
    """Before a snapshot: nothing of that control is obeyed from here on, and a report tells it all (A42)."""
    agent = fed(rules, agent, n.SessionLost(_url(to)), leases)
    return agent._replace(links=put(agent.links, to, Link(refused=agent.links[to].refused)))


def a_minute_older(agent: Agt) -> Agt:
    """As if the time of a reign had passed since the control that it obeys was heard last."""
    state = agent.core.value
    heard_s = None if state.obeyed_s is None else NOW - REIGN_S
    return agent._replace(core=box(replace(state, obeyed_s=heard_s)))


def fed(rules: Rules, agent: Agt, event: n.Event, leases: tuple[str, ...] = ()) -> Agt:
    """One event and all that follows at once; what takes time to end has ended."""
    state = replace(agent.core.value, sessions=_sessions(agent, leases))
    alive, links, now, high = set(agent.alive), list(agent.links), NOW, agent.high
    waiting = deque([event])
    while waiting or any(r.ending and not r.ended for r in state.records.values()):
        if not waiting:
            now = max(now + 0.01, next_due(state))
            waiting.append(n.Tick())
        told = waiting.popleft()
        act = rules.supervise if told is event else supervise
        state, effects = act(state, told, now)
        for effect in effects:
            answer = _on_processes(effect, alive)
            if answer is not None:
                waiting.append(answer)
            _told(effect, links)
            if isinstance(effect, n.StoreToken):
                high = max(high, effect.token.epoch)
    return agent._replace(
        core=box(replace(state, sessions={}, records=dict(sorted(state.records.items())))),
        links=tuple(links),
        alive=frozenset(alive),
        high=high,
    )


def _on_processes(effect: n.Effect, alive: set[Key]) -> n.Event | None:
    if not isinstance(effect, n.Spawn | n.Signal | n.Look | n.Measure):
        return None
    key, attempt = effect.record.key, effect.record.attempt
    if isinstance(effect, n.Spawn):
        alive.add(key)
        return n.Spawned(key=key, attempt=attempt, pid=_pid(key), start_ticks=1)
    if isinstance(effect, n.Look):
        left = (_pid(key),) if key in alive else ()
        return n.TreeSeen(key=key, attempt=attempt, alive=left)
    if isinstance(effect, n.Measure):
        return n.MemorySeen(key=key, attempt=attempt, used_bytes=0)
    if key not in alive:
        return None
    alive.discard(key)
    return n.Exited(key=key, attempt=attempt, code=0)


def _told(effect: n.Effect, links: list[Link]) -> None:
    match effect:
        case n.DeleteRecord():
            links[:] = [k._replace(gone=k.gone | {effect.key}) for k in links]
        case n.Changed():
            links[:] = [k._replace(changed=k.changed | {*effect.keys}) for k in links]
        case n.Register():
            at = int(effect.control)
            links[at] = links[at]._replace(again=True)
        case n.Refuse():
            at, no = int(effect.control), box(replace(effect.refusal, seq=0))
            links[at] = links[at]._replace(refused=(*links[at].refused, no))
        case _:
            pass


def _judged(before: Agt, after: Agt, event: n.CommandReceived, *, mine: bool) -> Agt:
    """What the laws say of a command that was not refused as of one who may not command."""
    to, command = int(event.control), event.command
    link, had = after.links[to], len(before.links[to].refused)
    reasons = {no.value.reason for no in link.refused[had:]}
    if "other_session" in reasons:  # nobody would be told on the wire: a link drops such a command
        return after._replace(links=put(after.links, to, link._replace(refused=link.refused[:had])))
    if reasons & FENCE:
        return after
    epoch, leader = command.epoch, command.leader_uuid
    name = f"{after.node} obeys {type(command).__name__} of {leader}, epoch {epoch}"
    wrong = ""
    others = sorted(u for e, u in before.obeyed if e == epoch and u != leader)
    if epoch < before.high:
        wrong = f"no effect of a lower epoch: {name}, after it stored epoch {before.high}"
    elif others:
        wrong = f"one leader an epoch: {name}, after {others[0]} with the same epoch"
    elif not mine:
        wrong = f"no effect of an old session: {name}, of a session that is over"
    high = max(before.high, epoch)
    obeyed = frozenset((e, u) for e, u in (*before.obeyed, (epoch, leader)) if e == high)
    return after._replace(obeyed=obeyed, wrong=after.wrong or wrong)


def _of_files(before: Agt, after: Agt, to: int) -> Agt:
    """Two files know nothing of each other's epochs: who was obeyed first is, while it is there (F31)."""
    if after.obeyed == before.obeyed:
        return after
    first = before.chief
    if first not in (-1, to) and before.links[first].number and before.links[first].leader:
        wrong = f"one of two files' leaders is obeyed: {after.node} obeys another while the first is there"
        after = after._replace(wrong=after.wrong or wrong)
    return after._replace(chief=to)


def _sessions(agent: Agt, leases: tuple[str, ...]) -> dict[str, n.Session]:
    return {
        _url(to): _opened(to, link, leases).session
        for to, link in enumerate(agent.links)
        if link.number and leases
    }


def _opened(to: int, link: Link, leases: tuple[str, ...]) -> n.SessionOpened:
    session = n.Session(
        session=_session(link.number),
        epoch=link.epoch,
        leader_uuid=link.leader_uuid,
        leader=link.leader,
        lease=leases[to],
    )
    return n.SessionOpened(control=_url(to), session=session)


def _url(to: int) -> str:
    return str(to)


def _session(number: int) -> str:
    return f"s{number}"


def _pid(key: Key) -> int:
    return 100 + sum(map(ord, key[1]))
