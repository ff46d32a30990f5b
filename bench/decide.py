"""What one decision pass costs, as a ratio to copying the state it looks at, and how that grows (P12).

`python -m bench.decide [NODES...]` builds fleets of so many nodes with eight GPUs each and twice as many models, in
five moments: `steady`, all that is wanted runs; `busy`, one model in ten has yet to be placed, and half as many fit
nowhere; `cold`, nothing runs yet, as after a blackout; `edited`, every profile has changed; `asked`, all models are on
demand, every card is in use, and one model in a hundred is asked for, so that others make room. Copying is measured in
three ways: `copy`, each value of nodes, shards, GPUs and models made anew in memory by hand (the strictest), `wire`,
encoded with msgspec and decoded again, and `deep`, `copy.deepcopy` of the whole. Ratios are of medians of interleaved
rounds in one process. Measures only: asserts nothing.
"""

from __future__ import annotations

import argparse
import copy
import gc
import json
import statistics
import sys
import time
from collections.abc import Callable
from typing import Any

import msgspec
from msgspec.structs import replace

from llmgw.core.reconcile.decide import decide
from llmgw.core.reconcile.fresh import Memory, after_settling
from llmgw.core.types.catalog import Catalog, Model, Profile, Scaling
from llmgw.core.types.messages import Capacity, Gpu, NodeReport, Resources, ShardReport
from llmgw.core.types.plan import DrainReplica, RollReplica, StartReplica, Wait
from llmgw.core.types.routes import Demand
from llmgw.core.types.state import Asked, GatewayView, Node, State

GIB = 1 << 30
SIZES = (100, 1_000)
GPUS = 8
#: Of the models of a fleet: GPUs, memory per GPU in GiB (None: whole), how many of a hundred.
KINDS = ((1, 8, 45), (1, 17, 25), (1, None, 6), (2, 30, 12), (4, None, 4), (0, 0, 8))
MOMENTS = ("steady", "busy", "cold", "edited", "asked")
LATER = 1e6
#: The models with this end do not run where others are asked to make room for them.
LEFT_OUT = 50


def model(i: int, count: int, size: int | None) -> Model:
    name = f"model-{i:05}"
    return Model(
        name=name,
        aliases=(f"{name}-latest",),
        scaling=Scaling(min=1, max=2 if i % 10 == 0 else 1, priority=i % 3),
        profiles=(
            Profile(
                name="main",
                engine="vllm",
                command=("vllm", "serve", "${weights}", "--port", "${port}"),
                weights={"default": f"/models/{name}"},
                fingerprints={"default": f"1:{i:032x}"},
                gpus=count,
                # A little of its own for each: no two ask for the very same.
                gpu_memory_bytes=None if size is None else size * GIB + (i << 16),
                host_memory_bytes=4 * GIB,
                cpu_cores=1.0,
                power_w=100.0,
            ),
        ),
    )


