"""What one agent knows, what happens to it, and what it may do: the words of `core.supervise`.

State: `AgentState` holds one `Record` per (shard, incarnation). Events carry facts in, effects carry orders out;
both are closed unions. The shells in `llmgw/agent` (and the simulator) perform effects and answer with events; they
decide nothing.

The performer's side of the bargain:
- Effects of one call are performed in the order given. `StoreToken`, `WriteRecord` and `DeleteRecord` are durable
  before anything after them happens. When one of them fails: of a `CommandReceived` the whole answer is thrown
  away, the old state kept and the command refused (`cannot_journal`); of any other event the new state is kept, the
  write is tried again later, and a `Spawn` of that record is answered `SpawnFailed`.
- `Spawn` is answered by `Spawned` or `SpawnFailed`, `Look` by `TreeSeen`, `Measure` by a fresh `GpusSeen` and a
  `MemorySeen` (so that what was just freed is free for the next start, not for the sample of seconds ago), `Probe`
  by `Probed`, `Knock` by `Knocked`, `Identify` by `Identified`, `CallDoor` by `DoorAnswered` (a fresh `GpusSeen` first,
  as with `Measure`). An answer names the attempt it is about; a late one is
  ignored. `Signal` has no answer: what it did shows in `Exited` and `TreeSeen`.
- An answer may come at once or late, never not at all (bounded calls), except that a dead agent loses them all: the
  next process loads the journal, asks `Identify` of every record that is not terminal, and registers when all are
  answered.
- `Tick` comes at the latest at `supervise.next_due`. Times are seconds of one monotonic clock per boot (failure
  times are journaled; they are read again only within the same boot, where that clock goes on).
"""

from __future__ import annotations

from typing import Any, Literal

from msgspec import Struct

from llmgw.core.types.by_hand import ByHand
from llmgw.core.types.messages import (
    Capacity,
    Command,
    Compute,
    Fabric,
    Foreign,
    Gpu,
    Refusal,
    Start,
    Token,
)
from llmgw.core.types.record import Key, Record

DoorName = Literal["sleep", "wake", "ask"]


class Session(Struct, frozen=True, kw_only=True):
    """A live registration with one control. `lease`: "etcd", "file:WHICH", "file"; "" where control does not say."""

    session: str
    epoch: int = 0
    leader_uuid: str = ""
    leader: bool = True
    lease: str = ""


class NodeFacts(Struct, frozen=True, kw_only=True):
    """What does not change while the agent process lives, but for the certificate that its API shows (`Renewed`)."""

    node: str
    node_id: str = ""
    instance: str = ""
    version: str = ""
    boot_id: str = ""
    address: str = "127.0.0.1"
    loopback: str = ""
    inspect: str = ""
    inspect_pin: str = ""
    #: HOST:PORT of each control: engines carry them, so that a lost state dir's are known from another fleet's
    controls: tuple[str, ...] = ()
    pools: tuple[str, ...] = ("default",)
    labels: dict[str, str] = {}
    fabrics: dict[str, Fabric] = {}
    circuit: str | None = None
    capacity: Capacity = Capacity()


class AgentState(Struct, frozen=True, kw_only=True):
    """Everything the agent decides by. `sessions` by control URL; `gpus` None: unknown (F59), `gpus_error` says why."""

    facts: NodeFacts
    #: the highest token obeyed, durable
    token: Token | None = None
    #: when the lease of that token was heard last; None: nobody was heard by this process
    obeyed_s: float | None = None
    sessions: dict[str, Session] = {}
    records: dict[Key, Record] = {}
    gpus: tuple[Gpu, ...] | None = None
    gpus_error: str = ""
    foreign: tuple[Foreign, ...] = ()
    #: a leader was heard since this process started; before that no dead engine is restarted (F36)
    control_heard: bool = False

    @property
    def reattached(self) -> bool:
        return all(r.watch.identified for r in self.records.values())


# ---------------------------------------------------------------- events


