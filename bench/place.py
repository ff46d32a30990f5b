"""How often placement finds what there is: against an exhaustive search, on small random worlds from fixed seeds.

`python -m bench.place [--worlds N] [--seed S]` prints two shares and a JSON result: of the worlds in which everything
wanted could be placed without moving anything, those in which it was; of the worlds in which room could be made by
stopping or moving idle replicas, those in which it was found, and how often by the smallest set. Measures only:
tests/core/test_place_quality.py asserts the shares.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations

from msgspec.structs import replace

from bench.place_worlds import Put, catalog, left, models, nodes, places, put, solvable
from llmgw.core.capacity import holdings
from llmgw.core.place import Idle, Room, make_room
from llmgw.core.reconcile.decide import decide
from llmgw.core.reconcile.fresh import Memory, after_settling
from llmgw.core.types.catalog import Catalog, Model, Profile
from llmgw.core.types.messages import NodeReport, Resources, ShardReport
from llmgw.core.types.plan import Replica, Spot, StartReplica
from llmgw.core.types.state import State

WORLDS, SEED = 2_000, 1


# ---------------------------------------------------------------- without moving anything


def running(
    model: str, profile: Profile, spots: tuple[Spot, ...], n: int = 1
) -> list[tuple[str, ShardReport]]:
    return [
        (
            s.node,
            ShardReport(
                shard=f"{model}-{n}/{s.rank}",
                replica=f"{model}-{n}",
                incarnation=f"{model}-{n}",
                rank=s.rank,
                world_size=len(spots),
                model=model,
                profile=profile.name,
                fingerprint=profile.fingerprint_on(s.node),
                gpus=s.gpus,
                port=s.port,
                ports={"group": s.group_port} if s.group_port else {},
                endpoint="" if s.rank else f"http://{s.node}:{s.port}",
                state="ready",
                resources=Resources(
                    gpu_memory_bytes=profile.gpu_memory_bytes,
                    host_memory_bytes=profile.host_memory_bytes,
                    cpu_cores=profile.cpu_cores,
                    power_w=profile.power_w,
                ),
            ),
        )
        for s in spots
    ]


def with_shards(
    reports: Sequence[NodeReport], more: Sequence[tuple[str, ShardReport]]
) -> list[NodeReport]:
    """The same fleet once these run: each takes the memory that it was given, a whole card all of it."""
    out = []
    for b in reports:
        mine = [s for name, s in more if name == b.node]
        used = dict.fromkeys((g.uuid for g in b.gpus or ()), 0)
        for s in mine:
            for uuid in s.gpus:
                used[uuid] += (s.resources and s.resources.gpu_memory_bytes) or 1 << 60
        gpus = tuple(
            replace(g, memory_used_bytes=min(g.memory_used_bytes + used[g.uuid], g.memory_bytes))
            for g in b.gpus or ()
        )
        out.append(replace(b, gpus=gpus, shards=(*b.shards, *mine)))
    return out


def started_by_passes(reports: Sequence[NodeReport], cat: Catalog) -> int:
    """How many models run once control has decided, and what it started has loaded, as often as it likes to."""
    for _ in range(len(cat.models) + 2):
        plan = decide(after_settling(cat, Memory(), reports), 1e6)
        starts = [a for a in plan.actions if isinstance(a, StartReplica)]
        if not starts:
            break
        for a in starts:
            p = cat.models[a.model].profile(a.profile)
            assert p is not None
            reports = with_shards(reports, running(a.model, p, a.spots))
    return len({s.model for b in reports for s in b.shards})


def without_moving(seed: int, worlds: int) -> dict[str, float]:
    possible = found = 0
    for i in range(worlds):
        r = random.Random(f"{seed} still {i}")
        reports, some = nodes(r), models(r, r.randint(2, 6))
        if not solvable(left(reports), some):
            continue
        possible += 1
        found += started_by_passes(reports, catalog(some)) == len(some)
    return {
        "worlds": worlds,
        "possible": possible,
        "found": found,
        "share": found / max(possible, 1),
    }


# ---------------------------------------------------------------- by moving idle replicas


@dataclass
class Crowd:
    """A world in which engines run: some busy, some idle and free to go, some idle and owed a place."""

    reports: list[NodeReport]
    wanted: Model
    busy: list[tuple[Model, Profile, Put]]
    removable: list[tuple[Model, Profile, Put]]
    movable: list[tuple[Model, Profile, Put]]


def crowd(r: random.Random) -> Crowd:
    reports = nodes(r)
    there = left(reports)
    out = Crowd(reports, models(r, 1, "w")[0], [], [], [])
    kinds = (out.busy, out.removable, out.movable)
    for m in models(r, r.randint(3, 6)):
        p = r.choice(m.profiles)
        spots = list(places(there, p))
        if spots:
            where = r.choice(spots)
            put(there, p, where)
            r.choices(kinds, (1, 3, 3))[0].append((m, p, where))
    return out


def state_of(world: Crowd) -> tuple[State, dict[str, Replica]]:
    ports = iter(range(18000, 18999))
    more: list[tuple[str, ShardReport]] = []
    everybody = [*world.busy, *world.removable, *world.movable]
    for m, p, where in everybody:
        spots = tuple(
            Spot(node=n, rank=i, gpus=uuids, port=next(ports)) for i, (n, uuids) in enumerate(where)
        )
        more += running(m.name, p, spots)
    cat = catalog([m for m, _, _ in everybody] + [world.wanted])
    state = after_settling(cat, Memory(), with_shards(world.reports, more))
    return state, {r.model: r for r in decide(state, 1e6).replicas}


def smallest(world: Crowd) -> int | None:
    """How few have to go, by brute force; None: it cannot be."""
    idle = [(x, False) for x in world.removable] + [(x, True) for x in world.movable]
    for size in range(len(idle) + 1):
        for some in combinations(idle, size):
            gone = {x[0].name for x, _ in some}
            there = left(world.reports)
            for m, p, where in [*world.busy, *world.removable, *world.movable]:
                if m.name not in gone:
                    put(there, p, where)
            if solvable(there, [world.wanted, *(x[0] for x, moves in some if moves)]):
                return size
    return None


def fits(world: Crowd, room: Room) -> bool:
    """Whether what was said is so, by the oracle's arithmetic."""
    there = left(world.reports)
    moved = {r.model: place for r, place in room.move}
    gone = {r.model for r in room.evict} | moved.keys()
    for m, p, where in [*world.busy, *world.removable, *world.movable]:
        if m.name not in gone:
            put(there, p, where)
    by_name = {m.name: m for m, _, _ in world.movable} | {world.wanted.name: world.wanted}
    for name, place in [(world.wanted.name, room.placement), *moved.items()]:
        p = next(q for q in by_name[name].profiles if q.name == place.profile)
        where = tuple(
            (s.node, tuple(sorted(s.gpus))) for s in sorted(place.spots, key=lambda s: s.node)
        )
        if where not in {tuple((n, tuple(sorted(u))) for n, u in w) for w in places(there, p)}:
            return False
        put(there, p, where)
    return {r.model for r in room.evict} <= {m.name for m, _, _ in world.removable}


