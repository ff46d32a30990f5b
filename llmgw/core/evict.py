"""Who has to go so that a model which is wanted finds room (A64); pure policy, `place.room` does the sums.

The laws, in this order:
1. Nobody goes for a model that failed a short while ago (a crash loop must not empty the fleet), for a further replica
   that is only for speed, or where what is on its way out already makes the room.
2. Only on-demand replicas beyond their model's `min` go; `idle_timeout: never` is a pin.
3. What loads, and what came up less than its `min_up` ago, stays: a load that is thrown away helps nobody.
4. Idle ones go at once, in the smallest number; of equal numbers lower priority first, then the least recently used,
   then the cheapest to load again.
5. Where idle ones are not enough, busy ones of no higher priority yield, each once others have waited for its
   `yield_after`: they take no new requests, finish what is there, and go. Nothing that is served is cut.
6. The room that becomes free is held for whom it was made.
May not stop or start anything, nor remember what it said before: the drains show in the facts.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable

from msgspec import Struct

from llmgw.core import failed, idle
from llmgw.core.asleep import asleep, sleeps
from llmgw.core.place import Fleet, Idle, NoRoom, Placement, Room, find
from llmgw.core.place.fleet import GpuRoom
from llmgw.core.place.room import room_in
from llmgw.core.types.catalog import Model
from llmgw.core.types.messages import STARTING
from llmgw.core.types.plan import Plan, Replica, Wait
from llmgw.core.types.record import STUCK
from llmgw.core.types.state import Shard, State

REASON = "evict"
#: Names in a sentence.
NAMED = 5
#: A driver and a desktop take about so much of a GPU in the name of nobody.
SLACK_BYTES = 1 << 30


class Way(Struct, frozen=True):
    """`go`: who is drained now, with why. `hold`: where the model goes then, held from now on. `hopeless`: never.

    `first`: replicas that go before it, now or later, and `spots` as far as they can be told by now.
    """

    why: str
    go: tuple[tuple[Replica, str], ...] = ()
    hold: Placement | None = None
    first: tuple[str, ...] = ()
    then: Placement | None = None
    hopeless: bool = False


class Asks(Struct, frozen=True):
    """Who asks for room: the model, how long requests have waited for it, and why there is none."""

    model: Model
    waited_s: float
    why: str


class Other(Struct, frozen=True):
    """One that could go, in principle. `stays`: why not yet; `yields_s`: from when on it yields to who waits."""

    replica: Replica
    model: Model
    used_s: float
    cost: float
    busy: str = ""
    stays: str = ""
    yields_s: float | None = None


def way(
    fleet: Fleet,
    replicas: Collection[Replica],
    asks: Asks,
    leaving: Collection[str],
    now: float,
) -> Way:
    """`fleet`: as this pass has it so far, and as it is left; `leaving`: incarnations that go by what is decided."""
    mark = fleet.mark()
    try:
        return _way(fleet, replicas, asks, leaving, now)
    finally:
        fleet.reset(mark)


def _way(
    fleet: Fleet,
    replicas: Collection[Replica],
    asks: Asks,
    leaving: Collection[str],
    now: float,
) -> Way:
    state, model = fleet.state, asks.model
    going = [r for r in replicas if r.members and _goes(state, r, leaving)]
    stuck = [r for r in going if any(map(_stuck, r.members))]
    ending = [r for r in going if not any(map(_stuck, r.members))]
    if (way := _once(fleet, asks, ending)) is not None:
        return way
    crash = _crashed(state, model, now)
    if crash:
        return Way(f"{asks.why}; nobody goes for it: {crash}")
    lazy = fleet.once("on demand", lambda: [r for r in replicas if _on_demand(state, r)])
    others = _others(state, lazy, asks, {r.incarnation for r in going}, now)
    by_others = _among(fleet, asks, others, now)
    return by_others or _once(fleet, asks, stuck) or _never(fleet, asks, others, going)


def _once(fleet: Fleet, asks: Asks, going: list[Replica]) -> Way | None:
    """Where it goes once these have ended, which they do anyway; the fleet is without them from here on."""
    if not going:
        return None
    for r in going:
        fleet.free(r)
    answer = find(fleet, asks.model)
    if not isinstance(answer, Placement):
        return None
    why = f"{asks.why}; it goes there once {_names(going)} ended"
    return Way(why, hold=answer, then=answer, first=_ids(going))


def _among(fleet: Fleet, asks: Asks, others: list[Other], now: float) -> Way | None:
    """By the first of: idle ones, those that are due as well, all who will ever go; None where not even those do."""
    idle_ones = [o for o in others if not o.busy and not o.stays]
    due = [o for o in others if o.busy and not o.stays and _due(o, asks.waited_s)]
    for some in (idle_ones, [*idle_ones, *due] if due else []):
        room = _room(fleet, asks.model, some)
        if isinstance(room, Room):
            return _cleared(asks, room, others, now)
        if room is not None:
            return Way(f"{asks.why}; then {room.why}")
    room = _room(fleet, asks.model, [o for o in others if o.yields_s is not None])
    if isinstance(room, Room):
        return _later(asks, room, others)
    return Way(f"{asks.why}; then {room.why}") if room is not None else None


def unplaceable(plan: Plan) -> dict[str, str]:
    """By model, why nothing that could be done makes room for it: whoever asks is told at once."""
    return {a.model: a.why for a in plan.actions if isinstance(a, Wait) and a.hopeless}


# ---------------------------------------------------------------- who


def _goes(state: State, r: Replica, leaving: Collection[str]) -> bool:
    """One that falls asleep gives back almost all: nobody else goes for what it makes room for."""
    if asleep(r) and not all(map(sleeps, r.members)):
        return True
    return r.going or r.incarnation in leaving or r.incarnation in state.draining


def _stuck(shard: Shard) -> bool:
    """It does not end by itself: who waits for its room alone may wait for ever (F67)."""
    return STUCK in (shard.report.error or "")


def _on_demand(state: State, r: Replica) -> bool:
    model = state.catalog.models.get(r.model)
    return r.kept and r.claimed and model is not None and model.on_demand


def _crashed(state: State, model: Model, now: float) -> str:
    """A failure within the window in which failures count, of what the catalog says today; or ""."""
    last = failed.last(state, model, now)
    if last is None:
        return ""
    hint = f"llmgw clear {model.name} lets it"
    return f"it failed {now - last.at_s:.0f} s ago ({last.error}); {hint}"


def _others(
    state: State, replicas: Iterable[Replica], asks: Asks, going: Collection[str], now: float
) -> list[Other]:
    """Those that might ever go for it, who goes first of a kind first."""
    kept: dict[str, list[Replica]] = {}
    for r in replicas:
        if r.kept and r.claimed and r.incarnation not in going and r.model != asks.model.name:
            kept.setdefault(r.model, []).append(r)
    found = []
    for name, some in kept.items():
        model = state.catalog.models.get(name)
        if model is None or not model.on_demand or model.scaling.idle_timeout_s is None:
            continue
        mine = sorted((_other(state, model, r, asks, now) for r in some), key=_order)
        found += _beyond(mine, model.scaling.min)
    return sorted((o for o in found if not o.replica.held), key=_order)


def _beyond(mine: list[Other], least: int) -> list[Other]:
    """Of one model's those beyond its `min`, for which none that loads, sleeps or is unwell stands in: it may fail."""
    serve: list[Other] = []
    others: list[Other] = []
    for o in mine:
        (serve if o.replica.complete_and_ready and not o.replica.held else others).append(o)
    owed = max(least - len(serve), 0)
    return [*serve[: max(len(serve) - least, 0)], *others[: max(len(others) - owed, 0)]]


