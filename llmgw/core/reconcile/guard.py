"""What of a plan is listed and not carried out for now, and why: `--require-plan`, `llmgw pause`, the blast radius.

A wrong catalog or a bug must not end a fleet in one pass (A49): more ends than the limit that nobody asked for are held
back and said, until the operator confirms them. Holds back only: it adds no action and changes none but by a word.
"""

from __future__ import annotations

from collections.abc import Iterable

from msgspec.structs import replace

from llmgw.core import evict, hung
from llmgw.core.adopt.survey import Survey
from llmgw.core.drain import WILLED
from llmgw.core.types.plan import (
    Action,
    Blocked,
    DrainReplica,
    Judged,
    NapReplica,
    RollReplica,
    StartReplica,
    StopReplica,
    Wait,
)
from llmgw.core.types.state import State

#: One pass may end so many running replicas, or this share of them, without anybody having asked.
FEW, SHARE = 2, 0.30
#: Ends that somebody asked for, that on-demand models come to every day, or that are over with what died (A34) or with
#: a node that its owner has given up (`lost_after`).
EXPECTED = WILLED | {"idle", evict.REASON, "not_running", "node_silent"}


def guarded(
    state: State, found: Survey, actions: list[Action]
) -> tuple[tuple[Action, ...], Blocked | None]:
    """The actions, those held back marked; and what the operator may confirm."""
    blocked = _blocked(state, found, actions)
    return tuple(_marked(state, a, blocked) for a in actions), blocked


def _marked(state: State, action: Action, blocked: Blocked | None) -> Action:
    if isinstance(action, Wait) or _asked(action):
        return action
    why = state.withheld
    if not why and _ends(action):
        why = f"paused {state.paused}" if state.paused else ""
        if not why and blocked is not None and _unasked(state, action):
            why = blocked.why
    return replace(action, withheld=why) if why else action


def _asked(action: Action) -> bool:
    if isinstance(action, NapReplica):
        return action.step == "stay"
    return isinstance(action, StopReplica | DrainReplica) and action.reason in WILLED


def _ends(action: Action) -> bool:
    """It begins to end something. The stop that a drain comes to is not held up: nobody is served there any more."""
    if isinstance(action, NapReplica):
        return action.step != "wake"
    return not isinstance(action, StartReplica | Wait) and not (
        isinstance(action, StopReplica) and action.drained
    )


def _unasked(state: State, action: Action) -> bool:
    """It ends something that runs, and nobody asked for it: unclaimed, stray, short, drift."""
    if (
        isinstance(action, StartReplica | NapReplica | Wait)
        or action.incarnation in state.confirmed
    ):
        return False
    if isinstance(action, RollReplica):
        return True
    live = any(s.was_live for s in action.shards)
    return _ends(action) and live and action.reason not in EXPECTED


def _blocked(state: State, found: Survey, actions: list[Action]) -> Blocked | None:
    unasked = [a for a in actions if _unasked(state, a)]
    rolls = rolled(found, actions) - state.confirmed if unasked else frozenset()
    # Replicas of one model roll one after the other, so they count as one; models do not wait for each other.
    rolling = {r.model for r in found.replicas if r.incarnation in rolls}
    others = [a for a in unasked if not isinstance(a, RollReplica)]
    going = _given_up(state) if any(_hung(a) for a in others) else 0
    count = len(others) + len(rolling) + going
    if count <= FEW:
        return None
    running = sum(any(s.was_live for s in r.members) for r in found.replicas)
    limit = max(FEW, SHARE * running)
    if count <= limit:
        return None
    named = {a.incarnation for a in others if not isinstance(a, StartReplica | Wait)}
    some = ", ".join(sorted({a.model for a in others} | rolling)[:5])
    before = f", {going} given up before and not gone yet" if going else ""
    why = (
        f"would end {count} of {running} running replicas in one pass, which nobody asked for "
        f"(limit {int(limit)}){before}: {some}"
    )
    return Blocked(incarnations=frozenset(named | rolls), why=why)


def _hung(action: Action) -> bool:
    return isinstance(action, DrainReplica) and action.reason == hung.REASON


def _given_up(state: State) -> int:
    """Those that still end: engines that fall silent one after the other are one event, and it may be us (F63, F64)."""
    return sum(d.reason == hung.REASON for d in state.draining.values())


def rolled(found: Judged, actions: Iterable[Action]) -> frozenset[str]:
    """All that the rolls of this pass, and those that only wait for other starts, would come to.

    Else a change of every profile would go by as one roll a pass, since one engine starts at a time.
    """
    models = {a.model for a in actions if isinstance(a, RollReplica)}
    models |= {a.model for a in actions if isinstance(a, Wait) and a.rolls}
    return frozenset(
        r.incarnation for r in found.replicas if r.drift and r.kept and r.model in models
    )
