"""Sizes and durations as people write them: `18GiB`, `10m`, `never`. A bare number is refused (which unit?).

Used by the catalog and by `llmgw.config` for flags. Knows nothing of YAML or positions.
"""

from __future__ import annotations

import re

from llmgw.catalog.words import quoted, refuse

SIZE_PATTERN = r"^[0-9]{1,19}(\.[0-9]{1,6})?(B|KB|MB|GB|TB|KiB|MiB|GiB|TiB)$"
DURATION_PATTERN = r"^[0-9]{1,12}(\.[0-9]{1,6})?(ms|s|m|h|d)$"

MAX_SIZE = 1 << 60

_SIZES = {
    "TiB": 1 << 40,
    "GiB": 1 << 30,
    "MiB": 1 << 20,
    "KiB": 1 << 10,
    "TB": 10**12,
    "GB": 10**9,
    "MB": 10**6,
    "KB": 10**3,
    "B": 1,
}
_DURATIONS = {"d": 86400.0, "h": 3600.0, "m": 60.0, "s": 1.0, "ms": 0.001}
_QUANTITY = re.compile(r"([0-9]{1,19}(?:\.[0-9]{1,6})?)\s*([A-Za-z]*)")


def parse_size(text: str) -> int:
    """Bytes of `18GiB` (1024-based) or `24GB` (1000-based)."""
    number, unit = _split(text, "a size", "like 18GiB, 512MiB or 24GB")
    if not unit:
        refuse(f"{text} has no unit", f"which unit? write {number}GiB or {number}MiB")
    if unit not in _SIZES or not re.fullmatch(SIZE_PATTERN, text):
        near = _near_size(unit)
        refuse(f"{quoted(text)} is not a size", f"write {number}{near}")
    # In whole numbers: a float loses the last bytes of a big one.
    whole, _, part = number.partition(".")
    size: int = (int(whole + part) * _SIZES[unit]) // 10 ** len(part)
    if size > MAX_SIZE:
        refuse(f"{text} is more than any machine has", "check the unit")
    return size


def parse_duration(text: str) -> float | None:
    """Seconds of `90s`, `10m`, `2h`; None is `never`."""
    if text == "never":
        return None
    number, unit = _split(text, "a duration", "like 90s, 10m, 2h or never")
    if not unit:
        refuse(f"{text} has no unit", f"which unit? write {number}s, {number}m or {number}h")
    if unit not in _DURATIONS or not re.fullmatch(DURATION_PATTERN, text):
        near = unit[0].lower() if unit[0].lower() in _DURATIONS else "s"
        refuse(f"{quoted(text)} is not a duration", f"write {number}{near}")
    return float(number) * _DURATIONS[unit]


def size_text(size: int) -> str:
    """The shortest exact spelling of bytes; `parse_size` gives the same number back."""
    for unit, factor in sorted(_SIZES.items(), key=lambda item: -item[1]):
        if size and size % factor == 0:
            return f"{size // factor}{unit}"
    return f"{size}B"


def duration_text(seconds: float | None) -> str:
    """The shortest exact spelling of seconds; None is `never`."""
    if seconds is None:
        return "never"
    for unit, factor in (("h", 3600.0), ("m", 60.0), ("s", 1.0)):
        if seconds >= factor and seconds % factor == 0:
            return f"{int(seconds // factor)}{unit}"
    return f"{seconds * 1000:g}ms" if seconds < 1 else f"{seconds:g}s"


def _split(text: str, what: str, hint: str) -> tuple[str, str]:
    found = _QUANTITY.fullmatch(text)
    if found is None:
        refuse(f"{quoted(text)} is not {what}", hint)
    return found[1], found[2]


def _near_size(unit: str) -> str:
    """What was probably meant: `G`, `gb`, `Gi` and `gib` are all gibibytes to whoever types them."""
    return {"k": "KiB", "m": "MiB", "t": "TiB"}.get(unit[0].lower(), "GiB")
