"""When a replica on its way out may be stopped: nobody can be on it any more, or its time is up (A65).

It counts from the route table that shows it draining, as heard back from every gateway; a silent gateway may still be
sending, so it delays the end, and the operator no longer than it takes to count as silent. May not begin a drain.
"""

from __future__ import annotations

from llmgw.core import cordon, idle
from llmgw.core.idle import in_flight, may_serve
from llmgw.core.types.plan import Replica
from llmgw.core.types.routes import GATEWAY_GONE_S, GATEWAY_SILENT_S
from llmgw.core.types.state import Draining, State

#: Reasons of drains that the operator asked for and that no silent gateway holds up.
ASKED = frozenset({"ending", "operator"})
#: All that he asked for: neither a pause nor the guard is about them.
WILLED = ASKED | {cordon.REASON}


def asked(state: State, drain: Draining) -> bool:
    """The operator's word for all engines is also for what began to leave before it: the strongest wish counts."""
    return state.ending or drain.reason in ASKED


def finished(state: State, replica: Replica, drain: Draining, timeout_s: float, now: float) -> str:
    """Why it may be stopped now, or ""."""
    lasted_s = now - drain.since_s
    unaware = _unaware(state, replica, drain, now)
    # A gateway that speaks but never takes the table up may delay the end, not prevent it.
    if lasted_s >= timeout_s and (not unaware or lasted_s >= timeout_s + GATEWAY_GONE_S):
        still = in_flight(state, replica.replica)
        return f"drained for {timeout_s:g} s, the limit" + (f", {still} in flight" if still else "")
    return "" if waits(state, replica, drain, now) else "drained, nothing in flight"


def waits(state: State, replica: Replica, drain: Draining, now: float) -> str:
    """What its end waits for while there is time, or ""."""
    if not drain.version:
        return "no gateway was told yet"
    late = _unaware(state, replica, drain, now)
    if late:
        return f"gateway {late[:8]} may still send requests there"
    if not asked(state, drain):
        return may_serve(state, replica, now)
    served = in_flight(state, replica.replica)
    if served:
        return f"{served} in flight"
    # Not heard since control started is not silent yet: agents may be back before gateways, with streams on it.
    lacks = idle.lacks(state) and not all(s.ours for s in replica.members)
    return idle.unsure(state, now, GATEWAY_SILENT_S) if lacks else ""


def _unaware(state: State, replica: Replica, drain: Draining, now: float) -> str:
    """A gateway heard of late that may still send new requests there, or "".

    One that waits for our answer with it among what rests sends nothing there before it has the table that shows it.
    """
    patience_s = GATEWAY_SILENT_S if asked(state, drain) else GATEWAY_GONE_S
    late = (
        name
        for name, g in state.gateways.items()
        if now - g.heard_s < patience_s
        and g.demand.table < drain.version
        and replica.replica not in g.demand.resting
    )
    return min(late, default="")
