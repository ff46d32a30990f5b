"""What there is when a story begins: nodes, models, engines that run already; and how much is left to chance."""

from __future__ import annotations

from msgspec.structs import replace

from llmgw.core.types.catalog import Model, Profile, Ready, Restart, Scaling, Stop
from llmgw.core.types.messages import Capacity, Gpu, Resources, Start
from llmgw.core.types.node import NodeFacts
from llmgw.core.types.sleep import Doors
from tests.sim import generate
from tests.sim.dice import Dice
from tests.sim.simulation import Simulation
from tests.sim.world import GIB, Manners, Stranger

Keys = dict[str, str]
DOORS = Doors(
    level=1, asleep="/is_sleeping", sleep=("/sleep?level=1",), wake=("/wake_up",), canary=True
)


class Given:
    def __init__(self, sim: Simulation) -> None:
        self.sim = sim
        self.manners: dict[str, Manners] = {}
        sim.behave = self._manners

    def _manners(self, start: Start, attempt: int) -> Manners:
        if not self.sim.dice.real:
            return self.manners.get(start.model, Manners())
        luck = self.sim.dice.stream("engine", start.shard, start.incarnation, attempt)
        return generate.manners(luck, self.sim.habits.trouble)

    def do_dice(self, words: list[str], _: Keys) -> None:
        """`dice SEED`: how long things take, and what is lost, hangs on it; without it always the middle."""
        self.sim.use(Dice(int(words[0])))

    def do_controls(self, words: list[str], _: Keys) -> None:
        """`controls N`: control, control-b, control-c, with a lease in a store; before any node."""
        self.sim.lead(int(words[0]))
        self.sim.lease.kind = "etcd"

    def do_node(self, words: list[str], keys: Keys) -> None:
        """`node NAME [gpus=24,24] [host=64] [cores=16] [power=W] [circuit=C]`: a host with GPUs of so many GiB.

        labels=A:B,…; numa=0,0,1: of each GPU its NUMA node. No agent runs on it yet.
        """
        (name,) = words
        sizes = [s for s in keys.get("gpus", "").split(",") if s]
        numa = dict(enumerate(int(n) for n in keys.get("numa", "").split(",") if n))
        gpus = tuple(
            Gpu(uuid=f"{name}-gpu{i}", index=i, memory_bytes=int(size) * GIB, numa=numa.get(i))
            for i, size in enumerate(sizes)
        )
        capacity = Capacity(
            cpu_cores=float(keys.get("cores", 16)),
            host_memory_bytes=int(keys.get("host", 64)) * GIB,
            power_w=float(keys["power"]) if "power" in keys else None,
            ports=(18000, 18019),
        )
        facts = NodeFacts(
            node=name,
            node_id=f"id-{name}",
            address=name,
            capacity=capacity,
            circuit=keys.get("circuit"),
            labels=_pairs(keys.get("labels", "")),
        )
        self.sim.add(facts, gpus)

    def do_catalog(self, _: list[str], keys: Keys) -> None:
        """`catalog [stray_grace=60] [assembly_window=180] [start_limit=1] [circuits=C:1500,…]`: of the file."""
        self.sim.catalog = replace(
            self.sim.catalog,
            stray_grace_s=float(keys.get("stray_grace", 60)),
            assembly_window_s=float(keys.get("assembly_window", 180)),
            start_limit=int(keys.get("start_limit", 1)),
            circuits={
                name: float(watts)
                for name, watts in (c.split(":") for c in keys.get("circuits", "").split(",") if c)
            },
        )

    def do_model(self, words: list[str], keys: Keys) -> None:
        """`model NAME [min=1] [max=1] [gpus=1] [memory=10] [nodes=1] [args=1] [aliases=A,B] [idle=600] [load=2] …`.

        Written to the catalog file; control reads it at its start, or at `reload`. memory=whole: the GPU alone.
        order=workers: rank 0 is started once the others listen.
        exact=box1:0: these very GPUs; select=LABEL:VALUE; fallback=cpu: a second profile, without a GPU.
        sleep=1: idle ones are put to sleep; door=deaf: they do not fall asleep.
        print=X: the fingerprint, where it is not that of NAME with these args.
        """
        (name,) = words
        self.manners[name] = Manners(
            load_s=float(keys.get("load", 2)),
            term_s=None if keys.get("term") == "ignored" else float(keys.get("term", 0.5)),
            kill_s=float(keys.get("kill", 0)),
            restless=keys.get("door") == "deaf",
        )
        low = int(keys.get("min", 1))
        scaling = Scaling(
            min=low,
            max=int(keys.get("max", max(low, 1))),
            idle_timeout_s=None if keys.get("idle") == "never" else float(keys.get("idle", 600)),
            min_up_s=float(keys.get("min_up", 0)),
            yield_after_s=float(keys.get("yield", 120)),
            priority=int(keys.get("priority", 0)),
            cost=float(keys["cost"]) if "cost" in keys else None,
        )
        model = Model(
            name=name,
            profiles=(_profile(name, keys), *_fallback(name, keys)),
            aliases=tuple(a for a in keys.get("aliases", "").split(",") if a),
            scaling=scaling,
            on_change=keys.get("on_change", "roll"),
            max_unavailable=int(keys.get("max_unavailable", 1)),
            lost_after_s=float(keys["lost_after"]) if "lost_after" in keys else None,
        )
        self._written(self.sim.catalog.models | {name: model})

    def do_unmodel(self, words: list[str], _: Keys) -> None:
        """`unmodel NAME…`: out of the catalog file."""
        self._written({k: v for k, v in self.sim.catalog.models.items() if k not in words})

    def _written(self, models: dict[str, Model]) -> None:
        self.sim.catalog = replace(self.sim.catalog, models=models)

    def do_reload(self, _: list[str], __: Keys) -> None:
        """`reload`: SIGHUP, control reads the catalog file."""
        for control in self.sim.controls.values():
            control.reload(self.sim.catalog)

    def do_engine(self, words: list[str], keys: Keys) -> None:
        """`engine NODE SHARD [gpus=0] [memory=10] [port=18000] [inc=…] [world=1] [args=1] [state=ready]`.

        An engine that was started before this story: it runs, and it is in the journal of its node's agent.
        """
        node, shard = words
        start = _order(node, shard, keys)
        manners = replace_manners(self._manners(start, 1), float(keys.get("load", 0)))
        self.sim.preload(node, start, manners, keys.get("state", "ready"), keys.get("since", ""))

    def do_stranger(self, words: list[str], keys: Keys) -> None:
        """`stranger NODE [port=18000] [gpu=0 memory=10] [pid=999] [for=60]`: a process that is none of ours."""
        host = self.sim.hosts[words[0]]
        gpu = f"{host.name}-gpu{keys['gpu']}" if "gpu" in keys else ""
        size = int(keys.get("memory", 0)) * GIB
        there = Stranger(int(keys.get("pid", 999)), 1, gpu, size, int(keys.get("port", 0)))
        if there.port and host.listener(there.port) is not None:
            return
        host.strangers.append(there)
        if "for" in keys:
            self.sim.clock.after(float(keys["for"]), lambda: host.leaves(there))