class Room(Struct, frozen=True, kw_only=True):
    """What the host has left, looked at just now: memory available, the state dir's disk. None: not known, no limit.

    `missing`: a file that the engine would load and that is not there.
    """

    memory_bytes: int | None = None
    disk_bytes: int | None = None
    disk_size_bytes: int = 0
    missing: str = ""


class CommandReceived(Struct, frozen=True, kw_only=True, tag=True):
    """An order, from the control at this URL.

    With a `Start` come the ports of it that a plain bind, just tried, found taken and by whom (port -> words), the room
    on this host, and a fresh random key for an engine that comes without one. `extra`: what a newer control says and
    this version does not know, as the record keeps it (F56).
    """

    command: Command
    control: str
    ports_busy: dict[int, str] = {}
    room: Room = Room()
    fresh_key: str = ""
    #: with a `Take`: the process that it names
    by_hand: ByHand = ByHand()
    extra: dict[str, Any] = {}


class SessionOpened(Struct, frozen=True, kw_only=True, tag=True):
    """Registered, or the control behind a live session said something new about who leads."""

    control: str
    session: Session


class SessionLost(Struct, frozen=True, tag=True):
    """Gone at control, silent, or closed by us before a snapshot (A42): its commands are refused from here on."""

    control: str


class Spawned(Struct, frozen=True, kw_only=True, tag=True):
    """`at` is wall time, ISO. `artefact`: the expanded weights, secrets left unexpanded."""

    key: Key
    attempt: int
    pid: int
    start_ticks: int
    at: str = ""
    artefact: str = ""


class SpawnFailed(Struct, frozen=True, kw_only=True, tag=True):
    """Nothing runs. `fatal`: trying again here cannot help (no such binary, port taken)."""

    key: Key
    attempt: int
    error: str
    fatal: bool = False


class TreeSeen(Struct, frozen=True, kw_only=True, tag=True):
    """Live processes of the shard: `alive` provably ours, `doubtful` perhaps (they hold, and are not signalled)."""

    key: Key
    attempt: int
    alive: tuple[int, ...] = ()
    doubtful: tuple[int, ...] = ()
    detail: str = ""


class Exited(Struct, frozen=True, kw_only=True, tag=True):
    """The leader is gone. `code` as subprocess has it (-9: signal 9), None where nobody could observe it.

    `lasting`: by its own last words its arguments are to blame, so that each further start would end alike.
    `out_of_memory`: the kernel ended some process for want of memory just then; None where it does not tell. `seen`:
    what is left of the others, looked at when it was dead; None where nobody looked.
    """

    key: Key
    attempt: int
    code: int | None = None
    last_line: str = ""
    lasting: bool = False
    out_of_memory: bool | None = None
    seen: TreeSeen | None = None


class Probed(Struct, frozen=True, kw_only=True, tag=True):
    """One health probe. `owner` is asked for with `Probe.check`: "ours", "other" (`detail` says whose), "" unknown."""

    key: Key
    attempt: int
    outcome: Literal["ok", "loading", "refused", "failed"]
    detail: str = ""
    progress: float | None = None
    owner: Literal["", "ours", "other"] = ""
    compute: Compute | None = None


class Knocked(Struct, frozen=True, kw_only=True, tag=True):
    """The other ranks of a group, as their leader's node reaches them: those that do not listen, and why."""

    key: Key
    attempt: int
    missing: tuple[str, ...] = ()


class MemorySeen(Struct, frozen=True, kw_only=True, tag=True):
    """Memory in use on the shard's GPUs and the pids listed there; `used_bytes` None where NVML cannot tell."""

    key: Key
    attempt: int
    used_bytes: int | None = None
    pids: tuple[int, ...] = ()


class DoorAnswered(Struct, frozen=True, kw_only=True, tag=True):
    """What came of a `CallDoor`. `asleep` is the engine's own word; None: it was not to be had, `detail` says why.

    Of a sleeper: what it still uses on the GPU where that is most, None where nobody can measure; after "sleep" also
    what came back.
    """

    key: Key
    attempt: int
    which: DoorName
    asleep: bool | None = None
    detail: str = ""
    rest_bytes: int | None = None
    freed_bytes: int | None = None


