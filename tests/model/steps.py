"""What can happen next in a world: every step of every part, and every fault that is left.

A step is a sentence and the world after it. Progress is what happens by itself sooner or later; a fault need not
happen. Nothing paces them: a part that takes no step for long is one that is paused. The laws are looked at here, where
things happen; a world in which one is broken says so in `wrong`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from llmgw.core.supervise.report import node_report, shard_report
from tests.model import agent as agents
from tests.model import control as controls
from tests.model.rules import Rules
from tests.model.values import (
    Asks,
    Ctl,
    Faults,
    Link,
    Message,
    Orders,
    Says,
    World,
    bare,
    box,
    canonical,
    next_number,
)

#: What each control says of its lease: one etcd, one file on one host, a file of its own each.
LEASES = {
    "etcd": ("etcd", "etcd", "etcd"),
    "file": ("file:1", "file:1", "file:1"),
    "files": ("file:1", "file:2", "file:3"),
}


class Step(NamedTuple):
    said: str
    world: World
    fault: bool = False


class Model:
    """`lease`: one in etcd for all, one file's for all, or a file of its own for each control."""

    def __init__(self, lease: str, rules: Rules | None = None, count: int = 2) -> None:
        self.lease = lease
        self.leases = LEASES[lease][:count]
        own = lease == "files" or count == 1
        self.kind = "lone" if own and lease != "etcd" else lease
        self.rules = rules or Rules()
        #: a lone control has nobody to fence off, of two files each has its own node
        self.fenced = count > 1 and lease != "files"
        self._known: dict[Any, Any] = {}

    def start(self, nodes: int, faults: Faults) -> World:
        """Nobody leads yet, and every agent is about to register with every control."""
        all_of_them = tuple(controls.new(name, nodes) for name in "ABC"[: len(self.leases)])
        boxes = tuple(agents.new(f"n{i}", len(all_of_them)) for i in range(nodes))
        return World(all_of_them, boxes, faults=faults)

    def running(self, nodes: int, faults: Faults) -> World:
        """A leads, everybody has registered everywhere, the engine runs and all of it is told."""
        world = self.start(nodes, Faults())
        while (step := next(self.steps(world), None)) is not None:
            world = step.world
        return world._replace(faults=faults)

    def steps(self, world: World) -> Iterator[Step]:
        moves = [*self._leads(world), *self._talks(world), *self._arrives(world)]
        for found in (*(moves or self._waits(world)), *self._breaks(world)):
            yield found._replace(world=canonical(_judged(found.world)))

    def _once(self, f: Callable[..., Any], *args: Any) -> Any:
        """A function of the core is asked once for the same: the same situations of one part come in many worlds."""
        key = (f, *args)
        if key not in self._known:
            self._known[key] = f(*args)
        return self._known[key]

    # ------------------------------------------------ who leads

    def _leads(self, world: World) -> Iterator[Step]:
        for at, control in enumerate(world.controls):
            own = self.lease == "files"
            if not control.leads and (own or not world.holder):
                stored = control.memory.value.epoch if own else world.epoch
                epoch = self.rules.above(stored, control.seen)
                uuid = f"L{world.tenure + 1}"
                known = world.known if self.kind == "etcd" else None
                turn = self._once(controls.leads, self.rules, control, epoch, uuid, known)
                after = world._replace(holder=control.name, epoch=epoch, tenure=world.tenure + 1)
                yield Step(
                    f"{control.name} leads as {uuid}, epoch {epoch}", self._turned(after, at, turn)
                )
            if control.leads and not own and world.holder != control.name:
                yield Step(
                    f"{control.name} learns that it lost the lease, and ends", _ended(world, at)
                )

    def _turned(self, world: World, at: int, turn: controls.Turn) -> World:
        """Control `at` has had a turn: what it decided is judged, and left for the next leader."""
        control, state = turn.control, turn.control.state.value
        world = world.with_control(at, control)
        if world.holder == control.name and control.leads:
            world = world._replace(known=frozenset(state.nodes))
        for name in sorted(turn.about):
            agent = world.agents[int(name[1:])]
            # Of epoch 1 nobody led before, as far as anybody tells: there is nobody to fence off.
            if self.fenced and agent.high < _under(control, name) > 1:
                why = (
                    "nothing is decided before the fencing answer: "
                    f"{control.name} decides about {name} with epoch {_under(control, name)}, which stored {agent.high}"
                )
                world = world._replace(wrong=world.wrong or why)
        return world

    def _waits(self, world: World) -> Iterator[Step]:
        """What takes so long that it comes only where nothing else is under way: calls end well before."""
        for at, control in enumerate(world.controls):
            if control.leads and control.state.value.settling:
                turn = self._once(controls.quiet, control)
                yield Step(f"{control.name} hears of no other node", self._turned(world, at, turn))
        for node, agent in enumerate(world.agents):
            if world.faults.minutes:
                older = self._once(agents.a_minute_older, agent)
                after = _less(world, "minutes").with_agent(node, older)
                yield Step("a minute passes", after, fault=True)

    # ------------------------------------------------ agents and controls talk

    def _talks(self, world: World) -> Iterator[Step]:
        for node, agent in enumerate(world.agents):
            for to, link in enumerate(agent.links):
                control = world.controls[to]
                session = control.sessions[node]
                live = bool(link.number) and session is not None and session.number == link.number
                if not link.waits and (not live or link.again):
                    yield Step(
                        f"{agent.node} registers with {control.name}", self._asks(world, node, to)
                    )
                elif live:
                    yield from self._hands_out(world, node, to)
                    yield from self._tells(world, node, to)

    def _asks(self, world: World, node: int, to: int) -> World:
        number = next_number(world, node, to)
        agent = self._once(agents.closed, self.rules, world.agents[node], to, self.leases)
        report = self._once(_report, agent.core)
        world = world.with_agent(node, agent).with_link(node, to, waits=number)
        return world._replace(way=world.way | {Asks(node, to, number, report)})

    def _hands_out(self, world: World, node: int, to: int) -> Iterator[Step]:
        """A poll: what was heard leaves the queue; under the epoch of this moment, if it still thinks that it leads."""
        control, link = world.controls[to], world.agents[node].links[to]
        session, state = control.sessions[node], control.state.value
        assert session is not None
        if any(m[:3] == (node, to, link.number) for m in world.way if isinstance(m, Orders)):
            return
        new = tuple(x for x in session.queue if x[0] > link.seq) if control.leads else ()
        epoch = state.epoch or link.epoch
        if not new and (link.leader, link.epoch) == (control.leads, epoch):
            return
        orders = Orders(
            node,
            to,
            link.number,
            epoch,
            state.leader_uuid,
            control.leads,
            session.told or epoch,
            new,
        )
        world = world.with_control(to, controls.acknowledged(control, node, link.seq))
        what = ", ".join(_words(c.value) for _, c in new) or "that it leads"
        said = f"{control.name} tells n{node}: {what} (epoch {epoch}, on its way)"
        yield Step(said, world._replace(way=world.way | {orders}))

    def _tells(self, world: World, node: int, to: int) -> Iterator[Step]:
        agent, control = world.agents[node], world.controls[to]
        link = agent.links[to]
        if not link.tells and self._once(_alike, control, node, agent.core):
            return
        turn, match = self._once(_heard, control, node, agent.core, link)
        empty = {"changed": frozenset(), "gone": frozenset(), "refused": (), "again": not match}
        after = self._turned(world.with_link(node, to, **empty), to, turn)
        no = "".join(f", refused: {x.value.reason}" for x in link.refused)
        said = f"{agent.node} tells {control.name} its news{no}"
        yield Step(said + ("" if match else "; the pictures differ"), after)

    # ------------------------------------------------ what is on its way arrives

    def _arrives(self, world: World) -> Iterator[Step]:
        for message in sorted(world.way, key=_order):
            after = world._replace(way=world.way - {message})
            match message:
                case Asks():
                    yield self._registers(after, message)
                case Says():
                    yield self._registered(after, message)
                case Orders():
                    yield self._obeys(after, message)
                    if world.faults.repeats:
                        again = self._obeys(_less(world, "repeats"), message)
                        yield again._replace(
                            said=f"{again.said}, of which a copy comes later", fault=True
                        )

    def _registers(self, world: World, asks: Asks) -> Step:
        control, report = world.controls[asks.to], asks.report.value
        said = f"{control.name} takes n{asks.node}'s registration (epoch seen {report.epoch_seen}"
        said += f", runs {', '.join(x.incarnation for x in report.shards) or 'nothing'})"
        if asks.number <= control.latest[asks.node]:
            return Step(f"{said}: stale", _given_up(world, asks))
        if control.leads and self.rules.outranked(control.state.value, self.kind, report):
            if self.lease != "files" and world.holder != control.name:
                ended = _ended(_given_up(world, asks), asks.to)
                return Step(f"{said}: outranked, its lease is lost, it ends", ended)
            epoch = 1 + max(control.state.value.epoch, report.epoch_seen)
            control = controls.rises(control, epoch)
            world = world._replace(epoch=epoch)
            said += f": rises to epoch {epoch}"
        ids = (self.kind, asks.number)
        turn = self._once(_registered, self.rules, control, asks.node, asks.report, ids)
        state = turn.control.state.value
        yes = Says(asks.node, asks.to, asks.number, state.epoch, state.leader_uuid, control.leads)
        world = world._replace(way=world.way | {yes})
        return Step(said, self._turned(world, asks.to, turn))

    def _registered(self, world: World, says: Says) -> Step:
        name, agent = world.controls[says.to].name, world.agents[says.node]
        link = agent.links[says.to]
        if link.waits != says.number:
            return Step(f"an answer of {name} that {agent.node} no longer waits for", world)
        link = link._replace(
            number=says.number,
            waits=0,
            seq=0,
            epoch=says.epoch,
            leader_uuid=says.leader_uuid,
            leader=says.leader,
        )
        agent = self._once(agents.opened, self.rules, agent, says.to, link, self.leases)
        leads = f"which leads with epoch {says.epoch}" if says.leader else "which stands by"
        said = f"{agent.node} is registered with {name}, {leads}"
        return Step(said, world.with_agent(says.node, agent))

    def _obeys(self, world: World, orders: Orders) -> Step:
        before = world.agents[orders.node]
        agent = self._once(agents.ordered, self.rules, before, orders, self.leases)
        name = world.controls[orders.to].name
        old = "" if before.links[orders.to].number == orders.number else " of an old session"
        what = ", ".join(_words(c.value) for _, c in orders.commands) or "news"
        no = agent.links[orders.to].refused[len(before.links[orders.to].refused) :]
        why = "".join(f"; refuses: {x.value.reason}" for x in no)
        said = f"{agent.node} gets from {name}{old}: {what} (epoch {orders.epoch}){why}"
        return Step(said, world.with_agent(orders.node, agent))

    # ------------------------------------------------ faults

    def _breaks(self, world: World) -> Iterator[Step]:
        left = world.faults
        for at, control in enumerate(world.controls):
            holds = self.lease == "files" or world.holder == control.name
            if left.lapses and control.leads and holds:
                yield self._lapses(_less(world, "lapses"), at)
            found = self._once(controls.stopped, control) if left.stops else None
            if found is not None:
                said = f"an operator has {control.name} stop the engine on n{found[1]}"
                yield Step(said, _less(world, "stops").with_control(at, found[0]), fault=True)
        if left.rollbacks and self.lease == "etcd" and world.epoch:
            back = _less(world, "rollbacks")._replace(epoch=0, holder="", known=None)
            yield Step("the lease store comes back empty", back, fault=True)
        for node, agent in enumerate(world.agents):
            if left.restarts:
                again = self._once(agents.restarted, self.rules, agent)
                after = _less(world, "restarts").with_agent(node, again)
                yield Step(f"{agent.node}'s agent restarts", after, fault=True)
            for to in range(len(world.controls)):
                yield from self._breaks_off(world, node, to)

    def _breaks_off(self, world: World, node: int, to: int) -> Iterator[Step]:
        """Of one agent's talk with one control."""
        left, name, link = world.faults, world.controls[to].name, world.agents[node].links[to]
        if left.again and link.number and not link.waits:
            asked = self._asks(_less(world, "again"), node, to)
            yield Step(f"n{node} registers with {name} anew", asked, fault=True)
        if left.losses and link.waits:
            lost = _less(world, "losses").with_link(node, to, waits=0)
            yield Step(f"n{node} gives up its call to {name}", lost, fault=True)

    def _lapses(self, world: World, at: int) -> Step:
        name = world.controls[at].name
        world = world._replace(holder="")
        if self.lease == "etcd":
            return Step(f"{name}'s lease lapses; it does not know", world, fault=True)
        world = _ended(world, at)
        if self.lease == "file":  # one inventory for both
            memory = world.controls[at].memory
            world = world._replace(
                controls=tuple(c._replace(memory=memory) for c in world.controls)
            )
        return Step(f"{name} is killed, and started again", world, fault=True)


