"""The smallest script that still breaks the same invariant: lines are left out while the failure stays (delta debugging).

A history is a script already (`chaos.py`), and its chance is in streams (`dice.py`), so a fault less leaves the others as
they were. Bounded by a number of replays. It decides nothing about what is right: the judge does.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

from tests.sim.commands import Commands
from tests.sim.judge import Broken
from tests.sim.run import RAISED, Failure
from tests.sim.simulation import Core

#: Replays at most; a history costs a few hundredths of a second.
REPLAYS = 600
#: A failure may come so much later once others are left out.
LATER_S = 60.0
Lines = tuple[str, ...]


def outcome(lines: Sequence[str], core: Core | None = None) -> tuple[str, str]:
    """The invariant that these lines break and the sentence, or ("", "")."""
    commands = Commands(core)
    try:
        for line in lines:
            commands.act(line)
    except Broken as e:
        return e.invariant, str(e)
    except Exception as e:  # noqa: BLE001 - a core that raises is a finding too
        return RAISED, f"{type(e).__name__}: {e}"
    return "", ""


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
        """First what went wrong, then what there was, then what it hung on."""
        self._fewer(re.compile(r"at [0-9.]+ (?!calm|start )"))
        self._fewer(re.compile(r"model |engine |node |catalog |controls "))
        self._try(lambda line: [] if line.startswith("dice ") else [line])
        self._fewer(re.compile(r"at [0-9.]+ (?!calm|start )"))
        for key in ("nth", "within", "by", "code", "repeated", "late"):
            self._try(lambda line, key=key: [re.sub(rf" {key}=\S+", "", line)])  # type: ignore[misc]
        self._try(_apart)
        self._fewer(re.compile(r"at [0-9.]+ (?!calm|start )"))
        return self.lines

    def _fewer(self, kind: re.Pattern[str]) -> None:
        """Leave out lines of a kind: halves, quarters, and so on down to single ones."""
        size = max(sum(map(bool, map(kind.match, self.lines))) // 2, 1)
        while size:
            at = 0
            while at < (count := sum(map(bool, map(kind.match, self.lines)))):
                there = [i for i, line in enumerate(self.lines) if kind.match(line)]
                out = set(there[at : at + size])
                kept = tuple(line for i, line in enumerate(self.lines) if i not in out)
                if not self._still(kept):
                    at += size
                if self.left <= 0:
                    return
            size = min(size // 2, count) if count else 0

    def _try(self, change: Callable[[str], list[str]]) -> None:
        self._still(tuple(new for line in self.lines for new in change(line)))

    def _still(self, lines: Lines) -> bool:
        """Whether these fail in the same way; then they are what we have."""
        if lines == self.lines or self.left <= 0:
            return False
        self.left -= 1
        same = outcome(lines, self.core)[0] == self.invariant
        if same:
            self.lines = lines
        return same


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
    _, said = outcome(lines, core)
    given = [line for line in lines if not line.startswith("at ") and not line.startswith("rest")]
    happens = [line for line in lines if line not in given]
    prose = (
        f"# A00, F00. (which statement this is about) Seed {failure.seed} broke, made smaller:\n"
        f"# {said}"
    )
    blocks = ["\n".join([*given, "----"]), "\n".join([*happens, "----"])]
    return "\n\n".join([prose, *blocks]) + "\n"


def broken_by(text: str, core: Core | None = None) -> tuple[str, str]:
    """The invariant that a script's commands break, whatever its traces say."""
    lines = [line for line in text.split("\n") if line and not line.startswith(("#", "----"))]
    return outcome(lines, core)
