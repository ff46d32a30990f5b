"""`${name}` in commands, arguments, environment and weights: which are known, and where a secret may stand.

Nothing is expanded here: `${env.NAME}` and `${file./path}` are read on the agent.
"""

from __future__ import annotations

import re

from llmgw.catalog.words import quoted, refuse
from llmgw.core import mount
from llmgw.core.names import nearest
from llmgw.core.types.catalog import PLACEHOLDERS

_DOLLAR = re.compile(r"\$\$|\$\{([^{}]*)\}|\$\{")
_ENV_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
#: What the agent itself sets or takes away (contract: "Always set for an engine"); a value here would be lost.
_OWN_ENV = re.compile(
    "(LLMGW|WATCHDOG|LISTEN)_.*|CUDA_DEVICE_ORDER|(CUDA|HIP)_VISIBLE_DEVICES|SPT_NOENV|GGML_NO_BACKTRACE"
    "|NOTIFY_SOCKET|INVOCATION_ID"
)
#: What stands in examples for what only the reader knows.
_TO_FILL_IN = re.compile(
    r"(?:^|/)(?:…|\.\.\.)(?:/|$)|(?:^|[=:])/path/to(?:[/:]|$)|\bchange[_-]?me\b", re.IGNORECASE
)


def used(text: str) -> list[str]:
    """The names in `text`, in order; `$$` is a literal `$`, single braces are the engine's own business."""
    return [found[1] for found in _DOLLAR.finditer(text) if found[1] is not None]


def check_text(text: str) -> None:
    """Refuse what the agent could not fill in, and what somebody forgot to."""
    if _TO_FILL_IN.search(text):
        refuse(f"{quoted(text)} was to be filled in", "write your own path or value in its place")
    for match in _DOLLAR.finditer(text):
        if match[0] == "${":
            refuse(
                f"{quoted(text)} opens a ${{ and never closes it",
                "close it, or write $${ for a literal ${",
            )
        if match[1] is not None:
            _check_name(match[1])


def check_argument(text: str) -> None:
    """As `check_text`; and `ps` shows arguments to every user of the box, so no key goes there."""
    check_text(text)
    if "api_key" in used(text):
        refuse("${api_key} in a command shows in `ps`", "set it in env, where the engine reads it")


def check_weights(text: str) -> None:
    check_text(text)
    if "weights" in used(text):
        refuse("${weights} inside weights", "write the path")


def check_mount(text: str) -> None:
    """As `check_argument`: it becomes an argument of the container's runtime."""
    found = mount.parse(text)
    if found is None:
        refuse(f"{quoted(text)} is no mount", "write SOURCE:TARGET or SOURCE:TARGET:ro")
    check_argument(text)
    for path in (found.source, found.target):
        why = mount.wrong(path)
        if why:
            refuse(f"{quoted(text)}: {quoted(path)} {why}", "write the whole path")


def check_env_name(name: str) -> None:
    if _OWN_ENV.fullmatch(name):
        refuse(f"{name} is set by llmgw itself", "take it out")


def _check_name(name: str) -> None:
    kind, dot, rest = name.partition(".")
    if dot and kind == "env":
        if not _ENV_NAME.fullmatch(rest):
            refuse(f"${{{name[:60]}}} names no variable", "write ${env.NAME}")
    elif dot and kind == "file":
        if not rest.startswith("/"):
            refuse(f"${{{name[:60]}}} is not an absolute path", "write ${file./path/to/it}")
    elif name not in PLACEHOLDERS:
        near = nearest(name, PLACEHOLDERS)
        known = f"known: {' '.join(sorted(PLACEHOLDERS))} env.NAME file./PATH"
        hint = f"did you mean ${{{near}}}?" if near else f"{known}; a literal ${{ is $${{"
        refuse(f"unknown placeholder ${{{name[:60]}}}", hint)
