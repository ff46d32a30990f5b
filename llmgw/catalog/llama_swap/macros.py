"""`${name}` in a llama-swap file: macros filled in, its own words put into ours.

`${env.X}` stays: the agent reads it, on the node. May not look at an environment.
"""

from __future__ import annotations

import re
from typing import Any

_MACRO = re.compile(r"\$\{([^{}]*)\}")
#: Its reserved words -> ours. `${PID}` stands in `cmdStop` only, which is not taken over.
_OURS = {"PORT": "${port}", "MODEL_ID": "${model}"}
#: Macros may name macros that were defined before them.
_DEPTH = 20
_MAX_CHARS = 100_000


class Macros:
    """Those of the file, with those of one model in front of them."""

    def __init__(self, *layers: dict[str, Any]) -> None:
        self._known = {str(k): str(v).strip() for layer in layers for k, v in layer.items()}
        self.unknown: list[str] = []

    def filled(self, text: str) -> str:
        for _ in range(_DEPTH):
            before, text = text, _MACRO.sub(self._macro, text)
            if (
                text == before or len(text) > _MAX_CHARS
            ):  # one that names itself would grow for ever
                break
        return text

    def _macro(self, found: re.Match[str]) -> str:
        name = found[1]
        if name in self._known:
            return self._known[name]
        if name in _OURS:
            return _OURS[name]
        if (
            not name.startswith("env.")
            and found[0] not in _OURS.values()
            and name not in self.unknown
        ):
            self.unknown.append(name)
        return found[0]
