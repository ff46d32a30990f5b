"""The catalog's keys: names, types, defaults, one sentence each. The one declaration of them.

`read` walks YAML by these structs, `build` fills them, `schema` turns them into JSON Schema, and the table in the
contract is kept in step with them. Values are as people write them (`"10m"`); the core has its own, in seconds and
bytes. What the reader needs beyond a type is in `Meta(extra=…)`:

- `check`: a function that raises `UsageError` for a text it does not take
- `what`: how to say what is wanted, where a pattern would say nothing to a person
- `hint`: what to try when the type is wrong
"""

from __future__ import annotations

from functools import cache
from typing import Annotated, Any, Literal

from msgspec import UNSET, Meta, Struct, UnsetType, structs

from llmgw.catalog.placeholders import (
    check_argument,
    check_env_name,
    check_mount,
    check_text,
    check_weights,
)
from llmgw.catalog.units import DURATION_PATTERN, SIZE_PATTERN, parse_duration, parse_size

VERSION = 1
MAX_NUMBER = 1_000_000_000


def _doc(text: str, **extra: Any) -> Meta:
    return Meta(description=text, extra=extra)


_NAME_WHAT = "a name of letters, digits, . _ - (at most 63, the first a letter or digit)"
_ALIAS_WHAT = "an alias of letters, digits, . _ - / : (at most 63), with * as a wildcard"
_ARGV = "write a list, [program, --flag, value]; where a shell is meant: [sh, -c, …]"

Name = Annotated[
    str, Meta(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,62}$", extra={"what": _NAME_WHAT})
]
Alias = Annotated[
    str, Meta(pattern=r"^[A-Za-z0-9*][A-Za-z0-9._/:*-]{0,62}$", extra={"what": _ALIAS_WHAT})
]
EnvName = Annotated[
    str,
    Meta(
        pattern=r"^[A-Za-z_][A-Za-z0-9_]*$",
        extra={"what": "a variable's name of letters, digits and _", "check": check_env_name},
    ),
]
Size = Annotated[
    str, Meta(pattern=SIZE_PATTERN, examples=["18GiB", "24GB"], extra={"check": parse_size})
]
Duration = Annotated[
    str, Meta(pattern=DURATION_PATTERN, examples=["90s", "10m"], extra={"check": parse_duration})
]
OrNever = Annotated[
    str,
    Meta(
        pattern=f"({DURATION_PATTERN})|^never$",
        examples=["10m", "never"],
        extra={"check": parse_duration, "never": True},
    ),
]
Count = Annotated[int, Meta(ge=0, le=MAX_NUMBER)]
Positive = Annotated[int, Meta(ge=1, le=MAX_NUMBER)]
Amount = Annotated[float, Meta(ge=0, le=MAX_NUMBER)]

_ANY_SCALAR = {"type": ["string", "number", "boolean", "null"]}
#: Taken as written: `32768`, `1.10` and `yes` are these very characters.
Text = Annotated[Any, Meta(extra_json_schema=_ANY_SCALAR)]
Argument = Annotated[Any, Meta(extra_json_schema=_ANY_SCALAR, extra={"check": check_argument})]
EnvText = Annotated[Any, Meta(extra_json_schema=_ANY_SCALAR, extra={"check": check_text})]
Weights = Annotated[str, Meta(extra={"check": check_weights})]
Mount = Annotated[str, Meta(examples=["/models:/models:ro"], extra={"check": check_mount})]
ImageName = Annotated[
    str,
    Meta(pattern=r"^[A-Za-z0-9][!-~]*$", extra={"what": "an image's name, like ghcr.io/a/b:1"}),
]
Level = Annotated[str, Meta(pattern=r"^[12]$", extra={"what": "a sleep level, 1 or 2"})]
Step = Annotated[
    str,
    Meta(
        pattern=r"^/[!-~]*( \{.*\})?$",
        extra={"what": "a path that begins with /, and a JSON body after a space"},
    ),
]
HttpPath = Annotated[str, Meta(pattern=r"^/[!-~]*$", extra={"what": "a path that begins with /"})]


