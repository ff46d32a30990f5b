"""The smallest script that still breaks the same invariant: lines are left out while it fails (delta debugging).

A history is a script already (`chaos.py`), and its chance is in streams (`dice.py`), so a fault less leaves the others
as they were. Bounded by a number of replays. It decides nothing about what is right: the judge does.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import NamedTuple

from tests.sim.commands import Commands
from tests.sim.judge import Broken
from tests.sim.run import RAISED, Failure
from tests.sim.simulation import Core

#: Replays at most; a history costs a few hundredths of a second.
REPLAYS = 600
#: Lines that are left out as a whole.
FAULTS = re.compile(r"at [0-9.]+ (?!calm|start )")
GIVEN = re.compile(r"model |engine |node |catalog |controls ")
#: A failure may come so much later once others are left out.
LATER_S = 60.0
Lines = tuple[str, ...]


class Outcome(NamedTuple):
    """The invariant that was broken, the sentence, and when; "" where none was."""

    invariant: str = ""
    said: str = ""
    at_s: float = 0.0


def outcome(lines: Sequence[str], core: Core | None = None) -> Outcome:
    commands = Commands(core)
    try:
        for line in lines:
            commands.act(line)
    except Broken as e:
        return Outcome(e.invariant, str(e), commands.sim.clock.now)
    except Exception as e:  # noqa: BLE001 - a core that raises is a finding too
        return Outcome(RAISED, f"{type(e).__name__}: {e}", commands.sim.clock.now)
    return Outcome()


class Shrinker:
    def __init__(self, failure: Failure, core: Core | None = None) -> None:
        self.invariant = failure.invariant
        self.core = core
        self.left = REPLAYS
        lines = failure.lines
        if not lines[-1].startswith("rest"):
            lines = (*lines, f"at {failure.at_s + LATER_S:.2f}")
        self.lines: Lines = lines

    def smallest(self) -> Lines:
        """First what went wrong, then what it hung on, then what there was."""
        self._fewer(FAULTS)
        self._still(tuple(line for line in self.lines if not line.startswith("dice ")))
        self._still(tuple(part for line in self.lines for part in _apart(line)))
        self._fewer(FAULTS)
        self._fewer(GIVEN)
        for name in sorted({w for line in self.lines for w in _started(line)}):
            self._still(tuple(filter(None, (_without(line, name) for line in self.lines))))
        for key in sorted({k for line in self.lines for k in re.findall(r" (\w+)=", line)}):
            self._still(tuple(re.sub(rf" {key}=\S+", "", line) for line in self.lines))
        self._fewer(FAULTS)
        at_s = outcome(self.lines, self.core).at_s
        self._still(tuple(_until(line, at_s) for line in self.lines))
        return self.lines

    def _fewer(self, kind: re.Pattern[str]) -> None:
        """Leave out lines of a kind: halves, quarters, and so on down to single ones."""
        size = max(sum(bool(kind.match(line)) for line in self.lines) // 2, 1)
        while size:
            at = 0
            while self.left > 0:
                there = [i for i, line in enumerate(self.lines) if kind.match(line)]
                if at >= len(there):
                    break
                out = set(there[at : at + size])
                if not self._still(tuple(x for i, x in enumerate(self.lines) if i not in out)):
                    at += size
            size //= 2

    def _still(self, lines: Lines) -> bool:
        """Whether these fail in the same way; then they are what we have."""
        if lines == self.lines or self.left <= 0:
            return False
        self.left -= 1
        same = outcome(lines, self.core).invariant == self.invariant
        if same:
            self.lines = lines
        return same


def _started(line: str) -> list[str]:
    return line.split()[3:] if line.startswith("at ") and line.split()[2:3] == ["start"] else []


def _without(line: str, name: str) -> str:
    """The line that starts the fleet without one of them, and no line of its own."""
    if line.split()[:2] == ["node", name]:
        return ""
    if name not in _started(line):
        return line
    return " ".join(word for word in line.split() if word != name)


def _until(line: str, at_s: float) -> str:
    """The last line only lets time pass: no more of it than it took."""
    return f"at {at_s + 0.01:.2f}" if len(line.split()) == 2 and line.startswith("at ") else line


def _apart(line: str) -> list[str]:
    """Things at once as a line each, so that they can be left out one by one; a catalog edit stays whole."""
    head, _, rest = line.partition(" ; ")
    if not rest or not line.startswith("at ") or " reload" in line:
        return [line]
    when = " ".join(head.split()[:2])
    return [head, *(f"{when} {part.strip()}" for part in rest.split(";"))]


def script(failure: Failure, core: Core | None = None) -> str:
    """The failure as a text for tests/scripts; its traces are written by `--rewrite` once it passes."""
    lines = Shrinker(failure, core).smallest()
    said = outcome(lines, core).said
    given = [line for line in lines if not line.startswith("at ") and not line.startswith("rest")]
    happens = [line for line in lines if line not in given]
    prose = (
        f"# A00, F00. (which statement this is about) Seed {failure.seed} broke, made smaller:\n"
        f"# {said}"
    )
    blocks = ["\n".join([*given, "----"]), "\n".join([*happens, "----"])]
    return "\n\n".join([prose, *blocks]) + "\n"


def broken_by(text: str, core: Core | None = None) -> Outcome:
    """What a script's commands break, whatever its traces say."""
    lines = [line for line in text.split("\n") if line and not line.startswith(("#", "----"))]
    return outcome(lines, core)
