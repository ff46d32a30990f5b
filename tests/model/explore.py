"""Breadth first through all worlds that can come of one, each once: the shortest way to a broken law, or how many hold.

Answers for: a visited set, a trace that a person can read, what is left when nothing more happens by itself, and that
it always comes to that. May not know what a step means.
"""

from __future__ import annotations

from collections import deque
from typing import NamedTuple

from tests.model.steps import Model
from tests.model.values import World


class Found(NamedTuple):
    """`wrong` and `trace` are of the shortest way to a broken law; `whole`: there is no world left to look at.

    `rest`: worlds in which nothing more happens by itself.
    """

    worlds: int
    steps: int
    depth: int
    rest: int
    whole: bool = False
    wrong: str = ""
    trace: tuple[str, ...] = ()

    @property
    def told(self) -> str:
        lines = [f"{i:3} {said}" for i, said in enumerate(self.trace, 1)]
        return "\n".join([*lines, f"    WRONG: {self.wrong}"] if self.wrong else lines)


def explore(model: Model, start: World, *, depth: int = 10**9, worlds: int = 10**9) -> Found:
    came: dict[World, tuple[World, str] | None] = {start: None}
    onward: dict[World, list[World]] = {}
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
            if not step.fault:
                onward.setdefault(world, []).append(step.world)
            if step.world in came:
                continue
            came[step.world] = (world, step.said)
            if step.world.wrong:
                trace = _trace(came, step.world)
                return Found(len(came), steps, at + 1, rest, wrong=step.world.wrong, trace=trace)
            waiting.append((step.world, at + 1))
        rest += quiet
        wrong = at_rest(world) if quiet else ""
        if wrong:
            trace = _trace(came, world)
            return Found(len(came), steps, at, rest, wrong=wrong, trace=trace)
    ring = _ring(onward) if whole else None
    if ring is not None:
        wrong = "it comes to rest: from here it may go round for ever without any fault"
        return Found(len(came), steps, deepest, rest, wrong=wrong, trace=_trace(came, ring))
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
            return (
                f"at rest every agent obeys a leader: {agent.node} obeys {token}, there leads {led}"
            )
    return ""


def _ring(onward: dict[World, list[World]]) -> World | None:
    """A world on a way that leads back to it, of steps that happen by themselves and change something."""
    into: dict[World, int] = dict.fromkeys(onward, 0)
    for world, nexts in onward.items():
        for after in nexts:
            into[after] = into.get(after, 0) + (after != world)
    free = [world for world, count in into.items() if not count]
    while free:
        world = free.pop()
        del into[world]
        for after in onward.get(world, ()):
            if after != world:
                into[after] -= 1
                if not into[after]:
                    free.append(after)
    return next(iter(into), None)


def _trace(came: dict[World, tuple[World, str] | None], world: World) -> tuple[str, ...]:
    said: list[str] = []
    while (step := came[world]) is not None:
        world, words = step
        said.append(words)
    return tuple(reversed(said))
