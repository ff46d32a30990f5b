"""The words of a script: each is one method, its docstring the manual. An acting word has a second to take effect."""

from __future__ import annotations

from collections.abc import Iterator
from random import Random

from msgspec.structs import replace

from llmgw.core.reconcile.decide import decide
from llmgw.core.types.catalog import Catalog, Model, Profile, Ready, Restart, Scaling, Stop
from llmgw.core.types.messages import Capacity, Gpu, Resources, Start
from llmgw.core.types.node import NodeFacts
from llmgw.core.types.plan import DrainReplica, RollReplica, StartReplica, StopReplica, Wait
from tests.sim.controls import Control, Inventory
from tests.sim.gateways import Gateway
from tests.sim.simulation import Simulation
from tests.sim.world import GIB, Manners, Stranger

A_MOMENT_S = 1.0
WORDS = {
    StartReplica: "start",
    StopReplica: "stop",
    DrainReplica: "drain",
    RollReplica: "roll",
    Wait: "wait",
}


class Commands:
    def __init__(self, rng: Random) -> None:
        self.sim = Simulation({}, Catalog(), rng=rng, urls=("control",))
        self.sim.lease.kind = "file"
        self.sim.tick_s, self.sim.slow_probes = 1.0, False
        self.sim.behave = lambda start: self.manners.get(start.model, Manners())
        self.manners: dict[str, Manners] = {}
        self._shown = 0

    def run(self, line: str) -> Iterator[str]:
        """The command's own answer, and what happened meanwhile."""
        word, *rest = line.split()
        words = [w for w in rest if "=" not in w]
        keys = dict(w.split("=", 1) for w in rest if "=" in w)
        said = list(getattr(self, f"do_{word}")(words, keys) or ())
        trace = self.sim.trace[self._shown :]
        self._shown = len(self.sim.trace)
        for at, who, what, text in trace:
            yield f"{at:6.1f} {who:<8} {what:<14} {text}".rstrip()
        yield from said

    def _moment(self) -> None:
        self.sim.run(A_MOMENT_S)

    @property
    def control(self) -> Control:
        return self.sim.controls["control"]

    # ------------------------------------------------------------ what there is

    def do_node(self, words: list[str], keys: dict[str, str]) -> None:
        """`node NAME [gpus=24,24] [fabric=ib0]`: a host with GPUs of so many GiB; its agent does not run yet."""
        (name,) = words
        sizes = [s for s in keys.get("gpus", "").split(",") if s]
        gpus = tuple(
            Gpu(uuid=f"{name}-gpu{i}", index=i, memory_bytes=int(size) * GIB)
            for i, size in enumerate(sizes)
        )
        facts = NodeFacts(
            node=name,
            node_id=f"id-{name}",
            address=name,
            capacity=Capacity(cpu_cores=16, host_memory_bytes=64 * GIB, ports=(18000, 18009)),
        )
        self.sim.add(facts, gpus)

    def do_catalog(self, _: list[str], keys: dict[str, str]) -> None:
        """`catalog [stray_grace=60] [assembly_window=180]`: settings of the file, seconds."""
        self.sim.catalog = replace(
            self.sim.catalog,
            stray_grace_s=float(keys.get("stray_grace", 60)),
            assembly_window_s=float(keys.get("assembly_window", 180)),
        )

    def do_model(self, words: list[str], keys: dict[str, str]) -> None:
        """`model NAME [min=1] [max=1] [gpus=1] [memory=10] [nodes=1] [args=1] [aliases=A,B] [idle=600] [load=2] …`.

        Written to the catalog file; control reads it at its start, or at `reload`. memory=whole: the GPU alone.
        """
        (name,) = words
        self.manners[name] = Manners(
            load_s=float(keys.get("load", 2)),
            term_s=None if keys.get("term") == "ignored" else float(keys.get("term", 0.5)),
            kill_s=float(keys.get("kill", 0)),
        )
        low = int(keys.get("min", 1))
        scaling = Scaling(
            min=low,
            max=int(keys.get("max", max(low, 1))),
            idle_timeout_s=float(keys.get("idle", 600)),
            min_up_s=0.0,
        )
        model = Model(
            name=name,
            profiles=(_profile(name, keys),),
            aliases=tuple(a for a in keys.get("aliases", "").split(",") if a),
            scaling=scaling,
            on_change=keys.get("on_change", "roll"),
        )
        self.sim.catalog = replace(self.sim.catalog, models=self.sim.catalog.models | {name: model})

    def do_unmodel(self, words: list[str], _: dict[str, str]) -> None:
        """`unmodel NAME`: out of the catalog file."""
        models = {k: v for k, v in self.sim.catalog.models.items() if k not in words}
        self.sim.catalog = replace(self.sim.catalog, models=models)

    def do_reload(self, _: list[str], __: dict[str, str]) -> None:
        """SIGHUP: control reads the catalog file."""
        self.control.reload(self.sim.catalog)
        self._moment()

    def do_engine(self, words: list[str], keys: dict[str, str]) -> None:
        """`engine NODE SHARD [gpus=0] [memory=10] [port=18000] [inc=…] [world=1] [args=1] [state=ready]`.

        An engine that was started before this story: it runs, and it is in the journal of its node's agent.
        """
        node, shard = words
        start = _order(node, shard, keys)
        known = self.manners.get(start.model, Manners())
        manners = replace_manners(known, float(keys.get("load", 0)))
        self.sim.behave = lambda _: manners
        self.sim.preload(node, start, keys.get("state", "ready"), keys.get("since", ""))
        self.sim.behave = lambda start: self.manners.get(start.model, Manners())

    def do_stranger(self, words: list[str], keys: dict[str, str]) -> None:
        """`stranger NODE [port=18000] [gpu=0 memory=10] [pid=999]`: a process that is none of ours."""
        (node,) = words
        gpu = f"{node}-gpu{keys['gpu']}" if "gpu" in keys else ""
        size = int(keys.get("memory", 0)) * GIB
        there = Stranger(int(keys.get("pid", 999)), 1, gpu, size, int(keys.get("port", 0)))
        self.sim.hosts[node].strangers.append(there)

    # ------------------------------------------------------------ what happens

    def do_start(self, words: list[str], _: dict[str, str]) -> None:
        """`start control|NODE…`: the processes of llmgw."""
        for word in words:
            if word == "control":
                self.control.start()
            elif word == "gateway":
                self.sim.gateways.append(Gateway(self.sim, "gateway"))
            else:
                self.sim.agents[word].start()
        self._moment()

    def do_kill(self, words: list[str], _: dict[str, str]) -> None:
        """`kill control|gateway|NODE…`: kill -9; engines run on. Control sees its gateway's end and starts another."""
        for word in words:
            if word == "gateway":
                old = self.sim.gateways[0]
                old.crash()
                self.sim.gateways = [Gateway(self.sim, f"{old.name}'")]
                self.control.gateway_gone(old.name)
            else:
                (self.control if word == "control" else self.sim.agents[word]).crash()
        self._moment()

    def do_inventory(self, words: list[str], _: dict[str, str]) -> None:
        """`inventory lost`: the file is deleted while control is down."""
        assert words == ["lost"]
        self.control.disk = Inventory()

    def do_journal(self, words: list[str], _: dict[str, str]) -> None:
        """`journal NODE lost`: its agent's records are deleted while it is down."""
        node, lost = words
        assert lost == "lost"
        self.sim.agents[node].journal = {}

    def do_reboot(self, words: list[str], _: dict[str, str]) -> None:
        """`reboot NODE`: everything on it dies; its agent is started by `start NODE`."""
        self.sim.reboot(words[0])

    def do_die(self, words: list[str], keys: dict[str, str]) -> None:
        """`die NODE SHARD [worker=stays]`: its processes, or its leader alone."""
        node, shard = words
        host = self.sim.hosts[node]
        for engine in host.live():
            if engine.start.shard == shard:
                engine.ailing = "it died"
                host.dies(engine, -9, worker=keys.get("worker") != "stays")
        self._moment()

    def do_cut(self, words: list[str], _: dict[str, str]) -> None:
        """`cut NODE`: no message between it and control comes through; `heal NODE` ends it."""
        self.sim.net.cut.add(frozenset((words[0], "control")))

    def do_heal(self, words: list[str], _: dict[str, str]) -> None:
        self.sim.net.cut.discard(frozenset((words[0], "control")))
        self._moment()

    def do_blind(self, words: list[str], keys: dict[str, str]) -> None:
        """`blind NODE [end=yes]`: its agent cannot look into /proc."""
        self.sim.hosts[words[0]].proc_blind = "end" not in keys
        self._moment()

    def do_ask(self, words: list[str], _: dict[str, str]) -> None:
        """`ask MODEL SECONDS`: a request that takes so long once it is answered."""
        self.sim.gateways[0].ask(words[0], float(words[1]))
        self._moment()

    def do_advance(self, words: list[str], _: dict[str, str]) -> None:
        """`advance 60s`."""
        self.sim.run(float(words[0].removesuffix("s")))

    # ------------------------------------------------------------ what is seen

    def do_plan(self, _: list[str], __: dict[str, str]) -> Iterator[str]:
        """What the next pass would do: verdicts, and actions in order."""
        state, now = self.control.state, self.sim.clock.now
        assert state is not None
        plan = decide(state, now)
        if plan.settling_for:
            yield f"settling, waits for {', '.join(plan.settling_for)}"
        for v in plan.verdicts:
            reason = f" ({v.reason})" if v.reason else ""
            yield f"{v.verdict}{reason} {v.shard.node}:{v.shard.report.shard}: {v.why}"
        for a in plan.actions:
            due = f" in {a.due_s:.0f} s" if isinstance(a, StopReplica) and a.due_s else ""
            yield f"{WORDS[type(a)]} {a.model}{due}: {a.why}"
        yield from (f"warning: {w}" for w in plan.warnings)

    def do_status(self, _: list[str], __: dict[str, str]) -> Iterator[str]:
        """Replicas, routes, and what truly runs."""
        state = self.control.state
        assert state is not None
        for r in self.sim.core.survey(state).replicas:
            where = f" {r.endpoint}" if r.endpoint else ""
            yield f"replica {r.replica} of {r.model}: {r.state}, {r.have} of {r.want}{where}"
        for model in self.control.table.models.values():
            for route in model.replicas:
                yield f"route {route.replica} {route.endpoint} {route.state}"
        for host in self.sim.hosts.values():
            for e in host.live():
                yield f"runs {e.start.shard} ({e.start.incarnation}) attempt {e.attempt} on {e.host}"

    def do_failures(self, _: list[str], __: dict[str, str]) -> Iterator[str]:
        """What counts against a model (A67)."""
        state = self.control.state
        assert state is not None
        for model, failures in state.failures.items():
            yield f"{model}: {len(failures)} failed, last: {failures[-1].error}"