def _order(o: Other) -> tuple[int, float, float, str]:
    return (o.model.scaling.priority, o.used_s, o.cost, o.replica.incarnation)


def _other(state: State, model: Model, r: Replica, asks: Asks, now: float) -> Other:
    busy, stays = idle.busy(state, r, now), _stays(model, r, now)
    scaling = model.scaling
    yields = not busy or scaling.priority <= asks.model.scaling.priority
    return Other(
        replica=r,
        model=model,
        used_s=used_s(state, r),
        cost=scaling.cost if scaling.cost is not None else load_s(r),
        busy=busy,
        stays=stays,
        yields_s=scaling.yield_after_s if yields else None,
    )


def _stays(model: Model, r: Replica, now: float) -> str:
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
    return max([*bytes_s, *told, *renewed], default=idle.idle_since_s(state, r))


def load_s(r: Replica) -> float:
    """What it took to load, as far as this control saw it; 0 for one that was there before."""
    return max((up - s.seen_s for s in r.members if (up := s.ready_s) is not None), default=0.0)


def _due(o: Other, waited_s: float) -> bool:
    return o.yields_s is not None and waited_s >= o.yields_s


# ---------------------------------------------------------------- how


def _room(fleet: Fleet, model: Model, some: list[Other]) -> Room | NoRoom | None:
    """The smallest set of these, the first in their order; None where not even all of them would do.

    A refusal says that only other starts come first.
    """
    room = room_in(fleet, model, (), [Idle(o.replica) for o in some]) if some else None
    return room if isinstance(room, Room) or (room and room.soon) else None


def _without(fleet: Fleet, model: Model, some: Iterable[Other]) -> Placement | NoRoom:
    """Where it goes once all of these have."""
    mark = fleet.mark()
    for o in some:
        fleet.free(o.replica)
    answer = find(fleet, model)
    fleet.reset(mark)
    return answer


