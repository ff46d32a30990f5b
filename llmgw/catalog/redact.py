"""Secrets out of what people see: literal values under names that look secret. References give nothing away."""

from __future__ import annotations

import re

from llmgw.core.match import HIDDEN, SECRET_ENV, SECRET_OPTION

_REFERENCE = re.compile(r"(\$\{[^{}]*\})+")


def env(variables: dict[str, str]) -> dict[str, str]:
    """The environment with `HF_TOKEN: hf_abc` hidden and `HF_TOKEN: ${env.HF_TOKEN}` left."""
    return {
        name: _hidden(value) if SECRET_ENV.search(name) else value
        for name, value in variables.items()
    }


def argv(words: tuple[str, ...]) -> tuple[str, ...]:
    """The command with the value after `--api-key` hidden, and that of `--api-key=…`."""
    shown, secret = [], False
    for word in words:
        flag, equals, value = word.partition("=")
        if secret and not word.startswith("--"):
            shown.append(_hidden(word))
        elif equals and SECRET_OPTION.fullmatch(flag):
            shown.append(f"{flag}={_hidden(value)}")
        else:
            shown.append(word)
        secret = SECRET_OPTION.fullmatch(word) is not None
    return tuple(shown)


def _hidden(value: str) -> str:
    return value if not value or _REFERENCE.fullmatch(value) else HIDDEN
