"""What agents and control say to each other: the inventory, commands, events (contract/http.md "Agents").

These frozen values are the wire messages; there is no second set of classes. Names on the wire are those of the
contract, in Python units come last. A missing field means unknown (an older agent); unknown fields are kept in
`extra` by `llmgw.wire` and go back out (F55, F56). Times on the wire are ISO-8601 UTC strings, which sort as text.
"""

from __future__ import annotations

from typing import Annotated, Any

from msgspec import Meta, Struct, field

from llmgw.core.types.by_hand import Fact, Started
from llmgw.core.types.catalog import Ready, Restart, Stop
from llmgw.core.types.sleep import Asleep, Doors, SleepShard, WakeShard

PROTOCOL = 1
PROTOCOL_FLOOR = 1

#: `extra` is no field on the wire, and what a peer sends under that name is unknown like any other. A message in plain
#: ASCII without escapes cannot spell this one, so nothing in it is decoded into `extra`.
EXTRA = "…"

#: Epochs stay below. Leaders rise above what agents tell (F16): nonsense would be handed on for ever.
EPOCH_END = 1 << 48

#: Shard states (A60). `TERMINAL` ones hold nothing; `STARTING` ones are on their way up.
SHARD_STATES = (
    "pending",
    "starting",
    "loading",
    "ready",
    "unhealthy",
    "draining",
    "asleep",
    "stopping",
    "stopped",
    "failed",
    "unknown",
)
TERMINAL = frozenset({"stopped", "failed"})
STARTING = frozenset({"pending", "starting", "loading"})
#: Has come up: ready, or was ready. `draining` still answers, `asleep` does not.
LIVE = frozenset({"ready", "unhealthy", "draining", "asleep"})

#: `Start.health` of a worker that speaks no HTTP: it is up once its own port is listened on.
LISTENS = "tcp"
WORKERS_FIRST = "workers_first"

#: 0 is no port (A44); what is out of this range can be held by nobody.
PortNumber = Annotated[int, Meta(ge=0, lt=1 << 16)]


class Gpu(Struct, frozen=True, kw_only=True, gc=False):
    """One GPU, or one MIG device. `index` is for people: it moves when a card is lost (F71).

    `healthy` False: not for new work, `trouble` says why; `lost`: it does not answer at all any more (F72). A healthy
    one may have `trouble` too. `unified`: its memory is the host's, the same bytes. `selector`: how the vendor's
    runtime is told of it where not by uuid. `numa`: of its slot; `nvlink`: to which uuids; `link`: PCIe, now and most.
    """

    uuid: str
    index: int = 0
    name: str = ""
    memory_bytes: int = field(default=0, name="memory")
    memory_used_bytes: int = field(default=0, name="memory_used")
    healthy: bool = True
    pci: str = ""
    driver: str = ""
    power_limit_w: float | None = None
    power_w: float | None = None
    compute_capability: str = ""
    vendor: str = ""
    selector: str = ""
    unified: bool = False
    lost: bool = False
    trouble: str = ""
    numa: int | None = None
    nvlink: tuple[str, ...] = ()
    link: str = ""


class Resources(Struct, frozen=True, kw_only=True, gc=False):
    """What one shard was given at launch. `gpu_memory_bytes` is per GPU; None or 0 with GPUs means each GPU whole."""

    gpu_memory_bytes: int | None = field(default=None, name="gpu_memory")
    host_memory_bytes: int = field(default=0, name="host_memory")
    cpu_cores: float = 0.0
    power_w: float = 0.0


class Compute(Struct, frozen=True, kw_only=True):
    """Where the engine says it put the model (A69); every field None where it did not say."""

    device: str | None = None
    layers_gpu: int | None = None
    layers_total: int | None = None
    gpu_bytes: int | None = None


