"""What is seen of a story, and how it ends: time passes, faults stop, the fleet must be what the catalog wants."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from llmgw.core.reconcile.decide import decide
from llmgw.core.types.plan import (
    DrainReplica,
    NapReplica,
    RollReplica,
    StartReplica,
    StopReplica,
    Wait,
)
from llmgw.core.types.state import State
from tests.sim import older
from tests.sim.network import CALM
from tests.sim.rest import findings
from tests.sim.simulation import Simulation
from tests.sim.words.given import Keys
from tests.sim.words.world import World

WORDS = {
    StartReplica: "start",
    StopReplica: "stop",
    DrainReplica: "drain",
    RollReplica: "roll",
    NapReplica: "nap",
    Wait: "wait",
}
#: How long the fleet has to come to rest, how often it is looked at, and how often in a row it must be there.
REST_S, LOOK_S, LOOKS = 300.0, 12.0, 2


def _evicted_in_use(sim: Simulation) -> int:
    """Loading, queued or generating, and evicted all the same (A63, A64)."""
    return sum(o.reason == "evict" and bool(o.needless) for o in sim.judge.orders.values())


@dataclass
class Seen:
    sim: Simulation
    world: World

    @property
    def _state(self) -> State:
        leader = self.sim.leader
        assert leader is not None
        return leader.picture

    def do_advance(self, words: list[str], _: Keys) -> None:
        """`advance 60s`."""
        self.sim.run(float(words[0].removesuffix("s")))

    def do_plan(self, _: list[str], __: Keys) -> Iterator[str]:
        """`plan`: what the next pass would do: verdicts, and actions in order."""
        plan = decide(self._state, self.sim.clock.now)
        if plan.settling_for:
            yield f"settling, waits for {', '.join(plan.settling_for)}"
        for v in plan.verdicts:
            reason = f" ({v.reason})" if v.reason else ""
            yield f"{v.verdict}{reason} {v.shard.node}:{v.shard.report.shard}: {v.why}"
        for a in plan.actions:
            due = f" in {a.due_s:.0f} s" if isinstance(a, StopReplica) and a.due_s else ""
            held = "" if isinstance(a, Wait) or not a.withheld else f" (withheld: {a.withheld})"
            yield f"{WORDS[type(a)]} {a.model}{due}{held}: {a.why}"
        if plan.blocked is not None:
            yield f"blocked: {plan.blocked.why}"
        yield from (f"warning: {w}" for w in plan.warnings)

    def do_status(self, _: list[str], __: Keys) -> Iterator[str]:
        """`status`: replicas, routes, and what truly runs."""
        for r in self.sim.core.survey(self._state).replicas:
            where = f" {r.endpoint}" if r.endpoint else ""
            yield f"replica {r.replica} of {r.model}: {r.state}, {r.have} of {r.want}{where}"
        leader = self.sim.leader
        assert leader is not None
        for model in leader.table.models.values():
            for route in model.replicas:
                known = ", as the gateway has it" if route.unheard else ""
                yield f"route {route.replica} {route.endpoint} {route.state}{known}"
        for host in self.sim.hosts.values():
            for e in host.live():
                yield f"runs {e.start.shard} ({e.start.incarnation}) attempt {e.attempt} on {e.host}"

    def do_waits(self, _: list[str], __: Keys) -> Iterator[str]:
        """`waits`: by model, how many requests were served, and how long the longest of them waited; who never was."""
        for gateway in self.sim.gateways:
            for model, waits in sorted(gateway.waited.items()):
                yield f"{model}: {len(waits)} served, the longest wait {max(waits):.1f} s"
            yield (
                f"left {gateway.left}, no room {gateway.refused.total()}, cut {gateway.cut}; "
                f"evicted in use {_evicted_in_use(self.sim)}"
            )

    def do_failures(self, _: list[str], __: Keys) -> Iterator[str]:
        """`failures`: what counts against a model (A67)."""
        for model, failures in self._state.failures.items():
            yield f"{model}: {len(failures)} failed, last: {failures[-1].error}"

    # ------------------------------------------------------------ the end

    def do_calm(self, _: list[str], __: Keys) -> None:
        """`calm`: all faults stop; what is down is started, what is stopped wakes."""
        sim = self.sim
        sim.say("fate", "", "all faults stop")
        sim.requires = ""
        if sim.catalog_broken:
            sim.catalog_broken = False
            for control in sim.controls.values():
                control.reload(sim.catalog)
        sim.net.weather, sim.habits.exec_fails, sim.habits.trouble = CALM, 0.0, 0.0
        sim.net.cut.clear()
        for host in sim.hosts.values():
            host.disk_full = host.proc_blind = host.nvml_blind = False
            host.strangers = []
            for engine in host.live():
                self.world.wakes(engine)
        for agent in sim.agents.values():
            if agent.version != older.TODAY:
                agent.crash("upgraded")
                agent.version = older.TODAY
            agent.disarm()
            agent.thaw()
            agent.start()
        for gateway in sim.gateways:
            gateway.silent = False
        for control in sim.controls.values():
            control.disk_full = False
            control.disarm()
            control.thaw()
        sim.lease.back()
        for control in sim.controls.values():
            control.start()

    def do_rest(self, words: list[str], _: Keys) -> None:
        """`rest [long]`: the operator tidies up; before long the fleet must be, and stay, what the catalog wants."""
        sim, there = self.sim, 0
        end_s = sim.clock.now + REST_S
        while sim.clock.now < end_s and (there < LOOKS or words == ["long"]):
            sim.run(LOOK_S)
            sim.people.tidies()
            there = 0 if any(findings(sim)) else there + 1
        if there < LOOKS:
            sim.judge.at_rest()
