"""What a page is made of and how words look; shared by the plain page and the one on a terminal. May not write."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

BAD, WARN, GOOD, DIM, HEAD = "bold red", "yellow", "green", "dim", "bold"
#: Between two columns, and what a column keeps when there is little room.
GAP, LEAST = 2, 8
#: First word of a cell -> how it looks where there is colour.
STYLES = {
    "ready": GOOD,
    "loaded": GOOD,
    "=": DIM,
    "+": GOOD,
    "-": BAD,
    "-/+": WARN,
    "!": BAD,
    "?": WARN,
    "failed": BAD,
    "unreachable": BAD,
    "silent": BAD,
    "degraded": BAD,
    "unhealthy": BAD,
    "blocked:": BAD,
    "warning:": WARN,
    "paused": WARN,
    "loading": WARN,
    "starting": WARN,
    "assembling": WARN,
    "draining": WARN,
    "stopping": WARN,
    "unknown": WARN,
    "unloaded": DIM,
    "ok": GOOD,
    "warn": WARN,
    "fail": BAD,
    "skip": DIM,
}


class Table(NamedTuple):
    """Without a head when `head` is (). The widest column, which is prose, wraps first on a terminal.

    `folds`: columns whose names may be broken at their hyphens before the table is none any more.
    """

    head: Sequence[str]
    rows: Sequence[Sequence[str]]
    folds: frozenset[str] = frozenset()


class Look(NamedTuple):
    """How to show: `terminal` wraps at its width, `color` adds colour; a pipe has neither by itself."""

    terminal: bool
    color: bool


def style(cell: str) -> str:
    word = cell.strip()
    return "" if word == "-" else STYLES.get(word.split(" ", 1)[0], "")