class Told(Struct, frozen=True, kw_only=True):
    """What markers tell beside the order itself. `whole`: the order is complete, so it may be started again."""

    attempt: int = 1
    started_at: str = ""
    artefact: str = ""
    api_key: str = ""
    #: what it was told to listen on
    address: str = ""
    whole: bool = False


class Identified(Struct, frozen=True, kw_only=True, tag=True):
    """Evidence about a record's processes, for re-attach; `core.supervise.reattach` says what it means.

    `leader`: the process at the record's pid, by start ticks. `pid`, `start_ticks`: a session leader that carries the
    record's markers (asked where the record has no pid). `address`: where it listens. `others`: further live
    processes proved ours. `rebuilt` and `told`: the order as far as the markers of any of them tell it, for a record
    that could not be read.
    """

    key: Key
    leader: Literal["absent", "same", "other"] = "absent"
    pid: int | None = None
    start_ticks: int = 0
    address: str = ""
    others: tuple[int, ...] = ()
    doubtful: tuple[int, ...] = ()
    error: str = ""
    detail: str = ""
    rebuilt: Start | None = None
    told: Told = Told()


class GpusSeen(Struct, frozen=True, tag=True):
    gpus: tuple[Gpu, ...] | None
    foreign: tuple[Foreign, ...] = ()
    error: str = ""
    #: by record: what its engine holds now on the GPU where that is most
    held: dict[Key, int] = {}
    #: by record: the host's memory that its processes hold now
    resident: dict[Key, int] = {}


class Renewed(Struct, frozen=True, tag=True):
    """The agent's API shows another certificate: controls that call it must know its hash."""

    pin: str


class Tick(Struct, frozen=True, tag=True):
    pass


#: What is told of one record.
About = (
    Spawned | SpawnFailed | Exited | Probed | Knocked | TreeSeen | MemorySeen | DoorAnswered | Identified
)  # fmt: skip
Event = CommandReceived | SessionOpened | SessionLost | About | GpusSeen | Renewed | Tick

# ---------------------------------------------------------------- effects


class StoreToken(Struct, frozen=True, tag=True):
    token: Token


class WriteRecord(Struct, frozen=True, tag=True):
    """Journal it, without `watch`."""

    record: Record


class DeleteRecord(Struct, frozen=True, tag=True):
    """Delete the record if there is one, and tell every control that it is gone.

    `released`: what may be left of it carries its markers, and is to be a stranger for later agents too.
    """

    key: Key
    released: bool = False


class Spawn(Struct, frozen=True, tag=True):
    """Start the attempt; its intent is journaled. At most one a (shard, attempt)."""

    record: Record


class Signal(Struct, frozen=True, tag=True):
    """To every live process of the shard once, each checked again at that moment; `name` is TERM, KILL or the like."""

    record: Record
    name: str


class Look(Struct, frozen=True, tag=True):
    record: Record


class Measure(Struct, frozen=True, tag=True):
    record: Record


class Probe(Struct, frozen=True, tag=True):
    """`check`: also whose listener it is and where the model was put; `token`: it must make one real token too."""

    record: Record
    check: bool = False
    token: bool = False


class Knock(Struct, frozen=True, tag=True):
    """Whether each of the other ranks takes a connection at its fabric address and port, asked from this node."""

    record: Record


class CallDoor(Struct, frozen=True, tag=True):
    """Put it to sleep, wake it, or ask whether it sleeps, by its own doors; bounded. Calling twice is calling once."""

    record: Record
    which: DoorName


class Identify(Struct, frozen=True, tag=True):
    record: Record


class Refuse(Struct, frozen=True, tag=True):
    control: str
    refusal: Refusal


class Register(Struct, frozen=True, tag=True):
    """Send the complete inventory to this control anew."""

    control: str


class Changed(Struct, frozen=True, tag=True):
    """Report these shards to every control at once."""

    keys: tuple[Key, ...]


Effect = (
    StoreToken
    | WriteRecord
    | DeleteRecord
    | Spawn
    | Signal
    | Look
    | Measure
    | Probe
    | Knock
    | CallDoor
    | Identify
    | Refuse
    | Register
    | Changed
)
