"""Random histories of two models that only fit beside each other while one sleeps, asked in turns, everybody killed.

The invariants are the judge's: no byte of GPU memory twice, no request sent to a sleeper, no stream cut, nothing is
started twice or restarted needlessly, and at rest the fleet is what the catalog wants. Here they meet sleep always.
"""

from __future__ import annotations

from collections import Counter
from random import Random

import pytest

from tests.sim import agents, controls
from tests.sim.commands import Commands
from tests.sim.judge import Broken
from tests.sim.simulation import Simulation

SEEDS = 120
WORLD = """
node box1 gpus=24
node box2 gpus=12
model alpha min=0 idle=10 memory=14 sleep=1 load=3
model beta min=0 idle=10 memory=14 sleep=1 load=3
model gamma min=0 idle=40 memory=6 load=2
start box1 box2 control gateway
advance 65s
"""
POINTS = (
    *(p for p in agents.POINTS if "CallDoor" in p or "Probe" in p or "WriteRecord" in p),
    *controls.POINTS,
)


def history(seed: int) -> Simulation:
    rng, commands = Random(seed), Commands()
    for line in (f"dice {seed}", *WORLD.strip().split("\n")):
        list(commands.run(line))
    for _ in range(rng.randint(6, 14)):
        for line in _turn(rng):
            list(commands.run(line))
    for line in ("calm", "rest"):
        list(commands.run(line))
    return commands.sim


def _turn(rng: Random) -> list[str]:
    model = rng.choice(("alpha", "beta", "alpha", "beta", "gamma"))
    lines = [f"ask {model} {rng.choice((0.5, 2, 6))}"]
    if rng.random() < 0.5:
        who = rng.choice(("control", "box1"))
        mine = [p for p in POINTS if (p in agents.POINTS) == (who == "box1")]
        lines.insert(0, f"kill {who} at={rng.choice(mine)} for={rng.choice((1, 4, 12))} within=8")
    if rng.random() < 0.15:
        lines.append(rng.choice(("weather lost=0.1 for=10", "cut box1 control for=8")))
    if rng.random() < 0.1:
        lines.append(f"journal box1 lost for={rng.choice((1, 5))}")
    if rng.random() < 0.1:
        lines.append("hang box1 alpha-00/0 for=15")
    if rng.random() < 0.1:
        lines.append(f"silent gateway for={rng.choice((20, 55, 75))}")
    lines.append(f"advance {rng.choice((1, 4, 9, 16, 30))}s")
    return lines


@pytest.mark.parametrize("first", range(0, SEEDS, 20))
def test_what_sleeps_and_wakes_in_the_middle_of_it_all(first: int) -> None:
    turned: Counter[str] = Counter()
    for seed in range(first, first + 20):
        try:
            sim = history(seed)
        except Broken as e:
            pytest.fail(f"seed {seed}: {e}")
        turned.update(sim.judge.turned)
        turned["sent"] += sim.judge.checks["no request is sent to a sleeper"]
    assert turned["falls asleep"] >= 15, "it is about sleep"
    assert turned["wakes"] >= 4
    assert turned["sent"] >= 40
