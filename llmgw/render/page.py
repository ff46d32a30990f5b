"""Tables and lines: on a terminal with colour and wrapping, through a pipe plain, whole and without boxes.

Answers for: how something looks. It may not know what it shows; state words carry the meaning, colour only repeats it.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterable
from itertools import zip_longest
from typing import TextIO

from llmgw.render.look import GAP, Look, Table, style

__all__ = ["Look", "Table", "age", "look", "plain", "quoted", "show", "size", "style", "text"]
_SGR = re.compile(r"\x1b\[[0-9;:]*m")


def look(choice: str, stream: TextIO | None = None) -> Look:
    """`choice` is --color; NO_COLOR turns colour off unless it is asked for by name."""
    terminal = (stream or sys.stdout).isatty() and os.environ.get("TERM") != "dumb"
    wanted = terminal and not os.environ.get("NO_COLOR")
    return Look(terminal, choice == "always" or (choice == "auto" and wanted))


def show(page: Iterable[Table | str], look: Look, stream: TextIO | None = None) -> None:
    stream = stream or sys.stdout
    stream.write(text(page, look))
    stream.flush()


def _visible(part: Table | str) -> Table | str:
    """Words of engines and other boxes: what would steer a terminal, or end a line, is spelled out."""
    if isinstance(part, str):
        return "\n".join(map(_spelled, part.split("\n")))
    return part._replace(rows=[[_spelled(cell) for cell in row] for row in part.rows])


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
    """Columns two spaces apart, as wide as their widest cell; never cut."""
    return "".join(
        f"{line}\n"
        for part in map(_visible, page)
        for line in ([part] if isinstance(part, str) else _lines(part))
    )


def _lines(table: Table) -> list[str]:
    rows = [list(row) for row in (table.head, *table.rows) if row]
    wide = [max(map(len, column)) for column in zip_longest(*rows, fillvalue="")]
    return [
        (" " * GAP).join(cell.ljust(w) for cell, w in zip(row, wide, strict=False)).rstrip()
        for row in rows
    ]


def text(page: Iterable[Table | str], look: Look) -> str:
    """As `look` has it: wrapped at the terminal's width, but for lines of prose, so that those can be copied whole."""
    if not (look.terminal or look.color):
        return plain(page)
    from llmgw.render.screen import text_of  # noqa: PLC0415 - only a terminal pays for rich

    return text_of(map(_visible, page), look)


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
