"""A whole fleet in one process: the real core on both sides, everything else made up. One seed is one history.

`Simulation` wires clock, network, hosts, agents, controls and gateways together and keeps the trace; `chaos.py`
decides what goes wrong, `judge.py` what must hold.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from itertools import count
from typing import NamedTuple

from llmgw.core.adopt.survey import Survey, survey
from llmgw.core.reconcile.decide import acknowledged, decide
from llmgw.core.reconcile.fresh import started
from llmgw.core.reconcile.observe import observe
from llmgw.core.route import table
from llmgw.core.supervise import supervise
from llmgw.core.types import node as n
from llmgw.core.types.catalog import Catalog
from llmgw.core.types.messages import Gpu, Start
from llmgw.core.types.plan import Plan
from llmgw.core.types.record import Record
from llmgw.core.types.routes import RouteTable
from llmgw.core.types.state import Event, Shard, State
from tests.sim.agents import Agent
from tests.sim.clock import Clock, iso
from tests.sim.controls import Control
from tests.sim.dice import Dice
from tests.sim.gateways import Gateway
from tests.sim.judge import Broken, Judge
from tests.sim.leases import Lease
from tests.sim.network import Network
from tests.sim.people import Operator
from tests.sim.world import Engine, Host, Manners

URLS = ("control", "control-b", "control-c")


class Core(NamedTuple):
    """The functions under test; a mutant is this with one of them changed."""

    started: Callable[..., State] = started
    observe: Callable[[State, Event, float], State] = observe
    survey: Callable[[State], Survey] = survey
    decide: Callable[[State, float, Survey], Plan] = decide
    table: Callable[[State, Survey, int], RouteTable] = table
    acknowledged: Callable[[State], Iterable[Shard]] = acknowledged
    supervise: Callable[
        [n.AgentState, n.Event, float], tuple[n.AgentState, tuple[n.Effect, ...]]
    ] = supervise


@dataclass
class Habits:
    """Odds: an exec fails, an engine that is started has a bad habit."""

    exec_fails: float = 0.0
    trouble: float = 0.0


class Simulation:
    def __init__(self, dice: Dice, core: Core | None = None) -> None:
        self.dice = dice
        self.core = core or Core()
        self.clock = Clock()
        self.catalog = Catalog()
        #: whether the catalog file cannot be read
        self.catalog_broken = False
        self.settle_timeout_s = 60.0
        #: `--require-plan` of another world, in words; "" for none (A56)
        self.requires = ""
        self.tick_s = 1.0
        self.slow_probes = False
        self.habits = Habits()
        self.trace: list[tuple[float, str, str, str]] = []
        self.died_s: dict[str, float] = {}
        self.struck: Counter[str] = Counter()
        self.behave: Callable[[Start, int], Manners] = lambda _, __: Manners()
        self.judge = Judge(self)
        self.people = Operator(self)
        self.lease = Lease(self.clock)
        self.net = Network(self.clock, dice)
        self.hosts: dict[str, Host] = {}
        self.agents: dict[str, Agent] = {}
        self.controls: dict[str, Control] = {}
        self.gateways: list[Gateway] = []
        self._ids = 0
        self.lead(1)

    @property
    def urls(self) -> tuple[str, ...]:
        return tuple(self.controls)

    def lead(self, count: int) -> None:
        """So many controls, of which one may command."""
        self.controls = {url: Control(self, url) for url in URLS[:count]}

    def use(self, dice: Dice) -> None:
        """Before anything else is there."""
        self.dice = self.net.dice = dice
        self.tick_s, self.slow_probes = 5.0, True

    def add(self, facts: n.NodeFacts, gpus: tuple[Gpu, ...]) -> None:
        host = self.hosts[facts.node] = Host(facts.node, gpus, self.clock, self.died_s)
        self.agents[facts.node] = Agent(self, host, facts)

    # ------------------------------------------------------------ for all

    def say(self, who: str, what: str, words: str) -> None:
        self.trace.append((self.clock.now, who, what, words))

    def story(self) -> str:
        return "\n".join(f"{t:8.2f}  {who:<10} {what:<18} {w}" for t, who, what, w in self.trace)

    def headline(self) -> str:
        judge = self.judge
        return f"{judge.spawned} engines started; engines restarted that need not have been: {judge.needless}"

    def new_id(self, model: str, taken: set[str]) -> tuple[str, str]:
        """The first free name, so that one that control does not know is met again (A37); incarnations sort by time."""
        self._ids += 1
        free = (name for k in count() if (name := f"{model}-{k:02}") not in taken)
        return next(free), f"i{self._ids:04}"

    # ------------------------------------------------------------ who is where

    @property
    def leader(self) -> Control | None:
        holder = self.controls.get(self.lease.holder)
        return holder if holder is not None and holder.up and not holder.lapsed else None

    def engine_at(self, endpoint: str) -> Engine | None:
        node, _, port = endpoint.removeprefix("http://").partition(":")
        host = self.hosts.get(node)
        there = host.listener(int(port)) if host is not None else None
        return there if isinstance(there, Engine) else None

    def drain_timeout_s(self, model: str, profile: str) -> float:
        found = self.catalog.resolve(model)  # a report calls it by the name of its start (A14)
        if found is None:
            return 120.0
        return (found.profile(profile) or found.profiles[0]).drain_timeout_s

    def tables(self, control: Control) -> None:
        """A new table goes to everybody who waits for one."""
        table = control.table
        for gateway in self.gateways:
            if gateway.up and not gateway.silent:
                to = partial(gateway.adopt, table)
                self.net.call((control.url, gateway.name), to, lambda _: None, lambda: None)

    # ------------------------------------------------------------ life

    def preload(self, node: str, start: Start, manners: Manners, state: str, since: str) -> None:
        """An engine from before this history: it runs, and is in the journal of its node's agent."""
        host, agent = self.hosts[node], self.agents[node]
        engine = host.spawn(start, 1, manners)
        engine.older = True
        agent.journal[start.shard, start.incarnation] = Record(
            start=start,
            state=state,
            boot_id=host.boot_id,
            pid=engine.pid,
            start_ticks=engine.ticks,
            started_at=since or iso(self.clock.now),
            endpoint=f"http://{node}:{start.port}",
            artefact=start.weights,
        )

    def reboot(self, name: str) -> None:
        """The power goes and comes back after a while; nobody on it hears anything."""
        agent, host = self.agents[name], self.hosts[name]
        agent.crash("the host reboots")
        host.reboot()
        self.say(name, "reboots", host.boot_id)

    def run(self, seconds: float) -> None:
        self.clock.run_until(self.clock.now + seconds)


__all__ = ["Broken", "Core", "Habits", "Simulation"]
