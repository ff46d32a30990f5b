"""A whole fleet in one process: the real core on both sides, everything else made up. One seed is one history.

`Simulation` wires clock, network, hosts, agents, controls and gateways together and keeps the trace; `faults.py`
decides what goes wrong, `judge.py` what must hold.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import partial
from random import Random
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
from llmgw.core.types.routes import RouteTable
from llmgw.core.types.state import Event, Shard, State
from tests.sim.agents import Agent
from tests.sim.clock import Clock, iso
from tests.sim.controls import Control
from tests.sim.gateways import Gateway
from tests.sim.judge import Broken, Judge
from tests.sim.network import Network
from tests.sim.world import Engine, Host, Manners

URLS = ("control-a", "control-b")


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
class Odds:
    exec_fails: float = 0.0
    trouble: float = 0.0


@dataclass
class Lease:
    """Who may command. One that lost it may not have noticed for the length of a pass."""

    kind: str = "etcd"
    holder: str = ""
    unaware: set[str] = field(default_factory=set)

    def take(self, url: str) -> bool:
        if self.holder not in ("", url):
            return False
        self.holder = url
        return True

    def free(self, url: str) -> None:
        self.unaware.discard(url)
        if self.holder == url:
            self.holder = ""

    def moves(self, url: str) -> None:
        if self.holder:
            self.unaware.add(self.holder)
        self.holder = url

    def holds(self, url: str) -> bool:
        return self.holder == url

    def late(self, url: str) -> bool:
        """Once: the check came before the pause, the pass after it."""
        if url in self.unaware:
            self.unaware.discard(url)
            return True
        return False


class Simulation:
    def __init__(
        self,
        nodes: dict[str, tuple[n.NodeFacts, tuple[Gpu, ...]]],
        catalog: Catalog,
        *,
        rng: Random,
        core: Core | None = None,
        settle_timeout_s: float = 60.0,
        urls: tuple[str, ...] = URLS,
    ) -> None:
        self.rng = rng
        self.core = core or Core()
        self.clock = Clock()
        self.catalog = catalog
        self.settle_timeout_s = settle_timeout_s
        self.urls = urls
        self.tick_s = 5.0
        self.slow_probes = True
        self.odds = Odds()
        self.trace: list[tuple[float, str, str, str]] = []
        self.died_s: dict[str, float] = {}
        self.behave: Callable[[Start], Manners] = lambda _: Manners()
        self.judge = Judge(self)
        self.lease = Lease()
        self.net = Network(self.clock, rng)
        self.hosts: dict[str, Host] = {}
        self.agents: dict[str, Agent] = {}
        for facts, gpus in nodes.values():
            self.add(facts, gpus)
        self.controls = {url: Control(self, url) for url in urls}
        self.gateways: list[Gateway] = []
        self._ids = 0

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
        """Replica ids are short, so one that control does not know may be met again; incarnations sort by time."""
        self._ids += 1
        names = [name for k in range(50) if (name := f"{model}-{k:02}") not in taken]
        return self.rng.choice(names), f"i{self._ids:04}"

    def manners(self, start: Start) -> Manners:
        return self.behave(start)

    def spawn_delay_s(self) -> float:
        return 0.05 if self.rng.random() < 0.9 else self.rng.uniform(0.1, 1.5)

    # ------------------------------------------------------------ who is where

    @property
    def leader(self) -> Control | None:
        return next((c for c in self.controls.values() if c.up and self.lease.holds(c.url)), None)

    def engine_at(self, endpoint: str) -> Engine | None:
        node, _, port = endpoint.removeprefix("http://").partition(":")
        host = self.hosts.get(node)
        there = host.listener(int(port)) if host is not None else None
        return there if isinstance(there, Engine) else None

    def drain_timeout_s(self, model: str, profile: str) -> float:
        found = self.catalog.models.get(model)
        there = found.profile(profile) if found is not None else None
        return there.drain_timeout_s if there is not None else 120.0

    def tables(self, control: Control) -> None:
        """A new table goes to everybody who waits for one."""
        table = control.table
        for gateway in self.gateways:
            if gateway.up and not gateway.silent:
                to = partial(gateway.adopt, table)
                self.net.call((control.url, gateway.name), to, lambda _: None, lambda: None)

    # ------------------------------------------------------------ life

    def preload(self, node: str, start: Start, state: str = "ready", since: str = "") -> Engine:
        """An engine from before this history: it runs, and is in the journal of its node's agent."""
        host, agent = self.hosts[node], self.agents[node]
        engine = host.spawn(start, 1, self.behave(start))
        agent.journal[start.shard, start.incarnation] = n.Record(
            start=start,
            state=state,
            boot_id=host.boot_id,
            pid=engine.pid,
            start_ticks=engine.ticks,
            started_at=since or iso(self.clock.now),
            endpoint=f"http://{node}:{start.port}",
            artefact=start.weights,
        )
        return engine

    def start_all(self) -> None:
        for agent in self.agents.values():
            if not agent.up:
                agent.start()
        self.controls[self.urls[0]].start()

    def reboot(self, name: str) -> None:
        """The power goes and comes back after a while; nobody on it hears anything."""
        agent, host = self.agents[name], self.hosts[name]
        agent.crash("the host reboots")
        host.reboot()
        self.say(name, "reboots", host.boot_id)

    def run(self, seconds: float) -> None:
        self.clock.run_until(self.clock.now + seconds)


__all__ = ["Broken", "Core", "Lease", "Odds", "Simulation"]
