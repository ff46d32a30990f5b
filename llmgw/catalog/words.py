"""How a text is shown in a message, which known word it is most like, and the refusal of one."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches
from typing import NoReturn

from llmgw.errors import UsageError

MAX_SHOWN = 60


def quoted(text: str) -> str:
    """`text` in double quotes, cut to what a person needs to find it."""
    return f'"{text if len(text) <= MAX_SHOWN else text[: MAX_SHOWN - 1] + "…"}"'


def nearest(word: str, known: Iterable[str]) -> str:
    """The known word that `word` is most like, "" when none is."""
    found = get_close_matches(word[:64], list(known), n=1, cutoff=0.6)
    return found[0] if found else ""


def refuse(what: str, hint: str) -> NoReturn:
    raise UsageError(what, hint)
