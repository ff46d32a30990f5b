"""Random worlds for properties: a catalog, what control remembers, and what the agents of a few boxes report.

Answers for: worlds that can be, healthy, half dead, half upgraded or edited while nobody looked. Few names and few
values, so that things meet: two claims on one port, one id, one GPU. It may not decide or check.
"""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st
from msgspec import Struct
from msgspec.structs import asdict, replace
from typing_extensions import override

from llmgw.core.reconcile.fresh import Memory
from llmgw.core.types.catalog import Catalog
from llmgw.core.types.messages import TERMINAL, NodeReport, Resources, ShardReport
from llmgw.core.types.sleep import Asleep
from llmgw.core.types.state import Draining, Failure
from tests.core.world import FP, GIB, catalog, gpus, model, node, profile, shard

BOXES = ("box1", "box2", "box3")
NEW_FP = "1:bbbb"
STATES = ("ready", "ready", "ready", "loading", "unhealthy", "draining", "failed", "unknown")
#: one that can sleep, and does
ASLEEP: dict[str, Any] = {
    "state": "asleep",
    "sleep": 1,
    "asleep": Asleep(freed_bytes=8 * GIB, rest_bytes=2 * GIB, verified=True),
}
OLD_AGENTS_LACK: tuple[dict[str, Any], ...] = (
    {},
    {},
    {"incarnation": ""},
    {"world_size": None},
    {"fingerprint": ""},
    {"resources": None, "started_at": ""},
)


class World(Struct, frozen=True):
    """`reports` are those of the boxes that answer; `memory` may know others."""

    catalog: Catalog
    memory: Memory
    reports: tuple[NodeReport, ...]

    @override
    def __repr__(self) -> str:
        """What differs, on a screen: a counter-example of whole values fills ten."""
        models = [
            f"{m.name} {m.scaling.min}-{m.scaling.max} {[_short(p) for p in m.profiles]}"
            for m in self.catalog.models.values()
        ]
        was = [
            f"{r.node}{' (silent)' * away}: {[_short(s) for s in r.shards]}"
            for r, away in self.memory.nodes
        ]
        now = [
            f"{r.node}{'' if r.protocol else ' (too old)'}: {[_short(s) for s in r.shards]}"
            for r in self.reports
        ]
        rest = replace(self.memory, nodes=())
        return "\n".join(["", *models, "remembers", *was, _short(rest), "reported", *now, ""])


def _short(value: Struct) -> str:
    given = asdict(value)
    usual = asdict(type(value)(**{f: given[f] for f in value.__struct_fields__[:1]}))
    return " ".join(f"{k}={v}" for k, v in given.items() if v != usual[k] or k in ("shard", "name"))


@st.composite
def catalogs(draw: st.DrawFn) -> Catalog:
    """What an operator may have made of it while control was away."""
    pick = st.sampled_from
    main = profile(
        draw(pick(["main", "main", "renamed"])),
        fingerprints={"default": draw(pick([FP, FP, NEW_FP]))},
        gpus=1,
        gpu_memory_bytes=10 * GIB,
    )
    low = draw(pick([0, 1, 1, 2]))
    models = [
        model("alpha", main, low=low, high=draw(st.integers(max(low, 1), 2))),
        model(
            "beta",
            profile(sleep=draw(pick([None, 1]))),
            aliases=draw(pick([(), ("old",)])),
            low=draw(pick([0, 1])),
        ),
        model("deep", profile(nodes=draw(pick([2, 2, 1]))), low=1),
    ]
    gone = draw(pick(["", "", "alpha", "beta", "deep"]))
    keep = draw(pick([False, False, False, True]))
    limit = draw(pick([1, 3]))
    return catalog(*(m for m in models if m.name != gone), keep_unknown=keep, start_limit=limit)


