"""How many tokens an answer took, where its engine says so at its end.

Answers for: reading `usage` of OpenAI's and Anthropic's shapes from the last bytes of an answer, whole or a stream. It
never reads more, and never changes anything. A text that speaks of usage does not look like it: its quotes are escaped.
"""

from __future__ import annotations

import re
from typing import Annotated

import msgspec

TAIL_BYTES = 4096
USAGE = b'"usage"'
USAGE_BYTES = 512
COUNT = rb'"(prompt|input|completion|output)_tokens"\s?:\s?(\d{1,9})\b'
#: One count, and another one if there is one: engines do not agree on the order, nor on what stands between.
_counts = re.compile(rb"%b(?:.{0,200}?%b)?" % (COUNT, COUNT), re.DOTALL).search


Count = Annotated[int, msgspec.Meta(ge=0, lt=1_000_000_000)]


class _Usage(msgspec.Struct):
    prompt_tokens: Count = 0
    completion_tokens: Count = 0
    input_tokens: Count = 0
    output_tokens: Count = 0


class _Whole(msgspec.Struct):
    usage: _Usage | None = None


_whole = msgspec.json.Decoder(_Whole).decode


def tokens(tail: bytes) -> tuple[int, int]:
    """Of the prompt, and of the answer. A short answer is read as what it is, which costs half as much."""
    if tail.startswith(b"{"):
        try:
            usage = _whole(tail).usage
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
            return _last(tail)
        if usage is None:
            return 0, 0
        return (
            usage.prompt_tokens or usage.input_tokens,
            usage.completion_tokens or usage.output_tokens,
        )
    return _last(tail)


def _last(tail: bytes) -> tuple[int, int]:
    """As a part of something longer ends."""
    at = tail.rfind(USAGE)
    found = _counts(tail, at, at + USAGE_BYTES) if at >= 0 else None
    if found is None:
        return 0, 0
    first, count, _, other = found.groups(b"0")
    one, two = int(count), int(other)
    return (one, two) if first in (b"prompt", b"input") else (two, one)