def _cleared(asks: Asks, room: Room, others: list[Other], now: float) -> Way:
    by = {o.replica.incarnation: o for o in others}
    go = tuple((r, _sentence(asks, by[r.incarnation], now)) for r in room.evict)
    who = ", ".join(f"{r.replica} ({_state(by[r.incarnation], now)})" for r in room.evict)
    where = room.placement
    return Way(
        f"{asks.why}; {who} makes room",
        go=go,
        hold=where,
        then=where,
        first=_ids(room.evict),
    )


def _sentence(asks: Asks, o: Other, now: float) -> str:
    """Why this one goes, for whoever looks at it."""
    for_whom = f"makes room for {asks.model.name}"
    if asks.waited_s:
        for_whom += f", waited for {asks.waited_s:.0f} s"
    if not o.busy:
        return f"{for_whom}; {_state(o, now)}"
    limit = f"yield_after is {o.yields_s:g} s"
    return f"{for_whom}, {limit}; {o.busy}, which finish first"


def _state(o: Other, now: float) -> str:
    return o.busy or f"idle for {now - o.used_s:.0f} s"


def _later(asks: Asks, room: Room, others: list[Other]) -> Way:
    """Somebody it needs is busy, loads or has just come up. Once it has waited long enough its place is held.

    Else small ones would come and go beside it, and its room never be free in one piece.
    """
    by = {o.replica.incarnation: o for o in others}
    them = [by[r.incarnation] for r in room.evict]
    long = all(_due(o, asks.waited_s) for o in them)
    why = "; ".join(_waits_for(o, asks.waited_s) for o in them)
    hold = room.placement if long else None
    return Way(f"{asks.why}; {why}", hold=hold, first=_ids(room.evict), then=room.placement)


def _waits_for(o: Other, waited_s: float) -> str:
    name = o.replica.replica
    if o.stays:
        return f"{name} {o.stays}"
    if not o.busy:
        return f"{name} is idle and would go"
    left_s = (o.yields_s or 0.0) - waited_s
    return f"{name} is busy ({o.busy})" + (f" and yields in {left_s:.0f} s" if left_s > 0 else "")


def _never(fleet: Fleet, asks: Asks, others: list[Other], going: Iterable[Replica]) -> Way:
    """Not even all of those together make room. It is hopeless where the whole fleet is there to be asked."""
    answer = _without(fleet, asks.model, others)
    if isinstance(answer, Placement) or answer.soon:
        above = _ids(o.replica for o in others if o.yields_s is None)
        return Way(f"{asks.why}; held by {', '.join(above[:NAMED])}, busy and of higher priority")
    # Apart from what this pass keeps for others: those have their turn, and then may have to go as well.
    bare = fleet.bare()
    mark = bare.mark()
    for r in going:
        bare.free(r)
    answer = _without(bare, asks.model, others)
    blind = any(p.gpus for p in asks.model.profiles)
    known = bare.once(("known", blind), lambda: _known(bare, asks.model))
    bare.reset(mark)
    if isinstance(answer, Placement) or answer.soon or not known:
        return Way(asks.why)
    names = _names([o.replica for o in others])
    same = asks.why.endswith(f"; {answer.why}")
    more = (
        f"not even once {names} ended"
        if same
        else f"nor is there room once {names} ended: {answer.why}"
    )
    more = f"; {more}" if others else ""
    return Way(f"{asks.why}{more}", hopeless=True)


def _known(fleet: Fleet, model: Model) -> bool:
    """Whether the whole fleet can be told: what is silent, blind or said no for now may have room after all."""
    state, nodes = fleet.state, fleet.nodes
    if not nodes or state.refused or not all(n.connected for n in nodes.values()):
        return False
    if not any(p.gpus for p in model.profiles):
        return True
    return all(
        node.report.gpus is not None and not any(_unexplained(r) for r in fleet.rooms(name))
        for name, node in nodes.items()
    )


def _unexplained(room: GpuRoom) -> bool:
    """In use, and nobody says by whom: what has just ended, as a rule, and it is back in a moment."""
    there = room.there
    said_bytes = there.reserved_bytes + there.foreign_bytes
    return not there.whole and room.gpu.memory_used_bytes > said_bytes + SLACK_BYTES


def _ids(replicas: Iterable[Replica]) -> tuple[str, ...]:
    return tuple(r.replica for r in replicas)


def _names(replicas: Iterable[Replica]) -> str:
    names = sorted({r.replica for r in replicas})
    more = f" and {len(names) - NAMED} more" if len(names) > NAMED else ""
    verb = "has" if len(names) == 1 else "have"
    return f"{', '.join(names[:NAMED])}{more} {verb}"