def replace_manners(manners: Manners, load_s: float) -> Manners:
    return Manners(load_s, manners.fails_s, manners.term_s, manners.kill_s, manners.release_s)


def _profile(name: str, keys: dict[str, str]) -> Profile:
    memory = keys.get("memory", "10")
    gpus = int(keys.get("gpus", 1))
    return Profile(
        name=keys.get("profile", "main"),
        command=("engine",),
        nodes=int(keys.get("nodes", 1)),
        gpus=gpus,
        gpu_memory_bytes=int(memory) * GIB if gpus and memory != "whole" else None,
        weights={"default": keys.get("weights", f"{name}.gguf")},
        fingerprints={"default": f"1:{name}-{keys.get('args', '1')}"},
        ready=Ready(failures=2, of=3),
        start_timeout_s=60.0,
        drain_timeout_s=float(keys.get("drain", 20)),
        stop=Stop(grace_s=5.0),
        restart=Restart(max=int(keys.get("restarts", 3)), window_s=120.0, backoff_s=2.0),
    )


def _order(node: str, shard: str, keys: dict[str, str]) -> Start:
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
        fingerprint=f"1:{model}-{keys.get('args', '1')}",
        weights=keys.get("weights", f"{model}.gguf"),
        command=("engine",),
        gpus=gpus,
        port=int(keys.get("port", 18000)),
        resources=Resources(gpu_memory_bytes=int(memory) * GIB if memory != "whole" else None),
        ready=Ready(failures=2, of=3),
        stop=Stop(grace_s=5.0),
        restart=Restart(max=3, window_s=120.0, backoff_s=2.0),
    )
