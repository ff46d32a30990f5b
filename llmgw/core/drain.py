"""When a replica on its way out may be stopped: nobody can be on it any more, or its time is up (A65).

It counts from the route table that shows it draining, as heard back from every gateway; a silent gateway may still be
sending, so it delays the end, never the operator. May not begin a drain.
"""

from __future__ import annotations

from llmgw.core.idle import may_serve
from llmgw.core.types.plan import Replica
from llmgw.core.types.state import GATEWAY_GONE_S, Draining, State


def finished(state: State, replica: Replica, drain: Draining, timeout_s: float, now: float) -> str:
    """Why it may be stopped now, or ""."""
    if now - drain.since_s >= timeout_s:
        return f"drained for {timeout_s:g} s, the limit"
    if not drain.version:
        return ""
    for gateway in state.gateways.values():
        heard = now - gateway.heard_s < GATEWAY_GONE_S
        if heard and gateway.demand.table < drain.version:
            return ""
    return "" if may_serve(state, replica, now) else "drained, nothing in flight"
