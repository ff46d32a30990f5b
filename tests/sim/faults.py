"""What goes wrong in a seed's history: a random choice of faults, then healing, rest, and the judgement.

Each seed allows a random part of the kinds (a history full of everything hides what two kinds do together). What people
do belongs to it: catalog edits, requests, restarts.
"""

from __future__ import annotations

from collections.abc import Callable
from random import Random

from llmgw.core.types.messages import Start
from tests.sim import generate
from tests.sim.agents import Agent
from tests.sim.controls import Control, Inventory
from tests.sim.evidence import unreadable
from tests.sim.gateways import Gateway
from tests.sim.network import CALM, Weather
from tests.sim.simulation import URLS, Core, Simulation
from tests.sim.world import GIB, HUNG, Engine, Host, Manners, Stranger

WARM_S, REST_S = 25.0, 260.0


class Chaos:
    def __init__(self, seed: int, core: Core | None = None) -> None:
        self.rng = rng = Random(seed)
        self.seed = seed
        lease = rng.choice(("file", "file", "etcd"))
        urls = URLS[:1] if lease == "file" else URLS
        nodes, catalog = generate.nodes(rng), generate.catalog(rng)
        self.sim = Simulation(nodes, catalog, rng=rng, core=core, urls=urls)
        self.sim.lease.kind = lease
        self.sim.behave = self._manners
        gpus = {name: len(host.devices) for name, host in self.sim.hosts.items()}
        self.sim.catalog, placed = generate.older(rng, self.sim.catalog, gpus)
        for node, start in placed:
            self.sim.preload(node, start)
        self.edits = 0
        self.backup: Inventory | None = None
        kinds = [*self._kinds()]
        self.kinds = [k for k in kinds if rng.random() < 0.6] or kinds
        if self.sim.lease.kind == "etcd":
            self.kinds += [self.failover, self.failover]
        self.gap_s = rng.choice((2.0, 4.0, 8.0))

    def _kinds(self) -> tuple[Callable[[], str], ...]:
        return (
            self.kill_control,
            self.kill_control,
            self.kill_agent,
            self.kill_agent,
            self.engine_dies,
            self.leader_dies,
            self.engine_hangs,
            self.stranger_port,
            self.stranger_gpu,
            self.partition,
            self.bad_weather,
            self.disk_full,
            self.proc_blind,
            self.nvml_blind,
            self.host_reboots,
            self.failover,
            self.control_pauses,
            self.inventory_lost,
            self.inventory_old,
            self.catalog_edit,
            self.request,
            self.request,
            self.request,
            self.gateway_silent,
            self.gateway_dies,
            self.pid_reused,
            self.record_torn,
            self.journal_lost,
            self.engines_misbehave,
        )

    # ------------------------------------------------------------ the history

    def run(self) -> Simulation:
        sim, rng = self.sim, self.rng
        sim.start_all()
        sim.gateways = [Gateway(sim, f"gw{i}") for i in range(rng.choice((1, 1, 2)))]
        sim.run(WARM_S)
        for _ in range(rng.randint(15, 45)):
            what = rng.choice(self.kinds)()
            if what:
                sim.say("fate", "", what)
            sim.run(rng.expovariate(1.0) * self.gap_s)
        self.heal()
        for _ in range(4):
            sim.run(REST_S / 4)
            self._operate()
        sim.run(REST_S / 4)
        sim.judge.at_rest()
        return sim

    def heal(self) -> None:
        sim = self.sim
        sim.say("fate", "", "all faults stop")
        sim.net.weather, sim.odds.exec_fails, sim.odds.trouble = CALM, 0.0, 0.0
        sim.net.cut.clear()
        for host in sim.hosts.values():
            host.disk_full = host.proc_blind = host.nvml_blind = False
            host.strangers = []
            for engine in host.live():
                self._wakes(engine)
        for agent in sim.agents.values():
            agent.doom = None
            if not agent.up:
                agent.start()
        for control in sim.controls.values():
            control.doom, control.paused = None, False
        for gateway in sim.gateways:
            gateway.silent = False
        if sim.leader is None:
            sim.controls[sim.lease.holder or sim.urls[0]].start()

    def _operate(self) -> None:
        if self.sim.leader is not None:
            self.sim.leader.operate()

    def _manners(self, start: Start) -> Manners:
        del start
        return generate.manners(self.rng, self.sim.odds.trouble)

    def _later(self, low_s: float, high_s: float, act: Callable[[], None]) -> float:
        wait = self.rng.uniform(low_s, high_s)
        self.sim.clock.after(wait, act)
        return wait

    def _host(self) -> Host:
        return self.sim.hosts[self.rng.choice(sorted(self.sim.hosts))]

    def _engine(self) -> Engine | None:
        there = [e for name in sorted(self.sim.hosts) for e in self.sim.hosts[name].live()]
        return self.rng.choice(there) if there else None

    # ------------------------------------------------------------ processes

    def kill_control(self) -> str:
        control = self.sim.leader
        if control is None:
            return ""
        self._kill(control)
        wait = self._later(2.0, 20.0, control.start)
        return f"{control.url} is killed, starts again in {wait:.1f} s"

    def kill_agent(self) -> str:
        agent = self.sim.agents[self._host().name]
        if not agent.up:
            return ""
        self._kill(agent)
        wait = self._later(2.0, 25.0, lambda: self._start_agent(agent))
        return f"the agent of {agent.facts.node} is killed, starts again in {wait:.1f} s"

    def _kill(self, victim: Control | Agent) -> None:
        """At once, or at one of its next boundaries while something happens; at the latest after a moment."""
        if self.rng.random() < 0.3:
            victim.crash()
            return
        victim.doom = self.rng.randrange(8)
        life = victim.life
        self.sim.clock.after(1.5, lambda: victim.crash() if victim.life == life else None)
        busy = (self.engine_dies, self.leader_dies, self.catalog_edit, self.request, self.request)
        what = self.rng.choice(busy)()
        if what:
            self.sim.say("fate", "", what)

    def _start_agent(self, agent: Agent) -> None:
        if not agent.up:
            agent.start()

    def host_reboots(self) -> str:
        name = self._host().name
        self.sim.reboot(name)
        agent = self.sim.agents[name]
        wait = self._later(3.0, 30.0, lambda: self._start_agent(agent))
        return f"{name} reboots, its agent is there in {wait:.1f} s"

    def control_pauses(self) -> str:
        control = self.sim.leader
        if control is None or control.paused:
            return ""
        control.paused = True
        wait = self._later(1.0, 30.0, lambda: setattr(control, "paused", False))
        return f"{control.url} is stopped for {wait:.1f} s"

    def failover(self) -> str:
        """The lease passes to the other control while the old one sleeps, and does not know it yet when it wakes."""
        sim, old = self.sim, self.sim.leader
        if old is None or sim.lease.kind == "file":
            return ""
        new = next(c for c in sim.controls.values() if c is not old)
        if new.up:
            return ""
        old.paused = True
        sim.lease.moves(new.url)
        new.start()
        wait = self._later(0.5, 25.0, lambda: setattr(old, "paused", False))
        return f"the lease goes from {old.url} to {new.url}, which wakes in {wait:.1f} s"

    def inventory_lost(self) -> str:
        control = self.sim.leader
        if control is None:
            return ""
        control.crash("killed, and its inventory is deleted")
        control.disk = Inventory()
        self._later(0.5, 10.0, control.start)
        return f"{control.url} loses its inventory"

    def inventory_old(self) -> str:
        control, backup = self.sim.leader, self.backup
        if control is None:
            return ""
        if backup is None or self.rng.random() < 0.5:
            self.backup = control.disk
            return ""
        control.crash("killed, and an old inventory is restored")
        control.disk = backup
        self._later(0.5, 10.0, control.start)
        return f"{control.url} gets an old inventory"

    def catalog_edit(self) -> str:
        self.edits += 1
        self.sim.catalog, words = generate.edited(self.rng, self.sim.catalog, self.edits)
        for control in self.sim.controls.values():
            control.reload(self.sim.catalog)
        return f"the catalog is edited: {words}"

    # ------------------------------------------------------------ engines and hosts

    def engine_dies(self) -> str:
        engine = self._engine()
        if engine is None:
            return ""
        engine.ailing = "it died"
        self.sim.hosts[engine.host].dies(engine, self.rng.choice((1, -9, -11)))
        return f"{engine} dies"

    def leader_dies(self) -> str:
        engine = self._engine()
        if engine is None:
            return ""
        engine.ailing = "its leader died"
        self.sim.hosts[engine.host].dies(engine, -9, worker=False)
        return f"the leader of {engine} dies, its worker stays"

    def engine_hangs(self) -> str:
        engine = self._engine()
        if engine is None or engine.hung:
            return ""
        engine.hung, engine.ailing = True, engine.ailing or HUNG
        wait = self._later(4.0, 40.0, lambda: self._wakes(engine))
        return f"{engine} hangs for {wait:.1f} s"

    def _wakes(self, engine: Engine) -> None:
        engine.hung = False
        self.sim.clock.after(6.0, engine.recovers)

    def engines_misbehave(self) -> str:
        self.sim.odds.trouble, self.sim.odds.exec_fails = 0.5, 0.15
        wait = self._later(10.0, 50.0, self._behave)
        return f"half of the engines started have bad habits for {wait:.1f} s"

    def _behave(self) -> None:
        self.sim.odds.trouble = self.sim.odds.exec_fails = 0.0

    def stranger_port(self) -> str:
        host = self._host()
        port = self.rng.randrange(18000, 18004)
        if host.listener(port) is not None:
            return ""
        return self._stranger(host, Stranger(self.rng.randrange(5000, 9000), 1, port=port))

    def stranger_gpu(self) -> str:
        host = self._host()
        if not host.devices:
            return ""
        gpu = self.rng.choice(host.devices).uuid
        size = self.rng.choice((2, 8, 16)) * GIB
        return self._stranger(host, Stranger(self.rng.randrange(5000, 9000), 1, gpu, size))

    def _stranger(self, host: Host, stranger: Stranger) -> str:
        host.strangers.append(stranger)

        def leaves() -> None:
            host.strangers = [s for s in host.strangers if s is not stranger]

        wait = self._later(5.0, 60.0, leaves)
        return f"{stranger} on {host.name} for {wait:.1f} s"

    def pid_reused(self) -> str:
        """The engine dies while its agent is down, and its pid is given to somebody else (F38)."""
        engine = self._engine()
        if engine is None or not engine.leader:
            return ""
        host = self.sim.hosts[engine.host]
        agent = self.sim.agents[engine.host]
        agent.crash()
        engine.ailing = "it died"
        host.dies(engine, -9)
        self._later(0.5, 8.0, lambda: self._start_agent(agent))
        return self._stranger(host, Stranger(engine.pid, engine.ticks + 500))

    def record_torn(self) -> str:
        """The agent dies, and one record of its journal cannot be read by the next (F42)."""
        agent = self.sim.agents[self._host().name]
        if not agent.journal or not agent.up:
            return ""
        agent.crash()
        key = self.rng.choice(sorted(agent.journal))
        agent.journal[key] = unreadable(key, agent.host.boot_id)
        for engine in agent.host.live(key):
            self._forgotten(engine)
        self._later(0.5, 8.0, lambda: self._start_agent(agent))
        return f"the record of {key} on {agent.facts.node} is torn"

    def journal_lost(self) -> str:
        """The agent's state dir is gone: its engines are found by their markers."""
        agent = self.sim.agents[self._host().name]
        if not agent.up:
            return ""
        agent.crash()
        agent.journal, agent.token = {}, None
        self.sim.judge.epochs.pop(agent.facts.node, None)
        for engine in agent.host.live():
            self._forgotten(engine)
        self._later(0.5, 8.0, lambda: self._start_agent(agent))
        return f"the journal of {agent.facts.node} is lost"

    def _forgotten(self, engine: Engine) -> None:
        """What only its record told: that it was to be drained, that it had its TERM."""
        if engine.signals:
            engine.signals, engine.ailing = [], "it was being stopped"
        else:
            self.sim.judge.orders.pop(engine.key[1], None)

    def disk_full(self) -> str:
        return self._flag("disk_full", "cannot write its journal", 2.0, 20.0)

    def proc_blind(self) -> str:
        return self._flag("proc_blind", "cannot read /proc", 3.0, 25.0)

    def nvml_blind(self) -> str:
        return self._flag("nvml_blind", "has no NVML", 3.0, 70.0)

    def _flag(self, flag: str, words: str, low_s: float, high_s: float) -> str:
        host = self._host()
        setattr(host, flag, True)
        wait = self._later(low_s, high_s, lambda: setattr(host, flag, False))
        return f"{host.name} {words} for {wait:.1f} s"

    # ------------------------------------------------------------ network and clients

    def partition(self) -> str:
        ends = frozenset((self._host().name, self.rng.choice(self.sim.urls)))
        self.sim.net.cut.add(ends)
        wait = self._later(1.0, 60.0, lambda: self.sim.net.cut.discard(ends))
        return f"{' and '.join(sorted(ends))} cannot talk for {wait:.1f} s"

    def bad_weather(self) -> str:
        self.sim.net.weather = Weather(
            lost=self.rng.choice((0.05, 0.3)), repeated=0.1, late=0.2, usual_s=0.2
        )
        wait = self._later(5.0, 50.0, lambda: setattr(self.sim.net, "weather", CALM))
        return f"the network is bad for {wait:.1f} s"

    def request(self) -> str:
        up = [g for g in self.sim.gateways if g.up]
        if not up:
            return ""
        name = self.rng.choice(sorted(self.sim.catalog.models))
        seconds = self.rng.choice((0.5, 3.0, 12.0, 30.0))
        self.rng.choice(up).ask(name, seconds)
        return f"a request for {name}, {seconds} s"

    def gateway_silent(self) -> str:
        gateway = self.rng.choice(self.sim.gateways)
        if gateway.silent or not gateway.up:
            return ""
        gateway.silent, gateway.silent_since_s = True, self.sim.clock.now
        wait = self._later(3.0, 80.0, lambda: setattr(gateway, "silent", False))
        return f"{gateway.name} is not heard for {wait:.1f} s"

    def gateway_dies(self) -> str:
        """Its control sees it and starts another; a control that is away does not."""
        gateway = self.rng.choice(self.sim.gateways)
        gateway.crash()
        fresh = Gateway(self.sim, f"{gateway.name}'")
        self.sim.gateways[self.sim.gateways.index(gateway)] = fresh
        for control in self.sim.controls.values():
            control.gateway_gone(gateway.name)
        return f"{gateway.name} dies"
