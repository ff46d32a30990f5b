"""A name that nobody has: how it is shown, which known one was probably meant, and the one refusal of it.

Answers for: a model, a node, a replica, a key, a token and a log are refused in the same words, with what to run. May
not look for a name anywhere.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from llmgw.errors import LlmgwError, UsageError

#: A name in a sentence is no text.
NAME_CHARS = 80
#: So many known names are a help, more of them none.
KNOWN = 20


def plain(text: str, chars: int = NAME_CHARS) -> str:
    """Somebody's text in one line: it is shown on terminals, where a control character is an order."""
    line = " ".join("".join(c if c.isprintable() else " " for c in text).split())
    return line if len(line) <= chars else f"{line[: chars - 1]}…"


def nearest(word: str, known: Iterable[str]) -> str:
    """The known word that `word` is most like, "" when none is."""
    from difflib import get_close_matches  # noqa: PLC0415 - only a name that is none pays for it

    found = get_close_matches(word[:64], list(known), n=1, cutoff=0.6)
    return found[0] if found else ""


def instead(near: str, known: Sequence[str], run: str) -> str:
    """The hint: the one that was probably meant, else those that there are where that is no flood, and what to run."""
    if near:
        return f"did you mean {near}? {run}"
    some = ", ".join([*known[:KNOWN], *(["…"] if len(known) > KNOWN else [])])
    return f"known: {some}; {run}" if some else run


def unknown(what: str, name: str, known: Sequence[str], run: str, *, where: str = "") -> LlmgwError:
    """There is no `what` of this name; `run` says what shows those that there are, `where` bounds the claim."""
    said = plain(name)
    if not said:
        return UsageError(f"{what}: a name is needed, and an empty one was given", run)
    hint = instead(nearest(name, known), known, run)
    return LlmgwError(
        f"there is no {what} called {said}{where}", hint, code="not_found", status=404
    )
