"""Sentences of the core as a plan shows them: without what runs on while nothing changes (contract/cli.md "Stable").

Two dry runs are compared before a restart, so what counts seconds, up or down, is left out of its words; the status
and the log have it. Answers for every such sentence that a plan can hold (tests/wire/test_steady.py goes through the
core for them). May not word anything anew.
"""

from __future__ import annotations

import re

_WORDS: tuple[tuple[re.Pattern[str], str], ...] = tuple(
    (re.compile(pattern), words)
    for pattern, words in (
        (r"\bwoken \d+ s ago", "woken by an operator"),
        (r"\b(failed|refused) \d+ s ago", r"\1 a short while ago"),
        (r"\bbacking off \d+ s after", "backing off after"),
        (r"\bidle for \d+ s\b", "idle"),
        (r", waited for \d+ s\b", ""),
        (r"\bwaiting for \d+ s, more than\b", "waiting, more than"),
        (r" and yields in \d+ s\b", " and yields later"),
        (r"\bstays \d+ s more \(min_up\)", "stays for its min_up"),
        (r"\bhas been silent for \d+ s\b", "is silent"),
        (r"\banswered nobody for \d+ s\b", "answered nobody for long"),
        (r"\bcontrol started \d+ s ago\b", "control has just started"),
        (r" \(at most \d+ s more\)", ""),
    )
)


def steady(why: str) -> str:
    for pattern, words in _WORDS:
        why = pattern.sub(words, why)
    return why
