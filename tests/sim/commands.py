"""A line of a script becomes what it says. An acting word has a second to take effect, unless the line gives its time.

`WORD … ; WORD …`: both at once. `at SECONDS WORD …`: exactly then; without a word time just passes until then.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from inspect import cleandoc
from typing import Any

from tests.sim.dice import Dice
from tests.sim.simulation import Core, Simulation
from tests.sim.words.given import Given, Keys
from tests.sim.words.processes import Processes
from tests.sim.words.seen import Seen
from tests.sim.words.world import World

A_MOMENT_S = 1.0
#: Words after which a second passes, in a story.
ACTS = frozenset(
    {
        *("start", "kill", "reload", "die", "heal", "blind", "ask", "freeze", "hang", "llmgw"),
        *("full", "failover", "lease", "older", "double", "reuse"),
    }
)
Word = Callable[[list[str], Keys], Iterator[str] | None]


class Commands:
    def __init__(self, core: Core | None = None) -> None:
        self.sim = Simulation(Dice(), core)
        world = World(self.sim)
        parts: tuple[Any, ...] = (
            Given(self.sim),
            Processes(self.sim, {}),
            world,
            Seen(self.sim, world),
        )
        self._words: dict[str, Word] = {
            name.removeprefix("do_"): getattr(part, name)
            for part in parts
            for name in dir(part)
            if name.startswith("do_")
        }
        self._shown = 0

    def run(self, line: str) -> Iterator[str]:
        """The command's own answer, and what happened meanwhile."""
        said = self.act(line)
        trace = self.sim.trace[self._shown :]
        self._shown = len(self.sim.trace)
        for at, who, what, text in trace:
            yield f"{at:6.1f} {who:<8} {what:<14} {text}".rstrip()
        yield from said

    def act(self, line: str) -> list[str]:
        timed = line.startswith("at ")
        if timed:
            _, seconds, *rest = line.split(maxsplit=2)
            self.sim.clock.run_until(float(seconds))
            line = rest[0] if rest else ""
        said: list[str] = []
        acted = False
        for part in filter(None, map(str.strip, line.split(";"))):
            word, *words = part.split()
            keys = dict(w.split("=", 1) for w in words if "=" in w)
            said += self._words[word]([w for w in words if "=" not in w], keys) or ()
            acted = acted or word in ACTS
        if acted and not timed:
            self.sim.run(A_MOMENT_S)
        return said

    def manual(self) -> dict[str, str]:
        return {name: cleandoc(word.__doc__ or "") for name, word in sorted(self._words.items())}
