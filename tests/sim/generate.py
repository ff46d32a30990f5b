"""A small random world: two to four nodes, two to four models that mostly fit them, and how their engines behave."""

from __future__ import annotations

from random import Random

from msgspec.structs import replace

from llmgw.core.capacity import resources_for
from llmgw.core.types.catalog import Catalog, Model, Profile, Ready, Restart, Scaling, Stop
from llmgw.core.types.messages import Capacity, Gpu, Start
from llmgw.core.types.node import NodeFacts
from tests.sim.world import GIB, Manners

#: Longer than control's patience with gateways after its start, so that both show.
IDLE_S = 80.0
#: (node, order)
Placed = tuple[str, Start]
NAMES = ("alpha", "beta", "gamma", "delta")


def nodes(rng: Random) -> dict[str, tuple[NodeFacts, tuple[Gpu, ...]]]:
    out = {}
    for i in range(rng.choice((2, 2, 3, 3, 4))):
        name = f"box{i + 1}"
        gpus = tuple(
            Gpu(uuid=f"{name}-gpu{k}", index=k, memory_bytes=24 * GIB)
            for k in range(rng.choice((1, 1, 2, 2, 0) if i else (1, 2)))
        )
        facts = NodeFacts(
            node=name,
            node_id=f"id-{name}",
            address=name,
            capacity=Capacity(cpu_cores=16, host_memory_bytes=64 * GIB, ports=(18000, 18019)),
        )
        out[name] = (facts, gpus)
    return out


def catalog(rng: Random) -> Catalog:
    names = NAMES[: rng.choice((2, 3, 3, 4))]
    return Catalog(
        models={name: model(rng, name) for name in names},
        stray_grace_s=rng.choice((5.0, 15.0)),
        assembly_window_s=40.0,
        start_limit=rng.choice((1, 1, 2)),
        digest="1",
    )


def model(rng: Random, name: str) -> Model:
    low = rng.choice((0, 0, 1, 1, 1, 2))
    high = max(low, 1) if rng.random() < 0.8 else low + 1
    return Model(
        name=name,
        profiles=(profile(rng, name),),
        scaling=Scaling(min=low, max=high, idle_timeout_s=IDLE_S, min_up_s=10.0),
    )


def profile(rng: Random, name: str) -> Profile:
    kind = rng.random()
    gpus = 0 if kind < 0.25 else 2 if kind > 0.95 else 1
    memory = rng.choice((6, 8, 10)) * GIB if gpus and rng.random() < 0.8 else None
    return Profile(
        name="main",
        command=("engine",),
        gpus=gpus,
        gpu_memory_bytes=memory,
        host_memory_bytes=4 * GIB,
        cpu_cores=1.0,
        weights={"default": f"{name}.gguf"},
        fingerprints={"default": f"1:{name}-1"},
        ready=Ready(failures=2, of=3),
        start_timeout_s=40.0,
        drain_timeout_s=20.0,
        stop=Stop(grace_s=6.0),
        restart=Restart(max=3, window_s=60.0, backoff_s=2.0),
    )


def older(rng: Random, catalog: Catalog, gpus: dict[str, int]) -> tuple[Catalog, list[Placed]]:
    """What an older control plane left running: halves of a pair, a removed model, one model twice. `gpus` per node."""
    free = [f"{name}-gpu{i}" for name, count in gpus.items() for i in range(count)]
    rng.shuffle(free)
    placed: list[Placed] = []
    if len(set(gpus)) > 1 and len({g.partition("-")[0] for g in free}) > 1 and rng.random() < 0.3:
        first = free.pop()
        second = next(g for g in free if g.partition("-")[0] != first.partition("-")[0])
        free.remove(second)
        pair = replace(profile(rng, "deep"), nodes=2, gpus=1, gpu_memory_bytes=20 * GIB)
        scaling = Scaling(min=1, max=1, idle_timeout_s=IDLE_S)
        deep = Model(name="deep", profiles=(pair,), scaling=scaling)
        catalog = replace(catalog, models=catalog.models | {"deep": deep})
        placed += [left(deep, "deep-old", rank, gpu, 2) for rank, gpu in enumerate((first, second))]
    if free and rng.random() < 0.3:
        gone = model(rng, "gone")
        one = replace(gone, profiles=(replace(gone.profiles[0], gpus=1, gpu_memory_bytes=6 * GIB),))
        placed.append(left(one, "gone-old", 0, free.pop(), 1))
    if len(free) > 1 and rng.random() < 0.3:
        twin = next((m for m in catalog.models.values() if m.profiles[0].gpus == 1), None)
        if twin is not None:
            placed += [left(twin, f"{twin.name}-old{k}", 0, free.pop(), 1) for k in range(2)]
    return catalog, placed


def left(model: Model, replica: str, rank: int, gpu: str, world_size: int) -> Placed:
    p = model.profiles[0]
    node = gpu.partition("-")[0]
    start = Start(
        shard=f"{replica}/{rank}",
        replica=replica,
        incarnation=f"h-{replica}",
        model=model.name,
        profile=p.name,
        rank=rank,
        world_size=world_size,
        served_name=model.name,
        fingerprint=p.fingerprint_on(node),
        weights=p.weights_on(node),
        command=p.command,
        gpus=(gpu,),
        port=18010 + int(gpu[-1]) + 3 * (model.name == "deep") + 5 * (model.name == "gone"),
        resources=resources_for(p),
        ready=p.ready,
        start_timeout_s=p.start_timeout_s,
        stop=p.stop,
        restart=p.restart,
    )
    return node, start


def edited(rng: Random, catalog: Catalog, edits: int) -> tuple[Catalog, str]:
    """One edit as people make them: other arguments, a rename with an alias, a model more or less, a scale."""
    name = rng.choice(sorted(catalog.models))
    old = catalog.models[name]
    models = {k: v for k, v in catalog.models.items() if k != name}
    kind = rng.choice(("args", "args", "rename", "remove", "add", "scale"))
    if kind == "remove" and models:
        words = f"{name} is removed"
    elif kind == "rename" and "-" not in name:
        new = f"{name}-{edits}"
        models[new] = replace(old, name=new, aliases=(*old.aliases, name))
        words = f"{name} is {new} now"
    elif kind == "add":
        new = f"{rng.choice(NAMES)}-{edits}x"
        models |= {name: old, new: model(rng, new)}
        words = f"{new} is new"
    elif kind == "scale":
        low = rng.choice((0, 1, 2))
        scaling = replace(old.scaling, min=low, max=max(low, 1))
        models[name] = replace(old, scaling=scaling)
        words = f"{name} has min {low}, max {scaling.max}"
    else:
        profiles = tuple(
            replace(p, fingerprints={"default": f"1:{name}-e{edits}"}) for p in old.profiles
        )
        models[name] = replace(old, profiles=profiles)
        words = f"{name} has other arguments"
    return replace(catalog, models=models, digest=str(edits)), words


def manners(rng: Random, trouble: float) -> Manners:
    """`trouble`: the share of engines with some bad habit."""
    bad = rng.random() < trouble
    habit = rng.choice(("fails", "ignores", "slow", "stuck", "lingers")) if bad else ""
    return Manners(
        load_s=rng.uniform(0.5, 8.0),
        fails_s=rng.uniform(0.1, 3.0) if habit == "fails" else None,
        term_s=None if habit == "ignores" else rng.uniform(3.0, 12.0) if habit == "slow" else 0.3,
        kill_s=rng.uniform(5.0, 25.0) if habit == "stuck" else 0.0,
        release_s=rng.uniform(1.0, 6.0) if habit == "lingers" else 0.2,
    )