@st.composite
def shards(draw: st.DrawFn, box: str) -> ShardReport:
    pick = st.sampled_from
    replica, name, size = draw(
        pick(
            [
                ("alpha-1", "alpha", 1),
                ("alpha-2", "alpha", 1),
                ("beta-1", "beta", 1),
                ("old-1", "old", 1),
                ("deep-1", "deep", 2),
                ("deep-1", "deep", 2),
            ]
        )
    )
    rank = draw(st.integers(0, size - 1))
    state = draw(pick(STATES))
    whole = shard(
        f"{replica}/{rank}",
        name,
        incarnation=f"{replica}-{draw(pick(['i', 'i', 'j']))}",
        world_size=size,
        state=state,
        desired="draining" if state == "draining" else "running",
        port=18000 + draw(st.integers(0, 3)),
        gpus=(f"{box}-0",) if name == "alpha" else (),
        fingerprint=draw(pick([FP, FP, FP, NEW_FP])),
        started_at=f"2026-01-0{draw(st.integers(1, 2))}T00:00:00Z",
        resources=Resources(gpu_memory_bytes=10 * GIB),
        error=draw(pick(["exit 1", "lost its peer"])) if state == "failed" else None,
        gave_up=state == "failed" and draw(st.booleans()),
        node=draw(pick([None] * 9 + ["box9"])),
    )
    naps = name == "beta" and state == "ready" and draw(st.booleans())
    return replace(whole, **(ASLEEP if naps else draw(pick(OLD_AGENTS_LACK))))


@st.composite
def reports(draw: st.DrawFn, box: str) -> NodeReport:
    """One box's complete inventory; no agent lists one shard twice."""
    listed = draw(
        st.lists(
            shards(box),
            max_size=3,
            unique_by=(lambda s: (s.shard, s.incarnation), lambda s: s.shard),
        )
    )
    protocol = draw(st.sampled_from([1] * 9 + [0]))
    return node(box, *listed, gpus=gpus(box, 24), protocol=protocol, epoch_seen=7)


@st.composite
def worlds(draw: st.DrawFn, *, silent: bool = True, under_way: bool = True) -> World:
    """`silent`: boxes that do not answer, and an inventory that was lost; `under_way`: drains and failures."""
    boxes = BOXES[: draw(st.integers(1, 3))]
    now = {box: draw(reports(box)) for box in boxes}
    nodes = []
    for box in boxes:
        # What control believed: what runs, or something that has changed since, or it never met that box.
        was = draw(st.sampled_from(["same", "same", "another"] + ["never"] * silent))
        if was != "never":
            report = now[box] if was == "same" else draw(reports(box))
            nodes.append((report, silent and draw(st.booleans())))
        if silent and was != "never" and draw(st.integers(0, 3)) == 0:
            del now[box]
    memory = Memory(nodes=tuple(nodes), epoch=7)
    if under_way:
        memory = replace(memory, **draw(begun([r for r, _ in nodes])))
    else:
        now = {box: _steady(report) for box, report in now.items()}
        memory = replace(memory, nodes=tuple((_steady(r), away) for r, away in nodes))
    return World(draw(catalogs()), memory, tuple(now.values()))


@st.composite
def begun(draw: st.DrawFn, remembered: list[NodeReport]) -> dict[str, Any]:
    """Drains and failures that the last control wrote down."""
    known = sorted({s.incarnation or "?" for r in remembered for s in r.shards})
    draining = draw(st.sets(st.sampled_from(known), max_size=2)) if known else set()
    reason = draw(st.sampled_from(["drift", "idle", "operator"]))
    failures = tuple(
        Failure(f"f{n}", "main", -float(age), "exit 1", gave_up=False, fingerprint=FP)
        for n, age in enumerate(draw(st.lists(st.integers(0, 2000), max_size=3)))
    )
    boxes = [r.node for r in remembered]
    places = [(box, gpu) for box in boxes for gpu in ("", f"{box}-0")]
    drained = draw(st.sets(st.sampled_from(places), max_size=2)) if places else set()
    return {
        "cordoned": dict.fromkeys(sorted(drained), "since noon by the operator"),
        "woken_s": {"beta": -100.0} if draw(st.booleans()) else {},
        "draining": {i: Draining(-30.0, reason, "begun before") for i in sorted(draining)},
        "failures": {"alpha": failures} if failures else {},
    }


def _steady(report: NodeReport) -> NodeReport:
    """The box without what time alone would end: drains under way, failures."""
    kept = (s for s in report.shards if s.state not in TERMINAL and s.state != "draining")
    return replace(report, shards=tuple(kept))
