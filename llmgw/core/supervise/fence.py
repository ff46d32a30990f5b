"""Who may command this node: session, epoch, leader (design.md 3, F21, F57).

May not look at what is ordered.
"""

from __future__ import annotations

from msgspec.structs import replace

from llmgw.core.types.messages import Token
from llmgw.core.types.node import AgentState, CommandReceived, Session

#: A word of the closed list, and the sentence.
No = tuple[str, str]
#: Of two file leases that know nothing of each other the one that was obeyed is waited for so long: it restarts, or its
#: host does. Else whoever restarts last would take the node, and the other take it back.
REIGN_S = 60.0
#: Begins a lease that says which file on which host it is.
FILE = "file:"
HINT = "use --lease etcd, or one control URL for all agents"


def fence(state: AgentState, event: CommandReceived, now: float) -> No | Token:
    """The token to obey from now on, or the refusal."""
    command = event.command
    session = state.sessions.get(event.control)
    if session is None or session.session != command.session:
        live = "none" if session is None else session.session
        return "other_session", f"of session {command.session}, the live one is {live}"
    token = Token(command.epoch, command.leader_uuid, _named(session.lease))
    if state.token is None:
        return token
    return _two_leaders(state, event, now) or _older(state.token, token) or token


def heard(state: AgentState, control: str, session: Session, now: float) -> Token | None:
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
    token = Token(session.epoch, session.leader_uuid, _named(session.lease))
    if state.token is None:
        return token
    if token.epoch <= state.token.epoch or _rival(state, control, session):
        return None
    return None if _away_s(state, session.lease, now) is not None else token


def obeyed(state: AgentState, session: Session | None, now: float) -> float | None:
    """When the lease that this node obeys was heard last, with this session coming or going."""
    mine = session is not None and state.token is not None and session.lease == state.token.lease
    return now if mine or state.obeyed_s is None else state.obeyed_s


def _older(obeyed: Token, token: Token) -> No | None:
    if token.epoch < obeyed.epoch:
        return "lower_epoch", f"epoch {token.epoch} is over, {obeyed.epoch} was obeyed since"
    if token.epoch == obeyed.epoch and token.leader_uuid != obeyed.leader_uuid:
        return (
            "other_leader",
            f"epoch {token.epoch} belongs to leader {obeyed.leader_uuid}, not {token.leader_uuid}",
        )
    return None


def _two_leaders(state: AgentState, event: CommandReceived, now: float) -> No | None:
    """The leader obeyed first is obeyed while it is there, and for a while after.

    Two file leases on two hosts know nothing of each other: their epochs would rise past each other for ever.
    """
    session = state.sessions[event.control]
    ordered = replace(session, leader_uuid=event.command.leader_uuid)
    rival = _rival(state, event.control, ordered)
    if rival:
        first = state.sessions[rival].leader_uuid
        why = f"{rival} leads this node too (leader {first}) and was obeyed first"
        return "two_leaders", f"{why}: {HINT}"
    away_s = _away_s(state, session.lease, now)
    if away_s is None:
        return None
    why = f"another control was obeyed until {away_s:.0f} s ago and may only be restarting"
    return "two_leaders", f"{why}; this one is obeyed when that is away for {REIGN_S:.0f} s: {HINT}"


def _away_s(state: AgentState, lease: str, now: float) -> float | None:
    """How long the control of another file has been silent, while it is waited for; None: nobody is."""
    assert state.token is not None
    mine = state.token.lease
    if not (mine.startswith(FILE) and lease.startswith(FILE)) or lease == mine:
        return None
    away_s = now - (now if state.obeyed_s is None else state.obeyed_s)
    return away_s if away_s < REIGN_S else None


def _named(lease: str) -> str:
    """The lease, where it says which of its kind it is."""
    return lease if lease.startswith(FILE) else ""


def _rival(state: AgentState, control: str, session: Session) -> str:
    """The other control that was obeyed first and is still there, or ""."""
    assert state.token is not None
    first = state.token.leader_uuid
    if session.leader_uuid == first or not _of_file(session.lease):
        return ""
    for other, its in sorted(state.sessions.items()):
        same = _named(its.lease) and its.lease == session.lease  # one file: its epochs tell
        leads = its.leader and its.leader_uuid == first and _of_file(its.lease)
        if other != control and leads and not same:
            return other
    return ""


def _of_file(lease: str) -> bool:
    return lease == "file" or lease.startswith(FILE)
