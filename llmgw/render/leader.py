"""Who leads and who stands by, in words, where there is more than one control. It may not ask anybody."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

Json = dict[str, Any]


def leaders(leader: Json) -> list[str]:
    """A line; none for a control that is alone with its file, which is what most have."""
    standbys = leader.get("standbys") or ()
    if leader.get("lease", "file") == "file" and not standbys and leader.get("leading", True):
        return []
    said = f"{leader['name']} leads with epoch {leader['epoch']}, lease {leader['lease']}"
    if not leader.get("leading", True):
        by = leader.get("answered_by")
        nobody = leader["name"] == by
        said = f"{by} stands by; " + ("nobody leads as far as it knows" if nobody else said)
    if standbys:
        rows = (f"{s['name']} (lag {s['lag_s']:g} s)" for s in standbys)
        said += f"; stands by: {', '.join(rows)}"
    elif leader.get("leading", True):
        said += "; no standby"
    return [said]


def lacking(leader: Json) -> Iterator[str]:
    """What a standby would not know the moment it leads."""
    for standby in leader.get("standbys") or ():
        if isinstance(standby, dict):
            if missing := standby.get("missing"):
                nodes = ", ".join(missing)
                yield f"warning: {nodes} registered with the leader and not with {standby['name']}"
            if not standby.get("same_catalog", True):
                yield f"warning: the catalog of {standby['name']} is another than the leader's"
