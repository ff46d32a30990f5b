"""The worlds of the model: whole, frozen, comparable by identity where the core's own values are inside.

A world holds the state of every control and agent and what is on the way between them. Numbers that only count
sessions are renumbered, so that two ways to the same situation meet. May not move anything.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Generic, NamedTuple, TypeVar

import msgspec
from msgspec.structs import replace

from llmgw.core.types.messages import Command, NodeReport, Refusal
from llmgw.core.types.node import AgentState
from llmgw.core.types.record import Key
from llmgw.core.types.state import State

T = TypeVar("T")
_encode = msgspec.msgpack.Encoder().encode


class Box(Generic[T]):
    """One value of the core's; equal ones are one box, which makes comparing worlds cheap."""

    __slots__ = ("value",)

    def __init__(self, value: T) -> None:
        self.value = value


_boxes: dict[tuple[type, bytes], Box[Any]] = {}


def box(value: T) -> Box[T]:
    key = (type(value), _encode(value))
    found = _boxes.get(key)
    if found is None:
        found = _boxes[key] = Box(value)
    return found


class Session(NamedTuple):
    """At control. `number`: of the registration that opened it; `told`: the epoch its agent was told then."""

    number: int
    told: int
    seq: int = 0
    queue: tuple[tuple[int, Box[Command]], ...] = ()
    ordered: frozenset[tuple[str, ...]] = frozenset()


class Ctl(NamedTuple):
    """A control process; `sessions` and `latest` by node, `memory` is what its inventory has."""

    name: str
    state: Box[State]
    sessions: tuple[Session | None, ...]
    latest: tuple[int, ...]
    memory: Box[Any]
    leads: bool = False
    led: bool = False
    seen: int = 0
    rivals: frozenset[int] = frozenset()


class Link(NamedTuple):
    """An agent's talk with one control. `number` 0: no session; `waits`: the registration that is under way."""

    number: int = 0
    waits: int = 0
    again: bool = False
    epoch: int = 0
    leader_uuid: str = ""
    leader: bool = False
    seq: int = 0
    changed: frozenset[Key] = frozenset()
    gone: frozenset[Key] = frozenset()
    refused: tuple[Box[Refusal], ...] = ()

    @property
    def tells(self) -> bool:
        return bool(self.changed or self.gone or self.refused)


class Agt(NamedTuple):
    """An agent and its box. `alive`: engines that really run.

    For the laws alone: `high`, the highest epoch it ever stored; `obeyed`, whose commands it took under that one;
    `chief`, of several files' leaders the one that it obeys.
    """

    node: str
    core: Box[AgentState]
    links: tuple[Link, ...]
    alive: frozenset[Key] = frozenset()
    obeyed: frozenset[tuple[int, str]] = frozenset()
    high: int = 0
    chief: int = -1
    wrong: str = ""


class Asks(NamedTuple):
    """A registration on its way to control `to`."""

    node: int
    to: int
    number: int
    report: Box[NodeReport]


class Says(NamedTuple):
    """Its answer."""

    node: int
    to: int
    number: int
    epoch: int
    leader_uuid: str
    leader: bool


class Orders(NamedTuple):
    """What a poll brought, on its way to the agent. `under`: the epoch of its orders, of questions it is `epoch`."""

    node: int
    to: int
    number: int
    epoch: int
    leader_uuid: str
    leader: bool
    under: int
    commands: tuple[tuple[int, Box[Command]], ...]


Message = Asks | Says | Orders


class Faults(NamedTuple):
    """How often each may still happen.

    `lapses`: the leader's lease ends and it does not know yet; where that is a file, the leader is killed. `rollbacks`:
    the lease store comes back as it was before anybody led. `repeats`: a poll's answer comes twice. `losses`: a
    registration is given up, and arrives late or never. `again`: an agent registers for no reason. `restarts`: of
    agents. `stops`: an operator stops the engine. `minutes`: time passes, for what is waited for with two files.
    """

    lapses: int = 0
    rollbacks: int = 0
    repeats: int = 0
    losses: int = 0
    again: int = 0
    restarts: int = 0
    stops: int = 0
    minutes: int = 0


class World(NamedTuple):
    """`epoch`, `known`: what the lease store keeps; `tenure` counts who led, over all controls."""

    controls: tuple[Ctl, ...]
    agents: tuple[Agt, ...]
    way: frozenset[Message] = frozenset()
    holder: str = ""
    epoch: int = 0
    known: frozenset[str] | None = None
    tenure: int = 0
    faults: Faults = Faults()
    wrong: str = ""

    def with_control(self, at: int, control: Ctl) -> World:
        return self._replace(controls=put(self.controls, at, control))

    def with_agent(self, at: int, agent: Agt) -> World:
        return self._replace(agents=put(self.agents, at, agent))

    def with_link(self, node: int, to: int, **changes: Any) -> World:
        agent = self.agents[node]
        links = put(agent.links, to, agent.links[to]._replace(**changes))
        return self.with_agent(node, agent._replace(links=links))


def put(row: tuple[T, ...], at: int, value: T) -> tuple[T, ...]:
    return (*row[:at], value, *row[at + 1 :])


def bare(report: NodeReport) -> NodeReport:
    """Without the number that a registration has: it is the message's."""
    return replace(report, registration=0)


def next_number(world: World, node: int, to: int) -> int:
    return 1 + max(_numbers(world, node, to))


def canonical(world: World) -> World:
    """Session numbers of each pair as low as their order allows."""
    for node in range(len(world.agents)):
        for to in range(len(world.controls)):
            used = sorted(set(_numbers(world, node, to)) | {0})
            if used[-1] != len(used) - 1:
                world = _renumbered(world, node, to, {n: i for i, n in enumerate(used)})
    return world


def _numbers(world: World, node: int, to: int) -> Iterable[int]:
    link, control = world.agents[node].links[to], world.controls[to]
    session = control.sessions[node]
    mine = [m.number for m in world.way if m.node == node and m.to == to]
    return (link.number, link.waits, control.latest[node], session.number if session else 0, *mine)


def _renumbered(world: World, node: int, to: int, new: dict[int, int]) -> World:
    link, control = world.agents[node].links[to], world.controls[to]
    session = control.sessions[node]
    if session is not None:
        session = session._replace(number=new[session.number])
    control = control._replace(
        sessions=put(control.sessions, node, session),
        latest=put(control.latest, node, new[control.latest[node]]),
    )
    way = frozenset(
        m._replace(number=new[m.number]) if (m.node, m.to) == (node, to) else m for m in world.way
    )
    world = world.with_control(to, control)._replace(way=way)
    return world.with_link(node, to, number=new[link.number], waits=new[link.waits])
