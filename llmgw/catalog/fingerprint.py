"""The fingerprint of a profile: whether a running engine still is what the catalog asks for.

`1:` and 32 hex digits of the SHA-256 of the canonical form: JSON with sorted keys, no spaces, ASCII only, of

    engine                  the name, for a built-in engine only; what its template holds is left out, so a newer
                            template rolls nobody (the engine gets it at its next start)
    command                 the engine's or the profile's own command with `args` appended
    args                    `args` alone, where the command is a built-in template's
    worker_command, leader_args, worker_args, image, env, weights
    nodes, gpus, launcher, mounts
    sleep                   what it adds to the command; "on" where that is a built-in template's

Placeholders stay unexpanded, a key that is empty or at its default (nodes 1, gpus 0, exec) is left out, so a key
added later changes no old fingerprint. `weights` is the entry used on the node: one fingerprint per entry. Not in it:
name, weight, limits, timeouts, aliases, memory, power, health. Changing any of this is changing the prefix (A18, A19).
"""

from __future__ import annotations

import hashlib
import json
from typing import Any

from llmgw.core.types.catalog import FINGERPRINT_PREFIX

_DEFAULTS = {"nodes": 1, "gpus": 0, "launcher": "exec"}


def fingerprint(process: dict[str, Any], weights: str) -> str:
    """Of the canonical parts as listed above, run from `weights`."""
    parts = {**process, "weights": weights}
    kept = {key: value for key, value in parts.items() if value and value != _DEFAULTS.get(key)}
    text = json.dumps(kept, sort_keys=True, separators=(",", ":"), ensure_ascii=True)
    return FINGERPRINT_PREFIX + hashlib.sha256(text.encode()).hexdigest()[:32]