class ShardReport(Struct, frozen=True, kw_only=True, gc=False, forbid_unknown_fields=True):
    """One shard as its agent sees it. Unknown fields are for `llmgw.wire` to put into `extra`: it decodes by itself.

    Only `shard` is sure to be there; `node` is set only by a confused agent (A12).
    """

    shard: str
    replica: str = ""
    incarnation: str = ""
    attempt: Annotated[int, Meta(ge=0, lt=1 << 31)] = 1
    rank: int | None = None
    world_size: Annotated[int, Meta(ge=1, lt=1 << 16)] | None = None
    model: str = ""
    profile: str = ""
    fingerprint: str = ""
    artefact: str = ""
    pool: str = ""
    fabric: str = ""
    gpus: tuple[str, ...] = ()
    hcas: tuple[str, ...] = ()
    port: PortNumber = 0
    ports: dict[str, PortNumber] = {}
    endpoint: str = ""
    state: str = "unknown"
    desired: str = "running"
    resources: Resources | None = None
    compute: Compute | None = None
    pid: int | None = None
    started_at: str = ""
    last_request_age_s: float | None = None
    progress: float | None = None
    #: the most that its engine has been seen to hold on one GPU; None where nobody can measure
    gpu_peak_bytes: int | None = field(default=None, name="gpu_peak")
    #: and the most of the host's memory that its processes were seen to hold together
    host_peak_bytes: int | None = field(default=None, name="host_peak")
    error: str | None = None
    gave_up: bool = False  # failed for good: the agent's bounded restarts are used up (A67)
    #: its agent died before it could be started (F44): that says nothing about the engine, so it is no failure of it
    never_ran: bool = False
    sleep: int = 0  # the level at which it can be put to sleep, 0 for not at all; `asleep`: what it is like then
    asleep: Asleep | None = None
    node: str | None = None
    #: in `register` only, never in inventories for people (contract/http.md)
    api_key: str | None = None
    served_name: str | None = None
    extra: dict[str, Any] = field(default={}, name=EXTRA)


class Capacity(Struct, frozen=True, kw_only=True):
    """None means the node does not say, and then nothing is limited by it."""

    cpu_cores: float | None = None
    host_memory_bytes: int | None = field(default=None, name="host_memory")
    power_w: float | None = None
    ports: tuple[int, int] = (18000, 18999)


class Fabric(Struct, frozen=True, kw_only=True):
    address: str = ""
    hcas: tuple[str, ...] = ()


class Foreign(Struct, frozen=True, kw_only=True):
    """A process on a GPU, or an engine, that is none of ours: subtracted, shown, never signalled (A70).

    With a `shard` it is ours, and this is what it holds there beyond what it was given (F73).
    """

    pid: int
    gpu: str = ""
    memory_bytes: int = field(default=0, name="memory")
    command: str = ""
    port: int | None = None
    shard: str = ""
    by_hand: Started | None = None  # it is, or descends from, what `llmgw adopt` can take (A71)
    why: str = ""  # whose marks it carries, where no agent on its host is that node


