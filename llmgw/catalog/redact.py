"""Secrets out of what people see: literal values under names that look secret. References give nothing away."""

from __future__ import annotations

import re

HIDDEN = "***"

#: `MAX_TOKENS` and `TOKENIZERS_PARALLELISM` are no secrets.
_SECRET_ENV = re.compile(r"KEY|SECRET|PASSW|CREDENTIAL|TOKEN(?!S|IZ)", re.IGNORECASE)
_SECRET_FLAG = re.compile(
    r"-{1,2}(?:[a-z0-9]+[-_])*(?:key|token|secret|password|passwd)", re.IGNORECASE
)
_REFERENCE = re.compile(r"(\$\{[^{}]*\})+")


def env(variables: dict[str, str]) -> dict[str, str]:
    """The environment with `HF_TOKEN: hf_abc` hidden and `HF_TOKEN: ${env.HF_TOKEN}` left."""
    return {
        name: _hidden(value) if _SECRET_ENV.search(name) else value
        for name, value in variables.items()
    }


def argv(words: tuple[str, ...]) -> tuple[str, ...]:
    """The command with the value after `--api-key` hidden, and that of `--api-key=…`."""
    shown, secret = [], False
    for word in words:
        flag, equals, value = word.partition("=")
        if secret and not word.startswith("--"):
            shown.append(_hidden(word))
        elif equals and _SECRET_FLAG.fullmatch(flag):
            shown.append(f"{flag}={_hidden(value)}")
        else:
            shown.append(word)
        secret = _SECRET_FLAG.fullmatch(word) is not None
    return tuple(shown)


def _hidden(value: str) -> str:
    return value if not value or _REFERENCE.fullmatch(value) else HIDDEN
