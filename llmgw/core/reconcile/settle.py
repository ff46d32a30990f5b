"""When settling ends: every expected node has settled, or time is up (A46, A47); it never begins again.

Looks at all nodes, so `observe` asks it once a pass, not at every fact. May not fold anything in.
"""

from __future__ import annotations

from msgspec.structs import replace

from llmgw.core.types.state import QUIET_S, State


def settled(state: State, now: float) -> State:
    """The state, settled now if nobody is waited for any more."""
    if state.settled_s is not None or waiting_for(state, now):
        return state
    return replace(state, settled_s=now)


def waiting_for(state: State, now: float) -> tuple[str, ...]:
    """The nodes settling waits for, or a word for what else; () when it is over."""
    if now - state.started_s >= state.settle_timeout_s:
        return ()
    remembered = [n for n in state.nodes.values() if n.expected]
    expected = [n for n in remembered if not n.unreachable_before]
    missing = tuple(sorted(n.report.node for n in expected if not n.settled))
    if missing:
        return missing
    # Of nodes that were all silent the first to come back says nothing about the others.
    known = expected or all(n.settled for n in remembered)
    if remembered and known and not state.outdated:
        return ()
    heard = [n for n in state.nodes.values() if n.settled]
    if heard and all(n.report.epoch_seen == 0 for n in heard):
        return ()
    quiet_since = (
        state.last_registered_s if state.last_registered_s is not None else state.started_s
    )
    if heard and now - quiet_since >= QUIET_S:
        return ()
    return ("any node",)
