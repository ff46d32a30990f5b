"""A page on a terminal, by rich: tables that fold into its width, and colour. May not lose a letter.

rich by itself cuts columns off once all of them are as narrow as it lets them be: widths are worked out here, and what
is too narrow for a table is shown row by row.
"""

from __future__ import annotations

import io
import re
import shutil
import textwrap
from collections.abc import Iterable, Sequence
from itertools import zip_longest

from rich.cells import cell_len
from rich.console import Console
from rich.table import Table as Grid
from rich.text import Text

from llmgw.render.look import GAP, HEAD, LEAST, Look, Table, style

#: A pipe that is asked for colour is as wide as what is shown.
ENDLESS = 10_000
#: A word up to this long is kept whole, for it is a name or a time that somebody copies; a longer one gets as much.
WORD = 32
#: Where names fold, a part of one up to this long is kept whole.
PART = 16
#: Lines that are read, not copied: a sentence of several hundred letters is broken between its words.
READ = ("warning: ", "blocked: ")
_END = re.compile(r"(?:\x1b\[[0-9;]*m| )+$")


def text_of(page: Iterable[Table | str], look: Look) -> str:
    width = shutil.get_terminal_size().columns if look.terminal else ENDLESS
    console = Console(
        file=io.StringIO(),
        width=width,
        force_terminal=look.color,
        color_system="standard" if look.color else None,
        no_color=not look.color,
        highlight=False,
        markup=False,
        emoji=False,
    )
    with console.capture() as said:
        for part in page:
            if isinstance(part, str):
                console.print(
                    Text(_broken(part, width) if look.terminal else part, style(part)),
                    soft_wrap=True,
                )
            else:
                _table(console, part, width)
    return "".join(f"{_END.sub(_bare, line)}\n" for line in said.get().splitlines())


def _bare(end: re.Match[str]) -> str:
    """Without the blanks that fill a cell up, before its colour ends and behind it."""
    return end[0].replace(" ", "")


def _broken(part: str, width: int) -> str:
    if not part.startswith(READ) or not part.isascii():
        return part
    return "\n".join(textwrap.wrap(part, width, break_long_words=False, break_on_hyphens=False))


def _table(console: Console, table: Table, width: int) -> None:
    wide = _fitted(table, width, folded=False) or _fitted(table, width, folded=True)
    if not wide:
        _one_by_one(console, table)
        return
    grid = Grid(box=None, padding=0, pad_edge=False, show_header=bool(table.head))
    for i, room in enumerate(wide):
        title = _cell(table.head[i] if i < len(table.head) else "", room)
        title.style = HEAD
        more = GAP if i < len(wide) - 1 else 0
        grid.add_column(title, width=room + more, overflow="fold")
    for row in table.rows:
        grid.add_row(*(_cell(cell, wide[i]) for i, cell in enumerate(row)))
    console.print(grid)


def _fitted(table: Table, width: int, *, folded: bool) -> list[int]:
    """How wide each column may be; none where they do not fit. `folded`: heads and some names give way too."""
    if folded and not table.folds:
        return []
    wide = [max(map(cell_len, column)) for column in _columns((table.head, *table.rows))]
    heads = [_word(title) if folded else cell_len(title) for title in table.head]
    words = []
    for i, column in enumerate(_columns(table.rows)):
        folds = folded and i < len(table.head) and table.head[i] in table.folds
        words.append(max(map(_part if folds else _word, column)))
    return wide if _narrowed(wide, heads, words, width) else []


def _columns(rows: Iterable[Sequence[str]]) -> Iterable[tuple[str, ...]]:
    return zip_longest(*(row for row in rows if row), fillvalue="")


def _cell(cell: str, room: int) -> Text:
    """Folded to its room, so that the gap behind it stays free; at hyphens too, of which names are full."""
    if cell.isascii() and len(cell) > room:
        cell = "\n".join(textwrap.wrap(cell, room))
    return Text(cell, style(cell), overflow="fold")


def _word(cell: str) -> int:
    """The room that its longest word needs."""
    return min(max(map(cell_len, cell.split()), default=0), WORD)


def _part(cell: str) -> int:
    """The room that its longest word needs where that is broken at hyphens, with its hyphen."""
    parts = (p for word in cell.split() for p in word.replace("-", "- ").split())
    return min(max(map(cell_len, parts), default=0), PART)


def _narrowed(wide: list[int], head: Sequence[int], words: Sequence[int], width: int) -> bool:
    """Takes from the widest columns until all fit; False where none can give any more."""
    least = [min(w, max(LEAST, *had)) for w, *had in zip_longest(wide, head, words, fillvalue=0)]
    while sum(wide) + GAP * (len(wide) - 1) > width:
        room, most = max((w - m, i) for i, (w, m) in enumerate(zip(wide, least, strict=True)))
        if not room:
            return False
        wide[most] -= 1
    return True


def _one_by_one(console: Console, table: Table) -> None:
    """A row as lines of its own, a cell each with its head before it; what is empty or `-` is left out."""
    named = max(map(cell_len, table.head), default=0)
    for number, row in enumerate(table.rows):
        if number:
            console.print()
        grid = Grid(box=None, padding=0, pad_edge=False, show_header=False)
        beside = named and console.width - named - GAP >= LEAST
        if beside:
            grid.add_column(width=named + GAP)
        grid.add_column(overflow="fold")
        for name, cell in zip_longest(table.head, row, fillvalue=""):
            if cell in {"", "-"}:
                continue
            if beside:
                grid.add_row(Text(name, HEAD), _cell(cell, console.width - named - GAP))
                continue
            if name:
                grid.add_row(Text(name, HEAD))
            grid.add_row(_cell(cell, console.width))
        console.print(grid)
