"""What happens to llmgw's own processes and to what they keep: started, killed, stopped, cloned, of another version.

`for=S` ends a fault by itself after so many seconds. `at=POINT [nth=1] [within=5]` has it strike at a boundary between
two effects, at the latest after `within` seconds (points: `controls.POINTS`, `agents.POINTS`, any).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from tests.sim import doubles, older
from tests.sim.agents import Agent
from tests.sim.controls import Control, Inventory
from tests.sim.evidence import unreadable
from tests.sim.gateways import Gateway
from tests.sim.simulation import Simulation
from tests.sim.words.given import Keys
from tests.sim.world import Engine


@dataclass
class Processes:
    sim: Simulation
    #: copies of inventories, by control
    backups: dict[str, Inventory]

    def _process(self, word: str) -> Control | Agent:
        return self.sim.controls.get(word) or self.sim.agents[word]

    def _strikes(self, process: Control | Agent, keys: Keys, act: Callable[[str], None]) -> None:
        if "at" not in keys:
            act("")
            return
        nth, within = int(keys.get("nth", 1)), float(keys.get("within", 5))
        if keys["at"].endswith("-epoch"):  # passed by one that starts
            process.crash()
            self._again(process, keys)
            within += float(keys.get("for", 0))
        process.trap(keys["at"], nth, within, act)

    def _again(self, process: Control | Agent, keys: Keys) -> None:
        """Started once more after a while; one that waits for its lease is as good as started."""
        if "for" in keys:
            self.sim.clock.after(float(keys["for"]), process.start)

    def do_start(self, words: list[str], keys: Keys) -> None:
        """`start control|gateway|NODE… [require=WORDS]`: the processes of llmgw.

        require: control is to wait for `confirm`, the world is another than `--require-plan` said (A56).
        """
        self._requires(keys)
        for word in words:
            if word.startswith("gateway"):
                self.sim.gateways.append(Gateway(self.sim, word))
            else:
                self._process(word).start()

    def _requires(self, keys: Keys) -> None:
        self.sim.requires = keys.get("require", self.sim.requires).replace("-", " ")

    def do_kill(self, words: list[str], keys: Keys) -> None:
        """`kill control|gateway|NODE… [at=…] [for=S] [require=WORDS]`: kill -9; engines run on.

        Control starts another gateway. require: as of `start`, when it is started again.
        """
        self._requires(keys)
        for word in words:
            if word.startswith("gateway"):
                self._gateway_dies(word)
                continue
            process = self._process(word)

            def dies(point: str, process: Control | Agent = process) -> None:
                process.crash(f"killed {point.replace('-', ' ')}".rstrip())
                self._again(process, keys)

            self._strikes(process, keys, dies)

    def _gateway_dies(self, word: str) -> None:
        for i, old in enumerate(self.sim.gateways):
            if old.name.rstrip("'") == word:
                old.crash()
                self.sim.gateways[i] = Gateway(self.sim, f"{old.name}'")
                for control in self.sim.controls.values():
                    control.gateway_gone(old.name)

    def do_freeze(self, words: list[str], keys: Keys) -> None:
        """`freeze control|NODE for=S [at=…]`: SIGSTOP, SIGCONT. Its sockets stay up, what comes in waits (F22, F60)."""
        process = self._process(words[0])
        for_s = float(keys["for"])

        def stops(point: str) -> None:
            if process.up and not process.frozen:
                words = f"for {for_s:g} s {point.replace('-', ' ')}".rstrip()
                self.sim.say(_name(process), "is stopped", words)
            process.freeze(for_s)

        self._strikes(process, keys, stops)

    def do_failover(self, _: list[str], keys: Keys) -> None:
        """`failover for=S [at=…]`: the leader is stopped, its lease lapses, another leads; it wakes after S seconds."""
        old = self.sim.leader
        if old is None:
            return
        for_s = float(keys["for"])

        def lapses(_: str) -> None:
            waiting = [url for url in self.sim.lease.waiting if url != old.url]
            if old.up and self.sim.lease.holds(old.url) and waiting:
                old.freeze(for_s)
                self.sim.lease.moves(waiting[0])

        self._strikes(old, keys, lapses)

    def do_broken(self, words: list[str], keys: Keys) -> None:
        """`broken catalog [for=S]`: the file cannot be read; a control goes on with the last good one (F11)."""
        assert words == ["catalog"]
        self.sim.catalog_broken = True
        if "for" in keys:
            self.sim.clock.after(float(keys["for"]), self._readable)

    def _readable(self) -> None:
        self.sim.catalog_broken = False
        for control in self.sim.controls.values():
            control.reload(self.sim.catalog)

    def do_lease(self, words: list[str], keys: Keys) -> None:
        """`lease lost [for=S]`: the store of the lease answers nobody (F30)."""
        assert words == ["lost"]
        self.sim.lease.lost()
        if "for" in keys:
            self.sim.clock.after(float(keys["for"]), self.sim.lease.back)

    # ------------------------------------------------------------ what they keep

    def do_inventory(self, words: list[str], keys: Keys) -> None:
        """`inventory lost|kept|old [control] [for=S]`: the file is deleted, copied, or the copy restored (F14, F16).

        Its control is killed for it, if it runs. A torn file is set aside, which is as good as deleted.
        """
        what, *rest = words
        control = self.sim.controls[rest[0]] if rest else next(iter(self.sim.controls.values()))
        if what == "kept":
            self.backups[control.url] = control.disk
            return
        control.crash(f"killed, its inventory is {what}")
        control.disk = Inventory() if what == "lost" else self.backups.get(control.url, Inventory())
        self._again(control, keys)

    def do_journal(self, words: list[str], keys: Keys) -> None:
        """`journal NODE lost [for=S]`: its agent's state dir is empty; engines are found by their markers (F43)."""
        node, lost = words
        assert lost == "lost"
        agent = self.sim.agents[node]
        agent.crash("killed, its journal is lost")
        agent.journal, agent.token = {}, None
        self.sim.judge.epochs.pop(node, None)
        for engine in agent.host.live():
            self._forgotten(engine)
        self._again(agent, keys)

    def do_record(self, words: list[str], keys: Keys) -> None:
        """`record NODE SHARD torn [for=S]`: the agent dies, and the next cannot read that record (F42)."""
        node, shard, torn = words
        assert torn == "torn"
        agent = self.sim.agents[node]
        agent.crash("killed, a record is torn")
        for key in [k for k in agent.journal if k[0] == shard]:
            agent.journal[key] = unreadable(key, agent.host.boot_id)
            for engine in agent.host.live(key):
                self._forgotten(engine)
        self._again(agent, keys)

    def _forgotten(self, engine: Engine) -> None:
        """What only its record told: that it was to be drained, that it had its TERM."""
        if engine.signals:
            engine.signals, engine.ailing = [], "it was being stopped"
        else:
            self.sim.judge.forgets(engine)

    def do_full(self, words: list[str], keys: Keys) -> None:
        """`full control|NODE [for=S]`: no room on its disk; `end=yes` makes room (F15)."""
        word = words[0]
        there = self.sim.controls.get(word) or self.sim.hosts[word]
        there.disk_full = "end" not in keys
        if "for" in keys:
            self.sim.clock.after(float(keys["for"]), lambda: setattr(there, "disk_full", False))

    def do_clock(self, words: list[str], keys: Keys) -> None:
        """`clock control|NODE by=S [for=S]`: its clock on the wall is set so much ahead, or back (F26, F41)."""
        word = words[0]
        there = self.sim.controls.get(word) or self.sim.hosts[word]
        there.wall_s += float(keys["by"])
        if "for" in keys:
            self.sim.clock.after(float(keys["for"]), lambda: setattr(there, "wall_s", 0.0))

    # ------------------------------------------------------------ others of their kind

    def do_older(self, words: list[str], keys: Keys) -> None:
        """`older NODE VERSION [for=S]`: its agent is replaced by an older one, and after a while by today's (F55)."""
        node, version = words
        assert version in older.VERSIONS
        agent = self.sim.agents[node]
        agent.crash("replaced by an older one")
        agent.version = version
        agent.start()
        if "for" in keys:
            self.sim.clock.after(float(keys["for"]), lambda: self._today(agent))

    def _today(self, agent: Agent) -> None:
        if agent.version != older.TODAY:
            agent.crash("upgraded")
            agent.version = older.TODAY
            agent.start()

    def do_double(self, words: list[str], keys: Keys) -> None:
        """`double NODE [clone=yes]`: another machine registers under its name, or with its state dir (F52, F53)."""
        doubles.knocks(self.sim, self.sim.agents[words[0]], clone="clone" in keys)


def _name(process: Control | Agent) -> str:
    return process.url if isinstance(process, Control) else process.facts.node
