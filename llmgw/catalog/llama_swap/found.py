"""What became of each key. May not decide it."""

from __future__ import annotations

from typing import Any

from msgspec import Struct


class Fate(Struct, frozen=True):
    """`became` "" is a key that has no counterpart; `why` says what takes its place, or what to look at."""

    key: str
    line: int
    became: str
    why: str = ""


class Found(Struct):
    """`catalog`: the document in the order it is to be written."""

    catalog: dict[str, Any]
    fates: list[Fate]

    @property
    def left(self) -> int:
        return sum(not f.became for f in self.fates)


class Notes:
    """Collects fates; `lines` are those of the keys in the file that is read."""

    def __init__(self, lines: dict[str, int]) -> None:
        self.fates: list[Fate] = []
        self._lines = lines

    @property
    def in_order(self) -> list[Fate]:
        return sorted(self.fates, key=lambda f: f.line)

    def kept(self, key: str, became: str, why: str = "") -> None:
        self.fates.append(Fate(key, self._line(key), became, why))

    def left(self, key: str, why: str) -> None:
        self.fates.append(Fate(key, self._line(key), "", why))

    def _line(self, key: str) -> int:
        """Of the key, or of the nearest one around it (a part of a command has no line of its own)."""
        while key and key not in self._lines:
            key = key.rpartition(".")[0]
        return self._lines.get(key, 1)
