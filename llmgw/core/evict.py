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
7. A sleeper is never in the way of its own model: it wakes once others have gone, or goes for a new one.
May not stop or start anything, nor remember what it said before: the drains show in the facts.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable

from msgspec import Struct

from llmgw.core import failed
from llmgw.core.asleep import asleep, not_to_be_woken, sleeps, stuck
from llmgw.core.place import Fleet, Idle, NoRoom, Placement, Room, find
from llmgw.core.place.fleet import GpuRoom
from llmgw.core.place.nowhere import bare_boxes, unheard
from llmgw.core.place.room import room_in
from llmgw.core.types.catalog import Model
from llmgw.core.types.plan import Plan, Replica, Wait
from llmgw.core.types.record import STUCK
from llmgw.core.types.state import Failure, Node, Shard, State
from llmgw.core.yields import Other, everybody, others

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
    """Who asks for room: the model, how long requests have waited for it, and why there is none.

    `wakes`: incarnations that this pass wakes, whoever for; they make room for nobody.
    """

    model: Model
    waited_s: float
    why: str
    wakes: frozenset[str] = frozenset()


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
    lacks = failed.absent(state, model, now)
    _bar(fleet, lacks)
    going = _going(fleet, replicas, leaving)
    spared = {r.incarnation for r in going} | asks.wakes
    own = _own(replicas, model, spared)
    if (way := _instead(fleet, asks, own)) is not None:
        return way
    endless = [r for r in going if any(map(_stuck, r.members))]
    ending = [r for r in going if not any(map(_stuck, r.members))]
    if (way := _once(fleet, asks, ending)) is not None:
        return way
    crash = failed.last(state, model, now)
    if crash is not None:
        why = f"{asks.why}; nobody goes for it: it failed {_ago(model, crash, now)}"
        return _nowhere(fleet, asks) or Way(why)
    every = fleet.once("others", lambda: everybody(state, replicas, now))
    them = others(every, model, spared)
    by_them = _among(fleet, asks, them, now)
    if (way := by_them or _once(fleet, asks, endless)) is not None:
        return way
    going += own
    return _never(fleet, asks, them, going, _absent(asks, lacks[-1], now) if lacks else "")


def _instead(fleet: Fleet, asks: Asks, own: list[Replica]) -> Way | None:
    """Where it goes once its own sleepers have, none of which can wake just now.

    The fleet is without them from here on: what others give back is for one of them to wake in, or for a new one
    instead of it.
    """
    state, held = fleet.state, fleet.held
    why = [stuck(state, asks.model, r) or not_to_be_woken(state, held, r) for r in own]
    for n, r in enumerate(own, 1):
        fleet.free(r)
        answer = find(fleet, asks.model)
        if isinstance(answer, Placement):
            said = [f"asleep, and cannot wake where it lies: {no}; a new one starts" for no in why]
            go = tuple(zip(own[:n], said, strict=False))
            more = f"{asks.why}; it goes there once {_names(own[:n])} ended"
            return Way(more, go=go, hold=answer, then=answer, first=_ids(own[:n]))
    return None


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


def _among(fleet: Fleet, asks: Asks, them: list[Other], now: float) -> Way | None:
    """By the first of: idle ones, those that are due as well, all who will ever go; None where not even those do."""
    idle_ones = [o for o in them if not o.busy and not o.stays]
    due = [o for o in them if o.busy and not o.stays and o.due(asks.model, asks.waited_s)]
    for some in (idle_ones, [*idle_ones, *due] if due else []):
        room = _room(fleet, asks.model, some)
        if isinstance(room, Room):
            return _cleared(asks, room, them, now)
        if room is not None:
            return Way(f"{asks.why}; then {room.why}")
    ever = [o for o in them if o.yields_s(asks.model) is not None]
    room = _room(fleet, asks.model, ever) if len(ever) > len(idle_ones) + len(due) else None
    if isinstance(room, Room):
        return _later(asks, room, them)
    return Way(f"{asks.why}; then {room.why}") if room is not None else None


