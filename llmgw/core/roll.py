"""Replacing replicas whose profile changed: surge by one where there is room, else stop first (A66).

One step a pass, found from the facts: a surge is a start; once the new one is ready, the old one
loses the total order of A38 and is drained by that rule. Never two at a time of one model.
"""

from __future__ import annotations

from msgspec.structs import replace

from llmgw.core.capacity import Held
from llmgw.core.place import Placement, place
from llmgw.core.types.catalog import Model
from llmgw.core.types.plan import Replica, RollReplica, Wait
from llmgw.core.types.state import State


def step(
    state: State, held: dict[str, Held], model: Model, replicas: list[Replica]
) -> RollReplica | Wait | None:
    """The next replica of the model to roll; None: nothing drifted, or a step is under way.

    `replicas` are the kept ones, those on their way out left out.
    """
    old = _oldest_drift(model, replicas)
    if old is None:
        return None
    profile = model.profile(old.profile)
    assert profile is not None
    answer = place(state, held, model, (profile,))
    if isinstance(answer, Placement):
        spots, how = answer.spots, f"a new one starts beside it: {answer.why}"
    else:
        # The start limit passes by itself; only a real want of room makes it worth stopping first.
        unhurried = {name: replace(h, starting=()) for name, h in held.items()}
        if isinstance(place(state, unhurried, model, (profile,)), Placement):
            return Wait(model=model.name, profile=profile.name, why=f"roll: {answer.why}")
        spots, how = (), f"it is stopped first, no room beside it: {answer.why}"
    return RollReplica(
        replica=old.replica,
        incarnation=old.incarnation,
        model=model.name,
        profile=old.profile,
        shards=old.members,
        spots=spots,
        why=f"{old.drift}; {how}",
    )


def surplus(model: Model, replicas: list[Replica]) -> Replica | None:
    """The old one to drain now that its replacement is ready, where `max` alone would keep both."""
    if len(replicas) <= max(model.scaling.min, 1) or not any(not r.drift for r in replicas):
        return None
    return _oldest_drift(model, replicas)


def _oldest_drift(model: Model, replicas: list[Replica]) -> Replica | None:
    if model.on_change != "roll" or not all(r.complete_and_ready for r in replicas):
        return None
    drifted = [r for r in replicas if r.drift]
    return min(drifted, key=lambda r: (r.in_flight, r.started_at, r.incarnation), default=None)
