"""The rules under test, and the same with one of them taken out: what the explorer must find, else it shows nothing.

`Rules()` is llmgw as it is. Of control's shell the two questions that it asks of a registration are the real ones; how
it rises above an epoch is worded here again, for `Leads.fence` writes and logs.
"""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, NamedTuple, cast

from msgspec.structs import replace

from llmgw.control.lead import Leads
from llmgw.core.supervise import supervise
from llmgw.core.types import node as n
from llmgw.core.types.messages import NodeReport, Token
from llmgw.core.types.state import State
from tests.model.values import Ctl, box

Stepped = tuple[n.AgentState, tuple[n.Effect, ...]]


def _leads(state: State, lease: str) -> Leads:
    """As much of one as its questions look at. Of a `file` it is one of two, `lone` is a file's only one."""
    its = SimpleNamespace(name="etcd" if lease == "etcd" else "file")
    settings = SimpleNamespace(standby=lease == "file")
    stub = SimpleNamespace(state=state, leading=True, lease=its, settings=settings)
    return cast("Leads", stub)


def outranked(state: State, lease: str, report: NodeReport) -> bool:
    return Leads.outranked(_leads(state, lease), report)


def unfenced(state: State, lease: str, report: NodeReport) -> bool:
    return Leads.unfenced(_leads(state, lease), report)


def above(stored: int, seen: int) -> int:
    """The epoch of a new leader (design.md 3)."""
    return 1 + max(stored, seen)


class Rules(NamedTuple):
    supervise: Callable[[n.AgentState, n.Event, float], Stepped] = supervise
    outranked: Callable[[State, str, NodeReport], bool] = outranked
    unfenced: Callable[[State, str, NodeReport], bool] = unfenced
    above: Callable[[int, int], int] = above
    promoted: Callable[[Ctl], Ctl] = lambda control: control


# ---------------------------------------------------------------- planted bugs


def any_epoch(state: n.AgentState, event: n.Event, now: float) -> Stepped:
    """The agent has no fence: it obeys a leader that is over."""
    token = state.token
    if isinstance(event, n.CommandReceived) and token and event.command.epoch < token.epoch:
        return _as_if(state, None, event, now)
    return supervise(state, event, now)


def any_leader(state: n.AgentState, event: n.Event, now: float) -> Stepped:
    """Of two leaders with one epoch the agent obeys both."""
    token = state.token
    if isinstance(event, n.CommandReceived) and token and event.command.epoch == token.epoch:
        return _as_if(state, None, event, now)
    return supervise(state, event, now)


def any_session(state: n.AgentState, event: n.Event, now: float) -> Stepped:
    """What was queued for a session that is over is obeyed."""
    if isinstance(event, n.CommandReceived) and event.control in state.sessions:
        live = state.sessions[event.control].session
        event = replace(event, command=replace(event.command, session=live))
    return supervise(state, event, now)


def any_file(state: n.AgentState, event: n.Event, now: float) -> Stepped:
    """Two leases that know nothing of each other are taken for one (F31)."""
    sessions = {c: replace(s, lease="etcd") for c, s in state.sessions.items()}
    if isinstance(event, n.SessionOpened):
        event = replace(event, session=replace(event.session, lease="etcd"))
    token = state.token and replace(state.token, lease="")
    return _as_if(replace(state, sessions=sessions), token, event, now)


def _as_if(state: n.AgentState, token: Token | None, event: n.Event, now: float) -> Stepped:
    """Its token is this one; where none is stored the state keeps its own."""
    after, effects = supervise(replace(state, token=token), event, now)
    stored = any(isinstance(e, n.StoreToken) for e in effects)
    return (after if stored else replace(after, token=state.token)), effects


def trusting(control: Ctl) -> Ctl:
    """A new leader takes a standby's picture for the fleet, and decides at once."""
    state = control.state.value
    nodes = {k: replace(x, settled=True, connected=True) for k, x in state.nodes.items()}
    sessions = tuple(x and x._replace(told=state.epoch) for x in control.sessions)
    settled = replace(state, nodes=nodes, settled_s=state.started_s)
    return control._replace(state=box(settled), sessions=sessions)


def never(*_: Any) -> bool:
    return False


PLANTED = {
    "no fence": Rules(supervise=any_epoch),
    "no rule for equal epochs": Rules(supervise=any_leader),
    "an old session's queue": Rules(supervise=any_session),
    "decides before the answer": Rules(promoted=trusting),
    "takes any report": Rules(unfenced=never),
    "not above what agents tell": Rules(outranked=never, above=lambda stored, _seen: 1 + stored),
    "two files are one": Rules(supervise=any_file),
}