def unplaceable(plan: Plan) -> dict[str, str]:
    """By model, why nothing that could be done makes room for it: whoever asks is told at once."""
    return {a.model: a.why for a in plan.actions if isinstance(a, Wait) and a.hopeless}


# ---------------------------------------------------------------- who


def _going(fleet: Fleet, replicas: Collection[Replica], leaving: Collection[str]) -> list[Replica]:
    state = fleet.state
    rows = fleet.once("rows", lambda: {r.incarnation: r for r in replicas if r.members})
    gone = fleet.once("going", lambda: [r for r in rows.values() if _goes(state, r)])
    there = {r.incarnation for r in gone}
    more = (rows[i] for i in leaving if i in rows and i not in there)
    return [*gone, *sorted(more, key=lambda r: (r.replica, r.incarnation))]


def _own(replicas: Iterable[Replica], model: Model, spared: Collection[str]) -> list[Replica]:
    """The sleepers of the model itself."""
    mine = (r for r in replicas if r.model == model.name and r.kept and asleep(r))
    return [r for r in mine if r.incarnation not in spared]


def _goes(state: State, r: Replica) -> bool:
    """One that falls asleep gives back almost all: nobody else goes for what it makes room for."""
    if asleep(r) and not all(map(sleeps, r.members)):
        return True
    return r.going or r.incarnation in state.draining


def _stuck(shard: Shard) -> bool:
    """It does not end by itself: who waits for its room alone may wait for ever (F67)."""
    return STUCK in (shard.report.error or "")


def _ago(model: Model, last: Failure, now: float) -> str:
    """Of a failure within the window in which failures count, of what the catalog says today."""
    return f"{now - last.at_s:.0f} s ago ({last.error}); llmgw clear {model.name} lets it"


def _absent(asks: Asks, last: Failure, now: float) -> str:
    if last.error in asks.why:
        return f"looked for again within a minute, at once after llmgw clear {asks.model.name}"
    return f"nobody goes for it: it was refused {_ago(asks.model, last, now)}"


def _bar(fleet: Fleet, lacks: Iterable[Failure]) -> None:
    """Nobody goes where a file of the model is absent, nor is that place kept for it; other nodes may have it."""
    for f in lacks:
        fleet.lacks(f.absent, f.fingerprint, f.error)


# ---------------------------------------------------------------- how


def _room(fleet: Fleet, model: Model, some: list[Other]) -> Room | NoRoom | None:
    """The smallest set of these, the first in their order; None where not even all of them would do.

    A refusal says that only other starts come first.
    """
    room = room_in(fleet, model, (), [Idle(o.replica) for o in some]) if some else None
    return room if isinstance(room, Room) or (room and room.soon) else None


def _without(
    fleet: Fleet, model: Model, some: Iterable[Other], unsure: Iterable[Shard] = ()
) -> Placement | NoRoom:
    """Where it goes once all of these have, and if those had ended of which nobody can tell."""
    mark = fleet.mark()
    for o in some:
        fleet.free(o.replica)
    fleet.ended(unsure)
    answer = find(fleet, model)
    fleet.reset(mark)
    return answer


def _cleared(asks: Asks, room: Room, them: list[Other], now: float) -> Way:
    by = {o.replica.incarnation: o for o in them}
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
    limit = f"yield_after is {o.model.scaling.yield_after_s:g} s"
    return f"{for_whom}, {limit}; busy ({o.busy}), what it serves ends first"


def _state(o: Other, now: float) -> str:
    return o.busy or f"idle for {now - o.used_s:.0f} s"