def catalog(nodes: int, *, hopeless: int = 0) -> Catalog:
    kinds = [(count, size) for count, size, share in KINDS for _ in range(share)]
    models = [model(i, *kinds[i % len(kinds)]) for i in range(nodes * 2)]
    models += [model(10**6 + i, 8, 500) for i in range(hopeless)]
    circuits = {f"row-{n:03}": 1e6 for n in range(max(nodes // 20, 1))}
    return Catalog(models={m.name: m for m in models}, circuits=circuits)


def reports(nodes: int) -> list[NodeReport]:
    return [
        NodeReport(
            node=f"box{n:04}",
            node_id=f"{n:032x}",
            address=f"10.0.{n // 250}.{n % 250}",
            circuit=f"row-{n // 20:03}",
            capacity=Capacity(cpu_cores=64, host_memory_bytes=512 * GIB, power_w=6000),
            gpus=tuple(
                Gpu(
                    uuid=f"GPU-{n:04}-{g:04}",
                    index=g,
                    name="NVIDIA H100",
                    memory_bytes=(24, 48, 80)[n % 3] * GIB,
                    driver="580.1",
                    numa=g // 4,
                )
                for g in range(GPUS)
            ),
        )
        for n in range(nodes)
    ]


def settled(nodes: int, moment: str) -> State:
    """That fleet in that moment, its engines placed by passes of `decide` itself."""
    if moment == "asked":
        return asked(settled(nodes, "steady"))
    cat = catalog(nodes, hopeless=nodes // 10 if moment == "busy" else 0)
    state = after_settling(cat, Memory(), reports(nodes))
    if moment == "cold":
        return state
    some = [m for i, m in enumerate(cat.models.values()) if moment != "busy" or i % 10]
    state = replace(state, catalog=replace(cat, models={m.name: m for m in some}, start_limit=99))
    told = reports(nodes)
    while starts := [a for a in decide(state, LATER).actions if isinstance(a, StartReplica)]:
        there: dict[str, list[ShardReport]] = {}
        for a in starts:
            for name, shard in running(state, a):
                there.setdefault(name, []).append(shard)
        told = [replace(r, shards=(*r.shards, *there.get(r.node, ()))) for r in told]
        state = after_settling(state.catalog, Memory(), told)
    return after_settling(edited(cat) if moment == "edited" else cat, Memory(), told)


def asked(state: State) -> State:
    """The same, all idle and on demand, where no card has anything left and some that do not run are waited for."""
    free = Scaling(min=0, idle_timeout_s=1e9, min_up_s=0.0)
    models = {name: replace(m, scaling=free) for name, m in state.catalog.models.items()}
    nodes = {}
    for name, node in state.nodes.items():
        gpus = (replace(g, memory_used_bytes=g.memory_bytes) for g in node.report.gpus or ())
        shards = tuple(s for s in node.shards if int(s.report.model[-2:]) != LEFT_OUT)
        report = replace(node.report, gpus=tuple(gpus))
        nodes[name] = replace(node, report=report, shards=shards)
    waiting = {name: 1 for name in models if int(name[-2:]) == LEFT_OUT}
    view = GatewayView(Demand(gateway="g", n=1, waiting=waiting), LATER - 1)
    since = {name: Asked(LATER - 5, LATER) for name in waiting}
    catalog = replace(state.catalog, models=models)
    return replace(state, catalog=catalog, nodes=nodes, gateways={"g": view}, asked=since)


def edited(cat: Catalog) -> Catalog:
    def changed(m: Model) -> Model:
        p = m.profiles[0]
        prints = {node: f"{f}e" for node, f in p.fingerprints.items()}
        return replace(m, profiles=(replace(p, fingerprints=prints),))

    return replace(cat, models={name: changed(m) for name, m in cat.models.items()})


def running(state: State, a: StartReplica) -> list[tuple[str, ShardReport]]:
    p = state.catalog.models[a.model].profiles[0]
    return [
        (
            s.node,
            ShardReport(
                shard=f"{a.model}-1/{s.rank}",
                replica=f"{a.model}-1",
                incarnation=f"{a.model}-1",
                rank=s.rank,
                world_size=len(a.spots),
                model=a.model,
                profile=p.name,
                fingerprint=p.fingerprint_on(s.node),
                gpus=s.gpus,
                port=s.port,
                endpoint=f"http://{s.node}:{s.port}",
                state="ready",
                resources=Resources(
                    gpu_memory_bytes=p.gpu_memory_bytes,
                    host_memory_bytes=p.host_memory_bytes,
                    cpu_cores=p.cpu_cores,
                    power_w=p.power_w,
                ),
            ),
        )
        for s in a.spots
    ]


# ---------------------------------------------------------------- copies


def copied(state: State) -> State:
    """Every value of every list anew, as cheaply as Python can; strings are shared, for they never change."""
    each = copy.copy
    nodes = {}
    for name, node in state.nodes.items():
        report = replace(
            node.report,
            gpus=tuple(map(each, node.report.gpus or ())),
            foreign=tuple(map(each, node.report.foreign)),
            capacity=each(node.report.capacity),
        )
        shards = tuple(
            replace(s, report=replace(s.report, resources=each(s.report.resources)))
            for s in node.shards
        )
        nodes[name] = replace(node, report=report, shards=shards)
    models = {
        name: replace(m, profiles=tuple(map(each, m.profiles)), scaling=each(m.scaling))
        for name, m in state.catalog.models.items()
    }
    return replace(state, nodes=nodes, catalog=replace(state.catalog, models=models))


class _Whole(msgspec.Struct):
    """What of the state is large, as one message."""

    nodes: dict[str, Node]
    catalog: Catalog


def by_wire(state: State) -> Callable[[], Any]:
    encoder = msgspec.msgpack.Encoder()
    decoder = msgspec.msgpack.Decoder(_Whole)
    return lambda: decoder.decode(encoder.encode(_Whole(state.nodes, state.catalog)))


# ---------------------------------------------------------------- measuring


def timed(call: Callable[[], Any]) -> float:
    gc.collect()
    gc.disable()
    before = time.process_time()
    call()
    taken = time.process_time() - before
    gc.enable()
    return taken


def measure(nodes: int, moment: str, rounds: int) -> dict[str, Any]:
    state = settled(nodes, moment)
    calls = {
        "decide": lambda: decide(state, LATER),
        "copy": lambda: copied(state),
        "wire": by_wire(state),
        "deep": lambda: copy.deepcopy(state),
    }
    taken: dict[str, list[float]] = {k: [] for k in calls}
    for _ in range(rounds):
        for k, call in calls.items():
            taken[k].append(timed(call))
    cost = {k: statistics.median(v) for k, v in taken.items()}
    actions = decide(state, LATER).actions
    return {
        "moment": moment,
        "nodes": nodes,
        "gpus": nodes * GPUS,
        "models": len(state.catalog.models),
        "shards": sum(len(n.shards) for n in state.nodes.values()),
        "starts": sum(isinstance(a, StartReplica) for a in actions),
        "waits": sum(isinstance(a, Wait) for a in actions),
        "rolls": sum(isinstance(a, RollReplica) for a in actions),
        "drains": sum(isinstance(a, DrainReplica) for a in actions),
        **{f"{k}_ms": round(v * 1e3, 1) for k, v in cost.items()},
        "to_copy": round(cost["decide"] / cost["copy"], 2),
        "to_wire": round(cost["decide"] / cost["wire"], 2),
        "to_deep": round(cost["decide"] / cost["deep"], 2),
    }


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.decide")
    parser.add_argument("nodes", nargs="*", type=int, default=list(SIZES))
    parser.add_argument("--rounds", type=int, default=5)
    args = parser.parse_args()
    rows = [measure(n, moment, args.rounds) for moment in MOMENTS for n in args.nodes]
    for moment in MOMENTS:
        mine = [r for r in rows if r["moment"] == moment]
        for row in mine:
            row["growth"] = round(row["decide_ms"] / max(mine[0]["decide_ms"], 0.01), 1)
            sys.stderr.write("  ".join(f"{k} {v}" for k, v in row.items()) + "\n")
    sys.stdout.write(json.dumps({"decide": rows}) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