class NodeReport(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The complete inventory of one node: the register message, and the `--report` file format."""

    node: str
    protocol: int = PROTOCOL
    node_id: str = ""
    instance: str = ""
    #: rises with each registration within a boot: one that was held up on the way is told from a newer one; 0: unknown
    registration: int = 0
    version: str = ""
    boot_id: str = ""
    epoch_seen: int = 0
    leader_uuid: str | None = None
    address: str = "127.0.0.1"
    loopback: str = ""  # whose its own is: alike for all who can reach an engine there
    inspect: str = ""
    inspect_pin: str = ""  # hash of the certificate shown there
    pools: tuple[str, ...] = ("default",)
    labels: dict[str, str] = {}
    fabrics: dict[str, Fabric] = {}
    circuit: str | None = None
    reattached: bool = True
    follows: bool = False  # it knows `Start.after`
    capacity: Capacity = Capacity()
    gpus: tuple[Gpu, ...] | None = None  # None: devices unknown (F59); (): none
    gpus_error: str = ""  # why the devices are not known
    shards: tuple[ShardReport, ...] = ()
    foreign: tuple[Foreign, ...] = ()
    extra: dict[str, Any] = field(default={}, name=EXTRA)


class Peer(Struct, frozen=True, kw_only=True):
    rank: int
    node: str
    address: str
    fabric_address: str = ""
    port: int = 0
    group_port: int = 0  # of the leader: where the ranks meet


class Token(Struct, frozen=True):
    """The right to command: agents keep the highest and refuse what is lower (design.md 3)."""

    epoch: int
    leader_uuid: str
    lease: str = ""  # the agent's note: of which of several file leases it is


class Start(Struct, frozen=True, kw_only=True, tag_field="kind", tag="start"):
    """Start one shard. `command`, `env`, `mounts` and `weights` are unexpanded; the agent fills in `${...}`."""

    shard: str
    replica: str
    incarnation: str
    model: str
    profile: str
    attempt: int = 1
    rank: int = 0
    world_size: int = 1
    served_name: str = ""
    fingerprint: str = ""
    weights: str = ""
    launcher: str = "exec"
    image: str = ""
    mounts: tuple[str, ...] = ()
    engine: str = ""
    command: tuple[str, ...] = ()
    env: dict[str, str] = {}
    pool: str = "default"
    fabric: str = ""
    gpus: tuple[str, ...] = ()
    hcas: tuple[str, ...] = ()
    port: int = 0
    ports: dict[str, int] = {}
    resources: Resources = Resources()
    health: str = "/health"
    compute: str = ""
    ready: Ready = Ready()
    start_timeout_s: float = 900.0
    stop: Stop = Stop()
    restart: Restart = Restart()
    peers: tuple[Peer, ...] = ()
    start_order: str = ""  # of rank 0: `WORKERS_FIRST` where the other ranks must listen first
    #: (shard, incarnation) whose end it was ordered with: kept back until none of them is on its way out any more
    after: tuple[tuple[str, str], ...] = ()
    api_key: str = ""
    insecure: bool = False
    sleep: Doors | None = None
    seq: int = 0
    session: str = ""
    epoch: int = 0
    leader_uuid: str = ""


class DrainShard(Struct, frozen=True, kw_only=True, tag_field="kind", tag="drain"):
    """Journal desired=draining: the engine serves what it has, and a restart of anybody does not undo it (A65)."""

    shard: str
    incarnation: str
    reason: str
    seq: int = 0
    session: str = ""
    epoch: int = 0
    leader_uuid: str = ""


class StopShard(Struct, frozen=True, kw_only=True, tag_field="kind", tag="stop"):
    """TERM, grace, KILL of the whole session, verified. Refused for another incarnation.

    `force`: an operator's word that what cannot be killed, or cannot be looked at, holds nothing any more (A43).
    `not_after`: by its agent's own clock (`Events.at`); later it is only to drain. "": whenever it comes.
    """

    shard: str
    incarnation: str
    reason: str
    grace_s: float | None = None
    force: bool = False
    not_after: str = ""
    seq: int = 0
    session: str = ""
    epoch: int = 0
    leader_uuid: str = ""


class ForgetShard(Struct, frozen=True, kw_only=True, tag_field="kind", tag="forget"):
    """Delete the record of an ended shard (leader only); refused while anything of it runs."""

    shard: str
    incarnation: str
    seq: int = 0
    session: str = ""
    epoch: int = 0
    leader_uuid: str = ""


class SendReport(Struct, frozen=True, kw_only=True, tag_field="kind", tag="report"):
    """Fence: store this epoch durably, then answer with a full register."""

    seq: int = 0
    session: str = ""
    epoch: int = 0
    leader_uuid: str = ""


class Take(Struct, frozen=True, kw_only=True, tag_field="kind", tag="take"):
    """Take over a process that somebody started by hand, as the engine that `start` would have started (A71).

    Nothing is started, restarted or signalled. Refused (`not_taken`) where the process is another or runs otherwise.
    """

    shard: str
    incarnation: str
    pid: int
    start_ticks: int
    start: Start
    #: of its environment, what need not be alike
    template_env: tuple[str, ...] = ()
    seq: int = 0
    session: str = ""
    epoch: int = 0
    leader_uuid: str = ""


Command = Start | DrainShard | StopShard | ForgetShard | SendReport | Take | SleepShard | WakeShard


class Refusal(Struct, frozen=True, kw_only=True):
    """An agent's no: the closed `reason`, the resource in the way ("port 18000", "gpu GPU-..."), one sentence."""

    seq: int
    shard: str
    incarnation: str
    reason: str
    resource: str = ""
    why: str = ""
    facts: tuple[Fact, ...] = ()  # of a `Take`: all that was compared, with what differs


class Events(Struct, frozen=True, kw_only=True):
    """`POST /agent/v1/events`: what changed, at once and every 5 s. Lower `n` than seen is old and ignored."""

    session: str
    n: int
    applied: int = 0
    shards: tuple[ShardReport, ...] = ()
    gone: tuple[tuple[str, str], ...] = ()  # shard and incarnation whose record is deleted
    gpus: tuple[Gpu, ...] | None = None
    #: why `gpus` are not known now, "" that they are; None: an older agent, which does not say
    gpus_error: str | None = None
    foreign: tuple[Foreign, ...] | None = None
    refused: tuple[Refusal, ...] = ()
    digest: str = ""
    at: str = ""  # by a clock of its own, just before it was sent


class EventsReply(Struct, frozen=True, kw_only=True):
    """`match` False asks for a full register: the two pictures differ (anti-entropy)."""

    match: bool = True
    epoch: int = 0
    #: names of the programs that profiles start: listeners with one of them are engines that somebody started (A70)
    programs: tuple[str, ...] = ()


class Registered(Struct, frozen=True, kw_only=True):
    session: str
    epoch: int
    leader_uuid: str
    leader: bool = True
    protocol: int = PROTOCOL
    lease: str = ""  # "etcd", or "file:WHICH": two of these on one node are refused
    read_only: bool = False
    verdicts: tuple[dict[str, Any], ...] = ()
    programs: tuple[str, ...] = ()  # as in `EventsReply`


class Commands(Struct, frozen=True, kw_only=True):
    commands: tuple[Command, ...] = ()
    leader: bool = True
    epoch: int = 0
