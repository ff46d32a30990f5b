"""Tables and lines: on a terminal with colour and wrapping, through a pipe plain, whole and without boxes.

Answers for: how something looks. It may not know what it shows; state words carry the meaning, colour only repeats it.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Sequence
from typing import NamedTuple, TextIO

BAD = "bold red"
WARN = "yellow"
GOOD = "green"
DIM = "dim"
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
    """Without a head when `head` is (). The last column is prose: on a terminal it is the one that wraps."""

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
    page = [_visible(part) for part in page]
    if look.terminal or look.color:
        _rich(page, look, stream)
    else:
        stream.write(plain(page))
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


def plain(page: Iterable[Table | str]) -> str:
    return "".join(
        f"{line}\n" for part in page for line in ([part] if isinstance(part, str) else lines(part))
    )


def lines(table: Table) -> list[str]:
    """Columns two spaces apart, as wide as their widest cell; never cut."""
    rows = [list(row) for row in (table.head, *table.rows) if row]
    count = max((len(row) for row in rows), default=0)
    wide = [max((len(row[i]) for row in rows if i < len(row)), default=0) for i in range(count)]
    return [
        "  ".join(cell.ljust(w) for cell, w in zip(row, wide, strict=False)).rstrip()
        for row in rows
    ]


def _rich(parts: list[Table | str], look: Look, stream: TextIO) -> None:
    import shutil  # noqa: PLC0415 - only a terminal pays for it

    from rich.console import Console  # noqa: PLC0415
    from rich.table import Table as Grid  # noqa: PLC0415
    from rich.text import Text  # noqa: PLC0415

    width = shutil.get_terminal_size().columns if look.terminal else 10_000
    console = Console(
        file=stream,
        width=width,
        force_terminal=look.color,
        color_system="auto" if look.color and look.terminal else "standard" if look.color else None,
        no_color=not look.color,
        highlight=False,
        markup=False,
        emoji=False,
    )
    for part in parts:
        if isinstance(part, str):
            console.print(Text(part, style=style(part)), soft_wrap=True)
            continue
        grid = Grid(box=None, pad_edge=False, padding=(0, 2, 0, 0), show_header=bool(part.head))
        count = max((len(r) for r in (part.head, *part.rows)), default=0)
        for i in range(count):
            title = part.head[i] if i < len(part.head) else ""
            last = i == count - 1
            grid.add_column(
                title, overflow="fold", no_wrap=not last, header_style="bold" if look.color else ""
            )
        for row in part.rows:
            grid.add_row(*(Text(cell, style=style(cell)) for cell in row))
        console.print(grid)


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
