"""When an on-demand model is wanted, busy or idle (A22-A24, A63).

Busy is in flight, waiting or loading; the idle clock starts at the last byte. A gateway that fell silent makes its
replicas busy until it is known to be gone: silence is no proof that nobody is being served. May not stop anything.
"""

from __future__ import annotations

from math import ceil

from llmgw.core.types.catalog import Model
from llmgw.core.types.messages import STARTING
from llmgw.core.types.plan import Replica
from llmgw.core.types.routes import GATEWAY_GONE_S, GATEWAY_SILENT_S
from llmgw.core.types.state import GatewayView, State


def waiting(state: State, model: str) -> int:
    """Requests that wait for the model in all gateways."""
    return sum(g.demand.waiting.get(model, 0) for g in state.gateways.values())


def in_flight(state: State, replica: str) -> int:
    return sum(g.demand.in_flight.get(replica, 0) for g in state.gateways.values())


def silent(gateway: GatewayView, now: float) -> bool:
    """Not heard for a while, and not yet long enough to be out of the count."""
    return GATEWAY_SILENT_S <= now - gateway.heard_s < GATEWAY_GONE_S


def may_serve(state: State, replica: Replica, now: float) -> str:
    """Why the replica may be serving somebody right now, or ""."""
    served = in_flight(state, replica.replica)
    if served:
        return f"{served} in flight"
    for name, gateway in sorted(state.gateways.items()):
        if silent(gateway, now):
            return f"gateway {name[:8]} has been silent for {now - gateway.heard_s:.0f} s"
    # Routed first by this very control: whoever is on it was heard.
    return "" if all(s.ours for s in replica.members) else unsure(state, now)


def lacks(state: State) -> str:
    """A gateway that the control before counted and that has not spoken to this one, or ""."""
    return min((state.unheard or frozenset()) - state.gateways.keys(), default="")


def unsure(state: State, now: float, lasts_s: float = GATEWAY_GONE_S) -> str:
    """Why there may be streams that no gateway has told this control of, and for how long at most; or "".

    A gateway that the control before counted may be in the middle of one until it speaks or is out of the count; that
    another one has spoken says nothing about it. One that began while no control was there is in no inventory: it finds
    this one within the time in which a gateway counts as heard.
    """
    who, lacking = "a gateway may not have said", lacks(state)
    if lacking:
        who = f"gateway {lacking[:8]} has not said"
    elif state.unheard is not None:
        lasts_s = GATEWAY_SILENT_S
    since_s = now - state.started_s
    left_s = ceil(lasts_s - since_s)
    if left_s <= 0:
        return ""
    return (
        f"control started {since_s:.0f} s ago, {who} yet what it serves (at most {left_s} s more)"
    )


def gateways(state: State) -> frozenset[str] | None:
    """Those that the next control is to hear before it takes anything for idle; None where nobody can tell."""
    return None if state.unheard is None else state.unheard | state.gateways.keys()


def answered_s(state: State, replica: str) -> float | None:
    """When any client last got a byte of a good answer from it, None where no gateway has told of one."""
    told = (g.answered_s.get(replica) for g in state.gateways.values())
    return max((at_s for at_s in told if at_s is not None), default=None)


def busy(state: State, replica: Replica, now: float) -> str:
    """Why the replica may not go to sleep, or ""."""
    waiters = waiting(state, replica.model)
    if waiters:
        return f"{waiters} waiting"
    if any(s.report.state in STARTING for s in replica.members):
        return "loading"
    return may_serve(state, replica, now)


def idle_since_s(state: State, replica: Replica) -> float:
    """The latest of: wanted, came up, last byte. A reported age never makes it earlier (A22)."""
    since = [state.wanted_s.get(replica.model, 0.0)]
    since += [s.ready_s for s in replica.members if s.ready_s is not None]
    since += [
        g.last_byte_s[replica.replica]
        for g in state.gateways.values()
        if replica.replica in g.last_byte_s
    ]
    return max(since)


def idle_until_s(state: State, model: Model, replica: Replica) -> float | None:
    """When it goes to sleep if nobody asks; None for never. `min_up` protects what has just loaded."""
    timeout = model.scaling.idle_timeout_s
    if timeout is None or not model.on_demand:
        return None
    ready = [s.ready_s for s in replica.members if s.ready_s is not None]
    protected = max(ready, default=0.0) + model.scaling.min_up_s
    return max(idle_since_s(state, replica) + timeout, protected)
