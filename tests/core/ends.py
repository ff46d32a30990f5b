"""Builders for tests of ends that are held back: fleets of which much would be ended, and what a plan says of it."""

from __future__ import annotations

from typing import Any

from llmgw.core.types.messages import ShardReport
from llmgw.core.types.plan import Plan, StartReplica, Wait
from llmgw.core.types.state import Paused, State
from tests.core.world import actions, catalog, model, node, profile, running, shard

PAUSED = Paused("since 12:00 by ann")


def engine(n: int, name: str, **k: Any) -> ShardReport:
    """The n-th engine on its box: each has a port of its own."""
    return shard(f"{name}-{n}/0", name, port=18000 + n, **k)


def box(*, gone: int = 0, kept: int = 0, **k: Any) -> State:
    """So many running engines that nothing claims, beside others that their model wants."""
    engines = [engine(n, "gone", **k) for n in range(gone)]
    engines += [engine(gone + n, "alpha") for n in range(kept)]
    return running(catalog(model("alpha", low=kept, high=max(kept, 1))), node("box1", *engines))


def incarnations(name: str, *numbers: int) -> frozenset[str]:
    return frozenset(f"inc-{name}-{n}" for n in numbers)


def held(plan: Plan) -> dict[str, str]:
    """Every action but waits, in words -> why it is held back."""
    acts = [a for a in plan.actions if not isinstance(a, Wait)]
    words = [w for w in actions(plan) if not w.startswith("wait")]
    return {
        f"{word} {'' if isinstance(a, StartReplica) else a.replica}".strip(): a.withheld
        for word, a in zip(words, acts, strict=True)
    }


def mixed() -> State:
    """One end of each kind that nobody asked for: unclaimed, stray, short, drift, and a second shard of a rank."""
    cat = catalog(
        model("alpha", low=1),
        model("deep", profile(nodes=2), low=1),
        model("drifted", profile(fingerprints={"default": "1:bbbb"}), low=1),
        model("wide", profile(nodes=2), low=1),
        model("missing", low=1),
        start_limit=3,
    )
    twin = [shard(f"wide-1/{rank}", world_size=2, port=18050 + rank) for rank in (0, 1)]
    return running(
        cat,
        node("box1", engine(1, "alpha"), engine(9, "gone"), engine(4, "drifted"), *twin),
        node("box2", engine(2, "alpha"), shard("short-1/0", "deep", world_size=2), twin[0]),
    )
