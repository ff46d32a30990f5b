"""Who may command this node: session, epoch, leader (design.md 3, F21, F57).

May not look at what is ordered.
"""

from __future__ import annotations

from msgspec.structs import replace

from llmgw.core.types.messages import Token
from llmgw.core.types.node import AgentState, CommandReceived, Session

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


def heard(state: AgentState, control: str, session: Session) -> Token | None:
    """The token of a leader that let us register, where it is to be obeyed from now on.

    Kept at once and not only with its first command: a control that commands nothing for a month, and is then restored
    from a backup of before, would else find nobody who has seen its epoch (F16).
    """
    known = state.sessions.get(control)
    again = (
        known is not None and known.session == session.session
    )  # a poll's news has no leader_uuid
    if again or not session.leader or not session.epoch:
        return None
    token = Token(session.epoch, session.leader_uuid)
    if state.token is None:
        return token
    if token.epoch <= state.token.epoch or _rival(state, control, session):
        return None
    return token


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
    session = state.sessions[event.control]
    ordered = replace(session, leader_uuid=event.command.leader_uuid)
    rival = _rival(state, event.control, ordered)
    if not rival:
        return None
    first = state.sessions[rival].leader_uuid
    why = f"{rival} leads this node too (leader {first}) and was obeyed first"
    return "two_leaders", f"{why}: use --lease etcd, or one control URL for all agents"


def _rival(state: AgentState, control: str, session: Session) -> str:
    """The other control that was obeyed first and is still there, or ""."""
    assert state.token is not None
    first = state.token.leader_uuid
    if session.leader_uuid == first or session.lease != "file":
        return ""
    for other, its in sorted(state.sessions.items()):
        if other != control and its.leader and its.lease == "file" and its.leader_uuid == first:
            return other
    return ""