def _later(asks: Asks, room: Room, them: list[Other]) -> Way:
    """Somebody it needs is busy, loads or has just come up. Once it has waited long enough its place is held.

    Else small ones would come and go beside it, and its room never be free in one piece.
    """
    by = {o.replica.incarnation: o for o in them}
    those = [by[r.incarnation] for r in room.evict]
    long = all(o.due(asks.model, asks.waited_s) for o in those)
    why = "; ".join(_waits_for(o, asks.waited_s) for o in those)
    hold = room.placement if long else None
    return Way(f"{asks.why}; {why}", hold=hold, first=_ids(room.evict), then=room.placement)


def _waits_for(o: Other, waited_s: float) -> str:
    name = o.replica.replica
    if o.stays:
        return f"{name} {o.stays}"
    if not o.busy:
        return f"{name} is idle and would go"
    left_s = o.model.scaling.yield_after_s - waited_s
    return f"{name} is busy ({o.busy})" + (f" and yields in {left_s:.0f} s" if left_s > 0 else "")


def _never(
    fleet: Fleet, asks: Asks, them: list[Other], going: Iterable[Replica], absent: str
) -> Way:
    """Not even all of those together make room. It is hopeless where the whole fleet is there to be asked.

    `absent`: of a file that it would load, which is what whoever asks is told; "" for none.
    """
    above = _ids(o.replica for o in them if o.yields_s(asks.model) is None)
    if above and not _no(_without(fleet, asks.model, them)):
        return Way(f"{asks.why}; held by {', '.join(above[:NAMED])}, busy and of higher priority")
    if absent:
        return Way(f"{asks.why}; {absent}", hopeless=True)
    # Apart from what this pass keeps for others: those have their turn, and then may have to go as well.
    bare = fleet.bare()
    mark = bare.mark()
    for r in going:
        bare.free(r)
    answer = _without(bare, asks.model, them)
    blind = any(p.gpus for p in asks.model.profiles)
    known = bare.once(("known", blind), lambda: _known(bare, asks.model))
    unsure = bare.once("unsure", lambda: _unsure(bare.nodes.values()))
    maybe = bool(unsure) and not _no(_without(bare, asks.model, them, unsure))
    bare.reset(mark)
    no = _no(answer)
    if no is None or not known:
        return (_nowhere(fleet, asks) if no else None) or Way(asks.why)
    if maybe:
        return Way(f"{asks.why}; there is room if {_if_ended(unsure)}")
    names = _names([o.replica for o in them])
    same = asks.why.endswith(f"; {no.why}")
    more = (
        f"not even once {names} ended"
        if same
        else f"nor is there room once {names} ended: {no.why}"
    )
    more = f"; {more}" if them else ""
    return Way(f"{asks.why}{more}", hopeless=True)


def _nowhere(fleet: Fleet, asks: Asks) -> Way | None:
    """Whatever is silent, refused or not known for now: it fits on no node, or on none that takes work."""
    if unheard(fleet.state, asks.model):
        return None
    no = _no(find(fleet.once("bare boxes", lambda: bare_boxes(fleet.state)), asks.model))
    if no is None:
        return None
    more = "" if asks.why.endswith(no.why) else f"; nor is there room where nothing runs: {no.why}"
    return Way(f"{asks.why}{more}", hopeless=True)


def _no(answer: Placement | NoRoom) -> NoRoom | None:
    """The refusal, where it is one for good."""
    return answer if isinstance(answer, NoRoom) and not answer.soon else None


def _unsure(nodes: Iterable[Node]) -> list[Shard]:
    """Those whose agent is there and cannot tell whether they run: it will be known, one way or the other."""
    return [s for n in nodes for s in n.shards if s.holds and s.report.state == "unknown"]


def _if_ended(unsure: list[Shard]) -> str:
    names = ", ".join(f"{s.report.shard} on {s.node}" for s in unsure[:NAMED])
    if len(unsure) > 1:
        more = f" and {len(unsure) - NAMED} more" if len(unsure) > NAMED else ""
        return f"{names}{more} have ended, which nobody can tell"
    why = f" ({unsure[0].report.error})" if unsure[0].report.error else ""
    return f"{names} has ended, which its agent cannot tell{why}"


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