class Keys(Struct, frozen=True, forbid_unknown_fields=True):
    """Base of every mapping in the file."""


class Scaling(Keys, frozen=True):
    min: Annotated[Count, _doc("Replicas that always run; 0 = on demand.")] = 0
    max: Annotated[Count | UnsetType, _doc("Replicas at most; default max(min, 1).")] = UNSET
    idle_timeout: Annotated[
        OrNever,
        _doc("An on-demand replica is stopped, or sleeps, after this long without a request."),
    ] = "10m"
    min_up: Annotated[
        Duration,
        _doc("A replica is neither put to sleep nor evicted sooner than this after it came up."),
    ] = "2m"
    yield_after: Annotated[
        Duration,
        _doc("A busy on-demand replica makes room once others have waited this long for it."),
    ] = "2m"
    priority: Annotated[
        Count, _doc("Who is served first when room is short; busy ones yield to no lower one.")
    ] = 0
    cost: Annotated[
        Amount | UnsetType,
        _doc(
            "What a load costs: of two last used together the cheaper one goes; default: seconds."
        ),
    ] = UNSET


class Requests(Keys, frozen=True):
    max_in_flight: Annotated[Positive, _doc("Requests at a time per replica.")] = 64
    queue: Annotated[Count, _doc("Requests that may wait per replica; over it: 429.")] = 128


class Stop(Keys, frozen=True):
    signal: Annotated[
        Literal["TERM", "INT", "QUIT", "HUP", "USR1", "USR2", "KILL"],
        _doc("What asks the engine to end."),
    ] = "TERM"
    grace: Annotated[Duration, _doc("KILL follows after this.")] = "20s"


class Restart(Keys, frozen=True):
    max: Annotated[Count, _doc("Failures within `window` after which the engine is given up.")] = 5
    window: Annotated[Duration, _doc("How far back failures count.")] = "30m"
    backoff: Annotated[Duration, _doc("Pause before a restart, from the second failure on.")] = "5s"


class Ready(Keys, frozen=True):
    token: Annotated[
        bool, _doc("Readiness asks for one real token, and again every 15 s while it is up.")
    ] = False
    failures: Annotated[
        Positive, _doc("So many of the last `of` probes failing make it unhealthy.")
    ] = 3
    of: Annotated[Positive, _doc("How many probes are looked at.")] = 5


class Sticky(Keys, frozen=True):
    prefix: Annotated[Size, _doc("Requests with the same first bytes go to the same replica.")] = (
        "1KiB"
    )


_START_TIMEOUT = _doc("Spawn to ready; a quiet load is not killed before this.")
_DRAIN_TIMEOUT = _doc("How long requests in flight may take before a stop.")
_STOP = _doc("How an engine is ended.")
_RESTART = _doc("When a failing engine is given up.")


class Timing(Keys, frozen=True):
    """Allowed in `defaults`, a model and a profile; the innermost wins."""

    start_timeout: Annotated[Duration, _START_TIMEOUT] = "15m"
    drain_timeout: Annotated[Duration, _DRAIN_TIMEOUT] = "2m"
    stop: Annotated[Stop, _STOP] = Stop()
    restart: Annotated[Restart, _RESTART] = Restart()


class Serving(Timing, frozen=True):
    """Allowed in `defaults` and a model."""

    scaling: Annotated[Scaling, _doc("How many replicas, and when they sleep.")] = Scaling()
    requests: Annotated[Requests, _doc("Limits per replica.")] = Requests()
    wait_timeout: Annotated[
        Duration, _doc("How long a request may wait for the model to load.")
    ] = "5m"
    lost_after: Annotated[
        OrNever, _doc("When a silent node's replicas count as lost, and are replaced elsewhere.")
    ] = "never"
    on_change: Annotated[
        Literal["roll", "keep"], _doc("What happens to running engines whose fingerprint changed.")
    ] = "roll"
    max_unavailable: Annotated[
        Positive, _doc("Replicas a roll may take away at a time, once a new one is ready.")
    ] = 1


