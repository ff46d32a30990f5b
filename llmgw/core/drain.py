"""When a replica on its way out may be stopped: nobody can be on it any more, or its time is up (A65).

It counts from the route table that shows it draining, as heard back from every gateway; a silent gateway may still be
sending, so it delays the end, never the operator. May not begin a drain.
"""

from __future__ import annotations

from llmgw.core import cordon
from llmgw.core.idle import in_flight, may_serve
from llmgw.core.types.plan import Replica
from llmgw.core.types.state import GATEWAY_GONE_S, GATEWAY_SILENT_S, Draining, State

#: Reasons of drains that the operator asked for and that no silent gateway holds up.
ASKED = frozenset({"ending", "operator"})
#: All that he asked for: neither a pause nor the guard is about them.
WILLED = ASKED | {cordon.REASON}


def finished(state: State, replica: Replica, drain: Draining, timeout_s: float, now: float) -> str:
    """Why it may be stopped now, or ""."""
    asked = drain.reason in ASKED
    lasted_s = now - drain.since_s
    unaware = _unaware(state, drain, GATEWAY_SILENT_S if asked else GATEWAY_GONE_S, now)
    # A gateway that speaks but never takes the table up may delay the end, not prevent it.
    if lasted_s >= timeout_s and (not unaware or lasted_s >= timeout_s + GATEWAY_GONE_S):
        still = in_flight(state, replica.replica)
        return f"drained for {timeout_s:g} s, the limit" + (f", {still} in flight" if still else "")
    if unaware or not drain.version:
        return ""
    serving = in_flight(state, replica.replica) if asked else may_serve(state, replica, now)
    return "" if serving else "drained, nothing in flight"


def _unaware(state: State, drain: Draining, patience_s: float, now: float) -> bool:
    """Whether a gateway heard of late may still send new requests there."""
    return any(
        now - g.heard_s < patience_s and g.demand.table < drain.version
        for g in state.gateways.values()
    )
