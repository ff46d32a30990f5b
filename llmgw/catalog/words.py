"""How a text is shown in a message, and the refusal of one."""

from __future__ import annotations

from typing import NoReturn

from llmgw.errors import UsageError

MAX_SHOWN = 60


def quoted(text: str) -> str:
    """`text` in double quotes, cut to what a person needs to find it."""
    return f'"{text if len(text) <= MAX_SHOWN else text[: MAX_SHOWN - 1] + "…"}"'


def refuse(what: str, hint: str) -> NoReturn:
    raise UsageError(what, hint)
