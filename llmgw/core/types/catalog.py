"""The catalog as the core sees it: already parsed, merged with its defaults, checked.

Units: bytes, seconds, watts. `None` for a duration means never, for memory it means a whole GPU. Parsing, positions
and fingerprints are `llmgw.catalog`'s; this file may not know YAML.
"""

from __future__ import annotations

from fnmatch import fnmatchcase

from msgspec import Struct

from llmgw.core.types.sleep import Doors

#: `${name}` words that a command, its arguments and its environment may hold; `env.NAME` and `file.PATH` besides.
PLACEHOLDERS = frozenset(
    [
        "port",
        "host",
        "model",
        "weights",
        "gpu_indices",
        "gpu_uuids",
        "gpu_count",
        "rank",
        "nodes",
        "is_leader",
        "leader_addr",
        "group_port",
        "workers",
        "node",
        "node_addr",
        "fabric_addr",
        "hcas",
        "replica",
        "shard",
        "api_key",
        "state_dir",
        "log_path",
        "container_name",
    ]
)
#: First part of a fingerprint; another prefix means unknown, neither equal nor different (A18, A19).
FINGERPRINT_PREFIX = "1:"


class Scaling(Struct, frozen=True):
    min: int = 0
    max: int = 1
    idle_timeout_s: float | None = 600.0
    min_up_s: float = 120.0
    yield_after_s: float = 120.0
    priority: int = 0
    cost: float | None = None


class Stop(Struct, frozen=True):
    signal: str = "TERM"
    grace_s: float = 20.0


class Restart(Struct, frozen=True):
    """After `max` failures within `window_s` the shard is given up; back-off starts at the second failure (A67)."""

    max: int = 5
    window_s: float = 1800.0
    backoff_s: float = 5.0


class Ready(Struct, frozen=True):
    """`failures` of the last `of` probes failing makes a ready engine unhealthy; `token` asks for one real token."""

    token: bool = False
    failures: int = 3
    of: int = 5


class Requests(Struct, frozen=True):
    max_in_flight: int = 64
    queue: int = 128


class Profile(Struct, frozen=True, kw_only=True):
    """One way to run a model. Command, args and env are unexpanded: `${...}` is filled in on the agent."""

    name: str
    engine: str = ""
    launcher: str = "exec"
    image: str = ""
    #: of a container, `SOURCE:TARGET[:ro|rw]`, unexpanded
    mounts: tuple[str, ...] = ()
    command: tuple[str, ...] = ()
    worker_command: tuple[str, ...] = ()
    leader_args: tuple[str, ...] = ()
    worker_args: tuple[str, ...] = ()
    start_order: str = ""
    env: dict[str, str] = {}
    #: variables that only a built-in engine's template sets: like all of it no part of the fingerprint
    template_env: tuple[str, ...] = ()
    #: by node name, "default" for the others; {} where the engine needs none
    weights: dict[str, str] = {}
    #: by node name where weights differ, "default" for the others; see `fingerprint_on`
    fingerprints: dict[str, str] = {}
    weight: int = 1
    nodes: int = 1
    gpus: int = 0
    gpus_exact: tuple[str, ...] = ()
    gpu_memory_bytes: int | None = None
    host_memory_bytes: int = 0
    cpu_cores: float = 0.0
    power_w: float = 0.0
    pool: str = "default"
    select: dict[str, str] = {}
    fabric: str = ""
    health: str = "/health"
    compute: str = ""
    upstream_key: bool = False
    insecure: bool = False
    ready: Ready = Ready()
    start_timeout_s: float = 900.0
    drain_timeout_s: float = 120.0
    stop: Stop = Stop()
    restart: Restart = Restart()
    #: how an idle replica is put to sleep; None: it is stopped
    sleep: Doors | None = None

    @property
    def by_node(self) -> bool:
        """Whether weights, and so fingerprints, differ from node to node."""
        weights, prints = self.weights, self.fingerprints
        return len(weights) > ("default" in weights) or len(prints) > ("default" in prints)

    def fingerprint_on(self, node: str) -> str:
        return self.fingerprints.get(node, self.fingerprints.get("default", ""))

    def weights_on(self, node: str) -> str:
        return self.weights.get(node, self.weights.get("default", ""))


class Model(Struct, frozen=True, kw_only=True):
    name: str
    profiles: tuple[Profile, ...]
    aliases: tuple[str, ...] = ()
    kind: str = "chat"
    context: int | None = None
    listed: bool = True
    scaling: Scaling = Scaling()
    requests: Requests = Requests()
    wait_timeout_s: float = 300.0
    lost_after_s: float | None = None
    on_change: str = "roll"
    max_unavailable: int = 1
    sticky_prefix_bytes: int | None = None

    @property
    def on_demand(self) -> bool:
        """Whether any replica may be put to sleep for want of requests."""
        return self.scaling.max > self.scaling.min

    def profile(self, name: str) -> Profile | None:
        for profile in self.profiles:
            if profile.name == name:
                return profile
        return None


class Catalog(Struct, frozen=True, kw_only=True):
    models: dict[str, Model] = {}
    #: breaker panel -> watts
    circuits: dict[str, float] = {}
    stray_grace_s: float = 60.0
    assembly_window_s: float = 180.0
    keep_unknown: bool = False
    start_limit: int = 1
    #: sha256 of the merged source; "" for an empty catalog
    digest: str = ""

    def resolve(self, name: str) -> Model | None:
        """The model that answers to `name`: its own name first, then an exact alias, then a glob (A14)."""
        own = self.models.get(name)
        if own is not None:
            return own
        for model in self.models.values():
            if name in model.aliases:
                return model
        for model in self.models.values():
            if any("*" in a and fnmatchcase(name, a) for a in model.aliases):
                return model
        return None