def _under(control: Ctl, name: str) -> int:
    """The epoch of an order to this node: that in which its agent said what it runs, as `sessions.stamped` has it."""
    session = control.sessions[int(name[1:])]
    return (session.told if session else 0) or control.state.value.epoch


def _ended(world: World, at: int) -> World:
    """What waits for its answer finds the connection closed; what it has sent may still arrive."""
    for message in world.way:
        if isinstance(message, Asks) and message.to == at:
            world = _given_up(world._replace(way=world.way - {message}), message)
    return world.with_control(at, controls.ended(world.controls[at]))


def _given_up(world: World, asks: Asks) -> World:
    if world.agents[asks.node].links[asks.to].waits == asks.number:
        return world.with_link(asks.node, asks.to, waits=0)
    return world


def _less(world: World, fault: str) -> World:
    left = world.faults._replace(**{fault: getattr(world.faults, fault) - 1})
    return world._replace(faults=left)


def _judged(world: World) -> World:
    """The laws that are seen in a world itself."""
    wrong = world.wrong or next((a.wrong for a in world.agents if a.wrong), "")
    running = [f"{i} on {a.node}" for a in world.agents for _, i in sorted(a.alive)]
    if not wrong and len(running) > 1:
        wrong = f"one engine where one is wanted: {', '.join(running)}"
    return world._replace(wrong=wrong) if wrong else world


def _report(core: Any) -> Any:
    return box(bare(node_report(core.value, for_register=True)))


def _registered(rules: Rules, control: Ctl, node: int, report: Any, ids: tuple[str, int]) -> Any:
    return controls.registered(rules, control, node, report.value, ids)


def _alike(control: Ctl, node: int, core: Any) -> bool:
    return controls.alike(control, node, node_report(core.value, for_register=False).shards)


def _heard(control: Ctl, node: int, core: Any, link: Link) -> Any:
    records = core.value.records
    shards = tuple(
        shard_report(records[k], secrets=True) for k in sorted(link.changed) if k in records
    )
    whole = node_report(core.value, for_register=False).shards
    refused = tuple(x.value for x in link.refused)
    return controls.heard(
        control, node, controls.Told(shards, tuple(sorted(link.gone)), refused, whole)
    )


def _words(command: Any) -> str:
    kind = str(command.__struct_config__.tag)
    return f"{kind} {command.incarnation}" if hasattr(command, "incarnation") else kind


def _order(message: Message) -> tuple[int, int, int, str]:
    return (*message[:3], type(message).__name__)