def by_moving(seed: int, worlds: int) -> dict[str, float]:
    possible = found = minimal = wrong = 0
    for i in range(worlds):
        world = crowd(random.Random(f"{seed} crowd {i}"))
        best = smallest(world)
        if best == 0:
            continue
        state, replicas = state_of(world)
        room = make_room(
            state,
            holdings(state),
            world.wanted,
            (),
            [Idle(replicas[m.name]) for m, _, _ in world.removable],
            [Idle(replicas[m.name]) for m, _, _ in world.movable],
        )
        if isinstance(room, Room) and not fits(world, room):
            wrong += 1
        if best is None:
            continue
        possible += 1
        if isinstance(room, Room):
            found += 1
            minimal += len(room.evict) + len(room.move) == best
    return {
        "worlds": worlds,
        "possible": possible,
        "found": found,
        "share": found / max(possible, 1),
        "smallest": minimal / max(found, 1),
        "wrong": wrong,
    }


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.place")
    parser.add_argument("--worlds", type=int, default=WORLDS)
    parser.add_argument("--seed", type=int, default=SEED)
    args = parser.parse_args()
    found = {
        "without_moving": without_moving(args.seed, args.worlds),
        "by_moving": by_moving(args.seed, args.worlds),
    }
    for what, row in found.items():
        said = "  ".join(f"{k} {v:.4g}" for k, v in row.items())
        sys.stderr.write(f"{what:15} {said}\n")
    sys.stdout.write(json.dumps({"place": found}) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
