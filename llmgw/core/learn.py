"""What earlier runs needed: the most GPU memory that an engine of a fingerprint ever held on one GPU (A62).

Kept in the inventory; raised by reports, dropped by `llmgw clear`. Where the whole GPU is given nothing is learned: an
engine takes what there is. May not decide: `capacity.needed` takes the greater of declared and learned.
"""

from __future__ import annotations

from collections.abc import Iterable

from msgspec.structs import replace

from llmgw.core.types.messages import ShardReport
from llmgw.core.types.state import State

#: More than anybody has profiles: of what is in no catalog any more the rest is dropped then.
KEPT = 10_000


def told(state: State, shards: Iterable[ShardReport]) -> State:
    """The state once these were heard."""
    higher: dict[str, int] = {}
    for s in shards:
        peak = s.gpu_peak_bytes
        if not (peak and s.fingerprint and s.resources and s.resources.gpu_memory_bytes):
            continue
        if peak > higher.get(s.fingerprint, state.learned.get(s.fingerprint, 0)):
            higher[s.fingerprint] = peak
    if not higher:
        return state
    learned = state.learned | higher
    if len(learned) > KEPT:
        known = {f for m in state.catalog.models.values() for f in fingerprints(state, m.name)}
        learned = {f: size for f, size in learned.items() if f in known}
    return replace(state, learned=learned)


def peak_bytes(state: State, model: str) -> int:
    """The most that runs of the model's profiles held on one GPU; 0 for nothing learned."""
    return max((state.learned.get(f, 0) for f in fingerprints(state, model)), default=0)


def forgotten(state: State, model: str) -> State:
    """An operator has cleared the model: the next run is measured anew."""
    gone = fingerprints(state, model) & state.learned.keys()
    if not gone:
        return state
    left = {f: size for f, size in state.learned.items() if f not in gone}
    return replace(state, learned=left)


def fingerprints(state: State, model: str) -> set[str]:
    found = state.catalog.models.get(model)
    return {f for p in (found.profiles if found else ()) for f in p.fingerprints.values()}