class Defaults(Serving, frozen=True):
    stray_grace: Annotated[Duration, _doc("An engine nobody claims is stopped after this.")] = "60s"
    assembly_window: Annotated[
        Duration, _doc("How long a replica over several nodes may lack a shard.")
    ] = "3m"
    keep_unknown: Annotated[bool, _doc("Never stop engines that the catalog does not know.")] = (
        False
    )
    start_limit: Annotated[Positive, _doc("Starts at a time per node and per circuit.")] = 1


class Circuit(Keys, frozen=True):
    power_w: Annotated[
        float, Meta(gt=0, le=MAX_NUMBER), _doc("Watts that the nodes on it may draw together.")
    ]


class SleepLevel(Keys, frozen=True):
    sleep: Annotated[
        tuple[Step, ...],
        _doc("POSTs that put it to sleep: a path each, a JSON body after a space."),
    ] = ()
    wake: Annotated[tuple[Step, ...], _doc("POSTs that wake it again; twice is as once.")] = ()


class Sleeps(Keys, frozen=True):
    """How an engine is put to sleep and woken, where it can be."""

    asleep: Annotated[
        HttpPath, _doc("Answers a GET with is_sleeping, true or false, and wakes nobody.")
    ]
    levels: Annotated[dict[Level, SleepLevel], _doc("By the level that a profile asks for.")]
    args: Annotated[
        tuple[Argument, ...], _doc("Appended where a profile asks for sleep.", hint=_ARGV)
    ] = ()
    env: Annotated[dict[EnvName, EnvText], _doc("Environment where a profile asks for sleep.")] = {}


class Engine(Keys, frozen=True):
    """A named command template. A profile may carry the same keys, and then its own win."""

    command: Annotated[
        tuple[Argument, ...], _doc("The program and its arguments; no shell.", hint=_ARGV)
    ] = ()
    worker_command: Annotated[
        tuple[Argument, ...], _doc("Ranks above 0, where they are another program.", hint=_ARGV)
    ] = ()
    start_order: Annotated[
        Literal["workers_first"] | UnsetType,
        _doc("Rank 0 is started once every worker listens on its ${port}; default: all at once."),
    ] = UNSET
    env: Annotated[
        dict[EnvName, EnvText],
        _doc("Environment; the place for secrets, since `ps` shows arguments."),
    ] = {}
    health: Annotated[HttpPath, _doc("A 2xx answer here means ready.")] = "/health"
    ready: Annotated[Ready, _doc("When it counts as ready and as unhealthy.")] = Ready()
    compute: Annotated[
        Literal["llama.cpp", "vllm", "sglang", "ollama"] | UnsetType,
        _doc("As which engine it says where the model was put, and how far its load is."),
    ] = UNSET
    sleeps: Annotated[
        Sleeps | UnsetType, _doc("How it is put to sleep and woken; default: it cannot sleep.")
    ] = UNSET
    upstream_key: Annotated[bool, _doc("The gateway sends Authorization: Bearer ${api_key}.")] = (
        False
    )
    insecure: Annotated[
        bool, _doc("Allow it on a non-loopback address although it takes no key.")
    ] = False


