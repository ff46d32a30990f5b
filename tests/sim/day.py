"""Days of traffic on fleets too small for all of their models: who waits how long, who goes, and who never may.

Calm in everything but the clients, unless it is asked for. What one seed gives is one day: cards, models, and the hours
in which they are asked for. The judge watches as everywhere; the figures are for people.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import partial
from random import Random

from typing_extensions import override

from tests.sim.commands import Commands
from tests.sim.simulation import Core, Simulation

#: Of every model here, in seconds; the longest request ends well within the time that a drain has.
YIELD_S, MIN_UP_S, DRAIN_S, LOAD_S, REQUEST_S = 60.0, 15.0, 30.0, (2.0, 12.0), (0.5, 20.0)
#: From an end to the next start: probes, messages, the exit, the memory that comes back, and the tick of a pass.
BETWEEN_S = 8.0
PATIENCE_S = 3600.0


@dataclass
class Figures:
    days: int = 0
    requests: int = 0
    evicted: int = 0
    yielded: int = 0
    in_use: int = 0
    cut: int = 0
    left: int = 0
    refused: int = 0
    waits_s: list[float] = field(default_factory=list)
    #: the longest wait as a share of load + yield_after + one drain of that model
    share: float = 0.0

    def add(self, other: Figures) -> None:
        for name in ("days", "requests", "evicted", "yielded", "in_use", "cut", "left", "refused"):
            setattr(self, name, getattr(self, name) + getattr(other, name))
        self.waits_s += other.waits_s
        self.share = max(self.share, other.share)

    @override
    def __str__(self) -> str:
        waits = sorted(self.waits_s) or [0.0]
        at = [waits[int(q * (len(waits) - 1))] for q in (0.5, 0.99, 1.0)]
        return (
            f"{self.days} days, {self.requests} requests; evicted {self.evicted} idle and {self.yielded} that yielded; "
            f"loading, queued or generating ones evicted: {self.in_use}, streams cut: {self.cut}, "
            f"starved: {self.left + self.refused}; waits p50 {at[0]:.1f} s, p99 {at[1]:.1f} s, max {at[2]:.1f} s, "
            f"at most {self.share:.2f} of load + yield_after + one drain"
        )


class Day:
    """`cards` of 24 GiB and `models` of 20 GiB each: as many as there are more of them are without a place."""

    def __init__(self, seed: int, cards: int, models: int, core: Core | None = None) -> None:
        self.rng = Random(f"day {seed}")
        self.commands = Commands(core)
        self.sim: Simulation = self.commands.sim
        self.load_s = {f"m{i}": round(self.rng.uniform(*LOAD_S), 1) for i in range(models)}
        for i in range(cards):
            self.commands.act(f"node box{i} gpus=24")
        self.commands.act(f"catalog start_limit={cards}")
        keys = f"yield={YIELD_S} min_up={MIN_UP_S} drain={DRAIN_S}"
        for name, load_s in self.load_s.items():
            idle = self.rng.choice((40, 600, 3600))
            self.commands.act(f"model {name} min=0 memory=20 load={load_s} idle={idle} {keys}")
        boxes = " ".join(f"box{i}" for i in range(cards))
        self.commands.act(f"start {boxes} control gateway")
        (self.gateway,) = self.sim.gateways
        self.gateway.patience_s = PATIENCE_S

    def run(self, seconds: float, *, faults: bool = False, pressed: bool = False) -> Figures:
        """From one busy hour into the next: each model has times in which it is asked without a pause, and quiet ones.

        `faults`: control and agents are killed, and started again soon after; `pressed`: no model has a quiet time.
        """
        self.sim.run(65.0)  # control has heard every gateway by then
        began = self.sim.clock.now
        for fault_s in range(100, int(seconds), 150) if faults else ():
            who = self.rng.choice(("control", "box0"))
            self.sim.clock.at(began + fault_s, partial(self._dies, who))
        requests = 0
        for at_s, name, for_s in self._traffic(seconds, pressed=pressed):
            self.sim.clock.run_until(began + at_s)
            self.gateway.ask(name, for_s)
            requests += 1
        self.sim.run(60.0 + 2 * (YIELD_S + DRAIN_S) * len(self.load_s))
        return self._figures(requests)

    def _dies(self, who: str) -> None:
        self.commands.act(f"at 0 kill {who} for=4")

    def _traffic(self, seconds: float, *, pressed: bool) -> Iterator[tuple[float, str, float]]:
        asks = []
        for name in self.load_s:
            at_s = 0.0
            while at_s < seconds:
                busy = pressed or self.rng.random() < 0.5
                gap_s = self.rng.choice((2.0, 8.0)) if busy else self.rng.choice((60.0, 240.0))
                until_s = at_s + self.rng.uniform(60.0, 600.0)
                while (at_s := at_s + self.rng.expovariate(1 / gap_s)) < min(until_s, seconds):
                    asks.append((at_s, name, round(self.rng.uniform(*REQUEST_S), 1)))
        return iter(sorted(asks))

    def _figures(self, requests: int) -> Figures:
        orders = [o for o in self.sim.judge.orders.values() if o.reason == "evict"]
        yielded = sum("yield_after" in o.why for o in orders)
        figures = Figures(days=1, requests=requests, yielded=yielded)
        figures.evicted = len(orders) - yielded
        figures.in_use = sum(bool(o.needless) for o in orders)
        figures.cut = self.gateway.cut
        figures.left = self.gateway.left + len(self.gateway.waiting)
        figures.refused = self.gateway.refused.total()
        for name, waits in self.gateway.waited.items():
            figures.waits_s += waits
            limit_s = self.load_s[name] + YIELD_S + DRAIN_S
            figures.share = max(figures.share, max(waits) / limit_s)
        return figures
