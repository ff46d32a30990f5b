"""What happens to hosts, engines and the network between them, and what clients and operators do."""

from __future__ import annotations

from dataclasses import dataclass

from tests.sim.gateways import Gateway
from tests.sim.network import CALM, Ends, Weather
from tests.sim.simulation import Simulation
from tests.sim.words.given import Keys
from tests.sim.world import Engine, Host


@dataclass
class World:
    sim: Simulation

    def _later(self, keys: Keys, flag: str, of: object, value: object) -> None:
        """The end of a fault."""
        if "for" in keys:
            self.sim.clock.after(float(keys["for"]), lambda: setattr(of, flag, value))

    def _engine(self, words: list[str]) -> tuple[Host, Engine | None]:
        node, shard = words
        host = self.sim.hosts[node]
        return host, next((e for e in host.live() if e.start.shard == shard), None)

    # ------------------------------------------------------------ engines

    def do_die(self, words: list[str], keys: Keys) -> None:
        """`die NODE SHARD [worker=stays] [code=-9]`: its processes, or its leader alone (F65)."""
        host, engine = self._engine(words)
        if engine is not None:
            stays = keys.get("worker") == "stays"
            engine.ailing = "its leader died" if stays else "it died"
            host.dies(engine, int(keys.get("code", -9)), worker=not stays)

    def do_hang(self, words: list[str], keys: Keys) -> None:
        """`hang NODE SHARD [serving=yes] [for=S]`: it answers nothing, and hears no TERM (F64); or only no probe."""
        _, engine = self._engine(words)
        if engine is not None and engine.silent_s is None:
            now = self.sim.clock.now
            engine.falls_silent(now, serving="serving" in keys and engine.seen_up)
            if "for" in keys:
                self.sim.clock.after(float(keys["for"]), lambda: self.wakes(engine))

    def wakes(self, engine: Engine) -> None:
        engine.speaks(self.sim.clock.now)
        self.sim.clock.after(6.0, engine.recovers)

    def do_habits(self, _: list[str], keys: Keys) -> None:
        """`habits [trouble=0.5] [exec=0.15] [for=S]`: of engines started now, so many have bad ones; needs dice."""
        habits = self.sim.habits
        habits.trouble = float(keys.get("trouble", 0.5))
        habits.exec_fails = float(keys.get("exec", 0.15))
        self._later(keys, "trouble", habits, 0.0)
        self._later(keys, "exec_fails", habits, 0.0)

    def do_reuse(self, words: list[str], keys: Keys) -> None:
        """`reuse NODE SHARD [for=S]`: it dies while its agent is down for S seconds, a stranger gets its pid (F38)."""
        host, engine = self._engine(words)
        if engine is None or not engine.leader:
            return
        agent = self.sim.agents[host.name]
        agent.crash()
        engine.ailing = "it died"
        host.dies(engine, -9)
        stranger = host.takes_pid(engine)
        if "for" in keys:
            self.sim.clock.after(float(keys["for"]), agent.start)
            self.sim.clock.after(float(keys["for"]) + 60.0, lambda: host.leaves(stranger))

    # ------------------------------------------------------------ hosts

    def do_reboot(self, words: list[str], keys: Keys) -> None:
        """`reboot NODE [for=S]`: everything on it dies; its agent starts after S seconds, or by `start NODE` (F39)."""
        self.sim.reboot(words[0])
        if "for" in keys:
            self.sim.clock.after(float(keys["for"]), self.sim.agents[words[0]].start)

    def do_blind(self, words: list[str], keys: Keys) -> None:
        """`blind NODE [for=S] [end=yes]`: its agent cannot look into /proc (F45)."""
        host = self.sim.hosts[words[0]]
        host.proc_blind = "end" not in keys
        self._later(keys, "proc_blind", host, value=False)

    def do_card(self, words: list[str], _: Keys) -> None:
        """`card NODE INDEX lost|back`: it falls off the bus, and what computed on it dies (F72); it is back."""
        host = self.sim.hosts[words[0]]
        uuid = host.devices[int(words[1])].uuid
        if words[2] == "back":
            host.lost.discard(uuid)
            return
        host.lost.add(uuid)
        for engine in [e for e in host.engines if uuid in e.start.gpus]:
            engine.ailing = "its card fell off the bus"
            host.dies(engine, -6)

    def do_nvml(self, words: list[str], keys: Keys) -> None:
        """`nvml NODE [for=S] [end=yes]`: its GPUs answer nobody (F59)."""
        host = self.sim.hosts[words[0]]
        host.nvml_blind = "end" not in keys
        self._later(keys, "nvml_blind", host, value=False)

    # ------------------------------------------------------------ network

    def do_cut(self, words: list[str], keys: Keys) -> None:
        """`cut A [B] [one=way] [for=S]`: no message from A to B comes through, nor back; B is control if not named."""
        ends = self._ends(words)
        lines = {ends} if "one" in keys else {ends, ends[::-1]}
        self.sim.net.cut |= lines
        if "for" in keys:
            self.sim.clock.after(float(keys["for"]), lambda: self._heal(lines))

    def do_heal(self, words: list[str], _: Keys) -> None:
        """`heal A [B]`: ends a cut."""
        ends = self._ends(words)
        self._heal({ends, ends[::-1]})

    def _heal(self, lines: set[Ends]) -> None:
        self.sim.net.cut -= lines

    def _ends(self, words: list[str]) -> Ends:
        a, b = (*words, "control")[:2]
        return a, b

    def do_weather(self, _: list[str], keys: Keys) -> None:
        """`weather [lost=0.05] [replies=0] [repeated=0.1] [late=0.2] [for=S]`: odds of each message; needs dice."""
        bad = Weather(
            lost=float(keys.get("lost", 0.05)),
            replies=float(keys.get("replies", 0)),
            repeated=float(keys.get("repeated", 0.1)),
            late=float(keys.get("late", 0.2)),
            usual_s=0.2,
        )
        self.sim.net.weather = bad
        self._later(keys, "weather", self.sim.net, CALM)

    # ------------------------------------------------------------ clients and people

    def _gateway(self, name: str) -> Gateway | None:
        return next((g for g in self.sim.gateways if g.name.rstrip("'") == name), None)

    def do_ask(self, words: list[str], keys: Keys) -> None:
        """`ask MODEL SECONDS [by=gateway]`: a request that takes so long once it is answered."""
        gateway = self._gateway(keys.get("by", "gateway"))
        if gateway is not None and gateway.up:
            gateway.ask(words[0], float(words[1]))

    def do_silent(self, words: list[str], keys: Keys) -> None:
        """`silent gateway for=S`: alive, and nobody hears it."""
        gateway = self._gateway(words[0])
        if gateway is not None and not gateway.silent:
            gateway.falls_silent()
            self._later(keys, "silent", gateway, value=False)

    def do_llmgw(self, words: list[str], _: Keys) -> None:
        """`llmgw VERB [NAME]`, an operator's word: pause, resume, confirm, clear [MODEL], stop REPLICA, force SHARD,

        forget NODE, drain NODE[/GPU], undrain NODE[/GPU], wake MODEL.
        """
        verb, about = (*words, "")[:2]
        self.sim.people.does(verb, about)
