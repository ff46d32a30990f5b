"""`SOURCE:TARGET[:ro|rw]`, what a container sees of the host: its parts, unexpanded. As docker's own -v has it.

A `:` inside a placeholder is that placeholder's own. May not know whether anything is there.
"""

from __future__ import annotations

import re
from typing import NamedTuple

_PART = r"(?:\$\{[^{}]*\}|\$\$|[^:,$\x00-\x1f\x7f\"])+"
_MOUNT = re.compile(
    rf"(?P<source>{_PART}):(?P<target>{_PART})(?::(?P<mode>ro|rw))?",
)


class Mount(NamedTuple):
    """`source` on the host, `target` in the container; unexpanded until the agent fills them in."""

    source: str
    target: str
    read_only: bool = False


def parse(text: str) -> Mount | None:
    """None for what is no mount."""
    found = _MOUNT.fullmatch(text)
    return Mount(found["source"], found["target"], found["mode"] == "ro") if found else None


def wrong(path: str) -> str:
    """Why this is no path to mount, "" where it is one; `${` may stand for anything."""
    if not path.startswith(("/", "${")):
        return "is not an absolute path"
    if ".." in path.split("/"):
        return "goes up by .."
    return ""
