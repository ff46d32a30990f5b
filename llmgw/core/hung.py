"""When an engine that lives and does not answer is given up (F64): liveness is its process, readiness its probes.

Its agent calls it unhealthy after k of n failed probes, and may be wrong: a busy engine is slow to answer. So it has a
bounded time to answer again, and bytes of good answers that gateways pass on count as an answer. Then it is drained,
stopped and replaced, which counts as a failure of its model like any other (A67). Nothing while a gateway is silent,
for it may be the one that is being served, nor while a node of the replica is: unreachable is not dead (F61), its
resources are held, and the rest of the group may recover with the network. May not end anything itself.
"""

from __future__ import annotations

from llmgw.core.idle import answered_s, silent
from llmgw.core.types.catalog import Ready
from llmgw.core.types.plan import Replica
from llmgw.core.types.state import State

REASON = "hung"
#: The least that an unhealthy engine has to get well in.
HUNG_S = 60.0
#: What one probe may take of an engine that is up: the pause before it, and one real token where that is asked for.
PROBE_S, TOKEN_S = 2.0, 30.0


def patience_s(ready: Ready) -> float:
    """Twice the time in which its agent sees `of` probes, `HUNG_S` at least."""
    window_s = ready.of * PROBE_S + (TOKEN_S if ready.token else 0.0)
    return max(HUNG_S, 2 * window_s)


def why(state: State, replica: Replica, now: float) -> str:
    """Why the replica is given up, or "". It is a kept one, complete or with ranks on silent nodes."""
    if replica.held or any(silent(g, now) for g in state.gateways.values()):
        return ""
    ill = [(s.unhealthy_s, s.rank, s) for s in replica.members if s.unhealthy_s is not None]
    if not ill:
        return ""
    since_s, _, shard = min(ill, key=lambda x: x[:2])
    # Who comes back after a silence brings the network with him, which may be all that was wrong.
    back_s = max(state.nodes[s.node].registered_s for s in replica.members)
    # Like every window it begins when settling is over: else the pass after that would end what no dry run foresees.
    back_s = max(back_s, state.settled_s or 0.0)
    quiet_s = now - max(since_s, back_s, answered_s(state, replica.replica) or 0.0)
    profile = state.catalog.models[replica.model].profile(replica.profile)
    assert profile is not None
    limit_s = patience_s(profile.ready)
    if quiet_s < limit_s:
        return ""
    said = shard.report.error or "its probes fail"
    return (
        f"{shard.report.shard} on {shard.node} is alive and has answered nobody for {quiet_s:.0f} s, "
        f"{limit_s:g} s is the limit ({said})"
    )
