"""Breadth first through all worlds that can come of one, each once: the shortest way to a broken law, or how many hold.

Answers for: a visited set, a trace a person can read, and what is left when nothing more happens by itself. May not know
what a step means.
"""

from __future__ import annotations

from collections import deque
from typing import NamedTuple

from tests.model.steps import Model
from tests.model.values import World


class Found(NamedTuple):
    """`wrong` and `trace` are of the shortest way to a broken law; `whole`: there is no world left to look at."""

    worlds: int
    steps: int
    depth: int
    rest: int
    whole: bool
    wrong: str = ""
    trace: tuple[str, ...] = ()

    @property
    def told(self) -> str:
        lines = [f"{i:3} {said}" for i, said in enumerate(self.trace, 1)]
        return "\n".join([*lines, f"    WRONG: {self.wrong}"] if self.wrong else lines)


def explore(model: Model, start: World, *, depth: int = 10**9, worlds: int = 10**9) -> Found:
    came: dict[World, tuple[World, str] | None] = {start: None}
    waiting = deque([(start, 0)])
    steps = rest = deepest = 0
    whole = True
    while waiting:
        world, at = waiting.popleft()
        deepest = max(deepest, at)
        if at >= depth or len(came) >= worlds:
            whole = False
            continue
        quiet = True
        for step in model.steps(world):
            steps += 1
            quiet = quiet and step.fault
            if step.world in came:
                continue
            came[step.world] = (world, step.said)
            if step.world.wrong:
                trace = _trace(came, step.world)
                return Found(len(came), steps, at + 1, rest, False, step.world.wrong, trace)
            waiting.append((step.world, at + 1))
        rest += quiet
        wrong = at_rest(world) if quiet else ""
        if wrong:
            return Found(len(came), steps, at, rest, False, wrong, _trace(came, world))
    return Found(len(came), steps, deepest, rest, whole)


def at_rest(world: World) -> str:
    """Nothing more happens by itself: then somebody leads, and the one engine that is wanted runs and is known."""
    leading = [c for c in world.controls if c.leads]
    running = {i for a in world.agents for _, i in a.alive}
    known = [
        {x.incarnation for n in c.state.value.nodes.values() for x in n.shards if x.holds}
        for c in leading
    ]
    if not leading:
        return "at rest somebody leads"
    if len(running) != 1:
        return f"at rest one engine runs, not {len(running)}"
    if running not in known:
        return f"at rest its leader knows the engine that runs: {known}"
    led = {(c.state.value.epoch, c.state.value.leader_uuid) for c in leading}
    for agent in world.agents:
        token = agent.core.value.token
        if token is None or (token.epoch, token.leader_uuid) not in led:
            return f"at rest every agent obeys a leader: {agent.node} obeys {token}, there leads {led}"
    return ""


def _trace(came: dict[World, tuple[World, str] | None], world: World) -> tuple[str, ...]:
    said: list[str] = []
    while (step := came[world]) is not None:
        world, words = step
        said.append(words)
    return tuple(reversed(said))
