"""How many replicas of a model there should be now and for whom, and whose turn it is where room is short (A63, A64).

A load that began goes on if its requester leaves; none begins without one. A second replica is for a queue that lasts.
May not place, stop or make room for anything.
"""

from __future__ import annotations

from msgspec import Struct
from msgspec.structs import replace

from llmgw.core.idle import waiting
from llmgw.core.types.catalog import Model
from llmgw.core.types.plan import Replica
from llmgw.core.types.routes import Demand
from llmgw.core.types.state import Asked, State

#: A client that gave up and asks again within this keeps its model's place among those that wait.
RETRY_S = 10.0
#: A further replica, up to `max`, once more than so many requests wait per replica, for so long without a break,
QUEUE, QUEUE_S = 4, 10.0
#: and no sooner than this after the last one came up: it must have had the time to take its share.
COOL_DOWN_S = 60.0


class Wanted(Struct, frozen=True):
    """`count` replicas, and why. `first`: how many of them may have others make room; the rest is for speed."""

    count: int
    why: str
    first: int


def wanted(state: State, model: Model, kept: list[Replica], now: float) -> Wanted:
    """`kept`: those of the model that count towards it, none on its way out among them."""
    least, waits = model.scaling.min, waiting(state, model.name)
    if len(kept) < least:
        return Wanted(least, f"min {least}", least)
    if not kept and waits:
        return Wanted(1, f"{waits} waiting", 1)
    if not kept and woken(state, model, now):
        return Wanted(1, f"woken {now - state.woken_s[model.name]:.0f} s ago", 1)
    crowd = _crowd(state, model, kept, now)
    return Wanted(len(kept) + 1, crowd, len(kept)) if crowd else Wanted(len(kept), "", len(kept))


def woken(state: State, model: Model, now: float) -> bool:
    """An operator's wish waits for room as long as a request would; it is over once the model is up (`kept_up`)."""
    at_s = state.woken_s.get(model.name)
    return at_s is not None and now - at_s < model.wait_timeout_s


def _crowd(state: State, model: Model, kept: list[Replica], now: float) -> str:
    """Why one replica more would help, or ""."""
    waits = waiting(state, model.name)
    if len(kept) >= model.scaling.max or waits <= QUEUE * len(kept):
        return ""
    if not all(r.complete_and_ready for r in kept):
        return ""  # one is on its way, or to be replaced
    up = [s.ready_s for r in kept for s in r.members if s.ready_s is not None]
    for_s = waited_s(state, model.name, now)
    if for_s < QUEUE_S or now - max(up, default=0.0) < COOL_DOWN_S:
        return ""
    return f"{waits} waiting for {for_s:.0f} s, more than {QUEUE} for each of {len(kept)}"


def waited_s(state: State, model: str, now: float) -> float:
    """How long requests have waited for it without a break; 0 where none does."""
    asked = state.asked.get(model)
    return now - asked.since_s if asked is not None and waiting(state, model) else 0.0


def turn(state: State, model: Model) -> tuple[int, float, str]:
    """Sorts models by who is served first: priority, then what always runs, then who has waited longest."""
    asked = state.asked.get(model.name)
    since_s = state.woken_s.get(model.name, 0.0) if asked is None else asked.since_s
    return (-model.scaling.priority, 0.0 if model.scaling.min else since_s, model.name)


# ---------------------------------------------------------------- facts


def heard(state: State, demand: Demand, now: float) -> dict[str, Asked]:
    """Who waits, with what one gateway says now: whoever waited by its last word has waited until this one.

    Whom this control meets waiting has waited before: else each of its restarts would put whoever waits longest behind
    again, and the room that was made for one be given to another (A64).
    """
    asked = {m: replace(a, last_s=now) if waiting(state, m) else a for m, a in state.asked.items()}
    for model, count in demand.waiting.items():
        if count and model in state.catalog.models:
            old = asked.get(model)
            lasts = old is not None and now - old.last_s <= RETRY_S
            began_s = now - max(demand.waited.get(model, 0.0), 0.0)
            asked[model] = Asked(old.since_s if old is not None and lasts else began_s, now)
    return asked


def anew(state: State, incarnation: str, now: float) -> State:
    """A replica is on its way out: whoever waits for its model has waited for another one from now on.

    Else a model with a queue in front of it would have waited longer than the one it makes room for, and be back first.
    """
    of = (n.shards for n in state.nodes.values())
    named = next((s.report.model for ss in of for s in ss if s.incarnation == incarnation), "")
    model = state.catalog.resolve(named)
    asked = state.asked.get(model.name) if model is not None else None
    if model is None or asked is None:
        return state
    return replace(state, asked=state.asked | {model.name: replace(asked, since_s=now)})


def woke(state: State, name: str, now: float, *, over: bool = False) -> State:
    """`llmgw wake`: wanted now, which is one whole idle timeout more if it is up already (A22)."""
    if over:
        left = {m: at_s for m, at_s in state.woken_s.items() if m != name}
        return replace(state, woken_s=left)
    model = state.catalog.models.get(name)
    if model is None or not model.on_demand:
        return state
    wishes = state.woken_s | {name: now}
    return replace(state, woken_s=wishes, wanted_s=state.wanted_s | {name: now})


def lapsed(state: State, now: float) -> State:
    """Without those that nobody waits for any more, and wishes that came true or are too old."""
    if not state.asked and not state.woken_s:
        return state
    asked = {m: a for m, a in state.asked.items() if now - a.last_s <= RETRY_S or waiting(state, m)}
    wishes = {m: at_s for m, at_s in state.woken_s.items() if _open(state, m, now)}
    return replace(state, asked=asked, woken_s=wishes)


def _open(state: State, name: str, now: float) -> bool:
    model = state.catalog.models.get(name)
    if model is None or not woken(state, model, now):
        return False
    return not any(
        s.report.state == "ready" and not s.rank and state.catalog.resolve(s.report.model) is model
        for node in state.nodes.values()
        for s in node.shards
    )
