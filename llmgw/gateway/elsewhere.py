"""Replicas that listen on another box's loopback only: here that address is ours, and another engine may listen there.

Answers for: they are never asked, and a model that has no others says so at once. May not know how one is reached.
"""

from __future__ import annotations

from msgspec.structs import replace

from llmgw.core.types.routes import RouteModel, RouteTable
from llmgw.loopback import same

#: The status of a model that is up, for others.
ELSEWHERE = "elsewhere"


def reachable(table: RouteTable, here: str) -> RouteTable:
    """The table without them; as it is where there are none, or where nobody can tell whose loopback ours is."""
    if not here:
        return table
    changed = {}
    for name, route in table.models.items():
        far = [r.replica for r in route.replicas if r.loopback and not same(r.loopback, here)]
        if far:
            changed[name] = _without(route, far)
    return replace(table, models=table.models | changed) if changed else table


def _without(route: RouteModel, far: list[str]) -> RouteModel:
    near = tuple(r for r in route.replicas if r.replica not in far)
    if near:
        return replace(route, replicas=near)
    verb = "listens" if len(far) == 1 else "listen"
    why = f"{', '.join(far)} {verb} on the loopback of another box only"
    return replace(route, replicas=(), status=ELSEWHERE, why=why)
