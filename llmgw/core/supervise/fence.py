"""Who may command this node: session, epoch, leader (design.md 3, F21, F57).

May not look at what is ordered.
"""

from __future__ import annotations

from llmgw.core.types.messages import Token
from llmgw.core.types.node import AgentState, CommandReceived

#: A word of the closed list, and the sentence.
No = tuple[str, str]


def fence(state: AgentState, event: CommandReceived) -> No | Token:
    """The token to obey from now on, or the refusal."""
    command = event.command
    session = state.sessions.get(event.control)
    if session is None or session.session != command.session:
        live = "none" if session is None else session.session
        return "other_session", f"of session {command.session}, the live one is {live}"
    token = Token(command.epoch, command.leader_uuid)
    if state.token is None:
        return token
    return _two_leaders(state, event) or _older(state.token, token) or token


def _older(obeyed: Token, token: Token) -> No | None:
    if token.epoch < obeyed.epoch:
        return "lower_epoch", f"epoch {token.epoch} is over, {obeyed.epoch} was obeyed since"
    if token.epoch == obeyed.epoch and token.leader_uuid != obeyed.leader_uuid:
        return (
            "other_leader",
            f"epoch {token.epoch} belongs to leader {obeyed.leader_uuid}, not {token.leader_uuid}",
        )
    return None


def _two_leaders(state: AgentState, event: CommandReceived) -> No | None:
    """The leader obeyed first is obeyed while it is there.

    Two file leases on two hosts know nothing of each other: their epochs would rise past each other for ever.
    """
    assert state.token is not None
    first, uuid = state.token.leader_uuid, event.command.leader_uuid
    if uuid == first or state.sessions[event.control].lease != "file":
        return None
    for control, other in sorted(state.sessions.items()):
        if other.leader and other.lease == "file" and other.leader_uuid == first:
            why = f"{control} leads this node too (leader {first}) and was obeyed first"
            return "two_leaders", f"{why}: use --lease etcd, or one control URL for all agents"
    return None
