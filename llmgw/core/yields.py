"""Who could go for a model that waits, in principle: on-demand replicas beyond their `min`, in the order of going.

What one is by itself is looked at once a pass (`Other`); from when on it yields depends on who asks. May not say who
does go, nor where anything would fit: that is `evict`'s.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable

from msgspec import Struct

from llmgw.core import idle
from llmgw.core.asleep import asleep
from llmgw.core.types.catalog import Model
from llmgw.core.types.messages import STARTING
from llmgw.core.types.plan import Replica
from llmgw.core.types.state import State

#: A gateway that waits has a new table long before: whoever waited for the load is on it by then.
REACHED_S = 10.0


class Other(Struct, frozen=True):
    """One that could go. `stays`: why not yet; `order`: the lowest goes first."""

    replica: Replica
    model: Model
    order: tuple[int, float, float, str]
    busy: str = ""
    stays: str = ""

    @property
    def used_s(self) -> float:
        return self.order[1]

    def yields_s(self, asks: Model) -> float | None:
        """From what wait on it goes for that model; None: never, it is busy and of higher priority."""
        scaling = self.model.scaling
        mine = not self.busy or scaling.priority <= asks.scaling.priority
        return scaling.yield_after_s if mine else None

    def due(self, asks: Model, waited_s: float) -> bool:
        yields_s = self.yields_s(asks)
        return yields_s is not None and waited_s >= yields_s


def everybody(state: State, replicas: Iterable[Replica], now: float) -> list[Other]:
    """All that are on demand and kept, pinned ones left out, who goes first of all first."""
    found = []
    for r in replicas:
        model = state.catalog.models.get(r.model)
        may = model is not None and model.on_demand and model.scaling.idle_timeout_s is not None
        if may and model is not None and r.kept and r.claimed:
            found.append(_other(state, model, r, now))
    return sorted(found, key=lambda o: o.order)


def others(every: Iterable[Other], asks: Model, going: Collection[str]) -> list[Other]:
    """Of these, whose order they keep, those that might ever go for it: beyond their model's `min`."""
    name = asks.name
    left = [o for o in every if o.order[-1] not in going and o.model.name != name]
    owed: dict[str, list[Other]] = {}
    for o in left:
        if o.model.scaling.min:
            owed.setdefault(o.model.name, []).append(o)
    stay = {o.replica.incarnation for mine in owed.values() for o in _owed(mine)}
    return [o for o in left if not (o.replica.held or o.replica.incarnation in stay)]


def _owed(mine: list[Other]) -> list[Other]:
    """Of one model's those that its `min` needs; none that loads, sleeps or is unwell stands in for one that serves."""
    least = mine[0].model.scaling.min
    serve = [o for o in mine if o.replica.complete_and_ready and not o.replica.held]
    rest = [o for o in mine if not o.replica.complete_and_ready or o.replica.held]
    lacking = max(least - len(serve), 0)
    return [*serve[max(len(serve) - least, 0) :], *rest[max(len(rest) - lacking, 0) :]]


def _other(state: State, model: Model, r: Replica, now: float) -> Other:
    scaling = model.scaling
    cost = scaling.cost if scaling.cost is not None else load_s(r)
    return Other(
        replica=r,
        model=model,
        order=(scaling.priority, used_s(state, r), cost, r.incarnation),
        busy=idle.busy(state, r, now),
        stays=_stays(state, model, r, now),
    )


def _stays(state: State, model: Model, r: Replica, now: float) -> str:
    """Why it is left alone for the moment, busy or not; or ""."""
    if any(s.report.state in STARTING for s in r.members):
        return "loads"
    if asleep(r):
        return ""
    if not r.complete_and_ready:
        return f"is {r.state}"
    loaded_s = max((s.loaded_s for s in r.members if s.loaded_s is not None), default=None)
    left_s = 0.0 if loaded_s is None else loaded_s + model.scaling.min_up_s - now
    if left_s > 0:
        return f"came up a short while ago and stays {left_s:.0f} s more (min_up)"
    waits = idle.waiting(state, model.name)
    if waits and loaded_s is not None and now - loaded_s < REACHED_S:
        return f"has just come up, {waits} waiting for it"
    return ""


def used_s(state: State, r: Replica) -> float:
    """When it was last of use to anybody: its last byte, else what its agent told (A22), else since it is wanted."""
    bytes_s = [
        g.last_byte_s[r.replica] for g in state.gateways.values() if r.replica in g.last_byte_s
    ]
    told = [
        s.seen_s - s.report.last_request_age_s
        for s in r.members
        if s.report.last_request_age_s is not None
    ]
    met_s = min((s.seen_s for s in r.members), default=0.0)
    wanted_s = state.wanted_s.get(r.model, 0.0)
    # What is wanted from the moment it was met on says nothing: that is so for all of them (A22).
    renewed = [wanted_s] if wanted_s > met_s else []
    known = [*bytes_s, *told, *renewed]
    return max(known) if known else idle.idle_since_s(state, r)


def load_s(r: Replica) -> float:
    """What it took to load, as far as this control saw it; 0 for one that was there before."""
    return max((up - s.seen_s for s in r.members if (up := s.ready_s) is not None), default=0.0)