class Profile(Engine, frozen=True, kw_only=True):
    """One way to run a model."""

    name: Annotated[Name, _doc("The profile's name.")]
    engine: Annotated[
        Name | UnsetType, _doc("The command template; `args` are appended to its command.")
    ] = UNSET
    launcher: Annotated[
        Literal["exec", "docker", "podman"],
        _doc("What starts it: the command by itself, or an image by docker or podman."),
    ] = "exec"
    image: Annotated[
        ImageName | UnsetType,
        _doc("For docker and podman; a command is appended to its entrypoint, an engine's is not."),
    ] = UNSET
    mounts: Annotated[
        tuple[Mount, ...],
        _doc(
            "What a container sees of the host, SOURCE:TARGET[:ro|rw], besides the weights; a model hub's cache, say.",
            hint="write a list, [/models:/models:ro]",
        ),
    ] = ()
    args: Annotated[
        tuple[Argument, ...], _doc("Appended to the command; taken as written.", hint=_ARGV)
    ] = ()
    leader_args: Annotated[tuple[Argument, ...], _doc("Appended on rank 0 only.", hint=_ARGV)] = ()
    worker_args: Annotated[
        tuple[Argument, ...], _doc("Appended on the other ranks.", hint=_ARGV)
    ] = ()
    weight: Annotated[Count, _doc("Share of the traffic among the profiles that run.")] = 1
    weights: Annotated[
        Weights | dict[Name, Weights] | UnsetType,
        _doc("${weights}: a file or directory, or {default: A, NODE: B}."),
    ] = UNSET
    nodes: Annotated[Positive, _doc("One shard per node; rank 0 is the leader.")] = 1
    gpus: Annotated[Count, _doc("Per node; 0 = CPU. Unset with gpus_exact: all that it names.")] = 0
    gpus_exact: Annotated[
        tuple[str, ...],
        _doc("Only these GPUs: UUIDs, or NODE:INDEX, which moves when a card is lost."),
    ] = ()
    gpu_memory: Annotated[
        Size | UnsetType, _doc("Per GPU, which is then shared; unset: the whole GPU, alone.")
    ] = UNSET
    host_memory: Annotated[Size | UnsetType, _doc("Per shard.")] = UNSET
    cpu_cores: Annotated[Amount, _doc("Per shard.")] = 0.0
    power_w: Annotated[Amount, _doc("Watts per shard.")] = 0.0
    pool: Annotated[Name, _doc("Only nodes of this pool.")] = "default"
    select: Annotated[dict[Name, Text], _doc("Only nodes with these labels.")] = {}
    fabric: Annotated[
        Name | UnsetType, _doc("All shards on this fabric; `any` = one they share.")
    ] = UNSET
    sleep: Annotated[
        Literal["off", "1", "2"],
        _doc(
            "How deep an idle on-demand replica sleeps instead of being stopped: 1 keeps its weights "
            "in host memory, 2 drops them."
        ),
    ] = "off"
    start_timeout: Annotated[Duration, _START_TIMEOUT] = "15m"
    drain_timeout: Annotated[Duration, _DRAIN_TIMEOUT] = "2m"
    stop: Annotated[Stop, _STOP] = Stop()
    restart: Annotated[Restart, _RESTART] = Restart()


class Model(Serving, frozen=True, kw_only=True):
    aliases: Annotated[
        tuple[Alias, ...], _doc("Further names; an exact one wins over one with *.")
    ] = ()
    kind: Annotated[
        Literal["chat", "embed", "rerank", "audio", "image", "other"],
        _doc("What /v1/models says it is."),
    ] = "chat"
    context: Annotated[
        Positive | UnsetType, _doc("Context length to advertise when the engine does not tell.")
    ] = UNSET
    listed: Annotated[bool, _doc("Whether /v1/models shows it.")] = True
    sticky: Annotated[
        Sticky | UnsetType,
        _doc("Send prompts that begin alike to the same replica, for its cache."),
    ] = UNSET
    profiles: Annotated[
        tuple[Profile, ...],
        _doc(
            "Ways to run it; the first that can be placed wins.",
            hint='write a list: "profiles:", then "- name: main"',
        ),
    ]


class CatalogFile(Keys, frozen=True, kw_only=True):
    version: Annotated[Literal[1], _doc("Of this format; always 1.")]
    defaults: Annotated[
        Defaults, _doc("For every model and profile that does not say otherwise.")
    ] = Defaults()
    circuits: Annotated[
        dict[Name, Circuit], _doc("Breaker panels: several nodes may hang on one.")
    ] = {}
    engines: Annotated[
        dict[Name, Engine], _doc("Named command templates; the built-in ones may be overridden.")
    ] = {}
    models: Annotated[dict[Name, Model], _doc("By the name that clients ask for.")] = {}


@cache
def declared(struct: type[Struct]) -> tuple[structs.FieldInfo, ...]:
    """The keys of one of the above. Kept: working the annotations out takes longer than reading a whole catalog."""
    return structs.fields(struct)
