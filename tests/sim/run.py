"""Run a seed; a failure carries everything that is needed to understand and replay it."""

from __future__ import annotations

import traceback
from collections import Counter
from dataclasses import dataclass, field

from typing_extensions import override

from tests.sim.faults import Chaos
from tests.sim.judge import Broken
from tests.sim.simulation import Core, Simulation


class Failure(Exception):  # noqa: N818 - it is the finding, not an error
    def __init__(self, seed: int, invariant: str, said: str, story: str) -> None:
        self.seed, self.invariant, self.said = seed, invariant, said
        replay = f"replay: python -m tests.sim --seed {seed} -v"
        super().__init__(f"{story}\n\nseed {seed}: {said}\n{replay}")


def run_seed(seed: int, core: Core | None = None) -> Simulation:
    """The finished simulation; `Failure` where an invariant broke or the core itself raised."""
    chaos = Chaos(seed, core)
    try:
        return chaos.run()
    except Broken as e:
        raise Failure(seed, e.invariant, str(e), chaos.sim.story()) from e
    except Exception as e:
        said = "".join(traceback.format_exception_only(e)).strip()
        story = f"{chaos.sim.story()}\n\n{traceback.format_exc()}"
        raise Failure(seed, "the core does not raise", f"the core raised {said}", story) from e


@dataclass
class Total:
    seeds: int = 0
    steps: int = 0
    spawned: int = 0
    needless: int = 0
    checks: Counter[str] = field(default_factory=Counter)

    def add(self, sim: Simulation) -> None:
        self.seeds += 1
        self.steps += sim.clock.steps
        self.spawned += sim.judge.spawned
        self.needless += sim.judge.needless
        self.checks.update(sim.judge.checks)

    @override
    def __str__(self) -> str:
        return (
            f"{self.seeds} histories, {self.steps} steps, {self.spawned} engines started; "
            f"engines restarted that need not have been: {self.needless}"
        )
