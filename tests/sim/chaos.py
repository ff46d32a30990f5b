"""What goes wrong in a seed's history: it writes a script while it goes, faults with their times, then calm and rest.

Each seed allows a random part of the kinds (a history full of everything hides what two kinds do together). What people
do belongs to it: catalog edits, requests, restarts, the operator's verbs. Every line is carried out as a script's is,
so what failed can be replayed, made smaller and kept (`shrink.py`).
"""

from __future__ import annotations

from collections.abc import Callable
from random import Random

from tests.sim import agents, controls, generate, older
from tests.sim.commands import Commands
from tests.sim.process import ANY
from tests.sim.simulation import Core, Simulation
from tests.sim.world import Engine, Host

WARM_S = 25.0
#: One history in so many rests to the end, however soon it is calm: what goes round in circles shows late.
LONG = 10
#: One in so many has an engine that hangs for so long, after a while of calm.
DEAF, DEAF_REST_S, DEAF_S = 5, 40.0, 180.0
#: Where a leader knows already what it will order.
SENDING = ("before-persist", "before-send", "before-send")


class Chaos:
    def __init__(self, seed: int, core: Core | None = None) -> None:
        self.seed = seed
        self.rng = rng = Random(seed)
        self.commands = Commands(core)
        self.sim: Simulation = self.commands.sim
        self.lines: list[str] = []
        self.fleet, self.catalog = generate.Fleet(rng), generate.Catalog(rng)
        self.count = rng.choice((1, 1, 1, 2, 3))
        kinds = [*self._kinds()]
        self.kinds = [self.ask, self.ask, *(k for k in kinds if rng.random() < 0.5)]
        if self.count > 1:
            self.kinds += [self.failover] * 4
        self.gap_s = rng.choice((2.0, 3.0, 6.0))

    def _kinds(self) -> tuple[Callable[[], str], ...]:
        return (
            *(self.kill_control, self.kill_control, self.freeze_control),
            *(self.kill_agent, self.kill_agent, self.freeze_agent),
            *(self.inventory_lost, self.inventory_old, self.control_full, self.clock_step),
            *(self.record_torn, self.journal_lost, self.agent_full, self.older, self.double),
            *(self.unseen, self.unseen),
            *(self.engine_dies, self.leader_dies, self.hang, self.habits, self.pid_reused),
            *(self.stranger_port, self.stranger_gpu, self.reboot, self.proc_blind, self.nvml_blind),
            *(self.partition, self.everybody_cut, self.one_way, self.weather),
            *(self.gateway_silent, self.gateway_dies, self.edit, self.broken_catalog),
            *(self.ask, self.ask, self.ask, self.operate, self.operate),
        )

    # ------------------------------------------------------------ the history

    def run(self) -> Simulation:
        for line in self._world():
            self.does(line)
        self.waits(WARM_S)
        for _ in range(self.rng.randint(15, 45)):
            what = self.rng.choice(self.kinds)()
            if what:
                self.at_once(what)
            self.waits(self.rng.expovariate(1.0) * self.gap_s)
        if self.seed % DEAF == DEAF - 1:
            self._deaf()
        self.at_once("calm")
        self.does("rest long" if self.seed % LONG == LONG - 1 else "rest")
        return self.sim

    def _deaf(self) -> None:
        """In the middle of all the rest nothing is undisturbed for as long as a hung engine has to get well (F64)."""
        self.at_once("calm")
        self.waits(DEAF_REST_S)
        what = self._of("hang", self._engine(), f"for={DEAF_S:g}")
        if what:
            self.at_once(what)
            self.waits(DEAF_S)

    def _world(self) -> list[str]:
        lines = [f"dice {self.seed}"]
        if self.count > 1:
            lines.append(f"controls {self.count}")
        lines += [*self.fleet.lines(), *self.catalog.lines(), *self.catalog.left(self.fleet.gpus)]
        gateways = self.rng.choice((("gateway",), ("gateway",), ("gateway", "gateway-2")))
        started = (*self.fleet.gpus, *controls_named(self.count), *gateways)
        return [*lines, f"at 0.00 start {' '.join(started)}"]

    def does(self, line: str) -> None:
        self.lines.append(line)
        self.commands.act(line)

    def at_once(self, words: str) -> None:
        now = self.sim.clock.now
        self.sim.say("fate", "", words)
        self.does(f"at {now:.2f} {words}")

    def waits(self, seconds: float) -> None:
        self.sim.clock.run_until(round(self.sim.clock.now + max(seconds, 0.01), 2))

    # ------------------------------------------------------------ choices

    def _s(self, low_s: float, high_s: float) -> str:
        return f"for={self.rng.uniform(low_s, high_s):.1f}"

    def _host(self) -> Host:
        return self.sim.hosts[self.rng.choice(sorted(self.sim.hosts))]

    def _agent(self) -> str:
        """One that runs, or ""."""
        name = self._host().name
        agent = self.sim.agents[name]
        return name if agent.up and not agent.frozen else ""

    def _control(self) -> str:
        """Mostly the leader."""
        leader = self.sim.leader
        if leader is None or leader.frozen:
            return ""
        return self.rng.choice((leader.url, leader.url, leader.url, *self.sim.urls))

    def _engine(self) -> Engine | None:
        there = [e for name in sorted(self.sim.hosts) for e in self.sim.hosts[name].live()]
        return self.rng.choice(there) if there else None

    def _of(self, word: str, engine: Engine | None, *keys: str) -> str:
        if engine is None:
            return ""
        return " ".join((word, engine.host, engine.start.shard, *keys))

    def _boundary(self, points: tuple[str, ...]) -> str:
        """At once, or at some boundary while something happens; at the latest after a moment."""
        if self.rng.random() < 0.3:
            return ""
        point = self.rng.choice((ANY, *points))
        if point == ANY:
            return f" at={point} nth={self.rng.randint(1, 8)} within=1.5"
        return f" at={point} nth={self.rng.choice((1, 1, 2))} within={self.rng.choice((3, 12, 25))}"

    def _with(self, what: str) -> str:
        """Beside something that brings it there, or has it busy."""
        if " at=" not in what:
            return what
        point = what.partition(" at=")[2].split()[0].partition("-")[2]
        busy = (self.engine_dies, self.leader_dies, self.edit, self.ask, self.ask)
        bring = {
            "StoreToken": (self.epoch_rises,),
            "Register": (self.epoch_rises,),
            "DeleteRecord": (self.stop,),
            "Signal": (self.stop, self.leader_dies),
            "Measure": (self.stop, self.engine_dies),
            "Refuse": (self.refused,),
            "Identify": (self.unseen,),
            "Knock": (self.group_ends,),
        }.get(point, busy)
        more = self.rng.choice(bring)()
        return f"{what} ; {more}" if more else what

    # ------------------------------------------------------------ what brings an agent somewhere

    def epoch_rises(self) -> str:
        leader = self.sim.leader
        return f"inventory lost {leader.url} {self._s(0.5, 3)}" if leader is not None else ""

    def stop(self) -> str:
        engine = self._engine()
        return f"llmgw stop {engine.start.replica}" if engine is not None else ""

    def group_ends(self) -> str:
        """One whose leader waits for its workers: it starts anew."""
        there = self._waiting_groups()
        return self._of("die", self.rng.choice(there), "code=1") if there else ""

    def _waiting_groups(self) -> list[Engine]:
        live = (e for name in sorted(self.sim.hosts) for e in self.sim.hosts[name].live())
        return [e for e in live if e.start.start_order == "workers_first"]

    def refused(self) -> str:
        """Everything is to roll, and the ports that control takes for free are not."""
        host, pid = self._host().name, self.rng.randrange(5000, 9000)
        ports = (f"stranger {host} port={18000 + k} pid={pid + k} for=9" for k in range(6))
        return " ; ".join((*ports, self.catalog.edit_all()))

    def unseen(self) -> str:
        """An agent that cannot look at what it finds asks again."""
        host = self._host().name
        return f"blind {host} {self._s(4, 9)} ; kill {host} for=1"

    # ------------------------------------------------------------ control

    def kill_control(self) -> str:
        who = self._control()
        points = self._boundary(controls.POINTS)
        return self._with(f"kill {who} {self._s(2, 20)}{points}") if who else ""

    def freeze_control(self) -> str:
        who = self._control()
        points = self._boundary(controls.POINTS)
        return self._with(f"freeze {who} {self._s(1, 30)}{points}") if who else ""

    def failover(self) -> str:
        if not self.sim.lease.waiting or self.sim.leader is None:
            return ""
        if self.rng.random() < 0.2:
            return f"lease lost {self._s(5, 30)}"
        # Mostly as long as its agents go on with their sessions: then only the epoch tells them (F21).
        wakes = self.rng.choice((self._s(3, 9), self._s(3, 9), self._s(0.5, 25)))
        return self._with(f"failover {wakes}{self._boundary(SENDING)}")

    def inventory_lost(self) -> str:
        """Half of the time while a node is away: what runs there is met again when its names are given out (A37)."""
        who, cut = self._control(), f"cut {self._host().name}"
        lost = f"inventory lost {who} {self._s(0.5, 10)}" if who else ""
        away = self.rng.random() < 0.5
        return f"{lost} ; {cut} {who} {self._s(30, 70)}" if lost and away else lost

    def inventory_old(self) -> str:
        who = self._control()
        if not who:
            return ""
        return f"inventory {self.rng.choice((f'kept {who}', f'old {who} {self._s(0.5, 10)}'))}"

    def control_full(self) -> str:
        return f"full {self.rng.choice(self.sim.urls)} {self._s(2, 40)}"

    def clock_step(self) -> str:
        who = self.rng.choice((*self.sim.urls, *sorted(self.sim.hosts)))
        return f"clock {who} by={self.rng.choice((-7200, -60, 45, 3600))} {self._s(20, 200)}"

    # ------------------------------------------------------------ agents

    def kill_agent(self) -> str:
        return self._struck(f"kill {{}} {self._s(2, 25)}")

    def freeze_agent(self) -> str:
        return self._struck(f"freeze {{}} {self._s(1, 40)}")

    def _struck(self, what: str) -> str:
        who = self._agent()
        points = self._boundary(agents.POINTS)
        if "Knock" in points:  # it is only the leader's agent that knocks
            who = next((e.host for e in self._waiting_groups() if not e.start.rank), who)
            points = points.replace("within=3", "within=40").replace("within=12", "within=60")
        return self._with(f"{what.format(who)}{points}") if who else ""

    def record_torn(self) -> str:
        who = self._agent()
        journal = sorted(self.sim.agents[who].journal) if who else []
        if not journal:
            return ""
        return f"record {who} {self.rng.choice(journal)[0]} torn {self._s(0.5, 8)}"

    def journal_lost(self) -> str:
        who = self._agent()
        return f"journal {who} lost {self._s(0.5, 8)}" if who else ""

    def agent_full(self) -> str:
        return f"full {self._host().name} {self._s(2, 20)}"

    def older(self) -> str:
        who = self._agent()
        version = self.rng.choice((older.VERSIONS[0], *older.VERSIONS))
        return f"older {who} {version} {self._s(10, 80)}" if who else ""

    def double(self) -> str:
        who = self._agent()
        return f"double {who}{self.rng.choice(('', ' clone=yes'))}" if who else ""

    # ------------------------------------------------------------ engines and hosts

    def engine_dies(self) -> str:
        return self._of("die", self._engine(), f"code={self.rng.choice((1, -9, -11))}")

    def leader_dies(self) -> str:
        return self._of("die", self._engine(), "worker=stays")

    def hang(self) -> str:
        """For a moment, or for longer than anybody has patience; or it is only busy."""
        how = self.rng.choice(((), (), (), ("serving=yes",)))
        for_s = self._s(4, 40) if self.rng.random() < 0.6 else self._s(70, 200)
        return self._of("hang", self._engine(), *how, for_s)

    def pid_reused(self) -> str:
        return self._of("reuse", self._engine(), self._s(0.5, 8))

    def habits(self) -> str:
        return f"habits trouble=0.5 exec=0.15 {self._s(10, 50)}"

    def stranger_port(self) -> str:
        port, pid = self.rng.randrange(18000, 18004), self.rng.randrange(5000, 9000)
        return f"stranger {self._host().name} port={port} pid={pid} {self._s(5, 60)}"

    def stranger_gpu(self) -> str:
        host, pid = self._host(), self.rng.randrange(5000, 9000)
        if not host.devices:
            return ""
        gpu, size = self.rng.choice(host.devices).index, self.rng.choice((2, 8, 16))
        return f"stranger {host.name} gpu={gpu} memory={size} pid={pid} {self._s(5, 60)}"

    def reboot(self) -> str:
        return f"reboot {self._host().name} {self._s(3, 30)}"

    def proc_blind(self) -> str:
        return f"blind {self._host().name} {self._s(3, 25)}"

    def nvml_blind(self) -> str:
        return f"nvml {self._host().name} {self._s(3, 70)}"

    # ------------------------------------------------------------ network, clients, people

    def partition(self) -> str:
        return f"cut {self._host().name} {self.rng.choice(self.sim.urls)} {self._s(1, 60)}"

    def everybody_cut(self) -> str:
        """All nodes at once: it is us (F63)."""
        url, for_s = self.rng.choice(self.sim.urls), self._s(5, 60)
        return " ; ".join(f"cut {name} {url} {for_s}" for name in self.sim.hosts)

    def one_way(self) -> str:
        ends = [self._host().name, self.rng.choice(self.sim.urls)]
        self.rng.shuffle(ends)
        return f"cut {' '.join(ends)} one=way {self._s(1, 60)}"

    def weather(self) -> str:
        lost, replies = self.rng.choice((("0.05", "0"), ("0.3", "0"), ("0", "0.4")))
        return f"weather lost={lost} replies={replies} repeated=0.1 late=0.2 {self._s(5, 50)}"

    def gateway_silent(self) -> str:
        return f"silent {self._gateway()} {self._s(3, 80)}"

    def gateway_dies(self) -> str:
        return f"kill {self._gateway()}"

    def _gateway(self) -> str:
        return self.rng.choice(self.sim.gateways).name.rstrip("'")

    def ask(self) -> str:
        """For one that sleeps where there is one: it is to be woken in the middle of all this."""
        there = self.sim.catalog.models
        engines = (e for host in self.sim.hosts.values() for e in host.live())
        asleep = {e.start.model for e in engines if e.sleeping} & there.keys()
        model = self.rng.choice(sorted(asleep or there))
        return f"ask {model} {self.rng.choice((0.5, 3, 12, 30))} by={self._gateway()}"

    def edit(self) -> str:
        return self.catalog.edit()

    def broken_catalog(self) -> str:
        return f"broken catalog {self._s(5, 40)}"

    def operate(self) -> str:
        """An operator who is not always careful."""
        leader = self.sim.leader
        if leader is None or leader.state is None:
            return ""
        engine = self._engine()
        silent = sorted(k for k, node in leader.picture.nodes.items() if not node.connected)
        if silent and self.rng.random() < 0.5:
            return f"llmgw forget {self.rng.choice(silent)}"
        stop = self.stop()
        if engine is not None and engine.signals:
            stop = f"llmgw force {engine.start.shard}"
        verb = self.rng.choice(("pause", "resume", "resume", "confirm", "confirm", "clear"))
        require = f"kill {leader.url} require=the-plan-was-another {self._s(2, 10)}"
        verbs = (f"llmgw {verb}", f"llmgw {verb}", stop, require, self._drain())
        return self.rng.choice(verbs)

    def _drain(self) -> str:
        """A box, or its first GPU; as often taken back."""
        verb = self.rng.choice(("drain", "undrain"))
        return (
            f"llmgw {verb} {self.rng.choice(sorted(self.sim.hosts))}{self.rng.choice(('', '/0'))}"
        )


def controls_named(count: int) -> tuple[str, ...]:
    return ("control", "control-b", "control-c")[:count]
