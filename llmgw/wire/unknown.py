"""Fields of a newer version: kept beside the values that this one understands, and put back when it writes (F56).

Works on plain JSON values. May not know what any field means.
"""

from __future__ import annotations

from typing import Any


def unknown(raw: Any, known: Any) -> dict[str, Any]:
    """What `raw` has and `known`, the plain values of what was made of it, has not; {} for nothing.

    Same shape as `raw`; what is unknown inside an item of a list stands under its index.
    """
    if isinstance(raw, dict) and isinstance(known, dict):
        lacking = {k: v for k, v in raw.items() if k not in known}
        both = ((k, unknown(v, known[k])) for k, v in raw.items() if k in known)
        return lacking | {k: found for k, found in both if found}
    if isinstance(raw, list) and isinstance(known, list | tuple) and len(raw) == len(known):
        items = ((str(n), unknown(r, k)) for n, (r, k) in enumerate(zip(raw, known, strict=True)))
        return {n: found for n, found in items if found}
    return {}


def merged(known: Any, extra: dict[str, Any]) -> Any:
    """`known` with what was unknown put back in its place; where both say something, `known` counts."""
    if isinstance(known, dict):
        back = {k: v for k, v in extra.items() if k not in known}
        return {k: _inside(v, extra.get(k)) for k, v in known.items()} | back
    if isinstance(known, list | tuple):
        return [_inside(v, extra.get(str(n))) for n, v in enumerate(known)]
    return known


def _inside(known: Any, extra: Any) -> Any:
    return merged(known, extra) if isinstance(extra, dict) else known
