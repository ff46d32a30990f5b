"""Heads that were read before: one that comes again, but for the digits of its content-length, means the same.

Answers for: telling that, byte for byte, and keeping what else was worked out of it. Clients and engines repeat their
heads on a connection; a parser that took one and left its state clean would take it again, so it need not be asked. It
may not read a head by itself.
"""

from __future__ import annotations

import re
from typing import Any

#: Longer ones are read each time: a copy is kept for each connection.
HEAD_MAX = 2048
LENGTH = b"content-length"
_length = re.compile(rb"\r\ncontent-length:[ \t]*([0-9]{1,10})\r\n", re.IGNORECASE).search


class Head:
    """`end`: where the head ended that `length` knew again last."""

    __slots__ = ("_after", "_at", "_before", "_to", "end")

    def __init__(self, before: bytes, after: bytes) -> None:
        self._before = before
        self._at = self._to = len(before)
        self._after = after
        self.end = 0

    def length(self, data: bytes) -> int:
        """The content-length of the head that `data` begins with, -1 where that is another one, or not whole."""
        at, to, after = self._at, self._to, self._after
        digits = data[at:to]
        if not digits.isdigit() or not data.startswith(after, to):  # not as many as last time
            to = data.find(b"\r", at, at + 11)
            digits = data[at:to]
            if not digits.isdigit() or not data.startswith(after, to):
                return -1
            self._to, self.end = to, to + len(after)
        return int(digits) if data.startswith(self._before) else -1


def head(data: bytes, headers: int) -> Head | None:
    """Of a whole head, its empty line included, in which a parser saw so many headers; None where it is not that kind.

    Its lines are counted too: where parser and line ends do not agree, `data` may not be what was parsed as the head.
    """
    found = _length(data)
    if found is None or len(data) > HEAD_MAX or data.lower().count(LENGTH) != 1:
        return None
    if not data.count(b"\n") == data.count(b"\r\n") == headers + 2:
        return None
    start, end = found.span(1)
    return Head(data[:start], data[end:])


class Derived:
    """What others worked out of one head, so that they need not do so again when it comes again.

    `lines`: the headers that go on. `use`: of which key, by which `keys`. `words`: method and path in the log.
    """

    __slots__ = ("keys", "lines", "use", "words")

    def __init__(self, lines: bytes) -> None:
        self.lines = lines
        self.keys: object = None
        self.use: Any = None
        self.words = ""
