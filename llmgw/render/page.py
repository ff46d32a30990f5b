"""Tables and lines: on a terminal with colour and wrapping, through a pipe plain, whole and without boxes.

Answers for: how something looks. It may not know what it shows; state words carry the meaning, colour only repeats it.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterable, Iterator, Sequence
from itertools import zip_longest
from typing import NamedTuple, TextIO

#: Looks, as terminals are told of them (ECMA-48, Select Graphic Rendition).
BAD, WARN, GOOD, DIM, HEAD = "1;31", "33", "32", "2", "1"
_SGR = re.compile(r"\x1b\[[0-9;:]*m")
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
    """Without a head when `head` is (). The widest column, which is prose, wraps first on a terminal."""

    head: Sequence[str]
    rows: Sequence[Sequence[str]]


class Look(NamedTuple):
    """How to show: `terminal` wraps at its width, `color` adds colour; a pipe has neither by itself."""

    terminal: bool
    color: bool


def look(choice: str, stream: TextIO | None = None) -> Look:
    """`choice` is --color; NO_COLOR turns colour off unless it is asked for by name."""
    terminal = (stream or sys.stdout).isatty() and os.environ.get("TERM") != "dumb"
    wanted = terminal and not os.environ.get("NO_COLOR")
    return Look(terminal, choice == "always" or (choice == "auto" and wanted))


def show(page: Iterable[Table | str], look: Look, stream: TextIO | None = None) -> None:
    stream = stream or sys.stdout
    width = 0
    if look.terminal:
        import shutil  # noqa: PLC0415 - only a terminal pays for it

        width = shutil.get_terminal_size().columns
    stream.write(text(page, width=width, color=look.color))
    stream.flush()


def _visible(part: Table | str) -> Table | str:
    """Words of engines and other boxes: what would steer a terminal, or end a line, is spelled out."""
    if isinstance(part, str):
        return "\n".join(map(_spelled, part.split("\n")))
    return Table(part.head, [[_spelled(cell) for cell in row] for row in part.rows])


def _spelled(text: str) -> str:
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else ascii(c)[1:-1] for c in text)


def quoted(line: str) -> str:
    """A line of an engine's log: its colours are left out, and what else would steer a terminal is spelled out."""
    if line.isprintable():
        return line
    return "\t".join(map(_spelled, _SGR.sub("", line).split("\t")))


def plain(page: Iterable[Table | str]) -> str:
    return text(page)


def text(page: Iterable[Table | str], *, width: int = 0, color: bool = False) -> str:
    """`width` 0: as wide as it is. A line of prose is left to the terminal to wrap, so that it can be copied whole."""
    lines = (
        line
        for part in map(_visible, page)
        for line in (
            [_styled(part, style(part), color=color)]
            if isinstance(part, str)
            else _lines(part, width, color=color)
        )
    )
    return "".join(f"{line}\n" for line in lines)


def _lines(table: Table, width: int, *, color: bool) -> Iterator[str]:
    """Columns two spaces apart, as wide as their widest cell; where there is no room for that cells go over lines.

    Nothing is ever cut: what is too narrow even for that is shown row by row.
    """
    rows = [list(row) for row in (table.head, *table.rows) if row]
    wide = [max(map(_cells, column)) for column in zip_longest(*rows, fillvalue="")]
    if width and not _narrowed(wide, table.head, width):
        yield from _one_by_one(table, width, color=color)
        return
    for number, row in enumerate(rows):
        head = bool(table.head) and not number
        looks = [HEAD if head else style(cell) for cell in row]
        folded = [_folded(cell, wide[i]) for i, cell in enumerate(row)]
        for parts in zip_longest(*folded, fillvalue=""):
            yield _joined(parts, looks, wide, color=color)


def _joined(
    parts: Sequence[str], styles: Sequence[str], wide: Sequence[int], *, color: bool
) -> str:
    line, pad = "", 0
    for part, look, room in zip(parts, styles, wide, strict=False):
        if part:
            line += " " * pad + _styled(part, look, color=color)
            pad = 0
        pad += room - _cells(part) + GAP
    return line


def _narrowed(wide: list[int], head: Sequence[str], width: int) -> bool:
    """Takes from the widest columns until all fit; False where none can give any more."""
    named = [*map(len, head), *(0 for _ in wide[len(head) :])]
    least = [min(w, max(LEAST, n)) for w, n in zip(wide, named, strict=True)]
    while sum(wide) + GAP * (len(wide) - 1) > width:
        room, most = max((w - m, i) for i, (w, m) in enumerate(zip(wide, least, strict=True)))
        if not room:
            return False
        wide[most] -= 1
    return True


def _one_by_one(table: Table, width: int, *, color: bool) -> Iterator[str]:
    """A row as lines of its own, a cell each with its head before it; what is empty or `-` is left out."""
    named = max(map(len, table.head), default=0)
    for number, row in enumerate(table.rows):
        if number:
            yield ""
        for name, cell in zip_longest(table.head, row, fillvalue=""):
            if cell in {"", "-"}:
                continue
            room = width - named - GAP
            beside = named and room >= LEAST
            if name and not beside:
                yield _styled(name, HEAD, color=color)
            for part in _folded(cell, room if beside else width):
                if beside:
                    yield _joined((name, part), (HEAD, style(cell)), (named, 0), color=color)
                    name = ""  # noqa: PLW2901 - said once
                else:
                    yield _styled(part, style(cell), color=color)


def _folded(cell: str, room: int) -> list[str]:
    if _cells(cell) <= room:
        return [cell]
    import textwrap  # noqa: PLC0415 - only a narrow terminal pays for it

    return textwrap.wrap(cell, room)


def _cells(text: str) -> int:
    """How many places it takes on a terminal; those of the East are two wide."""
    if text.isascii():
        return len(text)
    from unicodedata import east_asian_width  # noqa: PLC0415

    return sum(2 if east_asian_width(c) in "WF" else 1 for c in text)


def _styled(text: str, look: str, *, color: bool) -> str:
    return f"\x1b[{look}m{text}\x1b[0m" if color and look else text


def style(cell: str) -> str:
    return "" if cell == "-" else STYLES.get(cell.strip().split(" ", 1)[0], "")


def size(amount: float | None) -> str:
    """Bytes as people read them; `-` for unknown."""
    if amount is None:
        return "-"
    return f"{amount / (1 << 30):.1f} GiB"


def age(seconds: float | None) -> str:
    """The two largest units that are not zero: 3d4h, 5m12s, 8s."""
    if seconds is None:
        return "-"
    left = max(int(seconds), 0)
    parts: list[str] = []
    for unit, length in (("d", 86400), ("h", 3600), ("m", 60), ("s", 1)):
        count, left = divmod(left, length)
        if count or (unit == "s" and not parts):
            parts.append(f"{count}{unit}")
        elif parts:
            break
        if len(parts) == 2:  # noqa: PLR2004 - two units say enough
            break
    return "".join(parts)
