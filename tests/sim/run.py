"""Run a seed; a failure carries everything that is needed to understand and replay it."""

from __future__ import annotations

import traceback
from collections import Counter
from dataclasses import dataclass, field

from typing_extensions import override

from tests.sim.chaos import Chaos
from tests.sim.judge import Broken
from tests.sim.simulation import Core, Simulation

RAISED = "the core does not raise"


class Failure(Exception):  # noqa: N818 - it is the finding, not an error
    """`lines` are the script of the history so far, `at_s` is when it failed."""

    def __init__(self, chaos: Chaos, invariant: str, said: str, more: str = "") -> None:
        self.seed, self.invariant, self.said = chaos.seed, invariant, said
        self.lines, self.at_s = tuple(chaos.lines), chaos.sim.clock.now
        self.needless = chaos.sim.judge.needless
        told = f"{chaos.sim.story()}{more}\n\nseed {chaos.seed}: {said}"
        replay = f"replay: python -m tests.sim --seed {chaos.seed} -v"
        smaller = f"as a script: python -m tests.sim --shrink {chaos.seed}"
        super().__init__(f"{told}\n{replay}\n{smaller}")


def run_seed(seed: int, core: Core | None = None) -> Simulation:
    """The finished simulation; `Failure` where an invariant broke or the core itself raised."""
    chaos = Chaos(seed, core)
    try:
        return chaos.run()
    except Broken as e:
        raise Failure(chaos, e.invariant, str(e)) from e
    except Exception as e:
        raised = "".join(traceback.format_exception_only(e)).strip()
        said = f"the core raised {raised}"
        raise Failure(chaos, RAISED, said, f"\n\n{traceback.format_exc()}") from e


@dataclass
class Total:
    seeds: int = 0
    steps: int = 0
    spawned: int = 0
    needless: int = 0
    checks: Counter[str] = field(default_factory=Counter)
    struck: Counter[str] = field(default_factory=Counter)

    def add(self, sim: Simulation) -> None:
        self.seeds += 1
        self.steps += sim.clock.steps
        self.spawned += sim.judge.spawned
        self.needless += sim.judge.needless
        self.checks.update(sim.judge.checks)
        self.struck.update(sim.struck)

    @override
    def __str__(self) -> str:
        return (
            f"{self.seeds} histories, {self.steps} steps, {self.spawned} engines started; "
            f"engines restarted that need not have been: {self.needless}"
        )