def replace_manners(manners: Manners, load_s: float) -> Manners:
    return Manners(load_s, None, manners.term_s, manners.kill_s, manners.release_s)


def _profile(name: str, keys: Keys) -> Profile:
    memory = keys.get("memory", "10")
    gpus = int(keys.get("gpus", 1))
    return Profile(
        name=keys.get("profile", "main"),
        command=("engine",),
        nodes=int(keys.get("nodes", 1)),
        start_order="workers_first" if keys.get("order") == "workers" else "",
        gpus=gpus,
        gpus_exact=tuple(g for g in keys.get("exact", "").split(",") if g),
        select=_pairs(keys.get("select", "")),
        gpu_memory_bytes=int(memory) * GIB if gpus and memory != "whole" else None,
        host_memory_bytes=int(keys.get("host", 0)) * GIB,
        cpu_cores=float(keys.get("cores", 0)),
        power_w=float(keys.get("power", 0)),
        weights={"default": keys.get("weights", f"{name}.gguf")},
        fingerprints={"default": f"1:{keys.get('print', '') or _print(name, keys)}"},
        ready=Ready(failures=2, of=3),
        start_timeout_s=60.0,
        drain_timeout_s=float(keys.get("drain", 20)),
        stop=Stop(grace_s=5.0),
        restart=Restart(max=int(keys.get("restarts", 3)), window_s=120.0, backoff_s=2.0),
        sleep=DOORS if keys.get("sleep") == "1" else None,
    )


def _fallback(name: str, keys: Keys) -> tuple[Profile, ...]:
    if "fallback" not in keys:
        return ()
    return (
        _profile(name, keys | {"gpus": "0", "profile": keys["fallback"], "print": f"{name}-cpu"}),
    )


def _pairs(text: str) -> dict[str, str]:
    return dict(pair.split(":") for pair in text.split(",") if pair)


def _print(name: str, keys: Keys) -> str:
    return f"{name}-{keys.get('args', '1')}"


def _order(node: str, shard: str, keys: Keys) -> Start:
    replica, _, rank = shard.rpartition("/")
    model = keys.get("model", replica.rpartition("-")[0])
    gpus = tuple(f"{node}-gpu{i}" for i in keys.get("gpus", "0").split(",") if i)
    memory = keys.get("memory", "10")
    return Start(
        shard=shard,
        replica=replica,
        incarnation=keys.get("inc", f"old-{replica}"),
        model=model,
        served_name=model,
        profile=keys.get("profile", "main"),
        rank=int(rank),
        world_size=int(keys.get("world", 1)),
        fingerprint=f"1:{keys.get('print', '') or _print(model, keys)}",
        weights=keys.get("weights", f"{model}.gguf"),
        command=("engine",),
        gpus=gpus,
        port=int(keys.get("port", 18000)),
        resources=Resources(
            gpu_memory_bytes=int(memory) * GIB if memory != "whole" else None,
            host_memory_bytes=int(keys.get("host", 0)) * GIB,
            cpu_cores=float(keys.get("cores", 0)),
            power_w=float(keys.get("power", 0)),
        ),
        ready=Ready(failures=2, of=3),
        stop=Stop(grace_s=5.0),
        restart=Restart(max=3, window_s=120.0, backoff_s=2.0),
    )
