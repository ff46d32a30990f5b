"""Scenarios as text: prose, then blocks of commands, `----`, and the trace that must follow (tests/scripts/*.txt).

The fleet is the simulator's, with a calm network and no dice: what a script shows is what the real core decides. The
judge watches here too. `python -m tests.sim --words` is the manual of the commands (`commands.py`: several at once, and
at a time); `--rewrite` writes the traces anew: commit a changed one only if you understand it. A history that failed
becomes a script by `--shrink SEED`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from difflib import unified_diff
from pathlib import Path
from typing import NamedTuple

from tests.sim.commands import Commands
from tests.sim.simulation import Core

FOLDER = Path(__file__).resolve().parent.parent / "scripts"


class Block(NamedTuple):
    commands: tuple[str, ...]
    expected: tuple[str, ...]


def scripts() -> list[Path]:
    return sorted(FOLDER.glob("*.txt"))


def parse(text: str) -> tuple[str, list[Block]]:
    """The prose (lines that begin with #) and the blocks, which are separated by empty lines."""
    prose: list[str] = []
    blocks: list[Block] = []
    for part in text.split("\n\n"):
        lines = part.strip("\n").split("\n")
        if lines[0].startswith("#"):
            prose.append("\n".join(lines))
        elif lines != [""]:
            cut = lines.index("----") if "----" in lines else len(lines)
            blocks.append(Block(tuple(lines[:cut]), tuple(lines[cut + 1 :])))
    return "\n\n".join(prose), blocks


def played(text: str, core: Core | None = None) -> str:
    """The script as it would be written if what happened is what should; `Broken` where the judge objects."""
    prose, blocks = parse(text)
    commands = Commands(core)
    out = [prose]
    for block in blocks:
        traces = [line for command in block.commands for line in commands.run(command)]
        out.append("\n".join([*block.commands, "----", *(traces or ["(nothing)"])]))
    return "\n\n".join(out) + "\n"


def difference(path: Path) -> str:
    """What happened against what the file says, as a diff; "" where they agree."""
    text = path.read_text()
    return "\n".join(
        unified_diff(
            text.split("\n"), played(text).split("\n"), "expected", "happened", lineterm=""
        )
    )


def rewrite(paths: Sequence[Path]) -> Iterator[Path]:
    """Write every trace anew; yields the files that changed."""
    for path in paths or scripts():
        text = path.read_text()
        new = played(text)
        if new != text:
            path.write_text(new)
            yield path
